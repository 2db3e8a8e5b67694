"""Count the verdicts of a shard by scope, in long form, so that shards add up."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from vtaudit.labels import number_values
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
Ints = NDArray[np.integer]
# the number of each row's group, and the groups as text
Groups = tuple[Ints, pl.Series]
DISTINCT = {"unique": "key", "windows": "window", "deliveries": "delivery"}
# more numbers than this for each row are counted by sorting
MAX_NUMBERS_PER_ROW = 4


@dataclass(frozen=True, slots=True)
class _Things:
    """The things that rows belong to, such as windows, ready to be counted by group.

    Attributes:
        number: of the row's thing, -1 for none  # [N]
        alone: rows of things that are known to have no other row  # [L]
        is_head: other rows whose thing is not that of the row before  # [N]
    """

    number: Ints
    alone: Ints
    is_head: NDArray[np.bool_]


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
    truth = states.select(test.alias(str(k)) for k, (_, _, test) in enumerate(tests)).to_numpy()
    labels = pl.DataFrame(
        {"measure": [measure for measure, _, _ in tests], "kind": [kind for _, kind, _ in tests]},
        schema_overrides={"kind": pl.String},
    )
    things = _find_things(verdicts)
    groups: dict[str, Groups] = {RUN: (np.zeros(len(state), np.int32), pl.Series([RUN]))}
    groups |= {name: number_values(scopes[name]) for name in scopes.columns}
    parts = []
    for scope, (group, values) in groups.items():
        place, counts = _count_rows(group, state, truth.astype(np.int64))
        which, test = np.nonzero(counts)
        parts.append(_rows(scope, values, place[which], labels[test], counts[which, test]))
        for measure, kind in things.items():
            found = _count_distinct(group, kind, len(values))
            place = np.flatnonzero(found)
            label = pl.DataFrame({"measure": [measure], "kind": [None]}, schema=labels.schema)
            parts.append(
                _rows(scope, values, place, label[np.zeros(len(place), np.int64)], found[place])
            )
    return merge_counts(parts)


def _rows(
    scope: str,
    values: pl.Series,
    place: Ints,
    labels: pl.DataFrame,
    counts: Ints,
) -> pl.DataFrame:
    return labels.select(
        pl.lit(scope).alias("scope"),
        values.gather(place).alias("scope_value"),
        "measure",
        "kind",
        pl.Series("count", counts, dtype=pl.Int64),
    )


def _number_states(
    verdicts: Verdicts, thresholds: Mapping[str, float]
) -> tuple[Ints, pl.DataFrame]:
    """Return the number of each row's state  # [N], and what each state is.

    A state is a combination of reasons, warnings, boundary, source, has_ratio and clipped.
    """
    columns = (
        np.minimum(verdicts.boundary, NONE),
        np.minimum(verdicts.source, NONE),
        ~np.isnan(verdicts.log_ratio),
        clip_bits(verdicts.log_ratio, thresholds),
    )
    code, sizes = np.zeros(len(verdicts.reasons), np.uint16), math.prod(STATE_SIZES)
    for column, size in zip(columns, STATE_SIZES, strict=True):
        code *= np.uint16(size)
        code += column
    flagged = np.flatnonzero(verdicts.reasons | verdicts.warnings)
    pairs = np.stack((verdicts.reasons[flagged], verdicts.warnings[flagged]))
    pairs, number = np.unique(pairs, axis=1, return_inverse=True)
    whole = code.astype(np.int32)
    whole[flagged] += (sizes * (number.reshape(-1) + 1)).astype(np.int32)
    found, _, state = _tally(whole)
    parts: dict[str, Ints] = {}
    rest = found.astype(np.int64)
    for name, size in zip(reversed(STATE), reversed(STATE_SIZES), strict=True):
        parts[name], rest = rest % size, rest // size
    pairs = np.concatenate((np.zeros((2, 1), np.uint64), pairs), axis=1)
    states = pl.DataFrame({"reasons": pairs[0, rest], "warnings": pairs[1, rest], **parts})
    return state, states.with_columns(pl.col("has_ratio") == 1)


def _count_rows(group: Ints, state: Ints, truth: Ints) -> tuple[Ints, Ints]:
    """Return the groups that have rows  # [G], and how many of their rows pass each test  # [G, T].

    Args:
        group: of each row  # [N]
        state: of each row  # [N]
        truth: whether a row of a state passes a test, 0 or 1  # [S, T]
    """
    number, rows, _ = _tally(group.astype(np.int64) * len(truth) + state)
    group = number // max(len(truth), 1)
    firsts = np.flatnonzero(np.diff(group, prepend=-1))
    passed = truth[number % max(len(truth), 1)] * rows[:, None]
    counts = np.add.reduceat(passed, firsts) if len(firsts) else passed
    return group[firsts], counts


def _tally(number: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the numbers that occur, ascending, how often, and the place of each row's among them.

    Args:
        number: of each row, not negative  # [N]
    """
    if number.max(initial=0) > MAX_NUMBERS_PER_ROW * len(number):
        found, place, rows = np.unique(number, return_inverse=True, return_counts=True)
        return found, rows, place
    rows = np.bincount(number)
    found = np.flatnonzero(rows)
    place = np.empty(len(rows), np.int32)
    place[found] = np.arange(len(found))
    return found, rows[found], place[number]


def _find_things(verdicts: Verdicts) -> dict[str, _Things]:
    """Return what is counted by distinct numbers."""
    numbers = {name: getattr(verdicts, column) for name, column in DISTINCT.items()}
    is_retried = _duplicate_deliveries(verdicts)
    numbers["deliveries_duplicate"] = np.where(is_retried, verdicts.delivery, -1)
    things = {}
    for name, number in numbers.items():
        is_head = number >= 0
        is_head[1:] &= number[1:] != number[:-1]
        is_alone = np.zeros(len(number), np.bool_)
        if name == "unique":  # the rows of one key stand together
            is_alone = is_head.copy()
            is_alone[:-1] &= number[1:] != number[:-1]
        things[name] = _Things(number, np.flatnonzero(is_alone), is_head & ~is_alone)
    return things


def _count_distinct(group: Ints, things: _Things, groups: int) -> Ints:
    """Return how many distinct things each group has; it is the runs of one pair that are sorted.

    A number that stands in one run alone is distinct there without any sorting.
    """
    is_first = things.is_head.copy()
    is_first[1:] |= (group[1:] != group[:-1]) & (things.number[1:] >= 0)
    is_first[things.alone] = False
    place, number = group[is_first].astype(np.int64), things.number[is_first]
    alone = group if len(things.alone) == len(group) else group[things.alone]
    once = np.bincount(alone, minlength=groups)
    if not len(number):
        return once
    is_single = np.bincount(number)[number] == 1
    once += np.bincount(place[is_single], minlength=groups)
    size = int(number.max()) + 1
    pairs = np.unique(place[~is_single] * size + number[~is_single])
    return once + np.bincount(pairs // size, minlength=groups)


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
    bits, exact = np.zeros(len(log_ratio), np.uint8), log_ratio.astype(np.float64)
    for place, bar in enumerate(thresholds.values()):
        bits |= (exact > math.log(bar)).view(np.uint8) << np.uint8(place)
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
