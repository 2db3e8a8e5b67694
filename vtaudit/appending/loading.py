"""One bucket of a batch: the new rows, the pending ones, and the lines of their trajectories."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import polars as pl

from vtaudit.appending.judging import Bucket
from vtaudit.appending.lines import KEY, Forget, load_lines, load_pending
from vtaudit.appending.reading import Rows
from vtaudit.columns import Columns
from vtaudit.joining import join_scores
from vtaudit.labels import concat_coded, decode_text
from vtaudit.ordering import find_order
from vtaudit.plan import Plan


@dataclass(frozen=True, slots=True)
class Batch:
    """What is the same for every bucket of a batch.

    Attributes:
        plan: of the batch.
        log: its rows.
        number: of the batch, from 1.
        first_file: the number of its first file among all of the store.
        state: where the store's state stands, None before the first batch.
        forget: lines to drop before anything is judged; None for none.
        is_last: whether segments that are open are judged all the same.
    """

    plan: Plan
    log: Rows
    number: int
    first_file: int
    state: Path | None
    forget: Forget | None
    is_last: bool


@dataclass(frozen=True, slots=True)
class Loaded:
    """A bucket, and what of its state the batch does not concern.

    Attributes:
        bucket: to be judged; it may be empty.
        lines, pending: of other trajectories.
        forgotten: how many keys were dropped.
    """

    bucket: Bucket
    lines: pl.DataFrame
    pending: pl.DataFrame
    forgotten: int

    @property
    def is_idle(self) -> bool:
        """Whether the bucket's state stays as it is."""
        return self.bucket.rows.is_empty() and not self.forgotten


def load_bucket(batch: Batch, number: int) -> Loaded:
    """Return one bucket with everything that may bear on its new rows.

    Raises:
        InputError: the store or the scores are damaged.
    """
    rows, unused = _load_new(batch, number)
    is_quiet = rows.is_empty() and unused.is_empty()
    if is_quiet and not batch.is_last and batch.forget is None:
        lines = load_lines(None, number, batch.plan.shape)
        bucket = Bucket(Columns(rows), lines, unused, batch.number, batch.is_last)
        return Loaded(bucket, lines, rows, 0)
    pending = load_pending(batch.state, number, rows)
    unused = unused.join(decode_text(pending.select(KEY)), on=KEY, how="anti")
    names = _names_of_trajectories(rows)
    waiting = pending.clear()
    if not batch.is_last:
        is_concerned = _is_among(pending, names)
        waiting, pending = pending.filter(~is_concerned), pending.filter(is_concerned)
    rows = concat_coded([pending, rows])
    order = find_order(rows)
    rows = rows if order is None else rows[order]
    lines = load_lines(batch.state, number, batch.plan.shape)
    kept = lines if batch.forget is None else batch.forget.drop(lines)
    is_key = ~pl.col("is_window")
    keys, kept_keys = (each.filter(is_key).select(KEY).n_unique() for each in (lines, kept))
    is_concerned = _is_among(kept, _names_of_trajectories(rows))
    concerned, others = kept.filter(is_concerned), kept.filter(~is_concerned)
    unused = unused.join(lines.filter(is_key), on=KEY, how="anti")
    bucket = Bucket(Columns(rows), concerned, unused, batch.number, batch.is_last)
    return Loaded(bucket, others, waiting, keys - kept_keys)


def _load_new(batch: Batch, number: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the rows that the batch brings to a bucket, and the keys of scores without a row."""
    plan = batch.plan
    rows, scores = batch.log.load(number)
    rows = rows.with_columns(
        (pl.col("file") + batch.first_file).cast(pl.Int32),
        pl.lit(batch.number, pl.Int32).alias("batch"),
    )
    unused = decode_text(rows.select(KEY).clear())
    if scores is not None:
        rows, unused = join_scores(rows, scores)
    elif plan.scored:
        rows = rows.with_columns(pl.lit(True).alias("scored"))
    return rows, decode_text(unused)


def _names_of_trajectories(rows: pl.DataFrame) -> pl.Series:
    return decode_text(rows.select("trajectory_id").unique())["trajectory_id"]


def _is_among(rows: pl.DataFrame, names: pl.Series) -> pl.Series:
    """Return whether the trajectory of each row is one of `names`; null is one where it stands."""
    own = decode_text(rows.select("trajectory_id"))["trajectory_id"]
    return own.is_in(names.implode(), nulls_equal=True)
