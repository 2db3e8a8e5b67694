"""Rules on rows: each is one reason, the columns it needs, and where it is true."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from vtaudit.actions import judge_lists
from vtaudit.canonical import PRESENT, LogShape
from vtaudit.columns import Columns
from vtaudit.config import Settings
from vtaudit.reasons import Reason, Warn

Bools = NDArray[np.bool_]
Rows = NDArray[np.int64]
Broken = Callable[[Columns, Settings, LogShape], Bools]


@dataclass(frozen=True, slots=True)
class Rule:
    """A verdict on one row: what it finds, the columns it needs, and where it is true  # [N].

    A rule that is `of_settings` may be true of a row whose columns are all plain.
    """

    finding: Reason | Warn
    columns: tuple[str, ...]
    broken: Broken
    of_settings: bool = False


def _key_missing(c: Columns, _s: Settings, _l: LogShape) -> Bools:
    return c.nulls("trajectory_id") | ~(c.floats("step") >= 0)


def _is_flag(flag: NDArray[np.number[Any]]) -> Bools:
    return np.asarray((flag == 0) | (flag == 1))


def _flag_missing(*names: str) -> Broken:
    return lambda c, _s, _l: ~np.logical_and.reduce([_is_flag(c.floats(name)) for name in names])


def _ends_both(*, strict: bool) -> Broken:
    def find(c: Columns, s: Settings, _l: LogShape) -> Bools:
        both = (c.floats("terminated") == 1) & (c.floats("truncated") == 1)
        return both if s.strict_flags == strict else np.zeros_like(both)

    return find


def _is_positive(name: str) -> Broken:
    def find(c: Columns, s: Settings, shape: LogShape) -> Bools:
        column = c.floats(name)
        return np.isfinite(column) & (column > s.log_prob_tolerance) & shape.is_discrete

    return find


def _target_invalid(c: Columns, s: Settings, shape: LogShape) -> Bools:
    column = c.floats("target_log_prob")
    return ~(column < np.inf) | _is_positive("target_log_prob")(c, s, shape)


def _rounded(c: Columns, s: Settings, shape: LogShape) -> Bools:
    found = np.zeros(c.rows.height, np.bool_)
    for name in ("behavior_log_prob", "target_log_prob"):
        if shape.is_discrete and shape.has(name):
            found |= (c.floats(name) > 0) & (c.floats(name) <= s.log_prob_tolerance)
    return found


def _not_finite(name: str) -> Broken:
    return lambda c, _s, _l: ~np.isfinite(c.floats(name))


def _discount_out_of_range(c: Columns, _s: Settings, _l: LogShape) -> Bools:
    column, is_present = c.floats("discount"), c.rows[PRESENT + "discount"].to_numpy()
    is_sound: Bools = (c.nulls("discount") & ~is_present) | ((column >= 0) & (column <= 1))
    return ~is_sound


def _version_mismatch(c: Columns, s: Settings, _l: LogShape) -> Bools:
    found = np.zeros(c.rows.height, np.bool_)
    for name, values in s.expect.items():
        is_one = c.rows[name].cast(pl.String).is_in(list(values))
        found |= ~is_one.fill_null(False).to_numpy()
    return found


def _is_older(c: Columns, version: int) -> Bools:
    """Compare in 128 bits, where no difference of two versions overflows; null is not older."""
    bound = pl.Series([version], dtype=pl.Int128)
    is_older = c.rows["policy_version"].cast(pl.Int128) < bound
    return np.asarray(is_older.fill_null(False).to_numpy())


def _too_stale(c: Columns, s: Settings, _l: LogShape) -> Bools:
    if s.learner_version is None or s.max_policy_lag is None:
        return np.zeros(c.rows.height, np.bool_)
    return _is_older(c, s.learner_version - s.max_policy_lag)


def _in_future(c: Columns, s: Settings, _l: LogShape) -> Bools:
    if s.learner_version is None:
        return np.zeros(c.rows.height, np.bool_)
    return ~_is_older(c, s.learner_version + 1) & ~c.nulls("policy_version")


def _version_missing(c: Columns, s: Settings, _l: LogShape) -> Bools:
    return c.nulls("policy_version") & (s.learner_version is not None)


BEHAVIOR = ("behavior_log_prob",)
FLAGS = ("terminated", "truncated")
RULES = (
    Rule(Reason.VALID_MISSING, ("valid",), _flag_missing("valid")),
    Rule(Reason.KEY_MISSING, ("trajectory_id",), _key_missing),
    Rule(Reason.FLAG_MISSING, FLAGS, _flag_missing(*FLAGS)),
    Rule(Reason.FLAG_CONTRADICTION, FLAGS, _ends_both(strict=True)),
    Rule(Reason.BEHAVIOR_LOG_PROB_MISSING, BEHAVIOR, lambda c, _s, _l: c.nulls(*BEHAVIOR)),
    Rule(
        Reason.BEHAVIOR_LOG_PROB_NAN,
        BEHAVIOR,
        lambda c, _s, _l: np.isnan(c.floats(*BEHAVIOR)) & ~c.nulls(*BEHAVIOR),
    ),
    Rule(
        Reason.BEHAVIOR_LOG_PROB_INFINITE,
        BEHAVIOR,
        lambda c, _s, _l: np.isinf(c.floats(*BEHAVIOR)),
    ),
    Rule(Reason.BEHAVIOR_LOG_PROB_POSITIVE, BEHAVIOR, _is_positive(*BEHAVIOR)),
    Rule(Reason.TARGET_LOG_PROB_INVALID, ("target_log_prob",), _target_invalid),
    Rule(Reason.REWARD_NOT_FINITE, ("reward",), _not_finite("reward")),
    Rule(Reason.VALUE_NOT_FINITE, ("value",), _not_finite("value")),
    Rule(Reason.DISCOUNT_OUT_OF_RANGE, ("discount",), _discount_out_of_range),
    Rule(Reason.VERSION_MISMATCH, (), _version_mismatch, of_settings=True),
    Rule(Reason.POLICY_TOO_STALE, ("policy_version",), _too_stale, of_settings=True),
    Rule(Reason.POLICY_VERSION_IN_FUTURE, ("policy_version",), _in_future, of_settings=True),
    Rule(Warn.ENDS_BOTH, FLAGS, _ends_both(strict=False)),
    Rule(Warn.LOG_PROB_ROUNDED, BEHAVIOR, _rounded),
    Rule(Warn.POLICY_VERSION_MISSING, ("policy_version",), _version_missing, of_settings=True),
)


def _find_doubtful(columns: Columns, shape: LogShape) -> Rows:
    """Return the rows of which a rule on one row alone may be true, ascending; most are plain.

    A row is plain where each of its columns holds what no rule minds.
    """
    rows = columns.rows
    is_plain = (rows["step"].to_numpy() >= 0) & ~columns.nulls("trajectory_id")
    if shape.has("valid"):
        is_plain &= rows["valid"].to_numpy() == 1
    ends = [rows[name].to_numpy() for name in FLAGS if shape.has(name)]
    for flag in ends:
        is_plain &= _is_flag(flag)
    if len(ends) > 1:
        is_plain &= (ends[0] != 1) | (ends[1] != 1)
    greatest = 0.0 if shape.is_discrete else np.finfo(np.float64).max
    for name in (*BEHAVIOR, "target_log_prob"):
        if shape.has(name):
            is_plain &= columns.floats(name) <= greatest
    for name in (*BEHAVIOR, "reward", "value"):
        if shape.has(name):
            is_plain &= np.isfinite(columns.floats(name))
    if shape.has("discount"):
        discount = columns.floats("discount")
        is_absent = columns.nulls("discount") & ~rows[PRESENT + "discount"].to_numpy()
        is_plain &= is_absent | ((discount >= 0) & (discount <= 1))
    return np.flatnonzero(~is_plain)


def judge_rows(columns: Columns, shape: LogShape, settings: Settings) -> dict[Reason | Warn, Rows]:
    """Return, for each finding that concerns one row alone, the rows it is true of, ascending.

    Args:
        columns: canonical columns of N rows, and with the prefix PRESENT whether the row's file has
            each of the columns where that matters.
        shape: which columns are mapped, and whether actions are discrete.
        settings: tolerances and policies of the rules.
    """
    doubtful = _find_doubtful(columns, shape)
    rules = [rule for rule in RULES if shape.has(*rule.columns)]
    of_settings = [rule for rule in rules if rule.of_settings]
    found = _judge(columns, of_settings, shape, settings)
    others = [rule for rule in rules if not rule.of_settings]
    among = _judge(Columns(columns.rows[doubtful]), others, shape, settings)
    found |= {finding: doubtful[rows] for finding, rows in among.items()}
    if shape.is_discrete:
        found |= judge_lists(columns.rows, settings)
    return found


def _judge(
    columns: Columns, rules: Sequence[Rule], shape: LogShape, settings: Settings
) -> dict[Reason | Warn, Rows]:
    return {rule.finding: np.flatnonzero(rule.broken(columns, settings, shape)) for rule in rules}
