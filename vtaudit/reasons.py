"""The registries of verdicts: reasons, warnings, boundaries and bootstrap sources.

The stored strings are public. They are never renumbered, renamed or reused; members stand in the
order of the contract, which is the order of `reasons` in the rejects table.
"""

from __future__ import annotations

from enum import Enum


class Reason(Enum):
    """Why a row is rejected: what is wrong with it, where it is found, and what to do."""

    def __init__(self, code: str, stage: str, text: str, advice: str) -> None:
        self.code = code
        self.stage = stage
        self.text = text
        self.advice = advice

    VALID_MISSING = (
        "valid_missing",
        "validation",
        "valid is null though the file has the column, or neither 0 nor 1",
        "log true for transitions and false for padding",
    )
    KEY_MISSING = (
        "key_missing",
        "validation",
        "trajectory_id or step is null, or step is negative",
        "log both keys on every row; step counts from 0",
    )
    KEY_CONFLICT = (
        "key_conflict",
        "ledger",
        "another row has the same (trajectory_id, step) and a different payload",
        "two streams share an id, or a row was changed; make ids unique, as with key(actor_id,...)",
    )
    DUPLICATE = (
        "duplicate",
        "ledger",
        "another row has the same (trajectory_id, step) and an equal payload, and is kept",
        "nothing, if retries are expected; the first sound copy is used",
    )
    FLAG_MISSING = (
        "flag_missing",
        "validation",
        "terminated or truncated is null, or neither 0 nor 1",
        "log both end-of-episode flags on every row",
    )
    FLAG_CONTRADICTION = (
        "flag_contradiction",
        "validation",
        "terminated and truncated are both true (with --strict-flags)",
        "log one of them, or drop --strict-flags: then terminated wins",
    )
    BEHAVIOR_LOG_PROB_MISSING = (
        "behavior_log_prob_missing",
        "validation",
        "behavior_log_prob is null",
        "log the log-prob of every sampled action when it is sampled",
    )
    BEHAVIOR_LOG_PROB_NAN = (
        "behavior_log_prob_nan",
        "validation",
        "behavior_log_prob is NaN",
        "look for log(negative) or for inf - inf in the actor",
    )
    BEHAVIOR_LOG_PROB_INFINITE = (
        "behavior_log_prob_infinite",
        "validation",
        "behavior_log_prob is infinite; an action that was taken cannot have probability 0",
        "log it from log-softmax, not as the log of a rounded probability",
    )
    BEHAVIOR_LOG_PROB_POSITIVE = (
        "behavior_log_prob_positive",
        "validation",
        "behavior_log_prob of a discrete action is finite and above log_prob_tolerance",
        "look for a negated log-prob or a probability; map it with neg(...) or log(...)",
    )
    BEHAVIOR_LOGITS_MALFORMED = (
        "behavior_logits_malformed",
        "validation",
        "behavior_logits are empty, hold null, NaN or +inf, are all -inf, differ in length from "
        "target_logits, or their temperature or epsilon is out of range",
        "log the logits that the actor sampled from",
    )
    BEHAVIOR_LOG_PROB_UNRECONCILED = (
        "behavior_log_prob_unreconciled",
        "validation",
        "behavior_log_prob differs from the one rebuilt from behavior_logits by more than "
        "reconcile_tolerance",
        "log the log-prob after mask, temperature and mixture, or log those too",
    )
    TARGET_LOG_PROB_INVALID = (
        "target_log_prob_invalid",
        "validation",
        "target_log_prob is null, NaN, +inf, or of a discrete action and above log_prob_tolerance",
        "score every row with the learner; -inf is legal",
    )
    MASK_MALFORMED = (
        "mask_malformed",
        "validation",
        "an action mask is empty, all false, holds a null, or differs in length from the other "
        "mask or from the logits",
        "log one boolean per action, at least one of them true",
    )
    MASK_MISMATCH = (
        "mask_mismatch",
        "validation",
        "the behavior and the target mask differ, or one of them is null",
        "score with the mask that the actor saw, or use --mask-policy subset",
    )
    ACTION_OUT_OF_RANGE = (
        "action_out_of_range",
        "validation",
        "the action is null or not an index of the masks and logits given",
        "log actions as indices from 0",
    )
    ACTION_MASKED = (
        "action_masked",
        "validation",
        "a mask forbids the action that was taken",
        "log the mask of the state in which the action was taken",
    )
    REWARD_NOT_FINITE = (
        "reward_not_finite",
        "validation",
        "reward is null, NaN or infinite",
        "log a finite reward on every row",
    )
    VALUE_NOT_FINITE = (
        "value_not_finite",
        "validation",
        "value is null, NaN or infinite",
        "score every row with the learner",
    )
    DISCOUNT_OUT_OF_RANGE = (
        "discount_out_of_range",
        "validation",
        "discount is null though the file has the column, NaN, below 0 or above 1",
        "log a discount in [0, 1], or leave the column out",
    )
    VERSION_MISMATCH = (
        "version_mismatch",
        "validation",
        "a lineage column holds a value that --expect does not list",
        "widen --expect, or keep such rows out of training",
    )
    POLICY_TOO_STALE = (
        "policy_too_stale",
        "validation",
        "learner_version - policy_version is above max_policy_lag",
        "raise --max-policy-lag, or collect fresher data",
    )
    POLICY_VERSION_IN_FUTURE = (
        "policy_version_in_future",
        "validation",
        "policy_version is above learner_version",
        "check --learner-version",
    )
    BOOTSTRAP_MISSING = (
        "bootstrap_missing",
        "segments",
        "the row ends a segment and V(s_{t+1}) is nowhere to be found",
        "log bootstrap_value at truncations and window edges, or give it with --scores",
    )
    TARGET_NOT_FINITE = (
        "target_not_finite",
        "kernels",
        "value_target or advantage is not finite in the output type",
        "look for huge rewards or values; try --dtype float64",
    )
    WINDOW_MALFORMED = (
        "window_malformed",
        "sources",
        "nested input: list columns of one window differ in length",
        "log one element per step in every list column",
    )

    @property
    def bit(self) -> int:
        """The reason's bit in a row's reason set."""
        return 1 << _POSITION[self]


