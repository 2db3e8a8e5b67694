"""Verdicts that look into lists: masks, logits and the action; and the rebuilt log-prob."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from vtaudit.canonical import PRESENT
from vtaudit.config import Settings
from vtaudit.reasons import Reason, Warn

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Lists:
    """A list column taken apart.

    Attributes:
        given: rows whose list is not null  # [N]
        starts: where each list begins in `values`  # [N]
        lengths: elements of each list, 0 for null  # [N]
        values: all elements; masks as bool, logits as float64; anything where `null`  # [E]
        null: null elements  # [E]
    """

    given: Bools
    starts: Ints
    lengths: Ints
    values: NDArray[np.generic]
    null: Bools

    def count(self, flags: Bools) -> Ints:
        """Return how many elements of each list are flagged; `flags` is [E], the result [N]."""
        totals = np.concatenate(([0], np.cumsum(flags, dtype=np.int64)))
        return np.asarray(totals[self.starts + self.lengths] - totals[self.starts])

    def elements(self, rows: Ints) -> Ints:
        """Return the places in `values` of all elements of the lists of `rows`, in order."""
        lengths = self.lengths[rows]
        firsts = np.cumsum(lengths) - lengths
        return np.asarray(
            np.repeat(self.starts[rows] - firsts, lengths)
            + np.arange(lengths.sum(), dtype=np.int64)
        )


def take_apart(column: pl.Series) -> Lists:
    """Return the parts of a list column of bool or float64."""
    array = column.rechunk().to_arrow()
    offsets = np.asarray(array.offsets, dtype=np.int64)
    given = column.is_not_null().to_numpy()
    flat = pl.Series(array.values)
    null = flat.is_null().to_numpy()
    filled = flat.fill_null(False) if flat.dtype == pl.Boolean else flat.fill_null(0.0)
    return Lists(
        given=given,
        starts=offsets[:-1],
        lengths=np.where(given, np.diff(offsets), 0),
        values=filled.to_numpy(),
        null=null,
    )


def judge_lists(frame: pl.DataFrame, settings: Settings) -> dict[Reason | Warn, Bools]:
    """Return who breaks each rule on masks, logits and the action index.

    Args:
        frame: canonical columns of discrete actions, N rows, and with the prefix PRESENT whether
            the row's file has each mask.
        settings: the rules' tolerances and policies.
    """
    masks = _take(frame, ("behavior_action_mask", "target_action_mask"))
    logits = _take(frame, ("behavior_logits", "target_logits"))
    if not masks and not logits:
        return {}
    found: dict[Reason | Warn, Bools] = {}
    none = np.zeros(frame.height, np.bool_)
    malformed = none
    for name, mask in masks.items():
        others = [item for key, item in (masks | logits).items() if key != name]
        malformed = malformed | _mask_malformed(mask, others)
    if masks:
        found[Reason.MASK_MALFORMED] = malformed
    if len(masks) == 2:
        present = [frame[PRESENT + name].to_numpy() for name in masks]
        found[Reason.MASK_MISMATCH] = _mask_mismatch(
            masks["behavior_action_mask"], masks["target_action_mask"], present, settings
        )
    index, whole, in_range = none.astype(np.int64), none, none
    if "action" in frame.columns:
        index, whole = _action_index(frame["action"])
        in_range = whole & np.logical_and.reduce(
            [~item.given | (index < item.lengths) for item in (masks | logits).values()]
        )
        judged = _any([item.given for item in masks.values()], none)
        judged = judged | (logits["behavior_logits"].given if "behavior_logits" in logits else none)
        found[Reason.ACTION_OUT_OF_RANGE] = judged & ~in_range
    allowed = {name: _allows(mask, index, whole) for name, mask in masks.items()}
    if masks and "action" in frame.columns:
        found[Reason.ACTION_MASKED] = _any([~allows for allows in allowed.values()], none)
    if "behavior_logits" in logits:
        judged = in_range & ~malformed & allowed.get("behavior_action_mask", ~none)
        found |= _judge_logits(
            frame, logits, masks.get("behavior_action_mask"), index, judged, settings
        )
    return found


def _take(frame: pl.DataFrame, names: tuple[str, ...]) -> dict[str, Lists]:
    return {name: take_apart(frame[name]) for name in names if name in frame.columns}


def _any(flags: list[Bools], none: Bools) -> Bools:
    return np.asarray(np.logical_or.reduce([none, *flags]))


def _action_index(action: pl.Series) -> tuple[Ints, Bools]:
    """Return the action as an index, and whether it is one: whole and not negative."""
    value = action.cast(pl.Float64).fill_null(float("nan")).to_numpy()
    whole = np.isfinite(value) & (value >= 0) & (value == np.floor(value)) & (value < 2**31)
    return np.where(whole, value, 0).astype(np.int64), whole


def _mask_malformed(mask: Lists, others: list[Lists]) -> Bools:
    """Empty, all false, holding a null, or of another length than another list given."""
    true = mask.count(np.asarray(mask.values, np.bool_) & ~mask.null)
    bad = (true == 0) | (mask.count(mask.null) > 0)
    for other in others:
        bad |= other.given & (other.lengths != mask.lengths)
    return np.asarray(mask.given & bad)


def _mask_mismatch(
    behavior: Lists,
    target: Lists,
    present: Sequence[Bools],
    settings: Settings,
) -> Bools:
    has_behavior, has_target = present
    both = behavior.given & target.given & (behavior.lengths == target.lengths)
    rows = np.flatnonzero(both)
    b, t = behavior.elements(rows), target.elements(rows)
    b_true = np.asarray(behavior.values[b], np.bool_) & ~behavior.null[b]
    t_true = np.asarray(target.values[t], np.bool_) & ~target.null[t]
    forbids = ~b_true & ~behavior.null[b]
    if settings.mask_policy == "subset":
        differs = t_true & forbids
        alone = behavior.count(~np.asarray(behavior.values, np.bool_) & ~behavior.null) > 0
        alone = alone & behavior.given & ~target.given & has_target
    else:
        differs = (b_true != t_true) | (behavior.null[b] != target.null[t])
        alone = (behavior.given & ~target.given & has_target) | (
            target.given & ~behavior.given & has_behavior
        )
    row_of = np.repeat(rows, behavior.lengths[rows])
    mismatch = np.zeros(len(behavior.given), np.bool_)
    mismatch[row_of[differs]] = True
    return np.asarray(mismatch | alone)


def _allows(mask: Lists, index: Ints, whole: Bools) -> Bools:
    """Return where the mask does not say false at the action; a null element says nothing."""
    judged = mask.given & whole & (index < mask.lengths)
    place = np.where(judged, mask.starts + index, 0)
    allows = np.ones(len(judged), np.bool_)
    if len(mask.values):
        says_no = ~np.asarray(mask.values[place], np.bool_) & ~mask.null[place]
        allows = ~(judged & says_no)
    return allows


def _judge_logits(
    frame: pl.DataFrame,
    logits: dict[str, Lists],
    mask: Lists | None,
    index: Ints,
    judged: Bools,
    settings: Settings,
) -> dict[Reason | Warn, Bools]:
    behavior = logits["behavior_logits"]
    values = np.asarray(behavior.values, np.float64)
    temperature = _filled(frame, "behavior_temperature", 1.0)
    epsilon = _filled(frame, "behavior_epsilon", 0.0)
    broken = behavior.null | np.isnan(values) | (values == np.inf)
    bad = (behavior.lengths == 0) | (behavior.count(broken) > 0)
    bad |= behavior.count(values == -np.inf) == behavior.lengths
    if "target_logits" in logits:
        target = logits["target_logits"]
        bad |= target.given & (target.lengths != behavior.lengths)
    bad |= ~np.isfinite(temperature) | (temperature < 0) | ~((epsilon >= 0) & (epsilon <= 1))
    recorded = frame["behavior_log_prob"].fill_null(float("nan")).to_numpy()
    sound = behavior.given & ~bad & np.isfinite(recorded)
    judged = sound & judged & (temperature != 0)
    rows = np.flatnonzero(judged)
    rebuilt = rebuild_log_probs(behavior, mask, index, temperature, epsilon, rows)
    off = np.zeros(len(judged), np.bool_)
    off[rows] = np.abs(recorded[rows] - rebuilt) > settings.reconcile_tolerance
    return {
        Reason.BEHAVIOR_LOGITS_MALFORMED: behavior.given & bad,
        Reason.BEHAVIOR_LOG_PROB_UNRECONCILED: off,
        Warn.NOT_REBUILT: sound & ~judged,
    }


def _filled(frame: pl.DataFrame, name: str, default: float) -> NDArray[np.float64]:
    if name not in frame.columns:
        return np.full(frame.height, default)
    return frame[name].fill_null(default).to_numpy()


def rebuild_log_probs(
    logits: Lists,
    mask: Lists | None,
    index: Ints,
    temperature: NDArray[np.float64],
    epsilon: NDArray[np.float64],
    rows: Ints,
) -> NDArray[np.float64]:
    """Return log mu(a) of `rows`, in log space, from sound logits.

    mu(a) = (1 - epsilon) softmax(logits / temperature over L)[a] + epsilon / |L| for a in L, where
    L holds the actions that the mask allows and whose logit is above -inf; mu(a) = 0 elsewhere.

    Args:
        logits: sound logits, none of the lists of `rows` empty.
        mask: behavior masks of the same lengths where given, or None.
        index: action of each row  # [N] int64
        temperature: above 0  # [N] float64
        epsilon: in [0, 1]  # [N] float64
        rows: which rows to rebuild  # [R] int64

    Returns:
        log mu of each of `rows`, nats, -inf where mu is 0  # [R] float64
    """
    if not len(rows):
        return np.zeros(0)
    lengths = logits.lengths[rows]
    starts = np.cumsum(lengths) - lengths
    x = np.array(np.asarray(logits.values, np.float64)[logits.elements(rows)])
    if mask is not None:
        masked = mask.given[rows]
        allowed = np.asarray(mask.values, np.bool_)[mask.elements(rows[masked])]
        inside = np.repeat(masked, lengths)
        x[inside] = np.where(allowed, x[inside], -np.inf)
    row_of = np.repeat(np.arange(len(rows)), lengths)
    peak = np.maximum.reduceat(x, starts)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        scaled = (x - peak[row_of]) / temperature[rows][row_of]
        total = np.add.reduceat(np.where(x > -np.inf, np.exp(scaled), 0.0), starts)
        size = np.add.reduceat((x > -np.inf).astype(np.float64), starts)
        log_softmax = scaled[starts + index[rows]] - np.log(total)
        share = epsilon[rows]
        mixed = np.logaddexp(np.log1p(-share) + log_softmax, np.log(share) - np.log(size))
    at_action = x[starts + index[rows]]
    return np.where(at_action > -np.inf, np.where(share > 0, mixed, log_softmax), -np.inf)
