"""What a judged shard leaves behind: its parts of targets and rejects, and its counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from vtaudit import audit
from vtaudit.canonical import CARRIED
from vtaudit.columns import choose, pick
from vtaudit.counts import RUN, SCOPES, count_padding, count_verdicts
from vtaudit.kernels import VTrace
from vtaudit.labels import decode_text
from vtaudit.ledger import number_deliveries
from vtaudit.pieces import Junction, count_once
from vtaudit.plan import Plan, lineage_columns
from vtaudit.reasons import Warn
from vtaudit.records import NOT_CUT, Verdicts
from vtaudit.results import (
    STATISTICS,
    build_rejects,
    build_targets,
    rejects_schema,
    targets_schema,
)
from vtaudit.shard import WITHHELD, Received, Shard
from vtaudit.store import write_table
from vtaudit.tallies import NOTHING, Tally, add_tallies, tally_of
from vtaudit.units import Chunk

NAMED_KEYS = 5
Row = tuple[object, int]


@dataclass(frozen=True, slots=True)
class ShardResult:
    """What a unit of the log leaves for the audit.

    Attributes:
        counts: of its rows.
        surplus: scores without a row.
        unscored, unused: a few keys without score, and without row.
        has_discounts: whether a discount is neither 0 nor 1.
        junction: of a piece of a window, what it hands on.
    """

    counts: Tally
    surplus: int = 0
    unscored: tuple[Row, ...] = ()
    unused: tuple[Row, ...] = ()
    has_discounts: bool = False
    junction: Junction | None = None


def scope_names(plan: Plan) -> list[str]:
    """Return the mapped scopes of the audit."""
    return ["source_file", *(name for name in SCOPES if name in plan.shape.dtypes)]


def gather_verdicts(shard: Shard, is_cut: NDArray[np.bool_]) -> Verdicts:
    """Return what became of the rows of a shard; `is_cut` says which have a boundary  # [N]."""
    return Verdicts(
        reasons=shard.found.reasons,
        warnings=shard.found.warnings,
        boundary=np.where(is_cut, shard.segments.boundary, NOT_CUT),
        source=np.where(is_cut, shard.segments.source, NOT_CUT),
        log_ratio=shard.log_ratio,
        key=shard.keys.key,
        window=shard.window,
        delivery=number_deliveries(
            shard.keys, shard.window, shard.rows["file"].to_numpy(), shard.received
        ),
    )


def count_shard(plan: Plan, shard: Shard) -> ShardResult:
    """Return the counts of a judged shard."""
    verdicts = gather_verdicts(shard, shard.found.reasons == 0)
    scopes = shard.rows[scope_names(plan)]
    if shard.received is not None:
        verdicts, scopes = verdicts.take(shard.received), scopes[shard.received]
    counts = count_verdicts(
        verdicts,
        scopes,
        plan.settings.thresholds(),
        targets=plan.settings.targets,
    )
    surplus = shard.unused.height
    if surplus:
        name = ("warning", Warn.SCORE_SURPLUS.code)
        counts = add_tallies([counts, Tally(((RUN, RUN),), (name,), np.array([[surplus]]))])
    return ShardResult(
        counts=counts,
        surplus=surplus,
        unscored=tuple(shard.unscored.head(NAMED_KEYS).rows()),
        unused=tuple(shard.unused.head(NAMED_KEYS).rows()),
    )


def count_unit(plan: Plan, shard: Shard, received: Received) -> ShardResult:
    """Return the counts of a judged shard, and of a piece what it hands on."""
    result = count_shard(plan, shard)
    if not received.is_piece:
        return result
    keyed = shard.rows.filter(pl.Series(shard.keys.key >= 0))
    counts, seen = count_once(result.counts.spell(), keyed, scope_names(plan), received.after)
    junction = replace(hand_on(plan, shard, received.after), seen=seen)
    return replace(result, counts=tally_of(counts), junction=junction)


def hand_on(plan: Plan, shard: Shard, after: Junction | None) -> Junction:
    """Return the first row of a judged piece, for the piece before it.

    Args:
        plan: of the run.
        shard: the piece.
        after: the first row of the piece after it.
    """
    if not len(shard.keys.starts):
        return after or Junction(None)
    first, rows = int(shard.keys.starts[0]), shard.segments.rows
    names = ["trajectory_id", "step", "value", *lineage_columns(plan.shape)]
    names = [name for name in names if name in shard.rows.columns]
    carry = None if shard.carries is None else shard.carries[1]
    is_accepted = bool(len(rows)) and int(rows[0]) == first and carry is not None
    return Junction(
        row=decode_text(shard.rows[first : first + 1].select(names)).row(0, named=True),
        is_accepted=is_accepted,
        gives_value=not int(shard.found.reasons[first]) & WITHHELD and "value" in names,
        delta_sum=float(carry.delta_sum[0]) if is_accepted and carry is not None else 0.0,
        trace_length=float(carry.trace_length[0]) if is_accepted and carry is not None else 0.0,
    )


