"""Stored rows of a run against recomputed ones: what is missing, what differs, and how far."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl

from vtaudit.outputs import part_name
from vtaudit.reasons import Reason
from vtaudit.schemas import load_columns

KEYS = ["trajectory_id", "step"]
PLACE = ["source_file", "source_row"]
STORED = ":stored"
REALS = frozenset(column.name for column in load_columns("targets") if column.type == "real")
# what backends compute; the other columns are copied, or rounded once, and must be equal
COMPUTED = ("value_target", "advantage", "trace_length", "rho", "c", "pg_rho")
SIZES = ("value_target", "value", "reward", "next_value")
RELATIVE = {"float32": 2.0**-21, "float64": 1e-9}
# of the largest value in the trajectory, for sums in which large numbers cancel
CANCELLED = 1e-11


@dataclass(frozen=True, slots=True)
class Difference:
    """How far a stored number is from the recomputed one, and where."""

    difference: float
    trajectory_id: object
    step: int


@dataclass(slots=True)
class Verification:
    """What was compared, and what was found.

    Attributes:
        damaged: files that are not as the manifest says, and logs that are not the run's.
        broken: laws that do not hold, and rows that differ from the recomputed ones.
        compared: what was compared, a sentence each.
        skipped: what could not be compared, and why.
        largest: the largest difference of each computed column.
    """

    damaged: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    compared: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    largest: dict[str, Difference] = field(default_factory=dict)


def read_table(run: Path, name: str, found: Verification) -> pl.DataFrame | None:
    """Return a Parquet file of the run; None, noted, where it is damaged."""
    if any(line.startswith(f"{name}:") for line in found.damaged):
        note = f"rows of {name}: the file is damaged"
        found.skipped += [note] * (note not in found.skipped)
        return None
    try:
        return pl.read_parquet(run / name, glob=False)
    except (OSError, pl.exceptions.PolarsError) as error:
        found.damaged.append(f"{name}: cannot be read: {str(error).splitlines()[0]}")
        return None


def compare_part(
    run: Path,
    number: int,
    expected: pl.DataFrame,
    found: Verification,
    *,
    table: str,
    dtype: str,
    whole: bool,
) -> int:
    """Compare one part file with the recomputed rows; return how many rows it holds of them.

    Args:
        run: the run directory.
        number: of the shard.
        expected: what the logs give, numbers in float64.
        found: where the findings go.
        table: targets or rejects; in a store, with the batch before it.
        dtype: of the run's numbers.
        whole: whether all of the shard's targets were recomputed.
    """
    name = f"{table}/{part_name(number)}"
    schema = {key: _stored_type(key, kind, dtype) for key, kind in expected.schema.items()}
    stored: pl.DataFrame | None = pl.DataFrame(schema=schema)
    if (run / name).is_file() or any(line.startswith(f"{name}:") for line in found.damaged):
        stored = read_table(run, name, found)
    if stored is None:
        return 0
    if dict(stored.schema) != schema:
        found.broken.append(f"{name}: its columns or their types are not those of the run")
        return 0
    if table.endswith("rejects"):
        return _compare_rejects(name, stored, expected, found, whole=whole)
    return _compare_targets(name, stored, expected, found, whole=whole)


def _stored_type(name: str, dtype: pl.DataType, real: str) -> pl.DataType:
    is_real = name in REALS and dtype == pl.Float64
    return pl.Float32() if is_real and real == "float32" else dtype


def _compare_targets(
    name: str, stored: pl.DataFrame, expected: pl.DataFrame, found: Verification, *, whole: bool
) -> int:
    if whole:
        _compare_keys(name, stored, expected, KEYS, found)
    both = expected.join(stored, on=KEYS, how="inner", suffix=STORED, maintain_order="left")
    if not whole and both.height < expected.height:
        lost = expected.height - both.height
        found.broken.append(f"{name}: {lost} recomputed rows are not there")
    for column in expected.columns:
        if column in COMPUTED:
            _compare_computed(name, both, column, found)
        elif column not in KEYS:
            rounded = both[column].cast(both.schema[column + STORED])
            differs = rounded.ne_missing(both[column + STORED])
            _note_difference(name, both, column, differs, found)
    return both.height


def _compare_keys(
    name: str,
    stored: pl.DataFrame,
    expected: pl.DataFrame,
    keys: list[str],
    found: Verification,
) -> None:
    """Note rows that only one side has, rows that stand there twice, and another order."""
    one, other = expected.select(keys), stored.select(keys)
    if one.equals(other):
        return
    before = len(found.broken)
    for frame, against, text in (
        (one, other, "not there, though the logs give it"),
        (other, one, "there, though the logs do not give it"),
    ):
        rows = frame.join(against, on=keys, how="anti", nulls_equal=True)
        if rows.height:
            first = " step " if keys == KEYS else ":"
            key = first.join(str(cell) for cell in rows.row(0)[:2])
            found.broken.append(f"{name}: {rows.height} rows, as {key}: {text}")
    if len(found.broken) == before:
        found.broken.append(f"{name}: rows stand there twice, or in another order")


def _compare_computed(name: str, both: pl.DataFrame, column: str, found: Verification) -> None:
    """Compare a column of computed numbers; remember the largest difference and its key."""
    stored = both[column + STORED]
    dtype = "float32" if stored.dtype == pl.Float32 else "float64"
    one, other = both[column].to_numpy(), stored.cast(pl.Float64).fill_null(math.nan).to_numpy()
    size = pl.max_horizontal(pl.col(*SIZES).abs()).max().over("trajectory_id")
    scale = both.select(size).to_series().to_numpy()
    with np.errstate(invalid="ignore"):
        gap = np.where(one == other, 0.0, np.abs(one - other))
        differs = ~(gap <= np.abs(one) * RELATIVE[dtype] + scale * CANCELLED)
    _note_difference(name, both, column, pl.Series(differs), found)
    if len(gap):
        place = int(np.nan_to_num(gap, nan=math.inf).argmax())
        here = Difference(float(gap[place]), *both.select(KEYS).row(place))
        old = found.largest.get(column, here)
        if not here.difference < old.difference:
            found.largest[column] = here


def _note_difference(
    name: str, both: pl.DataFrame, column: str, differs: pl.Series, found: Verification
) -> None:
    if differs.any():
        row = both.filter(differs).row(0, named=True)
        found.broken.append(
            f"{name}, {column}: {int(differs.sum())} rows differ; {row['trajectory_id']} step "
            f"{row['step']} has {row[column + STORED]}, recomputed {row[column]}"
        )


def _compare_rejects(
    name: str, stored: pl.DataFrame, expected: pl.DataFrame, found: Verification, *, whole: bool
) -> int:
    if not whole:
        is_late = pl.col("reasons").list.contains(Reason.TARGET_NOT_FINITE.code)
        stored, expected = stored.filter(~is_late), expected.filter(~is_late)
    _compare_keys(name, stored, expected, PLACE, found)
    both = expected.join(stored, on=PLACE, how="inner", suffix=STORED, maintain_order="left")
    for column in (column for column in expected.columns if column not in PLACE):
        one, other = both[column], both[column + STORED]
        if one.dtype == pl.List:
            one, other = one.list.join(" "), other.list.join(" ")
        _note_difference(name, both, column, one.ne_missing(other), found)
    return both.height
