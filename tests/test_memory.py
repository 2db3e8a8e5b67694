"""The memory limit: sizes as text, threads that fit, and a limit that is too small."""

from __future__ import annotations

from pathlib import Path

import pytest

from commands import invoke, make_table, write_files
from vtaudit import Settings, SettingsError
from vtaudit.memory import BASE_BYTES, limit_threads, rows_at_once
from vtaudit.ranges import parse_size
from vtaudit.store import read_manifest

ROW_BYTES = 60.0


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1024", 1024),
        ("800MB", 800_000_000),
        ("800M", 800_000_000),
        ("1.5GiB", 3 << 29),
        ("2 TiB", 2 << 40),
        ("3kB", 3000),
    ],
)
def test_size_is_read(text: str, size: int) -> None:
    assert parse_size(text) == size
    assert Settings(memory_limit=text).memory_limit == text


@pytest.mark.parametrize("text", ["", "0", "-1GB", "1.5.5GB", "lots", "1 XB", "GiB", "nan", "1e9"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match=r"memory_limit: found .*, expected a size as 800MB"):
        Settings(memory_limit=text)


def test_fewer_threads_work_where_memory_is_short() -> None:
    unit = rows_at_once(ROW_BYTES) * (3 * ROW_BYTES + 300)
    found = {}
    for room in (0.9, 1.0, 3.5, 100):
        limit = str(int(BASE_BYTES + room * unit))
        found[room] = limit_threads(Settings(threads=8, memory_limit=limit), ROW_BYTES).threads
    assert found == {0.9: 1, 1.0: 1, 3.5: 3, 100: 8}
    assert limit_threads(Settings(threads=8), ROW_BYTES).threads == 8


def test_results_and_identity_unchanged_by_the_limit(tmp_path: Path) -> None:
    logs = write_files(tmp_path / "logs", {"a.parquet": make_table()})
    for name, more in (("one", []), ("two", ["--memory-limit", "1GiB"])):
        result = invoke("process", logs, "--out", tmp_path / name, "--quiet", *more)
        assert result.exit_code == 0, result.stderr
    one, two = (read_manifest(tmp_path / name) for name in ("one", "two"))
    assert one["run_id"] == two["run_id"]
    parts = [name for name in one["outputs"] if name.startswith(("targets", "rejects"))]
    assert [one["outputs"][name] for name in parts] == [two["outputs"][name] for name in parts]


def test_limit_below_what_any_run_needs_is_refused(tmp_path: Path) -> None:
    logs = write_files(tmp_path / "logs", {"a.parquet": make_table()})
    result = invoke("process", logs, "--out", tmp_path / "run", "--memory-limit", "64MiB")
    assert result.exit_code == 2
    assert "memory_limit: found 64MiB, expected" in result.stderr
    assert not (tmp_path / "run").exists()
