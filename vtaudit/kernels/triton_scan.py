"""V-trace on a GPU: an associative scan in Triton over packed segments of any length.

A program takes SEGMENTS segments and walks each from its last block of TIME rows to its first. A
block is loaded latest row first, so a plain forward scan runs back in time; Delta and trace_length
pass from block to block.

Launch rule, fixed so that results never depend on what else is in a batch: a segment's TIME is the
first of BLOCK_TIMES that holds it, else the last, as for a piece of a segment, which is followed;
SEGMENTS = BLOCK_ROWS / TIME; one launch for each TIME that occurs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from vtaudit.kernels.arguments import to_numpy
from vtaudit.kernels.targets import PIECE_ROWS, Carry, PackedRows, Thresholds, VTrace
from vtaudit.kernels.transfers import send

BLOCK_TIMES = (32, 128, PIECE_ROWS)
BLOCK_ROWS = 1024
NUM_WARPS = 4

# a product of gates that underflows is no cut: the smallest float64 lets NaN and inf pass through
SMALLEST_GATE = tl.constexpr(5e-324)


def scan_rows(
    rows: PackedRows,
    offsets: NDArray[np.int64],
    thresholds: Thresholds,
    dtype: torch.dtype,
    outputs: frozenset[str],
    carry: Carry,
) -> tuple[VTrace, Carry]:
    """Return the V-trace targets of packed rows and their carries, as `reference.scan_rows` does.

    A row is the map x -> delta_t + gamma_t c_t x of what follows it; maps compose associatively,
    (a2, b2) after (a1, b1) = (a2 + b2 a1, b2 b1), and Delta_t is the composition of the segment's
    maps from its last row to t, at what it carries or 0. trace_length is the same scan of (1, c_t).

    Args:
        rows: tensors [N] and [S] on one device, float32 or float64.
        offsets: [S + 1] on the host, the first row of each segment, and N.
        thresholds: clip thresholds and lambda.
        dtype: of the results, float32 or float64; the arithmetic is float64.
        outputs: names of VTrace's fields to fill; the others but log_ratio are None.
        carry: what each segment's last row needs of its successor, tensors or NumPy arrays.
    """
    device, count = rows.value.device, len(rows.value)
    results = {
        name: torch.empty((count,), dtype=dtype, device=device) if name in outputs else None
        for name in VTrace._fields
        if name != "log_ratio"
    }
    groups = list(group_segments(offsets, to_numpy(carry.is_followed)))
    given = carry if isinstance(carry.is_followed, np.ndarray) else ()
    # parameters as a tensor, since Triton takes a Python float as float32
    parameters = np.array(thresholds.parameters)
    sent = send((offsets, parameters, *(segments for _, segments in groups), *given), device)
    first = Carry(*(sent[-3:] if given else (column.clone() for column in carry)))
    arguments = (*(c.contiguous() for c in rows), *sent[:2], *first, *results.values())
    _launch(arguments, [(time, s) for (time, _), s in zip(groups, sent[2:], strict=False)])
    return VTrace(log_ratio=rows.log_ratio, **results), first


def _launch(arguments: tuple[Any, ...], groups: list[tuple[int, torch.Tensor]]) -> None:
    """Launch the kernel for each TIME with the segments that it takes."""
    device = arguments[0].device
    with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
        for time, segments in groups:
            block = BLOCK_ROWS // time
            vtrace_scan_kernel[(triton.cdiv(len(segments), block),)](
                *arguments,
                segments,
                len(segments),
                SEGMENTS=block,
                TIME=time,
                COMPUTE=tl.float64,
                num_warps=NUM_WARPS,
            )


def group_segments(
    offsets: NDArray[np.int64], is_followed: NDArray[np.bool_]
) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield each TIME that occurs with the segments that it takes; empty segments go nowhere."""
    lengths = np.diff(offsets)
    classes = np.searchsorted(BLOCK_TIMES[:-1], lengths)
    classes[is_followed] = len(BLOCK_TIMES) - 1
    for number, time in enumerate(BLOCK_TIMES):
        segments = np.flatnonzero((classes == number) & (lengths > 0))
        if len(segments):
            yield time, segments