_POSITION = {reason: position for position, reason in enumerate(Reason)}


class Warn(Enum):
    """What deserves a look and does not reject a row: code, text."""

    def __init__(self, code: str, text: str) -> None:
        self.code = code
        self.text = text

    ENDS_BOTH = ("ends_both", "terminated and truncated are both true; terminated wins")
    LOG_PROB_ROUNDED = (
        "log_prob_rounded",
        "a discrete log-prob in (0, log_prob_tolerance] counts as 0",
    )
    NOT_REBUILT = (
        "not_rebuilt",
        "behavior_logits are sound, but the log-prob could not be rebuilt from them",
    )
    POLICY_VERSION_MISSING = (
        "policy_version_missing",
        "policy_version is null, so its lag is unknown",
    )
    BOOTSTRAP_ZERO = ("bootstrap_zero", "the bootstrap of a truncated row is exactly 0")
    SCORE_MISSING = ("score_missing", "received rows whose key the scores do not hold")
    SCORE_SURPLUS = ("score_surplus", "keys of the scores that no received row has")
    LATER_CONFLICT = (
        "later_conflict",
        "(a store) the payload differs from that of a row accepted with an earlier batch, "
        "which stays",
    )
    EDGE_BEFORE_SUCCESSOR = (
        "edge_before_successor",
        "(a store) the row before it took a logged bootstrap with an earlier batch, before this "
        "successor came",
    )
    KEYS_FORGOTTEN = (
        "keys_forgotten",
        "(a store) keys that --forget-after dropped, whose copies can no longer be told",
    )

    @property
    def bit(self) -> int:
        """The warning's bit in a row's warning set."""
        return 1 << list(Warn).index(self)


class Boundary(Enum):
    """What stands between a row and the next one; every boundary but INTERIOR cuts the trace."""

    INTERIOR = "interior"
    TERMINATED = "terminated"
    ZERO_DISCOUNT = "zero_discount"
    TRUNCATED = "truncated"
    WINDOW_EDGE = "window_edge"
    GAP = "gap"


class BootstrapSource(Enum):
    """Where V(s_{t+1}) came from; NONE for interior, terminated and zero_discount rows."""

    NONE = "none"
    NEXT_ROW = "next_row"
    POLICY = "policy"
    LOGGED = "logged"


BOUNDARIES = tuple(member.value for member in Boundary)
BOOTSTRAP_SOURCES = tuple(member.value for member in BootstrapSource)
