"""One shard from rows to verdicts and targets: order, judge, cut, compute."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from vtaudit.canonical import PAYLOAD
from vtaudit.clock import Clock
from vtaudit.columns import Columns, Floats, choose, gamma_of, log_ratio_of, pick
from vtaudit.joining import join_scores
from vtaudit.kernels import Carry, Thresholds, VTrace, vtrace_packed
from vtaudit.ledger import (
    Keys,
    find_conflicts,
    find_duplicates,
    find_outside,
    number_keys,
    number_windows,
)
from vtaudit.ordering import find_order, mark_ends, number_steps
from vtaudit.pieces import Junction, carry_into, follow
from vtaudit.plan import Plan, lineage_columns
from vtaudit.reasons import Reason, Warn
from vtaudit.records import Segments
from vtaudit.segments import Stream, cut_segments
from vtaudit.stretches import number_rows
from vtaudit.validation import judge_rows

Bools = NDArray[np.bool_]
# a row with one of these gives no value to the row before it
WITHHELD = (
    Reason.KEY_MISSING.bit
    | Reason.KEY_CONFLICT.bit
    | Reason.VALUE_NOT_FINITE.bit
    | Reason.WINDOW_MALFORMED.bit
)
# of a kernel, those that targets hold without --weights
PLAIN_OUTPUTS = ("value_target", "advantage", "log_ratio", "next_value", "trace_length")


@dataclass(slots=True)
class Received:
    """The received rows of one shard in any order, and what else is known of them.

    Attributes:
        rows: canonical and carried columns, source_file, file and row; once they are sorted, those
            in order, so that there is one copy of them.
        scores: of their keys; None where none were given.
        edges: keys, lineage and values of rows in other shards that follow some of these.
        is_piece: whether they are a piece of one window.
        after: of a piece, the first row of the next piece; None in the last one.
    """

    rows: pl.DataFrame
    scores: pl.DataFrame | None = None
    edges: pl.DataFrame | None = None
    is_piece: bool = False
    after: Junction | None = None


@dataclass(frozen=True, slots=True)
class Findings:
    """Sets of Reason and Warn bits of each row  # [N] uint64."""

    reasons: NDArray[np.uint64]
    warnings: NDArray[np.uint64]

    def add(self, finding: Reason | Warn, rows: Bools | NDArray[np.int64]) -> None:
        """Add a finding to some rows, flagged or listed."""
        bits = self.reasons if isinstance(finding, Reason) else self.warnings
        bits[rows] |= np.uint64(finding.bit)


@dataclass(frozen=True, slots=True)
class Shard:
    """The received rows of one shard, in order, and all that was found of them.

    Attributes:
        columns: canonical and carried columns, source_file, file, row; N rows.
        found: reasons and warnings of each row.
        keys: the rows by key.
        window: number of the row's window, stitched or not, -1 without a key  # [N]
        segments: boundaries and bootstraps, and the segments of the rows that have targets.
        discount: gamma_t  # [N] float64
        log_ratio: as stored, NaN for none  # [N]
        results: targets of the rows `segments.rows`, the ones not finite included; None without.
        unscored: keys of rows without a score.
        unused: keys of scores without a row.
        carries: of a piece, what follows each segment and what the row before it needs.
        received: the rows as they were received; None where they stand so  # [N]
    """

    columns: Columns
    found: Findings
    keys: Keys
    window: NDArray[np.int64]
    segments: Segments
    discount: Floats
    log_ratio: NDArray[np.floating]
    results: VTrace | None
    unscored: pl.DataFrame
    unused: pl.DataFrame
    carries: tuple[Carry, Carry] | None = None
    received: NDArray[np.int64] | None = None

    @property
    def rows(self) -> pl.DataFrame:
        """The rows of the columns."""
        return self.columns.rows


def judge_shard(plan: Plan, received: Received, clock: Clock) -> Shard:
    """Return the rows of one shard with their verdicts and targets."""
    shard = cut_shard(plan, received, clock)
    if not plan.settings.targets:
        return shard
    with clock.stage("compute"):
        results = compute_targets(plan, shard, carries=shard.carries)
        note_not_finite(shard, results, plan.settings.dtype)
    return replace(shard, results=results)


def note_not_finite(shard: Shard, results: VTrace, dtype: str) -> None:
    """Note the rows of segments whose target or advantage is not finite in the output type."""
    with np.errstate(over="ignore"):
        columns = [column.astype(dtype) for column in (results.value_target, results.advantage)]
    is_finite = np.isfinite(columns[0]) & np.isfinite(columns[1])
    shard.found.add(Reason.TARGET_NOT_FINITE, shard.segments.rows[~is_finite])


def cut_shard(plan: Plan, received: Received, clock: Clock) -> Shard:
    """Return the rows of one shard with their verdicts and segments, without targets."""
    with clock.stage("order"):
        rows, unscored, unused = _prepare(plan, received)
        order = find_order(rows)
        if order is not None:
            rows, unscored = rows[order], unscored[order]
            received.rows = rows
    columns = Columns(rows)
    found = Findings(np.zeros(rows.height, np.uint64), np.zeros(rows.height, np.uint64))
    with clock.stage("judge"):
        found.add(Warn.SCORE_MISSING, unscored)
        keys = _judge(plan, columns, found)
    with clock.stage("cut"):
        discount = gamma_of(plan, columns)
        window = number_windows(rows, keys, stitched=False)
        stream = _stream(plan, columns, keys, window, discount, found)
        stream = _look_outside(plan, rows, keys, received, stream)
        segments = cut_segments(stream)
        found.add(Reason.BOOTSTRAP_MISSING, segments.missing)
        found.add(Warn.BOOTSTRAP_ZERO, segments.zero)
    return Shard(
        columns=columns,
        found=found,
        keys=keys,
        window=window,
        segments=segments,
        discount=discount,
        log_ratio=log_ratio_of(plan, columns),
        results=None,
        unscored=rows[["trajectory_id", "step"]][np.flatnonzero(unscored)],
        unused=unused,
        carries=_carries(segments, received) if received.is_piece else None,
        received=None if order is None else np.argsort(order),
    )


