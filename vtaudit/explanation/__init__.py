"""One row of the log explained: its copies, verdicts, segment, bootstrap and every term."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from vtaudit.clock import Clock
from vtaudit.columns import Columns
from vtaudit.errors import InputError, SettingsError
from vtaudit.explanation.cut import Cut, describe_cut
from vtaudit.explanation.derivation import Term, derive_terms
from vtaudit.explanation.lookup import (
    find_file,
    parse_id,
    read_mapped,
    read_stored,
    tell_missing_step,
    tell_missing_trajectory,
)
from vtaudit.explanation.ruling import Ruling, rule_on
from vtaudit.explanation.subject import Subject
from vtaudit.joining import load_scores, spill_scores
from vtaudit.labels import decode_text
from vtaudit.plan import Plan
from vtaudit.reading import read_where
from vtaudit.reasons import Warn
from vtaudit.shard import Received, Shard, cut_shard
from vtaudit.shards import Spill
from vtaudit.sources import read_row
from vtaudit.storage import Place, parse_run, tell_lost
from vtaudit.verification.replay import (
    compute_exactly,
    find_logs,
    open_manifest,
    plan_again,
    take_segments,
)


@dataclass(frozen=True, slots=True)
class Copy:
    """One copy of the row's key: where it stands, and its own reasons."""

    place: str
    reasons: list[str]


@dataclass(frozen=True, slots=True)
class Explanation:
    """What became of one row of the log, and why.

    Attributes:
        run_id: of the run.
        trajectory_id, step: the row's key.
        place: FILE:ROW.
        verdict: accepted, rejected or padding.
        logged: every column of the source file, as logged.
        mapped: canonical column -> what it was read from and its value.
        copies: every copy of the key, this one included.
        rulings: every rule's verdict; empty for padding.
        warnings: what deserves a look, in words.
        cut: segment and boundary; None without a target.
        terms: of target and advantage; empty without a target.
        stored: the row in the run's targets; empty where it is not there.
        notes: what a person should know.
    """

    run_id: str
    trajectory_id: Any
    step: int | None
    place: str
    verdict: str
    logged: dict[str, Any]
    mapped: dict[str, dict[str, Any]]
    copies: list[Copy]
    rulings: list[Ruling]
    warnings: list[str]
    cut: Cut | None
    terms: list[Term]
    stored: dict[str, Any]
    notes: list[str]


def explain(
    run: str | Path,
    *,
    row: tuple[object, int] | None = None,
    at: tuple[str, int] | None = None,
    logs: Sequence[str | Path] = (),
    scores: str | Path | None = None,
) -> Explanation:
    """Return what became of one row of a run's log, judged again with the float64 reference.

    Args:
        run: the run directory.
        row: trajectory_id and step; of several copies the kept one, else the first.
        at: file and row within it, from 0; one of `row` and `at` must be given.
        logs: where the logs are now; by default where they were.
        scores: where the scores are now, likewise.

    Raises:
        SettingsError: the key or place is not in the log.
        InputError: no run stands there, or its logs are not there or have changed.
    """
    if (row is None) == (at is None):
        raise SettingsError("explain: say which row: --row TRAJECTORY STEP, or --at FILE:ROW")
    run = parse_run(run)
    manifest, settings = open_manifest(run)
    settings = settings if scores is None else replace(settings, scores=str(scores))
    plan = plan_again(manifest, settings, _find_logs(manifest, logs))
    if at is None and row is not None:
        trajectory = parse_id(row[0], plan)
        shard = _read_shard(plan, _is_of(trajectory))
        if not shard.rows.height:
            raise SettingsError(tell_missing_trajectory(trajectory, run, plan))
        subject = _pick(plan, shard, row[1])
    else:
        assert at is not None
        found = _find_place(plan, *at)
        if found is None:
            return _explain_padding(plan, manifest["run_id"], at)
        subject = found
    return _explain(run, manifest["run_id"], subject)


def _find_logs(manifest: dict[str, Any], logs: Sequence[str | Path]) -> list[Place]:
    places = find_logs(manifest, logs)
    lost = tell_lost(places)
    if lost is not None:
        raise InputError(f"the logs of the run: {lost}; say --logs DIR")
    return places