def count_chunk(plan: Plan, chunk: Chunk) -> ShardResult:
    """Return what a chunk of the log leaves beside its received rows."""
    if chunk.padding.is_empty():
        return ShardResult(NOTHING, has_discounts=chunk.has_discounts)
    padding = count_padding(chunk.padding.select(scope_names(plan)))
    return ShardResult(padding, has_discounts=chunk.has_discounts)


def add_up(shards: Sequence[ShardResult]) -> ShardResult:
    """Return the sum of several results."""
    surplus = sum(shard.surplus for shard in shards)
    unscored = [key for shard in shards for key in shard.unscored]
    unused = [key for shard in shards for key in shard.unused]
    return ShardResult(
        counts=add_tallies([shard.counts for shard in shards]),
        surplus=surplus,
        unscored=tuple(unscored[:NAMED_KEYS]),
        unused=tuple(unused[:NAMED_KEYS]),
        has_discounts=any(shard.has_discounts for shard in shards),
    )


def tabulate(plan: Plan, whole: ShardResult) -> dict[str, Any]:
    """Return the rows of summary, audit, audit_by and files, from the counts of all shards."""
    counts = whole.counts.of_group((RUN, RUN))
    unknown = audit.unknown_counts(
        ordered=plan.settings.step_from == "order",
        targets=plan.settings.targets,
        ratio=plan.shape.has("target_log_prob"),
    )
    rows = audit.audit_rows(counts, unknown)
    return {
        "summary": [audit.summary_row(rows, counts, plan.files)],
        "audit": rows,
        "audit_by": audit.tabulate_groups(whole.counts),
        "files": audit.file_rows(plan.files),
    }


def write_shard(
    plan: Plan, shard: Shard, work: Path, number: int, *, flush: bool = True
) -> list[Path]:
    """Write the shard's parts of targets and rejects, the first one also where it is empty.

    Return their paths; without `flush` they are not yet on the disk.
    """
    written = []
    for name, table in build_parts(plan, shard).items():
        if table.num_rows or number == 0:
            written.append(work / name / part_name(number))
            is_tight = name == "targets" and bool(plan.carry)
            write_table(table, written[-1], statistics=STATISTICS, is_tight=is_tight, flush=flush)
    return written


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
    frame = rows[_written(rows, [*ids, "step", "policy_version", *plan.carry])]
    taken = choose(segments.rows, rows.height)
    is_kept = pl.Series(pick(shard.found.reasons, taken) == 0)
    kept = taken
    if not is_kept.all():
        kept = choose(segments.rows[is_kept.to_numpy()], rows.height)
    columns: dict[str, NDArray[Any]] = {
        "boundary": pick(segments.boundary, kept),
        "bootstrap_source": pick(segments.source, kept),
        "value": pick(shard.columns.floats("value"), kept),
        "reward": pick(shard.columns.floats("reward"), kept),
        "discount": pick(shard.discount, kept),
    }
    for name in VTrace._fields:
        column = None if shard.results is None else getattr(shard.results, name)
        if column is None:
            columns[name] = np.zeros(0)
        else:  # a copy of all rows where all are kept, as they mostly are, would be for nothing
            columns[name] = column if is_kept.all() else pick(column, is_kept)
    schema = targets_schema(ids, settings.dtype, weights=settings.weights)
    accepted = pl.DataFrame([column.filter(kept) for column in frame])
    targets = build_targets(accepted, columns, schema, list(plan.carry))
    bad = np.flatnonzero(shard.found.reasons != 0)
    rejects = build_rejects(frame[bad], shard.found.reasons[bad], rejects_schema(ids))
    return {"targets": targets, "rejects": rejects}


def _written(rows: pl.DataFrame, names: Sequence[str]) -> list[str]:
    """Return which columns of a shard the parts are built from."""
    wanted = {*names, *(CARRIED + name for name in names), "source_file", "row"}
    return [name for name in rows.columns if name in wanted]
