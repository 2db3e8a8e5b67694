"""The directory of a store, and how a batch comes into it: whole, or not at all.

    STORE/manifest.json   what is true: batches, files, settings, fingerprints
    STORE/batch-00001/    targets/ and rejects/ of one batch; never changed
    STORE/state-00001/    as of the last batch: ledger/, pending/, counts.parquet, columns.parquet,
                          audit/ and audit.duckdb of the whole store, and its manifest.json
    STORE/audit/          the audit of state-*, under the names that a run has
    STORE/audit.duckdb

All of a batch is written and flushed within STORE/.batch. Then state-N is renamed into its place,
then batch-N: that rename commits, for from then on a glob sees the batch. Then the manifest is
replaced by that of state-N, the audit is put under its plain names, and state-(N-1) goes.

A process that dies before the rename of batch-N leaves the old store, and after it the new one as
soon as a store is opened for writing: `open_store` finishes what is committed and removes the rest.
Readers take the manifest's word and see the old store until then. Writers hold a lock on STORE.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vtaudit.errors import InputError, SettingsError
from vtaudit.places import BATCH, STATE, STORE_FORMAT, is_store, numbered
from vtaudit.store import MANIFEST, claim, read_manifest, replace_text, sync

WORK = ".batch"
AUDIT = "audit"
DUCKDB = "audit.duckdb"


@dataclass(frozen=True, slots=True)
class Store:
    """A store that is open for writing.

    Attributes:
        path: of the store.
        manifest: as it stands; None before the first batch.
    """

    path: Path
    manifest: dict[str, Any] | None

    @property
    def batches(self) -> int:
        """How many batches it has."""
        return 0 if self.manifest is None else len(self.manifest["batches"])

    @property
    def state(self) -> Path | None:
        """Where its state stands."""
        return self.path / numbered(STATE, self.batches) if self.batches else None

    @property
    def work(self) -> Path:
        """Where the next batch is written."""
        return self.path / WORK


@contextmanager
def open_store(path: Path) -> Iterator[Store]:
    """Give a store to write to, made where there is none; it is this process's alone.

    Raises:
        SettingsError: something else stands there, or another process writes to it.
        InputError: the disk failed.
    """
    path = path.resolve()
    _check_place(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise InputError(f"{path}: cannot be made: {error.strerror}") from None
    try:
        claim(lock, f"{path}: another vtaudit process is adding to it; wait for it")
        _check_place(path)
        try:
            _recover(path)
            there = (path / MANIFEST).exists()
            yield Store(path, read_manifest(path) if there else None)
        finally:
            shutil.rmtree(path / WORK, ignore_errors=True)
            if not any(path.iterdir()):
                path.rmdir()
    except OSError as error:
        raise InputError(f"{path}: {error}") from None
    finally:
        os.close(lock)


def _check_place(path: Path) -> None:
    """Refuse what is neither a store, nor the beginning of one, nor nothing."""
    if not path.exists():
        return
    if not path.is_dir():
        raise SettingsError(f"{path}: is a file; name another --out")
    if (path / MANIFEST).exists():
        if not is_store(read_manifest(path)):
            raise SettingsError(
                f"{path}: is a run, and --append adds to stores only; name another --out"
            )
        return
    ours = {WORK, numbered(STATE, 1), numbered(BATCH, 1), f".{MANIFEST}.tmp"}
    foreign = sorted(entry.name for entry in path.iterdir() if entry.name not in ours)
    if foreign:
        raise SettingsError(
            f"{path}: holds {foreign[0]}, and no store; name another --out, or an empty directory"
        )


def _recover(path: Path) -> None:
    """Finish a batch that is committed; remove what is left of one that is not."""
    shutil.rmtree(path / WORK, ignore_errors=True)
    for rest in path.glob(".*.tmp"):
        rest.unlink()
    there = (path / MANIFEST).exists()
    batches = len(read_manifest(path)["batches"]) if there else 0
    following = batches + 1
    state, batch = (path / numbered(name, following) for name in (STATE, BATCH))
    if batch.exists():
        _install(path, following)
    elif state.exists():
        shutil.rmtree(state)
    elif batches:
        _place_audit(path, batches)
        _remove_old(path, batches)


def commit(store: Store, batch: int, manifest: dict[str, Any]) -> None:
    """Bring the batch that stands in the work directory into the store.

    Raises:
        InputError: the disk failed; the store is as it was, or is the new one when it is next
            opened for writing.
    """
    path, work = store.path, store.work
    state, part = (work / name for name in (STATE, BATCH))
    text = json.dumps({"format": STORE_FORMAT, **manifest}, indent=1, ensure_ascii=False)
    replace_text(state / MANIFEST, text + "\n")
    try:
        for directory, _, _ in os.walk(work):
            sync(Path(directory))
        state.rename(path / numbered(STATE, batch))
        sync(path)
        part.rename(path / numbered(BATCH, batch))
        sync(path)
        _install(path, batch)
    except OSError as error:
        raise InputError(f"{path}: batch {batch} cannot be committed: {error}") from None


def _install(path: Path, batch: int) -> None:
    """Make the manifest of a committed batch the store's."""
    text = (path / numbered(STATE, batch) / MANIFEST).read_text(encoding="utf-8")
    replace_text(path / MANIFEST, text)
    _place_audit(path, batch)
    _remove_old(path, batch)


def _place_audit(path: Path, batch: int) -> None:
    """Put the audit under the names that it has in a run, each file by one rename."""
    state = path / numbered(STATE, batch)
    for name in audit_files(state):
        source, target = state / name, path / name
        fresh = target.with_name(f".{target.name}.tmp")
        fresh.unlink(missing_ok=True)
        if target.exists() and _is_equal(source, target):
            continue
        link(source, fresh)
        fresh.rename(target)
        sync(target.parent)


def audit_files(state: Path) -> list[str]:
    """Return the names of the audit's files within a state."""
    tables = [f"{AUDIT}/{path.name}" for path in sorted((state / AUDIT).iterdir())]
    return [*tables, *(DUCKDB for _ in range((state / DUCKDB).exists()))]


def _is_equal(one: Path, other: Path) -> bool:
    return os.path.samefile(one, other) or one.read_bytes() == other.read_bytes()


def _remove_old(path: Path, batch: int) -> None:
    for old in path.glob(f"{STATE}-*"):
        if old.name != numbered(STATE, batch):
            shutil.rmtree(old)


def link(source: Path, target: Path) -> None:
    """Give a file that never changes a second name; copy it where the disk has no links."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copyfile(source, target)
        sync(target)
