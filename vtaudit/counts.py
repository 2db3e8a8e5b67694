"""Count the verdicts of a shard by scope, in long form, so that shards add up."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

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
STATE = ("boundary", "source", "has_ratio", "clipped")
# how many values each of STATE can have, 7 standing for none
STATE_SIZES = (8, 8, 2, 8)
NONE = 7
# the number of each row's group, and the groups as text
Groups = tuple[NDArray[np.int64], Sequence[str | None]]
DISTINCT = {"unique": "key", "windows": "window", "deliveries": "delivery"}


def count_verdicts(
    verdicts: Verdicts, scopes: pl.DataFrame, thresholds: Mapping[str, float], *, targets: bool
) -> pl.DataFrame:
    """Return the non-zero counts of one shard: scope, scope_value, measure, kind, count.

    Args:
        verdicts: of N rows.
        scopes: the mapped ones of SCOPES, N rows.
        thresholds: clip by kind.
        targets: whether accepted rows have targets, so that clips and bootstraps count.
    """
    state, states = _number_states(verdicts, thresholds)
    tests = _row_tests(thresholds, targets=targets)
    groups: dict[str, Groups] = {RUN: (np.zeros(len(state), np.int64), [RUN])}
    groups |= {name: _encode(scopes[name]) for name in scopes.columns}
    parts = []
    for scope, (group, values) in groups.items():
        parts.append(_count_rows(scope, group, values, state, states, tests))
        parts.append(_count_distinct(scope, group, values, verdicts))
    return merge_counts(parts)


def _encode(column: pl.Series) -> Groups:
    """Return a number for each distinct value of a column, and the values as text."""
    coded = column.rechunk().to_arrow().dictionary_encode(null_encoding="encode")
    values = pl.Series(coded.dictionary).cast(pl.String).to_list()
    return np.asarray(coded.indices, dtype=np.int64), values


def _number_states(
    verdicts: Verdicts, thresholds: Mapping[str, float]
) -> tuple[NDArray[np.int64], pl.DataFrame]:
    """Return the number of each row's state  # [N], and what each state is.

    A state is a combination of reasons, warnings, boundary, source, has_ratio and clipped.
    """
    columns = (
        np.minimum(verdicts.boundary, NONE),
        np.minimum(verdicts.source, NONE),
        ~np.isnan(verdicts.log_ratio),
        clip_bits(verdicts.log_ratio, thresholds),
    )
    state = np.zeros(len(verdicts.reasons), np.int64)
    flagged = np.flatnonzero(verdicts.reasons | verdicts.warnings)
    pairs = np.stack((verdicts.reasons[flagged], verdicts.warnings[flagged]))
    pairs, number = np.unique(pairs, axis=1, return_inverse=True)
    state[flagged] = number.reshape(-1) + 1
    for column, size in zip(columns, STATE_SIZES, strict=True):
        state = state * size + column
    coded = pa.array(state).dictionary_encode()
    rest, parts = np.asarray(coded.dictionary), {}
    for name, size in zip(reversed(STATE), reversed(STATE_SIZES), strict=True):
        parts[name], rest = rest % size, rest // size
    pairs = np.concatenate((np.zeros((2, 1), np.uint64), pairs), axis=1)
    states = pl.DataFrame({"reasons": pairs[0, rest], "warnings": pairs[1, rest], **parts})
    state = np.asarray(coded.indices, dtype=np.int64)
    return state, states.with_columns(pl.col("has_ratio") == 1)


def _count_rows(
    scope: str,
    group: NDArray[np.int64],
    values: Sequence[str | None],
    state: NDArray[np.int64],
    states: pl.DataFrame,
    tests: list[tuple[str, str | None, pl.Expr]],
) -> pl.DataFrame:
    """Return everything that is counted in rows, by group."""
    rows = np.bincount(group * states.height + state, minlength=0)
    places = np.flatnonzero(rows)
    if not len(places):
        return pl.DataFrame(schema=SCHEMA)
    counted = (
        states[places % states.height]
        .with_columns(
            pl.Series("scope_value", values, dtype=pl.String).gather(places // states.height),
            pl.Series("rows", rows[places]),
        )
        .group_by("scope_value")
        .agg(
            (pl.col("rows") * test).sum().cast(pl.Int64).alias(str(number))
            for number, (_, _, test) in enumerate(tests)
        )
    )
    names = [(str(number), measure, kind) for number, (measure, kind, _) in enumerate(tests)]
    labels = pl.DataFrame(
        names, schema={"name": pl.String, "measure": pl.String, "kind": pl.String}, orient="row"
    )
    return (
        counted.unpivot(index="scope_value", variable_name="name", value_name="count")
        .filter(pl.col("count") != 0)
        .join(labels, on="name")
        .select(pl.lit(scope).alias("scope"), "scope_value", "measure", "kind", "count")
    )


def _count_distinct(
    scope: str, group: NDArray[np.int64], values: Sequence[str | None], verdicts: Verdicts
) -> pl.DataFrame:
    """Return the distinct keys, windows and deliveries of each group."""
    retried = _duplicate_deliveries(verdicts)
    columns = {name: getattr(verdicts, column) for name, column in DISTINCT.items()}
    columns["deliveries_duplicate"] = np.where(retried, verdicts.delivery, -1)
    rows = []
    for measure, number in columns.items():
        found = _distinct_by_group(group[number >= 0], number[number >= 0])
        counts = zip(values, found.tolist(), strict=False)
        rows += [(scope, value, measure, None, count) for value, count in counts if count]
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def _distinct_by_group(group: NDArray[np.int64], number: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many distinct numbers each group has; it is the runs of one pair that are sorted.

    A number that stands in one run alone is distinct there without any sorting.
    """
    if not len(group):
        return np.zeros(0, np.int64)
    is_first = np.ones(len(group), np.bool_)
    is_first[1:] = (group[1:] != group[:-1]) | (number[1:] != number[:-1])
    group, number = group[is_first], number[is_first]
    runs = np.bincount(number)[number]
    once = np.bincount(group[runs == 1], minlength=int(group.max()) + 1)
    pairs = np.unique(group[runs > 1] * (int(number.max()) + 1) + number[runs > 1])
    return once + np.bincount(pairs // (int(number.max()) + 1), minlength=len(once))


def count_padding(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the counts of padding rows, whose columns are scopes."""
    counted = [
        rows.with_columns(pl.lit(RUN).alias(RUN))
        .group_by(pl.col(scope).cast(pl.String).alias("scope_value"))
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


def merge_counts(parts: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """Return the sum of counts of several parts, in a fixed order."""
    names = ["scope", "scope_value", "measure", "kind"]
    whole = pl.concat([pl.DataFrame(schema=SCHEMA), *parts])
    return whole.group_by(names).agg(pl.col("count").sum()).sort(names, nulls_last=False)
