"""The laws of a run: its counts against each other and against the rows that were written."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from vtaudit.errors import LawError
from vtaudit.reasons import BOOTSTRAP_SOURCES, BOUNDARIES, Reason

Counts = Mapping[tuple[str, str | None], int]


@dataclass(frozen=True, slots=True)
class Laws:
    """The counts of a run, and how to hold them against others."""

    run: str
    counts: Counts

    def count(self, measure: str, kind: str | None = None) -> int:
        """Return a count, 0 where nothing was found."""
        return self.counts.get((measure, kind), 0)

    def hold(self, name: str, counted: int, other: int) -> None:
        """Raise LawError where two numbers that must be equal differ."""
        if counted != other:
            raise LawError(f"{self.run}: {name}: {counted} and {other}; this is a bug in vtaudit")


def check_laws(
    folder: Path, run: str, counts: Counts, thresholds: Mapping[str, float], *, targets: bool
) -> None:
    """Hold the counts against each other and against the rows of targets and rejects.

    Args:
        folder: where the parts stand.
        run: what to call the run in an error.
        counts: by measure and kind.
        thresholds: clip by kind.
        targets: whether there are targets.

    Raises:
        LawError: two numbers that must be equal differ.
    """
    laws = Laws(run, counts)
    total = laws.count("accepted") + laws.count("rejected") + laws.count("pending")
    laws.hold("received = accepted + rejected + pending", laws.count("received"), total)
    primary = sum(laws.count("rejected_primary", reason.code) for reason in Reason)
    laws.hold("sum of rejected_primary = rejected", primary, laws.count("rejected"))
    _check_rejects(laws, folder / "rejects")
    if targets:
        _check_targets(laws, folder / "targets", thresholds)


def _scan(folder: Path) -> pl.LazyFrame:
    return pl.scan_parquet(sorted(folder.iterdir()), glob=False)


def _check_rejects(laws: Laws, folder: Path) -> None:
    rows = _scan(folder)
    first = rows.group_by("primary_reason").len().collect(engine="streaming")
    any_ = rows.select(pl.col("reasons").explode()).group_by("reasons").len()
    for measure, found in (
        ("rejected_primary", dict(first.iter_rows())),
        ("rejected_any", dict(any_.collect(engine="streaming").iter_rows())),
    ):
        for reason in Reason:
            written = found.get(reason.code, 0)
            laws.hold(f"{measure} {reason.code}", laws.count(measure, reason.code), written)


def _check_targets(laws: Laws, folder: Path, thresholds: Mapping[str, float]) -> None:
    ratio = pl.col("log_ratio").cast(pl.Float64)
    found = (
        _scan(folder)
        .group_by("boundary", "bootstrap_source")
        .agg(
            pl.len(),
            *((ratio > math.log(bar)).sum().alias(kind) for kind, bar in thresholds.items()),
        )
        .collect(engine="streaming")
    )
    laws.hold("accepted = rows of targets", laws.count("accepted"), int(found["len"].sum()))
    for kind in thresholds:
        laws.hold(f"clipped {kind}", laws.count("clipped", kind), int(found[kind].sum()))
    for measure, column, kinds in (
        ("boundary", "boundary", BOUNDARIES),
        ("bootstrap", "bootstrap_source", BOOTSTRAP_SOURCES),
    ):
        for kind in kinds:
            written = int(found.filter(pl.col(column) == kind)["len"].sum())
            laws.hold(f"{measure} {kind}", laws.count(measure, kind), written)
