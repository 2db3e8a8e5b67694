"""Which files of LOGS a store has not taken yet, and what it knows of those it has.

A file is identified by its absolute path without symbolic links. It is taken once its rows were
read; from then on its size, mtime and content are held against the record. A file that could not be
read is not taken, and is tried again with every batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from vtaudit.canonical import CARRIED
from vtaudit.errors import InputError, SettingsError
from vtaudit.records import Earlier, InputFile
from vtaudit.sources import hash_file, natural_key
from vtaudit.storage import Place, last_name, read_status, show_place

# what the store is called where a file's name would stand
EARLIER = "the earlier batches"
READ = "read"
Files = list[dict[str, Any]]


def describe_earlier(manifest: dict[str, Any] | None, columns: pl.DataFrame | None) -> Earlier:
    """Return what a plan of the next batch needs to know of the store.

    Args:
        manifest: of the store, None before its first batch.
        columns: an empty frame with the canonical and the carried columns of the store.
    """
    if manifest is None or columns is None:
        return Earlier()
    known = [name for name in manifest["typed"] if name in columns.columns]
    canonical = columns.select(
        pl.lit(None, dtype=pl.Boolean).alias(name) if columns.schema[name] == pl.Int8 else name
        for name in known
    )
    types = {field.name: field.type for field in _arrow_schema(canonical)}
    carried = columns.select(
        pl.col(name).alias(name.removeprefix(CARRIED))
        for name in columns.columns
        if name.startswith(CARRIED)
    )
    files = manifest["files"]

    def leave_taken(
        list_inputs: Callable[[Sequence[Place]], list[InputFile]], logs: Sequence[Place]
    ) -> list[InputFile]:
        return find_new(files, list_inputs, logs)

    stand_in = InputFile(Path(EARLIER), EARLIER, schema=_arrow_schema(carried))
    return Earlier(frozenset(manifest["paths"]), {EARLIER: types}, (stand_in,), leave_taken)


def _arrow_schema(frame: pl.DataFrame) -> Any:
    return frame.to_arrow(compat_level=pl.CompatLevel.oldest()).schema


def find_new(
    taken: Files, list_inputs: Callable[[Sequence[Place]], list[InputFile]], logs: Sequence[Place]
) -> list[InputFile]:
    """Return the inputs that the store has not taken, under names that no other file has.

    Raises:
        InputError: a file was changed after it was taken; nothing is taken then.
        SettingsError: names cannot be made unique.
    """
    if all(_is_emptied(log) for log in logs):
        return []
    known = {entry["path"]: entry for entry in taken if entry["status"] == READ}
    found = [file for file in list_inputs(logs) if _is_new(file, known)]
    names = {entry["name"]: entry["path"] for entry in known.values()}
    clash = [file for file in found if file.name in names]
    if not clash:
        return found
    label = last_name(logs[0]) or "log"
    renamed = [replace(file, name=f"{label}/{file.name}") for file in found]
    for file in renamed:
        if file.name in names:
            raise SettingsError(
                f"{file.path}: its source_file would be {file.name}, as that of "
                f"{names[file.name]}; name a LOGS directory above both, so that the names differ"
            )
    return sorted(renamed, key=lambda file: natural_key(file.name))


def _is_emptied(log: Place) -> bool:
    return isinstance(log, Path) and log.is_dir() and not any(log.rglob("*.parquet"))


def identify(file: InputFile) -> str:
    """Return what identifies a file: its absolute path or its URL, as text."""
    place = file.path
    return show_place(place.resolve() if isinstance(place, Path) else place)


def _is_new(file: InputFile, known: dict[str, dict[str, Any]]) -> bool:
    entry = known.get(identify(file))
    if entry is None:
        return True
    try:
        status = read_status(file.path)
        found = (status.size, status.mtime_ns, status.version)
        if found == (entry["bytes"], entry["mtime_ns"], entry["version"]):
            return False
        is_same = status.size == entry["bytes"] and hash_file(file.path) == entry["sha256"]
    except OSError as error:
        raise InputError(f"{file.name}: cannot be read: {error.strerror}") from None
    if not is_same:
        raise InputError(
            f"{file.name}: has changed since batch {entry['batch']} took it; a store keeps its "
            "verdicts, so write what is new to a new file, and put this one back"
        )
    return False


def record_files(files: Sequence[InputFile], batch: int) -> Files:
    """Return the manifest's entries of a batch's files."""
    return [
        {
            "batch": batch,
            "name": file.name,
            "path": identify(file),
            "bytes": file.size,
            "mtime_ns": file.mtime_ns,
            "version": file.version,
            "sha256": file.sha256,
            "rows": file.rows if file.error is None else None,
            "status": READ if file.error is None else "unreadable",
            "error": file.error,
        }
        for file in files
    ]


def latest_files(entries: Files) -> list[InputFile]:
    """Return each file once, as it was found last."""
    last = {entry["path"]: entry for entry in entries}
    return as_inputs([*last.values()])


def as_inputs(entries: Files) -> list[InputFile]:
    """Return the files of manifest entries."""
    return [
        InputFile(
            Path(entry["path"]),
            entry["name"],
            size=entry["bytes"],
            rows=entry["rows"],
            error=entry["error"],
        )
        for entry in entries
    ]
