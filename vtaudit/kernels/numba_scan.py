"""V-trace on a CPU: compiled passes over blocks of packed rows, without the interpreter lock."""

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

# rows that one pass takes: what it keeps of them stays in the fastest cache
BLOCK_ROWS = 256

# output columns begin at different offsets in a memory page: else the rows that one step writes
# fall into one cache set and evict each other, which costs a third of the speed
PAGE_BYTES = 4096
STAGGER_BYTES = 576

# places in the work area, one array: a loop over several is free of aliases, so it is vectorized
RATIO, NEXT_VALUE, GATE, DECAY, DELTA, DELTA_SUM, AFTER, TRACE, WORK_ROWS = (
    place * BLOCK_ROWS for place in range(9)
)

# exp(x) = 2^k exp(r), x = k log 2 + r, |r| <= log(2) / 2; a sum with ROUNDER rounds to an integer,
# whose last bits are those of the sum
LOG2_E = 1.4426950408889634
LOG_2_HIGH = 0.6931471803691238  # with 20 trailing zeros, so that k times it is exact
LOG_2_LOW = 1.9082149292705877e-10
ROUNDER = 1.5 * 2**52
EXPONENT_BIAS = np.int64(1023)
EXPONENT_SHIFT = np.int64(52)
EXTREME = 800.0  # beyond it the result is 0 or inf
COEFFICIENTS = tuple(1 / math.factorial(n) for n in range(14))


@numba.njit(error_model="numpy")  # type: ignore[untyped-decorator]
def exp(x: float) -> float:
    """e^x within an ulp, from additions and products alone: the same bits on every machine."""
    x = EXTREME if x > EXTREME else x
    x = -EXTREME if x < -EXTREME else x
    k = (x * LOG2_E + ROUNDER) - ROUNDER
    r = (x - k * LOG_2_HIGH) - k * LOG_2_LOW
    p = COEFFICIENTS[13]
    for n in range(12, -1, -1):
        p = p * r + COEFFICIENTS[n]
    # in two steps, since 2^k may be no normal number where e^x is one
    half = (0.5 * k + ROUNDER) - ROUNDER
    result: float = (p * _power(half)) * _power(k - half)
    return result


@numba.njit(error_model="numpy")  # type: ignore[untyped-decorator]
def _power(k: float) -> float:
    """2^k for integers of at most 10 bits."""
    bits = np.float64(k + ROUNDER).view(np.int64)
    return np.int64((bits + EXPONENT_BIAS) << EXPONENT_SHIFT).view(np.float64)


def scan_rows(
    rows: PackedRows,
    offsets: NDArray[np.int64],
    thresholds: Thresholds,
    dtype: np.dtype[Any],
    outputs: frozenset[str],
    carry: Carry,
) -> tuple[VTrace, Carry]:
    """Return the V-trace targets of packed rows and their carries: `reference.scan_rows`, compiled.

    Args:
        rows: arrays [N] and [S], float32 or float64.
        offsets: [S + 1], the first row of each segment, and N.
        thresholds: clip thresholds and lambda.
        dtype: of the results, float32 or float64; the arithmetic is float64.
        outputs: names of VTrace's fields to fill; the others but log_ratio are None.
        carry: what each segment's last row needs of its successor, NumPy arrays.
    """
    number = np.result_type(rows.value, rows.reward, rows.bootstrap_value)
    gamma = np.result_type(rows.discount)
    kinds = (dtype, number, number, gamma, number)
    columns = tuple(_lay_out(column, kind) for column, kind in zip(rows, kinds, strict=True))
    names = [name for name in VTrace._fields if name != "log_ratio"]
    results = _allocate(len(rows.value), dtype, [name in outputs for name in names])
    scan = _compile_scan(dtype.name, number.name, gamma.name)
    first = Carry(*(np.array(column, order="C") for column in carry))
    scan(columns, _lay_out(offsets, np.dtype(np.int64)), thresholds.parameters, results, first)
    filled = {
        name: column if name in outputs else None
        for name, column in zip(names, results, strict=True)
    }
    return VTrace(log_ratio=rows.log_ratio, **filled), first


