"""What every rule accepts, as the settings of a run have it."""

from __future__ import annotations

from vtaudit.config import Settings
from vtaudit.reasons import Reason

# settings stand in braces
ACCEPTED = {
    Reason.VALID_MISSING: "true or 1 for a transition, false or 0 for padding",
    Reason.KEY_MISSING: "a trajectory_id that is not null, a step of 0 or more",
    Reason.KEY_CONFLICT: "copies of one payload",
    Reason.DUPLICATE: "one copy of a key: the first without another reason, else the first",
    Reason.FLAG_MISSING: "0 or 1 for terminated and for truncated",
    Reason.FLAG_CONTRADICTION: "at most one flag true, or no --strict-flags",
    Reason.BEHAVIOR_LOG_PROB_MISSING: "a finite log-prob",
    Reason.BEHAVIOR_LOG_PROB_NAN: "a finite log-prob",
    Reason.BEHAVIOR_LOG_PROB_INFINITE: "a finite log-prob",
    Reason.BEHAVIOR_LOG_PROB_POSITIVE: "at most log_prob_tolerance, {log_prob_tolerance}",
    Reason.BEHAVIOR_LOGITS_MALFORMED: (
        "one logit per action, none null, NaN or +inf, not all -inf; temperature finite and >= 0; "
        "epsilon from 0 to 1"
    ),
    Reason.BEHAVIOR_LOG_PROB_UNRECONCILED: (
        "a difference of at most reconcile_tolerance, {reconcile_tolerance}"
    ),
    Reason.TARGET_LOG_PROB_INVALID: (
        "-inf or a finite number; at most log_prob_tolerance, {log_prob_tolerance}, if discrete"
    ),
    Reason.MASK_MALFORMED: (
        "one boolean per action, none null, at least one true, of the length of the other lists"
    ),
    Reason.MASK_MISMATCH: (
        "with mask_policy equal both null or equal everywhere, with subset a target mask that "
        "allows nothing the behavior mask forbids; this run: {mask_policy}"
    ),
    Reason.ACTION_OUT_OF_RANGE: "a whole number >= 0 and below the length of every list given",
    Reason.ACTION_MASKED: "an action that every mask given allows",
    Reason.REWARD_NOT_FINITE: "a finite number",
    Reason.VALUE_NOT_FINITE: "a finite number",
    Reason.DISCOUNT_OUT_OF_RANGE: "a number from 0 to 1; null only if the file lacks the column",
    Reason.VERSION_MISMATCH: "{expect}",
    Reason.POLICY_TOO_STALE: "a lag of at most max_policy_lag, {max_policy_lag}",
    Reason.POLICY_VERSION_IN_FUTURE: "at most learner_version, {learner_version}",
    Reason.BOOTSTRAP_MISSING: (
        "a finite bootstrap_value, or, if not truncated, the next step of the same actor and "
        "versions with a finite value"
    ),
    Reason.TARGET_NOT_FINITE: "value_target and advantage that are finite in {dtype}",
    Reason.WINDOW_MALFORMED: "one element per step in every list column of the window",
}


def tell_accepted(reason: Reason, settings: Settings) -> str:
    """Return what would have been accepted under these settings."""
    values = settings.as_json()
    values["expect"] = "; ".join(f"{k}: {' or '.join(v)}" for k, v in settings.expect.items())
    return ACCEPTED[reason].format(**values)
