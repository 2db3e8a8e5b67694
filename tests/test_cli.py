"""The command line: exit codes and text, no maths."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import polars as pl
import pyarrow as pa
import pytest
from click.testing import Result

from commands import (
    ROOT,
    ROWS,
    SAMPLE_LOGS,
    START,
    invoke,
    make_table,
    read_manifest,
    run_command,
    run_python,
    write_files,
)
from vtaudit import Settings
from vtaudit import audit as audit_module
from vtaudit import pipeline as pipeline_module
from vtaudit import reading as reading_module
from vtaudit.cli import main
from vtaudit.errors import UnreadableError
from vtaudit.reasons import Reason, Warn

COMMANDS = sorted(main.commands)


@pytest.fixture(autouse=True)
def without_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave audit.duckdb out: it takes longer than the rest."""
    monkeypatch.setattr(audit_module, "write_duckdb", lambda *_: None)


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    return write_files(tmp_path / "logs", {"a.parquet": make_table()})


def check_refused(result: Result, code: int, *words: str) -> None:
    """One line on stderr that holds every word, nothing on stdout, and the exit code."""
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == code
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("vtaudit: ")
    for word in words:
        assert word in lines[0]


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        pytest.param(["--gamma", "2"], 2, ["gamma", "2.0", "0 to 1"], id="gamma above 1"),
        pytest.param(["--gamma", "x"], 2, ["gamma", "'x'"], id="gamma is no number"),
        pytest.param(["--gamma", "nan"], 2, ["gamma", "nan"], id="gamma NaN"),
        pytest.param(["--lambda", "-0.1"], 2, ["lambda", "-0.1"], id="lambda below 0"),
        pytest.param(["--rho-bar", "0"], 2, ["rho_bar", "above 0, or none"], id="rho_bar 0"),
        pytest.param(["--c-bar", "nan"], 2, ["c_bar", "nan"], id="c_bar NaN"),
        pytest.param(["--threads", "0"], 2, ["threads", "1 or above"], id="no threads"),
        pytest.param(
            ["--log-prob-tolerance", "inf"], 2, ["log_prob_tolerance"], id="tolerance infinite"
        ),
        pytest.param(
            ["--max-reject-fraction", "1.5"], 2, ["max_reject_fraction", "1.5"], id="limit above 1"
        ),
        pytest.param(
            ["--max-policy-lag", "3"], 2, ["max_policy_lag", "--learner-version"], id="lag alone"
        ),
        pytest.param(
            ["--fail-on", "duplicat"], 2, ["fail_on", "did you mean duplicate?"], id="no reason"
        ),
        pytest.param(["--expect", "reward=3"], 2, ["expect", "env_version"], id="no lineage"),
        pytest.param(
            ["--expect", "env_version"], 2, ["--expect env_version"], id="expect without a value"
        ),
        pytest.param(["--tag", "note"], 2, ["--tag note"], id="tag without a value"),
        pytest.param(["--preset", "rlib"], 2, ["'rlib'", "rllib"], id="unknown preset"),
        pytest.param(["--map", "reward=log("], 2, ["log("], id="no expression"),
        pytest.param(["--map", "reward=lgo(value)"], 2, ["lgo", "log"], id="unknown function"),
        pytest.param(
            ["--map", "rewrd=value"], 2, ["'rewrd'", "did you mean reward?"], id="no canonical name"
        ),
        pytest.param(
            ["--map", "reward=valu"], 3, ["valu", "did you mean value?"], id="map to no column"
        ),
        pytest.param(
            ["--map", "reward=log(trajectory_id)"], 3, ["log(trajectory_id)"], id="log of text"
        ),
        pytest.param(["--carry", "obs"], 3, ["--carry obs"], id="carry no column"),
        pytest.param(["--carry", "step"], 2, ["--carry step"], id="carry a target column"),
        pytest.param(["--expect", "env_version=3"], 3, ["env_version"], id="lineage not logged"),
        pytest.param(["--learner-version", "3"], 3, ["policy_version"], id="no policy_version"),
        pytest.param(
            ["--end-of-trajectory", "truncated"], 2, ["terminated"], id="ends beside flags"
        ),
        pytest.param(["--scores", "nowhere"], 3, ["nowhere"], id="no such scores"),
        pytest.param(
            ["--backend", "numba", "--device", "cuda"], 2, ["numba", "cuda"], id="numba on a GPU"
        ),
        pytest.param(["--device", "gpu"], 2, ["device", "'gpu'", "cuda"], id="unknown device"),
        pytest.param(["--config", "nowhere.toml"], 2, ["nowhere.toml"], id="no such config"),
    ],
)
def test_bad_use_is_one_line_with_its_exit_code(
    options: list[str], code: int, words: list[str], logs: Path, tmp_path: Path
) -> None:
    result = invoke("process", logs, "--out", tmp_path / "run", *options)
    check_refused(result, code, *words)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["logs"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("gama = 1", ["gama", "did you mean gamma", "rho_bar"], id="unknown setting"),
        pytest.param("[process]\ngamma = 1", ["process", "valid: action_space"], id="a table"),
        pytest.param("gamma = ", ["TOML"], id="no TOML"),
        pytest.param("gamma = true", ["gamma", "True"], id="a flag for a number"),
        pytest.param("targets = 'no'", ["targets", "true or false"], id="text for a flag"),
        pytest.param("threads = 2.0", ["threads", "whole number"], id="a fraction of threads"),
        pytest.param("columns = 'x'", ["columns", "table"], id="text for a table"),
        pytest.param("backend = ['numba']", ["backend", "one of"], id="a list for a choice"),
        pytest.param("rho_bar = 'None'", ["rho_bar", "or none"], id="none misspelt"),
        pytest.param(
            "carry = 3",
            ["carry", "list of names"],
            id="a number for a list",
        ),
        pytest.param(
            "# caf\xe9",
            ["TOML"],
            id="no UTF-8",
        ),
    ],
)
def test_bad_config_is_refused_with_what_is_valid(
    text: str, words: list[str], logs: Path, tmp_path: Path
) -> None:
    config = tmp_path / "config.toml"
    config.write_bytes(text.encode("latin-1"))
    result = invoke("process", logs, "--out", tmp_path / "run", "--config", config)
    check_refused(result, 2, *words)


