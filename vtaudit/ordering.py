"""Give rows their step, scores and ends, and put them in the order of their streams."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from vtaudit.canonical import KEYS
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


def join_scores(rows: pl.DataFrame, scores: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the rows with their scores, and the keys of scores that no row has.

    A score replaces the logged column; a logged bootstrap_value stands where no score has
    a finite one.
    `scored` says which rows found a score.
    """
    names = [name for name in scores.columns if name not in KEYS]
    marked = scores.rename({name: f"scored:{name}" for name in names}).with_columns(
        pl.lit(True).alias("scored")
    )
    joined = rows.join(marked, on=list(KEYS), how="left", maintain_order="left")
    columns = [
        _first_finite(f"scored:{name}", name)
        if name == "bootstrap_value" and name in rows.columns
        else pl.col(f"scored:{name}")
        for name in names
    ]
    joined = joined.with_columns(
        pl.col("scored").fill_null(False),
        *(column.alias(name) for column, name in zip(columns, names, strict=True)),
    ).drop(f"scored:{name}" for name in names)
    unused = scores.join(rows, on=list(KEYS), how="anti").select(KEYS).sort(KEYS)
    return joined, unused


def _first_finite(one: str, other: str) -> pl.Expr:
    return pl.when(pl.col(one).is_finite()).then(pl.col(one)).otherwise(pl.col(other))


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


def sort_rows(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows by (trajectory_id, step, file, row), nulls first."""
    return rows.sort(ORDER, nulls_last=False)
