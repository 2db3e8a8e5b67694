"""One bucket of a batch from rows to verdicts: what the ledger knows goes before what comes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from vtaudit.appending.joining import (
    Joined,
    RowColumns,
    join_lines,
    make_stream,
    split_segments,
)
from vtaudit.appending.payloads import Words, hash_payload
from vtaudit.canonical import PAYLOAD
from vtaudit.columns import Columns, gamma_of, log_ratio_of
from vtaudit.kernels import Carry
from vtaudit.ledger import Keys, find_conflicts, find_duplicates, number_keys, number_windows
from vtaudit.plan import Plan
from vtaudit.reasons import Reason, Warn
from vtaudit.segments import Stream, cut_segments, find_givers, find_open
from vtaudit.shard import (
    WITHHELD,
    Findings,
    Shard,
    compute_targets,
    note_not_finite,
)
from vtaudit.validation import judge_rows

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Bucket:
    """The rows of one bucket: those of the batch, and those that were pending before it.

    Attributes:
        columns: canonical and carried columns, file, row, source_file, batch (which brought it)
            and, with scores, scored; by (trajectory_id, step, file, row); N rows.
        lines: of the ledger, of the trajectories of `rows`.
        unused: keys of scores without a row.
        batch: the number of this batch.
        is_last: whether segments that are open are judged all the same.
    """

    columns: Columns
    lines: pl.DataFrame
    unused: pl.DataFrame
    batch: int
    is_last: bool

    @property
    def rows(self) -> pl.DataFrame:
        """The rows of the columns."""
        return self.columns.rows


@dataclass(frozen=True, slots=True)
class Judged:
    """A bucket with its verdicts.

    Attributes:
        shard: the rows with verdicts and targets; the pending ones have neither.
        joined: the rows among the lines.
        stream: what segments were cut from.
        pending: rows whose segment stays open  # [N] bool
        kept_line: the line of the copy that each row's key has kept, -1 for none  # [N] int64
        first_carry: what the row before each segment needs, S segments.
        low, high: halves of the payloads' hashes  # [N] uint64
    """

    shard: Shard
    joined: Joined
    stream: Stream
    pending: Bools
    kept_line: Ints
    first_carry: Carry
    low: Words
    high: Words


def judge_bucket(plan: Plan, bucket: Bucket) -> Judged:
    """Return the rows of one bucket with their verdicts and targets."""
    rows, columns = bucket.rows, bucket.columns
    found = Findings(np.zeros(rows.height, np.uint64), np.zeros(rows.height, np.uint64))
    verdicts = judge_rows(columns, plan.shape, plan.settings)
    for finding, broken in verdicts.items():
        found.add(finding, broken)
    if "scored" in rows.columns:
        found.add(Warn.SCORE_MISSING, ~rows["scored"].to_numpy())
    key_missing = np.zeros(rows.height, np.bool_)
    key_missing[verdicts[Reason.KEY_MISSING]] = True
    keys = number_keys(rows, key_missing)
    stitched = plan.settings.windows == "stitched"
    joined = join_lines(bucket.lines, rows, key_missing, plan.shape, stitched=stitched)
    halves = hash_payload(rows)
    kept_line = _judge_copies(plan, bucket, keys, joined, halves, found)
    stream = _stream(plan, columns, joined, found)
    pending = np.zeros(rows.height, np.bool_)
    if not bucket.is_last:
        is_open, ends = find_open(stream, stitched=stitched)
        if _take_bootstraps(bucket, keys, joined, ends, found):
            stream = _stream(plan, columns, joined, found)
            is_open, _ = find_open(stream, stitched=stitched)
        stream = replace(stream, accepted=stream.accepted & ~is_open)
        pending = is_open[joined.place]
    shard, first_carry = _cut(plan, bucket, keys, joined, stream, found)
    _note_late_successors(bucket, joined, stream, found)
    return Judged(shard, joined, stream, pending, kept_line, first_carry, *halves)


def _judge_copies(
    plan: Plan,
    bucket: Bucket,
    keys: Keys,
    joined: Joined,
    halves: tuple[Words, Words],
    found: Findings,
) -> Ints:
    """Note duplicates and conflicts; return the line that each row's key has kept.

    Where the ledger has kept a copy, each row is held against that one alone; where its key is in
    conflict already, each row is one more; elsewhere the rows are held against each other.
    """
    lines = bucket.lines
    kept_line = joined.lines_of_rows(lines["is_kept"])
    is_kept = kept_line >= 0
    is_torn = joined.lines_of_rows(lines["is_torn"]) >= 0
    is_equal = np.ones(len(kept_line), np.bool_)
    for name, half in zip(("low", "high"), halves, strict=True):
        is_equal &= np.append(lines[name].fill_null(0).to_numpy(), np.uint64(0))[kept_line] == half
    payload = [name for name in PAYLOAD if name in plan.shape.dtypes]
    among = find_conflicts(bucket.rows, keys, payload)
    conflict = np.where(is_kept, ~is_equal, among | is_torn)
    found.add(Reason.KEY_CONFLICT, conflict)
    found.add(Warn.LATER_CONFLICT, is_kept & conflict)
    duplicate = find_duplicates(keys, conflict, found.reasons != 0)
    found.add(Reason.DUPLICATE, np.where(is_kept, is_equal, duplicate))
    return kept_line


def _stream(plan: Plan, columns: Columns, joined: Joined, found: Findings) -> Stream:
    return make_stream(
        joined,
        RowColumns(
            accepted=(found.reasons == 0) & plan.settings.targets,
            gives_value=(found.reasons & np.uint64(WITHHELD)) == 0,
            terminated=_is_set(columns.rows, "terminated"),
            truncated=_is_set(columns.rows, "truncated"),
            discount=gamma_of(plan, columns),
            value=columns.floats("value"),
            bootstrap_value=columns.floats("bootstrap_value"),
        ),
    )


def _is_set(rows: pl.DataFrame, flag: str) -> Bools:
    return rows[flag].eq_missing(1).to_numpy()


def _take_bootstraps(
    bucket: Bucket, keys: Keys, joined: Joined, ends: Bools, found: Findings
) -> bool:
    """Let a new copy that has a bootstrap stand for a pending one that waits for it.

    Return whether there was one: then the pending row is the duplicate. `ends` are the last rows
    of open segments, by place.
    """
    is_new = (bucket.rows["batch"] == bucket.batch).to_numpy()
    has_bootstrap = np.isfinite(bucket.columns.floats("bootstrap_value"))
    waits = np.flatnonzero(ends[joined.place] & ~is_new & ~has_bootstrap)
    waiting = np.full(len(keys.starts) + 1, -1, np.int64)
    waiting[keys.key[waits]] = waits
    offers = is_new & has_bootstrap & (found.reasons == np.uint64(Reason.DUPLICATE.bit))
    offered = np.flatnonzero(offers & (waiting[keys.key] >= 0))
    for part in (joined.window, joined.lineage):
        is_same = part[joined.place[offered]] == part[joined.place[waiting[keys.key[offered]]]]
        offered = offered[is_same]
    _, first = np.unique(keys.key[offered], return_index=True)
    found.reasons[offered[first]] = 0
    found.reasons[waiting[keys.key[offered[first]]]] = np.uint64(Reason.DUPLICATE.bit)
    return len(offered) > 0


def _cut(
    plan: Plan, bucket: Bucket, keys: Keys, joined: Joined, stream: Stream, found: Findings
) -> tuple[Shard, Carry]:
    """Return the rows with segments and targets, and what the row before each segment needs."""
    segments, carry = split_segments(joined, cut_segments(stream))
    found.add(Reason.BOOTSTRAP_MISSING, segments.missing)
    found.add(Warn.BOOTSTRAP_ZERO, segments.zero)
    rows, columns = bucket.rows, bucket.columns
    shard = Shard(
        columns=columns,
        found=found,
        keys=keys,
        window=number_windows(rows, keys, stitched=False),
        segments=segments,
        discount=gamma_of(plan, columns),
        log_ratio=log_ratio_of(plan, columns),
        results=None,
        unscored=_find_unscored(rows, bucket.batch),
        unused=bucket.unused,
    )
    size = len(segments.offsets) - 1
    first_carry = Carry(np.zeros(size, np.bool_), np.zeros(size), np.zeros(size))
    if not plan.settings.targets:
        return shard, first_carry
    results = compute_targets(plan, shard, carries=(carry, first_carry))
    note_not_finite(shard, results, plan.settings.dtype)
    return replace(shard, results=results), first_carry


def _find_unscored(rows: pl.DataFrame, batch: int) -> pl.DataFrame:
    scored = pl.col("scored") if "scored" in rows.columns else pl.lit(True)
    return rows.filter(~scored, pl.col("batch") == batch).select("trajectory_id", "step")


def _note_late_successors(bucket: Bucket, joined: Joined, stream: Stream, found: Findings) -> None:
    """Note the new rows that come after an edge which took a logged bootstrap for their value."""
    edges = np.flatnonzero(joined.marks("took_logged"))
    givers = find_givers(stream, edges)
    late = joined.row[givers[givers >= 0]]
    is_late = np.zeros(bucket.rows.height, np.bool_)
    is_late[late[late >= 0]] = True
    is_new = (bucket.rows["batch"] == bucket.batch).to_numpy()
    found.add(Warn.EDGE_BEFORE_SUCCESSOR, is_late & is_new)
