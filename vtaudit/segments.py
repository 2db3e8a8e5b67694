"""Boundaries, bootstrap values, and the segments cut at them (contract, section 4)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vtaudit.reasons import BOOTSTRAP_SOURCES, BOUNDARIES, BootstrapSource, Boundary
from vtaudit.records import Segments

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

NOT_CUT = 255
BOUNDARY_CODE = {member: BOUNDARIES.index(member.value) for member in Boundary}
BOOTSTRAPPED = [
    BOUNDARY_CODE[each] for each in (Boundary.TRUNCATED, Boundary.WINDOW_EDGE, Boundary.GAP)
]
SOURCE_CODE = {member: BOOTSTRAP_SOURCES.index(member.value) for member in BootstrapSource}


@dataclass(frozen=True, slots=True)
class Stream:
    """What cutting needs of the rows of a shard, which stand by (trajectory_id, step, file, row).

    Attributes:
        key: number of the row's key, -1 without one  # [N] int64
        starts, counts, trajectory, step: of each key, as in the ledger  # [K] int64
        window: number of the row's window, -1 without a key  # [N] int64
        lineage: number of the row's (actor, env, reward, mask version)  # [N] int64
        accepted: rows without a reason so far, at most one of a key  # [N] bool
        gives_value: rows whose value may serve their predecessor  # [N] bool
        terminated, truncated: end-of-episode flags  # [N] bool
        discount: gamma_t  # [N] float64
        value: V(s_t)  # [N] float64
        bootstrap_value: logged V(s_{t+1}), NaN for none  # [N] float64
        value_outside: V of a successor in another shard, NaN for none  # [N] float64
        followed: rows whose successor, in another shard, is accepted and in their window  # [N]
        step_outside: the greatest step of the one window in another shard, -1 for none
    """

    key: Ints
    starts: Ints
    counts: Ints
    trajectory: Ints
    step: Ints
    window: Ints
    lineage: Ints
    accepted: Bools
    gives_value: Bools
    terminated: Bools
    truncated: Bools
    discount: Floats
    value: Floats
    bootstrap_value: Floats
    value_outside: Floats
    followed: Bools
    step_outside: int = -1


def cut_segments(stream: Stream) -> Segments:
    """Return each accepted row's boundary, bootstrap and segment.

    The first case that holds: terminated, zero_discount, truncated, interior (the successor is
    accepted and in the same window), window_edge (no row of a greater step in the window), gap.
    A row that finds no bootstrap is `missing` and no longer accepted; the row before it becomes a
    gap, and the missing row's own value serves it.
    """
    count = len(stream.key)
    boundary, source = np.full(count, NOT_CUT, np.uint8), np.full(count, NOT_CUT, np.uint8)
    next_value, given_by = np.zeros(count), np.full(count, -1, np.int64)
    missing = np.zeros(count, np.bool_)
    rows = np.flatnonzero(stream.accepted)
    successor = _successors(stream, rows)
    boundary[rows] = _boundaries(stream, rows, successor)
    source[rows] = SOURCE_CODE[BootstrapSource.NONE]
    ends = rows[np.isin(boundary[rows], BOOTSTRAPPED)]
    source[ends], next_value[ends], given_by[ends] = _bootstraps(stream, ends, boundary[ends])
    lost = ends[source[ends] == NOT_CUT]
    if len(lost):
        missing[lost] = True
        orphans = rows[(successor >= 0) & missing[successor]]
        orphans = orphans[boundary[orphans] == BOUNDARY_CODE[Boundary.INTERIOR]]
        boundary[orphans] = BOUNDARY_CODE[Boundary.GAP]
        found = _bootstraps(stream, orphans, boundary[orphans])
        source[orphans], next_value[orphans], given_by[orphans] = found
        boundary[lost] = NOT_CUT
    kept = rows[~missing[rows]] if len(lost) else rows
    is_interior = boundary == BOUNDARY_CODE[Boundary.INTERIOR]
    followed = stream.followed & is_interior
    next_value[followed] = stream.value_outside[followed]
    is_end = (~is_interior | followed)[kept]
    is_truncated = boundary == BOUNDARY_CODE[Boundary.TRUNCATED]
    return Segments(
        boundary=boundary,
        source=source,
        next_value=next_value,
        giver=given_by,
        missing=missing,
        followed=followed,
        zero=is_truncated & (source != NOT_CUT) & (next_value == 0),
        rows=kept,
        offsets=np.concatenate(([0], np.flatnonzero(is_end) + 1)),
    )


def find_open(stream: Stream, *, stitched: bool) -> tuple[Bools, Bools]:
    """Return the rows of segments whose last row has no end and finds no bootstrap, and those last.

    Both are [N]. What that row lacks may still come. In stitched windows it may come to every
    window_edge, which is then open with a logged bootstrap too.
    """
    rows = np.flatnonzero(stream.accepted)
    boundary = _boundaries(stream, rows, _successors(stream, rows))
    places = np.flatnonzero(np.isin(boundary, BOOTSTRAPPED))
    code, _, _ = _bootstraps(stream, rows[places], boundary[places])
    is_open = np.zeros(len(rows), np.bool_)
    is_open[places] = code == NOT_CUT
    is_open &= boundary != BOUNDARY_CODE[Boundary.TRUNCATED]
    if stitched:
        is_open |= boundary == BOUNDARY_CODE[Boundary.WINDOW_EDGE]
    is_end = boundary != BOUNDARY_CODE[Boundary.INTERIOR]
    segment = np.cumsum(is_end) - is_end
    found, ends = (np.zeros(len(stream.key), np.bool_) for _ in range(2))
    found[rows] = is_open[is_end][segment] if len(rows) else False
    ends[rows] = is_open & is_end
    return found, ends


def find_givers(stream: Stream, rows: Ints) -> Ints:
    """Return the row whose value may serve each of `rows` as its successor's, -1 for none."""
    return _first_giver(stream, rows)


