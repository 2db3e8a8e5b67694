"""Rules on rows: each is one reason, the columns it needs, and one expression."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from vtaudit.actions import judge_lists
from vtaudit.canonical import PRESENT, LogShape
from vtaudit.columns import Columns
from vtaudit.config import Settings
from vtaudit.reasons import Reason, Warn

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Rule:
    """A verdict on one row: what it finds, the columns it needs, and where it is true.

    A rule that is `of_settings` may be true of a row whose columns are all plain. `broken` is None
    where the settings let it be true of no row.
    """

    finding: Reason | Warn
    columns: tuple[str, ...]
    broken: Callable[[Settings, LogShape], pl.Expr | None]
    of_settings: bool = False


def _key_missing(_s: Settings, _l: LogShape) -> pl.Expr:
    step = pl.col("step")
    return pl.col("trajectory_id").is_null() | step.is_null() | (step < 0)


def _is_missing_flag(name: str) -> pl.Expr:
    return ~((pl.col(name) == 0) | (pl.col(name) == 1)).fill_null(False)


def _ends_both(*, strict: bool) -> Callable[[Settings, LogShape], pl.Expr]:
    both = (pl.col("terminated") == 1) & (pl.col("truncated") == 1)
    return lambda s, _l: both & pl.lit(s.strict_flags == strict)


def _is_positive(name: str, s: Settings, shape: LogShape) -> pl.Expr:
    column = pl.col(name)
    return column.is_finite() & (column > s.log_prob_tolerance) & pl.lit(shape.is_discrete)


def _target_invalid(s: Settings, shape: LogShape) -> pl.Expr:
    column = pl.col("target_log_prob")
    not_one = column.is_null() | column.is_nan() | (column == float("inf"))
    return not_one | _is_positive("target_log_prob", s, shape)


def _rounded(s: Settings, shape: LogShape) -> pl.Expr:
    names = [n for n in ("behavior_log_prob", "target_log_prob") if n in shape.dtypes]
    parts = [(pl.col(n) > 0) & (pl.col(n) <= s.log_prob_tolerance) for n in names]
    return pl.any_horizontal(part.fill_null(False) for part in parts) & pl.lit(shape.is_discrete)


def _not_finite(name: str) -> Callable[[Settings, LogShape], pl.Expr]:
    return lambda _s, _l: pl.col(name).is_null() | ~pl.col(name).is_finite()


def _discount_out_of_range(_s: Settings, _l: LogShape) -> pl.Expr:
    column = pl.col("discount")
    is_lost = column.is_null() & pl.col(PRESENT + "discount")
    return is_lost | column.is_nan() | (column < 0) | (column > 1)


def _version_mismatch(s: Settings, _l: LogShape) -> pl.Expr | None:
    parts = [
        pl.col(name).cast(pl.String).is_in(list(values)).fill_null(False)
        for name, values in s.expect.items()
    ]
    return ~pl.all_horizontal(parts) if parts else None


def _is_older(version: int | None) -> pl.Expr:
    """Compare in 128 bits, where no difference of two versions overflows."""
    return pl.col("policy_version").cast(pl.Int128) < pl.lit(version, dtype=pl.Int128)


def _too_stale(s: Settings, _l: LogShape) -> pl.Expr | None:
    if s.learner_version is None or s.max_policy_lag is None:
        return None
    return _is_older(s.learner_version - s.max_policy_lag)


def _in_future(s: Settings, _l: LogShape) -> pl.Expr | None:
    if s.learner_version is None:
        return None
    return ~_is_older(s.learner_version + 1)


def _version_missing(s: Settings, _l: LogShape) -> pl.Expr | None:
    return None if s.learner_version is None else pl.col("policy_version").is_null()


BEHAVIOR = ("behavior_log_prob",)
FLAGS = ("terminated", "truncated")
RULES = (
    Rule(
        Reason.VALID_MISSING,
        ("valid",),
        lambda _s, _l: _is_missing_flag("valid"),
    ),
    Rule(Reason.KEY_MISSING, ("trajectory_id",), _key_missing),
    Rule(
        Reason.FLAG_MISSING,
        FLAGS,
        lambda _s, _l: _is_missing_flag("terminated") | _is_missing_flag("truncated"),
    ),
    Rule(Reason.FLAG_CONTRADICTION, FLAGS, _ends_both(strict=True)),
    Rule(Reason.BEHAVIOR_LOG_PROB_MISSING, BEHAVIOR, lambda _s, _l: pl.col(*BEHAVIOR).is_null()),
    Rule(Reason.BEHAVIOR_LOG_PROB_NAN, BEHAVIOR, lambda _s, _l: pl.col(*BEHAVIOR).is_nan()),
    Rule(
        Reason.BEHAVIOR_LOG_PROB_INFINITE, BEHAVIOR, lambda _s, _l: pl.col(*BEHAVIOR).is_infinite()
    ),
    Rule(
        Reason.BEHAVIOR_LOG_PROB_POSITIVE,
        BEHAVIOR,
        lambda s, shape: _is_positive(*BEHAVIOR, s, shape),
    ),
    Rule(Reason.TARGET_LOG_PROB_INVALID, ("target_log_prob",), _target_invalid),
    Rule(Reason.REWARD_NOT_FINITE, ("reward",), _not_finite("reward")),
    Rule(Reason.VALUE_NOT_FINITE, ("value",), _not_finite("value")),
    Rule(Reason.DISCOUNT_OUT_OF_RANGE, ("discount",), _discount_out_of_range),
    Rule(Reason.VERSION_MISMATCH, (), _version_mismatch, of_settings=True),
    Rule(Reason.POLICY_TOO_STALE, ("policy_version",), _too_stale, of_settings=True),
    Rule(Reason.POLICY_VERSION_IN_FUTURE, ("policy_version",), _in_future, of_settings=True),
    Rule(Warn.ENDS_BOTH, FLAGS, _ends_both(strict=False)),
    Rule(Warn.LOG_PROB_ROUNDED, BEHAVIOR, _rounded),
    Rule(
        Warn.POLICY_VERSION_MISSING,
        ("policy_version",),
        _version_missing,
        of_settings=True,
    ),
)


def _find_doubtful(columns: Columns, shape: LogShape) -> Rows:
    """Return the rows of which a rule on one row alone may be true, ascending; most are plain.

    A row is plain where each of its columns holds what no rule minds.
    """
    rows = columns.rows
    is_plain = rows["step"].to_numpy() >= 0
    if rows["trajectory_id"].null_count():
        is_plain &= rows["trajectory_id"].is_not_null().to_numpy()
    if shape.has("valid"):
        is_plain &= rows["valid"].to_numpy() == 1
    ends = [rows[name].to_numpy() for name in FLAGS if shape.has(name)]
    for flag in ends:
        is_plain &= (flag == 0) | (flag == 1)
    if len(ends) > 1:
        is_plain &= ends[0] + ends[1] <= 1
    greatest = 0.0 if shape.is_discrete else np.finfo(np.float64).max
    for name in (*BEHAVIOR, "target_log_prob"):
        if shape.has(name):
            is_plain &= columns.floats(name) <= greatest
    for name in (*BEHAVIOR, "reward", "value"):
        if shape.has(name):
            is_plain &= np.isfinite(columns.floats(name))
    if shape.has("discount"):
        discount = columns.floats("discount")
        is_absent = rows["discount"].is_null().to_numpy() & ~rows[PRESENT + "discount"].to_numpy()
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
    frame = columns.rows
    doubtful = _find_doubtful(columns, shape)
    rules = [rule for rule in RULES if shape.has(*rule.columns)]
    of_settings = [rule for rule in rules if rule.of_settings]
    found = _judge(frame, of_settings, shape, settings)
    others = [rule for rule in rules if not rule.of_settings]
    for finding, rows in _judge(frame[doubtful], others, shape, settings).items():
        found[finding] = doubtful[rows]
    if shape.is_discrete:
        found |= judge_lists(frame, settings)
    return found


def _judge(
    frame: pl.DataFrame, rules: Sequence[Rule], shape: LogShape, settings: Settings
) -> dict[Reason | Warn, Rows]:
    broken = {rule.finding: rule.broken(settings, shape) for rule in rules}
    verdicts = frame.select(
        expression.fill_null(False).alias(finding.name)
        for finding, expression in broken.items()
        if expression is not None
    )
    nowhere = np.zeros(0, np.int64)
    return {
        finding: nowhere
        if expression is None
        else np.flatnonzero(verdicts[finding.name].to_numpy())
        for finding, expression in broken.items()
    }
