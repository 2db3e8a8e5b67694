"""Judge the logs of a run again, with the float64 reference; compare every row and count."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from vtaudit.audit import make_table
from vtaudit.clock import Clock
from vtaudit.outputs import (
    ShardResult,
    add_up,
    build_parts,
    count_chunk,
    count_shard,
    tabulate,
)
from vtaudit.plan import Plan
from vtaudit.shard import Received, Shard, cut_shard
from vtaudit.units import Log, open_log
from vtaudit.verification.comparison import Verification, compare_part, read_table
from vtaudit.verification.replay import compute_exactly, take_segments


def recompute(
    run: Path, run_id: str, plan: Plan, sample: NDArray[np.int64] | None, found: Verification
) -> None:
    """Judge the logs again; compare the rows of targets and rejects, and every count.

    Args:
        run: the run directory.
        run_id: the manifest's.
        plan: of `plan_again`.
        sample: numbers of the segments whose targets are compared, ascending; None for all.
        found: where the findings go.
    """
    segments = taken = 0
    rows = {"targets": 0, "rejects": 0}
    counts: list[ShardResult] = []
    with tempfile.TemporaryDirectory(prefix="vtaudit-verify-") as spill:
        log = open_log(plan, Path(spill), lambda rows: None)
        for number, received in _receive(log, counts):
            shard = cut_shard(plan, received, Clock())
            first, segments = segments, segments + len(shard.segments.offsets) - 1
            if sample is not None:
                inside = (sample >= first) & (sample < segments)
                shard = take_segments(shard, sample[inside] - first)
            taken += len(shard.segments.offsets) - 1
            shard = compute_exactly(plan, shard)
            counts.append(count_shard(plan, shard))
            for table, count in _compare_shard(run, number, plan, shard, sample, found).items():
                rows[table] += count
    found.compared += [
        f"{rows['targets']:,} rows of targets, {taken:,} of {segments:,} segments: with the "
        "float64 reference on the logs",
        f"{rows['rejects']:,} rows of rejects: with the rules on the logs",
    ]
    if sample is None:
        _compare_counts(run, run_id, tabulate(plan, add_up(counts)), found)
    else:
        found.skipped.append("counts against the logs: only a sample of the segments was computed")


def _receive(log: Log, counts: list[ShardResult]) -> Iterator[tuple[int, Received]]:
    """Yield the number of each part of the run with its rows; counts of padding go to `counts`."""
    for number in range(len(log.chunks)):
        chunk = log.read_chunk(number)
        counts.append(count_chunk(log.plan, chunk))
        if number in log.parts:
            yield number - log.parts.start, Received(chunk.rows, edges=log.edges.get(number))
    for number in log.buckets:
        received = Received(log.read_bucket(number), log.read_scores(number), log.edges.get(number))
        yield number - log.parts.start, received


def _compare_shard(
    run: Path,
    number: int,
    plan: Plan,
    shard: Shard,
    sample: NDArray[np.int64] | None,
    found: Verification,
) -> dict[str, int]:
    """Compare the parts of one shard; return how many rows of each table were compared."""
    exact = replace(plan, settings=replace(plan.settings, dtype="float64"))
    return {
        table: compare_part(
            run,
            number,
            pl.DataFrame(pl.from_arrow(rows)).with_columns(pl.col(pl.Categorical).cast(pl.String)),
            found,
            table=table,
            dtype=plan.settings.dtype,
            whole=sample is None,
        )
        for table, rows in build_parts(exact, shard).items()
    }


def _compare_counts(
    run: Path,
    run_id: str,
    tables: Mapping[str, Any],
    found: Verification,
) -> None:
    """Compare the audit tables with those that the logs give."""
    rows = 0
    for name, body in tables.items():
        stored = read_table(run, f"audit/{name}.parquet", found)
        if stored is None:
            continue
        expected = pl.DataFrame(pl.from_arrow(make_table(name, run_id, body)))
        rows += expected.height
        if not stored.equals(expected):
            found.broken.append(_first_difference(name, stored, expected))
    found.compared.append(f"{rows:,} rows of the audit tables: with the counts of the logs")


def _first_difference(name: str, stored: pl.DataFrame, expected: pl.DataFrame) -> str:
    if dict(stored.schema) != dict(expected.schema):
        return f"{name}: its columns or their types are not those of the run"
    if stored.height != expected.height:
        return f"{name}: it has {stored.height} rows, the logs give {expected.height}"
    for one, other in zip(
        stored.iter_rows(named=True), expected.iter_rows(named=True), strict=True
    ):
        for column, cell in one.items():
            if cell != other[column]:
                label = [
                    one[key]
                    for key in ("scope", "scope_value", "measure", "kind", "path")
                    if one.get(key) is not None
                ]
                text = " ".join([name, *label])
                return f"{text}: {column} is {cell}, the logs give {other[column]}"
    return f"{name}: it differs from what the logs give"
