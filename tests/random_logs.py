"""Seeded random logs with every kind of fault, and a writer of them as Parquet."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from oracle import LogFile

Cells = dict[str, Any]

FILE_NAMES = (
    "w_2.parquet",
    "w_10.parquet",
    "w_1.parquet",
    "W_2.parquet",
    "w_02.parquet",
    "a/part-3.parquet",
    "a/part-12.parquet",
    "b/9/x.parquet",
    "b/10/x.parquet",
)
FLAGS = ("terminated", "truncated")
MASKS = ("behavior_action_mask", "target_action_mask")
LOGITS = ("behavior_logits", "target_logits")
INTEGERS = (
    "trajectory_id",
    "unroll_id",
    "step",
    "action",
    "policy_version",
    "actor_id",
    "env_version",
    "reward_version",
    "mask_version",
)
ESSENTIAL = (
    "trajectory_id",
    "step",
    "unroll_id",
    "reward",
    "terminated",
    "truncated",
    "behavior_log_prob",
    "target_log_prob",
    "value",
    "action",
    "behavior_action_mask",
    "behavior_temperature",
    "behavior_epsilon",
    "env_version",
    "mask_version",
)
OPTIONAL = (
    "bootstrap_value",
    "discount",
    "target_action_mask",
    "behavior_logits",
    "target_logits",
    "policy_version",
    "valid",
    "actor_id",
    "reward_version",
)


@dataclass(frozen=True)
class Profile:
    """How a kind of log differs from the others."""

    fault_rate: float = 0.12
    copy_rate: float = 0.05
    redelivery_rate: float = 0.06
    kinds: tuple[str, ...] = ("plain", "no_action", "discrete", "continuous")
    order: float = 0.12
    lacking: float = 0.5
    stay: float = 0.8


PROFILES = {
    "mixed": Profile(),
    "clean": Profile(fault_rate=0.0, copy_rate=0.0, redelivery_rate=0.0, lacking=0.0),
    "discrete": Profile(kinds=("discrete",), order=0.0, fault_rate=0.18),
    "continuous": Profile(kinds=("continuous",), order=0.0),
    "copies": Profile(
        copy_rate=0.12, redelivery_rate=0.15, fault_rate=0.06, order=0.0, lacking=0.1
    ),
    "bounds": Profile(fault_rate=0.04, copy_rate=0.02, kinds=("plain",), order=0.0, stay=0.6),
    "order": Profile(order=1.0),
}


@dataclass
class Plan:
    """What one log is like, drawn once."""

    rng: random.Random
    profile: Profile
    kind: str
    order: bool
    columns: list[str]
    settings: dict[str, object]
    text_ids: bool
    actions: int = 4
    huge: int = 2
    unrolls: int = 0
    masked: bool = field(init=False)
    with_logits: bool = field(init=False)

    def __post_init__(self) -> None:
        self.masked = MASKS[0] in self.columns or MASKS[1] in self.columns
        self.with_logits = LOGITS[0] in self.columns

    def chance(self, p: float) -> bool:
        """True with probability p."""
        return self.rng.random() < p


def draw_settings(rng: random.Random, kind: str, order: bool) -> dict[str, object]:
    """Settings that a log of this kind may be audited with."""
    settings: dict[str, object] = {
        "gamma": rng.choice([0.99, 0.9, 1.0]),
        "rho_bar": rng.choice([1.0, 1.0, 2.0, 0.7, math.inf]),
        "c_bar": rng.choice([1.0, 1.0, 1.5, 0.9, math.inf]),
        "pg_rho_bar": rng.choice([1.0, 1.0, 1.2, math.inf]),
        "lambda_": rng.choice([1.0, 1.0, 0.95, 0.0]),
        "windows": rng.choice(["delivered", "delivered", "stitched"]),
        "mask_policy": rng.choice(["equal", "equal", "subset"]),
        "strict_flags": rng.random() < 0.3,
        "log_prob_tolerance": rng.choice([1e-3, 1e-3, 0.01, 0.0]),
        "reconcile_tolerance": rng.choice([1e-3, 1e-3, 5e-3]),
        "dtype": rng.choice(["float32", "float64"]),
        "step_from": "order" if order else "column",
    }
    if kind in ("plain", "no_action") and rng.random() < 0.15:
        settings["action_space"] = "continuous"
    if kind == "float_index":
        settings["action_space"] = "discrete"
    return settings


def draw_columns(rng: random.Random, kind: str, order: bool) -> list[str]:
    """The columns that the log as a whole has."""
    columns = ["trajectory_id", "reward", "behavior_log_prob", "target_log_prob", "value"]
    flags = rng.choice([FLAGS] * 8 + [("terminated",), ("truncated",), ()])
    columns += [*flags] if order else ["step", *flags]
    if kind != "no_action":
        columns.append("action")
    if kind in ("discrete", "float_index"):
        masks, logits = rng.random() < 0.7, rng.random() < 0.7
        columns += [name for name in MASKS if masks and rng.random() < 0.9]
        columns += [name for name in LOGITS if logits and rng.random() < 0.9]
        if LOGITS[0] in columns:
            extra = ("behavior_temperature", "behavior_epsilon")
            columns += [name for name in extra if rng.random() < 0.7]
    likely = {"unroll_id": 0.75, "bootstrap_value": 0.9, "discount": 0.6, "policy_version": 0.6}
    likely |= {"valid": 0.4, "actor_id": 0.6, "env_version": 0.5}
    likely |= {"reward_version": 0.2, "mask_version": 0.2}
    return columns + [name for name, p in likely.items() if rng.random() < p]


def add_checks(rng: random.Random, columns: list[str], settings: dict[str, object]) -> None:
    """Settings that depend on which columns there are."""
    if not set(columns) & set(FLAGS):
        settings["end_of_trajectory"] = rng.choice(FLAGS)
    expect = {}
    if "env_version" in columns and rng.random() < 0.6:
        expect["env_version"] = ["3", "4"]
    if "mask_version" in columns and rng.random() < 0.4:
        expect["mask_version"] = ["m1"]
    if expect:
        settings["expect"] = expect
    if "policy_version" in columns and rng.random() < 0.7:
        settings["learner_version"] = 20
        if rng.random() < 0.8:
            settings["max_policy_lag"] = 6


def draw_plan(rng: random.Random, profile: Profile) -> Plan:
    """Everything about the log that is not a row."""
    order = rng.random() < profile.order
    kind = rng.choice(profile.kinds)
    if kind == "discrete" and rng.random() < 0.15:
        kind = "float_index"
    if kind == "continuous":
        kind = rng.choice(["continuous", "continuous_list"])
    settings, columns = draw_settings(rng, kind, order), draw_columns(rng, kind, order)
    add_checks(rng, columns, settings)
    return Plan(rng, profile, kind, order, columns, settings, text_ids=rng.random() < 0.5)


def log_mu(cells: Cells, action: int, legal: list[int]) -> float:
    """log mu of a row's logits, worked out in probabilities."""
    temperature = cells.get("behavior_temperature")
    temperature = 1.0 if temperature is None else temperature
    epsilon = cells.get("behavior_epsilon") or 0.0
    logits = cells["behavior_logits"]
    powers = {i: math.exp(logits[i] / temperature) for i in legal}
    share = powers[action] / sum(powers.values())
    return math.log((1 - epsilon) * share + epsilon / len(legal))


