"""V-trace on a CPU: one compiled pass over packed rows, without the interpreter lock."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba import types
from numpy.typing import NDArray

from vtaudit.kernels.targets import Carry, PackedRows, Thresholds, VTrace

# ratios are computed this many rows ahead: exp then runs in a loop of its own
RATIO_ROWS = 512

# output columns begin at different offsets in a memory page: else the rows that one step writes
# fall into one cache set and evict each other, which costs a third of the speed
PAGE_BYTES = 4096
STAGGER_BYTES = 576


def scan_rows(
    rows: PackedRows,
    offsets: NDArray[np.int64],
    thresholds: Thresholds,
    dtype: np.dtype[Any],
    carry: Carry,
) -> tuple[VTrace, Carry]:
    """Return the V-trace targets of packed rows and their carries: `reference.scan_rows`, compiled.

    Args:
        rows: arrays [N] and [S], float32 or float64.
        offsets: [S + 1], the first row of each segment, and N.
        thresholds: clip thresholds and lambda.
        dtype: of the results, float32 or float64; the arithmetic is float64.
        carry: what each segment's last row needs of its successor, NumPy arrays.
    """
    number = np.result_type(rows.value, rows.reward, rows.bootstrap_value)
    gamma = np.result_type(rows.discount)
    kinds = (dtype, number, number, gamma, number)
    columns = tuple(_lay_out(column, kind) for column, kind in zip(rows, kinds, strict=True))
    outputs = _allocate(len(rows.value), dtype)
    scan = _compile_scan(dtype.name, number.name, gamma.name)
    first = Carry(*(np.array(column, order="C") for column in carry))
    scan(columns, _lay_out(offsets, np.dtype(np.int64)), thresholds.parameters, outputs, first)
    value_target, advantage, *others = outputs
    return VTrace(value_target, advantage, rows.log_ratio, *others), first


def _lay_out(column: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the column as the one kind of array that the compiled function takes."""
    laid_out = np.require(column, dtype, ["C_CONTIGUOUS", "ALIGNED"]).view()
    laid_out.flags.writeable = False
    return laid_out


def _allocate(rows: int, dtype: np.dtype[Any]) -> tuple[NDArray[Any], ...]:
    """Return the eight columns of the results, views of one block of memory."""
    pages = -(-rows * dtype.itemsize // PAGE_BYTES)
    stride = (pages * PAGE_BYTES + STAGGER_BYTES) // dtype.itemsize
    block = np.empty(8 * stride, dtype)
    return tuple(block[i * stride : i * stride + rows] for i in range(8))


@functools.cache
def _compile_scan(dtype: str, number: str, gamma: str) -> Callable[..., None]:
    """Return the scan for these dtypes, from numba's cache on disk if that can be written."""
    kinds = (dtype, number, number, gamma, number)
    columns = types.Tuple([_array_type(kind, readonly=True) for kind in kinds])
    outputs = types.UniTuple(_array_type(dtype, readonly=False), 8)
    parameters = types.UniTuple(types.float64, 7)
    carries = [_array_type(kind, readonly=False) for kind in ("boolean", "float64", "float64")]
    signature = types.void(
        columns,
        _array_type("int64", readonly=True),
        parameters,
        outputs,
        types.NamedTuple(carries, Carry),
    )
    compiled: Callable[..., None]
    try:
        compiled = numba.njit(signature, nogil=True, error_model="numpy", cache=True)(_scan)
    except (RuntimeError, OSError):  # numba found no directory that it can write, or it is full
        compiled = numba.njit(signature, nogil=True, error_model="numpy")(_scan)
    return compiled


def _array_type(dtype: str, *, readonly: bool) -> types.Array:
    return types.Array(getattr(types, dtype), 1, "C", readonly=readonly)


@numba.njit(error_model="numpy")  # type: ignore[untyped-decorator]
def _multiply(factor: float, other: float) -> float:
    """factor * other, and 0 where factor is 0, whatever stands behind it, NaN included."""
    return factor * other if factor != 0 else 0.0


@numba.njit(error_model="numpy")  # type: ignore[untyped-decorator]
def _fill_ratios(ratios: NDArray[Any], log_ratio: NDArray[Any], low: int, stop: int) -> None:
    for i in range(stop - low):
        ratios[np.uint64(i)] = math.exp(np.float64(log_ratio[np.uint64(low + i)]))


def _scan(columns: Any, offsets: Any, parameters: Any, outputs: Any, carry: Carry) -> None:
    log_ratios, values, rewards, discounts, bootstraps = columns
    value_target, advantage, rhos, cs, pg_rhos, deltas, next_values, trace_lengths = outputs
    rho_bar, c_bar, pg_rho_bar, log_rho_bar, log_c_bar, log_pg_rho_bar, lambda_ = parameters
    ratios = np.empty(RATIO_ROWS)
    for segment in range(bootstraps.shape[0]):
        start, stop = offsets[segment], offsets[segment + 1]
        value_tp1 = target_tp1 = np.float64(bootstraps[segment])
        delta_sum = trace_length = is_followed = 0.0
        if start == stop:
            continue
        if carry.is_followed[segment]:
            is_followed = 1.0
            delta_sum, trace_length = carry.delta_sum[segment], carry.trace_length[segment]
            target_tp1 += delta_sum
        while stop > start:
            low = max(start, stop - RATIO_ROWS)
            _fill_ratios(ratios, log_ratios, low, stop)
            for i in range(stop - low - 1, -1, -1):
                # numba tests a signed index for being negative, an unsigned one not
                t = np.uint64(low + i)
                log_ratio, ratio = np.float64(log_ratios[t]), ratios[np.uint64(i)]
                discount, value = np.float64(discounts[t]), np.float64(values[t])
                reward = np.float64(rewards[t])
                rho = rho_bar if log_ratio > log_rho_bar else ratio
                c = _multiply(lambda_, c_bar if log_ratio > log_c_bar else ratio)
                pg_rho = pg_rho_bar if log_ratio > log_pg_rho_bar else ratio
                gate = c if discount != 0 and is_followed != 0 else 0.0
                next_value = value_tp1 if discount != 0 else 0.0
                delta = _multiply(rho, reward + _multiply(discount, next_value) - value)
                delta_sum = delta + _multiply(discount * gate, delta_sum)
                trace_length = 1.0 + _multiply(gate, trace_length)
                error = reward + _multiply(discount, target_tp1) - value
                value_tp1, target_tp1, is_followed = value, value + delta_sum, 1.0
                value_target[t], advantage[t] = target_tp1, _multiply(pg_rho, error)
                rhos[t], cs[t], pg_rhos[t], deltas[t] = rho, c, pg_rho, delta
                next_values[t], trace_lengths[t] = next_value, trace_length
            stop = low
        carry.is_followed[segment] = True
        carry.delta_sum[segment], carry.trace_length[segment] = delta_sum, trace_length
