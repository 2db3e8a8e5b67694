"""The run: plan, read into shards, take each shard from start to end, finish."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from vtaudit import audit
from vtaudit.appending import append
from vtaudit.checkpoints import (
    load_unreadable,
    prepare_workspace,
    start_anew,
)
from vtaudit.clock import Clock
from vtaudit.config import DEFAULT_GAMMA, Settings
from vtaudit.counts import RUN
from vtaudit.errors import InputError, UnreadableError
from vtaudit.kernels import describe_kernel
from vtaudit.laws import check_laws
from vtaudit.outputs import (
    ShardResult,
    add_up,
    tabulate,
)
from vtaudit.plan import Plan, make_plan, versions
from vtaudit.reading import find_unreadable
from vtaudit.reports import (
    Progress,
    RunResult,
    fingerprint_input,
    fingerprint_output,
    list_findings,
    list_notes,
)
from vtaudit.running import run_units
from vtaudit.storage import Place, parse_places, parse_run, show_place
from vtaudit.store import PROGRESS, SPILL, check_apart, open_workspace, write_manifest, write_table
from vtaudit.units import Log, open_log


def process(
    logs: Sequence[str | Path] | str | Path,
    out: str | Path,
    settings: Settings | None = None,
    *,
    progress: Progress | None = None,
) -> RunResult:
    """Audit the logged trajectories below `logs`, recompute their targets, and write `out`.

    Args:
        logs: directories or files of Parquet, here or at URLs as s3://bucket/logs.
        out: the run directory; it appears whole, when the run is done. With `append`, the store.
        settings: defaults where left out.
        progress: called with a stage, what is done and how much there is.

    Raises:
        SettingsError: settings that contradict each other, the log or the state of the disk.
        SchemaError: a needed column is missing or has a type that the contract does not allow.
        InputError: inputs or disk failed.
        EngineError: the backend or device asked for is not there.
        LawError: the counts do not add up: a bug in vtaudit.
    """
    places, out = parse_places(logs), parse_run(out)
    settings = settings or Settings()
    tell = progress or (lambda stage, done, total: None)
    clock = Clock()
    check_apart(places, out)
    if settings.append:
        return append(places, out, settings, tell, clock)
    with open_workspace(out, overwrite=settings.overwrite) as work:
        with clock.stage("plan"):
            plan = make_plan(places, settings)
        prepare_workspace(work, plan.run_id, resume=settings.resume)
        log, shards = _run_readable(plan, work, clock, tell)
        return _finish(log, places, add_up(shards), work, out, clock)


def _run_readable(
    plan: Plan, work: Path, clock: Clock, tell: Progress
) -> tuple[Log, list[ShardResult]]:
    """Run all units; start anew without the files that turn out to be unreadable on the way."""
    unreadable = load_unreadable(work)
    while True:
        plan = plan.without(unreadable)
        if not plan.readable:
            first = plan.files[0]
            raise InputError(f"{first.name}: {first.error}; no file is readable")
        try:
            with clock.stage("survey"):
                log = open_log(plan, work / SPILL, _count_rows(plan, tell, "surveying rows"))
            gamma = DEFAULT_GAMMA if plan.settings.gamma is None else plan.settings.gamma
            judged = replace(plan, settings=replace(plan.settings, gamma=gamma))
            shards = run_units(judged, log, work, clock, tell)
            return replace(log, plan=judged), shards
        except UnreadableError as error:
            if error.place is None:
                raise
            unreadable = {**find_unreadable(plan), error.place: str(error)}
            start_anew(work, plan.run_id, unreadable | load_unreadable(work))


def _count_rows(plan: Plan, tell: Progress, stage: str) -> Callable[[int], None]:
    total, done = sum(file.rows or 0 for file in plan.readable), 0

    def tick(rows: int) -> None:
        nonlocal done
        done += rows
        tell(stage, done, total)

    return tick


def _finish(
    log: Log, logs: Sequence[Place], whole: ShardResult, work: Path, out: Path, clock: Clock
) -> RunResult:
    """Write the audit tables and the manifest; hold them against the laws."""
    plan, settings = log.plan, log.plan.settings
    with clock.stage("audit"):
        counts = whole.counts.of_group((RUN, RUN))
        check_laws(work, out.name, counts, settings.thresholds(), targets=settings.targets)
        tables = tabulate(plan, whole)
        summary, files = tables["summary"][0], plan.files
    resolved, tags = settings.as_json(), settings.tags
    tables["runs"] = [audit.run_row(resolved, versions(), tags, clock.seconds)]
    written = {name: audit.make_table(name, plan.run_id, body) for name, body in tables.items()}
    for name, table in written.items():
        write_table(table, work / "audit" / f"{name}.parquet")
    audit.write_duckdb(work / "audit.duckdb", written)
    notes = list_notes(plan, files, whole, counts)
    write_manifest(work, _manifest(log, logs, summary, notes, work))
    findings = list_findings(settings, summary, files)
    return RunResult(out, plan.run_id, summary, tables["audit"], findings, notes, settings)


def _manifest(
    log: Log, logs: Sequence[Place], summary: dict[str, Any], notes: Sequence[str], work: Path
) -> dict[str, Any]:
    plan = log.plan
    scratch = (work / PROGRESS, work / SPILL)
    outputs = sorted(
        path for path in work.rglob("*") if path.is_file() and not set(scratch) & set(path.parents)
    )
    with ThreadPoolExecutor(plan.settings.threads) as pool:
        fingerprints = list(pool.map(fingerprint_output, outputs))
    names = [path.relative_to(work).as_posix() for path in outputs]
    return {
        "run_id": plan.run_id,
        "versions": versions(),
        "settings": plan.settings.as_json(),
        "kernel": describe_kernel(plan.settings.backend) if plan.settings.targets else None,
        "tags": plan.settings.tags,
        "columns": {name: item.text for name, item in plan.mapping.expressions.items()},
        "scored": list(plan.scored),
        "logs": [show_place(place) for place in logs],
        "layout": {"of": log.layout, "because": log.why},
        "inputs": [fingerprint_input(file) for file in plan.files],
        "scores": [fingerprint_input(file) for file in plan.scores],
        "outputs": dict(zip(names, fingerprints, strict=True)),
        "counts": summary,
        "notes": list(notes),
    }
