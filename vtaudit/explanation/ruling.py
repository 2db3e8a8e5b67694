"""Each rule's verdict on one row: it holds, it is broken, or why it was not judged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from vtaudit.canonical import LogShape
from vtaudit.columns import Columns
from vtaudit.config import Settings
from vtaudit.explanation.acceptance import tell_accepted
from vtaudit.explanation.evidence import LOGITS, MASKS, find_evidence
from vtaudit.explanation.subject import Subject
from vtaudit.reasons import Reason, Warn
from vtaudit.validation import RULES, judge_rows

State = Literal["holds", "broken", "not judged"]
ABOUT_LISTS = {
    Reason.BEHAVIOR_LOGITS_MALFORMED: LOGITS[:1],
    Reason.BEHAVIOR_LOG_PROB_UNRECONCILED: LOGITS[:1],
    Reason.MASK_MALFORMED: MASKS,
    Reason.MASK_MISMATCH: MASKS,
    Reason.ACTION_OUT_OF_RANGE: (*MASKS, LOGITS[0]),
    Reason.ACTION_MASKED: MASKS,
}
DISCRETE = {*ABOUT_LISTS, Reason.BEHAVIOR_LOG_PROB_POSITIVE}
LATE = (Reason.BOOTSTRAP_MISSING, Reason.TARGET_NOT_FINITE)
BY_KEY = (Reason.KEY_CONFLICT, Reason.DUPLICATE)


@dataclass(frozen=True, slots=True)
class Ruling:
    """A rule's verdict on the row.

    Attributes:
        reason: what the rule is about.
        when: when it is broken.
        state: holds, broken or not judged.
        why: why it was not judged; None where it was.
        found: the values that broke it, by what they are called; empty where it is not broken.
        accepted: what would have been accepted; None where it is not broken.
    """

    reason: str
    when: str
    state: State
    why: str | None
    found: dict[str, Any]
    accepted: str | None


def rule_on(subject: Subject) -> list[Ruling]:
    """Return every rule's verdict on a row, in the contract's order."""
    plan, row = subject.plan, subject.row
    alone = subject.shard.rows[row : row + 1]
    judged = set(judge_rows(Columns(alone), plan.shape, plan.settings))
    rulings = []
    for reason in Reason:
        if int(subject.shard.found.reasons[row]) & reason.bit:
            found, accepted = find_evidence(reason, subject), tell_accepted(reason, plan.settings)
            ruling = Ruling(reason.code, reason.text, "broken", None, found, accepted)
        else:
            why = _why_not(reason, subject, judged)
            state: State = "holds" if why is None else "not judged"
            ruling = Ruling(reason.code, reason.text, state, why, {}, None)
        rulings.append(ruling)
    return rulings


def _why_not(reason: Reason, subject: Subject, judged: set[Reason | Warn]) -> str | None:
    """Return why a rule that is not broken was not judged, None where it holds."""
    if reason in LATE:
        return _why_not_cut(reason, subject)
    if reason in BY_KEY:
        return _why_no_copies(subject)
    if reason is Reason.WINDOW_MALFORMED:
        return "the log has one row per step"
    if reason in DISCRETE and not subject.plan.shape.is_discrete:
        return "actions are continuous"
    if reason not in judged:
        return _why_unmapped(reason, subject.plan.shape)
    return _why_off(reason, subject.plan.settings) or _why_empty(reason, subject)


def _why_not_cut(reason: Reason, subject: Subject) -> str | None:
    if not subject.plan.settings.targets:
        return "no targets were asked for"
    others = set(subject.reasons(subject.row)) - {late.code for late in LATE}
    if others or (reason is Reason.TARGET_NOT_FINITE and subject.reasons(subject.row)):
        return "only rows without another reason get a target"
    return None


def _why_no_copies(subject: Subject) -> str | None:
    if int(subject.shard.keys.key[subject.row]) < 0:
        return "the row has no key"
    if subject.plan.settings.step_from == "order":
        return "steps are the order of the rows, so a repeated row looks new"
    return None


def _why_unmapped(reason: Reason, shape: LogShape) -> str:
    if reason in ABOUT_LISTS:
        needed = [*ABOUT_LISTS[reason]]
        if reason in (Reason.ACTION_OUT_OF_RANGE, Reason.ACTION_MASKED) and not shape.has("action"):
            needed = ["action"]
        lacking = [name for name in needed if not shape.has(name)]
    else:
        columns = {rule.finding: rule.columns for rule in RULES}[reason]
        lacking = [name for name in columns if not shape.has(name)]
    return f"{', '.join(lacking)} not mapped"


def _why_off(reason: Reason, settings: Settings) -> str | None:
    needs = {
        Reason.FLAG_CONTRADICTION: settings.strict_flags or "--strict-flags",
        Reason.VERSION_MISMATCH: bool(settings.expect) or "--expect",
        Reason.POLICY_TOO_STALE: settings.max_policy_lag is not None or "--max-policy-lag",
        Reason.POLICY_VERSION_IN_FUTURE: settings.learner_version is not None
        or "--learner-version",
    }
    need = needs.get(reason, True)
    return None if need is True else f"{need} was not given"


def _why_empty(reason: Reason, subject: Subject) -> str | None:
    """Return why lists of this row say nothing."""
    if reason not in ABOUT_LISTS or reason is Reason.MASK_MISMATCH:
        return None
    names = [name for name in ABOUT_LISTS[reason] if subject.plan.shape.has(name)]
    if all(subject.cell(name) is None for name in names):
        return f"{', '.join(names)} null on this row"
    warned = subject.shard.found.warnings[subject.row] & np.uint64(Warn.NOT_REBUILT.bit)
    if reason is Reason.BEHAVIOR_LOG_PROB_UNRECONCILED:
        if warned:
            return Warn.NOT_REBUILT.text
        if subject.reasons(subject.row) and _is_unsound(subject):
            return "behavior_logits or behavior_log_prob are unsound"
    return None


def _is_unsound(subject: Subject) -> bool:
    bits = int(subject.shard.found.reasons[subject.row])
    unsound = (
        Reason.BEHAVIOR_LOG_PROB_MISSING,
        Reason.BEHAVIOR_LOG_PROB_NAN,
        Reason.BEHAVIOR_LOG_PROB_INFINITE,
        Reason.BEHAVIOR_LOGITS_MALFORMED,
    )
    return any(bits & reason.bit for reason in unsound)
