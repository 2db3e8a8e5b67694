"""A run that is killed or meets a failing disk ends whole, or is finished to the same bytes."""

from __future__ import annotations

import itertools
import multiprocessing
import random
from pathlib import Path
from typing import Any

import pytest

from commands import SAMPLE_LOGS, invoke, make_table, write_files
from disk import FailingOnce
from vtaudit import InputError, Settings, SettingsError, process, shards
from vtaudit.store import read_manifest

KILLS = 100
SETTINGS = Settings(backend="numba", threads=2)
RESUME = Settings(backend="numba", threads=2, resume=True)
ONE_THREAD = Settings(backend="numba", threads=1, resume=True)
SAMPLE_SHARD_ROWS = 3000


def read_bytes(run: Path) -> dict[str, bytes]:
    """Return the Parquet files of a run that two runs of one run_id write alike."""
    files = [path for path in run.rglob("*.parquet") if path.name != "runs.parquet"]
    return {path.relative_to(run).as_posix(): path.read_bytes() for path in files}


def hidden(folder: Path) -> list[str]:
    """Return the hidden entries of a folder."""
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))


@pytest.fixture
def many_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "SHARD_ROWS", SAMPLE_SHARD_ROWS)


@pytest.fixture
def undisturbed(many_shards: None, tmp_path: Path) -> dict[str, bytes]:
    """The bytes of a run that nothing disturbs."""
    process(SAMPLE_LOGS, tmp_path / "undisturbed", SETTINGS)
    return read_bytes(tmp_path / "undisturbed")


def run_slowly(out: str) -> None:
    """Process the sample in another process, in many shards."""
    shards.SHARD_ROWS = SAMPLE_SHARD_ROWS
    process(SAMPLE_LOGS, out, RESUME)


def test_run_is_whole_or_resumable_when_killed_at_any_moment(
    undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["vtaudit.pipeline", "vtaudit.shard", "test_resume"])
    generator = random.Random(0)
    folder = tmp_path / "killed"
    folder.mkdir()
    kills = finished = 0
    while kills < KILLS:
        child = context.Process(target=run_slowly, args=(str(folder / f"run-{finished}"),))
        child.start()
        child.join(generator.uniform(0.02, 0.8))
        if child.is_alive():
            child.kill()
            child.join()
            kills += 1
        run = folder / f"run-{finished}"
        if run.exists():
            assert read_bytes(run) == undisturbed
            finished += 1
    process(SAMPLE_LOGS, folder / f"run-{finished}", RESUME)
    assert read_bytes(folder / f"run-{finished}") == undisturbed
    assert hidden(folder) == []


def test_run_is_whole_or_resumable_when_any_operation_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = {f"{name}.parquet": make_table(name) for name in "abcd"}
    logs = write_files(tmp_path / "logs", tables)
    monkeypatch.setattr(shards, "SHARD_ROWS", 10)
    process(logs, tmp_path / "undisturbed", SETTINGS)
    undisturbed = read_bytes(tmp_path / "undisturbed")
    for fails in itertools.count(1):
        run = tmp_path / f"run-{fails}"
        failure = None
        with monkeypatch.context() as patch:
            disk = FailingOnce(patch, fails)
            try:
                process(logs, run, ONE_THREAD)
            except InputError as error:
                failure = str(error)
        if disk.done < fails:
            break
        assert failure is None or "No space left on device" in failure
        if not run.exists():
            process(logs, run, ONE_THREAD)
        assert read_bytes(run) == undisturbed
    assert fails > 40
    assert hidden(tmp_path) == []


def test_failed_run_says_how_to_go_on(many_shards: None, tmp_path: Path, monkeypatch: Any) -> None:
    with monkeypatch.context() as patch:
        FailingOnce(patch, 70)
        result = invoke("process", SAMPLE_LOGS, "--out", tmp_path / "run", "--threads", "1")
    assert result.exit_code == 3
    assert "--resume" in result.stderr.splitlines()[-1]
    assert hidden(tmp_path) == [".run.vtaudit"]
    result = invoke("process", SAMPLE_LOGS, "--out", tmp_path / "run", "--resume", "--quiet")
    assert result.exit_code == 0, result.stderr


def test_other_settings_do_not_resume_the_run(many_shards: None, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        FailingOnce(patch, 70)
        with pytest.raises(InputError):
            process(SAMPLE_LOGS, tmp_path / "run", ONE_THREAD)
    other = Settings(backend="numba", rho_bar=2.0, resume=True)
    with pytest.raises(SettingsError, match="settings, inputs or version differ"):
        process(SAMPLE_LOGS, tmp_path / "run", other)
    process(SAMPLE_LOGS, tmp_path / "run", SETTINGS)
    assert read_manifest(tmp_path / "run")["settings"]["rho_bar"] == 1.0


def test_done_shards_are_not_computed_again(
    many_shards: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        FailingOnce(patch, 70)
        with pytest.raises(InputError):
            process(SAMPLE_LOGS, tmp_path / "run", ONE_THREAD)
    done = len(list((tmp_path / ".run.vtaudit" / "progress").glob("shard-*.json")))
    from vtaudit import units

    read = []
    for name in ("read_chunk", "read_bucket"):
        method = getattr(units.Log, name)
        monkeypatch.setattr(units.Log, name, lambda log, k, do=method: read.append(k) or do(log, k))
    process(SAMPLE_LOGS, tmp_path / "run", RESUME)
    process(SAMPLE_LOGS, tmp_path / "again", SETTINGS)
    assert done > 1
    assert len(read) == 2 * len(set(read)) - done


def test_resume_runs_from_the_start_when_nothing_is_there(tmp_path: Path) -> None:
    logs = write_files(tmp_path / "logs", {"a.parquet": make_table()})
    assert process(logs, tmp_path / "run", RESUME).summary["accepted"] == 6
