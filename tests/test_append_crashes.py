"""A store that is killed or meets a failing disk is the old one or the new one, and goes on."""

from __future__ import annotations

import itertools
import multiprocessing
import random
import shutil
import time
from pathlib import Path
from unittest import mock

import polars as pl
import pytest

import disk
from disk import FailingOnce
from logs import make_row, make_stream, write_rows
from vtaudit import InputError, Settings, audit, process
from vtaudit.query import ask, open_run
from vtaudit.store import read_manifest
from vtaudit.verification import verify

KILLS = 15
SETTINGS = Settings(backend="reference", threads=1, append=True)
OPERATIONS = [*disk.OPERATIONS, (shutil, "rmtree")]


def append(logs: Path, store: Path) -> None:
    """Take what is new; audit.duckdb takes longer than the rest and is left out."""
    with mock.patch.object(audit, "write_duckdb"):
        process(logs, store, SETTINGS)


def read_bytes(store: Path) -> dict[str, bytes]:
    """Return the Parquet files that do not hold times, and fail where a stray file stands."""
    files = [path for path in store.rglob("*") if path.is_file()]
    assert [path for path in files if path.name.endswith(".tmp")] == []
    kept = [path for path in files if path.suffix == ".parquet" and path.name != "runs.parquet"]
    return {path.relative_to(store).as_posix(): path.read_bytes() for path in kept}


def count_rows(store: Path) -> tuple[int, int]:
    """Return the rows of targets, and those that the summary counts, as a reader sees them."""
    with open_run(store) as connection:
        sql = "SELECT (SELECT count(*) FROM targets), accepted FROM summary"
        ((rows, counted),) = next(ask(connection, sql).batches)
    return int(str(rows)), int(str(counted))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Logs of two batches, the store of the first, and the store of both."""
    first = [make_row(step, trajectory_id=name) for name in "ab" for step in range(2)]
    write_rows(first, tmp_path / "logs" / "1.parquet")
    append(tmp_path / "logs", tmp_path / "first")
    second = [row for name in "ac" for row in make_stream(2, first=2, trajectory_id=name)]
    write_rows([*second, first[0]], tmp_path / "logs" / "2.parquet")
    shutil.copytree(tmp_path / "first", tmp_path / "both")
    append(tmp_path / "logs", tmp_path / "both")
    assert count_rows(tmp_path / "first") == (0, 0)
    assert count_rows(tmp_path / "both") == (6, 6)
    return tmp_path


# a new store meets the same operations, so of those only every fifth fails
@pytest.mark.parametrize(("begin", "stride"), [("first", 1), (None, 5)])
def test_store_is_old_or_new_when_any_operation_fails(
    begin: str | None, stride: int, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = read_bytes(home / "both")
    if begin is None:
        append(home / "logs", home / "at_once")
        expected = read_bytes(home / "at_once")
    for fails in itertools.count(1, stride):
        store = home / f"store-{fails}"
        if begin is not None:
            shutil.copytree(home / begin, store)
        failure = None
        with monkeypatch.context() as patch:
            disk = FailingOnce(patch, fails, OPERATIONS)
            try:
                append(home / "logs", store)
            except (InputError, OSError) as error:
                failure = str(error)
        if disk.done < fails:
            break
        if begin is not None:
            assert count_rows(store) in ((0, 0), (6, 6))
        assert failure is None or "No space left on device" in failure
        assert failure or count_rows(store)[0] == 6
        append(home / "logs", store)
        assert read_bytes(store) == expected
        assert sorted(path.name for path in store.glob(".*")) == []
        shutil.rmtree(store)
    assert fails > 40


def append_slowly(logs: str, store: str) -> None:
    """Take what is new in another process."""
    append(Path(logs), Path(store))


def test_store_is_old_or_new_when_killed_at_any_moment(home: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["vtaudit.pipeline", "test_append_crashes"])
    generator = random.Random(0)
    expected = read_bytes(home / "both")
    store = home / "killed"

    def start_append() -> multiprocessing.process.BaseProcess:
        if not store.exists():
            shutil.copytree(home / "first", store)
        child = context.Process(target=append_slowly, args=(str(home / "logs"), str(store)))
        child.start()
        return child

    for _ in range(2):  # the first one waits for the server of processes
        began = time.perf_counter()
        start_append().join()
        undisturbed = time.perf_counter() - began
        shutil.rmtree(store)
    kills = finished = 0
    while kills < KILLS:
        child = start_append()
        child.join(generator.uniform(0.1, 1.1) * undisturbed)
        if child.is_alive():
            child.kill()
            child.join()
            kills += 1
        rows = count_rows(store)
        assert rows in ((0, 0), (6, 6))
        if rows == (6, 6):
            append(home / "logs", store)
            assert read_bytes(store) == expected
            shutil.rmtree(store)
            finished += 1
    assert finished > 0


def test_committed_batch_is_finished_by_the_next_writer(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rename of the batch commits; a process that dies then leaves the rest to the next one."""
    from vtaudit.appending import committing

    store = home / "first"
    with monkeypatch.context() as patch:
        patch.setattr(committing, "_install", mock.Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            append(home / "logs", store)
    assert len(read_manifest(store)["batches"]) == 1
    assert count_rows(store) == (0, 0)
    assert (store / "batch-00002").is_dir()
    append(home / "logs", store)
    assert len(read_manifest(store)["batches"]) == 2
    assert read_bytes(store) == read_bytes(home / "both")
    assert pl.read_parquet(store / "audit" / "summary.parquet")["accepted"].to_list() == [6]
    found = verify(store)
    assert (found.damaged, found.broken) == ([], [])
