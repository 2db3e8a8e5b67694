"""Counts of a batch, each under the batch that received the row.

A row is received once. A pending row counts as pending there until a later batch judges it; then
that batch's counts move it from pending to its verdict, so that the laws hold for every batch and
for the whole store.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from vtaudit.appending.judging import Bucket, Judged
from vtaudit.appending.learning import Learned
from vtaudit.counts import RUN, count_verdicts, merge_counts
from vtaudit.outputs import gather_verdicts, scope_names
from vtaudit.plan import Plan
from vtaudit.reasons import Warn
from vtaudit.records import NOT_CUT, Verdicts
from vtaudit.tallies import SCHEMA, Name, tally_of

# of the store: what cannot be added up from batches, as a key may come with several
STORE = "store"
COUNTS = pl.Schema({"batch": pl.Int32, **SCHEMA})
BY_VERDICT = np.uint64(Warn.BOOTSTRAP_ZERO.bit)


def count_bucket(plan: Plan, bucket: Bucket, judged: Judged, learned: Learned) -> pl.DataFrame:
    """Return what the batch adds to the counts, by the batch that received the rows."""
    verdicts = gather_verdicts(judged.shard, (judged.shard.found.reasons == 0) & ~judged.pending)
    brought = bucket.rows["batch"].to_numpy()
    parts = []
    for batch in np.unique(brought):
        rows = brought == batch
        counts = [_count(plan, bucket, verdicts, rows), _move(plan, bucket, verdicts, judged, rows)]
        if batch != bucket.batch:
            counts.append(_negate(_count_before(plan, bucket, verdicts, rows)))
        parts.append(_of_batch(merge_counts(counts), int(batch), is_new=batch == bucket.batch))
    extra: list[tuple[str, str, str, str | None, int]] = [
        (STORE, STORE, "unique", None, learned.new_keys),
        (STORE, STORE, "windows", None, learned.new_windows),
        (RUN, RUN, "warning", Warn.SCORE_SURPLUS.code, bucket.unused.height),
    ]
    frame = pl.DataFrame(extra, schema=SCHEMA, orient="row")
    return merge_batches([*parts, _of_batch(frame, bucket.batch, is_new=True)])


def _count(plan: Plan, bucket: Bucket, verdicts: Verdicts, rows: NDArray[np.bool_]) -> pl.DataFrame:
    """Return the counts of some of the rows, pending ones as if they were accepted."""
    return count_verdicts(
        verdicts.take(rows),
        bucket.rows.filter(pl.Series(rows)).select(scope_names(plan)),
        plan.settings.thresholds(),
        targets=plan.settings.targets,
    ).spell()


def _move(
    plan: Plan, bucket: Bucket, verdicts: Verdicts, judged: Judged, rows: NDArray[np.bool_]
) -> pl.DataFrame:
    """Return what takes the pending ones of some rows from accepted to pending."""
    counted = _count(plan, bucket, verdicts, rows & judged.pending)
    accepted = counted.filter(pl.col("measure") == "accepted")
    clipped = counted.filter(pl.col("measure") == "clipped")
    return pl.concat(
        [_negate(accepted), _negate(clipped), accepted.with_columns(measure=pl.lit("pending"))]
    )


def _negate(counts: pl.DataFrame) -> pl.DataFrame:
    return counts.with_columns(-pl.col("count"))


def _count_before(
    plan: Plan, bucket: Bucket, verdicts: Verdicts, rows: NDArray[np.bool_]
) -> pl.DataFrame:
    """Return the counts that some rows have had while they were pending."""
    size = len(verdicts.reasons)
    uncut = np.full(size, NOT_CUT, np.uint8)
    before = replace(
        verdicts,
        reasons=np.zeros(size, np.uint64),
        warnings=verdicts.warnings & ~BY_VERDICT,
        boundary=uncut,
        source=uncut,
    )
    counted = _count(plan, bucket, before, rows)
    is_accepted = pl.col("measure") == "accepted"
    return counted.filter(pl.col("measure") != "clipped").with_columns(
        measure=pl.when(is_accepted).then(pl.lit("pending")).otherwise("measure")
    )


def _of_batch(counts: pl.DataFrame, batch: int, *, is_new: bool) -> pl.DataFrame:
    """Return the counts with their batch; deliveries are counted when they are received."""
    if not is_new:
        counts = counts.filter(pl.col("measure") != "deliveries_duplicate")
    return counts.select(pl.lit(batch, pl.Int32).alias("batch"), *SCHEMA)


def merge_batches(parts: list[pl.DataFrame]) -> pl.DataFrame:
    """Return the sum of counts by batch, in a fixed order, without zeros."""
    names = ["batch", "scope", "scope_value", "measure", "kind"]
    whole = pl.concat([pl.DataFrame(schema=COUNTS), *parts])
    summed = whole.group_by(names).agg(pl.col("count").sum()).sort(names, nulls_last=False)
    return summed.filter(pl.col("count") != 0)


def whole_store(counts: pl.DataFrame) -> dict[Name, int]:
    """Return the counts of all batches together, by measure and kind."""
    by_store = pl.col("measure").is_in(["unique", "windows"])
    of_run = counts.filter((pl.col("scope") == RUN) & ~by_store)
    of_store = counts.filter(pl.col("scope") == STORE).with_columns(
        scope=pl.lit(RUN), scope_value=pl.lit(RUN)
    )
    return tally_of(pl.concat([of_run, of_store]).drop("batch")).of_group((RUN, RUN))


def of_batch(counts: pl.DataFrame, batch: int) -> pl.DataFrame:
    """Return the counts of one batch, by scope."""
    return counts.filter(pl.col("batch") == batch, pl.col("scope") != STORE).drop("batch")


def of_padding(padding: pl.DataFrame, forgotten: int, batch: int) -> pl.DataFrame:
    """Return the counts of the padding rows of a batch, and of the keys that it forgot."""
    row = (RUN, RUN, "warning", Warn.KEYS_FORGOTTEN.code, forgotten)
    extra = pl.DataFrame([row], schema=SCHEMA, orient="row")
    return _of_batch(pl.concat([padding, extra]), batch, is_new=True)
