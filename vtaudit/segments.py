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


def cut_segments(stream: Stream) -> Segments:
    """Return each accepted row's boundary, bootstrap and segment.

    The first case that holds: terminated, zero_discount, truncated, interior (the successor is
    accepted and in the same window), window_edge (no row of a greater step in the window), gap.
    A row that finds no bootstrap is `missing` and no longer accepted; the row before it becomes a
    gap, and the missing row's own value serves it.
    """
    boundary = np.full(len(stream.key), NOT_CUT, np.uint8)
    source = np.full(len(stream.key), NOT_CUT, np.uint8)
    next_value = np.zeros(len(stream.key))
    given_by = np.full(len(stream.key), -1, np.int64)
    rows = np.flatnonzero(stream.accepted)
    after, successor = _successors(stream, rows)
    giver = _first_giver(stream, rows, after)
    boundary[rows] = _boundaries(stream, rows, successor)
    missing = np.zeros(len(stream.key), np.bool_)
    code, _ = _bootstraps(stream, rows, boundary[rows], giver)
    missing[rows] = code == NOT_CUT
    orphan = (boundary[rows] == BOUNDARY_CODE[Boundary.INTERIOR]) & missing[successor]
    boundary[rows[orphan]] = BOUNDARY_CODE[Boundary.GAP]
    source[rows], next_value[rows] = _bootstraps(stream, rows, boundary[rows], giver)
    is_given = source[rows] == SOURCE_CODE[BootstrapSource.NEXT_ROW]
    given_by[rows] = np.where(is_given, giver, -1)
    boundary[missing], source[missing] = NOT_CUT, NOT_CUT
    kept = rows[~missing[rows]]
    is_end = boundary[kept] != BOUNDARY_CODE[Boundary.INTERIOR]
    is_truncated = boundary == BOUNDARY_CODE[Boundary.TRUNCATED]
    return Segments(
        boundary=boundary,
        source=source,
        next_value=next_value,
        giver=given_by,
        missing=missing,
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
    after, successor = _successors(stream, rows)
    boundary = _boundaries(stream, rows, successor)
    code, _ = _bootstraps(stream, rows, boundary, _first_giver(stream, rows, after))
    is_open = (code == NOT_CUT) & (boundary != BOUNDARY_CODE[Boundary.TRUNCATED])
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
    return _first_giver(stream, rows, _successors(stream, rows)[0])


def _successors(stream: Stream, rows: Ints) -> tuple[Ints, Ints]:
    """Return the key of step + 1 and its accepted row, for each of `rows`; -1 for none."""
    if not len(rows):
        return rows, rows
    key = stream.key[rows]
    after = np.minimum(key + 1, len(stream.starts) - 1)
    follows = (stream.trajectory[after] == stream.trajectory[key]) & (
        stream.step[after] == stream.step[key] + 1
    )
    accepted_row = np.full(len(stream.starts), -1, np.int64)
    accepted_row[key] = rows
    successor = np.where(follows, accepted_row[after], -1)
    same = (stream.lineage[successor] == stream.lineage[rows]) & (successor >= 0)
    return np.where(follows, after, -1), np.where(same, successor, -1)


def _first_giver(stream: Stream, rows: Ints, after: Ints) -> Ints:
    """Return the first copy of the successor, of the row's lineage, whose value may be used."""
    giver = np.full(len(rows), -1, np.int64)
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
    last_step = np.full(int(stream.window.max(initial=-1)) + 1, -1, np.int64)
    np.maximum.at(last_step, stream.window[keyed], stream.step[stream.key[keyed]])
    is_interior = (successor >= 0) & (stream.window[successor] == window)
    is_edge = stream.step[stream.key[rows]] == last_step[window]
    cases = {
        Boundary.TERMINATED: stream.terminated[rows],
        Boundary.ZERO_DISCOUNT: stream.discount[rows] == 0,
        Boundary.TRUNCATED: stream.truncated[rows],
        Boundary.INTERIOR: is_interior,
        Boundary.WINDOW_EDGE: is_edge,
    }
    codes = np.select(
        list(cases.values()),
        [BOUNDARY_CODE[case] for case in cases],
        default=BOUNDARY_CODE[Boundary.GAP],
    )
    return codes.astype(np.uint8)


def _bootstraps(
    stream: Stream, rows: Ints, boundary: NDArray[np.uint8], giver: Ints
) -> tuple[NDArray[np.uint8], Floats]:
    """Return source and value of V(s_{t+1}) at each boundary; source NOT_CUT where none is."""
    logged = stream.bootstrap_value[rows]
    has_logged = np.isfinite(logged)
    needs = np.isin(
        boundary,
        [BOUNDARY_CODE[b] for b in (Boundary.TRUNCATED, Boundary.WINDOW_EDGE, Boundary.GAP)],
    )
    is_truncated = boundary == BOUNDARY_CODE[Boundary.TRUNCATED]
    from_next = needs & ~is_truncated & (giver >= 0)
    code = np.select(
        [~needs, from_next, has_logged],
        [
            SOURCE_CODE[BootstrapSource.NONE],
            SOURCE_CODE[BootstrapSource.NEXT_ROW],
            SOURCE_CODE[BootstrapSource.LOGGED],
        ],
        default=NOT_CUT,
    ).astype(np.uint8)
    found = np.where(from_next, stream.value[giver], np.where(has_logged, logged, 0.0))
    return code, np.where(needs & (code != NOT_CUT), found, 0.0)
