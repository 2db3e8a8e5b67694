"""Judge the logs of a run again, with the float64 reference, and compare every row."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from vtaudit.clock import Clock
from vtaudit.config import settings_from_json
from vtaudit.errors import InputError
from vtaudit.outputs import build_parts, part_name
from vtaudit.plan import Plan, make_plan
from vtaudit.reading import read_log
from vtaudit.reasons import Reason
from vtaudit.schemas import load_columns
from vtaudit.shard import Shard, compute_targets, cut_shard, note_not_finite

RTOL = 1e-5
ATOL = 1e-6
KEYS = ["trajectory_id", "step"]
STORED = ":stored"
REALS = frozenset(column.name for column in load_columns("targets") if column.type == "real")


@dataclass(slots=True)
class Verification:
    """What was compared, and what was found.

    Attributes:
        damaged: files that are not as the manifest says.
        broken: laws that do not hold, and rows that differ from the recomputed ones.
        compared: what was compared, a sentence each.
        skipped: what could not be compared, and why.
        largest: the largest difference of each column of numbers, and the key where it stands.
    """

    damaged: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    compared: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    largest: dict[str, tuple[float, object, int]] = field(default_factory=dict)


def recompute(
    run: Path,
    manifest: dict[str, Any],
    logs: Sequence[Path],
    sample: NDArray[np.int64] | None,
    found: Verification,
) -> None:
    """Judge the logs again and compare the rows of targets and rejects."""
    settings = settings_from_json(manifest["settings"])
    plan = make_plan(logs, replace(settings, backend="reference", device="cpu"))
    _check_inputs(plan, manifest)
    segments = rows = rejects = 0
    with tempfile.TemporaryDirectory(prefix="vtaudit-verify-") as spill:
        log = read_log(plan, Path(spill), lambda rows: None)
        for number in range(log.rows.shards):
            shard = cut_shard(plan, log, number, Clock())
            first, segments = segments, segments + len(shard.segments.offsets) - 1
            if sample is not None:
                shard = _take_segments(
                    shard, sample[(sample >= first) & (sample < segments)] - first
                )
            parts = _expect_parts(plan, shard)
            rows += _compare_targets(run, parts["targets"], number, sample is None, found)
            rejects += _compare_rejects(run, parts["rejects"], number, sample is None, found)
    chosen = f"{segments} segments" if sample is None else f"{len(sample)} of {segments} segments"
    found.compared.append(f"{rows} rows of targets in {chosen} with the float64 reference")
    found.compared.append(f"{rejects} rows of rejects with the rules")


def _check_inputs(plan: Plan, manifest: dict[str, Any]) -> None:
    entries = manifest["inputs"] + manifest["scores"]
    wanted = [(entry["name"], entry["sha256"]) for entry in entries]
    there = [(file.name, file.sha256) for file in (*plan.files, *plan.scores)]
    nothing = ("no file", None)
    for (name, digest), (other, found) in zip_longest(wanted, there, fillvalue=nothing):
        if (name, digest) != (other, found):
            raise InputError(
                f"logs: found {other}, the run read {name}{' with other content' * (name == other)}"
                "; verify needs the very files of the run, say --logs DIR"
            )


def _take_segments(shard: Shard, numbers: NDArray[np.int64]) -> Shard:
    """Return the shard with some of its segments only."""
    offsets = shard.segments.offsets
    lengths = np.diff(offsets)[numbers]
    begin = np.concatenate(([0], np.cumsum(lengths)))
    places = np.repeat(offsets[numbers] - begin[:-1], lengths) + np.arange(begin[-1])
    segments = replace(shard.segments, rows=shard.segments.rows[places], offsets=begin)
    return replace(shard, segments=segments)


def _expect_parts(plan: Plan, shard: Shard) -> dict[str, pl.DataFrame]:
    """Return targets and rejects as the reference has them, targets in float64."""
    if plan.settings.targets:
        segments = shard.segments
        results = compute_targets(plan, shard, segments.offsets, segments.rows, "float64")
        note_not_finite(shard, results, plan.settings.dtype)
        shard = replace(shard, results=results)
    exact = replace(plan, settings=replace(plan.settings, dtype="float64"))
    return {
        name: pl.DataFrame(pl.from_arrow(table))
        for name, table in build_parts(exact, shard).items()
    }


def _read_part(run: Path, table: str, number: int, like: pl.DataFrame) -> pl.DataFrame:
    path = run / table / part_name(number)
    return pl.read_parquet(path, glob=False) if path.is_file() else like.clear()


def _compare_targets(
    run: Path, expected: pl.DataFrame, number: int, whole: bool, found: Verification
) -> int:
    stored = _read_part(run, "targets", number, expected)
    if whole:
        _compare_keys(stored, expected, f"targets/{part_name(number)}", found)
    both = expected.join(stored, on=KEYS, how="inner", suffix=STORED, maintain_order="left")
    if both.height < expected.height and not whole:
        lost = expected.height - both.height
        found.broken.append(f"targets/{part_name(number)}: {lost} recomputed rows are not there")
    for name in expected.columns:
        if name not in KEYS:
            _compare_column(both, name, expected.schema[name], found)
    return both.height


def _compare_keys(
    stored: pl.DataFrame, expected: pl.DataFrame, where: str, found: Verification
) -> None:
    for frame, other, text in (
        (expected, stored, "is not there, though the logs give it"),
        (stored, expected, "is there, though the logs do not give it"),
    ):
        rows = frame.join(other, on=KEYS, how="anti", nulls_equal=True)
        if rows.height:
            first = rows.select(KEYS).row(0)
            found.broken.append(f"{where}: {rows.height} rows; {first[0]} step {first[1]} {text}")


def _compare_column(both: pl.DataFrame, name: str, dtype: pl.DataType, found: Verification) -> None:
    """Compare one column of recomputed and stored rows; remember the largest difference."""
    one, other = both[name], both[name + STORED]
    if dtype != pl.Float64 or name not in REALS:
        differs = one.ne_missing(other.cast(dtype))
    else:
        gap = (one - other.cast(pl.Float64)).abs()
        differs = (~(gap <= one.abs() * RTOL + ATOL)).fill_null(True)
        _remember(both, name, gap.fill_nan(None), found)
    if differs.any():
        row = both.filter(differs).row(0, named=True)
        found.broken.append(
            f"{name}: {int(differs.sum())} rows differ; {row['trajectory_id']} step {row['step']} "
            f"has {row[name + STORED]}, recomputed {row[name]}"
        )


def _remember(both: pl.DataFrame, name: str, gap: pl.Series, found: Verification) -> None:
    """Keep the largest difference of a column and its key."""
    place = gap.arg_max()
    if place is not None and gap[place] >= found.largest.get(name, (0.0, None, 0))[0]:
        trajectory, step = both.select(KEYS).row(place)
        found.largest[name] = (float(gap[place]), trajectory, step)


def _compare_rejects(
    run: Path, expected: pl.DataFrame, number: int, whole: bool, found: Verification
) -> int:
    stored = _read_part(run, "rejects", number, expected)
    if not whole:
        is_late = pl.col("reasons").list.contains(Reason.TARGET_NOT_FINITE.code)
        stored, expected = stored.filter(~is_late), expected.filter(~is_late)
    if not stored.equals(expected.cast(stored.schema)):
        places = ["source_file", "source_row", "reasons"]
        only = expected.join(stored, on=places, how="anti")
        extra = stored.join(expected, on=places, how="anti")
        found.broken.append(
            f"rejects/{part_name(number)}: {only.height} rows that the rules give are not there, "
            f"{extra.height} rows are there that the rules do not give"
        )
    return stored.height
