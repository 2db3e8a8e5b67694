"""How chunks pass x on: words that one program writes and others wait for.

What a program publishes is written once, as words of 64 bits: the call's tag in the upper half, 32
bits of a number in the lower. A word with another tag is not there yet; no order between words is
needed, nor that they are cleared between calls.
"""

from __future__ import annotations

import triton
import triton.language as tl

from vtaudit.kernels.triton_pairs import append, apply, take_last

NONE, CHAIN, TREE, REPAIR = 0, 1, 2, 3  # how chunks pass x on
CARRY_CHAIN, CARRY_TREE = tl.constexpr(CHAIN), tl.constexpr(TREE)

# chunks of a group; a warp holds one word for each lane
TREE_WIDTH = 32
WIDTH = tl.constexpr(TREE_WIDTH)

# in a tree, an x that would be multiplied by less is not waited for; REPAIR comes after
NEGLIGIBLE_GATE = tl.constexpr(1e-30)

# $0: the word, read again at $2 until its tag is $3; $1: what was read before
AWAIT = tl.constexpr("""{ .reg .pred p; .reg .b32 low, tag; mov.b64 $0, $1;
AGAIN: mov.b64 {low, tag}, $0; setp.eq.s32 p, tag, $3; @p bra DONE;
ld.relaxed.gpu.global.b64 $0, [$2]; bra AGAIN; DONE: }""")


@triton.jit  # type: ignore[untyped-decorator]
def find_words(
    word_ptr: tl.tensor,
    place: tl.tuple,
    which: tl.constexpr,
    CARRY: tl.constexpr,
    COMPUTE: tl.constexpr,
) -> tl.tuple:
    """Return the words of a chunk.

    The first word of all has the call's tag if REPAIR has work; then, one word for a float32 and
    two for a float64, CHAIN: x at the chunk's first row;
    [2, panels, chunks + 1] for the scans `which`, the first of a panel is of the panel's end.
    TREE: of a and b of the chunk, and of x at its group's first row; for each scan
    [2, panels, chunks] and [panels, groups].

    Args:
        word_ptr: all words.
        place: panel, place in the panel in the order of programs, panels, chunks of a panel.
        which: 0 for Delta, 1 for trace_length.
    """
    panel, k, panels, chunks = place
    STEP: tl.constexpr = 2 if COMPUTE.primitive_bitwidth == 64 else 1
    if CARRY == CARRY_CHAIN:
        index = (which * panels + panel).to(tl.int64) * (chunks + 1) + k + 1
        return (word_ptr + 1 + STEP * index,)
    else:
        total = panels.to(tl.int64) * chunks
        groups = (chunks + WIDTH - 1) // WIDTH
        first = which * (2 * total + panels * groups)
        own = first + panel.to(tl.int64) * chunks + k
        passed_on = first + 2 * total + panel.to(tl.int64) * groups + k // WIDTH
        own_ptr = word_ptr + 1 + STEP * own
        return own_ptr, own_ptr + STEP * total, word_ptr + 1 + STEP * passed_on


@triton.jit  # type: ignore[untyped-decorator]
def peek(
    ptrs: tl.tuple,
    k: tl.tensor,
    tag: tl.tensor,
    COMPUTE: tl.constexpr,
    CARRY: tl.constexpr,
    LOOKS_AHEAD: tl.constexpr,
) -> tl.tuple:
    """Read what `receive` needs, there or not: early, so that the data hides the latency."""
    # before a panel's first chunk: 0
    words = _read(ptrs[0], 1, k >= 1 - LOOKS_AHEAD, tag, 0, COMPUTE)
    if CARRY == CARRY_TREE:
        return words, _read(ptrs[1], 1, k > 0, tag, 0, COMPUTE)
    else:
        return (words,)


@triton.jit  # type: ignore[untyped-decorator]
def receive(
    words: tl.tuple,
    ptrs: tl.tuple,
    k: tl.tensor,
    calls: tl.tuple,
    sums: tl.tuple,
    M: tl.constexpr,
    CARRY: tl.constexpr,
    WAITS: tl.constexpr,
) -> tl.tensor:
    """Return x after the chunk's last row.

    Args:
        words: what `peek` read.
        ptrs: of `find_words`.
        k: the chunk's place in its panel.
        calls: all words, and the call's tag.
        sums: of the chunk's pairs, [M].
    """
    COMPUTE: tl.constexpr = sums[0].dtype
    word_ptr, tag = calls
    if CARRY == CARRY_TREE:
        publish(ptrs[0], sums[0], tag, M)
        publish(ptrs[1], sums[1], tag, M)
        is_broken = (tl.arange(0, M) == M - 1) & ~(tl.abs(sums[0]) < float("inf"))
        tl.store(word_ptr + tl.zeros([M], tl.int32), tag, mask=is_broken)
    carry = _await(words[0], ptrs[0], 1, tag, COMPUTE, WAITS)
    if CARRY == CARRY_TREE:
        gate = _await(words[1], ptrs[1], 1, tag, COMPUTE, WAITS)
        if gate > NEGLIGIBLE_GATE:
            carry = _climb(ptrs, k, tag, COMPUTE, WAITS)
    return carry


