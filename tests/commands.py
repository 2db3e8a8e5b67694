"""Run the command line, in this process or in one of its own, and build the logs it reads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from click.testing import CliRunner, Result

from logs import make_stream
from vtaudit.cli import main

ROOT = Path(__file__).parents[1]
SAMPLE_LOGS = ROOT / "sample_data" / "logs"
# sound rows of one stream
ROWS = 6
START = "from vtaudit.cli import main; main(prog_name='vtaudit')"


def make_table(trajectory: str = "a", **columns: Any) -> pa.Table:
    """Return ROWS sound rows of one trajectory; columns given as None are left out."""
    rows = make_stream(ROWS, trajectory_id=trajectory, unroll_id="u")
    table = {name: pa.array([row[name] for row in rows]) for name in rows[0]}
    table.update(columns)
    return pa.table({name: column for name, column in table.items() if column is not None})


def write_files(directory: Path, files: Mapping[str, pa.Table | bytes]) -> Path:
    """Write tables as Parquet and bytes as they are; return the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, body in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(body, bytes):
            path.write_bytes(body)
        else:
            pq.write_table(body, path)
    return directory


def invoke(*arguments: str | Path) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(main, [str(each) for each in arguments], prog_name="vtaudit")


def run_python(
    code: str, *arguments: str | Path, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process of its own that finds no GPU."""
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=ROOT,
        env={**kept, "CUDA_VISIBLE_DEVICES": "", **(env or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def run_command(
    *arguments: str | Path, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own that finds no GPU."""
    return run_python(START, *arguments, env=env)


def read_manifest(run: Path) -> dict[str, Any]:
    """Return the manifest of a run."""
    manifest: dict[str, Any] = json.loads((run / "manifest.json").read_text(encoding="utf-8"))
    return manifest
