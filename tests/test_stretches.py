"""Stretches of alike rows, and tables of counts, against definitions in plain Python."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import polars as pl
import pytest

from vtaudit.labels import code_text
from vtaudit.stretches import find_stretches, lengths_of, mark_changes, number_rows
from vtaudit.tallies import Tally, add_tallies, tally_from_json, tally_of

WORDS = ("a", "b", "ab", None)


def make_columns(seed: int, rows: int) -> list[pl.Series]:
    chosen = random.Random(seed)
    texts = [WORDS[chosen.randrange(4)] for _ in range(rows)]
    numbers = [chosen.choice((None, 0, 1, -(2**63), 2**63 - 1)) for _ in range(rows)]
    return [
        code_text(pl.Series("text", texts, dtype=pl.String)),
        pl.Series("number", numbers, dtype=pl.Int64),
        pl.Series("whole", [chosen.randrange(2) for _ in range(rows)], dtype=pl.Int64),
    ]


@pytest.mark.parametrize("rows", [0, 1, 2, 300])
def test_stretches_are_maximal_and_alike(rows: int) -> None:
    columns = make_columns(rows, rows)
    values = list(zip(*(column.to_list() for column in columns), strict=True))
    for column in columns:
        changes = [one != other for one, other in zip(column[1:], column[:-1], strict=True)]
        assert mark_changes(column).tolist() == changes
    expected = [k for k in range(rows) if k == 0 or values[k] != values[k - 1]]
    firsts = find_stretches(columns)
    assert firsts.tolist() == expected
    assert lengths_of(firsts, rows).sum() == rows


@pytest.mark.parametrize("rows", [0, 1, 300])
def test_numbers_are_those_of_the_combinations(rows: int) -> None:
    columns = make_columns(rows + 1, rows)
    number = number_rows(columns, rows)
    values = list(zip(*(column.to_list() for column in columns), strict=True))
    pairs = set(zip(number.tolist(), values, strict=True))
    assert len(pairs) == len(set(values)) == len(set(number.tolist()))
    assert number_rows([], rows).tolist() == [0] * rows


def test_tallies_add_up_as_their_long_forms_do() -> None:
    draw = np.random.default_rng(0)
    parts, expected = [], Counter[tuple[object, ...]]()
    for seed in range(4):
        groups = tuple(("scope", text) for text in random.Random(seed).sample(WORDS, 3))
        names = tuple((f"m{k}", None if k % 2 else "kind") for k in range(seed, seed + 3))
        part = Tally(groups, names, draw.integers(0, 3, (3, 3)))
        parts.append(tally_from_json(part.as_json()))
        for row in part.spell().rows():
            expected[row[:4]] += row[4]
    whole = add_tallies(parts)
    assert {row[:4]: row[4] for row in whole.spell().rows()} == expected
    again = tally_of(whole.spell())
    assert again.of_group(("scope", None)) == whole.of_group(("scope", None))
    assert whole.of_group(("scope", None)) == {
        key[2:4]: count for key, count in expected.items() if key[1] is None
    }
    assert whole.of_group(("other", None)) == {}
