"""What the manifest of a store says after a batch, and the state that goes with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.types as pat

from vtaudit.appending.buckets import BucketResult
from vtaudit.appending.committing import Store, audit_files
from vtaudit.appending.counting import whole_store
from vtaudit.appending.forgetting import describe_forgotten, now
from vtaudit.appending.lines import BUCKETS
from vtaudit.appending.loading import Batch
from vtaudit.appending.taking import record_files
from vtaudit.canonical import CARRIED
from vtaudit.mapping import column_paths
from vtaudit.outputs import NAMED_KEYS, ShardResult
from vtaudit.places import BATCH, STATE, numbered
from vtaudit.plan import types_by_file, versions
from vtaudit.reports import fingerprint_input, fingerprint_output, list_notes
from vtaudit.storage import Place, show_place
from vtaudit.store import write_table
from vtaudit.tallies import NOTHING


@dataclass(frozen=True, slots=True)
class Outcome:
    """A batch that is computed, and what its buckets left."""

    batch: Batch
    store: Store
    results: tuple[BucketResult, ...]
    added: pl.DataFrame

    @property
    def before(self) -> dict[str, Any]:
        """The manifest before the batch."""
        empty: dict[str, Any] = {"batches": [], "files": [], "paths": [], "typed": []}
        empty |= {"columns": {}, "outputs": {}, "newest_version": None}
        return self.store.manifest or empty

    @property
    def forgotten(self) -> int:
        """How many keys were dropped."""
        return sum(result.forgotten for result in self.results)

    def write_state(self, state: Path, counts: pl.DataFrame) -> None:
        """Write what is not in buckets: the counts of all batches, and the columns' types.

        Raises:
            InputError: the disk failed.
        """
        plan = self.batch.plan
        carried = {CARRIED + name: dtype for name, dtype in plan.carry.items()}
        columns = pl.DataFrame(schema={**plan.shape.dtypes, **carried})
        for name, frame in (("counts", counts), ("columns", columns)):
            arrow = frame.to_arrow(compat_level=pl.CompatLevel.oldest())
            write_table(arrow, state / f"{name}.parquet")

    def list_outputs(self) -> dict[str, Any]:
        """Return the fingerprints of every file of the store, the manifests apart."""
        number, work = self.batch.number, self.store.work
        old, state = numbered(STATE, number - 1), numbered(STATE, number)
        before = self.before["outputs"]
        kept = {name: item for name, item in before.items() if name.startswith(f"{BATCH}-")}
        linked = {f"{state}/{name}" for result in self.results for name in result.linked}
        found = {}
        for part in (BATCH, STATE):
            for path in sorted(p for p in (work / part).rglob("*") if p.is_file()):
                name = f"{numbered(part, number)}/{path.relative_to(work / part).as_posix()}"
                known = before[name.replace(state, old, 1)] if name in linked else None
                found[name] = known or fingerprint_output(path)
        plain = {name: found[f"{state}/{name}"] for name in audit_files(work / STATE)}
        return {**kept, **found, **plain}


def describe_batch(
    outcome: Outcome, run_id: str, logs: Sequence[Place], seconds: Mapping[str, float]
) -> dict[str, Any]:
    """Return the manifest's entry of the batch."""
    batch, settings = outcome.batch, outcome.batch.plan.settings
    batches = outcome.before["batches"]
    forgotten = describe_forgotten(batch.forget, outcome.forgotten, batches)
    return {
        "batch": batch.number,
        "run_id": run_id,
        "taken_at": now().isoformat(),
        "closed": batch.is_last,
        "settings": settings.as_json(),
        "versions": versions(),
        "tags": settings.tags,
        "seconds": dict(seconds),
        "logs": [show_place(log) for log in logs],
        "scores": [fingerprint_input(file) for file in batch.plan.scores],
        "forgotten": forgotten,
        "notes": [*_notes(outcome), *([forgotten] if forgotten else [])],
    }


def write_manifest_body(outcome: Outcome, entry: dict[str, Any]) -> dict[str, Any]:
    """Return the manifest after the batch, without counts and outputs."""
    batch, plan, before = outcome.batch, outcome.batch.plan, outcome.before
    files = [*before["files"], *record_files(batch.plan.files, batch.number)]
    taken = [file for file in batch.plan.files if file.error is None]
    paths = {path for file in taken for path in column_paths(file.schema)}
    types = types_by_file(plan.mapping, taken)
    typed = {n for t in types.values() for n, kind in t.items() if not pat.is_null(kind)}
    versions_seen = [result.newest_version for result in outcome.results]
    newest = [v for v in (before["newest_version"], *versions_seen) if v is not None]
    return {
        "run_id": entry["run_id"],
        "versions": entry["versions"],
        "settings": entry["settings"],
        "tags": entry["tags"],
        "columns": {
            **before["columns"],
            **{name: item.text for name, item in plan.mapping.expressions.items()},
        },
        "scored": list(plan.scored),
        "is_discrete": plan.shape.is_discrete,
        "paths": sorted({*before["paths"], *paths}),
        "typed": sorted({*before["typed"], *typed}),
        "buckets": BUCKETS,
        "newest_version": max(newest, default=None),
        "logs": entry["logs"],
        "scores": entry["scores"],
        "notes": entry["notes"],
        "batches": [*before["batches"], entry],
        "files": files,
    }


def _notes(outcome: Outcome) -> list[str]:
    """Return what a person should know of the batch, a sentence each."""
    results = outcome.results
    unscored = [key for result in results for key in result.unscored][:NAMED_KEYS]
    unused = [key for result in results for key in result.unused][:NAMED_KEYS]
    whole = ShardResult(NOTHING, 0, tuple(unscored), tuple(unused))
    counts = whole_store(outcome.added)
    notes = list(list_notes(outcome.batch.plan, outcome.batch.plan.files, whole, counts))
    files = outcome.before["files"]
    for one in [each for result in results for each in result.conflicts][:NAMED_KEYS]:
        kept = files[one.kept_file]
        notes.append(
            f"later_conflict: {one.trajectory} step {one.step}: {one.file}:{one.row} differs from "
            f"{kept['name']}:{one.kept_row} of batch {kept['batch']}, which stays"
        )
    return notes
