"""A chunk of rows as tiles: loads and stores of 16 bytes a lane, cuts, what needs no scan."""

from __future__ import annotations

import triton
import triton.language as tl

from vtaudit.kernels.triton_pairs import exp, join, multiply, split

# how windows lie in chunks
SEGMENTS, ANY_WINDOW, SHORT_WINDOW, PANEL_WINDOW = 0, 1, 2, 3
IS_SEGMENTS, IS_SHORT = tl.constexpr(SEGMENTS), tl.constexpr(SHORT_WINDOW)
IS_PANEL = tl.constexpr(PANEL_WINDOW)


@triton.jit  # type: ignore[untyped-decorator]
def load_chunk(
    inputs: tl.tuple,
    cuts: tl.tuple,
    factors: tl.tuple,
    chunk: tl.tensor,
    row_count: tl.tensor,
    how: tl.constexpr,
) -> tl.tuple:
    """Return what a chunk's rows give without a scan, pairs to scan, and what is needed after.

    All are tiles [M, 4]: log-ratio, rho, c, pg_rho, delta, next value; delta, decay, gate; value,
    error, discount, pg_rho, which rows are interior.
    """
    M: tl.constexpr = how[0]
    COMPUTE: tl.constexpr = how[6]
    start, left = bound(chunk, row_count, M)
    # all loads before the first use; only the stream's last chunk needs masks, which are slow
    if left == 4 * M:
        columns = _load_columns(inputs, cuts, start, left, row_count, M, 1)
    else:
        columns = _load_columns(inputs, cuts, start, left, row_count, M, 0)
    log_ratio, behavior, value, reward, given_discount, following, ends, truncated = columns
    if inputs[1] is not None:
        log_ratio = _subtract(log_ratio, behavior, COMPUTE)
    log_ratio = log_ratio.to(how[5]).to(COMPUTE)
    value, reward = value.to(COMPUTE), reward.to(COMPUTE)
    is_cut, is_end, place = _find_cuts(cuts, ends, truncated, start, left, M, how[3])
    discount = tl.full([M, 4], 0, COMPUTE) + factors[0]
    if inputs[4] is not None:
        discount = tl.where(is_cut, 0.0, discount * given_discount.to(COMPUTE))
        is_cut = discount == 0
    is_interior = ~(is_cut | is_end)
    bootstrap = tl.load(cuts[2] + place, mask=is_end & ~is_cut, other=0).to(COMPUTE)
    _, second, third, fourth = split(value, M)
    next_value = join(second, third, fourth, following.to(COMPUTE), M)
    next_value = tl.where(is_interior, next_value, bootstrap)
    error = reward + discount * next_value - value
    rho, c, pg_rho, error = _clip_ratios(log_ratio, error, factors, how)
    delta = rho * error if how[4] else multiply(rho, error)
    gate = tl.where(is_interior, c, 0.0)
    made = (log_ratio, rho, c, pg_rho, delta, next_value)
    return made, (delta, discount * gate, gate), (value, error, discount, pg_rho, is_interior)


@triton.jit  # type: ignore[untyped-decorator]
def _subtract(target: tl.tensor, behavior: tl.tensor, COMPUTE: tl.constexpr) -> tl.tensor:
    """Return target - behavior, in float64 where one of them is."""
    WIDE: tl.constexpr = tl.float64 if behavior.dtype == tl.float64 else COMPUTE
    NUMBER: tl.constexpr = tl.float64 if target.dtype == tl.float64 else WIDE
    return target.to(NUMBER) - behavior.to(NUMBER)


@triton.jit  # type: ignore[untyped-decorator]
def _clip_ratios(
    log_ratio: tl.tensor, error: tl.tensor, factors: tl.tuple, how: tl.constexpr
) -> tl.tuple:
    """Return rho, c, pg_rho, and the error, which is 0 where rho is, if all bars are 1."""
    ratio = exp(log_ratio, how[7])
    if how[4]:
        rho = tl.minimum(ratio, 1.0, propagate_nan=tl.PropagateNan.ALL)
        c, pg_rho = rho, rho
        error = tl.where(rho == 0, 0.0, error)
    else:
        rho = tl.where(log_ratio > factors[4], factors[1], ratio)
        c = multiply(factors[7], tl.where(log_ratio > factors[5], factors[2], ratio))
        pg_rho = tl.where(log_ratio > factors[6], factors[3], ratio)
    return rho, c, pg_rho, error