@triton.jit(do_not_specialize=["segment_count"])  # type: ignore[untyped-decorator]
def vtrace_scan_kernel(
    log_ratio_ptr: tl.tensor,
    value_ptr: tl.tensor,
    reward_ptr: tl.tensor,
    discount_ptr: tl.tensor,
    bootstrap_ptr: tl.tensor,
    offsets_ptr: tl.tensor,
    parameters_ptr: tl.tensor,
    is_followed_ptr: tl.tensor,
    delta_carry_ptr: tl.tensor,
    trace_carry_ptr: tl.tensor,
    value_target_ptr: tl.tensor,
    advantage_ptr: tl.tensor,
    rho_ptr: tl.tensor,
    c_ptr: tl.tensor,
    pg_rho_ptr: tl.tensor,
    delta_ptr: tl.tensor,
    next_value_ptr: tl.tensor,
    trace_length_ptr: tl.tensor,
    segments_ptr: tl.tensor,
    segment_count: tl.int64,
    SEGMENTS: tl.constexpr,
    TIME: tl.constexpr,
    COMPUTE: tl.constexpr,
) -> None:
    inputs = (log_ratio_ptr, value_ptr, reward_ptr, discount_ptr)
    ratios = (rho_ptr, c_ptr, pg_rho_ptr)
    results = (value_target_ptr, advantage_ptr, delta_ptr, next_value_ptr, trace_length_ptr)
    place = tl.program_id(0).to(tl.int64) * SEGMENTS + tl.arange(0, SEGMENTS)
    is_taken = place < segment_count
    segment = tl.load(segments_ptr + place, mask=is_taken, other=0)
    start = tl.load(offsets_ptr + segment, mask=is_taken, other=0)
    stop = tl.load(offsets_ptr + segment + 1, mask=is_taken, other=0)
    bootstrap = tl.load(bootstrap_ptr + segment, mask=is_taken, other=0).to(COMPUTE)
    is_carried = tl.load(is_followed_ptr + segment, mask=is_taken, other=0) != 0
    delta_carry = tl.load(delta_carry_ptr + segment, mask=is_carried, other=0)
    trace_carry = tl.load(trace_carry_ptr + segment, mask=is_carried, other=0)
    for scanned in range(0, tl.max(stop - start, axis=0), TIME):
        row = (stop - 1 - scanned)[:, None] - tl.arange(0, TIME)[None, :]
        delta_carry, trace_carry = _scan_block(
            inputs,
            row,
            (row >= start[:, None], row + 1 < stop[:, None], is_carried[:, None]),
            bootstrap[:, None],
            (delta_carry, trace_carry),
            parameters_ptr,
            (results, ratios),
            COMPUTE,
        )
    tl.store(is_followed_ptr + segment, is_taken, mask=is_taken)
    tl.store(delta_carry_ptr + segment, delta_carry, mask=is_taken)
    tl.store(trace_carry_ptr + segment, trace_carry, mask=is_taken)


@triton.jit  # type: ignore[untyped-decorator]
def _scan_block(
    inputs: tl.tuple,
    row: tl.tensor,
    masks: tl.tuple,
    bootstrap: tl.tensor,
    carries: tl.tuple,
    parameters_ptr: tl.tensor,
    outputs: tl.tuple,
    COMPUTE: tl.constexpr,
) -> tl.tuple:
    is_row, is_inside, is_carried = masks
    log_ratio = tl.load(inputs[0] + row, mask=is_row, other=0).to(COMPUTE)
    value = tl.load(inputs[1] + row, mask=is_row, other=0).to(COMPUTE)
    reward = tl.load(inputs[2] + row, mask=is_row, other=0).to(COMPUTE)
    discount = tl.load(inputs[3] + row, mask=is_row, other=0).to(COMPUTE)
    # rows before the segment's first have discount 0 and log-ratio 0 and come last: they harm none
    is_interior = (is_inside | is_carried) & (discount != 0)
    next_value = tl.load(inputs[1] + row + 1, mask=is_inside & is_interior, other=0).to(COMPUTE)
    next_value = tl.where(is_inside | (discount == 0), next_value, bootstrap)
    rho = _clip_ratio(log_ratio, parameters_ptr)
    c = _multiply(tl.load(parameters_ptr + 6), _clip_ratio(log_ratio, parameters_ptr + 1))
    pg_rho = _clip_ratio(log_ratio, parameters_ptr + 2)

    delta = _multiply(rho, reward + _multiply(discount, next_value) - value)
    gate = tl.where(is_interior, c, 0.0)
    delta_sum, trace_length = _scan_pairs(delta, discount * gate, gate, is_row, carries)
    next_target = next_value + tl.where(is_interior, _shift(delta_sum, carries[0]), 0.0)
    advantage = _multiply(pg_rho, reward + _multiply(discount, next_target) - value)

    found = (value + delta_sum, advantage, delta, next_value, trace_length)
    for i in tl.static_range(5):
        if outputs[0][i] is not None:
            tl.store(outputs[0][i] + row, found[i], mask=is_row)
    ratios = (rho, c, pg_rho)
    for i in tl.static_range(3):
        if outputs[1][i] is not None:
            tl.store(outputs[1][i] + row, ratios[i], mask=is_row)
    return _take_last(delta_sum), _take_last(trace_length)


