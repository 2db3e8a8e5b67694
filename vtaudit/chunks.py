"""Cut the files of a log into chunks that fit in memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from vtaudit.layout import Runs
from vtaudit.plan import Plan
from vtaudit.reading import Range

# a run of fewer rows than a chunk, by this factor, may be cut and moved
SHORT = 64
# more than any file has
ROWS_OF_A_FILE = 1 << 40


def cut_chunks(
    plan: Plan, runs: Runs | None, size: int
) -> tuple[tuple[tuple[Range, ...], ...], tuple[tuple[int, ...], ...]]:
    """Return chunks of about `size` rows that end where runs do, and which of them are chains.

    Small files are put together; a piece of a long window stands alone.
    """
    chunks: list[tuple[Range, ...]] = []
    waiting: list[Range] = []
    pieces: dict[int, list[int]] = {}
    for place, file in enumerate(plan.files):
        if file.error is not None:
            continue
        ends = np.cumsum(file.group_rows, dtype=np.int64)
        rows = file.rows or 0
        whole: list[tuple[int, int, int | None]] = [(0, rows, None)]
        for start, stop, run in whole if runs is None else _stretches(runs, place, rows):
            if run is not None:
                cuts = np.linspace(start, stop, -(-(stop - start) // size) + 1).astype(np.int64)
                for low, high in itertools.pairwise(cuts.tolist()):
                    pieces.setdefault(run, []).append(len(chunks))
                    chunks.append((Range(place, low, high),))
                continue
            for each in _cut_stretch(place, (start, stop), ends, runs, size):
                if waiting and _height(waiting) + each.stop - each.start > size:
                    chunks.append(tuple(waiting))
                    waiting = []
                waiting.append(each)
    if waiting or not chunks:
        first = next(place for place, file in enumerate(plan.files) if file.error is None)
        chunks.append(tuple(waiting) or (Range(first, 0, 0),))
    chains = [] if runs is None else runs.chains
    return tuple(chunks), tuple(
        tuple(number for run in chain for number in pieces[run]) for chain in chains
    )


def _stretches(runs: Runs, place: int, rows: int) -> Iterator[tuple[int, int, int | None]]:
    """Yield the stretches of a file: those of long windows with their run, and what is between."""
    start = 0
    for run in sorted(run for chain in runs.chains for run in chain):
        if runs.file[run] != place:
            continue
        low = int(runs.start[run])
        if start < low:
            yield start, low, None
        start = low + int(runs.height[run])
        yield low, start, run
    if start < rows:
        yield start, rows, None


def _height(ranges: Sequence[Range]) -> int:
    return sum(each.stop - each.start for each in ranges)


def _cut_stretch(
    place: int,
    stretch: tuple[int, int],
    ends: NDArray[np.int64],
    runs: Runs | None,
    size: int,
) -> Iterator[Range]:
    """Cut a stretch into even ranges, near the ends of row groups and at the starts of runs.

    Where rows are moved anyway, a short run may be cut by the end of a row group.
    """
    start, last = stretch
    starts, is_short = np.zeros(0, np.int64), np.zeros(0, np.bool_)
    if runs is not None:
        low, high = np.searchsorted(runs.file, (place, place + 1))
        starts = runs.start[low:high]
        is_short = runs.height[low:high] <= (size // SHORT if runs.is_moved.any() else 0)
    while start < last:
        height = (last - start) // -(-(last - start) // size)
        goal = start + height
        near = ends[np.abs(ends - goal) <= height // 4]
        stop = int(near[np.argmin(np.abs(near - goal))]) if len(near) else goal
        if runs is not None:
            after = np.searchsorted(starts, stop)
            if not (len(near) and after and is_short[after - 1]):
                stop = int(starts[after]) if after < len(starts) else last
        stop = min(stop, last)
        yield Range(place, start, stop)
        start = stop


def find_cut(runs: Runs, chunks: Sequence[Sequence[Range]]) -> NDArray[np.bool_]:
    """Return the runs that have rows in several chunks and are no pieces of a chain  # [R]."""
    is_cut = np.zeros(len(runs.start), np.bool_)
    bounds = np.array([(each.place, each.stop) for chunk in chunks for each in chunk], np.int64)
    stop = place_rows(*bounds.T)
    run = np.searchsorted(place_rows(runs.file, runs.start), stop) - 1
    run, stop = run[run >= 0], stop[run >= 0]
    is_cut[run[place_rows(runs.file[run], runs.start[run] + runs.height[run]) > stop]] = True
    is_cut[[run for chain in runs.chains for run in chain]] = False
    return is_cut


def place_rows(file: NDArray[np.int64], row: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return numbers for rows of files, in their order."""
    return file * ROWS_OF_A_FILE + row
