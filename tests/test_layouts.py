"""However a log is laid out in units, every row, number and count is the same."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from random_logs import make_random_log, write_log
from test_against_oracle import as_settings
from vtaudit import Settings, chunks, process, shards, units
from vtaudit.layout import FREE_RUNS
from vtaudit.plan import Plan
from vtaudit.shard import Shard
from vtaudit.store import read_manifest
from vtaudit.units import Log
from vtaudit.verification import verify

NAMES = ("clean", "bounds", "copies", "mixed")
SEEDS = range(6)
# rows of a unit, and by what factor a run that is cut and moved must be shorter
SIZES = ((3, 64), (20, 64), (20, 1))
ONE_UNIT = 250_000


def read_tables(run: Path) -> dict[str, pl.DataFrame]:
    """Return rows by their place in the log, and the audit tables, of which runs hold times."""
    found = {}
    for name in ("targets", "rejects"):
        parts = [pl.read_parquet(path, glob=False) for path in sorted((run / name).iterdir())]
        found[name] = pl.concat(parts).sort("source_file", "source_row")
    for name in ("summary", "audit", "audit_by", "files"):
        found[name] = pl.read_parquet(run / "audit" / f"{name}.parquet", glob=False)
    return found


@pytest.fixture
def logs_opened(monkeypatch: pytest.MonkeyPatch) -> list[Log]:
    """The logs that runs open, in units."""
    opened = []
    from vtaudit import pipeline

    def open_log(*arguments: object) -> Log:
        opened.append(units.open_log(*arguments))
        return opened[-1]

    monkeypatch.setattr(pipeline, "open_log", open_log)
    return opened


def test_results_unchanged_by_the_layout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logs_opened: list[Log]
) -> None:
    seen: Counter[str] = Counter()
    cut_runs: list[int] = []

    def find_cut(*arguments: Any) -> np.ndarray:
        found = chunks.find_cut(*arguments)
        cut_runs.extend(np.flatnonzero(found))
        return found

    monkeypatch.setattr(units, "find_cut", find_cut)
    for name in NAMES:
        for seed in SEEDS:
            files, options = make_random_log(seed, profile=name)
            flags = {"terminated", "truncated"} - {c for f in files.values() for c in f.columns}
            if flags or options.get("learner_version") is not None:
                continue
            place = tmp_path / f"{name}-{seed}"
            write_log(files, place / "logs", group_rows=7)
            settings = as_settings(options, weights=True, backend="numba", threads=2)
            monkeypatch.setattr(shards, "SHARD_ROWS", ONE_UNIT)
            process(place / "logs", place / "one", settings)
            expected = read_tables(place / "one")
            for size, short in SIZES:
                monkeypatch.setattr(shards, "SHARD_ROWS", size)
                monkeypatch.setattr(chunks, "SHORT", short)
                run = place / f"of-{size}-{short}"
                process(place / "logs", run, settings)
                found = read_tables(run)
                for table, rows in expected.items():
                    assert found[table].equals(rows), (name, seed, size, table)
                log = logs_opened[-1]
                assert read_manifest(run)["layout"]["of"] == log.layout
                seen[log.layout] += 1
                seen["chains"] += len(log.chains)
                seen["moved"] += len(log.buckets) if log.layout == "windows" else 0
                seen["cut"] += len(cut_runs)
                cut_runs.clear()
    assert seen["windows"] > 8
    assert seen["chains"] > 5
    assert seen["moved"] > 5
    assert seen["cut"] > 8


def write_stream(folder: Path, files: int, rows: int, *, end_every: int | None = None) -> None:
    """Write one trajectory, a stretch of it in each file."""
    rng = np.random.default_rng(0)
    total = files * rows
    behavior = -rng.exponential(1.0, total)
    ends = np.zeros(total, np.bool_)
    if end_every:
        ends[end_every - 1 :: end_every] = True
    ends[-1] = True
    table = pa.table(
        {
            "trajectory_id": pa.array(["t"] * total),
            "step": np.arange(total),
            "reward": rng.normal(size=total),
            "terminated": ends,
            "truncated": np.zeros(total, np.bool_),
            "behavior_log_prob": behavior,
            "target_log_prob": np.minimum(behavior + rng.normal(0, 0.3, total), 0.0),
            "value": rng.normal(size=total),
            "policy_version": np.arange(total) // 7,
        }
    )
    folder.mkdir()
    for number in range(files):
        part = table.slice(number * rows, rows)
        pq.write_table(part, folder / f"{number}.parquet", row_group_size=50)


@pytest.mark.parametrize("files", [1, 6])
def test_one_segment_longer_than_many_units_has_the_bits_of_one(
    files: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logs_opened: list[Log]
) -> None:
    write_stream(tmp_path / "logs", files, 1200 // files)
    settings = Settings(backend="numba", dtype="float64", gamma=1.0)
    process(tmp_path / "logs", tmp_path / "one", settings)
    monkeypatch.setattr(shards, "SHARD_ROWS", 100)
    process(tmp_path / "logs", tmp_path / "many", settings)
    one, many = read_tables(tmp_path / "one"), read_tables(tmp_path / "many")
    assert [len(chain) for chain in logs_opened[-1].chains] == [12]
    assert one["targets"]["trace_length"].max() > 1.5
    for table, rows in one.items():
        assert many[table].equals(rows), table
    assert many["summary"]["windows"].item() == 1
    assert not verify(tmp_path / "many").broken


def test_pieces_are_resumed_with_what_they_hand_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vtaudit import InputError, running

    write_stream(tmp_path / "logs", 1, 1200)
    monkeypatch.setattr(shards, "SHARD_ROWS", 100)
    process(tmp_path / "logs", tmp_path / "whole", Settings(backend="numba"))
    write = running.write_shard

    def fail_once(plan: Plan, shard: Shard, work: Path, number: int, *, flush: bool) -> list[Path]:
        if number == 5:
            raise InputError("the disk is full")
        return write(plan, shard, work, number, flush=flush)

    with monkeypatch.context() as patch:
        patch.setattr(running, "write_shard", fail_once)
        with pytest.raises(InputError, match="the disk is full"):
            process(tmp_path / "logs", tmp_path / "run", Settings(backend="numba"))
    process(tmp_path / "logs", tmp_path / "run", Settings(backend="numba", resume=True))
    whole, resumed = read_tables(tmp_path / "whole"), read_tables(tmp_path / "run")
    for table, rows in whole.items():
        assert resumed[table].equals(rows), table


def test_logs_of_short_runs_are_brought_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logs_opened: list[Log]
) -> None:
    write_stream(tmp_path / "logs", 1, 4 * FREE_RUNS, end_every=10)
    path = tmp_path / "logs" / "0.parquet"
    table = pq.read_table(path)
    order = np.arange(table.num_rows).reshape(-1, 2)[:, ::-1].ravel()
    pq.write_table(table.take(pa.array(order)), path)
    monkeypatch.setattr(shards, "SHARD_ROWS", 500)
    result = process(tmp_path / "logs", tmp_path / "run", Settings(backend="numba"))
    assert (logs_opened[-1].layout, result.summary["accepted"]) == ("buckets", 4 * FREE_RUNS)


@pytest.mark.parametrize("size", [50, ONE_UNIT])
@pytest.mark.parametrize("column", ["trajectory_id", "actor_id", "task"])
def test_file_whose_text_is_no_utf8_is_left_out(
    column: str,
    size: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    logs_opened: list[Log],
) -> None:
    write_stream(tmp_path / "logs", 2, 400)
    for path in (tmp_path / "logs").iterdir():
        table = pq.read_table(path)
        for name in ("actor_id", "task"):
            table = table.append_column(name, pa.array(["text"] * len(table)))
        place = table.schema.get_field_index(column)
        if path.stem == "1":
            broken = pa.array([b"\xff\xfe"] * len(table)).view(pa.string())
            table = table.set_column(place, column, broken)
        pq.write_table(table, path)
    monkeypatch.setattr(shards, "SHARD_ROWS", size)
    result = process(tmp_path / "logs", tmp_path / "run", Settings(carry=("task",)))
    assert logs_opened[-1].layout == ("windows" if size == 50 else "buckets")
    files = pl.read_parquet(tmp_path / "run/audit/files.parquet").sort("path")
    assert result.summary["received"] == 400
    assert files["error"].is_null().to_list() == [True, False]
    assert column in files["error"][1]
