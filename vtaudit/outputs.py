"""What a judged shard leaves behind: its parts of targets and rejects, and its counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from vtaudit import audit
from vtaudit.counts import RUN, SCHEMA, count_verdicts, merge_counts
from vtaudit.kernels import VTrace
from vtaudit.ledger import number_deliveries, number_windows
from vtaudit.plan import Plan
from vtaudit.reading import LogRows, scope_names
from vtaudit.reasons import Warn
from vtaudit.records import Verdicts
from vtaudit.results import (
    STATISTICS,
    build_rejects,
    build_targets,
    rejects_schema,
    targets_schema,
)
from vtaudit.segments import NOT_CUT
from vtaudit.shard import Shard, floats
from vtaudit.store import write_table

NAMED_KEYS = 5
Row = tuple[object, int]


@dataclass(frozen=True, slots=True)
class ShardResult:
    """Counts of a shard, its surplus scores, and a few keys without score and without row."""

    counts: pl.DataFrame
    surplus: int
    unscored: tuple[Row, ...]
    unused: tuple[Row, ...]


def count_shard(plan: Plan, shard: Shard) -> ShardResult:
    """Return the counts of a judged shard."""
    window = number_windows(shard.rows, shard.keys, stitched=False)
    is_accepted = shard.found.reasons == 0
    verdicts = Verdicts(
        reasons=shard.found.reasons,
        warnings=shard.found.warnings,
        boundary=np.where(is_accepted, shard.segments.boundary, NOT_CUT),
        source=np.where(is_accepted, shard.segments.source, NOT_CUT),
        log_ratio=shard.log_ratio,
        key=shard.keys.key,
        window=window,
        delivery=number_deliveries(shard.keys, window, shard.rows["file"].to_numpy()),
    )
    counts = count_verdicts(
        verdicts,
        shard.rows.select(scope_names(plan)),
        plan.settings.thresholds(),
        targets=plan.settings.targets,
    )
    return ShardResult(
        counts=counts,
        surplus=shard.unused.height,
        unscored=tuple(shard.unscored.head(NAMED_KEYS).rows()),
        unused=tuple(shard.unused.head(NAMED_KEYS).rows()),
    )


def add_up(log: LogRows, shards: Sequence[ShardResult]) -> ShardResult:
    """Return the sum of the shards, with the padding and the scores that no row has."""
    surplus = sum(shard.surplus for shard in shards)
    row = (RUN, RUN, "warning", Warn.SCORE_SURPLUS.code, surplus)
    extra = pl.DataFrame([row] if surplus else [], schema=SCHEMA, orient="row")
    counts = merge_counts([log.padding, extra, *(shard.counts for shard in shards)])
    unscored = [key for shard in shards for key in shard.unscored]
    unused = [key for shard in shards for key in shard.unused]
    return ShardResult(counts, surplus, tuple(unscored[:NAMED_KEYS]), tuple(unused[:NAMED_KEYS]))


def tabulate(plan: Plan, log: LogRows, whole: ShardResult) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of summary, audit, audit_by and files, from the counts of all shards."""
    counts = audit.counts_of(whole.counts, RUN, RUN)
    unknown = audit.unknown_counts(
        ordered=plan.settings.step_from == "order",
        targets=plan.settings.targets,
        ratio=plan.shape.has("target_log_prob"),
    )
    rows = audit.audit_rows(counts, unknown, zeros=True)
    return {
        "summary": [audit.summary_row(rows, counts, log.files)],
        "audit": rows,
        "audit_by": audit.audit_by_rows(whole.counts, unknown),
        "files": audit.file_rows(log.files),
    }


def write_shard(plan: Plan, shard: Shard, work: Path, number: int) -> None:
    """Write the shard's parts of targets and rejects; the first shard writes its own anyhow."""
    for name, table in build_parts(plan, shard).items():
        if table.num_rows or number == 0:
            write_table(table, work / name / part_name(number), statistics=STATISTICS)


def part_name(number: int) -> str:
    """Return the name of a shard's part files."""
    return f"part-{number:05d}.parquet"


def build_parts(plan: Plan, shard: Shard) -> dict[str, pa.Table]:
    """Return the shard's rows of targets and of rejects."""
    rows, segments, settings = shard.rows, shard.segments, plan.settings
    ids = {
        name: "int64" if plan.shape.dtypes.get(name) == pl.Int64 else "string"
        for name in ("trajectory_id", "unroll_id")
    }
    is_kept = shard.found.reasons[segments.rows] == 0
    taken = segments.rows[is_kept]
    columns = {
        "boundary": segments.boundary[taken],
        "bootstrap_source": segments.source[taken],
        "value": floats(rows, "value")[taken],
        "reward": floats(rows, "reward")[taken],
        "discount": shard.discount[taken],
    }
    for name in VTrace._fields:
        column = None if shard.results is None else getattr(shard.results, name)
        columns[name] = np.zeros(0) if column is None else column[is_kept]
    schema = targets_schema(ids, settings.dtype, weights=settings.weights)
    targets = build_targets(rows[taken], columns, schema, list(plan.carry))
    bad = np.flatnonzero(shard.found.reasons)
    rejects = build_rejects(rows[bad], shard.found.reasons[bad], rejects_schema(ids))
    return {"targets": targets, "rejects": rejects}
