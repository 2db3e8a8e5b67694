"""One shard from start to end: order, judge, cut, compute, write, count."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from vtaudit.canonical import PAYLOAD, PRESENT
from vtaudit.clock import Clock
from vtaudit.counts import count_verdicts
from vtaudit.kernels import Thresholds, VTrace, vtrace_packed
from vtaudit.ledger import (
    Keys,
    code_values,
    combine_codes,
    find_conflicts,
    find_duplicates,
    number_deliveries,
    number_keys,
    number_windows,
)
from vtaudit.ordering import join_scores, mark_ends, number_steps, sort_rows
from vtaudit.plan import Plan, lineage_columns
from vtaudit.reading import LogRows, load_rows, load_scores, scope_columns
from vtaudit.reasons import Reason, Warn
from vtaudit.records import Segments, Verdicts
from vtaudit.results import (
    STATISTICS,
    build_rejects,
    build_targets,
    rejects_schema,
    targets_schema,
)
from vtaudit.segments import NOT_CUT, Stream, cut_segments
from vtaudit.store import write_table
from vtaudit.validation import judge_rows

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Row = tuple[object, int]


@dataclass(frozen=True, slots=True)
class ShardResult:
    """Counts of a shard, its surplus scores, and a few keys without score and without row."""

    counts: pl.DataFrame
    surplus: int
    unscored: tuple[Row, ...]
    unused: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Findings:
    """Sets of Reason and Warn bits of each row  # [N] uint64."""

    reasons: NDArray[np.uint64]
    warnings: NDArray[np.uint64]

    def add(self, finding: Reason | Warn, rows: Bools) -> None:
        """Add a finding to the rows where `rows` is true."""
        bits = self.reasons if isinstance(finding, Reason) else self.warnings
        bits[rows] |= np.uint64(finding.bit)


def run_shard(plan: Plan, log: LogRows, number: int, work: Path, clock: Clock) -> ShardResult:
    """Judge and compute the rows of one shard, write its parts, and return its counts."""
    with clock.stage("order"):
        rows, unscored, unused = _order(plan, log, number)
    found = Findings(np.zeros(rows.height, np.uint64), np.zeros(rows.height, np.uint64))
    with clock.stage("judge"):
        found.add(Warn.SCORE_MISSING, unscored)
        keys = _judge(plan, rows, found)
        window = number_windows(rows, keys, stitched=plan.settings.windows == "stitched")
    with clock.stage("cut"):
        segments = _cut(plan, rows, keys, window, found)
    with clock.stage("compute"):
        log_ratio = _log_ratio(plan, rows)
        results = _compute(plan, rows, segments, log_ratio, found)
    with clock.stage("write"):
        _write(plan, rows, segments, results, found, work, number)
    with clock.stage("count"):
        delivered = number_windows(rows, keys, stitched=False)
        is_accepted = found.reasons == 0
        verdicts = Verdicts(
            reasons=found.reasons,
            warnings=found.warnings,
            boundary=np.where(is_accepted, segments.boundary, NOT_CUT),
            source=np.where(is_accepted, segments.source, NOT_CUT),
            log_ratio=log_ratio,
            key=keys.key,
            window=delivered,
            delivery=number_deliveries(keys, delivered, rows["file"].to_numpy()),
        )
        counts = count_verdicts(
            verdicts,
            rows.select(scope_columns(plan)),
            plan.settings.thresholds(),
            targets=plan.settings.targets,
        )
    missing = rows.select("trajectory_id", "step").filter(pl.Series(unscored)).head(5)
    return ShardResult(counts, unused.height, tuple(missing.rows()), tuple(unused.head(5).rows()))


def _order(plan: Plan, log: LogRows, number: int) -> tuple[pl.DataFrame, Bools, pl.DataFrame]:
    """Return the shard's rows in order, which of them have no score, and scores without a row."""
    rows = load_rows(log, plan, number)
    if plan.settings.step_from == "order":
        rows = number_steps(rows, log.files)
    scores = load_scores(log, plan, number)
    unused = pl.DataFrame(schema=("trajectory_id", "step"))
    if scores is not None:
        rows, unused = join_scores(rows, scores)
    if plan.settings.end_of_trajectory:
        rows = mark_ends(rows, plan.settings.end_of_trajectory)
    rows = sort_rows(rows)
    unscored = np.zeros(rows.height, np.bool_)
    if scores is not None:
        unscored = ~rows["scored"].to_numpy()
    return rows, unscored, unused


def _judge(plan: Plan, rows: pl.DataFrame, found: Findings) -> Keys:
    """Note what every rule and the ledger find; return the keys."""
    verdicts = judge_rows(rows, plan.shape, plan.settings)
    for finding, broken in verdicts.items():
        found.add(finding, broken)
    keys = number_keys(rows, verdicts[Reason.KEY_MISSING])
    payload = [name for name in PAYLOAD if name in plan.shape.dtypes]
    found.add(Reason.KEY_CONFLICT, find_conflicts(rows, keys, payload))
    conflict = (found.reasons & np.uint64(Reason.KEY_CONFLICT.bit)) != 0
    found.add(Reason.DUPLICATE, find_duplicates(keys, conflict, found.reasons != 0))
    return keys