def fill_discrete(plan: Plan, cells: Cells) -> None:
    """Masks, logits and an action that go together, and their log-prob."""
    rng, n = plan.rng, plan.actions
    legal = sorted(rng.sample(range(n), rng.randint(1, n))) if plan.masked else list(range(n))
    if plan.masked and plan.chance(0.85):
        mask = [i in legal for i in range(n)]
        cells[MASKS[0]], cells[MASKS[1]] = mask, list(mask)
    else:
        cells[MASKS[0]] = cells[MASKS[1]] = None
        legal = list(range(n))
    action = rng.choice(legal)
    if MASKS[0] not in plan.columns:
        legal = list(range(n))
    if plan.with_logits and plan.chance(0.9):
        logits = [rng.uniform(-2, 2) for _ in range(n)]
        for i in range(n):
            if i != action and plan.chance(0.08):
                logits[i] = -math.inf
        legal = [i for i in legal if logits[i] > -math.inf]
        cells["behavior_logits"] = logits
        cells["target_logits"] = [x + rng.gauss(0, 0.2) for x in logits]
        names = {"behavior_temperature": (None, 1.0, 0.5, 2.0)}
        names["behavior_epsilon"] = (None, 0.0, 0.1, 1.0)
        for name, choices in names.items():
            cells[name] = rng.choice(choices) if name in plan.columns else None
        cells["behavior_log_prob"] = log_mu(cells, action, legal) + rng.uniform(-1e-5, 1e-5)
    cells["action"] = float(action) if plan.kind == "float_index" else action


