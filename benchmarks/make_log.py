"""Write a seeded trajectory log of any size, one file at a time.

    python benchmarks/make_log.py OUT --rows 5000000 --files 20 --seed 0

Every file holds whole trajectories of a stream of episodes, in windows, and copies of windows of
the file before it, as an actor sends them again after a lost acknowledgement. Memory is bounded by
one file. The same arguments write the same rows.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

Array = NDArray[np.generic]
Columns = dict[str, Array]

EPISODE_ROWS = 250
TRUNCATED_SHARE = 0.3
ALLOWED_SHARE = 0.8
ACTORS = 64
ROW_GROUP_ROWS = 131_072
# codes of the column `fault`; MISSING is written as null
SOUND, MISSING, NOT_A_NUMBER, INFINITE = range(4)
FAULTY_COLUMNS = ("behavior_log_prob", "target_log_prob", "reward", "value")
INTEGERS = ("trajectory_id", "step", "unroll_id", "policy_version", "actor_id")
FLOATS = ("reward", "behavior_log_prob", "target_log_prob", "value", "bootstrap_value")


@dataclass(frozen=True, slots=True)
class LogSpec:
    """What the log is like.

    Attributes:
        rows, files, seed: size and seed.
        trajectory_rows: mean rows of a trajectory, which holds several episodes.
        window_rows: rows of a window; the last one of a trajectory may have fewer.
        retried: share of windows that are delivered again, in the next file.
        conflicts: share of the windows delivered again that change one row's reward.
        malformed: share of rows with a null, NaN or infinite number.
        interleaved: whether the trajectories of a file come in turns, by step.
        text_ids: whether trajectory_id and unroll_id are text.
        actions: size of the columns of masks and logits, which a log of 0 actions lacks.
    """

    rows: int
    files: int
    seed: int
    trajectory_rows: int = 2_000
    window_rows: int = 100
    retried: float = 0.025
    conflicts: float = 0.0
    malformed: float = 0.001
    interleaved: bool = False
    text_ids: bool = True
    actions: int = 0


def write_log(out: Path, spec: LogSpec) -> None:
    """Write the files of the log below `out`."""
    out.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(spec.seed)
    waiting: Columns = {}
    trajectories = 0
    bounds = np.linspace(0, spec.rows, spec.files + 1).astype(int)
    for number, height in enumerate(np.diff(bounds)):
        copies = {name: column[:height] for name, column in waiting.items()}
        fresh = int(height) - len(copies.get("step", ()))
        rows = make_rows(rng, spec, trajectories, fresh)
        trajectories = int(rows["trajectory_id"].max(initial=trajectories - 1)) + 1
        waiting = choose_retries(rng, spec, rows)
        if copies:
            rows = {name: np.concatenate([rows[name], copies[name]]) for name in rows}
        table = pa.table(as_arrow(rows, spec))
        path = out / f"part-{number:05d}.parquet"
        pq.write_table(table, path, compression="zstd", row_group_size=ROW_GROUP_ROWS)


def make_rows(rng: np.random.Generator, spec: LogSpec, first: int, height: int) -> Columns:
    """Return sound and malformed rows of whole trajectories, numbered from `first`."""
    trajectory, step = draw_trajectories(rng, spec, height)
    is_end = rng.random(height) < 1 / EPISODE_ROWS
    truncated = is_end & (rng.random(height) < TRUNCATED_SHARE)
    behavior = -rng.exponential(1.0, height)
    choices = draw_actions(np.random.default_rng((spec.seed, first)), spec.actions, height)
    behavior = choices.pop("log_prob", behavior)
    ratio = rng.normal(0.0, 0.3, height)
    fault = rng.integers(MISSING, INFINITE + 1, height)
    window = step // spec.window_rows
    is_edge = np.ones(height, np.bool_)
    is_edge[:-1] = (trajectory[1:] != trajectory[:-1]) | (window[1:] != window[:-1])
    rows: Columns = {
        "trajectory_id": trajectory + first,
        "step": step,
        "unroll_id": window,
        "reward": rng.normal(0.0, 1.0, height),
        "terminated": is_end & ~truncated,
        "truncated": truncated,
        "behavior_log_prob": behavior,
        "target_log_prob": np.minimum(behavior + ratio, 0.0),
        "value": rng.normal(0.0, 2.0, height),
        "bootstrap_value": np.where(is_edge | truncated, rng.normal(0.0, 2.0, height), np.nan),
        "policy_version": 100 * first + window,
        "actor_id": (trajectory + first) % ACTORS,
        "fault": np.where(rng.random(height) < spec.malformed, fault, SOUND),
        "fault_column": rng.integers(0, len(FAULTY_COLUMNS), height),
        **choices,
    }
    if not spec.interleaved:
        return rows
    order = np.argsort(step, kind="stable")
    return {name: column[order] for name, column in rows.items()}


def draw_actions(rng: np.random.Generator, actions: int, height: int) -> Columns:
    """Return actions sampled from masked logits, with the log-prob of each; nothing without any."""
    if not actions:
        return {}
    rows = np.arange(height)
    mask = rng.random((height, actions)) < ALLOWED_SHARE
    mask[rows, rng.integers(0, actions, height)] = True
    logits = rng.normal(0.0, 1.0, (height, actions)).astype(np.float32)
    legal = np.where(mask, logits.astype(np.float64), -np.inf)
    # the Gumbel-max trick: the greatest of noisy logits is a sample of their softmax
    action = np.argmax(legal + rng.gumbel(size=legal.shape), axis=1)
    return {
        "action": action,
        "behavior_action_mask": mask,
        "target_action_mask": mask,
        "behavior_logits": logits,
        "log_prob": legal[rows, action] - np.log(np.exp(legal).sum(axis=1)),
    }


def draw_trajectories(
    rng: np.random.Generator, spec: LogSpec, height: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return trajectory number and step of each row; lengths are geometric, the last one cut."""
    lengths = rng.geometric(1 / spec.trajectory_rows, 2 * height // spec.trajectory_rows + 16)
    while lengths.sum() < height:
        lengths = np.concatenate([lengths, lengths])
    ends = np.minimum(np.cumsum(lengths), height)
    lengths = np.diff(ends, prepend=0)
    trajectory = np.repeat(np.arange(len(lengths)), lengths)
    step = np.arange(height) - np.repeat(ends - lengths, lengths)
    return trajectory, step


def choose_retries(rng: np.random.Generator, spec: LogSpec, rows: Columns) -> Columns:
    """Return copies of whole windows, some of them with another reward in one row."""
    trajectory, window = rows["trajectory_id"], rows["unroll_id"]
    order = np.lexsort((rows["step"], window, trajectory))
    is_start = np.ones(len(order), np.bool_)
    is_start[1:] = np.diff(trajectory[order]).astype(bool) | np.diff(window[order]).astype(bool)
    starts = np.flatnonzero(is_start)
    chosen = rng.random(len(starts)) < spec.retried
    sizes = np.diff(starts, append=len(order))
    taken = order[np.repeat(chosen, sizes)]
    copies = {name: column[taken] for name, column in rows.items()}
    firsts = np.cumsum(sizes[chosen]) - sizes[chosen]
    altered = firsts[rng.random(len(firsts)) < spec.conflicts]
    copies["reward"][altered] += 1.0
    return copies


def as_arrow(rows: Columns, spec: LogSpec) -> dict[str, pa.Array]:
    """Return the canonical columns, with the faults in their places."""
    arrays = {}
    for name, column in rows.items():
        if name in INTEGERS:
            is_text = name == "actor_id" or (spec.text_ids and name in INTEGERS[:3:2])
            arrays[name] = label_column(name, column) if is_text else pa.array(column)
        elif name in FLOATS:
            arrays[name] = float_column(name, rows)
        elif column.ndim == 2:
            offsets = np.arange(len(column) + 1, dtype=np.int32) * column.shape[1]
            arrays[name] = pa.ListArray.from_arrays(pa.array(offsets), pa.array(column.ravel()))
        elif not name.startswith("fault"):
            arrays[name] = pa.array(column)
    return arrays


def label_column(name: str, numbers: Array) -> pa.Array:
    """Return ids as text, as trajectory-17."""
    values, place = np.unique(numbers, return_inverse=True)
    texts = pa.array([f"{name.removesuffix('_id')}-{value}" for value in values])
    return texts.take(pa.array(place))


def float_column(name: str, rows: Columns) -> pa.Array:
    """Return a column of numbers with its faults; a bootstrap that is not there is null."""
    column = rows[name].astype(np.float64)
    if name not in FAULTY_COLUMNS:
        return pa.array(column, mask=np.isnan(column))
    fault = np.where(rows["fault_column"] == FAULTY_COLUMNS.index(name), rows["fault"], SOUND)
    column = np.where(fault == NOT_A_NUMBER, np.nan, column)
    column = np.where(fault == INFINITE, np.inf, column)
    return pa.array(column, mask=fault == MISSING)


def add_log_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a `LogSpec`."""
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of all files together")
    parser.add_argument("--files", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trajectory-rows", type=int, default=2_000, help="mean length")
    parser.add_argument("--window-rows", type=int, default=100)
    parser.add_argument("--retried", type=float, default=0.025, help="share of windows sent twice")
    parser.add_argument("--conflicts", type=float, default=0.0, help="share of those that differ")
    parser.add_argument("--malformed", type=float, default=0.001, help="share of rows")
    parser.add_argument("--interleaved", action="store_true", help="trajectories come in turns")
    parser.add_argument("--integer-ids", dest="text_ids", action="store_false")
    parser.add_argument("--actions", type=int, default=0, help="size of masks and logits columns")


def main() -> None:
    """Read the command line and write the log."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="directory of the files")
    add_log_options(parser)
    options = vars(parser.parse_args())
    write_log(options.pop("out"), LogSpec(**options))


if __name__ == "__main__":
    main()
