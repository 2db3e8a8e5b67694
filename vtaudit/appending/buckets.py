"""Take one bucket of a batch from start to end: load, judge, write, learn, count."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from vtaudit.appending.committing import link
from vtaudit.appending.counting import COUNTS, count_bucket
from vtaudit.appending.judging import Judged, judge_bucket
from vtaudit.appending.learning import learn
from vtaudit.appending.lines import bucket_name, save_state
from vtaudit.appending.loading import Batch, Loaded, load_bucket
from vtaudit.clock import Clock
from vtaudit.labels import concat_coded
from vtaudit.outputs import NAMED_KEYS, Row, write_shard
from vtaudit.places import BATCH, STATE
from vtaudit.reasons import Warn

TABLES = ("ledger", "pending")


@dataclass(frozen=True, slots=True)
class Conflict:
    """A copy that came later, and the row that stays: file, row of each, and their key."""

    trajectory: object
    step: int
    file: str
    row: int
    kept_file: int
    kept_row: int


@dataclass(frozen=True, slots=True)
class BucketResult:
    """What a bucket leaves for the end of the batch.

    Attributes:
        counts: what the batch adds, by batch.
        linked: files of the state that are those of the state before.
        forgotten: how many keys were dropped.
        newest_version: the greatest policy_version accepted, None for none.
        unscored, unused: a few keys without score and without row.
        conflicts: a few later conflicts.
    """

    counts: pl.DataFrame
    linked: tuple[str, ...] = ()
    forgotten: int = 0
    newest_version: int | None = None
    unscored: tuple[Row, ...] = ()
    unused: tuple[Row, ...] = ()
    conflicts: tuple[Conflict, ...] = ()


def run_bucket(batch: Batch, number: int, work: Path, clock: Clock) -> BucketResult:
    """Judge one bucket and write its parts and its state.

    Raises:
        InputError: the store or the scores are damaged, or the disk failed.
    """
    with clock.stage("order"):
        loaded = load_bucket(batch, number)
    if loaded.is_idle and number > 0 and loaded.bucket.unused.is_empty():
        return BucketResult(pl.DataFrame(schema=COUNTS), linked=_keep_state(batch, number, work))
    with clock.stage("judge"):
        judged = judge_bucket(batch.plan, loaded.bucket)
    with clock.stage("write"):
        write_shard(batch.plan, judged.shard, work / BATCH, number)
    with clock.stage("learn"):
        learned = learn(batch.plan, loaded.bucket, judged)
        if loaded.is_idle:
            linked = _keep_state(batch, number, work)
        else:
            linked = ()
            lines = pl.concat([loaded.lines, learned.lines])
            save_state(work / STATE, "ledger", number, lines)
            pending = concat_coded([loaded.pending, learned.pending])
            save_state(work / STATE, "pending", number, pending)
    with clock.stage("count"):
        counts = count_bucket(batch.plan, loaded.bucket, judged, learned)
    shard = judged.shard
    return BucketResult(
        counts=counts,
        linked=linked,
        forgotten=loaded.forgotten,
        newest_version=_newest_version(judged),
        unscored=tuple(shard.unscored.head(NAMED_KEYS).rows()),
        unused=tuple(shard.unused.head(NAMED_KEYS).rows()),
        conflicts=_name_conflicts(loaded, judged),
    )


def _keep_state(batch: Batch, number: int, work: Path) -> tuple[str, ...]:
    """Take over the bucket's state as it is; return the names of its files."""
    if batch.state is None:
        return ()
    names = [bucket_name(table, number) for table in TABLES]
    there = tuple(name for name in names if (batch.state / name).exists())
    for name in there:
        link(batch.state / name, work / STATE / name)
    return there


def _newest_version(judged: Judged) -> int | None:
    rows = judged.shard.rows
    if "policy_version" not in rows.columns:
        return None
    accepted = pl.Series(judged.shard.found.reasons == 0)
    newest = rows.filter(accepted)["policy_version"].max()
    return None if newest is None else int(str(newest))


def _name_conflicts(loaded: Loaded, judged: Judged) -> tuple[Conflict, ...]:
    is_late = (judged.shard.found.warnings & np.uint64(Warn.LATER_CONFLICT.bit)) != 0
    rows = np.flatnonzero(is_late)[:NAMED_KEYS]
    names = ("trajectory_id", "step", "source_file", "row")
    late = judged.shard.rows[rows].select(names).rows()
    kept = loaded.bucket.lines[judged.kept_line[rows]].select("file", "row").rows()
    return tuple(Conflict(*one, *other) for one, other in zip(late, kept, strict=True))
