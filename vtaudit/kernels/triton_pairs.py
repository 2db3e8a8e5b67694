"""Pairs (a, b) that stand for x -> a + b x, and their scan along a tile.

Maps compose associatively, (a2, b2) after (a1, b1) = (a2 + b2 a1, b2 b1); b = 0 is a cut. A tile
[M, 4] holds four rows a lane, lanes descending in time.
"""

from __future__ import annotations

import triton
import triton.language as tl

# a product of gates that underflows is no cut: this lets NaN and inf pass through
SMALLEST_GATE = tl.constexpr(1.1754943508222875e-38)


@triton.jit  # type: ignore[untyped-decorator]
def scan_tile(
    a: tl.tensor,
    b: tl.tensor,
    x: tl.tensor,
    carry: tl.tensor,
    M: tl.constexpr,
    BOUNDED: tl.constexpr,
) -> tl.tuple:
    """Return x_t = a_t + b_t x_{t+1} and x_{t+1}, tiles.

    Args:
        a, b: tiles [M, 4].
        x: at each lane's first row, [M].
        carry: x after the chunk's last row.
        BOUNDED: whether gates are at most 1.
    """
    lane = tl.arange(0, M)
    after = tl.where(lane == 0, carry, tl.gather(x, tl.maximum(lane - 1, 0), 0))
    a0, a1, a2, a3 = split(a, M)
    b0, b1, b2, b3 = split(b, M)
    x3 = apply(a3, b3, after, BOUNDED)
    x2 = apply(a2, b2, x3, BOUNDED)
    x1 = apply(a1, b1, x2, BOUNDED)
    x0 = apply(a0, b0, x1, BOUNDED)
    return join(x0, x1, x2, x3, M), join(x1, x2, x3, after, M)


@triton.jit  # type: ignore[untyped-decorator]
def compose(a: tl.tensor, b: tl.tensor, M: tl.constexpr, BOUNDED: tl.constexpr) -> tl.tuple:
    """Return each lane's rows composed with all later rows of the chunk, [M]."""
    a0, a1, a2, a3 = split(a, M)
    b0, b1, b2, b3 = split(b, M)
    if BOUNDED:
        pair = append_bounded(a3, b3, a2, b2)
        pair = append_bounded(pair[0], pair[1], a1, b1)
        pair = append_bounded(pair[0], pair[1], a0, b0)
        sums = tl.associative_scan(pair, 0, append_bounded)
    else:
        pair = append(a3, b3, a2, b2)
        pair = append(pair[0], pair[1], a1, b1)
        pair = append(pair[0], pair[1], a0, b0)
        sums = tl.associative_scan(pair, 0, append)
    return sums


@triton.jit  # type: ignore[untyped-decorator]
def append(a1: tl.tensor, b1: tl.tensor, a2: tl.tensor, b2: tl.tensor) -> tl.tuple:
    """Compose the maps of two runs of rows, the second earlier in time.

    NaN stays beyond a cut, 0 stays below a product that overflows, and a product that underflows is
    no cut. No calls in here: the interpreter would take seconds for them.
    """
    is_cut = b2 == 0
    a = tl.where(is_cut | (a1 == 0), a2, a2 + b2 * a1)
    b = tl.where(is_cut | (b1 == 0), 0.0, tl.maximum(b2 * b1, SMALLEST_GATE))
    return a, b


@triton.jit  # type: ignore[untyped-decorator]
def append_bounded(a1: tl.tensor, b1: tl.tensor, a2: tl.tensor, b2: tl.tensor) -> tl.tuple:
    """Do as `append`, for gates of at most 1, whose product does not overflow: the same bits."""
    is_cut = b2 == 0
    a = tl.where(is_cut, a2, a2 + b2 * a1)
    b = tl.where(is_cut | (b1 == 0), 0.0, tl.maximum(b2 * b1, SMALLEST_GATE))
    return a, b


@triton.jit  # type: ignore[untyped-decorator]
def apply(a: tl.tensor, b: tl.tensor, x: tl.tensor, BOUNDED: tl.constexpr) -> tl.tensor:
    """a + b x, and a where a factor is 0, whatever the other; b is finite if bounded."""
    is_cut = b == 0
    if not BOUNDED:
        is_cut = is_cut | (x == 0)
    return tl.where(is_cut, a, a + b * x)


@triton.jit  # type: ignore[untyped-decorator]
def multiply(factor: tl.tensor, other: tl.tensor) -> tl.tensor:
    """factor * other, and 0 where factor is 0, whatever stands behind it, NaN included."""
    return tl.where(factor == 0, 0.0, factor * other)


@triton.jit  # type: ignore[untyped-decorator]
def exp(x: tl.tensor, IS_COMPILED: tl.constexpr) -> tl.tensor:
    """e^x; in float32 a result below the smallest normal number is 0, which saves instructions."""
    if IS_COMPILED and x.dtype == tl.float32:
        y = tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;",
            "=r,r",
            [x * 1.4426950408889634],
            dtype=tl.float32,
            is_pure=True,
            pack=1,
        )
    else:
        y = tl.exp(x)
    return y


@triton.jit  # type: ignore[untyped-decorator]
def take_last(pair: tl.tuple, LANES: tl.constexpr) -> tl.tuple:
    """Return the last lane of both, scalars."""
    is_last = tl.arange(0, LANES) == LANES - 1
    return (
        tl.sum(tl.where(is_last, pair[0], 0.0), 0),
        tl.sum(tl.where(is_last, pair[1], 0.0), 0),
    )


@triton.jit  # type: ignore[untyped-decorator]
def split(tile: tl.tensor, M: tl.constexpr) -> tl.tuple:
    """Return the four columns of a tile [M, 4]."""
    even, odd = tl.split(tl.reshape(tile, [M, 2, 2]))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@triton.jit  # type: ignore[untyped-decorator]
def join(
    first: tl.tensor, second: tl.tensor, third: tl.tensor, fourth: tl.tensor, M: tl.constexpr
) -> tl.tensor:
    """Return the tile [M, 4] of four columns."""
    return tl.reshape(tl.join(tl.join(first, third), tl.join(second, fourth)), [M, 4])
