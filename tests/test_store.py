"""A run appears whole or not at all, is one process's alone, and holds what its manifest says."""

from __future__ import annotations

import hashlib
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from commands import (
    ROWS,
    SAMPLE_LOGS,
    invoke,
    make_table,
    read_manifest,
    run_command,
    run_python,
    write_files,
)
from vtaudit import InputError, LawError, Settings, SettingsError, process
from vtaudit import outputs as outputs_module
from vtaudit import pipeline as pipeline_module
from vtaudit import running as running_module
from vtaudit import shards as shards_module
from vtaudit import store as store_module
from vtaudit.store import open_workspace
from vtaudit.tallies import Group, Name, Tally

SETTINGS = Settings(backend="reference")
DIE_BEFORE_THE_MANIFEST = (
    "import os, signal, sys; from vtaudit import Settings, pipeline, process;"
    "pipeline.write_manifest = lambda *_: os.kill(os.getpid(), signal.SIGKILL);"
    "process(sys.argv[1], sys.argv[2], Settings(backend='reference'))"
)


class Failure(Exception):
    """What nobody expects."""


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    return write_files(tmp_path / "logs", {"a.parquet": make_table()})


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def read_files(run: Path) -> dict[str, bytes]:
    """Return the bytes of every file of a run by its place in it."""
    files = (path for path in run.rglob("*") if path.is_file())
    return {path.relative_to(run).as_posix(): path.read_bytes() for path in files}


def fail(*arguments: object, **options: object) -> None:
    raise Failure


@pytest.mark.parametrize("step", ["make_plan", "open_log", "write_shard", "write_manifest"])
def test_nothing_is_left_when_a_step_fails(
    step: str, logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running_module if step == "write_shard" else pipeline_module, step, fail)
    with pytest.raises(Failure):
        process(logs, tmp_path / "run", SETTINGS)
    assert names_in(tmp_path) == ["logs"]


def test_nothing_is_left_when_a_part_cannot_be_written(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store_module.pq, "write_table", refuse)
    with pytest.raises(InputError, match=r"part-00000\.parquet: cannot be written: .*No space"):
        process(logs, tmp_path / "run", SETTINGS)
    assert names_in(tmp_path) == ["logs"]


def test_full_disk_exits_3_and_leaves_nothing(logs: Path, tmp_path: Path) -> None:
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096));"
        "from vtaudit.cli import main; main(prog_name='vtaudit')"
    )
    options = ["--backend", "reference"]
    done = run_python(code, "process", SAMPLE_LOGS, "--out", tmp_path / "run", *options)
    assert done.returncode == 3, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "cannot be written" in done.stderr
    assert names_in(tmp_path) == ["logs"]