def fill_log_probs(plan: Plan, cells: Cells) -> None:
    """The action and both log-probs."""
    rng = plan.rng
    if plan.kind == "continuous":
        cells["action"] = rng.gauss(0, 1)
    elif plan.kind == "continuous_list":
        cells["action"] = [rng.gauss(0, 1) for _ in range(2)]
    elif plan.kind == "plain":
        cells["action"] = rng.randrange(plan.actions)
    continuous = plan.kind.startswith("continuous")
    behavior = rng.uniform(-3, 1) if continuous else -rng.expovariate(1.0) - 0.01
    cells["behavior_log_prob"] = behavior
    if plan.kind in ("discrete", "float_index"):
        fill_discrete(plan, cells)
    target = cells["behavior_log_prob"] + rng.gauss(0, 0.3)
    cells["target_log_prob"] = target if continuous else min(target, 0.0)
    if plan.chance(0.03):
        cells["target_log_prob"] = -math.inf


def make_row(plan: Plan, trajectory: Any, actor: Any, step: int) -> Cells:
    """A sound row in the middle of an episode."""
    rng = plan.rng
    cells: Cells = {"trajectory_id": trajectory, "step": step, "actor_id": actor, "valid": True}
    cells |= {"reward": rng.uniform(-1, 1), "value": rng.uniform(-2, 2)}
    cells |= {"terminated": False, "truncated": False}
    cells |= {"bootstrap_value": rng.choice([None, None, math.nan, 0.0, rng.uniform(-2, 2)])}
    cells |= {"discount": rng.choice([1.0] * 8 + [0.5, 0.0]), "env_version": 3}
    cells |= {"policy_version": rng.randint(15, 20), "reward_version": 1, "mask_version": "m1"}
    fill_log_probs(plan, cells)
    return cells


def make_trajectory(plan: Plan, number: int, length: int) -> list[list[Cells]]:
    """The windows of one trajectory, several episodes one after the other."""
    rng = plan.rng
    trajectory = f"t{number}" if plan.text_ids else number
    actor: str | None = rng.choice(["actor0", "actor1"])
    windows: list[list[Cells]] = []
    left, unroll = 0, None
    for step in range(length):
        if left == 0:
            left = rng.randint(1, 14)
            plan.unrolls += 1
            windows.append([])
            name: Any = f"u{plan.unrolls}" if plan.text_ids else plan.unrolls
            unroll = None if plan.chance(0.1) else name
        cells = make_row(plan, trajectory, actor, step)
        cells["unroll_id"] = unroll
        end_episode(plan, cells)
        windows[-1].append(cells)
        left -= 1
        if left == 0:
            last_of_window(plan, cells)
        if plan.chance(0.01):
            actor = rng.choice(["actor0", "actor1", None])
    last_of_window(plan, windows[-1][-1])
    return windows


def end_episode(plan: Plan, cells: Cells) -> None:
    """Now and then an episode ends here."""
    draw = plan.rng.random()
    if draw < 0.05:
        cells["terminated"] = True
    elif draw < 0.10:
        cells["truncated"] = True
        last_of_window(plan, cells)
    elif draw < 0.115:
        cells["terminated"] = cells["truncated"] = True


def last_of_window(plan: Plan, cells: Cells) -> None:
    """The row at an edge holds a bootstrap, most of the time."""
    choices = [None, math.inf, 0.0, -0.0] if plan.chance(0.15) else [plan.rng.uniform(-2, 2)]
    cells["bootstrap_value"] = plan.rng.choice(choices)


Fault = Callable[[Plan, Cells], None]


def setter(name: str, *values: Any) -> Fault:
    """A fault that puts one of the values into a column."""

    def put(plan: Plan, cells: Cells) -> None:
        value = plan.rng.choice(values)
        cells[name] = list(value) if isinstance(value, list) else value

    return put


def positive_log_prob(plan: Plan, cells: Cells) -> None:
    """A log-prob above 0, within the tolerance or beyond it."""
    name = plan.rng.choice(["behavior_log_prob", "target_log_prob"])
    tolerance = float(str(plan.settings["log_prob_tolerance"]))
    cells[name] = plan.rng.choice([tolerance, tolerance / 2, tolerance * 2, 0.3, 5e-4])


