"""Where a row of a judged shard was cut, and what its V(s_{t+1}) came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from vtaudit.explanation.subject import Subject
from vtaudit.reasons import BOOTSTRAP_SOURCES, BOUNDARIES, BootstrapSource, Boundary


@dataclass(frozen=True, slots=True)
class Cut:
    """The segment of an accepted row, and what stands behind the row.

    Attributes:
        first_step, last_step, rows: of the segment.
        window: its unroll_id; None without one, or where windows are stitched.
        boundary: what stands between the row and the next one.
        end: the boundary of the segment's last row.
        source: where V(s_{t+1}) came from: none, next_row, policy or logged.
        origin: the same in words, with the very row.
    """

    first_step: int
    last_step: int
    rows: int
    window: Any
    boundary: str
    end: str
    source: str
    origin: str


def describe_cut(subject: Subject) -> Cut:
    """Return the segment of a row of `shard.segments`, which has the row's segment alone."""
    segments, rows = subject.shard.segments, subject.shard.rows
    first, last = int(segments.rows[0]), int(segments.rows[-1])
    is_stitched = subject.plan.settings.windows == "stitched"
    return Cut(
        first_step=rows["step"][first],
        last_step=rows["step"][last],
        rows=len(segments.rows),
        window=None if is_stitched else subject.cell("unroll_id"),
        boundary=BOUNDARIES[segments.boundary[subject.row]],
        end=BOUNDARIES[segments.boundary[last]],
        source=BOOTSTRAP_SOURCES[segments.source[subject.row]],
        origin=_tell_origin(subject),
    )


def _tell_origin(subject: Subject) -> str:
    segments, row = subject.shard.segments, subject.row
    boundary = BOUNDARIES[segments.boundary[row]]
    source = BOOTSTRAP_SOURCES[segments.source[row]]
    if source == BootstrapSource.LOGGED.value:
        where = "the scores" if "bootstrap_value" in subject.plan.scored else subject.place(row)
        return f"bootstrap_value, in {where}"
    if source == BootstrapSource.NEXT_ROW.value:
        giver = int(segments.giver[row])
    elif boundary == Boundary.INTERIOR.value:
        giver = int(segments.rows[int(np.flatnonzero(segments.rows == row)[0]) + 1])
    else:
        return f"0: {boundary}"
    return f"value of step {subject.cell('step', giver)}, at {subject.place(giver)}"