def _lay_out(column: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the column as the one kind of array that the compiled function takes."""
    laid_out = np.require(column, dtype, ["C_CONTIGUOUS", "ALIGNED"]).view()
    laid_out.flags.writeable = False
    return laid_out


def _allocate(rows: int, dtype: np.dtype[Any], are_wanted: list[bool]) -> tuple[NDArray[Any], ...]:
    """Return the columns of the results, views of one block of memory; empty if not wanted."""
    pages = -(-rows * dtype.itemsize // PAGE_BYTES)
    stride = (pages * PAGE_BYTES + STAGGER_BYTES) // dtype.itemsize
    block = np.empty(sum(are_wanted) * stride, dtype)
    places = np.cumsum([0, *are_wanted]).tolist()
    return tuple(
        block[place * stride : place * stride + rows * is_wanted]
        for place, is_wanted in zip(places, are_wanted, strict=False)
    )


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


def _scan(columns: Any, offsets: Any, parameters: Any, outputs: Any, carry: Carry) -> None:
    """Walk from the last row to the first, in blocks that know nothing of segments."""
    work = np.empty(WORK_ROWS)
    segment, stop, state = len(offsets) - 2, len(columns[1]), (0.0, 0.0)
    while stop > 0:
        start = max(stop - BLOCK_ROWS, 0)
        block = (columns[0][start:stop], columns[1][start:stop], columns[2][start:stop])
        discounts = columns[3][start:stop]
        _fill_next_values(work, columns, offsets, segment, start, stop)
        _fill_factors(work, block, discounts, parameters)
        segment, state = _sum_up(work, offsets, carry, segment, start, stop, state)
        _fill_targets(work, block, discounts, parameters, outputs, start)
        _fill_others(work, block[0], parameters, outputs, start)
        stop = start


@numba.njit(error_model="numpy")  # type: ignore[untyped-decorator]
def _fill_next_values(
    work: Any, columns: Any, offsets: Any, segment: int, start: int, stop: int
) -> None:
    """Each row's successor's value; at the last row of a segment its bootstrap."""
    followers = columns[1][start + 1 : stop + 1]
    for i in range(len(followers)):
        work[NEXT_VALUE + i] = followers[i]
    while segment >= 0 and offsets[segment + 1] > start:
        end = offsets[segment + 1]
        if offsets[segment] < end <= stop:
            work[NEXT_VALUE + end - 1 - start] = columns[4][segment]
        segment -= 1


@numba.njit(error_model="numpy")  # type: ignore[untyped-decorator]
def _fill_factors(work: Any, block: Any, discounts: Any, parameters: Any) -> None:
    log_ratios, values, rewards = block
    rho_bar, c_bar, _, log_rho_bar, log_c_bar, _, lambda_ = parameters
    for i in range(len(log_ratios)):
        work[RATIO + i] = exp(np.float64(log_ratios[i]))
    for i in range(len(log_ratios)):
        log_ratio, ratio = np.float64(log_ratios[i]), work[RATIO + i]
        discount = np.float64(discounts[i])
        rho = rho_bar if log_ratio > log_rho_bar else ratio
        c = _multiply(lambda_, c_bar if log_ratio > log_c_bar else ratio)
        gate = c if discount != 0 else 0.0
        next_value = work[NEXT_VALUE + i] if discount != 0 else 0.0
        error = np.float64(rewards[i]) + _multiply(discount, next_value) - np.float64(values[i])
        work[DELTA + i] = _multiply(rho, error)
        work[NEXT_VALUE + i] = next_value
        work[GATE + i] = gate
        work[DECAY + i] = discount * gate


@numba.njit(error_model="numpy")  # type: ignore[untyped-decorator]
def _sum_up(
    work: Any, offsets: Any, carry: Carry, segment: int, start: int, stop: int, state: Any
) -> Any:
    """Run the recurrence over a block; return the segment before it, or that goes on, and sums."""
    delta_sum, trace_length = state
    while segment >= 0 and offsets[segment + 1] > start:
        first, end = max(offsets[segment], start), min(offsets[segment + 1], stop)
        if first < end and end == offsets[segment + 1]:
            delta_sum = trace_length = 0.0
            if carry.is_followed[segment]:
                delta_sum, trace_length = carry.delta_sum[segment], carry.trace_length[segment]
            else:
                work[GATE + end - 1 - start] = work[DECAY + end - 1 - start] = 0.0
        for i in range(end - 1 - start, first - 1 - start, -1):
            work[AFTER + i] = delta_sum
            delta_sum = work[DELTA + i] + _multiply(work[DECAY + i], delta_sum)
            trace_length = 1.0 + _multiply(work[GATE + i], trace_length)
            work[DELTA_SUM + i] = delta_sum
            work[TRACE + i] = trace_length
        if offsets[segment] < start:
            break
        if first < end:
            carry.is_followed[segment] = True
            carry.delta_sum[segment], carry.trace_length[segment] = delta_sum, trace_length
        segment -= 1
    return segment, (delta_sum, trace_length)


@numba.njit(error_model="numpy")  # type: ignore[untyped-decorator]
def _fill_targets(
    work: Any, block: Any, discounts: Any, parameters: Any, outputs: Any, start: int
) -> None:
    log_ratios, values, rewards = block
    pg_rho_bar, log_pg_rho_bar = parameters[2], parameters[5]
    targets = outputs[0][start : start + len(values)]
    for i in range(len(targets)):
        targets[i] = np.float64(values[i]) + work[DELTA_SUM + i]
    advantages = outputs[1][start : start + len(values)]
    for i in range(len(advantages)):
        ratio = work[RATIO + i]
        pg_rho = pg_rho_bar if np.float64(log_ratios[i]) > log_pg_rho_bar else ratio
        discount = np.float64(discounts[i])
        next_target = work[NEXT_VALUE + i] + work[AFTER + i]
        error = np.float64(rewards[i]) + _multiply(discount, next_target) - np.float64(values[i])
        advantages[i] = _multiply(pg_rho, error)


@numba.njit(error_model="numpy")  # type: ignore[untyped-decorator]
def _fill_others(work: Any, log_ratios: Any, parameters: Any, outputs: Any, start: int) -> None:
    stop = start + len(log_ratios)
    for j in range(3):
        ratios, bar, log_bar = outputs[2 + j][start:stop], parameters[j], parameters[3 + j]
        lambda_ = parameters[6] if j == 1 else 1.0
        for i in range(len(ratios)):
            ratio = bar if np.float64(log_ratios[i]) > log_bar else work[RATIO + i]
            ratios[i] = _multiply(lambda_, ratio)
    deltas, next_values = outputs[5][start:stop], outputs[6][start:stop]
    for i in range(len(deltas)):
        deltas[i] = work[DELTA + i]
    for i in range(len(next_values)):
        next_values[i] = work[NEXT_VALUE + i]
    traces = outputs[7][start:stop]
    for i in range(len(traces)):
        traces[i] = work[TRACE + i]
