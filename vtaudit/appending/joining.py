"""The rows of a bucket among the lines of its ledger, so that segments are cut with both in view.

A line stands in the stream as a row before every received copy of its key: it may be a successor
and give its value, it ends its segment, and its own boundary is never looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from vtaudit.canonical import LINEAGE, LogShape
from vtaudit.kernels import Carry
from vtaudit.ledger import Keys, number_keys, number_windows
from vtaudit.ordering import ORDER
from vtaudit.records import Segments
from vtaudit.segments import Stream
from vtaudit.stretches import number_rows

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Number = TypeVar("Number", bound=np.generic)


@dataclass(frozen=True, slots=True)
class Joined:
    """M lines and N rows in one order; P = M + N places.

    Attributes:
        lines: of the ledger, in any order; M of them.
        line: the line at each place, -1 where a row stands  # [P]
        row: the row at each place, -1 where a line stands  # [P]
        place: of each row  # [N]
        keys: the places by key.
        window, lineage: number of each place's window and lineage  # [P]
    """

    lines: pl.DataFrame
    line: Ints
    row: Ints
    place: Ints
    keys: Keys
    window: Ints
    lineage: Ints

    def marks(self, name: str) -> Bools:
        """Return a mark of the lines by place, false where a row stands  # [P]."""
        return np.append(self.lines[name].to_numpy(), False)[self.line]

    def values(self) -> Floats:
        """Return the values of the lines by place, NaN where a row stands  # [P]."""
        return np.append(self.lines["value"].to_numpy(), np.nan)[self.line]

    def lines_of_rows(self, chosen: pl.Series) -> Ints:
        """Return the chosen line of each row's key, -1 for none  # [N]."""
        by_key = np.full(len(self.keys.starts) + 1, -1, np.int64)
        places = np.flatnonzero(self.line >= 0)
        places = places[chosen.to_numpy()[self.line[places]]]
        by_key[self.keys.key[places]] = self.line[places]
        by_key[-1] = -1
        return by_key[self.keys.key[self.place]]


def join_lines(
    lines: pl.DataFrame, rows: pl.DataFrame, key_missing: Bools, shape: LogShape, *, stitched: bool
) -> Joined:
    """Return the rows among the lines, by (trajectory_id, step), lines first."""
    labels = [name for name in ("unroll_id", *LINEAGE) if name in shape.dtypes]
    columns = [
        pl.col("trajectory_id").cast(lines.schema["trajectory_id"]),
        pl.col("step"),
        *(pl.col(name).cast(pl.String) for name in labels),
    ]
    number = pl.int_range(pl.len(), dtype=pl.Int64)
    parts = [
        lines.select(
            *columns,
            pl.lit(-1, pl.Int32).alias("file"),
            number.alias("row"),
            number.alias("at"),
            pl.lit(False).alias("key_missing"),
        ),
        rows.select(
            *columns,
            pl.col("file", "row"),
            (number + lines.height).alias("at"),
            pl.Series("key_missing", key_missing, dtype=pl.Boolean),
        ),
    ]
    frame = pl.concat(parts).sort(ORDER, nulls_last=False)
    at = frame["at"].to_numpy()
    row = np.where(at >= lines.height, at - lines.height, -1)
    place = np.empty(rows.height, np.int64)
    places = np.flatnonzero(row >= 0)
    place[row[places]] = places
    keys = number_keys(frame, frame["key_missing"].to_numpy())
    lineage = [frame[name] for name in LINEAGE if name in shape.dtypes]
    return Joined(
        lines=lines,
        line=np.where(row < 0, at, -1),
        row=row,
        place=place,
        keys=keys,
        window=number_windows(frame, keys, stitched=stitched),
        lineage=number_rows(lineage, frame.height),
    )


@dataclass(frozen=True, slots=True)
class RowColumns:
    """What cutting needs of the rows, as in `segments.Stream`; all arrays are [N]."""

    accepted: Bools
    gives_value: Bools
    terminated: Bools
    truncated: Bools
    discount: Floats
    value: Floats
    bootstrap_value: Floats


def make_stream(joined: Joined, rows: RowColumns) -> Stream:
    """Return the stream of lines and rows; a line is accepted where it can be a successor."""
    size = len(joined.row)
    ends, one = joined.line >= 0, np.ones(size)
    none, no = np.full(size, np.nan), np.zeros(size, np.bool_)
    is_successor = joined.marks("is_kept") & joined.marks("is_head")
    return Stream(
        key=joined.keys.key,
        starts=joined.keys.starts,
        counts=joined.keys.counts,
        trajectory=joined.keys.trajectory,
        step=joined.keys.step,
        window=joined.window,
        lineage=joined.lineage,
        accepted=_spread(joined, rows.accepted, is_successor),
        gives_value=_spread(joined, rows.gives_value, joined.marks("gives")),
        terminated=_spread(joined, rows.terminated, ends),
        truncated=_spread(joined, rows.truncated, no),
        discount=_spread(joined, rows.discount, one),
        value=_spread(joined, rows.value, joined.values()),
        bootstrap_value=_spread(joined, rows.bootstrap_value, none),
        followed=np.zeros(size, np.bool_),
        value_outside=none,
    )


def _spread(joined: Joined, of_rows: NDArray[Number], of_lines: NDArray[Number]) -> NDArray[Number]:
    """Return a column by place, of rows where they stand and of lines elsewhere  # [P]."""
    found = of_lines.copy()
    found[joined.place] = of_rows
    return found


def split_segments(joined: Joined, found: Segments) -> tuple[Segments, Carry]:
    """Return the segments of the rows alone, and what follows the last row of each.

    A line ends its segment, so the row before it, if there is one, becomes the last: it stays
    interior, and is followed by the line.
    """
    lengths = np.diff(found.offsets)
    segment = np.repeat(np.arange(len(lengths)), lengths)
    is_row = joined.row[found.rows] >= 0
    sizes = np.bincount(segment[is_row], minlength=len(lengths))
    last = found.rows[found.offsets[1:] - 1] if len(lengths) else found.rows
    line = np.where(sizes > 0, joined.line[last], -1)[sizes > 0]
    rows = joined.row[found.rows[is_row]]
    offsets = np.concatenate(([0], np.cumsum(sizes[sizes > 0])))
    next_value = found.next_value[joined.place]
    followed = line >= 0
    after = joined.lines.select("value", "delta_sum", "trace_length")
    value, delta_sum, trace_length = (
        np.where(followed, np.append(column.to_numpy(), np.nan)[line], 0.0)
        for column in after.iter_columns()
    )
    ends = rows[offsets[1:] - 1]
    next_value[ends[followed]] = value[followed]
    goes_on = np.zeros(len(joined.place), np.bool_)
    goes_on[ends[followed]] = True
    segments = Segments(
        followed=goes_on,
        boundary=found.boundary[joined.place],
        source=found.source[joined.place],
        next_value=next_value,
        giver=np.append(joined.row, -1)[found.giver[joined.place]],
        missing=found.missing[joined.place],
        zero=found.zero[joined.place],
        rows=rows,
        offsets=offsets.astype(np.int64),
    )
    return segments, Carry(followed, delta_sum, trace_length)