def off_log_prob(plan: Plan, cells: Cells) -> None:
    """A log-prob that its logits do not give."""
    if cells.get("behavior_log_prob") is not None:
        cells["behavior_log_prob"] -= plan.rng.choice([0.02, 0.5, 3.0])


def broken_mask(plan: Plan, cells: Cells) -> None:
    """A mask that is malformed, or differs from the other."""
    name, n = plan.rng.choice(MASKS), plan.actions
    mask = cells.get(name) or [True] * n
    flipped = [not x if i == plan.rng.randrange(n) else x for i, x in enumerate(mask)]
    holed = [None if i == plan.rng.randrange(n) else x for i, x in enumerate(mask)]
    cells[name] = plan.rng.choice([[], [False] * n, holed, [*mask, True], mask[:-1], None])
    if plan.chance(0.4):
        cells[name] = flipped
    if plan.chance(0.1):
        cells[MASKS[0]], cells[MASKS[1]] = list(holed), list(holed)


def broken_logits(plan: Plan, cells: Cells) -> None:
    """Logits that are malformed, or leave the action out."""
    name, n = plan.rng.choice([LOGITS[0], LOGITS[0], LOGITS[1]]), plan.actions
    logits = cells.get(name) or [0.0] * n
    bad = plan.rng.choice([None, math.nan, math.inf, -math.inf])
    holed = [bad if i == plan.rng.randrange(n) else x for i, x in enumerate(logits)]
    cells[name] = plan.rng.choice([[], [-math.inf] * n, holed, [*logits, 0.0], logits[:-1], None])


def wrong_action(plan: Plan, cells: Cells) -> None:
    """An action that is null, out of range or another than the one sampled."""
    n = plan.actions
    action = plan.rng.choice([None, -1, n, n + 3, *range(n)])
    if plan.kind == "float_index":
        given = cells.get(MASKS[0]) is not None or cells.get(LOGITS[0]) is not None
        action = None if action is None else float(action)
        action = 1.5 if given and plan.chance(0.3) else action
    cells["action"] = action


def huge_number(plan: Plan, cells: Cells) -> None:
    """Numbers whose target overflows the output type; few, for they spoil the rows before."""
    if plan.huge == 0:
        return
    plan.huge -= 1
    if plan.settings["dtype"] == "float32":
        cells["reward"] = 1e300
    else:
        # Only the sum overflows; what the row before takes from here is far from doing so.
        cells["reward"], cells["value"] = 1.7e308, -1e307


def any_fault(plan: Plan, cells: Cells) -> None:
    """One fault of those that this log can have."""
    inf, nan = math.inf, math.nan
    faults: dict[str, list[Fault]] = {
        "trajectory_id": [setter("trajectory_id", None)],
        "step": [setter("step", None, -1, -7)],
        "terminated": [setter("terminated", None, 2, True)],
        "truncated": [setter("truncated", None, 2, True)],
        "behavior_log_prob": [setter("behavior_log_prob", None, nan, inf, -inf)] * 2,
        "target_log_prob": [setter("target_log_prob", None, nan, inf, -inf), positive_log_prob],
        "reward": [setter("reward", None, nan, inf, -inf), huge_number],
        "value": [setter("value", None, nan, inf)],
        "discount": [setter("discount", None, nan, -0.1, 1.5, 0.0, -0.0)],
        "bootstrap_value": [setter("bootstrap_value", None, nan, inf)],
        "valid": [setter("valid", None, False)],
        "actor_id": [setter("actor_id", None, "actor9")],
        "env_version": [setter("env_version", None, 4, 5)],
        "reward_version": [setter("reward_version", None, 2)],
        "mask_version": [setter("mask_version", None, "m2")],
        "policy_version": [setter("policy_version", None, 13, 14, 21)],
        "unroll_id": [setter("unroll_id", None)],
    }
    if plan.kind in ("discrete", "float_index"):
        faults["action"] = [wrong_action] * 2
        faults |= {name: [broken_mask] * 3 for name in MASKS}
        faults |= {name: [broken_logits] * 2 for name in LOGITS}
        faults["behavior_temperature"] = [setter("behavior_temperature", 0.0, nan, inf, -1.0)]
        faults["behavior_epsilon"] = [setter("behavior_epsilon", nan, -0.1, 1.1, inf)]
        faults["behavior_logits"] += [off_log_prob] * 2
    possible = [fault for name in plan.columns for fault in faults.get(name, [])]
    plan.rng.choice(possible)(plan, cells)