def _carries(segments: Segments, received: Received) -> tuple[Carry, Carry]:
    followed = segments.followed[segments.rows[segments.offsets[1:] - 1]]
    return carry_into(followed, received.after), carry_into(np.zeros_like(followed), None)


def compute_targets(
    plan: Plan, shard: Shard, dtype: str | None = None, carries: tuple[Carry, Carry] | None = None
) -> VTrace:
    """Return the targets of the segments of a shard.

    Args:
        plan: whose clips, backend and device are used.
        shard: whose rows they are.
        dtype: of the results; the run's own by default.
        carries: `carry` and `first_carry` of the segments; by default no segment is followed.
    """
    carry, first_carry = carries or (None, None)
    settings, columns, segments = plan.settings, shard.columns, shard.segments
    chosen = choose(segments.rows, shard.rows.height)
    return vtrace_packed(
        pick(shard.log_ratio, chosen),
        pick(columns.floats("value"), chosen),
        pick(columns.floats("reward"), chosen),
        pick(shard.discount, chosen),
        segments.next_value[segments.rows[segments.offsets[1:] - 1]],
        segments.offsets,
        thresholds=Thresholds(
            settings.rho_bar, settings.c_bar, settings.pg_rho_bar, settings.lambda_
        ),
        backend=settings.backend,
        dtype=dtype or settings.dtype,
        device=settings.device,
        carry=carry,
        first_carry=first_carry,
        outputs=None if dtype or settings.weights else PLAIN_OUTPUTS,
    )


def _prepare(plan: Plan, received: Received) -> tuple[pl.DataFrame, Bools, pl.DataFrame]:
    """Return the shard's rows, which of them have no score, and scores without a row."""
    rows, scores = received.rows, received.scores
    if plan.settings.step_from == "order":
        rows = number_steps(rows, plan.files)
    unused = pl.DataFrame(schema=("trajectory_id", "step"))
    if scores is not None:
        rows, unused = join_scores(rows, scores)
    if plan.settings.end_of_trajectory:
        rows = mark_ends(rows, plan.settings.end_of_trajectory)
    unscored = np.zeros(rows.height, np.bool_)
    if scores is not None:
        unscored = ~rows["scored"].to_numpy()
    return rows, unscored, unused


def _judge(plan: Plan, columns: Columns, found: Findings) -> Keys:
    """Note what every rule and the ledger find; return the keys."""
    rows = columns.rows
    verdicts = judge_rows(columns, plan.shape, plan.settings)
    for finding, broken in verdicts.items():
        found.add(finding, broken)
    key_missing = np.zeros(rows.height, np.bool_)
    key_missing[verdicts[Reason.KEY_MISSING]] = True
    keys = number_keys(rows, key_missing)
    payload = [name for name in PAYLOAD if name in plan.shape.dtypes]
    found.add(Reason.KEY_CONFLICT, find_conflicts(rows, keys, payload))
    conflict = (found.reasons & np.uint64(Reason.KEY_CONFLICT.bit)) != 0
    found.add(Reason.DUPLICATE, find_duplicates(keys, conflict, found.reasons != 0))
    return keys


def _stream(
    plan: Plan,
    columns: Columns,
    keys: Keys,
    window: NDArray[np.int64],
    discount: Floats,
    found: Findings,
) -> Stream:
    """Return what cutting needs of the rows."""
    rows = columns.rows
    lineage = [rows[name] for name in lineage_columns(plan.shape)]
    if plan.settings.windows == "stitched":
        window = number_windows(rows, keys, stitched=True)
    return Stream(
        key=keys.key,
        starts=keys.starts,
        counts=keys.counts,
        trajectory=keys.trajectory,
        step=keys.step,
        window=window,
        lineage=number_rows(lineage, rows.height),
        accepted=(found.reasons == 0) & plan.settings.targets,
        gives_value=(found.reasons & np.uint64(WITHHELD)) == 0,
        terminated=rows["terminated"].to_numpy() == 1,
        truncated=rows["truncated"].to_numpy() == 1,
        discount=discount,
        value=columns.floats("value"),
        bootstrap_value=columns.floats("bootstrap_value"),
        value_outside=np.full(rows.height, np.nan),
        followed=np.zeros(rows.height, np.bool_),
    )


def _look_outside(
    plan: Plan, rows: pl.DataFrame, keys: Keys, received: Received, stream: Stream
) -> Stream:
    """Return the stream with what follows some of its rows in other shards."""
    lineage = lineage_columns(plan.shape)
    edges, after = follow(received.after, received.edges), received.after
    stream = replace(stream, value_outside=find_outside(rows, keys, edges, lineage))
    if after is None or after.row is None:
        return stream
    found = find_outside(rows, keys, follow(after, None), lineage)
    followed = np.isfinite(found) & after.is_accepted
    return replace(stream, followed=followed, step_outside=after.row["step"])
