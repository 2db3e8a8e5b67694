"""A slow, literal reading of the data contract, to check fast implementations against.

Plain Python over lists of dicts. Every rule is one small function whose docstring quotes the
contract. Comments that begin with "Decided:" mark where the contract leaves a choice.
"""

import math
import re
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Value = Any
Key = tuple[Value, Value]
Place = tuple[str, int]

LINEAGE = ("actor_id", "env_version", "reward_version", "mask_version")
PAYLOAD = (
    "action",
    "behavior_log_prob",
    "reward",
    "terminated",
    "truncated",
    "discount",
    "behavior_action_mask",
    "behavior_logits",
    "behavior_temperature",
    "behavior_epsilon",
    "policy_version",
    "env_version",
    "reward_version",
    "mask_version",
)
MASKS = ("behavior_action_mask", "target_action_mask")
LOGITS = ("behavior_logits", "target_logits")
WARNINGS = (
    "log_prob_rounded",
    "not_rebuilt",
    "ends_both",
    "bootstrap_zero",
    "policy_version_missing",
)
BOUNDARIES = ("terminated", "zero_discount", "truncated", "interior", "window_edge", "gap")
SOURCES = ("none", "next_row", "policy", "logged")
CLIPS = ("rho", "c", "pg_rho")


@dataclass
class LogFile:
    """One file of the log, under canonical column names."""

    columns: list[str]
    rows: list[dict[str, Value]]


@dataclass
class OracleRow:
    """The fate of one row; numbers are None where the row is not accepted."""

    status: str
    trajectory_id: Value
    unroll_id: Value
    step: int | None
    reasons: list[str] = field(default_factory=list)
    warnings: set[str] = field(default_factory=set)
    boundary: str | None = None
    bootstrap_source: str | None = None
    next_value: float | None = None
    log_ratio: float | None = None
    discount: float | None = None
    rho: float | None = None
    c: float | None = None
    pg_rho: float | None = None
    value_target: float | None = None
    advantage: float | None = None
    trace_length: float | None = None


@dataclass
class OracleResult:
    """Every row's fate by (source_file, source_row), and the counts of the audit table."""

    rows: dict[Place, OracleRow]
    counts: dict[tuple[str, str | None], int]


@dataclass
class Settings:
    """What `audit_log` accepts; math.inf as a clip means none."""

    gamma: float = 0.99
    rho_bar: float = 1.0
    c_bar: float = 1.0
    pg_rho_bar: float = 1.0
    lambda_: float = 1.0
    windows: str = "delivered"
    step_from: str = "column"
    end_of_trajectory: str | None = None
    action_space: str = "auto"
    mask_policy: str = "equal"
    strict_flags: bool = False
    log_prob_tolerance: float = 1e-3
    reconcile_tolerance: float = 1e-3
    expect: dict[str, list[str]] = field(default_factory=dict)
    learner_version: int | None = None
    max_policy_lag: int | None = None
    dtype: str = "float32"
    targets: bool = True


@dataclass(eq=False)
class Row:
    """One row while it is judged."""

    source_file: str
    source_row: int
    columns: frozenset[str]
    data: dict[str, Value]
    step: int | None = None
    reasons: set[str] = field(default_factory=set)
    warnings: set[str] = field(default_factory=set)
    boundary: str | None = None
    bootstrap_source: str | None = None
    next_value: float | None = None
    successor: "Row | None" = None

    def get(self, name: str) -> Value:
        """A column that a file lacks is absent for its rows."""
        return self.data.get(name) if name in self.columns else None

    def null_though_present(self, name: str) -> bool:
        """Null though the file has the column."""
        return name in self.columns and self.get(name) is None


@dataclass
class Log:
    """The received rows in file order, and what the whole log settles."""

    settings: Settings
    mapped: frozenset[str]
    discrete: bool
    rows: list[Row] = field(default_factory=list)
    copies: dict[Key, list[Row]] = field(default_factory=dict)
    greatest_step: dict[Value, int] = field(default_factory=dict)


def natural_key(name: str) -> tuple[list[Value], bytes]:
    """By file path in natural order (w_2 before w_10; then by bytes)."""
    # Decided: the whole path is one string; "/" is an ordinary byte, digits are ASCII digits.
    parts = re.split(r"([0-9]+)", name)
    runs: list[Value] = [int(p) if i % 2 else p.encode() for i, p in enumerate(parts)]
    return runs, name.encode()


def is_discrete(files: dict[str, LogFile], action_space: str) -> bool:
    """Integer = discrete, float = continuous; absent = discrete; an action that is a float
    anywhere is continuous; `--action-space` overrides."""
    if action_space != "auto":
        return action_space == "discrete"
    for file in files.values():
        for data in file.rows:
            if "action" in file.columns and isinstance(data.get("action"), float | list):
                return False
    return True