def _follows(stream: Stream) -> Bools:
    """Return whether the key after each one is the next step of its trajectory  # [K]."""
    follows = np.zeros(len(stream.starts), np.bool_)
    follows[:-1] = (stream.trajectory[1:] == stream.trajectory[:-1]) & (
        stream.step[1:] == stream.step[:-1] + 1
    )
    return follows


def _successors(stream: Stream, rows: Ints) -> Ints:
    """Return the accepted row of step + 1 and of the same lineage, for each of `rows`, or -1."""
    key = stream.key[rows]
    accepted_row = np.full(len(stream.starts), -1, np.int64)
    accepted_row[key] = rows
    lineage = np.full(len(stream.starts), -1, np.int64)
    lineage[key] = stream.lineage[rows]
    successor = np.full(len(stream.starts), -1, np.int64)
    is_one = _follows(stream)[:-1] & (lineage[1:] == lineage[:-1])
    successor[:-1] = np.where(is_one, accepted_row[1:], -1)
    return np.asarray(successor[key])


def _first_giver(stream: Stream, rows: Ints) -> Ints:
    """Return the first copy of the successor, of the row's lineage, whose value may be used."""
    giver = np.full(len(rows), -1, np.int64)
    after = np.where(_follows(stream)[stream.key[rows]], stream.key[rows] + 1, -1)
    open_ = np.flatnonzero(after >= 0)
    copy = 0
    while len(open_):
        candidate = stream.starts[after[open_]] + copy
        good = stream.gives_value[candidate] & (
            stream.lineage[candidate] == stream.lineage[rows[open_]]
        )
        giver[open_[good]] = candidate[good]
        copy += 1
        open_ = open_[~good & (stream.counts[after[open_]] > copy)]
    return giver


def _boundaries(stream: Stream, rows: Ints, successor: Ints) -> NDArray[np.uint8]:
    window = stream.window[rows]
    keyed = np.flatnonzero(stream.key >= 0)
    windows = int(stream.window.max(initial=-1)) + 1
    last_step = np.full(windows, stream.step_outside, np.int64)
    np.maximum.at(last_step, stream.window[keyed], stream.step[stream.key[keyed]])
    codes = np.full(len(rows), BOUNDARY_CODE[Boundary.GAP], np.uint8)
    is_edge = stream.step[stream.key[rows]] == last_step[window]
    codes[is_edge] = BOUNDARY_CODE[Boundary.WINDOW_EDGE]
    is_interior = (successor >= 0) & (stream.window[successor] == window)
    is_interior |= stream.followed[rows]
    codes[is_interior] = BOUNDARY_CODE[Boundary.INTERIOR]
    codes[stream.truncated[rows]] = BOUNDARY_CODE[Boundary.TRUNCATED]
    codes[stream.discount[rows] == 0] = BOUNDARY_CODE[Boundary.ZERO_DISCOUNT]
    codes[stream.terminated[rows]] = BOUNDARY_CODE[Boundary.TERMINATED]
    return codes


def _bootstraps(
    stream: Stream, rows: Ints, boundary: NDArray[np.uint8]
) -> tuple[NDArray[np.uint8], Floats, Ints]:
    """Return source, value and giver of V(s_{t+1}) of rows that need one.

    The source is NOT_CUT where there is none; the giver is -1 where it is no row of the shard.
    """
    giver = _first_giver(stream, rows)
    outside, logged = stream.value_outside[rows], stream.bootstrap_value[rows]
    is_given = (giver >= 0) | np.isfinite(outside)
    is_given &= boundary != BOUNDARY_CODE[Boundary.TRUNCATED]
    following = np.where(giver >= 0, stream.value[giver], outside)
    is_logged = ~is_given & np.isfinite(logged)
    code = np.full(len(rows), NOT_CUT, np.uint8)
    code[is_given] = SOURCE_CODE[BootstrapSource.NEXT_ROW]
    code[is_logged] = SOURCE_CODE[BootstrapSource.LOGGED]
    value = np.where(is_given, following, np.where(is_logged, logged, 0.0))
    return code, value, np.where(is_given, giver, -1)
