"""Count the verdicts of a shard by scope, in long form, so that shards add up."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np
import polars as pl

from vtaudit.reasons import BOOTSTRAP_SOURCES, BOUNDARIES, Reason, Warn
from vtaudit.records import Verdicts

RUN = "run"
SCOPES = ("source_file", "policy_version", "actor_id", "env_version")
SCHEMA = {
    "scope": pl.String,
    "scope_value": pl.String,
    "measure": pl.String,
    "kind": pl.String,
    "count": pl.Int64,
}
CODES = ("reasons", "warnings", "boundary", "source", "has_ratio", "clipped")


def count_verdicts(
    verdicts: Verdicts, scopes: pl.DataFrame, thresholds: Mapping[str, float], *, targets: bool
) -> pl.DataFrame:
    """Return the non-zero counts of one shard: scope, scope_value, measure, kind, count.

    Args:
        verdicts: of N rows.
        scopes: the mapped ones of SCOPES as text, N rows.
        thresholds: clip by kind.
        targets: whether accepted rows have targets, so that clips and bootstraps count.
    """
    frame = scopes.with_columns(
        pl.Series("reasons", verdicts.reasons),
        pl.Series("warnings", verdicts.warnings),
        pl.Series("boundary", verdicts.boundary),
        pl.Series("source", verdicts.source),
        pl.Series("has_ratio", ~np.isnan(verdicts.log_ratio)),
        pl.Series("clipped", clip_bits(verdicts.log_ratio, thresholds)),
        pl.Series("key", verdicts.key),
        pl.Series("window", verdicts.window),
        pl.Series("delivery", verdicts.delivery),
        pl.Series("retried", _duplicate_deliveries(verdicts)),
        pl.lit(RUN).alias(RUN),
    )
    tests = _row_tests(thresholds, targets=targets)
    return merge_counts(_count_scope(frame, scope, tests) for scope in (RUN, *scopes.columns))


def count_padding(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the counts of padding rows, whose columns are scopes as text."""
    frame = rows.with_columns(pl.lit(RUN).alias(RUN))
    counted = [
        frame.group_by(pl.col(scope).alias("scope_value"))
        .len("count")
        .select(
            pl.lit(scope).alias("scope"),
            "scope_value",
            pl.lit("padding").alias("measure"),
            pl.lit(None, dtype=pl.String).alias("kind"),
            pl.col("count").cast(pl.Int64),
        )
        for scope in (RUN, *rows.columns)
    ]
    return merge_counts(counted)


def clip_bits(log_ratio: np.ndarray, thresholds: Mapping[str, float]) -> np.ndarray:
    """Return a bit per kind where log_ratio > log(bar), strictly  # [N] uint8."""
    bits = np.zeros(len(log_ratio), np.uint8)
    for place, bar in enumerate(thresholds.values()):
        above = log_ratio.astype(np.float64) > math.log(bar)
        bits |= above.astype(np.uint8) << np.uint8(place)
    return bits


def _duplicate_deliveries(verdicts: Verdicts) -> np.ndarray:
    """Return the rows whose delivery has nothing but duplicates  # [N] bool."""
    is_duplicate = (verdicts.reasons & np.uint64(Reason.DUPLICATE.bit)) != 0
    has_key = verdicts.delivery >= 0
    fresh = np.zeros(int(verdicts.delivery.max(initial=-1)) + 1, np.bool_)
    fresh[verdicts.delivery[has_key & ~is_duplicate]] = True
    retried = has_key.copy()
    retried[has_key] = ~fresh[verdicts.delivery[has_key]]
    return retried


def _row_tests(
    thresholds: Mapping[str, float], *, targets: bool
) -> list[tuple[str, str | None, pl.Expr]]:
    """Return measure, kind and condition of everything that is counted in rows."""
    reasons, accepted = pl.col("reasons"), pl.col("reasons") == 0
    tests: list[tuple[str, str | None, pl.Expr]] = [
        ("received", None, pl.lit(True)),
        ("accepted", None, accepted),
        ("rejected", None, ~accepted),
        ("received_with_ratio", None, pl.col("has_ratio")),
    ]
    for reason in Reason:
        any_ = (reasons & pl.lit(reason.bit, pl.UInt64)) != 0
        up_to = pl.lit(2 * reason.bit - 1, pl.UInt64)
        tests.append(("rejected_any", reason.code, any_))
        tests.append(("rejected_primary", reason.code, any_ & ((reasons & up_to) == reason.bit)))
    for warning in Warn:
        bit = pl.lit(warning.bit, pl.UInt64)
        tests.append(("warning", warning.code, (pl.col("warnings") & bit) != 0))
    for place, kind in enumerate(thresholds):
        above = (pl.col("clipped") & pl.lit(1 << place, pl.UInt8)) != 0
        tests.append(("clipped_received", kind, above))
        tests.append(("clipped", kind, above & accepted & pl.lit(targets)))
    tests += [("boundary", name, pl.col("boundary") == k) for k, name in enumerate(BOUNDARIES)]
    tests += [("bootstrap", n, pl.col("source") == k) for k, n in enumerate(BOOTSTRAP_SOURCES)]
    return tests


def _count_scope(
    frame: pl.DataFrame, scope: str, tests: list[tuple[str, str | None, pl.Expr]]
) -> pl.DataFrame:
    by = pl.col(scope).alias("scope_value")
    combined = frame.group_by(by, *CODES).len("rows")
    names = [(f"{number}", measure, kind) for number, (measure, kind, _) in enumerate(tests)]
    counted = combined.group_by("scope_value").agg(
        (pl.col("rows").cast(pl.Int64) * test).sum().alias(name)
        for (name, _, _), (_, _, test) in zip(names, tests, strict=True)
    )
    distinct = frame.group_by(by).agg(
        pl.col(column).filter(condition).n_unique().cast(pl.Int64).alias(measure)
        for measure, column, condition in (
            ("unique", "key", pl.col("key") >= 0),
            ("windows", "window", pl.col("window") >= 0),
            ("deliveries", "delivery", pl.col("delivery") >= 0),
            ("deliveries_duplicate", "delivery", pl.col("retried")),
        )
    )
    names += [(name, name, None) for name in distinct.columns[1:]]
    labels = pl.DataFrame(names, schema=["name", "measure", "kind"], orient="row").cast(pl.String)
    long = [
        table.unpivot(index="scope_value", variable_name="name", value_name="count")
        for table in (counted, distinct)
    ]
    return (
        pl.concat(long)
        .filter(pl.col("count") != 0)
        .join(labels, on="name")
        .select(pl.lit(scope).alias("scope"), "scope_value", "measure", "kind", "count")
    )


def merge_counts(parts: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """Return the sum of counts of several parts, in a fixed order."""
    names = ["scope", "scope_value", "measure", "kind"]
    whole = pl.concat([pl.DataFrame(schema=SCHEMA), *parts])
    return whole.group_by(names).agg(pl.col("count").sum()).sort(names, nulls_last=False)
