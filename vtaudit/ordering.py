"""Give rows their step and ends, and put them in the order of their streams."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from vtaudit.records import InputFile

ORDER = ("trajectory_id", "step", "file", "row")


def number_steps(rows: pl.DataFrame, files: Sequence[InputFile]) -> pl.DataFrame:
    """Return the rows with a step: each row's place in its trajectory, files in natural order.

    The rows of a file whose content equals an earlier file's have that file's steps, so that they
    are its duplicates. Rows without a trajectory_id have no step.
    """
    first: dict[str | None, int] = {}
    origin = [first.setdefault(file.sha256, place) for place, file in enumerate(files)]
    place = pl.Series("origin", origin, dtype=pl.Int32).gather(rows["file"])
    rows = rows.with_columns(place).sort("file", "row")
    is_copy = pl.col("origin") != pl.col("file")
    counted = pl.int_range(pl.len(), dtype=pl.Int64).over("trajectory_id")
    step = pl.when(pl.col("trajectory_id").is_not_null()).then(counted)
    originals = rows.filter(~is_copy).with_columns(step.alias("step"))
    copies = rows.filter(is_copy).join(
        originals.select(pl.col("file").alias("origin"), "row", "step"),
        on=["origin", "row"],
        how="left",
    )
    return pl.concat([originals, copies.select(originals.columns)]).drop("origin")


def mark_ends(rows: pl.DataFrame, end: str) -> pl.DataFrame:
    """Return the rows with flags: the greatest step of each trajectory ends it as `end` says."""
    is_key = pl.col("trajectory_id").is_not_null() & (pl.col("step") >= 0)
    last = pl.when(is_key).then(pl.col("step")).max().over("trajectory_id")
    is_last = (is_key & (pl.col("step") == last)).fill_null(False).cast(pl.Int8)
    flags = [
        (is_last if name == end else pl.lit(0, dtype=pl.Int8)).alias(name)
        for name in ("terminated", "truncated")
    ]
    return rows.with_columns(flags)


def find_order(rows: pl.DataFrame) -> NDArray[np.int64] | None:
    """Return the rows by (trajectory_id, step, file, row), nulls first; None where they stand so.

    Most logs hold long runs of rows in order: then it is the runs that are sorted.
    """
    keys = _order_keys(rows)
    is_head = ~_are_in_order(keys)
    if not is_head.any():
        return None
    heads = np.concatenate(([0], np.flatnonzero(is_head) + 1))
    first = [key[heads] for key in reversed(keys)]
    run = np.lexsort(first)
    lengths = np.diff(heads, append=rows.height)[run]
    begin = np.cumsum(lengths) - lengths
    order = np.repeat(heads[run] - begin, lengths) + np.arange(rows.height)
    if not _are_in_order([key[order] for key in keys]).all():
        trajectory, step, file, row = keys
        order = np.lexsort((*_join(file, row), *_join(trajectory, step)))
    return order


def _join(high: NDArray[np.integer], low: NDArray[np.integer]) -> list[NDArray[np.integer]]:
    """Return one key that orders as two do, or these, the lesser first, where 63 bits are too few.

    A sort by one key merges runs that are in order; by the lesser of two there are none.
    """
    least, span = int(low.min()), int(low.max()) - int(low.min()) + 1
    if span * (int(high.max()) + 2) >= 1 << 63:
        return [low, high]
    return [high.astype(np.int64) * span + (low.astype(np.int64) - least)]


def _order_keys(rows: pl.DataFrame) -> list[NDArray[np.integer]]:
    """Return the columns of ORDER as numbers in their order, null before all others."""
    keys = []
    for name in ORDER:
        column = rows[name]
        if isinstance(column.dtype, pl.Enum):
            column = column.to_physical()
        if column.null_count():
            column = column.rank("dense").cast(pl.Int64).fill_null(-1)
        keys.append(column.to_numpy())
    return keys


def _are_in_order(keys: Sequence[NDArray[np.integer]]) -> NDArray[np.bool_]:
    """Return whether each row but the last stands before the next one  # [N - 1]."""
    rows = len(keys[0])
    is_less = np.zeros(max(rows - 1, 0), np.bool_)
    is_equal = np.ones(max(rows - 1, 0), np.bool_)
    for key in keys:
        is_less |= is_equal & (key[:-1] < key[1:])
        is_equal &= key[:-1] == key[1:]
    return is_less | is_equal
