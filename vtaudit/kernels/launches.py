"""How a stream of rows is cut into chunks and panels: the launch rule, and cuts of segments.

The rule depends on shape and offsets alone, so the same call gives the same bits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from vtaudit.kernels.triton_rows import ANY_WINDOW, PANEL_WINDOW, SEGMENTS, SHORT_WINDOW
from vtaudit.kernels.triton_words import CHAIN, NONE, TREE

# rows of a chunk, which one program scans, four a thread; in a tree fewer, for shorter waits
CHUNK_ROWS = 512
TREE_CHUNK_ROWS = 256
# a chain needs so many panels, or its programs wait for each other; a stream is cut into so many
CHAIN_PANELS = 512
STREAM_PANELS = 1024
# programs of one panel that a grid can hold beside others
MAX_GRID = 65_535
# panels run in groups of so many or more: rows that lie together are read at about the same time,
# and the chunk that a program waits for is done. A tree's programs wait less, for its neighbors
CHAIN_GROUP = 384
TREE_GROUP = 16
# windows of so many chunks or more start in turns within their group: all would read the same
# column, and addresses a power of two apart share channels of the memory
LONG_WINDOW = 64
TURNS = 16
# a chain may look ahead over so many chunks in one panel, and in all over this share of them
MAX_CHUNKS_AHEAD = 64
MAX_SHARE_AHEAD = 1 / 16


class Launch(NamedTuple):
    """How chunks pass on what they carry, the panels they form, their rows, how windows lie."""

    carry: int
    panels: int
    chunks: int
    chunk_rows: int
    window: int
    looks_ahead: bool = False
    group: int = 1  # panels that run side by side
    turns: int = 1

    @property
    def grid(self) -> tuple[int, int, int]:
        """Programs, in the order in which they start: the first number counts up first."""
        if self.panels == 1:
            return self.chunks, 1, 1
        steps = self.chunks + self.looks_ahead + self.turns - 1
        return self.group, steps, -(-self.panels // self.group)


def _launch_panels(
    carry: int, panels: int, chunks: int, rows: int, window: int, looks_ahead: bool = False
) -> Launch:
    """Return a launch whose panels are in groups of about the same size."""
    if carry == NONE:
        return Launch(carry, panels, chunks, rows, window, looks_ahead, panels)
    groups = max(panels // (CHAIN_GROUP if carry == CHAIN else TREE_GROUP), 1)
    is_long = carry == CHAIN and window == PANEL_WINDOW and chunks >= LONG_WINDOW
    group, turns = -(-panels // groups), TURNS if is_long else 1
    return Launch(carry, panels, chunks, rows, window, looks_ahead, group, turns)


@functools.lru_cache(maxsize=1024)
def launch_windows(num_envs: int, seq_len: int) -> Launch:
    """Return the launch for windows that lie one after the other."""
    count = num_envs * seq_len
    for chunk_rows in (CHUNK_ROWS, 2 * CHUNK_ROWS):
        if count == 0 or chunk_rows % seq_len == 0:
            panels = max(-(-count // chunk_rows), 1)
            return _launch_panels(NONE, panels, 1, chunk_rows, SHORT_WINDOW)
    chunks = seq_len // CHUNK_ROWS
    if seq_len % CHUNK_ROWS == 0 and num_envs >= CHAIN_PANELS:
        return _launch_panels(CHAIN, num_envs, chunks, CHUNK_ROWS, PANEL_WINDOW)
    chunks = seq_len // TREE_CHUNK_ROWS
    if seq_len % TREE_CHUNK_ROWS == 0 and num_envs < CHAIN_PANELS and chunks <= MAX_GRID:
        return _launch_panels(TREE, num_envs, chunks, TREE_CHUNK_ROWS, PANEL_WINDOW)
    return _launch_stream(count, ANY_WINDOW, lambda rows: -(-rows // seq_len) * seq_len)


def launch_segments(offsets: NDArray[np.int64]) -> Launch:
    """Return the launch for packed segments."""
    count = int(offsets[-1])
    return _launch_stream(count, SEGMENTS, lambda rows: offsets[np.searchsorted(offsets, rows)])


def _launch_stream(
    count: int, window: int, find_cuts: Callable[[NDArray[np.int64]], NDArray[np.int64]]
) -> Launch:
    """Chain panels if the first cuts after their ends are near, else one tree."""
    chunks = -(-count // CHUNK_ROWS)
    if chunks <= 1:
        return _launch_panels(NONE, 1, 1, CHUNK_ROWS, window)
    length = -(-chunks // STREAM_PANELS)
    panels = -(-chunks // length)
    ends = np.arange(1, panels, dtype=np.int64) * (length * CHUNK_ROWS)
    ahead = -((ends - find_cuts(ends)) // CHUNK_ROWS)
    is_near = ahead.max(initial=0) <= MAX_CHUNKS_AHEAD
    if panels >= CHAIN_PANELS and is_near and ahead.sum() <= MAX_SHARE_AHEAD * chunks:
        return _launch_panels(CHAIN, panels, length, CHUNK_ROWS, window, True)
    return _launch_panels(TREE, 1, -(-count // TREE_CHUNK_ROWS), TREE_CHUNK_ROWS, window)


class Cuts(NamedTuple):
    """Ends of packed segments on a device. Serves every call with these offsets.

    Attributes:
        words: a word for 32 rows, [chunks * CHUNK_ROWS / 32] int64: a bit for each row that ends a
            segment, and above them the number of segments that end before.
        filled: the segments that have rows, None where all have.
        launch: see `Launch`.
    """

    words: torch.Tensor
    filled: torch.Tensor | None
    launch: Launch


def mark_cuts(offsets: NDArray[np.int64], device: torch.device | str) -> Cuts:
    """Return the ends of packed segments as bits, a quarter of a byte for each row."""
    is_filled = np.diff(offsets) > 0
    lasts = offsets[1:][is_filled] - 1
    launch = launch_segments(offsets)
    word, bit = lasts // 32, np.int64(1) << lasts % 32
    first = np.flatnonzero(np.diff(word, prepend=-1))
    counts = np.diff(first, append=len(lasts))
    size = launch.panels * launch.chunks * launch.chunk_rows // 32
    ends = np.zeros(size, np.int64)
    ends[word[first]] = counts
    ends = (np.cumsum(ends) - ends) << 32
    if len(lasts):
        ends[word[first]] |= np.bitwise_or.reduceat(bit, first)
    filled = None if is_filled.all() else torch.from_numpy(np.flatnonzero(is_filled)).to(device)
    return Cuts(torch.from_numpy(ends).to(device), filled, launch)
