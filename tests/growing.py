"""Random logs that grow: cut into batches of whole files, and what a store makes of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import polars as pl

from oracle import LogFile
from random_logs import Profile, write_log
from test_against_oracle import as_settings
from test_properties import Cells, Files, Key, Options, all_rows, key_of, make_log, payload_of
from vtaudit import RunResult, Settings, audit, process

PLACE = ("source_file", "source_row")
FAULTY = Profile(fault_rate=0.12, copy_rate=0.05, redelivery_rate=0.1, order=0.0, lacking=0.0)


@dataclass(frozen=True)
class Grown:
    """What a store or a run holds: targets and rejects by place, counts by measure and kind."""

    targets: dict[tuple[str, int], Cells]
    rejects: dict[tuple[str, int], Cells]
    counts: dict[tuple[str, str | None], int | None]


def draw_log(seed: int, profile: Profile = FAULTY, **more: Any) -> tuple[Files, Options]:
    """Return a log of files whose names stand in a random order of their contents.

    No key has two payloads, every file has every column, and equal payloads are exact copies.
    """
    rng = random.Random(seed)
    while True:
        files, options = make_log(rng.randrange(2**32), profile, files=rng.randint(2, 6), **more)
        if not options.pop("end_of_trajectory", None):
            break
    contents = rng.sample([*files.values()], len(files))
    seen: dict[Key, str] = {}
    drawn = {}
    for number, file in enumerate(contents):
        rows = [row for row in file.rows if _is_consistent(row, seen)]
        drawn[f"w_{number}.parquet"] = LogFile(file.columns, rows)
    return drawn, options


def _is_consistent(row: Cells, seen: dict[Key, str]) -> bool:
    if None in key_of(row) or row.get("valid") is False:
        return True
    return seen.setdefault(key_of(row), payload_of(row)) == payload_of(row)


def cut_into_batches(names: Sequence[str], rng: random.Random) -> list[list[str]]:
    """Return the names in groups, in their order."""
    batches: list[list[str]] = [[]]
    for name in names:
        if batches[-1] and rng.random() < 0.6:
            batches.append([])
        batches[-1].append(name)
    return batches


def make_settings(options: Options, **more: Any) -> Settings:
    """Return the settings of a batch or a run."""
    chosen = {"backend": "numba", "weights": True, "threads": 1, **more}
    return as_settings({**options, **chosen})


def process_all(logs: Path, out: Path, options: Options, **more: Any) -> RunResult:
    """Process a log without audit.duckdb, which repeats the other tables."""
    with mock.patch.object(audit, "write_duckdb"):
        return process(logs, out, make_settings(options, **more))


def grow(
    files: Files, batches: Sequence[Sequence[str]], home: Path, options: Options, **more: Any
) -> Grown:
    """Take a log batch by batch, close the store, and read it."""
    logs, store = home / "logs", home / "store"
    write_log(files, home / "all")
    for place, names in enumerate(batches):
        for name in names:
            (logs / name).parent.mkdir(parents=True, exist_ok=True)
            (home / "all" / name).rename(logs / name)
        close = place == len(batches) - 1
        process_all(logs, store, options, append=True, close=close, **more)
    return read_grown(store)


def read_grown(out: Path) -> Grown:
    """Read the targets, rejects and counts of a store or a run."""
    parts: dict[str, dict[tuple[str, int], Cells]] = {}
    for table in ("targets", "rejects"):
        paths = [*out.glob(f"{table}/*.parquet"), *out.glob(f"batch-*/{table}/*.parquet")]
        rows = [row for path in paths for row in pl.read_parquet(path, glob=False).to_dicts()]
        parts[table] = {(row["source_file"], row["source_row"]): row for row in rows}
        assert len(parts[table]) == len(rows), "a row stands there twice"
    counted = pl.read_parquet(out / "audit" / "audit.parquet", glob=False).to_dicts()
    counts = {(row["measure"], row["kind"]): row["count"] for row in counted}
    return Grown(parts["targets"], parts["rejects"], counts)


def bits(row: Cells) -> dict[str, Any]:
    """Return a row with floats as text that tells every bit pattern apart."""
    return {name: cell.hex() if isinstance(cell, float) else cell for name, cell in row.items()}


def without_logged(files: Files) -> Files:
    """Return the log with bootstraps at truncated rows only, where no successor is ever used."""

    def edit(row: Cells) -> Cells:
        return row if row.get("truncated") else {**row, "bootstrap_value": None}

    return {name: LogFile(f.columns, [edit(row) for row in f.rows]) for name, f in files.items()}


def received(files: Files) -> list[Cells]:
    """Return the rows that are no padding."""
    return [row for row in all_rows(files) if row.get("valid") is not False]
