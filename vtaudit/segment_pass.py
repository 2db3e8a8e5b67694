"""The table of boundaries and bootstraps as one compiled pass over keys, from last to first.

The fate of a row's successor is known when the row is judged, so each row is judged once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from vtaudit.compiled import array_of, compile_pass, compile_step, lay_out
from vtaudit.reasons import BOOTSTRAP_SOURCES, BOUNDARIES
from vtaudit.records import NOT_CUT

Ints = NDArray[np.int64]

INTERIOR, TERMINATED, ZERO_DISCOUNT, TRUNCATED, WINDOW_EDGE, GAP = (
    BOUNDARIES.index(name)
    for name in ("interior", "terminated", "zero_discount", "truncated", "window_edge", "gap")
)
NO_BOOTSTRAP, NEXT_ROW, LOGGED = (
    BOOTSTRAP_SOURCES.index(name) for name in ("none", "next_row", "logged")
)
# whether the segment of a row may go on with rows that are still to come
CLOSED, OPEN, OPEN_END = range(3)


class Stream(NamedTuple):
    """The columns of `segments.Stream` that the pass reads, but `key`."""

    starts: Any
    counts: Any
    trajectory: Any
    step: Any
    window: Any
    lineage: Any
    accepted: Any
    gives_value: Any
    terminated: Any
    truncated: Any
    followed: Any
    discount: Any
    value: Any
    bootstrap_value: Any
    value_outside: Any


STREAM_DTYPES = (*["int64"] * 6, *["bool"] * 5, *["float64"] * 4)


class Cuts(NamedTuple):
    """What the pass finds, as in `records.Segments`; here `rows` and `ends` are filled from behind.

    Attributes:
        openness: CLOSED, or OPEN rows of segments whose last row, an OPEN_END, has no end and
            finds no bootstrap  # [N] uint8
        rows: the accepted rows  # [K] int64
        ends: behind the last row of each segment, a place in `rows`  # [K] int64
    """

    boundary: Any
    source: Any
    openness: Any
    missing: Any
    followed: Any
    zero: Any
    next_value: Any
    giver: Any
    rows: Any
    ends: Any


CUT_DTYPES = (*["uint8"] * 3, *["bool"] * 3, "float64", *["int64"] * 3)


def judge_keys(columns: Mapping[str, Any], step_outside: int, *, is_stitched: bool) -> Cuts:
    """Return what becomes of the rows of a `segments.Stream`, whose fields are `columns`.

    In stitched windows what follows a window_edge may still come, so it is open with a bootstrap
    too.
    """
    stream = _lay_out(columns)
    size, keys = len(stream.accepted), len(stream.starts)
    codes = [np.full(size, code, np.uint8) for code in (NOT_CUT, NOT_CUT, CLOSED)]
    flags = [np.zeros(size, np.bool_) for _ in range(3)]
    places = [np.empty(keys, np.int64) for _ in range(2)]
    others: list[Any] = [np.zeros(size), np.full(size, -1, np.int64), *places]
    cuts = Cuts(*codes, *flags, *others)
    last_step = np.full(int(stream.window.max(initial=-1)) + 1, step_outside, np.int64)
    first_row, first_end = _compile_judge()(stream, last_step, is_stitched, cuts)
    return cuts._replace(rows=cuts.rows[first_row:], ends=cuts.ends[first_end:] - first_row)


def find_givers(columns: Mapping[str, Any], keys: Ints, lineage: Ints) -> Ints:
    """Return the row whose value may serve rows of these keys and lineages, -1 for none."""
    giver = np.empty(len(keys), np.int64)
    arguments = (lay_out(keys, np.int64), lay_out(lineage, np.int64))
    _compile_giver()(_lay_out(columns), *arguments, giver)
    return giver


def _lay_out(columns: Mapping[str, Any]) -> Stream:
    named = zip(Stream._fields, STREAM_DTYPES, strict=True)
    return Stream(*(lay_out(columns[name], dtype) for name, dtype in named))


@functools.cache
def _compile_judge() -> Callable[..., tuple[int, int]]:
    stream = types.NamedTuple([array_of(dtype) for dtype in STREAM_DTYPES], Stream)
    cuts = types.NamedTuple([array_of(dtype, readonly=False) for dtype in CUT_DTYPES], Cuts)
    result = types.UniTuple(types.int64, 2)
    signature = result(stream, array_of("int64", readonly=False), types.boolean, cuts)
    return compile_pass(_judge_keys, signature)


@functools.cache
def _compile_giver() -> Callable[..., None]:
    stream = types.NamedTuple([array_of(dtype) for dtype in STREAM_DTYPES], Stream)
    number = array_of("int64")
    return compile_pass(
        _find_givers, types.void(stream, number, number, array_of("int64", readonly=False))
    )


def _judge_keys(stream: Any, last_step: Any, is_stitched: bool, cuts: Any) -> Any:
    """Fill `cuts`; return the first place filled in its rows and in its ends."""
    first_row = first_end = len(stream.starts)
    after = -1
    for key in range(len(stream.starts) - 1, -1, -1):
        row = _take_key(stream, key, last_step)
        successor, after = after, row
        if row < 0:
            continue
        goes_on = _is_followed_by(stream, key, row, successor)
        is_interior = stream.followed[row] or (goes_on and not cuts.missing[successor])
        is_edge = stream.step[key] == last_step[stream.window[row]]
        boundary = _judge_boundary(stream, row, is_interior, is_edge)
        _take_bootstrap(stream, key, row, boundary, cuts)
        if boundary in (INTERIOR, WINDOW_EDGE, GAP):
            is_open_end = cuts.missing[row] or (is_stitched and boundary == WINDOW_EDGE)
            openness = OPEN_END if is_open_end else CLOSED
            if goes_on:
                openness = OPEN if cuts.openness[successor] != CLOSED else CLOSED
            cuts.openness[row] = openness
        if cuts.missing[row]:
            continue
        first_row -= 1
        cuts.rows[first_row] = row
        if boundary != INTERIOR or cuts.followed[row]:
            first_end -= 1
            cuts.ends[first_end] = first_row + 1
    return first_row, first_end


@compile_step
def _take_key(stream: Any, key: int, last_step: Any) -> int:
    """Return the accepted row of a key, -1 without one; note the steps of windows."""
    accepted, start, step = -1, stream.starts[key], stream.step[key]
    for row in range(start, start + stream.counts[key]):
        window = stream.window[row]
        if step > last_step[window]:  # a maximum, which is written each time, takes twice as long
            last_step[window] = step
        if stream.accepted[row]:
            accepted = row
    return accepted


@compile_step
def _is_next_step(stream: Any, key: int) -> bool:
    """Whether the key after this one is the next step of its trajectory."""
    after = key + 1
    is_key = after < len(stream.starts) and stream.trajectory[after] == stream.trajectory[key]
    return is_key and stream.step[after] == stream.step[key] + 1


@compile_step
def _is_followed_by(stream: Any, key: int, row: int, after: int) -> bool:
    """Whether `after`, the accepted row of the key after, is the successor and in the window."""
    if after < 0 or not _is_next_step(stream, key):
        return False
    is_successor: bool = stream.lineage[after] == stream.lineage[row]
    return is_successor and stream.window[after] == stream.window[row]


@compile_step
def _judge_boundary(stream: Any, row: int, is_interior: bool, is_edge: bool) -> int:
    if stream.terminated[row]:
        return TERMINATED
    if stream.discount[row] == 0:
        return ZERO_DISCOUNT
    if stream.truncated[row]:
        return TRUNCATED
    if is_interior:
        return INTERIOR
    if is_edge:
        return WINDOW_EDGE
    return GAP


@compile_step
def _take_bootstrap(stream: Any, key: int, row: int, boundary: int, cuts: Any) -> None:
    """Note the boundary of an accepted row and V(s_{t+1}), or that there is none."""
    source = NO_BOOTSTRAP
    if boundary == INTERIOR and stream.followed[row]:
        cuts.followed[row], cuts.next_value[row] = True, stream.value_outside[row]
    elif boundary in (TRUNCATED, WINDOW_EDGE, GAP):
        giver = -1
        if boundary != TRUNCATED:
            giver = _find_giver(stream, key, stream.lineage[row])
        if giver >= 0:
            source, value = NEXT_ROW, stream.value[giver]
        elif boundary != TRUNCATED and np.isfinite(stream.value_outside[row]):
            source, value = NEXT_ROW, stream.value_outside[row]
        elif np.isfinite(stream.bootstrap_value[row]):
            source, value = LOGGED, stream.bootstrap_value[row]
        else:
            cuts.missing[row] = True
            return
        cuts.giver[row], cuts.next_value[row] = giver, value
        cuts.zero[row] = boundary == TRUNCATED and value == 0
    cuts.boundary[row], cuts.source[row] = boundary, source


@compile_step
def _find_giver(stream: Any, key: int, lineage: int) -> int:
    """Return the first copy of the next step, of the lineage, whose value may be used, or -1."""
    if not _is_next_step(stream, key):
        return -1
    start = stream.starts[key + 1]
    for copy in range(start, start + stream.counts[key + 1]):
        if stream.gives_value[copy] and stream.lineage[copy] == lineage:
            return copy
    return -1


def _find_givers(stream: Any, keys: Any, lineage: Any, giver: Any) -> None:
    for i in range(len(keys)):
        giver[i] = _find_giver(stream, keys[i], lineage[i])