def _read_shard(plan: Plan, only: pl.Expr) -> Shard:
    scores = None
    if plan.scores:
        spill = Spill(Path(), buckets=1, is_on_disk=False)
        spill_scores(plan, spill)
        scores = load_scores(plan, spill, 0)
    shard = cut_shard(plan, Received(read_where(plan, only), scores), Clock())
    return replace(shard, columns=Columns(decode_text(shard.rows)))


def _is_of(trajectory: int | str) -> pl.Expr:
    """Return the condition of being a row of a trajectory."""
    column = pl.col("trajectory_id")
    return (column.cast(pl.String) if isinstance(trajectory, str) else column).eq(trajectory)


def _pick(plan: Plan, shard: Shard, step: int) -> Subject:
    """Return the kept copy of a step, else the first."""
    rows = np.flatnonzero((shard.rows["step"] == step).fill_null(False).to_numpy())
    if not len(rows):
        raise SettingsError(tell_missing_step(shard.rows, step))
    kept = [row for row in rows if shard.found.reasons[row] == 0]
    return _exact_subject(plan, shard, int((kept or list(rows))[0]))


def _find_place(plan: Plan, file: str, row: int) -> Subject | None:
    """Return the row at a place, None where it is padding."""
    number = find_file(plan, file, row)
    others = [
        each if k == number else replace(each, error=each.error or "not looked at")
        for k, each in enumerate(plan.files)
    ]
    here = (pl.col("file") == number) & (pl.col("row") == row)
    alone = read_where(replace(plan, files=tuple(others)), here)
    if not alone.height:
        return None
    trajectory = alone["trajectory_id"][0]
    shard = _read_shard(plan, here if trajectory is None else _is_of(trajectory))
    place = shard.rows.select(here).to_series().to_numpy()
    return _exact_subject(plan, shard, int(np.flatnonzero(place)[0]))


def _exact_subject(plan: Plan, shard: Shard, row: int) -> Subject:
    """Return the row in its shard, the segment of whichever copy has one computed in float64."""
    copies = Subject(plan, shard, row).copies()
    segments = shard.segments
    inside = np.flatnonzero(np.isin(segments.rows, copies))
    numbers = np.searchsorted(segments.offsets, inside, side="right") - 1
    return Subject(plan, compute_exactly(plan, take_segments(shard, numbers)), row)


def _explain_padding(plan: Plan, run_id: str, at: tuple[str, int]) -> Explanation:
    file = plan.files[find_file(plan, *at)]
    return Explanation(
        run_id=run_id,
        trajectory_id=None,
        step=None,
        place=f"{file.name}:{at[1]}",
        verdict="padding",
        logged=read_row(file, at[1]),
        mapped={},
        copies=[],
        rulings=[],
        warnings=[],
        cut=None,
        terms=[],
        stored={},
        notes=["valid is false: the row is padding, not a transition, and was never received"],
    )


def _explain(run: Path, run_id: str, subject: Subject) -> Explanation:
    plan, shard, row = subject.plan, subject.shard, subject.row
    reasons = subject.reasons(row)
    has_target = row in shard.segments.rows
    cut = describe_cut(subject) if has_target else None
    stored, notes = read_stored(run, subject)
    terms = []
    if cut is not None:
        terms = derive_terms(plan, shard, row, cut.origin, stored)
    bits = int(shard.found.warnings[row])
    return Explanation(
        run_id=run_id,
        trajectory_id=subject.cell("trajectory_id"),
        step=subject.cell("step"),
        place=subject.place(row),
        verdict="rejected" if reasons else "accepted",
        logged=read_row(plan.files[subject.cell("file")], subject.cell("row")),
        mapped=read_mapped(subject),
        copies=[Copy(subject.place(copy), subject.reasons(copy)) for copy in subject.copies()],
        rulings=rule_on(subject),
        warnings=[f"{warn.code}: {warn.text}" for warn in Warn if bits & warn.bit],
        cut=cut,
        terms=terms,
        stored=stored,
        notes=notes,
    )