@triton.jit  # type: ignore[untyped-decorator]
def _load_columns(
    inputs: tl.tuple,
    cuts: tl.tuple,
    start: tl.tensor,
    left: tl.tensor,
    row_count: tl.tensor,
    M: tl.constexpr,
    IS_FULL: tl.constexpr,
) -> tl.tuple:
    """Return a chunk of each column; where there is none, another stands in.

    The sixth is the first row of the lane before, once more: the last row's successor's value. A
    row that is not there is terminated. The ends of segments are a word for 32 rows, [M].
    """
    group = (M - 1 - tl.arange(0, M)) * 4
    if cuts[0].dtype.element_ty == tl.int64:
        ends = tl.load(cuts[0] + start // 32 + group // 32)
    else:
        ends = _load(cuts[0], start, left, 1, M, IS_FULL)
    truncated = ends
    if cuts[1] is not None:
        truncated = _load(cuts[1], start, left, 0, M, IS_FULL)
    log_ratio = _load(inputs[0], start, left, 0, M, IS_FULL)
    behavior = log_ratio
    if inputs[1] is not None:
        behavior = _load(inputs[1], start, left, 0, M, IS_FULL)
    value = _load(inputs[2], start, left, 0, M, IS_FULL)
    reward = _load(inputs[3], start, left, 0, M, IS_FULL)
    discount = reward
    if inputs[4] is not None:
        discount = _load(inputs[4], start, left, 0, M, IS_FULL)
    has_next = (group + 4 < left) | (start + 4 * M < row_count)
    following = tl.load(inputs[2] + start + group + 4, mask=has_next, other=0)
    return log_ratio, behavior, value, reward, discount, following, ends, truncated


@triton.jit  # type: ignore[untyped-decorator]
def _find_cuts(
    cuts: tl.tuple,
    ends: tl.tensor,
    truncated: tl.tensor,
    start: tl.tensor,
    left: tl.tensor,
    M: tl.constexpr,
    WINDOW: tl.constexpr,
) -> tl.tuple:
    """Return where the next value is 0, where else it is a bootstrap, and the bootstrap's place."""
    place = positions(M)
    if WINDOW == IS_SEGMENTS:
        # above the bits of 32 rows: how many segments end before
        column, shift = place % 4, (M - 1 - tl.arange(0, M)) * 4 % 32
        bits = ends.to(tl.uint32)
        before = (ends >> 32).to(tl.int32) + _count_bits(bits & ((1 << shift) - 1))
        bits = (bits >> shift)[:, None].to(tl.int32)
        is_terminated = place >= left
        is_end = ((bits >> column) & 1) != 0
        bootstrap = before[:, None] + _count_bits(bits & ((1 << column) - 1))
    else:
        code = ends.to(tl.int32)
        is_terminated, is_end = (code & 1) != 0, (code & 2) != 0
        if cuts[1] is not None:
            is_terminated, is_end = code != 0, truncated != 0
        is_end = is_end | _is_last_column(start, cuts[3], cuts[4], M, WINDOW)
        bootstrap = start + place
    return is_terminated, is_end, bootstrap


@triton.jit  # type: ignore[untyped-decorator]
def _is_last_column(
    start: tl.tensor,
    window: tl.tensor,
    is_window_end: tl.tensor,
    M: tl.constexpr,
    WINDOW: tl.constexpr,
) -> tl.tensor:
    """Return which rows are the last of a window."""
    place = positions(M)
    if WINDOW == IS_PANEL:
        is_last = (place == 4 * M - 1) & is_window_end
    elif WINDOW == IS_SHORT:  # a power of two
        is_last = ((place + 1) & (window.to(tl.int32) - 1)) == 0
    else:
        column = start % window
        if window >= 4 * M:
            is_last = place == tl.minimum(window - 1 - column, 4 * M).to(tl.int32)
        else:
            is_last = (place + 1 + column.to(tl.int32)) % window.to(tl.int32) == 0
    return is_last


@triton.jit  # type: ignore[untyped-decorator]
def positions(M: tl.constexpr) -> tl.tensor:
    """Return the place in the chunk of each element of a tile; lanes descend, columns ascend."""
    return (M - 1 - tl.arange(0, M))[:, None] * 4 + tl.arange(0, 4)[None, :]


@triton.jit  # type: ignore[untyped-decorator]
def bound(chunk: tl.tensor, row_count: tl.tensor, M: tl.constexpr) -> tl.tuple:
    """Return the chunk's first row and how many rows it has."""
    start = chunk * (4 * M)
    return start, tl.minimum(row_count - start, 4 * M).to(tl.int32)


@triton.jit  # type: ignore[untyped-decorator]
def _load(
    ptr: tl.tensor,
    start: tl.tensor,
    left: tl.tensor,
    other: tl.constexpr,
    M: tl.constexpr,
    IS_FULL: tl.constexpr,
) -> tl.tensor:
    place = positions(M)
    if IS_FULL:
        rows = tl.load(ptr + start + place)
    else:
        rows = tl.load(ptr + start + place, mask=place < left, other=other)
    return rows


@triton.jit  # type: ignore[untyped-decorator]
def store(
    ptr: tl.tensor, start: tl.tensor, left: tl.tensor, rows: tl.tensor, M: tl.constexpr
) -> None:
    if ptr is not None:
        place = positions(M)
        if left == 4 * M:
            tl.store(ptr + start + place, rows)
        else:
            tl.store(ptr + start + place, rows, mask=place < left)


@triton.jit  # type: ignore[untyped-decorator]
def _count_bits(word: tl.tensor) -> tl.tensor:
    count = word - ((word >> 1) & 0x55555555)
    count = (count & 0x33333333) + ((count >> 2) & 0x33333333)
    return ((((count + (count >> 4)) & 0x0F0F0F0F) * 0x01010101) >> 24).to(tl.int32)


@triton.jit  # type: ignore[untyped-decorator]
def to_number(bits: tl.tensor, COMPUTE: tl.constexpr) -> tl.tensor:
    if COMPUTE.primitive_bitwidth == 64:
        number = tl.cast(bits, tl.int64).to(COMPUTE, bitcast=True)
    else:
        number = tl.cast(bits, tl.int32).to(COMPUTE, bitcast=True)
    return number