@pytest.mark.parametrize(
    "arguments",
    [
        ["process"],
        ["process", "LOGS"],
        ["process", "LOGS", "--out", "RUN", "--backend", "cobol"],
        ["process", "LOGS", "--out", "RUN", "--threads", "many"],
        ["process", "LOGS", "--out", "RUN", "--gama", "1"],
        ["audit"],
    ],
    ids=["no logs", "no out", "unknown choice", "no integer", "unknown option", "no command"],
)
def test_wrong_usage_exits_2(arguments: list[str]) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.splitlines()[-1].startswith("Error: ")


def test_logs_that_do_not_exist_exit_3(tmp_path: Path) -> None:
    result = invoke("process", tmp_path / "nowhere", "--out", tmp_path / "run")
    check_refused(result, 3, "nowhere", "no such file or directory")


def test_directory_without_parquet_exits_3(tmp_path: Path) -> None:
    logs = write_files(tmp_path / "logs", {"notes.txt": b"x", "_tmp/a.parquet": make_table()})
    result = invoke("process", logs, "--out", tmp_path / "run")
    check_refused(result, 3, str(logs), "no *.parquet file")


@pytest.mark.parametrize(
    ("column", "advice"),
    [
        ("trajectory_id", "--map trajectory_id"),
        ("step", "--step-from order"),
        ("reward", "--map reward"),
        ("terminated", "--end-of-trajectory"),
        ("truncated", "lit(false)"),
        ("behavior_log_prob", "--map behavior_log_prob"),
        ("target_log_prob", "--scores"),
        ("value", "--no-targets"),
    ],
)
def test_missing_column_names_near_matches_and_advice(
    column: str, advice: str, tmp_path: Path
) -> None:
    table = make_table()
    renamed = [name + "s" if name == column else name for name in table.column_names]
    logs = write_files(tmp_path / "logs", {"a.parquet": table.rename_columns(renamed)})
    result = invoke("process", logs, "--out", tmp_path / "run")
    near = f"did you mean {column}s"
    check_refused(result, 3, f"column {column}: no file has it", near, advice)


