"""A window too long for memory, in pieces: the last piece first, and what passes between two.

A piece holds rows of one window alone. What the row before it needs of its first row is handed on:
whether that row is accepted, its value, and what V-trace carries across it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from vtaudit.counts import RUN
from vtaudit.kernels import Carry
from vtaudit.labels import decode_text

Seen = tuple[str, str | None, str, str | None, int | None]
# counted once for a window or a delivery, however many pieces it has
ONCE = ("windows", "deliveries")


@dataclass(frozen=True, slots=True)
class Junction:
    """The first row of a piece, for the piece before it.

    Attributes:
        row: its trajectory_id, step, value and lineage; None in a piece without a key.
        is_accepted: whether it has a target.
        gives_value: whether its value may serve the row before it.
        delta_sum, trace_length: Delta and trace length of it, where it is accepted.
        seen: (scope, scope_value, measure, unroll_id, file) of what is counted already.
    """

    row: dict[str, Any] | None
    is_accepted: bool = False
    gives_value: bool = False
    delta_sum: float = 0.0
    trace_length: float = 0.0
    seen: tuple[Seen, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the junction as JSON values."""
        return asdict(self)


def junction_from_json(body: dict[str, Any] | None) -> Junction | None:
    """Return what `as_json` gave."""
    if body is None:
        return None
    return Junction(**{**body, "seen": tuple(tuple(each) for each in body["seen"])})


def follow(after: Junction | None, edges: pl.DataFrame | None) -> pl.DataFrame | None:
    """Return the edges with the first row of the next piece, if its value may be used."""
    if after is None or after.row is None or not after.gives_value:
        return edges
    row = pl.DataFrame([after.row], schema_overrides={"value": pl.Float64})
    if edges is None:
        return row
    edges = decode_text(edges)
    return pl.concat([edges, row.select(edges.columns).cast(edges.schema)]).unique()


def carry_into(followed: NDArray[np.bool_], after: Junction | None) -> Carry:
    """Return what follows each segment of a piece; `followed` and the result are [S]."""
    size = len(followed)
    delta_sum = 0.0 if after is None else after.delta_sum
    trace_length = 0.0 if after is None else after.trace_length
    return Carry(followed, np.full(size, delta_sum), np.full(size, trace_length))


def count_once(
    counts: pl.DataFrame, rows: pl.DataFrame, scopes: Sequence[str], after: Junction | None
) -> tuple[pl.DataFrame, tuple[Seen, ...]]:
    """Return the counts of a piece without what later pieces counted, and what all of them have.

    Args:
        counts: of the piece, as if it were whole.
        rows: of the piece that have a key.
        scopes: columns by which is counted, beside the run as a whole.
        after: the first row of the piece after it.
    """
    things = _find_things(rows, scopes)
    seen = pl.DataFrame(() if after is None else after.seen, schema=things.schema, orient="row")
    fresh = things.join(seen, on=things.columns, how="anti", nulls_equal=True)
    counted = fresh.group_by("scope", "scope_value", "measure").len("count")
    counted = counted.select(
        "scope", "scope_value", "measure", pl.lit(None, pl.String).alias("kind"), "count"
    )
    others = counts.filter(~pl.col("measure").is_in(ONCE))
    return pl.concat([others, counted.cast(counts.schema)]), tuple(pl.concat([seen, fresh]).rows())


def _find_things(rows: pl.DataFrame, scopes: Sequence[str]) -> pl.DataFrame:
    """Return the windows and deliveries of each scope: scope, scope_value, measure, and their own
    unroll_id and file, which is null for a window."""
    unroll = pl.col("unroll_id").cast(pl.String) if "unroll_id" in rows.columns else pl.lit("")
    parts = [
        rows.select(
            pl.lit(scope).alias("scope"),
            value.cast(pl.String).alias("scope_value"),
            pl.lit(measure).alias("measure"),
            unroll.alias("unroll_id"),
            file.alias("file"),
        ).unique(maintain_order=True)
        for scope, value in [(RUN, pl.lit(RUN)), *((name, pl.col(name)) for name in scopes)]
        for measure, file in (
            ("windows", pl.lit(None, pl.Int32)),
            ("deliveries", pl.col("file")),
        )
    ]
    return pl.concat(parts)