def altered(plan: Plan, cells: Cells) -> Cells:
    """A copy that is exact, or differs in delivery data, learner columns or the payload."""
    rng, copy = plan.rng, dict(cells)
    draw = rng.random()
    if draw < 0.30:
        name = rng.choice(["target_log_prob", "value", "bootstrap_value", MASKS[1], LOGITS[1]])
        lists = {MASKS[1]: [True] * plan.actions, LOGITS[1]: [0.5] * plan.actions}
        copy[name] = lists.get(name) or rng.choice([None, math.nan, -rng.random()])
    elif draw < 0.45:
        copy["unroll_id"] = rng.choice([None, "again" if plan.text_ids else 900])
    elif draw < 0.55:
        copy["actor_id"] = rng.choice([None, "actor0", "actor1"])
    elif draw < 0.65:
        name = rng.choice(["reward", "behavior_log_prob", "policy_version"])
        copy[name] = rng.choice([None, 17]) if name == "policy_version" else -rng.random()
    elif draw < 0.70:
        copy |= {name: -0.0 for name in ("reward", "discount") if cells[name] == 0.0}
    elif draw < 0.85:
        copy |= {"value": rng.uniform(-2, 2), "target_log_prob": -rng.random() - 0.1}
    return copy


def with_copies(plan: Plan, window: list[Cells]) -> list[Cells]:
    """The window with copies of some rows, at once or at its end."""
    rows: list[Cells] = []
    for cells in window:
        rows.append(cells)
        for _ in range(plan.rng.choice([1, 1, 2])):
            if plan.chance(plan.profile.copy_rate / 1.33):
                rows.append(altered(plan, cells))
    if plan.chance(0.5):
        rows.sort(key=lambda cells: sum(cells is other for other in window), reverse=True)
    return rows


def spoil(plan: Plan, window: list[Cells]) -> list[Cells]:
    """Holes, faults, copies and padding."""
    rng, rows = plan.rng, []
    for cells in window:
        faulty = dict(cells)
        if plan.chance(plan.profile.fault_rate):
            for _ in range(rng.choice([1, 1, 1, 2])):
                any_fault(plan, faulty)
        if plan.profile.fault_rate == 0 or not plan.chance(0.02):
            rows.append(faulty)
    if not plan.order:
        rows = with_copies(plan, rows)
    if "valid" in plan.columns and rows and plan.chance(0.2):
        rows += [{**rows[-1], "valid": False} for _ in range(2)]
    return rows


def place_windows(plan: Plan, windows: list[list[Cells]], files: int) -> list[list[Cells]]:
    """Windows to files: mostly staying with the file, some split, some delivered again."""
    rng = plan.rng
    placed: list[list[Cells]] = [[] for _ in range(files)]
    main = max(files - 1, 1)
    at = rng.randrange(main)
    for window in windows:
        if not plan.chance(plan.profile.stay):
            at = rng.randrange(main)
        split = rng.randrange(len(window) + 1) if plan.chance(0.15) else len(window)
        placed[at] += window[:split]
        placed[rng.randrange(main)] += window[split:]
        if not plan.order and plan.chance(plan.profile.redelivery_rate):
            change = plan.chance(0.3)
            again = [altered(plan, c) if change and plan.chance(0.2) else dict(c) for c in window]
            placed[rng.randrange(main)] += again
    if files > 1 and placed[0]:
        start = rng.randrange(len(placed[0]))
        placed[-1] = placed[0][start : start + 6]
        placed[0] = placed[0][:start] + placed[0][start + 6 :]
    return placed


def interleave(plan: Plan, rows: list[Cells]) -> list[Cells]:
    """Rows as they came, several trajectories in turns, or in any order at all."""
    draw = plan.rng.random()
    if draw < 0.5 or plan.order:
        return rows
    if draw < 0.85:
        return sorted(rows, key=lambda cells: cells["step"] or 0)
    return plan.rng.sample(rows, len(rows))


