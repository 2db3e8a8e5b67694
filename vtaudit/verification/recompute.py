"""Judge the logs of a run again, with the float64 reference; compare every row and count."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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
    count_unit,
    tabulate,
)
from vtaudit.pieces import Junction
from vtaudit.plan import Plan
from vtaudit.shard import Received, Shard, cut_shard
from vtaudit.units import open_log
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
    check = _Recheck(run, plan, sample, found)
    with tempfile.TemporaryDirectory(prefix="vtaudit-verify-") as spill:
        log = open_log(plan, Path(spill), lambda rows: None)
        for task in log.tasks:
            after = None
            for number in reversed(task):
                chunk = log.read_chunk(number)
                check.counts.append(count_chunk(plan, chunk))
                if number in log.parts:
                    edges, is_piece = log.edges.get(number), task in log.chains
                    received = Received(chunk.rows, None, edges, is_piece, after)
                    after = check.judge(number - log.parts.start, received)
        for number in log.buckets:
            rows, scores = log.read_bucket(number), log.read_scores(number)
            received = Received(rows, scores, log.edges.get(number))
            check.judge(number - log.parts.start, received)
    found.compared += [
        f"{check.rows['targets']:,} rows of targets, {check.taken:,} of {check.segments:,} "
        "segments: with the float64 reference on the logs",
        f"{check.rows['rejects']:,} rows of rejects: with the rules on the logs",
    ]
    if sample is None:
        _compare_counts(run, run_id, tabulate(plan, add_up(check.counts)), found)
    else:
        found.skipped.append("counts against the logs: only a sample of the segments was computed")


@dataclass(slots=True)
class _Recheck:
    """The units of a log as they are judged again, and what was compared so far."""

    run: Path
    plan: Plan
    sample: NDArray[np.int64] | None
    found: Verification
    segments: int = 0
    taken: int = 0
    rows: Counter[str] = field(default_factory=Counter)
    counts: list[ShardResult] = field(default_factory=list)

    def judge(self, part: int, received: Received) -> Junction | None:
        """Compare one part of the run; return what a piece hands on, whose segments all count."""
        shard = cut_shard(self.plan, received, Clock())
        first, count = self.segments, len(shard.segments.offsets) - 1
        self.segments += count
        if self.sample is not None and not received.is_piece:
            inside = (self.sample >= first) & (self.sample < self.segments)
            shard = take_segments(shard, self.sample[inside] - first)
        self.taken += len(shard.segments.offsets) - 1
        shard = compute_exactly(self.plan, shard)
        result = count_unit(self.plan, shard, received)
        self.counts.append(result)
        self.rows.update(_compare_shard(self.run, part, self.plan, shard, self.sample, self.found))
        return result.junction


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
