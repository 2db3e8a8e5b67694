"""Counts by scope as a table: a line for each group of rows, a column for each thing counted.

Tables add up without a look at their words; in long form the counts of a log with many groups would
take ten times the memory.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

SCHEMA = {
    "scope": pl.String,
    "scope_value": pl.String,
    "measure": pl.String,
    "kind": pl.String,
    "count": pl.Int64,
}
# scope and its value, and what is counted: measure and kind
Group = tuple[str, str | None]
Name = tuple[str, str | None]


@dataclass(frozen=True, slots=True)
class Tally:
    """What was counted.

    Attributes:
        groups: G of them, each once.
        names: M of them, each once.
        table: the counts  # [G, M] int64
    """

    groups: tuple[Group, ...]
    names: tuple[Name, ...]
    table: NDArray[np.int64]

    def of_group(self, group: Group) -> dict[Name, int]:
        """Return the counts of one group that are not 0."""
        if group not in self.groups:
            return {}
        counts = self.table[self.groups.index(group)].tolist()
        return {name: count for name, count in zip(self.names, counts, strict=True) if count}

    def spell(self) -> pl.DataFrame:
        """Return the counts that are not 0 in long form: the columns of SCHEMA."""
        line, column = np.nonzero(self.table)
        texts = [*text_columns(self.groups), *text_columns(self.names)]
        places = (line, line, column, column)
        values = [text[place] for text, place in zip(texts, places, strict=True)]
        counts = pl.Series(self.table[line, column])
        return pl.DataFrame(dict(zip(SCHEMA, [*values, counts], strict=True)), schema=SCHEMA)

    def as_json(self) -> dict[str, Any]:
        """Return the tally as JSON values, without names whose counts are all 0."""
        used = np.flatnonzero(self.table.any(axis=0))
        names = [self.names[place] for place in used]
        table = base64.b64encode(self.table[:, used].tobytes()).decode()
        return {"groups": self.groups, "names": names, "table": table}


NOTHING = Tally((), (), np.zeros((0, 0), np.int64))


def text_columns(pairs: Sequence[tuple[str, str | None]]) -> list[pl.Series]:
    """Return the first and the second texts of some pairs, a column each."""
    return [pl.Series([pair[place] for pair in pairs], dtype=pl.String) for place in (0, 1)]


def tally_from_json(body: dict[str, Any]) -> Tally:
    """Return what `as_json` gave."""
    groups, names = (tuple((one, two) for one, two in body[key]) for key in ("groups", "names"))
    table = np.frombuffer(base64.b64decode(body["table"]), np.int64)
    return Tally(groups, names, table.reshape(len(groups), len(names)))


def tally_of(counts: pl.DataFrame) -> Tally:
    """Return counts in long form as a table; what stands there twice is added up."""
    rows = counts.rows()
    groups, names = _number(row[:2] for row in rows), _number(row[2:4] for row in rows)
    table = np.zeros((len(groups), len(names)), np.int64)
    for row in rows:
        table[groups[row[:2]], names[row[2:4]]] += row[4]
    return Tally(tuple(groups), tuple(names), table)


def add_tallies(parts: Sequence[Tally]) -> Tally:
    """Return the sum of several tallies."""
    groups = _number(group for part in parts for group in part.groups)
    names = _number(name for part in parts for name in part.names)
    table = np.zeros((len(groups), len(names)), np.int64)
    for part in parts:
        lines = np.array([groups[group] for group in part.groups], np.int64)
        columns = np.array([names[name] for name in part.names], np.int64)
        table[np.ix_(lines, columns)] += part.table
    return Tally(tuple(groups), tuple(names), table)


def _number(pairs: Iterable[tuple[str, str | None]]) -> dict[tuple[str, str | None], int]:
    """Return the place of each pair in the order of their first occurrence."""
    return {pair: place for place, pair in enumerate(dict.fromkeys(pairs))}
