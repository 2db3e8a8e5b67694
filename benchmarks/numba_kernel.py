"""Time the numba kernel on one thread against a NumPy loop over trajectories.

    python benchmarks/numba_kernel.py

Rows are packed, float32, in segments of mean length 200. Each result is checked against the other
before it is timed; times are the thread's own, medians of interleaved runs, since a shared machine
is noisy.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from itertools import pairwise

import numba
import numpy as np
from numpy.typing import NDArray

from vtaudit.kernels import vtrace_packed

ROWS = (100_000, 1_000_000, 8_000_000)
LOOP_ROWS = 200_000
# what `vtaudit process` asks for without --weights
PLAIN = ("value_target", "advantage", "log_ratio", "next_value", "trace_length")
MEAN_LENGTH = 200
ROUNDS = 15
Arrays = tuple[NDArray[np.generic], ...]


def make_rows(count: int, seed: int = 0) -> Arrays:
    """Return the arrays of `vtrace_packed`; lengths are geometric."""
    random = np.random.default_rng(seed)
    ends = random.geometric(1 / MEAN_LENGTH, 2 * count // MEAN_LENGTH).cumsum()
    offsets = np.concatenate([[0], ends[ends < count], [count]]).astype(np.int64)
    columns = [random.uniform(-3, 3, count), *random.normal(size=(2, count)), np.full(count, 0.99)]
    bootstrap = random.normal(size=len(offsets) - 1)
    return (*(column.astype(np.float32) for column in (*columns, bootstrap)), offsets)


def loop_over_trajectories(rows: Arrays) -> NDArray[np.float64]:
    """Return the targets: NumPy within a trajectory, a loop for the recurrence."""
    log_ratios, values, rewards, discounts, bootstraps, offsets = rows
    targets = np.empty(len(values))
    for segment, (start, stop) in enumerate(pairwise(offsets.tolist())):
        rows_of = slice(start, stop)
        value = values[rows_of].astype(np.float64)
        rho = np.minimum(1, np.exp(log_ratios[rows_of].astype(np.float64)))
        next_value = np.append(value[1:], bootstraps[segment])
        delta = rho * (rewards[rows_of] + discounts[rows_of] * next_value - value)
        decay = discounts[rows_of] * rho
        decay[-1] = 0
        delta_sum = 0.0
        for t in range(stop - start - 1, -1, -1):
            delta_sum = delta[t] + decay[t] * delta_sum
            targets[start + t] = value[t] + delta_sum
    return targets


def time_once(function: Callable[[], object]) -> float:
    start = time.thread_time()
    function()
    return time.thread_time() - start


def main() -> None:
    few = make_rows(LOOP_ROWS)
    expected = loop_over_trajectories(few)
    found = vtrace_packed(*few, backend="numba").value_target
    if not np.allclose(found, expected, rtol=1e-5, atol=1e-5):
        sys.exit("the numba kernel and the loop over trajectories differ")
    print(f"numba {numba.__version__}, numpy {np.__version__}, one thread")
    for count in ROWS:
        rows = make_rows(count)
        for case, outputs in (("all outputs", None), ("those of process", PLAIN)):

            def scan(rows: Arrays = rows, outputs: tuple[str, ...] | None = outputs) -> object:
                return vtrace_packed(*rows, backend="numba", outputs=outputs)

            scans, loops = [], []
            for _ in range(ROUNDS):
                scans.append(time_once(scan))
                loops.append(time_once(lambda: loop_over_trajectories(few)))
            rate, best = count / statistics.median(scans), count / min(scans)
            loop_rate = LOOP_ROWS / statistics.median(loops)
            print(
                f"{count:9} rows, {case:16} {rate / 1e6:6.1f} M rows/s, best {best / 1e6:.1f};"
                f" NumPy loop {loop_rate / 1e6:.2f} M rows/s, ratio {rate / loop_rate:.0f}"
            )


if __name__ == "__main__":
    main()
