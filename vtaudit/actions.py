"""Verdicts that look into lists: masks, logits and the action; and the rebuilt log-prob."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from vtaudit.canonical import LIST_COLUMNS, PRESENT
from vtaudit.config import Settings
from vtaudit.lists import read_beside, take_apart
from vtaudit.reasons import Reason, Warn

Rows = NDArray[np.int64]
MASKS, LOGITS = LIST_COLUMNS[:2], LIST_COLUMNS[2:]
# a column of bits, where the lists were judged and left out
FINDINGS = "findings of lists"


def judge_lists(frame: pl.DataFrame, settings: Settings) -> dict[Reason | Warn, Rows]:
    """Return, for each rule on masks, logits and the action index, who breaks it, ascending.

    A rule whose columns the frame lacks is left out.

    Args:
        frame: canonical columns of discrete actions, N rows, and with the prefix PRESENT whether
            the row's file has each mask; or what `note_lists` gives for it.
        settings: the rules' tolerances and policies.
    """
    rules = _list_rules(frame)
    if FINDINGS in frame.columns:
        bits = frame[FINDINGS].to_numpy()
    elif rules:
        bits, _ = _pass_over(frame, settings)
    else:
        return {}
    rows = np.flatnonzero(bits)
    bits = bits[rows]
    return {rule: rows[bits & bit != 0] for rule, bit in rules.items()}


def note_lists(frame: pl.DataFrame, settings: Settings) -> pl.DataFrame:
    """Return the frame with what `judge_lists` finds in its lists, and without the lists.

    Lists are wide, and nothing else looks at those of a row whose key no other row has.
    """
    rules = _list_rules(frame)
    if not rules:
        return frame
    bits, _ = _pass_over(frame, settings)
    bits &= np.uint8(sum(rules.values()))
    return frame.drop(LIST_COLUMNS, strict=False).with_columns(pl.Series(FINDINGS, bits))


def _list_rules(frame: pl.DataFrame) -> dict[Reason | Warn, int]:
    """Return the rules that are judged with these columns, and the bit of each in the pass."""
    is_noted = FINDINGS in frame.columns
    if not is_noted and not any(name in frame.columns for name in LIST_COLUMNS):
        return {}
    # numba is loaded for logs with lists alone
    from vtaudit import list_pass

    masks = [name for name in MASKS if name in frame.columns]
    has_action, has_logits = "action" in frame.columns, LOGITS[0] in frame.columns
    rules: tuple[tuple[Reason | Warn, int, bool], ...] = (
        (Reason.MASK_MALFORMED, list_pass.MASK_MALFORMED, len(masks) > 0),
        (Reason.MASK_MISMATCH, list_pass.MASK_MISMATCH, len(masks) == 2),
        (Reason.ACTION_OUT_OF_RANGE, list_pass.ACTION_OUT_OF_RANGE, has_action),
        (Reason.ACTION_MASKED, list_pass.ACTION_MASKED, has_action and len(masks) > 0),
        (Reason.BEHAVIOR_LOGITS_MALFORMED, list_pass.LOGITS_MALFORMED, has_logits),
        (Reason.BEHAVIOR_LOG_PROB_UNRECONCILED, list_pass.UNRECONCILED, has_logits),
        (Warn.NOT_REBUILT, list_pass.NOT_REBUILT, has_logits),
    )
    return {rule: bit for rule, bit, is_judged in rules if is_judged or is_noted}


def rebuild_log_probs(frame: pl.DataFrame, settings: Settings) -> NDArray[np.float64]:
    """Return log mu(a) from behavior_logits, nats, NaN where it is not judged  # [N] float64

    Args:
        frame: as of `judge_lists`.
        settings: as of `judge_lists`.
    """
    return _pass_over(frame, settings)[1]


def _pass_over(
    frame: pl.DataFrame, settings: Settings
) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    from vtaudit.list_pass import run_pass

    behavior_mask, target_mask = (take_apart(frame, name, np.uint8) for name in MASKS)
    behavior_logits, target_logits = (take_apart(frame, name, np.float64) for name in LOGITS)
    return run_pass(
        (behavior_mask, target_mask),
        (behavior_logits, target_logits),
        read_beside(frame, PRESENT),
        settings.reconcile_tolerance,
        is_subset=settings.mask_policy == "subset",
    )
