"""Small logs, written row by row, and what `process` makes of them."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq

from vtaudit import RunResult, Settings, audit, process

Cells = dict[str, Any]
Rows = Sequence[Cells]
Place = int | tuple[str, int]

ONE_FILE = "log.parquet"
TYPES: dict[str, pa.DataType] = {
    "trajectory_id": pa.string(),
    "step": pa.int64(),
    "unroll_id": pa.int64(),
    "reward": pa.float64(),
    "terminated": pa.bool_(),
    "truncated": pa.bool_(),
    "behavior_log_prob": pa.float64(),
    "target_log_prob": pa.float64(),
    "value": pa.float64(),
    "bootstrap_value": pa.float64(),
    "discount": pa.float64(),
    "action": pa.int64(),
    "behavior_action_mask": pa.list_(pa.bool_()),
    "target_action_mask": pa.list_(pa.bool_()),
    "behavior_logits": pa.list_(pa.float64()),
    "target_logits": pa.list_(pa.float64()),
    "behavior_temperature": pa.float64(),
    "behavior_epsilon": pa.float64(),
    "policy_version": pa.int64(),
    "valid": pa.bool_(),
    "actor_id": pa.string(),
    "env_version": pa.int64(),
    "reward_version": pa.string(),
    "mask_version": pa.string(),
}


@dataclass(frozen=True, slots=True)
class Run:
    """A run and its tables, rows by place: the row number, or (file, row number)."""

    result: RunResult
    rejects: dict[Place, Cells]
    targets: dict[Place, Cells]

    @property
    def reasons(self) -> dict[Place, list[str]]:
        """The reasons of every rejected row."""
        return {place: row["reasons"] for place, row in self.rejects.items()}

    @property
    def warnings(self) -> dict[str, int]:
        """The warnings that were counted, zeros left out."""
        return self.kinds("warning")

    def kinds(self, measure: str) -> dict[str, int]:
        """The counts of a measure by kind, zeros and unknown ones left out."""
        rows = [row for row in self.result.audit if row["measure"] == measure]
        return {row["kind"]: row["count"] for row in rows if row["count"]}

    def entry(self, measure: str, kind: str | None = None) -> Cells:
        """The row of the table `audit`."""
        found = [r for r in self.result.audit if (r["measure"], r["kind"]) == (measure, kind)]
        assert len(found) == 1, (measure, kind)
        return found[0]

    def column(self, name: str) -> dict[Place, Any]:
        """A column of the targets."""
        return {place: row[name] for place, row in self.targets.items()}


def make_row(step: int | None = 0, **cells: Any) -> Cells:
    """A sound row in the middle of an episode."""
    row: Cells = {"trajectory_id": "t", "step": step, "reward": 1.0}
    row |= {"terminated": False, "truncated": False}
    row |= {"behavior_log_prob": -1.0, "target_log_prob": -1.5, "value": 2.0}
    return {**row, **cells}


def make_stream(length: int, *, first: int = 0, **cells: Any) -> list[Cells]:
    """Sound rows of one episode that ends terminated, `cells` being in each."""
    rows = [make_row(first + place, **cells) for place in range(length)]
    rows[-1]["terminated"] = True
    return rows


def write_rows(rows: Rows, path: Path, types: Mapping[str, pa.DataType] | None = None) -> None:
    """Write rows as Parquet; the file has every column that some row has."""
    known = {**TYPES, **(types or {})}
    names = list(dict.fromkeys(name for row in rows for name in row))
    arrays = {name: _array([row.get(name) for row in rows], known[name]) for name in names}
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(arrays), path)


def _array(cells: list[Any], type_: pa.DataType) -> pa.Array:
    if not pa.types.is_boolean(type_):
        cells = [int(cell) if isinstance(cell, bool) else cell for cell in cells]
    return pa.array(cells, type_)


def run(
    log: Rows | Mapping[str, Rows],
    tmp_path: Path,
    *,
    types: Mapping[str, pa.DataType] | None = None,
    scores: Rows | Mapping[str, Rows] | Path | None = None,
    **settings: Any,
) -> Run:
    """Process rows of one file, or files by name, in a new directory below `tmp_path`.

    audit.duckdb is not written: it takes longer than the rest and repeats the other tables.
    """
    home = Path(tempfile.mkdtemp(dir=tmp_path))
    for name, rows in _files(log).items():
        write_rows(rows, home / "logs" / name, types)
    if isinstance(scores, Path):
        settings["scores"] = str(scores)
    elif scores is not None:
        for name, rows in _files(scores).items():
            write_rows(rows, home / "scores" / name, types)
        settings["scores"] = str(home / "scores")
    chosen = Settings(**{"backend": "reference", **settings})
    with mock.patch.object(audit, "write_duckdb"):
        result = process(home / "logs", home / "run", chosen)
    by_row = not isinstance(log, Mapping)
    tables = [_read(result.path / name, by_row=by_row) for name in ("rejects", "targets")]
    return Run(result, *tables)


def _files(log: Rows | Mapping[str, Rows]) -> Mapping[str, Rows]:
    return log if isinstance(log, Mapping) else {ONE_FILE: log}


def _read(directory: Path, *, by_row: bool) -> dict[Place, Cells]:
    parts = [pq.read_table(path).to_pylist() for path in sorted(directory.iterdir())]
    rows = [row for part in parts for row in part]
    return {r["source_row"] if by_row else (r["source_file"], r["source_row"]): r for r in rows}