def test_run_is_not_there_before_it_is_whole(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with open_workspace(run, overwrite=False) as work:
        assert work.name.startswith(".")
        (work / "part").write_text("half")
        assert not run.exists()
    assert names_in(tmp_path) == ["run"]
    assert names_in(run) == ["part"]


def test_run_that_appeared_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    run = tmp_path / "run"

    def publish_late() -> None:
        with open_workspace(run, overwrite=False):
            write_files(run, {"thesis.tex": b"precious"})

    with pytest.raises(SettingsError, match="exists"):
        publish_late()
    assert names_in(tmp_path) == ["run"]
    assert names_in(run) == ["thesis.tex"]


def test_directory_above_the_run_is_made(logs: Path, tmp_path: Path) -> None:
    process(logs, tmp_path / "new" / "deep" / "run", SETTINGS)
    assert names_in(tmp_path / "new" / "deep") == ["run"]


def test_two_runs_of_one_id_write_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # several shards, spilt to disk by several threads
    monkeypatch.setattr(shards_module, "SHARD_ROWS", 1_000)
    runs = [tmp_path / "one", tmp_path / "two"]
    results = [
        process(SAMPLE_LOGS, run, Settings(backend="numba", threads=threads, carry=("all",)))
        for run, threads in zip(runs, (1, 4), strict=True)
    ]
    assert results[0].run_id == results[1].run_id
    one, two = (read_files(run) for run in runs)
    assert one.keys() == two.keys()
    assert sum(name.startswith("targets/") for name in one) > 1
    for name in one.keys() - {"manifest.json", "audit.duckdb", "audit/runs.parquet"}:
        assert one[name] == two[name], name


@pytest.mark.parametrize(("carry", "codec"), [((), "SNAPPY"), (("all",), "ZSTD")], ids=str)
def test_carried_columns_are_packed_tighter(
    carry: tuple[str, ...], codec: str, logs: Path, tmp_path: Path
) -> None:
    process(logs, tmp_path / "run", Settings(backend="reference", carry=carry))
    metadata = pq.read_metadata(tmp_path / "run" / "targets" / "part-00000.parquet")
    group = metadata.row_group(0)
    assert {group.column(k).compression for k in range(metadata.num_columns)} == {codec}


@pytest.mark.parametrize(
    ("change", "is_same"),
    [
        ({"gamma": 0.5}, False),
        ({"carry": ("behavior_log_prob",)}, False),
        ({"threads": 2}, True),
        ({"tags": {"note": "x"}}, True),
        ({"fail_on": ("key_conflict",)}, True),
    ],
    ids=str,
)
def test_run_id_changes_with_what_results_depend_on(
    change: dict[str, Any], is_same: bool, logs: Path, tmp_path: Path
) -> None:
    one = process(logs, tmp_path / "one", SETTINGS)
    two = process(logs, tmp_path / "two", Settings(backend="reference", **change))
    assert (one.run_id == two.run_id) is is_same


def test_run_id_changes_with_the_bytes_of_the_log(logs: Path, tmp_path: Path) -> None:
    one = process(logs, tmp_path / "one", SETTINGS)
    write_files(logs, {"a.parquet": make_table(reward=[2.0] * ROWS)})
    assert process(logs, tmp_path / "two", SETTINGS).run_id != one.run_id


def test_run_id_is_the_same_wherever_the_log_lies(logs: Path, tmp_path: Path) -> None:
    (logs / "b.parquet").write_bytes(b"")
    (logs / "c.parquet").symlink_to("nowhere")
    one = process(logs, tmp_path / "one", SETTINGS)
    logs.rename(tmp_path / "moved")
    assert process(tmp_path / "moved", tmp_path / "two", SETTINGS).run_id == one.run_id


def test_second_process_is_refused_while_the_first_one_works(logs: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with open_workspace(run, overwrite=False) as work:
        (work / "part").write_text("of the first")
        done = run_command("process", logs, "--out", run)
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1
        assert "another vtaudit process is writing it" in done.stderr
        assert (work / "part").read_text() == "of the first"
    assert names_in(tmp_path) == ["logs", "run"]


def test_lock_is_on_the_workspace_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = store_module.claim

    def publish_first(lock: int, out: Path) -> None:
        # the other process is done between this one's open and its lock
        (tmp_path / ".run.vtaudit").rename(tmp_path / "other")
        claim(lock, out)

    monkeypatch.setattr(store_module, "claim", publish_first)
    with pytest.raises(SettingsError), open_workspace(tmp_path / "run", overwrite=False):
        pass


def test_killed_process_leaves_no_run_and_the_next_one_works(logs: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = run_python(DIE_BEFORE_THE_MANIFEST, logs, run)
    assert done.returncode == -signal.SIGKILL
    assert not run.exists()
    left = [name for name in names_in(tmp_path) if name != "logs"]
    assert left
    assert all(name.startswith(".") for name in left)
    assert process(logs, run, SETTINGS).summary["accepted"] == ROWS
    assert names_in(tmp_path) == ["logs", "run"]
    assert "spill" not in names_in(run)


def test_run_within_a_run_is_refused(logs: Path, tmp_path: Path) -> None:
    process(logs, tmp_path / "run", SETTINGS)
    with pytest.raises(SettingsError, match="lies within the run"):
        process(logs, tmp_path / "run" / "inner", SETTINGS)


def test_overwrite_replaces_the_whole_run(logs: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    old = process(logs, run, SETTINGS)
    again = Settings(backend="reference", gamma=0.5, overwrite=True)
    (run / "left over").write_text("x")
    with pytest.raises(SettingsError, match="left over, which the run did not write"):
        process(logs, run, again)
    (run / "left over").unlink()
    new = process(logs, run, again)
    assert new.run_id != old.run_id
    assert read_manifest(run)["run_id"] == new.run_id
    assert names_in(tmp_path) == ["logs", "run"]


@pytest.mark.parametrize("step", ["make_plan", "write_shard", "write_manifest"])
def test_old_run_stays_when_its_replacement_fails(
    step: str, logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    process(logs, run, SETTINGS)
    before = read_files(run)
    monkeypatch.setattr(running_module if step == "write_shard" else pipeline_module, step, fail)
    with pytest.raises(Failure):
        process(logs, run, Settings(backend="reference", gamma=0.5, overwrite=True))
    assert read_files(run) == before
    assert names_in(tmp_path) == ["logs", "run"]


def test_old_run_stays_when_the_new_one_cannot_be_published(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    process(logs, run, SETTINGS)
    before = read_files(run)
    rename = Path.rename

    def refuse(path: Path, target: Path) -> Path:
        if path.name == ".run.vtaudit":
            raise OSError(5, "Input/output error")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(InputError):
        process(logs, run, Settings(backend="reference", gamma=0.5, overwrite=True))
    assert read_files(run) == before
    assert names_in(tmp_path) == ["logs", "run"]


def test_manifest_lists_every_output_as_it_is(tmp_path: Path) -> None:
    process(SAMPLE_LOGS, tmp_path / "run", SETTINGS)
    files = read_files(tmp_path / "run")
    del files["manifest.json"]
    assert read_manifest(tmp_path / "run")["outputs"] == {
        name: {"bytes": len(body), "sha256": hashlib.sha256(body).hexdigest()}
        for name, body in files.items()
    }
    assert {name.partition("/")[0] for name in files} == {
        "audit",
        "audit.duckdb",
        "rejects",
        "targets",
    }


def test_manifest_lists_every_input_as_it_is(logs: Path, tmp_path: Path) -> None:
    (logs / "b.parquet").write_bytes(b"")
    result = process(logs, tmp_path / "run", Settings(backend="reference", tags={"k": "ü"}))
    manifest = read_manifest(tmp_path / "run")
    body = (logs / "a.parquet").read_bytes()
    first, second = manifest["inputs"]
    assert (first["name"], first["bytes"], first["error"]) == ("a.parquet", len(body), None)
    assert first["sha256"] == hashlib.sha256(body).hexdigest()
    assert first["mtime_ns"] == (logs / "a.parquet").stat().st_mtime_ns
    assert (second["name"], second["bytes"]) == ("b.parquet", 0)
    assert second["error"] == "the file is empty"
    assert manifest["run_id"] == result.run_id
    assert manifest["counts"] == result.summary
    assert manifest["tags"] == {"k": "ü"}
    assert manifest["versions"].keys() >= {"vtaudit", "python", "polars", "pyarrow", "duckdb"}
    assert manifest["kernel"] == {"backend": "reference"}


@pytest.mark.parametrize(
    "key",
    [
        ("received", None),
        ("accepted", None),
        ("rejected", None),
        ("pending", None),
        ("rejected_any", "duplicate"),
        ("rejected_primary", "duplicate"),
        ("boundary", "interior"),
        ("bootstrap", "none"),
        pytest.param(
            ("clipped", "rho"),
        ),
    ],
    ids=lambda key: " ".join(part for part in key if part),
)
def test_broken_law_exits_70_and_publishes_nothing(
    key: tuple[str, str | None], logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_group = Tally.of_group

    def miscount(tally: Tally, group: Group) -> dict[Name, int]:
        counts = of_group(tally, group)
        return {**counts, key: counts.get(key, 0) + 1}

    monkeypatch.setattr(Tally, "of_group", miscount)
    result = invoke("process", logs, "--out", tmp_path / "run", "--backend", "reference")
    assert result.exit_code == LawError.exit_code == 70
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert "this is a bug in vtaudit" in result.stderr
    assert names_in(tmp_path) == ["logs"]


def drop_row(build: Callable[..., pa.Table]) -> Callable[..., pa.Table]:
    return lambda *arguments: build(*arguments).slice(1)


@pytest.mark.parametrize("build", ["build_targets", "build_rejects"])
def test_lost_row_breaks_a_law(build: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rewards = [1.0, None, 1.0, 1.0, 1.0, 1.0]
    logs = write_files(tmp_path / "logs", {"a.parquet": make_table(reward=rewards)})
    monkeypatch.setattr(outputs_module, build, drop_row(getattr(outputs_module, build)))
    with pytest.raises(LawError):
        process(logs, tmp_path / "run", SETTINGS)
    assert names_in(tmp_path) == ["logs"]


def test_primary_reason_of_another_kind_breaks_a_law(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rewards = [1.0, None, 1.0, 1.0, 1.0, 1.0]
    logs = write_files(tmp_path / "logs", {"a.parquet": make_table(reward=rewards)})
    of_group = Tally.of_group

    def swap(tally: Tally, group: Group) -> dict[Name, int]:
        counts = of_group(tally, group)
        counts["rejected_primary", "duplicate"] = counts.pop(
            ("rejected_primary", "reward_not_finite")
        )
        return counts

    monkeypatch.setattr(Tally, "of_group", swap)
    with pytest.raises(LawError):
        process(logs, tmp_path / "run", SETTINGS)


def test_rest_of_a_run_that_was_being_removed_is_no_run(logs: Path, tmp_path: Path) -> None:
    run, rest = tmp_path / "run", tmp_path / ".run.replaced"
    process(logs, run, SETTINGS)
    shutil.copytree(run, rest)
    (rest / "manifest.json").unlink()
    process(logs, run, Settings(backend="reference", gamma=0.5, overwrite=True))
    assert names_in(tmp_path) == ["logs", "run"]
    shutil.copytree(run, rest)
    (rest / "manifest.json").unlink()
    shutil.rmtree(run)
    process(logs, run, SETTINGS)
    assert names_in(tmp_path) == ["logs", "run"]


def test_old_run_comes_back_when_a_process_ended_between_the_renames(
    logs: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    process(logs, run, SETTINGS)
    before = read_files(run)
    run.rename(tmp_path / ".run.replaced")
    with pytest.raises(SettingsError, match="exists"):
        process(logs, run, SETTINGS)
    assert read_files(run) == before
    assert names_in(tmp_path) == ["logs", "run"]


def test_overwrite_goes_through_a_link_every_time(logs: Path, tmp_path: Path) -> None:
    process(logs, tmp_path / "real", SETTINGS)
    (tmp_path / "run").symlink_to("real")
    for gamma in (0.5, 0.6):
        again = Settings(backend="reference", gamma=gamma, overwrite=True)
        process(logs, tmp_path / "run", again)
        assert read_manifest(tmp_path / "real")["settings"]["gamma"] == gamma
    assert (tmp_path / "run").is_symlink()
    assert names_in(tmp_path) == ["logs", "real", "run"]


def test_logs_within_the_run_are_never_overwritten(logs: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    process(logs, run, SETTINGS)
    logs.rename(run / "logs")
    with pytest.raises(SettingsError, match="which the run did not write"):
        process(run / "logs", run, Settings(backend="reference", overwrite=True))
    assert names_in(run / "logs") == ["a.parquet"]
