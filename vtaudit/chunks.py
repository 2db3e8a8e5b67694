"""Cut the files of a log into chunks that fit in memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from vtaudit.layout import Runs
from vtaudit.plan import Plan
from vtaudit.reading import Range


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
    """Cut a stretch into even ranges, near the ends of row groups and at the starts of runs."""
    start, last = stretch
    starts = None if runs is None else runs.start[runs.file == place]
    while start < last:
        height = (last - start) // -(-(last - start) // size)
        goal = start + height
        near = ends[np.abs(ends - goal) <= height // 4]
        stop = int(near[np.argmin(np.abs(near - goal))]) if len(near) else goal
        if starts is not None:
            after = np.searchsorted(starts, stop)
            stop = int(starts[after]) if after < len(starts) else last
        stop = min(stop, last)
        yield Range(place, start, stop)
        start = stop
