"""SQL over a run: every table by plain name, in three forms, wherever the run lies."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path

import pyarrow as pa
import pytest

from commands import SAMPLE_LOGS, invoke, make_table, write_files
from vtaudit import Settings, process
from vtaudit.query import AUDIT_TABLES, PARTS
from vtaudit.schemas import load_columns

SETTINGS = Settings(backend="reference")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs") / "it's [a] run*"
    process(SAMPLE_LOGS, place, Settings(backend="numba"))
    return place


def ask_json(run: Path, sql: str) -> list[dict[str, object]]:
    """Return the rows that `query --json` prints."""
    result = invoke("query", run, sql, "--json")
    assert result.exit_code == 0, result.stderr
    rows: list[dict[str, object]] = json.loads(result.stdout)
    return rows


def test_counts_are_the_audit_when_asked_of_the_rows(run: Path) -> None:
    (row,) = ask_json(
        run,
        "SELECT (SELECT count(*) FROM targets) AS accepted, (SELECT count(*) FROM rejects) AS"
        " rejected, (SELECT count(*) FROM targets WHERE log_ratio > 0) AS clipped_rho,"
        " (SELECT count FROM audit WHERE measure = 'clipped' AND kind = 'rho') AS counted",
    )
    assert row == {"accepted": 10600, "rejected": 1400, "clipped_rho": 2700, "counted": 2700}


@pytest.mark.parametrize("table", [*PARTS, *AUDIT_TABLES])
def test_table_has_its_plain_name(run: Path, table: str) -> None:
    (row,) = ask_json(run, f"SELECT count(*) AS rows FROM {table}")
    assert row["rows"]


def test_tables_are_described_when_there_is_no_sql(run: Path) -> None:
    result = invoke("query", run, "--json")
    rows = {(row["table"], row["column"]): row for row in json.loads(result.stdout)}
    for table in (*PARTS, *AUDIT_TABLES):
        for column in load_columns(table):
            if not column.optional:
                assert rows[table, column.name]["meaning"] == column.meaning
    assert "value_target" in invoke("query", run).stdout


def test_csv_and_table_hold_the_same_rows_as_json(run: Path) -> None:
    sql = "SELECT boundary, count(*) AS rows FROM targets GROUP BY ALL ORDER BY ALL"
    rows = ask_json(run, sql)
    printed = invoke("query", run, sql, "--csv").stdout
    assert list(csv.DictReader(io.StringIO(printed))) == [
        {"boundary": row["boundary"], "rows": str(row["rows"])} for row in rows
    ]
    lines = invoke("query", run, sql).stdout.splitlines()[1:]
    assert [line.split() for line in lines] == [
        [str(cell) for cell in row.values()] for row in rows
    ]


def test_nan_in_a_carried_column_is_found_when_asked_plainly(tmp_path: Path) -> None:
    noise = pa.array([math.nan, 1.0, math.nan, 2.0, math.inf, 3.0])
    logs = write_files(tmp_path / "logs", {"a.parquet": make_table(noise=noise)})
    process(logs, tmp_path / "run", Settings(backend="reference", carry=("noise",)))
    rows = ask_json(tmp_path / "run", "SELECT count(*) AS n FROM targets WHERE isnan(noise)")
    assert rows == [{"n": 2}]
    rows = ask_json(tmp_path / "run", "SELECT noise FROM targets ORDER BY step")
    assert [row["noise"] for row in rows] == ["nan", 1.0, "nan", 2.0, "inf", 3.0]


def test_query_answers_after_the_run_was_moved(tmp_path: Path) -> None:
    logs = write_files(tmp_path / "logs", {"a.parquet": make_table()})
    process(logs, tmp_path / "run", SETTINGS)
    (tmp_path / "run").rename(tmp_path / "moved")
    assert ask_json(tmp_path / "moved", "SELECT accepted FROM summary") == [{"accepted": 6}]


def test_long_answer_is_cut_for_people_and_says_so(run: Path) -> None:
    result = invoke("query", run, "SELECT step FROM targets")
    assert len(result.stdout.splitlines()) == 1001
    assert "only the first 1000 rows" in result.stderr
    assert (
        len(invoke("query", run, "SELECT step FROM targets", "--csv").stdout.splitlines()) == 10601
    )


@pytest.mark.parametrize(
    ("sql", "code", "words"),
    [
        ("", 2, "no statement"),
        (" ; ", 2, "no statement"),
        ("SELEC 1", 2, "syntax error"),
        ("SELECT x FROM targets", 2, "next_value"),
    ],
)
def test_bad_sql_is_refused(run: Path, sql: str, code: int, words: str) -> None:
    result = invoke("query", run, sql)
    assert result.exit_code == code
    assert words in result.stderr


def test_directory_that_is_no_run_is_refused(tmp_path: Path) -> None:
    result = invoke("query", tmp_path, "SELECT 1")
    assert result.exit_code == 3
    assert "expected a run directory" in result.stderr


def test_damaged_part_is_an_input_that_failed(tmp_path: Path) -> None:
    logs = write_files(tmp_path / "logs", {"a.parquet": make_table()})
    process(logs, tmp_path / "run", SETTINGS)
    part = tmp_path / "run" / "targets" / "part-00000.parquet"
    part.write_bytes(b"PAR1" + b"\0" * 64 + b"PAR1")
    assert invoke("query", tmp_path / "run", "FROM targets").exit_code == 3


def test_columns_of_one_name_are_told_apart_in_json(run: Path) -> None:
    assert ask_json(run, "SELECT 1 AS a, 2 AS a") == [{"a": 1, "a_1": 2}]


def test_what_a_terminal_might_obey_is_escaped(run: Path) -> None:
    printed = invoke("query", run, "SELECT chr(27) || '[31mred' AS x, 'a\\' AS y").stdout
    assert printed.splitlines()[1].split() == ["\\x1b[31mred", "a\\"]


def test_macros_of_the_audit_file_work_here_too(tmp_path: Path) -> None:
    logs = write_files(tmp_path / "logs", {"a.parquet": make_table()})
    process(logs, tmp_path / "run", SETTINGS)
    sql = f"SELECT count(*) AS n FROM targets('{tmp_path / 'run'}')"
    assert ask_json(tmp_path / "run", sql) == [{"n": 6}]
