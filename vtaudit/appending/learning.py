"""What a judged bucket leaves to later batches: new lines of the ledger, and the pending rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from vtaudit.appending.judging import Bucket, Judged
from vtaudit.appending.lines import WINDOW, line_schema
from vtaudit.ledger import NO_KEY
from vtaudit.plan import Plan
from vtaudit.reasons import BootstrapSource, Boundary, Reason
from vtaudit.segments import BOUNDARY_CODE, SOURCE_CODE
from vtaudit.stretches import number_rows

Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Learned:
    """What a bucket adds to the state of the store.

    Attributes:
        lines: all lines of the bucket's trajectories.
        pending: its pending rows.
        new_keys, new_windows: how many the store had not received before.
    """

    lines: pl.DataFrame
    pending: pl.DataFrame
    new_keys: int
    new_windows: int


def learn(plan: Plan, bucket: Bucket, judged: Judged) -> Learned:
    """Return the lines after the batch, and the rows that wait for the next one."""
    rows, lines = bucket.rows, bucket.lines
    windows = _windows(bucket, judged)
    known = judged.joined.lines_of_rows(~lines["is_window"]) >= 0
    has_key = judged.shard.keys.key != NO_KEY
    is_new = (rows["batch"] == bucket.batch).to_numpy()
    known[has_key] |= _among(judged, ~is_new)[has_key]
    fresh = judged.shard.keys.key[has_key & ~known]
    added = _lines(plan, bucket, judged, has_key & ~known)
    old = lines.filter(~pl.col("is_window"))
    return Learned(
        lines=pl.concat([old, added, windows]),
        pending=rows.filter(pl.Series(judged.pending)),
        new_keys=len(np.unique(fresh)),
        new_windows=windows.height - int(lines["is_window"].sum()),
    )


def _among(judged: Judged, chosen: Bools) -> Bools:
    """Return the rows whose key a chosen row has; false without a key  # [N]."""
    key = judged.shard.keys.key
    has = np.zeros(len(judged.shard.keys.starts) + 1, np.bool_)
    has[key[chosen & (key != NO_KEY)]] = True
    has[-1] = False
    return has[key]


def _windows(bucket: Bucket, judged: Judged) -> pl.DataFrame:
    """Return one line a window, with the greatest step that was received in it."""
    has_key = pl.Series(judged.shard.keys.key != NO_KEY)
    schema = bucket.lines.schema
    found = bucket.rows.filter(has_key)
    columns = ["unroll_id", "policy_version"]
    received = found.select(
        pl.col("trajectory_id").cast(schema["trajectory_id"]),
        "step",
        *(
            (pl.col(name) if name in found.columns else pl.lit(None)).cast(schema[name]).alias(name)
            for name in columns
        ),
        pl.lit(bucket.batch, pl.Int32).alias("batch"),
    )
    old = bucket.lines.filter(pl.col("is_window")).select(received.columns)
    whole = (
        pl.concat([old, received])
        .group_by(WINDOW, maintain_order=True)
        .agg(pl.col("step", "policy_version", "batch").max())
        .with_columns(pl.lit(True).alias("is_window"))
    )
    return _as_lines(whole, schema)


def _lines(plan: Plan, bucket: Bucket, judged: Judged, unseen: Bools) -> pl.DataFrame:
    """Return the lines of the rows that were judged with this batch."""
    rows, shard, segments = bucket.rows, judged.shard, judged.shard.segments
    late = np.uint64(Reason.TARGET_NOT_FINITE.bit)
    kept = ((shard.found.reasons & ~late) == 0) & ~judged.pending
    conflict = (shard.found.reasons & np.uint64(Reason.KEY_CONFLICT.bit)) != 0
    edges = [BOUNDARY_CODE[Boundary.WINDOW_EDGE], BOUNDARY_CODE[Boundary.GAP]]
    is_logged = segments.source == SOURCE_CODE[BootstrapSource.LOGGED]
    torn = _first_of_key(judged, conflict & (judged.kept_line < 0))
    gives = _first_givers(judged) & ~judged.pending
    is_line = kept | torn | gives
    is_line |= _first_of_key(judged, unseen & ~_among(judged, is_line | judged.pending))
    delta_sum, trace_length = (np.full(rows.height, np.nan) for _ in range(2))
    heads = segments.rows[segments.offsets[:-1]]
    is_head = np.zeros(rows.height, np.bool_)
    is_head[heads] = True
    delta_sum[heads], trace_length[heads] = judged.first_carry[1:]
    columns = {
        "is_window": np.zeros(rows.height, np.bool_),
        "is_kept": kept,
        "is_head": is_head,
        "is_torn": torn,
        "gives": gives,
        "took_logged": kept & is_logged & np.isin(segments.boundary, edges),
        "value": judged.shard.columns.floats("value"),
        "delta_sum": delta_sum,
        "trace_length": trace_length,
        "low": judged.low,
        "high": judged.high,
    }
    frame = rows.with_columns(
        *(pl.Series(name, column) for name, column in columns.items()),
        pl.lit(bucket.batch, pl.Int32).alias("batch"),
    )
    return _as_lines(frame.filter(pl.Series(is_line)), line_schema(plan.shape))


def _first_of_key(judged: Judged, chosen: Bools) -> Bools:
    """Return the first chosen row of each key  # [N]."""
    rows = np.flatnonzero(chosen & (judged.shard.keys.key != NO_KEY))
    _, first = np.unique(judged.shard.keys.key[rows], return_index=True)
    found = np.zeros(len(chosen), np.bool_)
    found[rows[first]] = True
    return found


def _first_givers(judged: Judged) -> Bools:
    """Return the rows that are the first of their key and lineage to give a value  # [N]."""
    joined, stream = judged.joined, judged.stream
    places = np.flatnonzero(stream.gives_value & (stream.key != NO_KEY))
    pair = number_rows([stream.key[places], stream.lineage[places]], len(places))
    _, first = np.unique(pair, return_index=True)
    rows = joined.row[places[first]]
    found = np.zeros(len(judged.pending), np.bool_)
    found[rows[rows >= 0]] = True
    return found


def _as_lines(frame: pl.DataFrame, schema: dict[str, pl.DataType]) -> pl.DataFrame:
    """Return the frame with the columns of a line; what it lacks is null, or false."""
    columns: list[pl.Expr] = []
    for name, dtype in schema.items():
        absent = False if dtype == pl.Boolean else None
        column = pl.col(name) if name in frame.columns else pl.lit(absent)
        columns.append(column.cast(dtype).alias(name))
    return frame.select(columns)
