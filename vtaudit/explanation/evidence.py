"""What broke each rule on one row: the values, by what they are called."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from vtaudit.actions import rebuild_log_probs
from vtaudit.canonical import PAYLOAD
from vtaudit.explanation.subject import Subject
from vtaudit.plan import lineage_columns
from vtaudit.reasons import Reason

Evidence = dict[str, Any]
MASKS = ("behavior_action_mask", "target_action_mask")
LOGITS = ("behavior_logits", "target_logits")
MIXTURE = ("behavior_temperature", "behavior_epsilon")


def find_evidence(reason: Reason, subject: Subject) -> Evidence:
    """Return the values that broke a rule, by what they are called."""
    return EVIDENCE[reason](subject)


def _logged(*names: str) -> Callable[[Subject], Evidence]:
    return lambda subject: subject.cells(*names)


def _conflict(subject: Subject) -> Evidence:
    """Return the other copies, and the payload columns in which they differ."""
    found: Evidence = {}
    names = [name for name in PAYLOAD if name in subject.shard.rows.columns]
    for other in (row for row in subject.copies() if row != subject.row):
        rows = subject.shard.rows
        differs = [
            name
            for name in names
            if rows[name].slice(subject.row, 1).ne_missing(rows[name].slice(other, 1)).any()
        ]
        found[subject.place(other)] = {
            name: {"here": subject.cell(name), "there": subject.cell(name, other)}
            for name in differs
        } or "equal payload"
    return found


def _duplicate(subject: Subject) -> Evidence:
    kept = [
        subject.place(row)
        for row in subject.copies()
        if not int(subject.shard.found.reasons[row]) & Reason.DUPLICATE.bit
    ]
    return {"kept": ", ".join(kept), "copies": [subject.place(row) for row in subject.copies()]}


def _logits(subject: Subject) -> Evidence:
    logits = subject.cell("behavior_logits") or []
    faults = [f"{x} at {k}" for k, x in enumerate(logits) if x is None or math.isnan(x)]
    faults += [f"inf at {k}" for k, x in enumerate(logits) if x == math.inf]
    faults += ["no elements"] * (not logits)
    faults += ["all -inf"] * bool(logits and all(x == -math.inf for x in logits))
    found = subject.cells("behavior_logits", *MIXTURE)
    target = subject.cell("target_logits")
    if target is not None and len(target) != len(logits):
        faults.append(f"{len(logits)} of them, {len(target)} target_logits")
    return {**found, "faults": faults} if faults else found


def _unreconciled(subject: Subject) -> Evidence:
    """Return the recorded and the rebuilt log-prob, and the actions it was rebuilt over."""
    row = subject.shard.rows[subject.row : subject.row + 1]
    rebuilt = float(rebuild_log_probs(row, subject.plan.settings)[0])
    action, listed = int(row["action"][0]), subject.cell("behavior_logits")
    mixture = {name: subject.cell(name) for name in MIXTURE}
    given = [
        1.0 if mixture[MIXTURE[0]] is None else mixture[MIXTURE[0]],
        mixture[MIXTURE[1]] or 0.0,
    ]
    allowed = subject.cell(MASKS[0]) or [True] * len(listed)
    legal = [
        k
        for k, (x, is_legal) in enumerate(zip(listed, allowed, strict=True))
        if is_legal and x > -math.inf
    ]
    recorded = float(row["behavior_log_prob"][0])
    return {
        "behavior_log_prob": recorded,
        "rebuilt log mu": rebuilt,
        "difference": abs(recorded - rebuilt),
        "action": action,
        "actions in L": legal,
        **subject.cells("behavior_logits", MASKS[0]),
        "temperature": given[0],
        "epsilon": given[1],
    }


def _masks(subject: Subject) -> Evidence:
    found = subject.cells(*MASKS)
    lists = subject.cells(*MASKS, *LOGITS)
    found["lengths"] = {name: len(cell) for name, cell in lists.items() if cell is not None}
    return found


def _mismatch(subject: Subject) -> Evidence:
    found = subject.cells(*MASKS)
    one, other = (found[name] for name in MASKS)
    if one is not None and other is not None:
        pairs = enumerate(zip(one, other, strict=False))
        found["differ at actions"] = [k for k, (b, t) in pairs if b is not t]
    return found


def _action(subject: Subject) -> Evidence:
    lists = subject.cells(*MASKS, *LOGITS)
    lengths = {name: len(cell) for name, cell in lists.items() if cell is not None}
    return {"action": subject.cell("action"), "lengths": lengths}


def _masked(subject: Subject) -> Evidence:
    masks = {name: mask for name, mask in subject.cells(*MASKS).items() if mask is not None}
    allowed = {f"{name} allows": [k for k, x in enumerate(m) if x] for name, m in masks.items()}
    return {"action": subject.cell("action"), **allowed}


def _versions(subject: Subject) -> Evidence:
    expect: Mapping[str, tuple[str, ...]] = subject.plan.settings.expect
    cells = subject.cells(*expect)
    return {name: cell for name, cell in cells.items() if str(cell) not in expect[name]}


def _lag(subject: Subject) -> Evidence:
    learner, version = subject.plan.settings.learner_version, subject.cell("policy_version")
    lag = None if learner is None else learner - version
    return {"policy_version": version, "learner_version": learner, "lag": lag}


def _bootstrap(subject: Subject) -> Evidence:
    """Return where V(s_{t+1}) was looked for."""
    looked = []
    if subject.cell("truncated") == 1:
        looked.append("not the next row, which belongs to another episode after a truncation")
    else:
        step, after = subject.cell("step") + 1, subject.copies(step_after=1)
        looked += [_why_no_value(subject, row) for row in after]
        looked += [] if after else [f"a row of step {step}: none was received"]
    if "bootstrap_value" in subject.shard.rows.columns:
        looked.append(f"bootstrap_value of this row: {subject.cell('bootstrap_value')}")
    else:
        looked.append("bootstrap_value: not mapped")
    return {**subject.cells("terminated", "truncated"), "looked for": looked}


def _why_no_value(subject: Subject, row: int) -> str:
    """Return why a copy of the next step does not give its value."""
    differs = [
        f"{name} {subject.cell(name, row)}, here {subject.cell(name)}"
        for name in lineage_columns(subject.plan.shape)
        if subject.cell(name, row) != subject.cell(name)
    ]
    why = differs or subject.reasons(row)
    return f"step {subject.cell('step', row)} at {subject.place(row)}: {', '.join(why)}"


def _not_finite(subject: Subject) -> Evidence:
    segments, results = subject.shard.segments, subject.shard.results
    place = np.flatnonzero(segments.rows == subject.row)
    if results is None or not len(place):
        return {}
    dtype = subject.plan.settings.dtype
    return {
        "value_target": float(results.value_target[place[0]]),
        "advantage": float(results.advantage[place[0]]),
        f"greatest {dtype}": float(np.finfo(dtype).max),
    }


EVIDENCE: dict[Reason, Callable[[Subject], Evidence]] = {
    Reason.VALID_MISSING: _logged("valid"),
    Reason.KEY_MISSING: _logged("trajectory_id", "step"),
    Reason.KEY_CONFLICT: _conflict,
    Reason.DUPLICATE: _duplicate,
    Reason.FLAG_MISSING: _logged("terminated", "truncated"),
    Reason.FLAG_CONTRADICTION: _logged("terminated", "truncated"),
    Reason.BEHAVIOR_LOG_PROB_MISSING: _logged("behavior_log_prob"),
    Reason.BEHAVIOR_LOG_PROB_NAN: _logged("behavior_log_prob"),
    Reason.BEHAVIOR_LOG_PROB_INFINITE: _logged("behavior_log_prob"),
    Reason.BEHAVIOR_LOG_PROB_POSITIVE: _logged("behavior_log_prob"),
    Reason.BEHAVIOR_LOGITS_MALFORMED: _logits,
    Reason.BEHAVIOR_LOG_PROB_UNRECONCILED: _unreconciled,
    Reason.TARGET_LOG_PROB_INVALID: _logged("target_log_prob"),
    Reason.MASK_MALFORMED: _masks,
    Reason.MASK_MISMATCH: _mismatch,
    Reason.ACTION_OUT_OF_RANGE: _action,
    Reason.ACTION_MASKED: _masked,
    Reason.REWARD_NOT_FINITE: _logged("reward"),
    Reason.VALUE_NOT_FINITE: _logged("value"),
    Reason.DISCOUNT_OUT_OF_RANGE: _logged("discount"),
    Reason.VERSION_MISMATCH: _versions,
    Reason.POLICY_TOO_STALE: _lag,
    Reason.POLICY_VERSION_IN_FUTURE: _lag,
    Reason.BOOTSTRAP_MISSING: _bootstrap,
    Reason.TARGET_NOT_FINITE: _not_finite,
    Reason.WINDOW_MALFORMED: _logged("trajectory_id", "unroll_id"),
}