def _cut(
    plan: Plan, rows: pl.DataFrame, keys: Keys, window: NDArray[np.int64], found: Findings
) -> Segments:
    """Cut the accepted rows into segments, and note what the boundaries find."""
    lineage = [code_values(rows[name]) for name in lineage_columns(plan.shape)]
    withheld = np.uint64(
        Reason.KEY_MISSING.bit
        | Reason.KEY_CONFLICT.bit
        | Reason.VALUE_NOT_FINITE.bit
        | Reason.WINDOW_MALFORMED.bit
    )
    stream = Stream(
        key=keys.key,
        starts=keys.starts,
        counts=keys.counts,
        trajectory=keys.trajectory,
        step=keys.step,
        window=window,
        lineage=combine_codes(np.zeros(rows.height, np.int64), *lineage),
        accepted=(found.reasons == 0) & plan.settings.targets,
        gives_value=(found.reasons & withheld) == 0,
        terminated=(rows["terminated"] == 1).fill_null(False).to_numpy(),
        truncated=(rows["truncated"] == 1).fill_null(False).to_numpy(),
        discount=_gamma(plan, rows),
        value=_floats(rows, "value"),
        bootstrap_value=_floats(rows, "bootstrap_value"),
    )
    segments = cut_segments(stream)
    found.add(Reason.BOOTSTRAP_MISSING, segments.missing)
    found.add(Warn.BOOTSTRAP_ZERO, segments.zero)
    return segments


def _floats(rows: pl.DataFrame, name: str) -> Floats:
    """Return a column with NaN for null, all NaN where it is not mapped."""
    if name not in rows.columns:
        return np.full(rows.height, np.nan)
    return rows[name].fill_null(float("nan")).to_numpy()


def _gamma(plan: Plan, rows: pl.DataFrame) -> Floats:
    gamma = float(plan.settings.gamma or 0.0)
    if "discount" not in rows.columns:
        return np.full(rows.height, gamma)
    discount = np.where(rows[PRESENT + "discount"], _floats(rows, "discount"), 1.0)
    return gamma * discount


def _log_ratio(plan: Plan, rows: pl.DataFrame) -> NDArray[np.floating]:
    """Return target - behavior log-prob, subtracted in float64 and rounded once, NaN for none."""
    parts = []
    for name in ("target_log_prob", "behavior_log_prob"):
        log_prob = _floats(rows, name)
        if plan.shape.is_discrete:
            rounded = (log_prob > 0) & (log_prob <= plan.settings.log_prob_tolerance)
            log_prob = np.where(rounded, 0.0, log_prob)
        parts.append(log_prob)
    with np.errstate(invalid="ignore", over="ignore"):
        return (parts[0] - parts[1]).astype(plan.settings.dtype)


def _compute(
    plan: Plan,
    rows: pl.DataFrame,
    segments: Segments,
    log_ratio: NDArray[np.floating],
    found: Findings,
) -> VTrace | None:
    """Return the targets of the rows in segments; note the ones that are not finite."""
    settings, taken = plan.settings, segments.rows
    if not settings.targets:
        return None
    results = vtrace_packed(
        log_ratio[taken],
        _floats(rows, "value")[taken],
        _floats(rows, "reward")[taken],
        _gamma(plan, rows)[taken],
        segments.next_value[taken[segments.offsets[1:] - 1]],
        segments.offsets,
        thresholds=Thresholds(
            settings.rho_bar, settings.c_bar, settings.pg_rho_bar, settings.lambda_
        ),
        backend=settings.backend,
        dtype=settings.dtype,
        device=settings.device,
    )
    broken = np.zeros(rows.height, np.bool_)
    broken[taken] = ~(np.isfinite(results.value_target) & np.isfinite(results.advantage))
    found.add(Reason.TARGET_NOT_FINITE, broken)
    return results


def _write(
    plan: Plan,
    rows: pl.DataFrame,
    segments: Segments,
    results: VTrace | None,
    found: Findings,
    work: Path,
    number: int,
) -> None:
    """Write the shard's parts of targets and rejects; the first shard writes its own anyhow."""
    ids = {
        name: "int64" if plan.shape.dtypes.get(name) == pl.Int64 else "string"
        for name in ("trajectory_id", "unroll_id")
    }
    settings = plan.settings
    is_kept = found.reasons[segments.rows] == 0
    taken = segments.rows[is_kept]
    columns = {
        "boundary": segments.boundary[taken],
        "bootstrap_source": segments.source[taken],
        "value": _floats(rows, "value")[taken],
        "reward": _floats(rows, "reward")[taken],
        "discount": _gamma(plan, rows)[taken],
    }
    for name in VTrace._fields:
        column = None if results is None else getattr(results, name)
        columns[name] = np.zeros(0) if column is None else column[is_kept]
    schema = targets_schema(ids, settings.dtype, weights=settings.weights)
    targets = build_targets(rows[taken], columns, schema, list(plan.carry))
    bad = np.flatnonzero(found.reasons)
    rejects = build_rejects(rows[bad], found.reasons[bad], rejects_schema(ids))
    for name, table in (("targets", targets), ("rejects", rejects)):
        if table.num_rows or number == 0:
            write_table(table, work / name / f"part-{number:05d}.parquet", statistics=STATISTICS)