@triton.jit  # type: ignore[untyped-decorator]
def _scan_pairs(
    delta: tl.tensor, decay: tl.tensor, gate: tl.tensor, is_row: tl.tensor, carries: tl.tuple
) -> tl.tuple:
    """Return Delta and trace_length of a block, latest row first; masked rows pass them on."""
    ones = tl.full(delta.shape, 1.0, delta.dtype)
    a, b, n, g = tl.associative_scan(
        (
            tl.where(is_row, delta, 0.0),
            tl.where(is_row, decay, 1.0),
            tl.where(is_row, ones, 0.0),
            tl.where(is_row, gate, 1.0),
        ),
        1,
        _append,
    )
    return _apply(a, b, carries[0][:, None]), _apply(n, g, carries[1][:, None])


@triton.jit  # type: ignore[untyped-decorator]
def _append(
    a1: tl.tensor,
    b1: tl.tensor,
    n1: tl.tensor,
    g1: tl.tensor,
    a2: tl.tensor,
    b2: tl.tensor,
    n2: tl.tensor,
    g2: tl.tensor,
) -> tl.tuple:
    """Compose the maps of two runs of rows, the second earlier in time.

    NaN stays beyond a cut (a gate of 0), 0 stays below a product that overflows, and a product that
    underflows is no cut. No calls in here: the interpreter would take seconds for them.
    """
    is_cut = b2 == 0
    is_trace_cut = g2 == 0
    a = tl.where(is_cut | (a1 == 0), a2, a2 + b2 * a1)
    n = tl.where(is_trace_cut, n2, n2 + g2 * n1)
    b = b2 * b1
    b = tl.where(is_cut | (b1 == 0), 0.0, tl.where(b == 0, SMALLEST_GATE, b))
    g = g2 * g1
    g = tl.where(is_trace_cut | (g1 == 0), 0.0, tl.where(g == 0, SMALLEST_GATE, g))
    return a, b, n, g


@triton.jit  # type: ignore[untyped-decorator]
def _apply(a: tl.tensor, b: tl.tensor, carry: tl.tensor) -> tl.tensor:
    return tl.where((b == 0) | (carry == 0), a, a + b * carry)


@triton.jit  # type: ignore[untyped-decorator]
def _clip_ratio(log_ratio: tl.tensor, parameters_ptr: tl.tensor) -> tl.tensor:
    """min(bar, exp(log_ratio)), decided on the logarithm; NaN stays NaN."""
    bar = tl.load(parameters_ptr)
    log_bar = tl.load(parameters_ptr + 3)
    return tl.where(log_ratio > log_bar, bar, tl.exp(log_ratio))


@triton.jit  # type: ignore[untyped-decorator]
def _multiply(factor: tl.tensor, other: tl.tensor) -> tl.tensor:
    """factor * other, and 0 where factor is 0, whatever stands behind it, NaN included."""
    return tl.where(factor == 0, 0.0, factor * other)


@triton.jit  # type: ignore[untyped-decorator]
def _shift(delta_sum: tl.tensor, carry: tl.tensor) -> tl.tensor:
    """Return each row's successor's Delta; before the block's first row that is the carry."""
    place = tl.broadcast_to(tl.arange(0, delta_sum.shape[1])[None, :], delta_sum.shape)
    shifted = tl.gather(delta_sum, tl.maximum(place - 1, 0), 1)
    return tl.where(place == 0, carry[:, None], shifted)


@triton.jit  # type: ignore[untyped-decorator]
def _take_last(column: tl.tensor) -> tl.tensor:
    is_last = tl.arange(0, column.shape[1]) == column.shape[1] - 1
    return tl.sum(tl.where(is_last[None, :], column, 0.0), axis=1)