def file_columns(plan: Plan, small: bool) -> list[str]:
    """What one file has of the log's columns; only a small file lacks the essential ones."""
    columns = list(plan.columns)
    if plan.chance(plan.profile.lacking):
        names = [name for name in OPTIONAL + ESSENTIAL * small if name in columns]
        lacking = plan.rng.sample(names, min(len(names), plan.rng.choice([1, 1, 2])))
        columns = [name for name in columns if name not in lacking]
    plan.rng.shuffle(columns)
    return columns


def make_file(plan: Plan, rows: list[Cells], small: bool) -> LogFile:
    """A file of these rows, in its own columns; nulls are left out or written as None."""
    columns = file_columns(plan, small)
    kept = [{name: cells.get(name) for name in columns} for cells in rows]
    if small and plan.chance(0.3) and columns and plan.profile.lacking:
        empty = plan.rng.choice(columns)
        kept = [{**cells, empty: None} for cells in kept]
    if plan.chance(0.5):
        kept = [{k: v for k, v in cells.items() if v is not None} for cells in kept]
    return LogFile(columns, kept)


def even_flags(files: dict[str, LogFile]) -> None:
    """A flag column that holds an integer anywhere holds integers everywhere."""
    for name in FLAGS:
        cells = [row for file in files.values() for row in file.rows if row.get(name) is not None]
        if any(not isinstance(row[name], bool) for row in cells):
            for row in cells:
                row[name] = int(row[name])


def make_random_log(
    seed: int, *, files: int = 3, rows: int = 120, profile: str = "mixed"
) -> tuple[dict[str, LogFile], dict[str, object]]:
    """A faulty log of about `rows` rows and the settings to audit it with; most rows are
    accepted. The same arguments give the same log."""
    rng = random.Random(f"{seed} {files} {rows} {profile}")
    plan = draw_plan(rng, PROFILES[profile])
    number = rng.randint(2, 5)
    windows: list[list[Cells]] = []
    for i in range(number):
        trajectory = make_trajectory(plan, i, max(2, rows // number + rng.randint(-3, 3)))
        windows += [window for w in trajectory if (window := spoil(plan, w))]
    if plan.chance(0.4) and not plan.order:
        rng.shuffle(windows)
    names = rng.sample(FILE_NAMES, files) if files <= len(FILE_NAMES) else []
    names = names or [f"w_{i}.parquet" for i in range(files)]
    placed = place_windows(plan, windows, files)
    made = {}
    for i, (name, cells) in enumerate(zip(names, placed, strict=True)):
        small = 0 < len(cells) <= rows // 12
        made[name] = make_file(plan, interleave(plan, cells), small and i == files - 1)
    if files > 1 and plan.chance(0.5 if plan.order else 0.1):
        smallest = min(made, key=lambda name: len(made[name].rows))
        copy = made[smallest]
        made["w_11.parquet"] = LogFile(list(copy.columns), [dict(row) for row in copy.rows])
    even_flags(made)
    return made, plan.settings


def column_type(name: str, cells: list[Any]) -> pa.DataType:
    """The Arrow type of a column, the same in every file of a log."""
    if name in MASKS:
        return pa.list_(pa.bool_())
    if name in LOGITS or any(isinstance(cell, list) for cell in cells):
        return pa.list_(pa.float64())
    if any(isinstance(cell, str) for cell in cells):
        return pa.string()
    if name in ("valid", *FLAGS):
        return pa.bool_() if all(isinstance(cell, bool) for cell in cells) else pa.int64()
    floating = any(isinstance(cell, float) for cell in cells)
    if name in INTEGERS and not floating:
        return pa.int64()
    return pa.float64()


def write_log(
    files: dict[str, LogFile], directory: Path | str, group_rows: int | None = None
) -> None:
    """Each file as Parquet below the directory, with one type per column over all files."""
    cells: dict[str, list[Any]] = {}
    for file in files.values():
        for name in file.columns:
            given = (row.get(name) for row in file.rows)
            cells.setdefault(name, []).extend(cell for cell in given if cell is not None)
    types = {name: column_type(name, given) for name, given in cells.items()}
    for path, file in files.items():
        arrays = {}
        for name in file.columns:
            column = [row.get(name) for row in file.rows]
            if types[name] == pa.int64():
                column = [None if cell is None else int(cell) for cell in column]
            arrays[name] = pa.array(column, types[name])
        target = Path(directory) / path
        target.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(arrays), target, row_group_size=group_rows)
