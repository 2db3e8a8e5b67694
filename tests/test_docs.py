"""What the README says is so: its commands run, its tables are the registries."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pytest
from click.testing import CliRunner

from vtaudit.cli import main
from vtaudit.reasons import Reason, Warn
from vtaudit.schemas import load_columns

if TYPE_CHECKING:
    from s3_server import Bucket

ROOT = Path(__file__).parent.parent
REAL_LOGS = ROOT.parent / "shared" / "real_logs"
README = (ROOT / "README.md").read_text(encoding="utf-8")


def find_blocks(language: str) -> list[str]:
    """Return the README's code blocks whose info string is `language`."""
    blocks = re.findall(r"^```([^\n]*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return [body for info, body in blocks if info == language]


def run_command(line: str) -> str:
    """Run a documented `vtaudit ...` line; return what it prints."""
    words = shlex.split(line)
    assert words[0].endswith("vtaudit"), line
    result = CliRunner().invoke(main, words[1:])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory like a clone in which the first of the two commands was run."""
    place = tmp_path_factory.mktemp("clone")
    (place / "sample_data").symlink_to(ROOT / "sample_data")
    return place


@pytest.fixture
def clone(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(workplace)
    if not (workplace / "run").exists():
        (install,) = find_blocks("sh install")
        run_command(install.rsplit("&&", 1)[1])
    return workplace


def test_main_job_prints_the_documented_audit_when_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    (install,) = find_blocks("sh install")
    command = install.rsplit("&&", 1)[1].replace("--out run", f"--out {tmp_path / 'run'}")
    printed = {line.rstrip() for line in run_command(command).splitlines()}
    documented = find_blocks("")[0].splitlines()
    assert len(documented) > 8
    assert [line for line in documented if line != "..." and line not in printed] == []


@pytest.mark.parametrize("block", find_blocks("sh"))
def test_command_runs_when_typed(block: str, clone: Path) -> None:
    for line in block.splitlines():
        run_command(line)


@pytest.mark.parametrize("block", find_blocks("sh real_logs"))
def test_real_log_command_accepts_every_row_when_typed(block: str, tmp_path: Path) -> None:
    if not REAL_LOGS.is_dir():
        pytest.skip("the public logs are not beside this checkout")
    line = block.replace("process logs/", f"process {REAL_LOGS}/")
    out = re.search(r"--out (\S+)", line)
    assert out
    run_command(line.replace(out[1], str(tmp_path / "run")))
    with duckdb.connect(tmp_path / "run" / "audit.duckdb", read_only=True) as connection:
        rows = connection.sql("SELECT received, accepted, rejected FROM summary").fetchall()
    assert rows[0] in [(4137, 4137, 0), (9804, 9804, 0), (3925, 3925, 0)]


def test_remote_commands_run_when_typed(clone: Path, bucket: Bucket) -> None:
    bucket.upload(ROOT / "sample_data" / "logs", "logs")
    (block,) = find_blocks("sh s3")
    for line in block.splitlines():
        run_command(line.replace("s3://bucket", bucket.url))
    with duckdb.connect("runs/remote/audit.duckdb", read_only=True) as connection:
        assert connection.sql("SELECT received FROM summary").fetchall() == [(24_000,)]


@pytest.mark.parametrize("query", find_blocks("sql"))
def test_query_finds_rows_when_run(query: str, clone: Path) -> None:
    with duckdb.connect("run/audit.duckdb", read_only=True) as connection:
        assert connection.sql(query).fetchall()


def test_python_runs_when_pasted(clone: Path) -> None:
    if not (clone / "runs" / "train").exists():
        run_command(next(block for block in find_blocks("sh") if "runs/train" in block))
    blocks = find_blocks("python")
    assert len(blocks) == 2
    for block in blocks:
        result = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True)
        assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("registry", [Reason, Warn])
def test_table_of_findings_is_the_registry(registry: type[Reason] | type[Warn]) -> None:
    for member in registry:
        assert f"| {member.code} | {member.text} |" in README


def test_every_command_is_documented() -> None:
    assert main.commands
    for name in main.commands:
        assert f"vtaudit {name}" in README


def test_every_log_column_is_documented() -> None:
    table = README.split("## Your own logs")[1].split("**Other names**")[0]
    columns = {column.name for column in load_columns("trajectory_log")}
    told = set(re.findall(r"[a-z_]+", table))
    assert columns - told == {"collected_at", "received_at"}
