"""Writes the sample logs: `python sample_data/make_logs.py`.

Same numpy and pyarrow, same bytes: the generator is seeded, no time of day is stored, and every
float is rounded to a multiple of a power of two. What is planted is stated in README.md; when the
files are written, check_logs.py counts them again from the Parquet and any difference raises.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from check_logs import check

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Strings = npt.NDArray[np.str_]

HERE = Path(__file__).resolve().parent
SEED = 20180205
ACTORS, ENVS, PARTS = 4, 2, 2
WINDOWS, UNROLL = 74, 20  # per trajectory; rows per window
ACTIONS = 4
CLIPPED_ACCEPTED, CLIPPED_REJECTED = 2700, 300
EQUAL = 60  # accepted rows on which both policies agree exactly: log_ratio 0, not clipped
MASK_MISMATCH = 40
RETRIED_WHOLE, RETRIED_PART, PART_ROWS = 2, 2, 5  # per actor
LONE_HOLES, LONG_HOLES, LONG_HOLE = 8, 4, 3  # steps lost inside windows
# kind -> (received rows, how many of these are retried copies, the actor where it clusters)
MALFORMED = {
    "missing": (180, 6, 1),
    "nan": (180, 6, 2),
    "plus_inf": (80, 3, 0),
    "minus_inf": (80, 3, 3),
    "positive": (140, 6, 1),
    "logits_null": (60, 2, 0),
    "logits_nan": (60, 2, 2),
    "logits_inf": (60, 2, 2),
    "logits_masked": (60, 2, 3),
    "unreconciled": (300, 8, 3),
}

SCHEMA = pa.schema(
    [
        ("trajectory_id", pa.string()),
        ("step", pa.int64()),
        ("unroll_id", pa.int64()),
        ("reward", pa.float32()),
        ("terminated", pa.bool_()),
        ("truncated", pa.bool_()),
        ("behavior_log_prob", pa.float32()),
        ("target_log_prob", pa.float32()),
        ("value", pa.float32()),
        ("bootstrap_value", pa.float32()),
        ("action", pa.int32()),
        ("behavior_action_mask", pa.list_(pa.bool_())),
        ("target_action_mask", pa.list_(pa.bool_())),
        ("behavior_logits", pa.list_(pa.float32())),
        ("policy_version", pa.int64()),
        ("actor_id", pa.string()),
        ("observation", pa.list_(pa.float32())),
    ]
)


@dataclass
class World:
    """Every step that was played, delivered or not, ordered by trajectory and step."""

    stream: Ints
    step: Ints
    window: Ints
    observation: Floats
    terminated: Bools
    truncated: Bools
    legal: Bools
    logits: Floats
    action: Ints
    log_prob: Floats
    value: Floats
    reward: Floats

    @property
    def actor(self) -> Ints:
        return self.stream // ENVS

    def first_row(self, stream: int, window: int) -> int:
        return (stream * WINDOWS + window) * UNROLL


@dataclass
class Plan:
    """What befalls each step on its way into the log."""

    delivered: Bools
    retried: Bools
    kind: Strings


def rounded(values: Floats, bits: int) -> Floats:
    """To multiples of 2**-bits: exact in float32, and the same on every machine."""
    return np.round(values * 2.0**bits) / 2.0**bits


def episode_ends(rng: np.random.Generator, rows: int) -> tuple[Bools, Bools]:
    """(terminated, truncated): an episode fails at random after 8 steps, or times out at 100."""
    terminated, truncated = np.zeros(rows, bool), np.zeros(rows, bool)
    age = 0
    for row, draw in enumerate(rng.random(rows)):
        age += 1
        terminated[row] = age > 8 and draw < 0.012
        truncated[row] = age == 100 and not terminated[row]
        if terminated[row] or truncated[row]:
            age = 0
    return terminated, truncated


def observations(rng: np.random.Generator, ends: Bools) -> Floats:
    """A slow random walk that starts anew after every end."""
    noise = rng.normal(size=(len(ends), 4)) * 0.25
    states = np.zeros_like(noise)
    state = noise[0] * 4
    for row in range(len(ends)):
        states[row] = state
        state = noise[row] * 4 if ends[row] else 0.97 * state + noise[row]
    return rounded(states, 5)


def log_softmax(logits: Floats, legal: Bools) -> Floats:
    masked = np.where(legal, logits, -np.inf)
    shifted = masked - masked.max(axis=1, keepdims=True)
    norm = np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return np.asarray(shifted - norm, np.float64)


def play(rng: np.random.Generator) -> World:
    per_stream = WINDOWS * UNROLL
    streams = ACTORS * ENVS
    rows = streams * per_stream
    ends = [episode_ends(rng, per_stream) for _ in range(streams)]
    terminated = np.concatenate([end[0] for end in ends])
    truncated = np.concatenate([end[1] for end in ends])
    either = (terminated | truncated).reshape(streams, per_stream)
    observation = np.concatenate([observations(rng, either[s]) for s in range(streams)])
    raw = observation @ rng.normal(size=(4, ACTIONS)) * 0.6 + rng.normal(size=(rows, ACTIONS)) * 0.4
    logits = rounded(np.clip(raw, -1.75, 1.75), 6)
    legal = np.ones((rows, ACTIONS), bool)
    hidden = np.argsort(rng.random((rows, ACTIONS)), axis=1)[:, :2]
    for place, chance in ((0, 0.55), (1, 0.25)):  # two legal actions always stay
        legal[np.arange(rows), hidden[:, place]] = rng.random(rows) >= chance
    log_probs = log_softmax(logits, legal)
    action = np.argmax(np.cumsum(np.exp(log_probs), axis=1) > rng.random((rows, 1)), axis=1)
    value = observation @ np.array([0.8, -0.4, 0.3, 0.1]) + 4 + rng.normal(size=rows) * 0.2
    return World(
        stream=np.repeat(np.arange(streams), per_stream),
        step=np.tile(np.arange(per_stream), streams),
        window=np.tile(np.arange(per_stream) // UNROLL, streams),
        observation=observation,
        terminated=terminated,
        truncated=truncated,
        legal=legal,
        logits=logits,
        action=action,
        log_prob=rounded(log_probs[np.arange(rows), action], 14),
        value=rounded(value, 8),
        reward=rounded(np.where(terminated, -1.0, rng.choice([0.0, 0.25, 1.0], size=rows)), 2),
    )


def lose_and_retry(rng: np.random.Generator, world: World) -> Plan:
    """One window and a few short runs are never delivered; some of part 0 is delivered twice."""
    rows = len(world.step)
    plan = Plan(np.ones(rows, bool), np.zeros(rows, bool), np.full(rows, "", dtype="<U16"))
    lost_stream, lost_window = 3, 30
    start = world.first_row(lost_stream, lost_window)
    plan.delivered[start : start + UNROLL] = False
    for actor in range(ACTORS):
        windows = rng.choice(WINDOWS // PARTS - 8, RETRIED_WHOLE + RETRIED_PART, replace=False)
        for place, window in enumerate(windows):
            stream = actor * ENVS + place % ENVS
            start = world.first_row(stream, int(window))
            part = place >= RETRIED_WHOLE
            start += int(rng.integers(UNROLL - PART_ROWS)) if part else 0
            plan.retried[start : start + (PART_ROWS if part else UNROLL)] = True
    free = []
    for first in range(0, rows, UNROLL):
        inside = slice(first, first + UNROLL)
        if plan.delivered[inside].all() and not plan.retried[inside].any():
            free.append(first)
    holes = [1] * LONE_HOLES + [LONG_HOLE] * LONG_HOLES
    for first, length in zip(rng.choice(free, len(holes), replace=False), holes, strict=True):
        start = int(first) + int(rng.integers(3, 14))
        plan.delivered[start : start + length] = False
    return plan


def plant(rng: np.random.Generator, world: World, plan: Plan) -> None:
    """Gives rows their defect: exact counts, mostly in short bursts, each kind near one actor."""
    retried = rng.permutation(np.flatnonzero(plan.retried))
    taken = 0
    for kind, (_, copies, _) in MALFORMED.items():
        plan.kind[retried[taken : taken + copies]] = kind
        taken += copies
    for kind, (count, copies, home) in MALFORMED.items():
        left = count - 2 * copies
        while left:
            near = (world.actor == home) | (rng.random() >= 0.6)
            row = int(rng.choice(np.flatnonzero(near)))
            for place in range(row, row + min(left, int(rng.choice([1, 1, 1, 2, 3, 6])))):
                usable = place < len(plan.kind) and plan.delivered[place]
                if usable and not plan.retried[place] and plan.kind[place] == "":
                    plan.kind[place] = kind
                    left -= 1
    masked = ~world.legal.all(axis=1)
    quarter = MASK_MISMATCH // 8
    for kind, count, mask in (
        ("mask_differs", MASK_MISMATCH - 2 * quarter, masked),
        ("mask_lost", quarter, masked),
        ("mask_added", quarter, ~masked),
    ):
        free = np.flatnonzero(plan.delivered & ~plan.retried & (plan.kind == "") & mask)
        plan.kind[rng.choice(free, count, replace=False)] = kind


def behavior_log_probs(rng: np.random.Generator, world: World, plan: Plan) -> Floats:
    """As recorded: sound on most rows, NaN stands for NaN and for null alike."""
    recorded = world.log_prob.copy()
    shift = rounded(rng.uniform(0.05, 0.4, len(recorded)), 14)
    up = (rng.random(len(recorded)) < 0.5) & (recorded + shift < -0.03)
    drifted = recorded + np.where(up, shift, -shift)
    for kind, value in (
        ("missing", np.full_like(recorded, np.nan)),
        ("nan", np.full_like(recorded, np.nan)),
        ("plus_inf", np.full_like(recorded, np.inf)),
        ("minus_inf", np.full_like(recorded, -np.inf)),
        ("positive", -recorded),
        ("unreconciled", drifted),
    ):
        recorded = np.where(plan.kind == kind, value, recorded)
    return recorded


def clipped_rows(rng: np.random.Generator, plan: Plan) -> Bools:
    """Chooses the rows with ratio > 1 so that accepted and rejected copies both come out exact."""
    sound = plan.delivered & (plan.kind == "")
    clipped = plan.kind == "minus_inf"  # log_ratio +inf
    clipped[rng.choice(np.flatnonzero(sound), CLIPPED_ACCEPTED, replace=False)] = True
    free = ~sound & (plan.kind != "")
    for kind in ("missing", "nan", "plus_inf", "minus_inf", "positive"):
        free &= plan.kind != kind
    pairs = np.flatnonzero(free & plan.retried)
    clipped[rng.choice(pairs, len(pairs) // 3, replace=False)] = True
    weight = np.where(sound, 0, 1) + plan.retried  # rejected copies of each row
    left = CLIPPED_REJECTED - int(weight[clipped].sum())
    singles = np.flatnonzero(free & ~plan.retried)
    clipped[rng.choice(singles, left, replace=False)] = True
    return np.asarray(clipped, bool)


def target_log_probs(rng: np.random.Generator, world: World, plan: Plan, mu: Floats) -> Floats:
    """Above mu where the ratio shall be clipped, below elsewhere, equal on a few accepted rows."""
    base = np.where(np.isfinite(mu) & (mu < 0), mu, world.log_prob)
    clipped = clipped_rows(rng, plan)
    rise = np.minimum(-base * rng.uniform(0.1, 0.7, len(base)), 1.0)
    fall = np.minimum(0.02 + np.abs(rng.normal(size=len(base))) * 0.3, 2.0)
    target = rounded(base + np.where(clipped, rise, -fall), 14)
    equal = np.flatnonzero(plan.delivered & (plan.kind == "") & ~clipped & ~plan.retried)
    chosen = rng.choice(equal, EQUAL, replace=False)
    target[chosen] = base[chosen]
    return target


def bootstraps(rng: np.random.Generator, world: World, plan: Plan) -> Floats:
    """NaN = null. Logged at truncations, before lost steps, at stream ends, at some window ends.

    Where the next row is received too, the actor's own estimate is slightly off its value.
    """
    rows = len(world.step)
    estimate = rounded(np.roll(world.value, -1) + rng.normal(size=rows) * 0.1, 8)
    last = np.append(world.stream[1:] != world.stream[:-1], True)
    lost_next = np.append(~plan.delivered[1:], False) | last
    edge = np.append(world.window[1:] != world.window[:-1], True) & (world.actor < 2)
    logged = (world.truncated | lost_next | edge) & ~world.terminated
    return np.where(logged, np.where(estimate == 0, 1.0, estimate), np.nan)


def logits_column(rng: np.random.Generator, world: World, plan: Plan) -> list[list[Any] | None]:
    """Logged by some windows and wherever the defect is in them; actor 3 logs them masked."""
    windows = len(world.step) // UNROLL
    logged = np.repeat(rng.random(windows) < 0.4, UNROLL)
    broken: dict[str, float | None] = {
        "logits_null": None,
        "logits_nan": math.nan,
        "logits_inf": math.inf,
    }
    column: list[list[Any] | None] = []
    for row, kind in enumerate(plan.kind):
        logits: list[Any] = world.logits[row].tolist()
        if world.actor[row] == 3:
            legal = world.legal[row]
            logits = [x if ok else -math.inf for x, ok in zip(logits, legal, strict=True)]
        place = int(rng.integers(ACTIONS))
        if kind in broken:
            logits[place] = broken[str(kind)]
        elif kind == "logits_masked":
            logits = [-math.inf] * ACTIONS
        given = logged[row] or kind == "unreconciled" or kind.startswith("logits")
        column.append(logits if given and kind != "positive" else None)
    return column


def mask_columns(world: World, plan: Plan) -> tuple[list[Any], list[Any]]:
    """A mask that allows everything is not written: null in both columns."""
    behavior: list[Any] = []
    target: list[Any] = []
    for row, kind in enumerate(plan.kind):
        mask = world.legal[row].tolist()
        other = list(mask)
        spot = (int(world.action[row]) + 1) % ACTIONS  # never the action itself
        if kind in ("mask_differs", "mask_added"):
            other[spot] = not other[spot]
        behavior.append(None if all(mask) else mask)
        unmasked = all(mask) and kind != "mask_added"
        target.append(None if unmasked or kind == "mask_lost" else other)
    return behavior, target


def as_table(rng: np.random.Generator, world: World, plan: Plan) -> pa.Table:
    mu = behavior_log_probs(rng, world, plan)
    target = target_log_probs(rng, world, plan, mu)
    bootstrap = bootstraps(rng, world, plan)
    behavior_mask, target_mask = mask_columns(world, plan)
    envs = world.stream % ENVS
    names = [f"actor_{a}/env_{e}" for a, e in zip(world.actor, envs, strict=True)]
    columns = {
        "trajectory_id": names,
        "step": world.step,
        "unroll_id": world.window,
        "reward": world.reward.astype(np.float32),
        "terminated": world.terminated,
        "truncated": world.truncated,
        "behavior_log_prob": pa.array(mu.astype(np.float32), mask=plan.kind == "missing"),
        "target_log_prob": target.astype(np.float32),
        "value": world.value.astype(np.float32),
        "bootstrap_value": pa.array(bootstrap.astype(np.float32), mask=np.isnan(bootstrap)),
        "action": world.action.astype(np.int32),
        "behavior_action_mask": behavior_mask,
        "target_action_mask": target_mask,
        "behavior_logits": logits_column(rng, world, plan),
        "policy_version": 100 + world.window // 2 - world.actor % 2,
        "actor_id": [f"actor_{a}" for a in world.actor],
        "observation": world.observation.tolist(),
    }
    return pa.table(columns, schema=SCHEMA)


def deliveries(rng: np.random.Generator, world: World, plan: Plan) -> dict[str, Ints]:
    """file name -> rows in the order of arrival; retried rows of part 0 come again in part 1."""
    files: dict[str, Ints] = {}
    for actor in range(ACTORS):
        for part in range(PARTS):
            half = WINDOWS // PARTS
            runs = []
            for window in range(part * half, (part + 1) * half):
                for env in range(ENVS):
                    first = world.first_row(actor * ENVS + env, window)
                    runs.append(np.arange(first, first + UNROLL))
            if part:
                again = np.flatnonzero(plan.retried & (world.actor == actor))
                where = world.stream * WINDOWS + world.window
                for window in np.unique(where[again]):
                    place = int(rng.integers(len(runs) // 4))
                    runs.insert(place, again[where[again] == window])
            rows = np.concatenate(runs)
            files[f"actor_{actor}_part_{part}.parquet"] = rows[plan.delivered[rows]]
    return files


def write(table: pa.Table, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, compression="zstd", compression_level=19, version="2.6")


def two_step() -> pa.Table:
    """The two rows that README.md works by hand."""
    return pa.table(
        {
            "trajectory_id": ["two_step", "two_step"],
            "step": [0, 1],
            "unroll_id": [0, 0],
            "reward": [1.0, 2.0],
            "terminated": [False, False],
            "truncated": [False, False],
            "behavior_log_prob": [math.log(0.20), math.log(0.80)],
            "target_log_prob": [math.log(0.60), math.log(0.40)],
            "value": [2.0, 3.0],
            "bootstrap_value": pa.array([None, 4.0], pa.float64()),
        }
    )


def main() -> None:
    rng = np.random.Generator(np.random.PCG64(SEED))
    world = play(rng)
    plan = lose_and_retry(rng, world)
    plant(rng, world, plan)
    table = as_table(rng, world, plan)
    logs = HERE / "logs"
    for old in logs.glob("*.parquet"):
        old.unlink()
    for name, rows in deliveries(rng, world, plan).items():
        write(table.take(pa.array(rows)), logs / name)
    write(two_step(), HERE / "two_step" / "two_step.parquet")
    check(logs)


if __name__ == "__main__":
    main()
