"""Count the verdicts of a shard by scope, so that shards add up."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import numpy as np
import polars as pl
from numpy.typing import NDArray

from vtaudit.labels import number_values
from vtaudit.reasons import BOOTSTRAP_SOURCES, BOUNDARIES, Reason, Warn
from vtaudit.records import Verdicts
from vtaudit.stretches import find_stretches, lengths_of
from vtaudit.tallies import SCHEMA, Tally, tally_of

RUN = "run"
SCOPES = ("source_file", "policy_version", "actor_id", "env_version")
Ints = NDArray[np.integer]
# the number of each stretch's group, and the groups as text
Groups = tuple[Ints, pl.Series]
# from the group of each stretch, and how many groups there may be: a count for each group
Counter = Callable[[Ints, int], Ints]
# a table of groups and states has at most so many places for each row; larger ones are sorted
MAX_PLACES_PER_ROW = 4

# measure, kind, and whether the rows of each state count  # [S] bool
Test = tuple[str, str | None, NDArray[np.bool_]]


def count_verdicts(
    verdicts: Verdicts, scopes: pl.DataFrame, thresholds: Mapping[str, float], *, targets: bool
) -> Tally:
    """Return the counts of one shard.

    Args:
        verdicts: of N rows.
        scopes: the mapped ones of SCOPES, N rows.
        thresholds: clip by kind.
        targets: whether accepted rows have targets, so that clips and bootstraps count.
    """
    state, states = _number_states(verdicts, thresholds)
    tests = _row_tests(states, thresholds, targets=targets)
    truth = np.stack([test for _, _, test in tests], axis=1).astype(np.int64)
    labels = [scopes[name] for name in scopes.columns]
    firsts = find_stretches([verdicts.window, verdicts.delivery, *labels])
    heads = scopes[firsts]
    groups: dict[str, Groups] = {RUN: (np.zeros(len(firsts), np.int32), pl.Series([RUN]))}
    groups |= {name: number_values(heads[name]) for name in heads.columns}
    things = _find_things(verdicts, firsts, states["reasons"])
    found: list[tuple[str, str | None]] = []
    lines = []
    for name, (group, texts) in groups.items():
        place, counts = _count_rows(group, firsts, state, truth, len(texts))
        distinct = [each(group, len(texts))[place] for each in things.values()]
        lines.append(np.concatenate((counts, np.stack(distinct, axis=1)), axis=1))
        found += [(name, value) for value in texts[place].to_list()]
    names = [(measure, kind) for measure, kind, _ in tests]
    names += [(measure, None) for measure in things]
    return Tally(tuple(found), tuple(names), np.concatenate(lines))


def _number_states(
    verdicts: Verdicts, thresholds: Mapping[str, float]
) -> tuple[Ints, dict[str, Ints]]:
    """Return the number of each row's state  # [N], and what each state is  # [S] by name.

    A state is a combination of reasons, warnings, boundary, source, has_ratio and clipped.
    """
    from vtaudit.count_pass import Columns, number_states

    log_bars = np.array([math.log(bar) for bar in thresholds.values()])
    columns = Columns(
        verdicts.reasons,
        verdicts.warnings,
        verdicts.boundary,
        verdicts.source,
        verdicts.log_ratio,
        log_bars,
    )
    state, firsts = number_states(columns)
    log_ratio = verdicts.log_ratio[firsts]
    return state, {
        "reasons": verdicts.reasons[firsts],
        "warnings": verdicts.warnings[firsts],
        "boundary": verdicts.boundary[firsts],
        "source": verdicts.source[firsts],
        "has_ratio": ~np.isnan(log_ratio),
        "clipped": clip_bits(log_ratio, thresholds),
    }


def _count_rows(
    group: Ints, firsts: Ints, state: Ints, truth: Ints, groups: int
) -> tuple[Ints, Ints]:
    """Return the groups that have rows  # [G], and how many of their rows pass each test  # [G, T].

    Args:
        group: of each stretch  # [R]
        firsts: the first row of each stretch  # [R]
        state: of each row  # [N]
        truth: whether a row of a state passes a test, 0 or 1  # [S, T]
        groups: how many there may be.
    """
    states = max(len(truth), 1)
    number, rows = _tally(group, firsts, state, groups, states)
    group = number // states
    heads = np.flatnonzero(np.diff(group, prepend=-1))
    passed = truth[number % states] * rows[:, None]
    counts = np.add.reduceat(passed, heads) if len(heads) else passed
    return group[heads], counts


def _tally(group: Ints, firsts: Ints, state: Ints, groups: int, states: int) -> tuple[Ints, Ints]:
    """Return the numbers group x states + state that occur, ascending, and how often."""
    from vtaudit.count_pass import count_pairs

    if groups * states > MAX_PLACES_PER_ROW * len(state):
        group = np.repeat(group.astype(np.int64), lengths_of(firsts, len(state)))
        return np.unique(group * states + state, return_counts=True)
    rows = count_pairs(group, firsts, state, groups, states)
    found = np.flatnonzero(rows)
    return found, rows[found]


def _find_things(verdicts: Verdicts, firsts: Ints, reasons: Ints) -> dict[str, Counter]:
    """Return how to count what is counted by distinct ones.

    Args:
        verdicts: of N rows.
        firsts: the first row of each stretch of one window, delivery and scopes.
        reasons: those that occur: without duplicates no delivery has nothing else.
    """
    window, delivery = verdicts.window[firsts], verdicts.delivery[firsts]
    retried = np.full_like(delivery, -1)
    if (reasons & np.uint64(Reason.DUPLICATE.bit)).any():
        is_fresh = (verdicts.reasons & np.uint64(Reason.DUPLICATE.bit)) == 0
        has_fresh = np.zeros(int(delivery.max()) + 1, np.bool_)
        has_fresh[verdicts.delivery[is_fresh & (verdicts.delivery >= 0)]] = True
        retried = np.where(has_fresh[delivery], -1, delivery)
    return {
        "unique": _key_counter(verdicts.key, firsts),
        "windows": partial(_count_numbers, window),
        "deliveries": partial(_count_numbers, delivery),
        "deliveries_duplicate": partial(_count_numbers, retried),
    }


def _count_numbers(number: Ints, group: Ints, groups: int) -> Ints:
    from vtaudit.count_pass import count_distinct

    return count_distinct(group, number, groups, int(number.max(initial=-1)) + 1)


def _key_counter(key: Ints, firsts: Ints) -> Counter:
    """Return how to count the keys of groups; most keys have one row."""
    has_key = key >= 0
    keyed = key if has_key.all() else key[has_key]
    if not (keyed[1:] > keyed[:-1]).all():
        lengths = lengths_of(firsts, len(key))
        return lambda group, groups: _count_numbers(key, np.repeat(group, lengths), groups)
    rows = np.add.reduceat(has_key, firsts, dtype=np.int64) if len(firsts) else firsts
    return lambda group, groups: np.bincount(group, rows, minlength=groups).astype(np.int64)


def count_padding(rows: pl.DataFrame) -> Tally:
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
    return tally_of(pl.concat(counted))


def clip_bits(log_ratio: np.ndarray, thresholds: Mapping[str, float]) -> np.ndarray:
    """Return a bit per kind where log_ratio > log(bar), strictly  # [N] uint8."""
    bits, exact = np.zeros(len(log_ratio), np.uint8), log_ratio.astype(np.float64)
    for place, bar in enumerate(thresholds.values()):
        bits |= (exact > math.log(bar)).view(np.uint8) << np.uint8(place)
    return bits


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