def test_id_that_is_text_here_and_a_number_there_is_refused_by_name(tmp_path: Path) -> None:
    tables = {"a.parquet": make_table(), "b.parquet": make_table(trajectory_id=[1] * ROWS)}
    logs = write_files(tmp_path / "logs", tables)
    result = invoke("process", logs, "--out", tmp_path / "run")
    check_refused(result, 3, "b.parquet", "column trajectory_id")


def test_column_of_a_wrong_type_is_refused_by_name(tmp_path: Path) -> None:
    table = make_table(reward=["1"] * ROWS)
    logs = write_files(tmp_path / "logs", {"a.parquet": table})
    result = invoke("process", logs, "--out", tmp_path / "run")
    check_refused(result, 3, "a.parquet, column reward: found string", "expects float")


def test_discounts_need_gamma(tmp_path: Path) -> None:
    logs = write_files(tmp_path / "logs", {"a.parquet": make_table(discount=[0.9] * ROWS)})
    check_refused(invoke("process", logs, "--out", tmp_path / "run"), 2, "--gamma 1")
    assert not (tmp_path / "run").exists()
    result = invoke("process", logs, "--out", tmp_path / "run", "--gamma", "1")
    assert result.exit_code == 0


def test_discounts_of_0_and_1_need_no_gamma(tmp_path: Path) -> None:
    discounts = [1.0] * (ROWS - 1) + [0.0]
    logs = write_files(tmp_path / "logs", {"a.parquet": make_table(discount=discounts)})
    assert invoke("process", logs, "--out", tmp_path / "run").exit_code == 0
    assert read_manifest(tmp_path / "run")["settings"]["gamma"] == 0.99


@pytest.mark.parametrize("options", [["--device", "cuda"], ["--backend", "triton"]])
def test_gpu_that_is_not_there_exits_3(options: list[str], logs: Path, tmp_path: Path) -> None:
    result = run_command("process", logs, "--out", tmp_path / "run", *options)
    assert result.returncode == 3
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert "no CUDA device" in result.stderr


def test_run_that_exists_is_refused(logs: Path, tmp_path: Path) -> None:
    assert invoke("process", logs, "--out", tmp_path / "run").exit_code == 0
    before = read_manifest(tmp_path / "run")
    result = invoke("process", logs, "--out", tmp_path / "run", "--gamma", "0.5")
    check_refused(result, 2, "exists", "--overwrite")
    assert read_manifest(tmp_path / "run") == before


@pytest.mark.parametrize("manifest", [None, "{}", '{"format": "other run v1"}', "no JSON"])
def test_overwrite_of_anything_but_a_run_is_refused(
    manifest: str | None, logs: Path, tmp_path: Path
) -> None:
    precious = tmp_path / "run" / "thesis.tex"
    precious.parent.mkdir()
    precious.write_text("precious")
    if manifest is not None:
        (tmp_path / "run" / "manifest.json").write_text(manifest)
    result = invoke("process", logs, "--out", tmp_path / "run", "--overwrite")
    check_refused(result, 2, "no vtaudit manifest")
    assert precious.read_text() == "precious"


def test_overwrite_of_a_file_is_refused(logs: Path, tmp_path: Path) -> None:
    (tmp_path / "run").write_text("precious")
    result = invoke("process", logs, "--out", tmp_path / "run", "--overwrite")
    check_refused(result, 2, "no vtaudit manifest")
    assert (tmp_path / "run").read_text() == "precious"


