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
        is_alone: rows of things that are known to have no other row  # [N]
        heads: other rows whose thing is not that of the row before, ascending  # [H]
    """

    number: Ints
    is_alone: NDArray[np.bool_]
    heads: Ints


# measure, kind, and whether the rows of each state count  # [S] bool
Test = tuple[str, str | None, NDArray[np.bool_]]


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
    tests = _row_tests(states, thresholds, targets=targets)
    truth = np.stack([test for _, _, test in tests], axis=1).astype(np.int64)
    things = _find_things(verdicts)
    groups: dict[str, Groups] = {RUN: (np.zeros(len(state), np.int32), pl.Series([RUN]))}
    groups |= {name: number_values(scopes[name]) for name in scopes.columns}
    scope, values, label, counts = [], [], [], []
    for name, (group, texts) in groups.items():
        place, found = _count_rows(group, state, truth)
        edges = np.flatnonzero(group[1:] != group[:-1]) + 1
        distinct = [
            _count_distinct(group, edges, each, len(texts))[place] for each in things.values()
        ]
        found = np.concatenate((found, np.stack(distinct, axis=1)), axis=1)
        which, column = np.nonzero(found)
        scope.append(pl.repeat(name, len(which), dtype=pl.String, eager=True))
        values.append(texts.gather(place[which]))
        label.append(column)
        counts.append(found[which, column])
    names = [*tests, *((measure, None, None) for measure in things)]
    labels = pl.DataFrame(
        {"measure": [measure for measure, _, _ in names], "kind": [kind for _, kind, _ in names]},
        schema_overrides={"kind": pl.String},
    )[np.concatenate(label)]
    return pl.DataFrame(
        {
            "scope": pl.concat(scope),
            "scope_value": pl.concat(values),
            "measure": labels["measure"],
            "kind": labels["kind"],
            "count": np.concatenate(counts),
        },
        schema=SCHEMA,
    )


def _number_states(
    verdicts: Verdicts, thresholds: Mapping[str, float]
) -> tuple[Ints, dict[str, Ints]]:
    """Return the number of each row's state  # [N], and what each state is  # [S] by name.

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
    found, _ = _tally(whole)
    place = np.zeros(int(found.max(initial=0)) + 1, np.int32)
    place[found] = np.arange(len(found))
    states: dict[str, Ints] = {}
    rest = found.astype(np.int64)
    for name, size in zip(reversed(STATE), reversed(STATE_SIZES), strict=True):
        states[name], rest = rest % size, rest // size
    pairs = np.concatenate((np.zeros((2, 1), np.uint64), pairs), axis=1)
    return place[whole], {"reasons": pairs[0, rest], "warnings": pairs[1, rest], **states}


def _count_rows(group: Ints, state: Ints, truth: Ints) -> tuple[Ints, Ints]:
    """Return the groups that have rows  # [G], and how many of their rows pass each test  # [G, T].

    Args:
        group: of each row  # [N]
        state: of each row  # [N]
        truth: whether a row of a state passes a test, 0 or 1  # [S, T]
    """
    number, rows = _tally(group.astype(np.int64) * len(truth) + state)
    group = number // max(len(truth), 1)
    firsts = np.flatnonzero(np.diff(group, prepend=-1))
    passed = truth[number % max(len(truth), 1)] * rows[:, None]
    counts = np.add.reduceat(passed, firsts) if len(firsts) else passed
    return group[firsts], counts


def _tally(number: Ints) -> tuple[Ints, Ints]:
    """Return the numbers that occur, ascending, and how often; `number` is not negative."""
    if number.max(initial=0) > MAX_NUMBERS_PER_ROW * len(number):
        return np.unique(number, return_counts=True)
    rows = np.bincount(number)
    found = np.flatnonzero(rows)
    return found, rows[found]


def _find_things(verdicts: Verdicts) -> dict[str, _Things]:
    """Return what is counted by distinct numbers."""
    numbers = {name: getattr(verdicts, column) for name, column in DISTINCT.items()}
    is_retried = _duplicate_deliveries(verdicts)
    numbers["deliveries_duplicate"] = np.where(is_retried, verdicts.delivery, -1)
    things = {}
    for name, number in numbers.items():
        is_new = number[1:] != number[:-1]
        is_head = number >= 0
        is_head[1:] &= is_new
        is_alone = np.zeros(len(number), np.bool_)
        if name == "unique":  # the rows of one key stand together
            is_alone = is_head.copy()
            is_alone[:-1] &= is_new
        things[name] = _Things(number, is_alone, np.flatnonzero(is_head & ~is_alone))
    return things


def _count_distinct(group: Ints, edges: Ints, things: _Things, groups: int) -> Ints:
    """Return how many distinct things each group has; it is the runs of one pair that are sorted.

    A number that stands in one run alone is distinct there without any sorting. `edges` are the
    rows whose group is not that of the row before.
    """
    rows = np.union1d(things.heads, edges)
    rows = rows[(things.number[rows] >= 0) & ~things.is_alone[rows]]
    once = np.zeros(groups, np.int64)
    if things.is_alone.any():
        alone = group if things.is_alone.all() else group[things.is_alone]
        once += np.bincount(alone, minlength=groups)
    if not len(rows):
        return once
    place, number = group[rows].astype(np.int64), things.number[rows]
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
    states: Mapping[str, Ints], thresholds: Mapping[str, float], *, targets: bool
) -> list[Test]:
    """Return everything that is counted in rows."""
    reasons, warnings = states["reasons"], states["warnings"]
    accepted = reasons == 0
    tests: list[Test] = [
        ("received", None, np.ones(len(reasons), np.bool_)),
        ("accepted", None, accepted),
        ("rejected", None, ~accepted),
        ("received_with_ratio", None, states["has_ratio"] == 1),
    ]
    for reason in Reason:
        bit, up_to = np.uint64(reason.bit), np.uint64(2 * reason.bit - 1)
        tests.append(("rejected_any", reason.code, (reasons & bit) != 0))
        tests.append(("rejected_primary", reason.code, (reasons & up_to) == bit))
    for warning in Warn:
        tests.append(("warning", warning.code, (warnings & np.uint64(warning.bit)) != 0))
    for place, kind in enumerate(thresholds):
        above = (states["clipped"] & (1 << place)) != 0
        tests.append(("clipped_received", kind, above))
        tests.append(("clipped", kind, above & accepted & targets))
    tests += [("boundary", name, states["boundary"] == k) for k, name in enumerate(BOUNDARIES)]
    tests += [
        ("bootstrap", name, states["source"] == k) for k, name in enumerate(BOOTSTRAP_SOURCES)
    ]
    return tests


def merge_counts(parts: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """Return the sum of counts of several parts, in a fixed order."""
    names = ["scope", "scope_value", "measure", "kind"]
    whole = pl.concat([pl.DataFrame(schema=SCHEMA), *parts])
    return whole.group_by(names).agg(pl.col("count").sum()).sort(names, nulls_last=False)