def same_value(a: Value, b: Value) -> bool:
    """Equal as float64 values, NaN = NaN, -0.0 = 0.0, null = null."""
    if a is None or b is None:
        return a is None and b is None
    if isinstance(a, list) or isinstance(b, list):
        if not (isinstance(a, list) and isinstance(b, list)) or len(a) != len(b):
            return False
        return all(same_value(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, str) or isinstance(b, str):
        return isinstance(a, str) and isinstance(b, str) and a == b
    x, y = float(a), float(b)
    return x == y or (math.isnan(x) and math.isnan(y))


def same_content(a: LogFile, b: LogFile) -> bool:
    """A file whose content equals an earlier file's: its rows and its columns."""
    # Decided: column order is no content, and values compare as in the payload (NaN = NaN).
    if set(a.columns) != set(b.columns) or len(a.rows) != len(b.rows):
        return False
    return all(
        same_value(x.get(name), y.get(name))
        for x, y in zip(a.rows, b.rows, strict=True)
        for name in a.columns
    )


def is_padding(row: Row) -> bool:
    """valid false: padding, not a transition; never received."""
    valid = row.get("valid")
    return valid is not None and not valid


def steps_from_order(
    files: dict[str, LogFile], names: list[str], rows: dict[str, list[Row]]
) -> None:
    """A step is the row's place in its trajectory (files in natural order)."""
    # Decided: the rows of a repeated file take no new places, so the files after it go on
    # where the first copy left off. A file without rows repeats nothing.
    place: Counter[Value] = Counter()
    for n, name in enumerate(names):
        earlier = next((e for e in names[:n] if same_content(files[e], files[name])), None)
        for i, row in enumerate(rows[name]):
            if is_padding(row) or row.get("trajectory_id") is None:
                continue
            if earlier is not None:
                row.step = rows[earlier][i].step
            else:
                row.step = place[row.get("trajectory_id")]
                place[row.get("trajectory_id")] += 1


def read_rows(files: dict[str, LogFile], settings: Settings) -> list[Row]:
    """Every row, padding too, in file order, with its step."""
    names = sorted(files, key=natural_key)
    rows = {
        name: [
            Row(name, i, frozenset(files[name].columns), data)
            for i, data in enumerate(files[name].rows)
        ]
        for name in names
    }
    if settings.step_from == "order":
        steps_from_order(files, names, rows)
    else:
        for row in (row for name in names for row in rows[name]):
            row.step = row.get("step")
    return [row for name in names for row in rows[name]]


def make_log(files: dict[str, LogFile], settings: Settings, received: list[Row]) -> Log:
    """The received rows, the copies of every key and the last step of every trajectory."""
    mapped = frozenset(name for file in files.values() for name in file.columns)
    has_flags = bool(mapped & {"terminated", "truncated"})
    # Decided: both or neither of flags and end_of_trajectory is wrong usage.
    if has_flags == (settings.end_of_trajectory is not None):
        raise ValueError("end_of_trajectory is for a log with neither terminated nor truncated")
    log = Log(settings, mapped, is_discrete(files, settings.action_space), received)
    for row in received:
        if not key_missing(log, row):
            log.copies.setdefault(key_of(row), []).append(row)
            trajectory, step = key_of(row)
            log.greatest_step[trajectory] = max(step, log.greatest_step.get(trajectory, step))
    return log


def key_of(row: Row) -> Key:
    """(trajectory_id, step)."""
    return row.get("trajectory_id"), row.step


def window_of(log: Log, row: Row) -> tuple[Value, ...]:
    """A window is (trajectory_id, unroll_id); rows with a null unroll_id form one.
    `--windows stitched` ignores unroll_id."""
    if log.settings.windows == "stitched":
        return (row.get("trajectory_id"),)
    return row.get("trajectory_id"), row.get("unroll_id")


def lineage_of(log: Log, row: Row) -> tuple[Value, ...]:
    """actor_id, env_version, reward_version and mask_version, as far as mapped."""
    return tuple(row.get(name) for name in LINEAGE if name in log.mapped)


def flag(log: Log, row: Row, name: str) -> Value:
    """terminated or truncated as given; where the log has neither, the row of the greatest
    step of each trajectory ends it so."""
    if log.settings.end_of_trajectory is not None:
        if name != log.settings.end_of_trajectory or key_missing(log, row):
            return False
        trajectory, step = key_of(row)
        return bool(step == log.greatest_step[trajectory])
    # Decided: of a log with one of the two flags, the other is false everywhere.
    return row.get(name) if name in log.mapped else False


def is_set(log: Log, row: Row, name: str) -> bool:
    """The flag is given and true."""
    value = flag(log, row, name)
    return value is not None and value == 1


def discount_of(log: Log, row: Row) -> float:
    """gamma_t = gamma x discount_t; a column that a file lacks: discount 1."""
    given = row.get("discount")
    return float(log.settings.gamma * (1.0 if given is None else given))


def temperature_of(row: Row) -> float:
    """Default 1."""
    given = row.get("behavior_temperature")
    return 1.0 if given is None else float(given)


def epsilon_of(row: Row) -> float:
    """Default 0."""
    given = row.get("behavior_epsilon")
    return 0.0 if given is None else float(given)


def given_lists(row: Row, names: tuple[str, ...]) -> list[list[Value]]:
    """Those of the named list columns that are not null."""
    return [row.get(name) for name in names if row.get(name) is not None]


def action_index(row: Row) -> int | None:
    """A float action must be integral to be an index."""
    action = row.get("action")
    if action is None or isinstance(action, list):
        return None
    if isinstance(action, float):
        return int(action) if action.is_integer() else None
    return int(action)


def is_index(action: int | None, of: list[Value]) -> bool:
    """The action is an index of the list."""
    return action is not None and 0 <= action < len(of)


def counted_log_prob(log: Log, value: float) -> float:
    """A discrete log-prob in (0, tolerance] counts as 0."""
    return 0.0 if is_rounded(log, value) else value


def is_rounded(log: Log, value: float | None) -> bool:
    """A discrete log-prob in (0, tolerance]."""
    return log.discrete and value is not None and 0.0 < value <= log.settings.log_prob_tolerance


def finite(value: Value) -> bool:
    """Neither null nor NaN nor infinite."""
    return value is not None and math.isfinite(value)


def valid_missing(_log: Log, row: Row) -> bool:
    """valid null though the file has the column."""
    return row.null_though_present("valid")


def key_missing(_log: Log, row: Row) -> bool:
    """trajectory_id or step null, or step < 0."""
    return row.get("trajectory_id") is None or row.step is None or row.step < 0


def flag_missing(log: Log, row: Row) -> bool:
    """terminated or truncated null, or not 0/1."""
    flags = (flag(log, row, "terminated"), flag(log, row, "truncated"))
    return any(value is None or value not in (0, 1) for value in flags)


def ends_both(log: Log, row: Row) -> bool:
    """Both true."""
    return is_set(log, row, "terminated") and is_set(log, row, "truncated")


def flag_contradiction(log: Log, row: Row) -> bool:
    """Both true, with `--strict-flags` only."""
    return log.settings.strict_flags and ends_both(log, row)


def behavior_log_prob_missing(_log: Log, row: Row) -> bool:
    """Null."""
    return row.get("behavior_log_prob") is None


def behavior_log_prob_nan(_log: Log, row: Row) -> bool:
    """NaN."""
    value = row.get("behavior_log_prob")
    return value is not None and math.isnan(value)


def behavior_log_prob_infinite(_log: Log, row: Row) -> bool:
    """+inf or -inf."""
    value = row.get("behavior_log_prob")
    return value is not None and math.isinf(value)


def behavior_log_prob_positive(log: Log, row: Row) -> bool:
    """Finite and > log_prob_tolerance, discrete actions only."""
    value = row.get("behavior_log_prob")
    return log.discrete and finite(value) and value > log.settings.log_prob_tolerance


def behavior_logits_malformed(log: Log, row: Row) -> bool:
    """behavior_logits given (not null), and any of: empty; holding null, NaN or +inf; all
    -inf; of another length than target_logits; temperature NaN, infinite or negative;
    epsilon NaN or outside [0, 1]."""
    logits, other = row.get("behavior_logits"), row.get("target_logits")
    if not log.discrete or logits is None:
        return False
    temperature, epsilon = temperature_of(row), epsilon_of(row)
    return (
        len(logits) == 0
        or any(x is None or math.isnan(x) or x == math.inf for x in logits)
        or all(x == -math.inf for x in logits)
        or (other is not None and len(other) != len(logits))
        or not math.isfinite(temperature)
        or temperature < 0
        or not 0.0 <= epsilon <= 1.0
    )


def is_rebuildable(log: Log, row: Row) -> bool:
    """The recorded value is finite, and there are sound behavior_logits."""
    # Decided: a row whose recorded value is not finite is not counted as not_rebuilt either.
    return (
        log.discrete
        and finite(row.get("behavior_log_prob"))
        and row.get("behavior_logits") is not None
        and not behavior_logits_malformed(log, row)
    )


def is_rebuild_barred(log: Log, row: Row) -> bool:
    """Temperature 0, action null or out of range or forbidden by the behavior mask, a row
    with mask_malformed."""
    # Decided: a log without an action column has a null action on every row.
    action, mask = action_index(row), row.get("behavior_action_mask")
    return (
        temperature_of(row) == 0.0
        or not all(is_index(action, of) for of in given_lists(row, MASKS + LOGITS))
        or mask_malformed(log, row)
        or (action is not None and mask is not None and mask[action] is False)
    )


def rebuilt_log_prob(row: Row, action: int) -> float:
    """log((1 - epsilon) softmax(logits / temperature over L)[a] + epsilon / size of L), L =
    actions that the behavior mask allows (no mask: all) and whose logit is > -inf; an action
    outside L has mu = 0."""
    logits, mask = row.get("behavior_logits"), row.get(MASKS[0])
    epsilon, temperature = epsilon_of(row), temperature_of(row)
    legal = [i for i, x in enumerate(logits) if x > -math.inf and (mask is None or mask[i])]
    if action not in legal:
        return -math.inf
    top = max(logits[i] for i in legal)
    scaled = {i: (logits[i] - top) / temperature for i in legal}
    log_softmax = scaled[action] - math.log(math.fsum(math.exp(x) for x in scaled.values()))
    parts = []
    if epsilon < 1.0:
        parts.append(math.log1p(-epsilon) + log_softmax)
    if epsilon > 0.0:
        parts.append(math.log(epsilon) - math.log(len(legal)))
    high: float = max(parts)
    return high + math.log(math.fsum(math.exp(x - high) for x in parts))


def behavior_log_prob_unreconciled(log: Log, row: Row) -> bool:
    """The recorded value is finite and differs by more than reconcile_tolerance from log mu
    rebuilt, in log space, from sound behavior_logits."""
    action = action_index(row)
    if action is None or not is_rebuildable(log, row) or is_rebuild_barred(log, row):
        return False
    # Decided: "the recorded value" is the raw one, before (0, tolerance] counts as 0.
    difference = abs(row.get("behavior_log_prob") - rebuilt_log_prob(row, action))
    return bool(difference > log.settings.reconcile_tolerance)


def target_log_prob_invalid(log: Log, row: Row) -> bool:
    """Null, NaN, +inf, or > log_prob_tolerance for discrete actions."""
    if not log.settings.targets and "target_log_prob" not in log.mapped:
        return False
    value = row.get("target_log_prob")
    if value is None or math.isnan(value) or value == math.inf:
        return True
    return bool(log.discrete and value > log.settings.log_prob_tolerance)


def mask_malformed(log: Log, row: Row) -> bool:
    """A mask given that is empty, all false, holds a null, or differs in length from the
    other mask or from either logits list."""
    if not log.discrete:
        return False
    lengths = {len(of) for of in given_lists(row, MASKS + LOGITS)}
    return any(
        len(mask) == 0
        or all(x is False for x in mask)
        or any(x is None for x in mask)
        or any(length != len(mask) for length in lengths)
        for mask in given_lists(row, MASKS)
    )


def mask_mismatch(log: Log, row: Row) -> bool:
    """Both masks given, of one length, and different anywhere; or one given and the other
    null though its file has the column (a null element equals only a null)."""
    if not log.discrete:
        return False
    if log.settings.mask_policy == "subset":
        return mask_not_subset(row)
    behavior, target = row.get(MASKS[0]), row.get(MASKS[1])
    if behavior is not None and target is not None:
        return len(behavior) == len(target) and behavior != target
    if behavior is not None:
        return row.null_though_present(MASKS[1])
    return target is not None and row.null_though_present(MASKS[0])


def mask_not_subset(row: Row) -> bool:
    """The target allows somewhere what the behavior forbade; a null mask allows all, a null
    element neither allows nor forbids."""
    behavior, target = row.get(MASKS[0]), row.get(MASKS[1])
    if behavior is None:
        return False
    if target is None:
        # Decided: as under "equal", a file without the target column is not judged at all.
        return row.null_though_present(MASKS[1]) and any(b is False for b in behavior)
    # Decided: masks of different lengths are malformed and are not compared.
    return len(behavior) == len(target) and any(
        t is True and b is False for b, t in zip(behavior, target, strict=True)
    )


def action_out_of_range(log: Log, row: Row) -> bool:
    """A mask or behavior_logits given, and the action is null or not an index of each mask
    and each logits list given (judged only when an action column is mapped)."""
    if not log.discrete or "action" not in log.mapped:
        return False
    if not given_lists(row, (*MASKS, "behavior_logits")):
        return False
    action = action_index(row)
    return not all(is_index(action, of) for of in given_lists(row, MASKS + LOGITS))


def action_masked(log: Log, row: Row) -> bool:
    """Some mask given says false at the action."""
    if not log.discrete:
        return False
    action, masks = action_index(row), given_lists(row, MASKS)
    return action is not None and any(is_index(action, m) and m[action] is False for m in masks)


def reward_not_finite(_log: Log, row: Row) -> bool:
    """Null, NaN or infinite."""
    return not finite(row.get("reward"))


def value_not_finite(log: Log, row: Row) -> bool:
    """Null, NaN or infinite."""
    if not log.settings.targets and "value" not in log.mapped:
        return False
    return not finite(row.get("value"))


def discount_out_of_range(_log: Log, row: Row) -> bool:
    """Null though the file has the column, NaN, < 0 or > 1."""
    value = row.get("discount")
    if value is None:
        return row.null_though_present("discount")
    return not 0.0 <= value <= 1.0


def version_mismatch(log: Log, row: Row) -> bool:
    """`--expect env_version=3,4` (any lineage column), compared as text; null never matches."""
    # Decided: with several columns, one that does not match is enough.
    return any(
        row.get(name) is None or str(row.get(name)) not in allowed
        for name, allowed in log.settings.expect.items()
    )


def policy_lag(log: Log, row: Row) -> int | None:
    """M - policy_version."""
    version = row.get("policy_version")
    if log.settings.learner_version is None or version is None:
        return None
    return int(log.settings.learner_version - version)


def policy_too_stale(log: Log, row: Row) -> bool:
    """M - policy_version > `--max-policy-lag` (no default)."""
    lag, most = policy_lag(log, row), log.settings.max_policy_lag
    return lag is not None and most is not None and lag > most


def policy_version_in_future(log: Log, row: Row) -> bool:
    """M - policy_version < 0."""
    lag = policy_lag(log, row)
    return lag is not None and lag < 0


def found_elsewhere(_log: Log, _row: Row) -> bool:
    """Found by comparing copies, when segments are cut, from the numbers, or nested only."""
    return False


RULES: dict[str, Callable[[Log, Row], bool]] = {
    "valid_missing": valid_missing,
    "key_missing": key_missing,
    "key_conflict": found_elsewhere,
    "duplicate": found_elsewhere,
    "flag_missing": flag_missing,
    "flag_contradiction": flag_contradiction,
    "behavior_log_prob_missing": behavior_log_prob_missing,
    "behavior_log_prob_nan": behavior_log_prob_nan,
    "behavior_log_prob_infinite": behavior_log_prob_infinite,
    "behavior_log_prob_positive": behavior_log_prob_positive,
    "behavior_logits_malformed": behavior_logits_malformed,
    "behavior_log_prob_unreconciled": behavior_log_prob_unreconciled,
    "target_log_prob_invalid": target_log_prob_invalid,
    "mask_malformed": mask_malformed,
    "mask_mismatch": mask_mismatch,
    "action_out_of_range": action_out_of_range,
    "action_masked": action_masked,
    "reward_not_finite": reward_not_finite,
    "value_not_finite": value_not_finite,
    "discount_out_of_range": discount_out_of_range,
    "version_mismatch": version_mismatch,
    "policy_too_stale": policy_too_stale,
    "policy_version_in_future": policy_version_in_future,
    "bootstrap_missing": found_elsewhere,
    "target_not_finite": found_elsewhere,
    "window_malformed": found_elsewhere,
}
REASONS = tuple(RULES)


def row_warnings(log: Log, row: Row) -> set[str]:
    """The warnings that need the row alone."""
    # Decided: warnings count received rows, whether accepted or rejected.
    logged = (row.get("behavior_log_prob"), row.get("target_log_prob"))
    lagging = log.settings.learner_version is not None
    found = {
        "log_prob_rounded": any(is_rounded(log, value) for value in logged),
        "not_rebuilt": is_rebuildable(log, row) and is_rebuild_barred(log, row),
        # Decided: under strict_flags the row has the reason and not the warning too.
        "ends_both": not log.settings.strict_flags and ends_both(log, row),
        # Decided: a log without the column counts every row as missing.
        "policy_version_missing": lagging and row.get("policy_version") is None,
    }
    return {name for name, holds in found.items() if holds}


def same_payload(log: Log, a: Row, b: Row) -> bool:
    """Payload: as far as mapped; absent = null."""
    return all(same_value(a.get(name), b.get(name)) for name in PAYLOAD if name in log.mapped)


def judge_copies(log: Log) -> None:
    """key_conflict: different payload, every copy. duplicate: equal payload, every copy but
    one; kept is the first copy without another reason, else the first."""
    for copies in log.copies.values():
        if len(copies) < 2:
            continue
        if not all(same_payload(log, copies[0], other) for other in copies):
            for row in copies:
                row.reasons.add("key_conflict")
            continue
        kept = next((row for row in copies if not row.reasons), copies[0])
        for row in copies:
            if row is not kept:
                row.reasons.add("duplicate")


def successor_copies(log: Log, row: Row) -> list[Row]:
    """The successor of row t is the row step+1 of its trajectory with the same lineage."""
    trajectory, step = key_of(row)
    copies = log.copies.get((trajectory, step + 1), [])
    return [copy for copy in copies if lineage_of(log, copy) == lineage_of(log, row)]


def accepted_successor(log: Log, row: Row) -> Row | None:
    """The successor is accepted and in the same window."""
    for copy in successor_copies(log, row):
        if not copy.reasons and window_of(log, copy) == window_of(log, row):
            return copy
    return None


def successor_value(log: Log, row: Row) -> float | None:
    """The successor's value comes from the first copy of that lineage, in file order, without
    key_missing, key_conflict, value_not_finite and window_malformed."""
    barred = {"key_missing", "key_conflict", "value_not_finite", "window_malformed"}
    for copy in successor_copies(log, row):
        if not copy.reasons & barred:
            return float(copy.get("value"))
    return None


def is_window_edge(log: Log, row: Row) -> bool:
    """No row of a greater step in the window, accepted or not."""
    return not any(
        key_of(other)[1] > key_of(row)[1] and window_of(log, other) == window_of(log, row)
        for copies in log.copies.values()
        for other in copies
    )


def logged_bootstrap(row: Row) -> float | None:
    """A bootstrap that is null or not finite is none."""
    value = row.get("bootstrap_value")
    return float(value) if finite(value) else None


def cut(row: Row, boundary: str, candidates: dict[str, float | None]) -> None:
    """The first candidate value that exists; with none at all, bootstrap_missing."""
    row.boundary, row.successor = boundary, None
    for source, value in candidates.items():
        if value is not None:
            row.bootstrap_source, row.next_value = source, value
            return
    row.reasons.add("bootstrap_missing")


def judge_boundary(log: Log, row: Row) -> None:
    """For an accepted row t, first match."""
    if is_set(log, row, "terminated"):
        cut(row, "terminated", {"none": 0.0})
    elif discount_of(log, row) == 0.0:
        cut(row, "zero_discount", {"none": 0.0})
    elif is_set(log, row, "truncated"):
        cut(row, "truncated", {"logged": logged_bootstrap(row)})
    elif (successor := accepted_successor(log, row)) is not None:
        # Decided: "its value" is the accepted row's own, also where an earlier copy of it
        # (rejected, for example, for its target_log_prob) holds another value.
        cut(row, "interior", {"none": float(successor.get("value"))})
        row.successor = successor
    else:
        edge = "window_edge" if is_window_edge(log, row) else "gap"
        following = successor_value(log, row)
        cut(row, edge, {"next_row": following, "logged": logged_bootstrap(row)})


def judge_boundaries(log: Log) -> None:
    """With no bootstrap the row is rejected, and the row before it is judged again."""
    settled = False
    while not settled:
        accepted = [row for row in log.rows if not row.reasons]
        for row in accepted:
            judge_boundary(log, row)
        settled = not any(row.reasons for row in accepted)
    for row in log.rows:
        # Decided: counted for rows cut at a truncation, also where target_not_finite follows.
        if not row.reasons and row.boundary == "truncated" and row.next_value == 0.0:
            row.warnings.add("bootstrap_zero")


def rounded(value: float, dtype: str) -> float:
    """Rounded once to the output type."""
    if dtype == "float64":
        return value
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def log_ratio_of(log: Log, row: Row) -> float | None:
    """target_log_prob - behavior_log_prob, subtracted in float64, then rounded once."""
    target, behavior = row.get("target_log_prob"), row.get("behavior_log_prob")
    if target is None or behavior is None:
        return None
    difference = counted_log_prob(log, target) - counted_log_prob(log, behavior)
    return rounded(difference, log.settings.dtype)


def bar_of(log: Log, clip: str) -> float:
    """A clip of `none` is infinity."""
    bars = {
        "rho": log.settings.rho_bar,
        "c": log.settings.c_bar,
        "pg_rho": log.settings.pg_rho_bar,
    }
    return bars[clip]


def is_clipped(log_ratio: float, bar: float) -> bool:
    """log_ratio > log(bar), strictly."""
    return log_ratio > (math.log(bar) if bar > 0 else -math.inf)


def clipped_ratio(log: Log, row: Row, clip: str) -> float:
    """min(bar, ratio), clipped in log space."""
    log_ratio, bar = log_ratio_of(log, row), bar_of(log, clip)
    assert log_ratio is not None
    if is_clipped(log_ratio, bar):
        return bar
    try:
        return math.exp(log_ratio)
    except OverflowError:
        return math.inf


def trace_coefficient(log: Log, row: Row) -> float:
    """c_t = lambda * min(c_bar, ratio_t)."""
    if log.settings.lambda_ == 0.0:
        return 0.0
    return log.settings.lambda_ * clipped_ratio(log, row, "c")


def temporal_difference(log: Log, row: Row, next_value: float) -> float:
    """r_t + gamma_t Vnext_t - V_t."""
    return float(row.get("reward") + discount_of(log, row) * next_value - row.get("value"))


def delta(log: Log, row: Row) -> float:
    """delta_t = rho_t (r_t + gamma_t Vnext_t - V_t); nothing passes a factor of 0."""
    rho = clipped_ratio(log, row, "rho")
    assert row.next_value is not None
    return 0.0 if rho == 0.0 else rho * temporal_difference(log, row, row.next_value)


def reach(log: Log, row: Row) -> list[Row]:
    """The rows s >= t of the segment that no cut and no factor c = 0 keeps from row t."""
    rows = [row]
    while rows[-1].successor is not None and trace_coefficient(log, rows[-1]) != 0.0:
        rows.append(rows[-1].successor)
    return rows


def total(terms: list[float]) -> float:
    """The exact sum, rounded once; IEEE's answer where something is not finite."""
    try:
        return math.fsum(terms)
    except (OverflowError, ValueError):
        return sum(terms)


def exact_target(log: Log, row: Row) -> float:
    """V_t + sum over s >= t of (prod_{i=t}^{s-1} gamma_i c_i) delta_s."""
    terms, weight = [float(row.get("value"))], 1.0
    for s in reach(log, row):
        terms.append(weight * delta(log, s))
        weight *= discount_of(log, s) * trace_coefficient(log, s)
    return total(terms)


def exact_advantage(log: Log, row: Row) -> float:
    """pg_t (r_t + gamma_t vnext_t - V_t), vnext_t = value_target_{t+1} if interior, else
    Vnext_t."""
    pg_rho = clipped_ratio(log, row, "pg_rho")
    if pg_rho == 0.0:
        return 0.0
    following = row.next_value if row.successor is None else exact_target(log, row.successor)
    assert following is not None
    return pg_rho * temporal_difference(log, row, following)


def exact_trace_length(log: Log, row: Row) -> float:
    """1 + c_t (1 - d_t) trace_length_{t+1}, as a sum of products of c."""
    terms, weight = [], 1.0
    for s in reach(log, row):
        terms.append(weight)
        weight *= trace_coefficient(log, s)
    return total(terms)


def numbers_of(log: Log, row: Row) -> dict[str, float]:
    """Every stored number of an accepted row, rounded once."""
    assert row.next_value is not None
    exact = {
        "next_value": row.next_value,
        "discount": discount_of(log, row),
        "rho": clipped_ratio(log, row, "rho"),
        # Decided: the stored c is the c_t of the formulas, lambda included.
        "c": trace_coefficient(log, row),
        "pg_rho": clipped_ratio(log, row, "pg_rho"),
        "value_target": exact_target(log, row),
        "advantage": exact_advantage(log, row),
        "trace_length": exact_trace_length(log, row),
    }
    return {name: rounded(value, log.settings.dtype) for name, value in exact.items()}


def judge_numbers(log: Log) -> dict[Place, dict[str, float]]:
    """target_not_finite: value_target or advantage not finite in the output type; its
    neighbours are not cut again."""
    accepted = [row for row in log.rows if not row.reasons]
    numbers = {(row.source_file, row.source_row): numbers_of(log, row) for row in accepted}
    for row in accepted:
        own = numbers[row.source_file, row.source_row]
        if not (math.isfinite(own["value_target"]) and math.isfinite(own["advantage"])):
            row.reasons.add("target_not_finite")
    return numbers


def count_deliveries(received: list[Row]) -> tuple[int, int]:
    """Deliveries, and those of which every row is a duplicate. Within (source_file,
    trajectory_id, unroll_id) the k-th copy of a key belongs to the k-th delivery."""
    # Decided: the contract's "run of rows" is read so; key_missing rows belong to none.
    copies: Counter[tuple[Value, ...]] = Counter()
    deliveries: dict[tuple[Value, ...], list[Row]] = {}
    for row in received:
        if "key_missing" not in row.reasons:
            window = (row.source_file, row.get("trajectory_id"), row.get("unroll_id"))
            copies[*window, row.step] += 1
            deliveries.setdefault((*window, copies[*window, row.step]), []).append(row)
    repeated = [d for d in deliveries.values() if all("duplicate" in r.reasons for r in d)]
    return len(deliveries), len(repeated)


def primary_reason(row: Row) -> str:
    """The first in the table's order."""
    return min(row.reasons, key=REASONS.index)


def count_rows(log: Log, accepted: list[Row]) -> dict[tuple[str, str | None], int]:
    """The counts that hold a kind."""
    counts: dict[tuple[str, str | None], int] = {}
    rejected = [row for row in log.rows if row.reasons]
    for reason in REASONS:
        counts["rejected_any", reason] = sum(reason in row.reasons for row in rejected)
        counts["rejected_primary", reason] = sum(primary_reason(r) == reason for r in rejected)
    for name in WARNINGS:
        counts["warning", name] = sum(name in row.warnings for row in log.rows)
    for name in BOUNDARIES:
        counts["boundary", name] = sum(row.boundary == name for row in accepted)
    for name in SOURCES:
        counts["bootstrap", name] = sum(row.bootstrap_source == name for row in accepted)
    for measure, rows in (("clipped", accepted), ("clipped_received", log.rows)):
        ratios = ratios_of(log, rows)
        for clip in CLIPS:
            bar = bar_of(log, clip)
            counts[measure, clip] = sum(is_clipped(ratio, bar) for ratio in ratios)
    return counts


def ratios_of(log: Log, rows: list[Row]) -> list[float]:
    """Every log_ratio that is not null or NaN."""
    ratios = (log_ratio_of(log, row) for row in rows)
    return [ratio for ratio in ratios if ratio is not None and not math.isnan(ratio)]


def count_all(log: Log, padding: int) -> dict[tuple[str, str | None], int]:
    """Measures of the audit table, zeros too, without applied and pending."""
    accepted = [row for row in log.rows if not row.reasons]
    keyed = [row for row in log.rows if "key_missing" not in row.reasons]
    deliveries, repeated = count_deliveries(log.rows)
    return {
        ("padding", None): padding,
        ("received", None): len(log.rows),
        ("unique", None): len(log.copies),
        ("accepted", None): len(accepted),
        ("rejected", None): len(log.rows) - len(accepted),
        ("received_with_ratio", None): len(ratios_of(log, log.rows)),
        ("deliveries", None): deliveries,
        ("deliveries_duplicate", None): repeated,
        # Decided: `--windows stitched` does not change this count.
        ("windows", None): len({(r.get("trajectory_id"), r.get("unroll_id")) for r in keyed}),
        **count_rows(log, accepted),
    }


def result_row(log: Log, row: Row, numbers: dict[str, float] | None) -> OracleRow:
    """What is reported of a received row."""
    result = OracleRow(
        status="rejected" if row.reasons else "accepted",
        trajectory_id=row.get("trajectory_id"),
        unroll_id=row.get("unroll_id"),
        step=row.step,
        reasons=sorted(row.reasons, key=REASONS.index),
        warnings=row.warnings,
        log_ratio=log_ratio_of(log, row),
    )
    if not row.reasons and numbers is not None:
        result.boundary, result.bootstrap_source = row.boundary, row.bootstrap_source
        for name, value in numbers.items():
            setattr(result, name, value)
    return result


def audit_log(files: dict[str, LogFile], **settings: Any) -> OracleResult:
    """Judge every row of the log and compute the numbers of the accepted ones."""
    chosen = Settings(**settings)
    rows = read_rows(files, chosen)
    log = make_log(files, chosen, [row for row in rows if not is_padding(row)])
    for row in log.rows:
        row.reasons = {reason for reason, rule in RULES.items() if rule(log, row)}
        row.warnings = row_warnings(log, row)
    judge_copies(log)
    numbers: dict[Place, dict[str, float]] = {}
    # Decided: without targets no segment is cut, so there is no boundary and no bootstrap.
    if chosen.targets:
        judge_boundaries(log)
        numbers = judge_numbers(log)
    results: dict[Place, OracleRow] = {}
    for row in rows:
        place = (row.source_file, row.source_row)
        if is_padding(row):
            ids = row.get("trajectory_id"), row.get("unroll_id"), row.step
            results[place] = OracleRow("padding", *ids)
        else:
            results[place] = result_row(log, row, numbers.get(place))
    padding = len(rows) - len(log.rows)
    return OracleResult(results, count_all(log, padding))
