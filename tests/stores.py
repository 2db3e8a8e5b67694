"""A store that a test adds files to, and what it holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import polars as pl

from logs import Cells, Rows, write_rows
from vtaudit import RunResult, Settings, audit, process

SETTINGS: dict[str, Any] = {"backend": "reference", "threads": 1, "dtype": "float64", "gamma": 1.0}


class Growing:
    """A log directory and the store that takes its files; audit.duckdb is not written."""

    def __init__(self, home: Path, **settings: Any) -> None:
        self.logs = home / "logs"
        self.path = home / "store"
        self.settings = {**SETTINGS, **settings}

    def add(self, name: str, rows: Rows, **options: Any) -> RunResult:
        """Write a file of these rows and take it."""
        write_rows(rows, self.logs / name)
        return self.append(**options)

    def append(self, **options: Any) -> RunResult:
        """Take what is new."""
        settings = Settings(**{**self.settings, "append": True, **options})
        with mock.patch.object(audit, "write_duckdb"):
            return process(self.logs, self.path, settings)

    def table(self, name: str) -> list[Cells]:
        """Return the rows of targets or rejects, of every batch in turn."""
        paths = sorted(self.path.glob(f"batch-*/{name}/*.parquet"))
        return [row for path in paths for row in pl.read_parquet(path, glob=False).to_dicts()]

    def column(self, name: str) -> dict[int, Any]:
        """Return a column of the targets by step."""
        return {row["step"]: row[name] for row in self.table("targets")}

    def reasons(self) -> dict[tuple[str, int], list[str]]:
        """Return the reasons of the rejects by their place."""
        return {(r["source_file"], r["source_row"]): r["reasons"] for r in self.table("rejects")}

    def audit(self, name: str = "audit") -> list[Cells]:
        """Return the rows of an audit table."""
        return pl.read_parquet(self.path / "audit" / f"{name}.parquet", glob=False).to_dicts()

    def counts(self, batch: int) -> dict[str, int]:
        """Return the counts without kinds of one batch, zeros left out."""
        rows = [r for r in self.audit("audit_by") if (r["scope"], r["batch"]) == ("batch", batch)]
        return {row["measure"]: row["count"] for row in rows if row["kind"] is None}

    def warnings(self) -> dict[str, int]:
        """Return the warnings that were counted, zeros left out."""
        rows = [row for row in self.audit() if row["measure"] == "warning" and row["count"]]
        return {row["kind"]: row["count"] for row in rows}

    def bytes(self) -> dict[str, bytes]:
        """Return the bytes of every file of the store."""
        files = (path for path in self.path.rglob("*") if path.is_file())
        return {path.relative_to(self.path).as_posix(): path.read_bytes() for path in files}
