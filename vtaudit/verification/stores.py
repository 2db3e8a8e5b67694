"""Hold a store against itself, and its batches against its logs, taken once more in their order."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from vtaudit.appending import append
from vtaudit.appending.lines import BUCKETS
from vtaudit.clock import Clock
from vtaudit.config import Settings, settings_from_json
from vtaudit.errors import InputError, VtauditError
from vtaudit.outputs import part_name
from vtaudit.places import BATCH, numbered
from vtaudit.plan import versions
from vtaudit.records import InputFile
from vtaudit.storage import parse_place, tell_lost
from vtaudit.store import MANIFEST, read_manifest
from vtaudit.verification.checks import check_counts, check_duckdb, check_files, check_run_rows
from vtaudit.verification.comparison import Verification, compare_part

TABLES = ("targets", "rejects")


def verify_store(
    run: Path, logs: Sequence[Path], scores: str | Path | None, found: Verification | None = None
) -> Verification:
    """Return what of a store holds; what is damaged does not keep the rest from being checked.

    Args:
        run: the store.
        logs: where its logs are now, one directory that holds every source_file; by default each
            file is where it was.
        scores: where its scores are now; by default where each batch had them.
        found: where the findings go.

    Raises:
        InputError: no store stands there.
    """
    found = found or Verification()
    manifest = read_manifest(run)
    try:
        settings = settings_from_json(manifest["settings"])
        entries = [_entry_of_run(entry) for entry in manifest["batches"]]
        writer, ours = (each.get("vtaudit") for each in (manifest["versions"], versions()))
        outputs, files = manifest["outputs"], manifest["files"]
    except (KeyError, TypeError, AttributeError, VtauditError) as error:
        raise InputError(f"{run}/{MANIFEST}: was changed: {error}") from None
    if writer != ours:
        found.skipped.append(f"with vtaudit {writer}, which wrote the store; this is {ours}")
    check_files(run, outputs, found)
    check_counts(run, manifest, settings, found)
    check_run_rows(run, entries, found)
    check_duckdb(run, outputs, found)
    if any(entry["forgotten"] for entry in manifest["batches"]):
        found.skipped.append("rows against the logs: keys were forgotten, which is not done again")
        return found
    inputs = [_locate(entry, logs) for entry in files]
    lost = tell_lost([file.path for file in inputs if file is not None])
    if lost:
        found.skipped.append(f"rows against the logs: {lost}; say --logs DIR")
        return found
    _replay(run, manifest, inputs, scores, found)
    return found


def _entry_of_run(entry: dict[str, Any]) -> dict[str, Any]:
    forgotten = {"forgotten": entry["forgotten"]} if entry["forgotten"] else {}
    return {**entry, "settings": {**entry["settings"], **forgotten}}


def _locate(entry: dict[str, Any], logs: Sequence[Path]) -> InputFile | None:
    """Return where a taken file is; None for one that was not taken."""
    if entry["error"] is not None:
        return None
    path = logs[0] / entry["name"] if logs else parse_place(entry["path"])
    return InputFile(path, entry["name"], sha256=entry["sha256"])


def _replay(
    run: Path,
    manifest: dict[str, Any],
    inputs: Sequence[InputFile | None],
    scores: str | Path | None,
    found: Verification,
) -> None:
    """Take the batches once more with the reference, and compare the parts of each."""
    rows = dict.fromkeys(TABLES, 0)
    with tempfile.TemporaryDirectory(prefix="vtaudit-verify-") as home:
        store = Path(home) / "store"
        for entry in manifest["batches"]:
            number = entry["batch"]
            files = [
                file
                for file, of in zip(inputs, manifest["files"], strict=True)
                if file is not None and of["batch"] == number
            ]
            settings = _settings(entry, scores)
            try:
                append([], store, settings, lambda *_: None, Clock(), files=files)
                again = read_manifest(store)
            except VtauditError as error:
                found.damaged.append(str(error))
                found.skipped.append(f"rows against the logs, from batch {number} on")
                return
            changed = _find_changed(files, again["files"])
            if changed:
                found.damaged.append(f"logs: {changed} has changed since the store took it")
                found.skipped.append(f"rows against the logs, from batch {number} on")
                return
            for table, count in _compare_batch(run, store, number, settings, found).items():
                rows[table] += count
        _compare_counts(manifest["counts"], again["counts"], found)
    found.compared.append(
        f"{rows['targets']:,} rows of targets, {rows['rejects']:,} rows of rejects in "
        f"{len(manifest['batches'])} batches: with the reference on the logs, batch by batch"
    )


def _settings(entry: dict[str, Any], scores: str | Path | None) -> Settings:
    settings = settings_from_json(entry["settings"])
    settings = settings if scores is None else replace(settings, scores=str(scores))
    return replace(settings, backend="reference", device="cpu")


def _find_changed(files: Sequence[InputFile], again: Sequence[dict[str, Any]]) -> str | None:
    """Return the first file whose content is not what the store took."""
    digests = {entry["name"]: entry["sha256"] for entry in again}
    changed = [file.name for file in files if digests.get(file.name) != file.sha256]
    return changed[0] if changed else None


def _compare_batch(
    run: Path, store: Path, number: int, settings: Settings, found: Verification
) -> dict[str, int]:
    """Compare the parts of one batch; return how many rows of each table were compared."""
    counts = dict.fromkeys(TABLES, 0)
    for table in TABLES:
        place = f"{numbered(BATCH, number)}/{table}"
        (first,) = (store / place).glob(part_name(0))
        for bucket in range(BUCKETS):
            part = store / place / part_name(bucket)
            expected = pl.read_parquet(part if part.exists() else first, glob=False)
            counts[table] += compare_part(
                run,
                bucket,
                expected if part.exists() else expected.clear(),
                found,
                table=place,
                dtype=settings.dtype,
                whole=True,
            )
    return counts


def _compare_counts(stored: dict[str, Any], again: dict[str, Any], found: Verification) -> None:
    for name in stored.keys() & again.keys():
        if stored[name] != again[name] and not name.startswith("files"):
            found.broken.append(f"summary: {name} is {stored[name]}, the logs give {again[name]}")
