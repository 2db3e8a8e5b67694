"""The run directory: work beside it, atomic parts, manifest, one rename that publishes it."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from vtaudit.errors import InputError, SettingsError
from vtaudit.places import STORE_FORMAT, is_store
from vtaudit.ranges import is_text
from vtaudit.storage import Place

MANIFEST = "manifest.json"
MANIFEST_FORMAT = "vtaudit run v1"
# what a workspace holds beside the run: shards that are done, and rows that wait
PROGRESS = "progress"
SPILL = "spill"
# results are floats, which hardly yield: zstd would take half the time of writing for a tenth
FAST, TIGHT = "snappy", "zstd"
TIGHT_LEVEL = 1
# values that the writer encodes at once; its default of 1,024 costs a tenth more time
WRITE_BATCH = 65_536


def check_apart(logs: Sequence[Place], out: Path) -> None:
    """Refuse a RUN within LOGS, where the next run would take it for a log.

    Raises:
        SettingsError: RUN lies within LOGS or another run, or its path is not UTF-8.
    """
    if not is_text(str(out)):
        raise SettingsError(f"{str(out)!r}: the path of a run must be UTF-8; name another --out")
    for parent in out.absolute().parents:
        if _is_run(parent):
            raise SettingsError(f"{out}: lies within the run {parent}; name an --out outside it")
    for log in logs:
        if isinstance(log, Path) and log.resolve() in (out.resolve(), *out.resolve().parents):
            raise SettingsError(f"{out}: lies within {log}; name an --out outside the logs")


def check_target(out: Path, *, overwrite: bool) -> None:
    """Refuse a RUN that exists, unless it is a vtaudit run and may be replaced.

    Raises:
        SettingsError: RUN exists and may not be replaced.
    """
    if not out.exists() and not out.is_symlink():
        return
    if _is_run(out) and is_store(read_manifest(out)):
        raise SettingsError(
            f"{out}: is a store that grows, and is never replaced; add to it with --append, or "
            "name another --out"
        )
    if not overwrite:
        raise SettingsError(
            f"{out}: exists; name another --out, or say --overwrite to replace a vtaudit run"
        )
    foreign = _foreign(out) if _is_run(out) else []
    if foreign:
        raise SettingsError(
            f"{out}: holds {foreign[0]}, which the run did not write; --overwrite would delete it, "
            "so move it away, or name another --out"
        )
    if not _is_run(out):
        raise SettingsError(
            f"{out}: exists and holds no vtaudit manifest; --overwrite replaces vtaudit runs only"
        )


def _foreign(run: Path) -> list[str]:
    """Return the files within a run that its manifest does not list."""
    listed = {MANIFEST, *read_manifest(run).get("outputs", ())}
    there = {path.relative_to(run).as_posix() for path in run.rglob("*") if not path.is_dir()}
    return sorted(there - listed)


def _is_run(path: Path) -> bool:
    try:
        read_manifest(path)
    except InputError:
        return False
    return True


def read_manifest(run: Path) -> dict[str, Any]:
    """Return the manifest of a run or a store.

    Raises:
        InputError: neither stands there.
    """
    try:
        manifest = json.loads((run / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        manifest = None
    formats = (MANIFEST_FORMAT, STORE_FORMAT)
    if not isinstance(manifest, dict) or manifest.get("format") not in formats:
        state = "damaged or foreign" if (run / MANIFEST).exists() else "missing"
        raise InputError(f"{run}: {MANIFEST} is {state}; expected a run directory")
    return manifest


@contextmanager
def open_workspace(out: Path, *, overwrite: bool) -> Iterator[Path]:
    """Give a hidden directory beside `out` to work in; publish it as `out` if the body succeeds.

    Where the disk fails or a person interrupts the body, the workspace stays if a shard in it is
    done; after any other failure it goes.

    Raises:
        SettingsError: `out` exists and may not be replaced, or another process works on it.
        InputError: the disk failed.
    """
    out = out.resolve()
    check_target(out, overwrite=overwrite)
    work = out.parent / f".{out.name}.vtaudit"
    try:
        work.mkdir(parents=True, exist_ok=True)
        lock = os.open(work, os.O_RDONLY)
    except OSError as error:
        raise InputError(f"{out}: cannot be made: {error.strerror}") from None
    try:
        claim(
            lock,
            f"{out}: another vtaudit process is writing it; wait for it, or name another --out",
        )
        if not work.exists() or os.fstat(lock).st_ino != work.stat().st_ino:
            raise SettingsError(f"{out}: another vtaudit process has just written it; look there")
        _put_back(out)
        try:
            check_target(out, overwrite=overwrite)
            yield work
            check_target(out, overwrite=overwrite)
            _publish(work, out)
        except (InputError, KeyboardInterrupt) as error:
            if any((work / PROGRESS).glob("shard-*.json")):
                error.add_note("what is done is kept: the same command with --resume goes on")
            else:
                shutil.rmtree(work, ignore_errors=True)
            raise
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise
    finally:
        os.close(lock)


def claim(lock: int, busy: str) -> None:
    """Lock an open directory for this process.

    Raises:
        SettingsError: another process has it; the message is `busy`.
    """
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise SettingsError(busy) from None


def clear(folder: Path, but: Sequence[str] = ()) -> None:
    """Remove everything in a folder apart from the entries named.

    Raises:
        InputError: the disk failed.
    """
    try:
        for entry in folder.iterdir():
            if entry.name in but:
                continue
            if entry.is_dir():
                shutil.rmtree(entry)
            else:
                entry.unlink()
    except OSError as error:
        raise InputError(f"{folder}: cannot be emptied: {error}") from None


def replace_text(path: Path, text: str) -> None:
    """Write a small file that is there whole or not at all, and flush it to the disk.

    Raises:
        InputError: the disk failed.
    """
    fresh = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_text(text, encoding="utf-8")
        sync(fresh)
        fresh.rename(path)
        sync(path.parent)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error}") from None


def _publish(work: Path, out: Path) -> None:
    """Rename the workspace to `out`; a run that stands there goes only once the new one is in."""
    old = _replaced(out)
    for scratch in (PROGRESS, SPILL):
        shutil.rmtree(work / scratch, ignore_errors=True)
    try:
        for directory, _, _ in os.walk(work):
            sync(Path(directory))
        if out.exists():
            out.rename(old)
        work.rename(out)
        sync(out.parent)
    except OSError as error:
        _put_back(out)
        raise InputError(f"{out}: cannot be published: {error.strerror}") from None
    _discard(old)


def _replaced(out: Path) -> Path:
    return out.parent / f".{out.name}.replaced"


def _put_back(out: Path) -> None:
    """Put back the old run of a process that ended between the two renames of an overwrite.

    One that ended while it removed the old run has left a rest without a manifest: that goes.
    """
    old = _replaced(out)
    if not out.exists() and _is_run(old):
        old.rename(out)
    _discard(old)


def _discard(run: Path) -> None:
    """Remove a run, its manifest first, so that what a kill leaves is no run."""
    (run / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(run, ignore_errors=True)


def sync(path: Path) -> None:
    """Flush a file or directory to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_table(
    table: pa.Table,
    path: Path,
    *,
    statistics: Sequence[str] = (),
    is_tight: bool = False,
    flush: bool = True,
) -> None:
    """Write one Parquet file with page checksums.

    Args:
        table: its schema is one of schemas/, carried columns apart.
        path: where to; its directory is made.
        statistics: columns that get min/max statistics; never one that can hold NaN, which they
            would hide from a query.
        is_tight: whether columns may compress well: with zstd instead of snappy.
        flush: wait until it is on the disk.

    Raises:
        InputError: the disk failed.
    """
    plain = _plain_schema(table.schema)
    described = {b"ARROW:schema": base64.b64encode(plain.serialize().to_pybytes())}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(
            table.replace_schema_metadata(described),
            path,
            compression=TIGHT if is_tight else FAST,
            compression_level=TIGHT_LEVEL if is_tight else None,
            write_batch_size=WRITE_BATCH,
            use_dictionary=[field.name for field in plain if pa.types.is_string(field.type)],
            column_encoding=dict.fromkeys(_integers(plain), "DELTA_BINARY_PACKED"),
            write_statistics=list(statistics),
            write_page_checksum=True,
            store_schema=False,
        )
        if flush:
            sync(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error}") from None


def _plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema that readers see: a dictionary of text is text."""
    return pa.schema(
        field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field
        for field in schema
    )


def _integers(schema: pa.Schema) -> list[str]:
    return [field.name for field in schema if pa.types.is_int64(field.type)]


def write_manifest(work: Path, body: dict[str, Any]) -> None:
    """Write the manifest, the last file of a run."""
    text = json.dumps({"format": MANIFEST_FORMAT, **body}, indent=2, ensure_ascii=False)
    replace_text(work / MANIFEST, text + "\n")
