"""The run: plan, read into shards, take each shard from start to end, finish."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from vtaudit import audit
from vtaudit.appending import append
from vtaudit.checkpoints import load_shard, prepare_workspace, save_shard
from vtaudit.clock import Clock
from vtaudit.config import DEFAULT_GAMMA, Settings
from vtaudit.counts import RUN
from vtaudit.laws import check_laws
from vtaudit.outputs import ShardResult, add_up, count_shard, tabulate, write_shard
from vtaudit.plan import Plan, make_plan, versions
from vtaudit.reading import LogRows, read_log
from vtaudit.records import InputFile
from vtaudit.reports import (
    Progress,
    RunResult,
    fingerprint_input,
    fingerprint_output,
    list_findings,
    list_notes,
)
from vtaudit.shard import judge_shard
from vtaudit.sources import show_path
from vtaudit.store import PROGRESS, SPILL, check_apart, open_workspace, write_manifest, write_table


def process(
    logs: Sequence[str | Path] | str | Path,
    out: str | Path,
    settings: Settings | None = None,
    *,
    progress: Progress | None = None,
) -> RunResult:
    """Audit the logged trajectories below `logs`, recompute their targets, and write `out`.

    Args:
        logs: directories or files of Parquet.
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
    paths = [Path(logs)] if isinstance(logs, str | Path) else [Path(log) for log in logs]
    settings, out = settings or Settings(), Path(out)
    tell = progress or (lambda stage, done, total: None)
    clock = Clock()
    check_apart(paths, out)
    if settings.append:
        return append(paths, out, settings, tell, clock)
    with open_workspace(out, overwrite=settings.overwrite) as work:
        with clock.stage("plan"):
            plan = make_plan(paths, settings)
        prepare_workspace(work, plan.run_id, resume=settings.resume)
        with clock.stage("read"):
            log = _read(plan, work, tell)
        gamma = DEFAULT_GAMMA if plan.settings.gamma is None else plan.settings.gamma
        plan = replace(plan, settings=replace(plan.settings, gamma=gamma))
        with clock.stage("shards"):
            shards = _run_shards(plan, log, work, clock, tell)
        return _finish(plan, paths, log, add_up(log, shards), work, out, clock)


def _read(plan: Plan, work: Path, tell: Progress) -> LogRows:
    total, done = sum(file.rows or 0 for file in plan.readable), 0

    def tick(rows: int) -> None:
        nonlocal done
        done += rows
        tell("reading rows", done, total)

    return read_log(plan, work / SPILL, tick)


def _run_shards(
    plan: Plan, log: LogRows, work: Path, clock: Clock, tell: Progress
) -> list[ShardResult]:
    total = log.rows.shards
    results = []
    with ThreadPoolExecutor(plan.settings.threads) as pool:
        futures = [pool.submit(_run_shard, plan, log, k, work, clock) for k in range(total)]
        try:
            for done, future in enumerate(futures, 1):
                results.append(future.result())
                tell("computing shards", done, total)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return results


def _run_shard(plan: Plan, log: LogRows, number: int, work: Path, clock: Clock) -> ShardResult:
    done = load_shard(work, number)
    if done is not None:
        return done
    shard = judge_shard(plan, log, number, clock)
    with clock.stage("write"):
        write_shard(plan, shard, work, number)
    with clock.stage("count"):
        result = count_shard(plan, shard)
    save_shard(work, number, result)
    return result


def _finish(
    plan: Plan,
    logs: Sequence[Path],
    log: LogRows,
    whole: ShardResult,
    work: Path,
    out: Path,
    clock: Clock,
) -> RunResult:
    """Write the audit tables and the manifest; hold them against the laws."""
    settings = plan.settings
    with clock.stage("audit"):
        counts = audit.counts_of(whole.counts, RUN, RUN)
        tables = tabulate(plan, log, whole)
        summary, files = tables["summary"][0], log.files
        check_laws(work, out.name, counts, settings.thresholds(), targets=settings.targets)
    resolved, tags = settings.as_json(), settings.tags
    tables["runs"] = [audit.run_row(resolved, versions(), tags, clock.seconds)]
    written = {name: audit.make_table(name, plan.run_id, body) for name, body in tables.items()}
    for name, table in written.items():
        write_table(table, work / "audit" / f"{name}.parquet")
    audit.write_duckdb(work / "audit.duckdb", written)
    notes = list_notes(plan, files, whole, counts)
    write_manifest(work, _manifest(plan, logs, files, summary, notes, work))
    findings = list_findings(settings, summary, files)
    return RunResult(out, plan.run_id, summary, tables["audit"], findings, notes, settings)


def _manifest(
    plan: Plan,
    logs: Sequence[Path],
    files: Sequence[InputFile],
    summary: dict[str, Any],
    notes: Sequence[str],
    work: Path,
) -> dict[str, Any]:
    scratch = (work / PROGRESS, work / SPILL)
    outputs = sorted(
        path for path in work.rglob("*") if path.is_file() and not set(scratch) & set(path.parents)
    )
    return {
        "run_id": plan.run_id,
        "versions": versions(),
        "settings": plan.settings.as_json(),
        "tags": plan.settings.tags,
        "columns": {name: item.text for name, item in plan.mapping.expressions.items()},
        "scored": list(plan.scored),
        "logs": [show_path(log.absolute()) for log in logs],
        "inputs": [fingerprint_input(file) for file in files],
        "scores": [fingerprint_input(file) for file in plan.scores],
        "outputs": {
            path.relative_to(work).as_posix(): fingerprint_output(path) for path in outputs
        },
        "counts": summary,
        "notes": list(notes),
    }
