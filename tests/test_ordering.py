"""The order of a shard's rows, against a sort by Polars."""

from __future__ import annotations

import random

import polars as pl
import pytest

from vtaudit.labels import code_text
from vtaudit.ordering import ORDER, find_order

STEPS: dict[str, list[int | None]] = {
    "few": [0, 1, 2, 3, None],
    "from afar": [10**15, 10**15 + 1, 10**15 + 9],
    "extreme": [-(2**63), -1, 0, 2**62, 2**63 - 1],
}


def make_rows(seed: int, height: int, steps: list[int | None], *, text: bool) -> pl.DataFrame:
    chosen = random.Random(seed)
    names = [chosen.choice(("a", "b", "ab", None)) for _ in range(height)]
    numbers = [chosen.choice((-(2**63), 7, 2**63 - 1, None)) for _ in range(height)]
    files = sorted(chosen.randrange(3) for _ in range(height))
    return pl.DataFrame(
        {
            "trajectory_id": code_text(pl.Series(names, dtype=pl.String)) if text else numbers,
            "step": pl.Series([chosen.choice(steps) for _ in range(height)], dtype=pl.Int64),
            "file": pl.Series(files, dtype=pl.Int32),
            "row": pl.Series(range(height), dtype=pl.Int64),
        }
    )


@pytest.mark.parametrize("text", [True, False])
@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("height", [0, 1, 2, 60])
def test_order_is_that_of_a_sort(height: int, steps: str, *, text: bool) -> None:
    for seed in range(20):
        rows = make_rows(seed, height, STEPS[steps], text=text)
        order = find_order(rows)
        found = rows if order is None else rows[order]
        assert found.equals(rows.sort(ORDER, nulls_last=False))
        assert find_order(found) is None
