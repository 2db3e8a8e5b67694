"""V-trace as a reverse loop in float64: the specification that every other backend must meet."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
from numpy.typing import DTypeLike, NDArray

from vtaudit.kernels.targets import Carry, PackedRows, Thresholds, VTrace


def scan_rows(
    rows: PackedRows,
    offsets: NDArray[np.int64],
    thresholds: Thresholds,
    dtype: DTypeLike,
    outputs: frozenset[str],
    carry: Carry,
) -> tuple[VTrace, Carry]:
    """Return the V-trace targets of packed rows, and what their first rows carry.

    For each segment, t from its last row to its first (Espeholt et al. 2018, eq. 1, remarks 1, 2):

        rho_t = min(rho_bar, ratio_t)  c_t = lambda min(c_bar, ratio_t)  ratio_t = exp(log_ratio_t)
        delta_t = rho_t (r_t + gamma_t V_{t+1} - V_t)
        Delta_t = delta_t + gamma_t c_t Delta_{t+1}
        value_target_t = V_t + Delta_t
        advantage_t = min(pg_rho_bar, ratio_t) (r_t + gamma_t value_target_{t+1} - V_t)
        trace_length_t = 1 + c_t trace_length_{t+1}

    At the last row V_{t+1} is the bootstrap value; value_target_{t+1} is too and the carries are 0,
    or, where the segment is followed, the carries are as given and value_target_{t+1} = V_{t+1} +
    Delta_{t+1}. At a row whose discount is 0 all four are 0.

    Args:
        rows: arrays [N] and [S], float32 or float64.
        offsets: [S + 1], the first row of each segment, and N.
        thresholds: clip thresholds and lambda.
        dtype: of the results; the arithmetic is float64.
        outputs: names of VTrace's fields that are wanted; all are filled.
        carry: what each segment's last row needs of its successor, NumPy arrays.
    """
    results = VTrace(*(np.empty(len(rows.value)) for _ in VTrace._fields))
    results = results._replace(log_ratio=rows.log_ratio)
    first = Carry(*(column.copy() for column in carry))
    with np.errstate(all="ignore"):
        for segment, (start, stop) in enumerate(pairwise(offsets.tolist())):
            if stop > start:
                _scan_segment(rows, segment, range(start, stop), thresholds, results, first)
        return VTrace(*(column.astype(dtype, copy=False) for column in results)), first


def _scan_segment(
    rows: PackedRows,
    segment: int,
    steps: range,
    thresholds: Thresholds,
    results: VTrace,
    carry: Carry,
) -> None:
    """Fill the segment's results; leave its first row's carry in `carry`."""
    target = results.value_target
    delta_sum = trace_length = np.float64(0)
    if carry.is_followed[segment]:
        delta_sum, trace_length = carry.delta_sum[segment], carry.trace_length[segment]
    for t in reversed(steps):
        log_ratio, value, reward, discount = (np.float64(column[t]) for column in rows[:4])
        rho = _clip_ratio(log_ratio, thresholds.rho_bar)
        c = _multiply(np.float64(thresholds.lambda_), _clip_ratio(log_ratio, thresholds.c_bar))
        pg_rho = _clip_ratio(log_ratio, thresholds.pg_rho_bar)

        gate = next_value = next_target = np.float64(0)
        if discount != 0 and t + 1 in steps:
            gate, next_value, next_target = c, np.float64(rows.value[t + 1]), target[t + 1]
        elif discount != 0:
            next_value = next_target = np.float64(rows.bootstrap_value[segment])
            if carry.is_followed[segment]:
                gate, next_target = c, next_value + delta_sum

        delta = _multiply(rho, reward + _multiply(discount, next_value) - value)
        delta_sum = delta + _multiply(discount * gate, delta_sum)
        trace_length = 1 + _multiply(gate, trace_length)
        advantage = _multiply(pg_rho, reward + _multiply(discount, next_target) - value)

        target[t] = value + delta_sum
        results.advantage[t] = advantage
        results.rho[t], results.c[t], results.pg_rho[t] = rho, c, pg_rho
        results.delta[t], results.next_value[t] = delta, next_value
        results.trace_length[t] = trace_length
    carry.is_followed[segment] = True
    carry.delta_sum[segment], carry.trace_length[segment] = delta_sum, trace_length


def _clip_ratio(log_ratio: np.float64, bar: float) -> np.float64:
    """min(bar, exp(log_ratio)), decided on the logarithm; NaN stays NaN."""
    return np.float64(bar) if log_ratio > math.log(bar) else np.exp(log_ratio)


def _multiply(factor: np.float64, other: np.float64) -> np.float64:
    """factor * other, and 0 where factor is 0, whatever stands behind it, NaN included."""
    return np.float64(0) if factor == 0 else factor * other
