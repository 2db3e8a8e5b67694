"""Rules on rows: each is one reason, the columns it needs, and one expression."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from vtaudit.actions import judge_lists
from vtaudit.canonical import PRESENT, LogShape
from vtaudit.config import Settings
from vtaudit.reasons import Reason, Warn

Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Rule:
    """A verdict on one row: what it finds, the columns it needs, and where it is true."""

    finding: Reason | Warn
    columns: tuple[str, ...]
    broken: Callable[[Settings, LogShape], pl.Expr]


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


def _version_mismatch(s: Settings, _l: LogShape) -> pl.Expr:
    parts = [
        pl.col(name).cast(pl.String).is_in(list(values)).fill_null(False)
        for name, values in s.expect.items()
    ]
    return ~pl.all_horizontal(parts) if parts else pl.lit(False)


def _is_older(version: int | None) -> pl.Expr:
    """Compare in 128 bits, where no difference of two versions overflows."""
    return pl.col("policy_version").cast(pl.Int128) < pl.lit(version, dtype=pl.Int128)


def _too_stale(s: Settings, _l: LogShape) -> pl.Expr:
    if s.learner_version is None or s.max_policy_lag is None:
        return pl.lit(False)
    return _is_older(s.learner_version - s.max_policy_lag)


def _in_future(s: Settings, _l: LogShape) -> pl.Expr:
    if s.learner_version is None:
        return pl.lit(False)
    return ~_is_older(s.learner_version + 1)


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
    Rule(Reason.VERSION_MISMATCH, (), _version_mismatch),
    Rule(Reason.POLICY_TOO_STALE, ("policy_version",), _too_stale),
    Rule(Reason.POLICY_VERSION_IN_FUTURE, ("policy_version",), _in_future),
    Rule(Warn.ENDS_BOTH, FLAGS, _ends_both(strict=False)),
    Rule(Warn.LOG_PROB_ROUNDED, BEHAVIOR, _rounded),
    Rule(
        Warn.POLICY_VERSION_MISSING,
        ("policy_version",),
        lambda s, _l: pl.col("policy_version").is_null() & pl.lit(s.learner_version is not None),
    ),
)


def judge_rows(
    frame: pl.DataFrame, shape: LogShape, settings: Settings
) -> dict[Reason | Warn, Bools]:
    """Return, for each finding that concerns one row alone, which rows it is true of  # [N].

    Args:
        frame: canonical columns of N rows, and with the prefix PRESENT whether the row's file has
            each of the columns where that matters.
        shape: which columns are mapped, and whether actions are discrete.
        settings: tolerances and policies of the rules.
    """
    rules = [rule for rule in RULES if shape.has(*rule.columns)]
    verdicts = frame.select(
        rule.broken(settings, shape).fill_null(False).alias(rule.finding.name) for rule in rules
    )
    found: dict[Reason | Warn, Bools] = {}
    for rule in rules:
        verdict = verdicts[rule.finding.name].to_numpy()
        found[rule.finding] = np.broadcast_to(verdict, frame.height)
    if shape.is_discrete:
        found |= judge_lists(frame, settings)
    return found
