"""The laws of a run: its counts against each other and against the rows that were written."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import polars as pl

from vtaudit.errors import LawError
from vtaudit.reasons import BOOTSTRAP_SOURCES, BOUNDARIES, Reason

Counts = Mapping[tuple[str, str | None], int]
# what must be equal, and the two numbers
Law = tuple[str, int, int]


def check_laws(
    folder: Path, run: str, counts: Counts, thresholds: Mapping[str, float], *, targets: bool
) -> None:
    """Hold the counts against each other and against the rows of targets and rejects.

    Args:
        folder: where the parts stand.
        run: what to call the run in an error.
        counts: by measure and kind; what is not there is 0.
        thresholds: clip by kind.
        targets: whether there are targets.

    Raises:
        LawError: two numbers that must be equal differ.
    """
    parts = {name: sorted((folder / name).iterdir()) for name in ("rejects", "targets")}
    laws = [*sum_laws(counts), *rejects_laws(parts["rejects"], counts)]
    laws += targets_laws(parts["targets"], counts, thresholds) if targets else []
    _hold(run, laws)


def check_sums(run: str, counts: Counts) -> None:
    """Hold the counts against each other.

    Raises:
        LawError: two numbers that must be equal differ.
    """
    _hold(run, sum_laws(counts))


def _hold(run: str, laws: Iterable[Law]) -> None:
    for name, one, other in laws:
        if one != other:
            raise LawError(f"{run}: {name}: {one} and {other}; this is a bug in vtaudit")


def sum_laws(counts: Counts) -> Iterator[Law]:
    """Yield the counts that add up to others."""
    states = ("accepted", "rejected", "pending")
    total = sum(counts.get((state, None), 0) for state in states)
    yield "received = accepted + rejected + pending", counts.get(("received", None), 0), total
    primary = sum(counts.get(("rejected_primary", reason.code), 0) for reason in Reason)
    yield "sum of rejected_primary = rejected", primary, counts.get(("rejected", None), 0)


def _scan(parts: Sequence[Path], columns: Sequence[str]) -> pl.LazyFrame:
    """Return some columns of all parts, whatever the types of the others."""
    return pl.concat([pl.scan_parquet(part, glob=False).select(columns) for part in parts])


def rejects_laws(parts: Sequence[Path], counts: Counts) -> Iterator[Law]:
    """Yield each count of rejected rows with the rows of rejects."""
    rows = _scan(parts, ["primary_reason", "reasons"])
    first = rows.group_by("primary_reason").len().collect(engine="streaming")
    any_ = rows.select(pl.col("reasons").explode()).group_by("reasons").len()
    for measure, found in (
        ("rejected_primary", dict(first.iter_rows())),
        ("rejected_any", dict(any_.collect(engine="streaming").iter_rows())),
    ):
        for reason in Reason:
            key = (measure, reason.code)
            yield f"{measure} {reason.code}", counts.get(key, 0), found.get(reason.code, 0)


def targets_laws(
    parts: Sequence[Path], counts: Counts, thresholds: Mapping[str, float]
) -> Iterator[Law]:
    """Yield each count of accepted rows with the rows of targets."""
    ratio = pl.col("log_ratio").cast(pl.Float64)
    found = (
        _scan(parts, ["boundary", "bootstrap_source", "log_ratio"])
        .group_by("boundary", "bootstrap_source")
        .agg(
            pl.len(),
            *((ratio > math.log(bar)).sum().alias(kind) for kind, bar in thresholds.items()),
        )
        .collect(engine="streaming")
    )
    rows = int(found["len"].sum())
    yield "accepted = rows of targets", counts.get(("accepted", None), 0), rows
    for kind in thresholds:
        yield f"clipped {kind}", counts.get(("clipped", kind), 0), int(found[kind].sum())
    for measure, column, kinds in (
        ("boundary", "boundary", BOUNDARIES),
        ("bootstrap", "bootstrap_source", BOOTSTRAP_SOURCES),
    ):
        for kind in kinds:
            written = int(found.filter(pl.col(column) == kind)["len"].sum())
            yield f"{measure} {kind}", counts.get((measure, kind), 0), written
