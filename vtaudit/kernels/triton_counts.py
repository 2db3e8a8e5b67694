"""How many rows each bar clips: counted by many programs in many places, then added up."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from vtaudit.kernels.triton_rows import positions

# places, lest all programs queue for one
CLIP_SLOTS = 1024
SLOTS = tl.constexpr(CLIP_SLOTS)


@triton.jit  # type: ignore[untyped-decorator]
def count_clips(
    clip_ptr: tl.tensor,
    log_ratio: tl.tensor,
    factors: tl.tuple,
    left: tl.tensor,
    place: tl.tuple,
    M: tl.constexpr,
    ARE_BARS_ONE: tl.constexpr,
) -> None:
    """Add the numbers of a chunk's rows that each bar clips to one of the places."""
    is_row = positions(M) < left
    lane = tl.arange(0, 4)
    counts = tl.zeros([4], tl.int32)
    for i in tl.static_range(3):
        if i == 0 or not ARE_BARS_ONE:
            clipped = tl.sum(tl.sum(((log_ratio > factors[4 + i]) & is_row).to(tl.int32), 1), 0)
        counts = tl.where(lane == i, clipped, counts)
    slot_ptr = clip_ptr + 4 * ((place[0] + place[1]) % SLOTS)
    tl.atomic_add(slot_ptr + lane, counts.to(tl.int64), mask=lane < 3, sem="relaxed")


@triton.jit(do_not_specialize=["stride"])  # type: ignore[untyped-decorator]
def add_counts_kernel(
    slot_ptr: tl.tensor, clip_ptr: tl.tensor, stride: tl.int64, IS_EARLY: tl.constexpr
) -> None:
    """Add all places to the three counts, and clear them for the next call; one program."""
    if IS_EARLY:
        gdc_wait()
    lane = tl.arange(0, 4)
    ptrs = slot_ptr + tl.arange(0, SLOTS)[:, None] * 4 + lane[None, :]
    counts = tl.sum(tl.load(ptrs), 0)
    tl.store(ptrs, tl.zeros([SLOTS, 4], tl.int64))
    tl.atomic_add(clip_ptr + lane * stride, counts, mask=lane < 3, sem="relaxed")
