"""`process --append`: one batch into a store, from its new files to its audit.

Rows are spread over a fixed number of buckets by trajectory. A bucket's new rows are judged with
its pending rows and the lines of its ledger (`judging`); what later batches need of them becomes
lines and pending rows (`learning`). `committing` says how the batch comes into the store whole.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq

from vtaudit.appending.buckets import BucketResult, run_bucket
from vtaudit.appending.committing import Store, commit, open_store
from vtaudit.appending.counting import COUNTS, merge_batches, of_padding, whole_store
from vtaudit.appending.forgetting import read_forget
from vtaudit.appending.lines import BUCKETS, read_state
from vtaudit.appending.loading import Batch
from vtaudit.appending.manifest import Outcome, describe_batch, write_manifest_body
from vtaudit.appending.planning import plan_batch
from vtaudit.appending.reading import Rows, read_batch
from vtaudit.appending.tables import tabulate_store, write_tables
from vtaudit.clock import Clock
from vtaudit.config import Settings
from vtaudit.laws import check_laws, check_sums
from vtaudit.places import BATCH, STATE
from vtaudit.plan import Plan
from vtaudit.records import InputFile
from vtaudit.reports import Progress, RunResult, list_findings
from vtaudit.storage import Place
from vtaudit.store import SPILL

NOTHING_NEW = "nothing new: every file is taken, so the store is as it was"


def append(
    logs: Sequence[Place],
    out: Path,
    settings: Settings,
    tell: Progress,
    clock: Clock,
    files: Sequence[InputFile] | None = None,
) -> RunResult:
    """Take the files of `logs` that the store `out` has not taken; return what the store holds.

    With `files`, it is those that are taken, under their names.

    Raises:
        SettingsError: the settings are not the store's, or another process writes to it.
        SchemaError: a column's type contradicts that of earlier batches.
        InputError: a taken file was changed, the store is damaged, or the disk failed.
        LawError: the counts do not add up: a bug in vtaudit.
    """
    with open_store(out) as store:
        with clock.stage("plan"):
            plan = plan_batch(logs, settings, store, files)
        pending = 0 if store.manifest is None else store.manifest["counts"]["pending"]
        if not plan.readable and not (settings.close and pending):
            return _leave(plan, out, store)
        with clock.stage("read"):
            log, plan = read_batch(plan, store.work / SPILL, tell)
        batch = _make_batch(plan, log, store)
        results = _run_buckets(batch, store, clock, tell)
        return _finish(batch, logs, results, out, store, clock)


def _leave(plan: Plan, out: Path, store: Store) -> RunResult:
    """Return what the store holds already."""
    manifest = store.manifest or {}
    table = pq.read_table((store.state or out) / "audit" / "audit.parquet")
    findings = list_findings(plan.settings, manifest["counts"], plan.files)
    notes = [f"unreadable: {file.name}: {file.error}" for file in plan.files]
    rows: list[dict[str, Any]] = table.drop_columns("run_id").to_pylist()
    return RunResult(
        out,
        manifest["run_id"],
        manifest["counts"],
        rows,
        findings,
        (NOTHING_NEW, *notes),
        plan.settings,
    )


def _make_batch(plan: Plan, log: Rows, store: Store) -> Batch:
    manifest = store.manifest or {"batches": [], "files": [], "newest_version": None}
    forget = read_forget(
        plan.settings.forget_after, manifest["batches"], manifest["newest_version"]
    )
    return Batch(
        plan=plan,
        log=log,
        number=store.batches + 1,
        first_file=len(manifest["files"]),
        state=store.state,
        forget=forget,
        is_last=plan.settings.close,
    )


def _run_buckets(batch: Batch, store: Store, clock: Clock, tell: Progress) -> list[BucketResult]:
    results = []
    with ThreadPoolExecutor(batch.plan.settings.threads) as pool:
        futures = [
            pool.submit(run_bucket, batch, number, store.work, clock) for number in range(BUCKETS)
        ]
        try:
            for done, future in enumerate(futures, 1):
                results.append(future.result())
                tell("computing buckets", done, BUCKETS)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return results


def _finish(
    batch: Batch,
    logs: Sequence[Place],
    results: list[BucketResult],
    out: Path,
    store: Store,
    clock: Clock,
) -> RunResult:
    """Check the laws; write the audit, the state and the manifest; commit."""
    plan, settings = batch.plan, batch.plan.settings
    forgotten = sum(result.forgotten for result in results)
    extra = of_padding(batch.log.padding, forgotten, batch.number)
    added = merge_batches([extra, *(result.counts for result in results)])
    before = pl.DataFrame(schema=COUNTS)
    if batch.state is not None:
        before = read_state(batch.state / "counts.parquet")
    counts = merge_batches([before, added])
    with clock.stage("audit"):
        name = f"{out.name} batch {batch.number}"
        of_batch = whole_store(added)
        thresholds = settings.thresholds()
        check_laws(store.work / BATCH, name, of_batch, thresholds, targets=settings.targets)
        check_sums(out.name, whole_store(counts))
    outcome = Outcome(batch, store, tuple(results), added)
    entry = describe_batch(outcome, _run_id(batch, store), logs, clock.seconds)
    body = write_manifest_body(outcome, entry)
    tables = tabulate_store(plan, counts, body["files"], body["batches"])
    summary = tables["summary"][0]
    state = store.work / STATE
    write_tables(state, entry["run_id"], tables)
    outcome.write_state(state, counts)
    commit(store, batch.number, {**body, "counts": summary, "outputs": outcome.list_outputs()})
    findings = list_findings(settings, summary, batch.plan.files)
    notes = tuple(entry["notes"])
    return RunResult(out, entry["run_id"], summary, tables["audit"], findings, notes, settings)


def _run_id(batch: Batch, store: Store) -> str:
    before = None if store.manifest is None else store.manifest["run_id"]
    body = [before, batch.plan.run_id, batch.is_last, batch.plan.settings.forget_after]
    return hashlib.sha256(json.dumps(body).encode()).hexdigest()[:16]
