"""What a run reports: its result, what to know of the inputs, limits passed, fingerprints."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vtaudit.audit import Counts
from vtaudit.config import Settings
from vtaudit.outputs import ShardResult
from vtaudit.plan import Plan
from vtaudit.reasons import Warn
from vtaudit.records import InputFile

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class RunResult:
    """What `process` did.

    Attributes:
        path: the run directory.
        run_id: hash of settings, inputs and version.
        summary: the row of the table `summary`.
        audit: the rows of the table `audit`.
        findings: limits that were passed; the command exits with 1 where there are any.
        notes: what a person should know of the inputs.
        settings: as they were resolved.
    """

    path: Path
    run_id: str
    summary: dict[str, Any]
    audit: list[dict[str, Any]]
    findings: tuple[str, ...]
    notes: tuple[str, ...]
    settings: Settings


def fingerprint_input(file: InputFile) -> dict[str, Any]:
    """Return what the manifest says of an input."""
    return {
        "name": file.name,
        "bytes": file.size,
        "mtime_ns": file.mtime_ns,
        "sha256": file.sha256,
        "error": file.error,
    }


def fingerprint_output(path: Path) -> dict[str, Any]:
    """Return what the manifest says of an output."""
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": digest}


def list_notes(
    plan: Plan, files: Sequence[InputFile], whole: ShardResult, counts: Counts
) -> tuple[str, ...]:
    """Return what a person should know of the inputs, a sentence each."""
    notes = [f"unreadable: {file.name}: {file.error}" for file in files if file.error is not None]
    readable = {file.name for file in files if file.error is None}
    for name, present in plan.shape.present.items():
        lacking = sorted(readable - present)
        if lacking and name not in plan.scored:
            notes.append(f"column {name}: absent in {len(lacking)} files, as {lacking[0]}")
    for warning, keys in (
        (Warn.SCORE_MISSING, whole.unscored),
        (Warn.SCORE_SURPLUS, whole.unused),
    ):
        count = counts.get(("warning", warning.code), 0)
        if count:
            named = "; ".join(f"{trajectory} step {step}" for trajectory, step in keys)
            notes.append(f"scores: {count} {warning.text}, as {named}")
    return (*notes, *plan.notes)


def list_findings(
    settings: Settings, summary: dict[str, Any], files: Sequence[InputFile]
) -> tuple[str, ...]:
    """Return the limits that were passed, a sentence each."""
    found = []
    received, rejected = summary["received"], summary["rejected"]
    limit = settings.max_reject_fraction
    if limit is not None and rejected > limit * received:
        found.append(
            f"{rejected} of {received} rows rejected, more than max_reject_fraction {limit}"
        )
    for code in settings.fail_on:
        if summary[f"rejected_any_{code}"]:
            found.append(f"fail_on {code}: {summary[f'rejected_any_{code}']} rows")
    bad = [file for file in files if file.error is not None]
    if bad and not settings.allow_unreadable:
        first = f"{bad[0].name}: {bad[0].error}"
        found.append(f"{len(bad)} of {len(files)} files unreadable, as {first}")
    return tuple(found)
