"""V-trace on a GPU over one stream of rows with cuts, at the limit of the device's memory.

A program takes one chunk of the stream as a tile [M, 4] whose lanes descend in time: lane 0 holds
the chunk's last four rows, each column is one 16-byte access a lane, and a plain forward scan over
the lanes runs back in time. Chunks pass Delta and trace_length on in one of three ways, which
`stream.py` chooses, always combined in the same order: a call gives the same bits every time.

- NONE: every chunk ends with a cut.
- CHAIN: the stream is `panels` runs of `chunks` chunks. Those of a group take turns, so that the
  chunk that follows in time has just been done. Where a panel does not end with a cut, one more
  program for each panel looks ahead to the first cut after it.
- TREE: a chunk applies what the chunk after it published of itself. Only where gates are so large
  that more matters, it composes what all chunks after it in its group published, and applies what
  the group after passed on. A REPAIR follows, which does nothing unless numbers are not finite;
  where the device can, it is launched before the scan is done, and waits.

A program waits only for programs of lower index. The device starts programs in order of index, on
which NVIDIA's own single-pass scan relies too (CUB, agent_scan.cuh): what is waited for has begun.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from vtaudit.kernels.triton_counts import count_clips
from vtaudit.kernels.triton_pairs import append, apply, compose, multiply, scan_tile, take_last
from vtaudit.kernels.triton_rows import bound, load_chunk, store, to_number
from vtaudit.kernels.triton_words import (
    NONE,
    REPAIR,
    apply_words,
    find_words,
    pass_on,
    peek,
    publish,
    receive,
)

NO_CARRY, CARRY_REPAIR = tl.constexpr(NONE), tl.constexpr(REPAIR)

# a value of an integer is no reason to compile anew
NUMBERS = ["row_count", "window", "panels", "chunks", "tag", "gamma", "rho_bar", "c_bar"]
NUMBERS += ["pg_rho_bar", "log_rho_bar", "log_c_bar", "log_pg_rho_bar", "lambda_"]


@triton.jit(do_not_specialize=NUMBERS)  # type: ignore[untyped-decorator]
def vtrace_stream_kernel(
    target_ptr: tl.tensor,  # log pi, or the log-ratio where behavior_ptr is None
    behavior_ptr: tl.tensor,
    value_ptr: tl.tensor,
    reward_ptr: tl.tensor,
    discount_ptr: tl.tensor,
    end_ptr: tl.tensor,
    truncated_ptr: tl.tensor,
    bootstrap_ptr: tl.tensor,
    value_target_ptr: tl.tensor,
    advantage_ptr: tl.tensor,
    log_ratio_ptr: tl.tensor,
    rho_ptr: tl.tensor,
    c_ptr: tl.tensor,
    pg_rho_ptr: tl.tensor,
    delta_ptr: tl.tensor,
    next_value_ptr: tl.tensor,
    trace_length_ptr: tl.tensor,
    clip_ptr: tl.tensor,
    word_ptr: tl.tensor,
    row_count: tl.int64,
    window: tl.int64,
    panels: tl.int32,
    chunks: tl.int32,
    tag: tl.int64,
    gamma: tl.int64,  # this and the following: bits of a number of the type of the arithmetic
    rho_bar: tl.int64,
    c_bar: tl.int64,
    pg_rho_bar: tl.int64,
    log_rho_bar: tl.int64,
    log_c_bar: tl.int64,
    log_pg_rho_bar: tl.int64,
    lambda_: tl.int64,
    M: tl.constexpr,
    CARRY: tl.constexpr,
    HAS_ONE_PANEL: tl.constexpr,
    HAS_GROUPS: tl.constexpr,
    TURNS: tl.constexpr,
    HAS_GAPS: tl.constexpr,
    LOOKS_AHEAD: tl.constexpr,
    WINDOW: tl.constexpr,
    ARE_BARS_ONE: tl.constexpr,
    IS_RESULT_WIDE: tl.constexpr,
    IS_COMPUTE_WIDE: tl.constexpr,
    WAITS: tl.constexpr,
    IS_EARLY: tl.constexpr,
) -> None:
    RESULT: tl.constexpr = tl.float64 if IS_RESULT_WIDE else tl.float32
    COMPUTE: tl.constexpr = tl.float64 if IS_COMPUTE_WIDE else tl.float32
    panel, k = tl.program_id(0), tl.program_id(1) - LOOKS_AHEAD
    if HAS_ONE_PANEL:
        panel, k = k, panel
    if TURNS > 1:
        k -= panel % TURNS
    if HAS_GROUPS:
        panel += tl.program_id(2) * tl.num_programs(0)
    if HAS_GAPS:
        is_outside = (panel >= panels) | (k < -LOOKS_AHEAD) | (k >= chunks)
        if is_outside:
            return
    place = (panel, k, panels, chunks)
    factors = (
        to_number(gamma, COMPUTE),
        to_number(rho_bar, COMPUTE),
        to_number(c_bar, COMPUTE),
        to_number(pg_rho_bar, COMPUTE),
        to_number(log_rho_bar, COMPUTE),
        to_number(log_c_bar, COMPUTE),
        to_number(log_pg_rho_bar, COMPUTE),
        to_number(lambda_, COMPUTE),
    )
    inputs = (target_ptr, behavior_ptr, value_ptr, reward_ptr, discount_ptr)
    cuts = (end_ptr, truncated_ptr, bootstrap_ptr, window, k == 0)
    calls = (word_ptr, tag)
    made = (log_ratio_ptr, rho_ptr, c_ptr, pg_rho_ptr, delta_ptr, next_value_ptr)
    scanned = (value_target_ptr, advantage_ptr, trace_length_ptr, clip_ptr)
    how: tl.constexpr = (M, CARRY, LOOKS_AHEAD, WINDOW, ARE_BARS_ONE, RESULT, COMPUTE, WAITS)
    if CARRY == CARRY_REPAIR:
        if IS_EARLY:
            gdc_wait()
        if tl.load(word_ptr) == tag:
            _repair(inputs, cuts, factors, made, scanned, calls, place, row_count, how)
    else:
        if LOOKS_AHEAD:
            is_ahead = k == -1
            if is_ahead:
                _look_ahead(inputs, cuts, factors, scanned, calls, place, row_count, how)
                return
        _scan_chunk(inputs, cuts, factors, made, scanned, calls, place, row_count, (), how)


@triton.jit  # type: ignore[untyped-decorator]
def _scan_chunk(
    inputs: tl.tuple,
    cuts: tl.tuple,
    factors: tl.tuple,
    made: tl.tuple,
    scanned: tl.tuple,
    calls: tl.tuple,
    place: tl.tuple,
    row_count: tl.tensor,
    carries: tl.tuple,
    how: tl.constexpr,
) -> None:
    """Scan one chunk; `carries` are Delta and trace_length after it, of REPAIR alone."""
    M: tl.constexpr = how[0]
    CARRY: tl.constexpr = how[1]
    HAS_TRACE: tl.constexpr = scanned[2] is not None
    panel, k, _, chunks = place
    delta_carry, trace_carry = _find_carries(calls, place, carries, HAS_TRACE, how)
    chunk = panel.to(tl.int64)
    if CARRY != NO_CARRY:
        chunk = chunk * chunks + (chunks - 1 - k)
    start, left = bound(chunk, row_count, M)
    rows, pairs, later = load_chunk(inputs, cuts, factors, chunk, row_count, how)
    for i in tl.static_range(6):
        store(made[i], start, left, rows[i], M)
    if scanned[3] is not None and CARRY != CARRY_REPAIR:
        count_clips(scanned[3], rows[0], factors, left, place, M, how[4])
    delta, decay, gate = pairs
    delta_sum, next_sum = _scan(delta, decay, delta_carry, k, calls, how)
    value, error, discount, pg_rho, is_interior = later
    store(scanned[0], start, left, value + delta_sum, M)
    if how[4]:
        # pg_rho is c: where that is 0 the advantage is 0 in any case
        advantage = pg_rho * tl.where(decay == 0, error, error + discount * next_sum)
    else:
        error = tl.where(is_interior, error + discount * next_sum, error)
        advantage = multiply(pg_rho, error)
    store(scanned[1], start, left, advantage, M)
    if HAS_TRACE:
        ones = tl.full([M, 4], 1, gate.dtype)
        trace_length, _ = _scan(ones, gate, trace_carry, k, calls, how)
        store(scanned[2], start, left, trace_length, M)


@triton.jit  # type: ignore[untyped-decorator]
def _find_carries(
    calls: tl.tuple,
    place: tl.tuple,
    carries: tl.tuple,
    HAS_TRACE: tl.constexpr,
    how: tl.constexpr,
) -> tl.tuple:
    """Return what `_scan` receives x with, of Delta and of trace_length: words, and their places.

    Of REPAIR they are the numbers themselves, of NONE nothing.
    """
    CARRY: tl.constexpr = how[1]
    delta: tl.tuple = ((), ())
    trace: tl.tuple = ((), ())
    if CARRY == CARRY_REPAIR:
        delta, trace = ((carries[0],), ()), ((carries[1],), ())
    elif CARRY != NO_CARRY:
        ptrs = find_words(calls[0], place, 0, CARRY, how[6])
        delta = (peek(ptrs, place[1], calls[1], how[6], CARRY, how[2]), ptrs)
        if HAS_TRACE:
            ptrs = find_words(calls[0], place, 1, CARRY, how[6])
            trace = (peek(ptrs, place[1], calls[1], how[6], CARRY, how[2]), ptrs)
    return delta, trace


@triton.jit  # type: ignore[untyped-decorator]
def _scan(
    a: tl.tensor,
    b: tl.tensor,
    carries: tl.tuple,
    k: tl.tensor,
    calls: tl.tuple,
    how: tl.constexpr,
) -> tl.tuple:
    """Return x_t = a_t + b_t x_{t+1} and x_{t+1}, tiles; `carries` of `_find_carries`."""
    words, ptrs = carries
    M: tl.constexpr = how[0]
    CARRY: tl.constexpr = how[1]
    sums = compose(a, b, M, how[4])
    carry = tl.full([], 0, a.dtype)
    if CARRY == CARRY_REPAIR:
        carry = words[0]
    elif CARRY != NO_CARRY:
        carry = receive(words, ptrs, k, calls, sums, M, CARRY, how[7])
    x = apply(sums[0], sums[1], carry + tl.zeros([M], a.dtype), how[4])
    pass_on(ptrs, k, calls[1], x, M, CARRY)
    return scan_tile(a, b, x, carry, M, how[4])


@triton.jit  # type: ignore[untyped-decorator]
def _repair(
    inputs: tl.tuple,
    cuts: tl.tuple,
    factors: tl.tuple,
    made: tl.tuple,
    scanned: tl.tuple,
    calls: tl.tuple,
    place: tl.tuple,
    row_count: tl.tensor,
    how: tl.constexpr,
) -> None:
    """Scan once more each chunk of a panel that numbers that are not finite reach from after it."""
    COMPUTE: tl.constexpr = how[6]
    panel, _, panels, chunks = place
    x, n = tl.full([], 0, COMPUTE), tl.full([], 0, COMPUTE)
    k = panel * 0
    while k < chunks:
        here = (panel, k, panels, chunks)
        if ~(tl.abs(x) + tl.abs(n) < float("inf")):
            _scan_chunk(inputs, cuts, factors, made, scanned, calls, here, row_count, (x, n), how)
        x = apply_words(find_words(calls[0], here, 0, how[1], COMPUTE), x)
        if scanned[2] is not None:
            n = apply_words(find_words(calls[0], here, 1, how[1], COMPUTE), n)
        k += 1


@triton.jit  # type: ignore[untyped-decorator]
def _look_ahead(
    inputs: tl.tuple,
    cuts: tl.tuple,
    factors: tl.tuple,
    scanned: tl.tuple,
    calls: tl.tuple,
    place: tl.tuple,
    row_count: tl.tensor,
    how: tl.constexpr,
) -> None:
    """Compose the chunks after a panel up to the first cut and publish x at its end."""
    M: tl.constexpr = how[0]
    COMPUTE: tl.constexpr = how[6]
    HAS_TRACE: tl.constexpr = scanned[2] is not None
    panel, _, _, chunks = place
    chunk = (panel.to(tl.int64) + 1) * chunks
    a, b = tl.full([], 0, COMPUTE), tl.full([], 1, COMPUTE)
    n, g = tl.full([], 0, COMPUTE), tl.full([], 1, COMPUTE)
    while ((b != 0) | (g != 0)) & (chunk * (4 * M) < row_count):
        pairs = load_chunk(inputs, cuts, factors, chunk, row_count, how)[1]
        later = take_last(compose(pairs[0], pairs[1], M, how[4]), M)
        a, b = append(later[0], later[1], a, b)
        if HAS_TRACE:
            later = take_last(compose(tl.full([M, 4], 1, COMPUTE), pairs[2], M, how[4]), M)
            n, g = append(later[0], later[1], n, g)
        else:
            g = b
        chunk += 1
    publish(
        find_words(calls[0], place, 0, how[1], COMPUTE)[0], a + tl.zeros([M], COMPUTE), calls[1], M
    )
    if HAS_TRACE:
        publish(
            find_words(calls[0], place, 1, how[1], COMPUTE)[0],
            n + tl.zeros([M], COMPUTE),
            calls[1],
            M,
        )