def test_run_below_a_file_exits_3(logs: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    check_refused(invoke("process", logs, "--out", tmp_path / "file" / "run"), 3, "cannot be made")


@pytest.fixture
def repeated(tmp_path: Path) -> Path:
    """Return a log where every row stands twice."""
    return write_files(tmp_path / "logs", {"a.parquet": make_table(), "b.parquet": make_table()})


@pytest.mark.parametrize(
    ("options", "code", "finding"),
    [
        (["--max-reject-fraction", "0.4"], 1, "6 of 12 rows rejected"),
        (["--max-reject-fraction", "0.5"], 0, ""),
        (["--fail-on", "key_conflict,duplicate"], 1, "fail_on duplicate: 6 rows"),
        (["--fail-on", "key_conflict"], 0, ""),
    ],
)
def test_limits_exit_1_only_when_they_are_passed(
    options: list[str], code: int, finding: str, repeated: Path, tmp_path: Path
) -> None:
    result = invoke("process", repeated, "--out", tmp_path / "run", *options)
    assert result.exit_code == code
    assert (f"vtaudit: {finding}" in result.stderr) if finding else result.stderr == ""
    assert "received" in result.stdout
    assert (tmp_path / "run" / "manifest.json").is_file()


def test_unreadable_file_exits_1_and_is_named(logs: Path, tmp_path: Path) -> None:
    (logs / "b.parquet").write_bytes(b"")
    result = invoke("process", logs, "--out", tmp_path / "run")
    assert result.exit_code == 1
    assert "vtaudit: 1 of 2 files unreadable" in result.stderr
    assert "b.parquet: the file is empty" in result.stderr


def test_unreadable_file_is_allowed_when_said_so(logs: Path, tmp_path: Path) -> None:
    (logs / "b.parquet").write_bytes(b"")
    result = invoke("process", logs, "--out", tmp_path / "run", "--allow-unreadable")
    assert result.exit_code == 0
    assert "b.parquet: the file is empty" in result.stderr


def test_log_without_any_readable_file_exits_3(tmp_path: Path) -> None:
    logs = write_files(tmp_path / "logs", {"a.parquet": b"", "b.parquet": b"{}"})
    result = invoke("process", logs, "--out", tmp_path / "run", "--allow-unreadable")
    check_refused(result, 3, "none of 2 files is readable")


def test_file_name_that_is_no_utf_8_is_no_crash(logs: Path, tmp_path: Path) -> None:
    (logs / "a.parquet").rename(os.fsdecode(os.fsencode(logs) + b"/\xff.parquet"))
    result = invoke("process", logs, "--out", tmp_path / "run")
    assert result.exception is None or isinstance(result.exception, SystemExit)


def test_error_of_a_value_that_does_not_fit_is_one_line(tmp_path: Path) -> None:
    huge = pa.array([2**63] * ROWS, pa.uint64())
    tables = {"a.parquet": make_table(), "b.parquet": make_table(step=huge)}
    logs = write_files(tmp_path / "logs", tables)
    result = invoke("process", logs, "--out", tmp_path / "run")
    assert result.exit_code == 1
    assert len(result.stderr.splitlines()) == 2, result.stderr


def test_command_line_wins_over_the_config(tmp_path: Path) -> None:
    table = make_table(rewards=[1.0] * ROWS, reward=None, v=[0.5] * ROWS)
    logs = write_files(tmp_path / "logs", {"a.parquet": table})
    config = tmp_path / "config.toml"
    config.write_text(
        'gamma = 0.5\nlambda = 0.9\nrho_bar = "none"\nbackend = "reference"\n'
        '[columns]\nreward = "rewards"\nvalue = "v"\n[tags]\nrun = "7"\nby = "config"\n'
    )
    options = ["--gamma", "0.9", "--tag", "by=hand", "--map", "value=value"]
    result = invoke("process", logs, "--out", tmp_path / "run", "--config", config, *options)
    assert result.exit_code == 0, result.stderr
    manifest = read_manifest(tmp_path / "run")
    settings = manifest["settings"]
    assert (settings["gamma"], settings["rho_bar"], settings["c_bar"]) == (0.9, "none", 1.0)
    assert (settings["lambda"], settings["backend"]) == (0.9, "reference")
    assert (settings["device"], settings["step_from"]) == ("cpu", "column")
    assert manifest["tags"] == {"run": "7", "by": "hand"}
    assert (manifest["columns"]["reward"], manifest["columns"]["value"]) == ("rewards", "value")


def test_switch_on_the_command_line_wins_over_the_config(logs: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("targets = false\nweights = true\n")
    arguments = ["process", logs, "--config", config]
    assert invoke(*arguments, "--out", tmp_path / "one").exit_code == 0
    assert invoke(*arguments, "--out", tmp_path / "two", "--targets").exit_code == 0
    assert read_manifest(tmp_path / "one")["settings"]["targets"] is False
    assert read_manifest(tmp_path / "two")["settings"]["targets"] is True
    assert read_manifest(tmp_path / "two")["settings"]["weights"] is True


def test_json_equals_the_audit_table(repeated: Path, tmp_path: Path) -> None:
    result = invoke("process", repeated, "--out", tmp_path / "run", "--json")
    assert result.exit_code == 0
    printed = json.loads(result.stdout)
    for table, rows in (("audit", printed["audit"]), ("summary", [printed["summary"]])):
        written = pl.read_parquet(tmp_path / "run" / "audit" / f"{table}.parquet")
        assert written["run_id"].unique().to_list() == [printed["run_id"]]
        assert rows == written.drop("run_id").to_dicts()
    assert Path(printed["run"]) == tmp_path / "run"


def test_quiet_prints_nothing_but_errors(logs: Path, tmp_path: Path) -> None:
    result = invoke("process", logs, "--out", tmp_path / "run", "--quiet")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")
    arguments = ["--out", tmp_path / "two", "--quiet", "--max-reject-fraction", "0"]
    (logs / "b.parquet").write_bytes((logs / "a.parquet").read_bytes())
    result = invoke("process", logs, *arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    assert len(result.stderr.splitlines()) == 1


def test_data_goes_to_stdout_and_messages_to_stderr(logs: Path, tmp_path: Path) -> None:
    (logs / "b.parquet").write_bytes(b"")
    result = run_command("process", logs, "--out", tmp_path / "run")
    assert result.returncode == 1
    assert "received" in result.stdout
    assert "unreadable" not in result.stdout
    assert "received" not in result.stderr


def test_every_printed_share_has_numerator_and_denominator(repeated: Path, tmp_path: Path) -> None:
    result = invoke("process", repeated, "--out", tmp_path / "run", "--step-from", "column")
    lines = [line for line in result.stdout.splitlines() if "%" in line]
    pattern = re.compile(r"\s*\w+\s+([\d,]+)\s+([\d,]+)\s+[a-z][a-z ]+?\s+([\d.]+) %\s*")
    assert len(lines) == 10
    for line in lines:
        match = pattern.fullmatch(line)
        assert match, line
        count, total = (int(text.replace(",", "")) for text in match.groups()[:2])
        assert match[3] == f"{100 * count / total:.2f}"


def test_what_cannot_be_known_is_printed_with_its_reason(repeated: Path, tmp_path: Path) -> None:
    result = invoke("process", repeated, "--out", tmp_path / "run", "--no-targets")
    assert "no targets were asked for" in result.stdout


def test_interrupted_run_exits_130(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline_module, "make_plan", interrupt)
    result = invoke("process", logs, "--out", tmp_path / "run")
    check_refused(result, 130, "interrupted")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["logs"]


def test_version_is_printed() -> None:
    result = invoke("--version")
    assert result.exit_code == 0
    assert re.fullmatch(r"vtaudit, version \d+\.\d+\.\d+\n", result.stdout)


def test_reasons_lists_every_reason_and_warning() -> None:
    result = invoke("reasons")
    assert (result.exit_code, result.stderr) == (0, "")
    words = {line.split()[0] for line in result.stdout.splitlines() if line.strip()}
    assert {item.code for item in (*Reason, *Warn)} <= words


def test_reasons_as_json_is_the_registry_in_its_order() -> None:
    printed = json.loads(invoke("reasons", "--json").stdout)
    assert [row["reason"] for row in printed["reasons"]] == [reason.code for reason in Reason]
    assert [row["warning"] for row in printed["warnings"]] == [warning.code for warning in Warn]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_help_and_stands_in_it(name: str) -> None:
    command = main.commands[name]
    shown = invoke(name, "--help").stdout
    assert command.help
    for option in command.params:
        if isinstance(option, click.Option):
            assert option.help, option.name
            assert all(text in shown for text in option.opts), option.name


def test_every_setting_is_an_option_of_process() -> None:
    shown = re.split(r"[^-\w]+", invoke("process", "--help").stdout)
    renamed = {"columns": "--map", "tags": "--tag"}
    for setting in (item.name for item in fields(Settings)):
        option = renamed.get(setting, "--" + setting.rstrip("_").replace("_", "-"))
        assert option in shown


def test_shell_completion_is_there() -> None:
    script = run_command(env={"_VTAUDIT_COMPLETE": "bash_source"})
    assert script.returncode == 0
    assert "complete" in script.stdout
    words = {"COMP_WORDS": "vtaudit process --bac", "COMP_CWORD": "2"}
    found = run_command(env={"_VTAUDIT_COMPLETE": "bash_complete", **words})
    assert found.stdout.splitlines() == ["plain,--backend"]


def test_file_whose_column_name_is_no_utf_8_is_unreadable(tmp_path: Path) -> None:
    tables = {"a.parquet": make_table(), "b.parquet": make_table("b", extra=[1] * ROWS)}
    logs = write_files(tmp_path / "logs", tables)
    body = (logs / "b.parquet").read_bytes()
    (logs / "b.parquet").write_bytes(body.replace(b"extra", b"\xffxtra"))
    for command in (["inspect", logs], ["process", logs, "--out", tmp_path / "run"]):
        result = invoke(*command)
        assert result.exit_code == 1, result.stderr
        assert "b.parquet" in result.output


def test_link_to_itself_is_an_unreadable_file(logs: Path, tmp_path: Path) -> None:
    (logs / "self.parquet").symlink_to("self.parquet")
    result = invoke("process", logs, "--out", tmp_path / "run")
    assert result.exit_code == 1
    assert "self.parquet" in result.stderr


def test_discounts_of_an_unreadable_file_ask_for_no_gamma(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(logs, {"b.parquet": make_table("b", discount=[0.5] * ROWS)})
    read = reading_module.read_batches

    def fail_late(file: Any, columns: Any, **options: Any) -> Any:
        yield from read(file, columns, **options)
        if file.name == "b.parquet":
            raise UnreadableError("its last page is damaged")

    monkeypatch.setattr(reading_module, "read_batches", fail_late)
    result = invoke("process", logs, "--out", tmp_path / "run")
    assert result.exit_code == 1
    assert "its last page is damaged" in result.stderr


@pytest.mark.parametrize(
    "arguments", [["process", SAMPLE_LOGS, "--out", "{run}"], ["reasons"], ["presets"]]
)
def test_reader_that_goes_away_is_no_finding(arguments: list[Any], tmp_path: Path) -> None:
    words = [str(word).format(run=tmp_path / "run") for word in arguments]
    command = shlex.join([sys.executable, "-c", START, *words])
    done = subprocess.run(
        ["bash", "-c", f"{command} | head -1 >/dev/null; exit ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert (done.returncode, done.stderr) == (0, "")


def run_without(stream: int, *arguments: str | Path) -> int:
    """Run the command with a closed stream; return its exit code."""
    code = (
        "import os, sys; os.close(int(sys.argv[1]));"
        "os.execv(sys.executable, [sys.executable, '-c', *sys.argv[2:]])"
    )
    return run_python(code, str(stream), START, *arguments).returncode


@pytest.mark.parametrize("stream", [1, 2])
def test_command_ends_as_usual_when_a_stream_is_closed(stream: int, tmp_path: Path) -> None:
    logs = write_files(tmp_path / "logs", {"a.parquet": make_table()})
    run = tmp_path / "run"
    assert run_without(stream, "process", logs, "--out", run) == 0
    assert run_without(stream, "query", run, "SELECT 1 AS one", "--csv") == 0
    assert run_without(stream, "query", run, "SELECT 1 AS one", "--json") == 0
    assert run_without(stream, "verify", run) == 0
    assert run_without(stream, "verify", logs) == 3
    write_files(logs, {"b.parquet": b""})
    assert run_without(stream, "process", logs, "--out", tmp_path / "other") == 1
    assert read_manifest(run)["counts"]["accepted"] == ROWS
