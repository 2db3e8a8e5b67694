"""Boundaries, bootstrap values, and the segments cut at them (contract, section 4)."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vtaudit.reasons import BOOTSTRAP_SOURCES, BOUNDARIES, BootstrapSource, Boundary
from vtaudit.records import Segments

if TYPE_CHECKING:
    from vtaudit.segment_pass import Cuts

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

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
    cuts = _judge(stream, stitched=False)
    return Segments(
        boundary=cuts.boundary,
        source=cuts.source,
        next_value=cuts.next_value,
        giver=cuts.giver,
        missing=cuts.missing,
        followed=cuts.followed,
        zero=cuts.zero,
        rows=cuts.rows,
        offsets=np.concatenate(([0], cuts.ends)),
    )


def find_open(stream: Stream, *, stitched: bool) -> tuple[Bools, Bools]:
    """Return the rows of segments whose last row has no end and finds no bootstrap, and those last.

    Both are [N]. What that row lacks may still come. In stitched windows it may come to every
    window_edge, which is then open with a logged bootstrap too.
    """
    from vtaudit.segment_pass import CLOSED, OPEN_END

    openness = _judge(stream, stitched=stitched).openness
    return openness != CLOSED, openness == OPEN_END


def find_givers(stream: Stream, rows: Ints) -> Ints:
    """Return the row whose value may serve each of `rows` as its successor's, -1 for none."""
    from vtaudit import segment_pass

    return segment_pass.find_givers(_columns(stream), stream.key[rows], stream.lineage[rows])


def _judge(stream: Stream, *, stitched: bool) -> Cuts:
    from vtaudit.segment_pass import judge_keys

    return judge_keys(_columns(stream), stream.step_outside, is_stitched=stitched)


def _columns(stream: Stream) -> dict[str, NDArray[Any]]:
    return {field.name: getattr(stream, field.name) for field in fields(stream)}