@triton.jit  # type: ignore[untyped-decorator]
def _climb(
    ptrs: tl.tuple, k: tl.tensor, tag: tl.tensor, COMPUTE: tl.constexpr, WAITS: tl.constexpr
) -> tl.tensor:
    """Return x after a chunk's last row: from the chunks before in its group, and their carry."""
    before = k % WIDTH - tl.arange(0, WIDTH)
    a = _read(ptrs[0], before, before > 0, tag, 0, COMPUTE)
    b = _read(ptrs[1], before, before > 0, tag, 1, COMPUTE)
    a = _await(a, ptrs[0], before, tag, COMPUTE, WAITS)
    b = _await(b, ptrs[1], before, tag, COMPUTE, WAITS)
    a, b = take_last(tl.associative_scan((a, b), 0, append), WIDTH)
    is_needed = (b > NEGLIGIBLE_GATE) & (k >= WIDTH)
    former = _read(ptrs[2], 1, is_needed, tag, 0, COMPUTE)
    return apply(a, b, _await(former, ptrs[2], 1, tag, COMPUTE, WAITS), False)


@triton.jit  # type: ignore[untyped-decorator]
def pass_on(
    ptrs: tl.tuple, k: tl.tensor, tag: tl.tensor, x: tl.tensor, M: tl.constexpr, CARRY: tl.constexpr
) -> None:
    """Publish x [M] at the chunk's first row; in a tree the last chunk of a group does."""
    if CARRY == CARRY_CHAIN:
        publish(ptrs[0], x, tag, M)
    elif CARRY == CARRY_TREE:
        is_last = k % WIDTH == WIDTH - 1
        if is_last:
            publish(ptrs[2], x, tag, M)


@triton.jit  # type: ignore[untyped-decorator]
def apply_words(ptrs: tl.tuple, x: tl.tensor) -> tl.tensor:
    """Return x before a chunk of a tree that has been scanned, from x after it."""
    tag = tl.full([], 0, tl.int64)
    is_there = tag == 0
    a = _await(_read(ptrs[0], 0, is_there, tag, 0, x.dtype), ptrs[0], 0, tag, x.dtype, False)
    b = _await(_read(ptrs[1], 0, is_there, tag, 0, x.dtype), ptrs[1], 0, tag, x.dtype, False)
    return apply(a, b, x, False)


@triton.jit  # type: ignore[untyped-decorator]
def publish(ptr: tl.tensor, x: tl.tensor, tag: tl.tensor, M: tl.constexpr) -> None:
    """Write the last lane of x [M]."""
    ptrs = ptr + tl.zeros([M], tl.int32)
    is_last = tl.arange(0, M) == M - 1
    words = _to_words(x, tag)
    tl.atomic_xchg(ptrs, words[0], mask=is_last, sem="relaxed")
    if x.dtype == tl.float64:
        tl.atomic_xchg(ptrs + 1, words[1], mask=is_last, sem="relaxed")


@triton.jit  # type: ignore[untyped-decorator]
def _read(
    ptr: tl.tensor,
    before: tl.tensor,
    mask: tl.tensor,
    tag: tl.tensor,
    other: tl.constexpr,
    COMPUTE: tl.constexpr,
) -> tl.tuple:
    """Return the words of the number `before` places before, there or not, else of `other`."""
    others = _to_words(tl.full([], other, COMPUTE), tag)
    if COMPUTE.primitive_bitwidth == 64:
        low = tl.load(ptr - 2 * before, mask=mask, other=others[0], volatile=True)
        return low, tl.load(ptr - 2 * before + 1, mask=mask, other=others[1], volatile=True)
    else:
        return (tl.load(ptr - before, mask=mask, other=others[0], volatile=True),)


@triton.jit  # type: ignore[untyped-decorator]
def _await(
    words: tl.tuple,
    ptr: tl.tensor,
    before: tl.tensor,
    tag: tl.tensor,
    COMPUTE: tl.constexpr,
    WAITS: tl.constexpr,
) -> tl.tensor:
    """Return the number of words that `_read` read, once they are there."""
    if COMPUTE.primitive_bitwidth == 64:
        low = _await_word(words[0], ptr - 2 * before, tag, WAITS) & 0xFFFFFFFF
        number = low | (_await_word(words[1], ptr - 2 * before + 1, tag, WAITS) << 32)
    else:
        number = _await_word(words[0], ptr - before, tag, WAITS).to(tl.int32)
    return number.to(COMPUTE, bitcast=True)


@triton.jit  # type: ignore[untyped-decorator]
def _await_word(word: tl.tensor, ptr: tl.tensor, tag: tl.tensor, WAITS: tl.constexpr) -> tl.tensor:
    if WAITS:
        half = (tag >> 32).to(tl.int32)
        word = tl.inline_asm_elementwise(
            AWAIT, "=&l,l,l,r", [word, ptr, half], dtype=tl.int64, is_pure=False, pack=1
        )
    return word


@triton.jit  # type: ignore[untyped-decorator]
def _to_words(x: tl.tensor, tag: tl.tensor) -> tl.tuple:
    if x.dtype == tl.float64:
        bits = x.to(tl.int64, bitcast=True)
        return (bits & 0xFFFFFFFF) | tag, ((bits >> 32) & 0xFFFFFFFF) | tag
    else:
        return ((x.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF) | tag,)
