"""The sample logs give exactly the numbers that their README states."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from vtaudit import RunResult, Settings, process
from vtaudit.reasons import BOOTSTRAP_SOURCES, BOUNDARIES, Reason

SAMPLE_DATA = Path(__file__).parents[1] / "sample_data"
LOGS, TWO_STEP = SAMPLE_DATA / "logs", SAMPLE_DATA / "two_step"
Table = dict[str, dict[str, str]]
MALFORMED = {
    Reason.BEHAVIOR_LOG_PROB_MISSING,
    Reason.BEHAVIOR_LOG_PROB_NAN,
    Reason.BEHAVIOR_LOG_PROB_INFINITE,
    Reason.BEHAVIOR_LOG_PROB_POSITIVE,
    Reason.BEHAVIOR_LOGITS_MALFORMED,
    Reason.BEHAVIOR_LOG_PROB_UNRECONCILED,
}


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """A run over the sample logs with default settings."""
    run = tmp_path_factory.mktemp("sample") / "run"
    return process(LOGS, run, Settings(backend="numba"))


@pytest.fixture(scope="module")
def rejects(result: RunResult) -> list[set[str]]:
    """The reasons of each rejected row."""
    parts = [pq.read_table(path) for path in (result.path / "rejects").iterdir()]
    return [set(codes) for part in parts for codes in part["reasons"].to_pylist()]


def parse_tables() -> list[Table]:
    """The tables of README.md: first cell of a row -> heading -> cell."""
    tables, block = [], []
    for line in [*(SAMPLE_DATA / "README.md").read_text().splitlines(), ""]:
        if line.startswith("|"):
            block.append([cell.strip() for cell in line.strip("|").split("|")])
        elif block:
            heading, _, *body = block
            tables.append({row[0]: dict(zip(heading, row, strict=True)) for row in body})
            block = []
    return tables


def table_of(heading: str) -> Table:
    """The one table whose first heading begins so."""
    (found,) = [t for t in parse_tables() if next(iter(next(iter(t.values())))).startswith(heading)]
    return found


def number(cell: str) -> int:
    """The number at the start of a cell; an empty one is 0."""
    return int(re.match(r"[\d,]*", cell)[0].replace(",", "") or 0)


def count(result: RunResult, measure: str, kind: str | None = None) -> int:
    (entry,) = [r for r in result.audit if (r["measure"], r["kind"]) == (measure, kind)]
    return entry["count"]


def test_counts_are_the_planned_ones(result: RunResult) -> None:
    summary = result.summary
    names = ("received", "unique", "accepted", "rejected", "padding", "pending")
    assert [summary[name] for name in names] == [12000, 11800, 10600, 1400, 0, 0]
    assert summary["rejected_any_duplicate"] == 200
    assert summary["rejected_any_mask_mismatch"] == 40
    assert summary["rejected_any_bootstrap_missing"] == 0
    assert (summary["clipped_received_rho"], summary["clipped_rho"]) == (3000, 2700)
    assert result.notes == result.findings == ()


def test_clipped_fraction_is_stated_over_accepted_rows(result: RunResult) -> None:
    for kind in ("rho", "c", "pg_rho"):
        (entry,) = [r for r in result.audit if (r["measure"], r["kind"]) == ("clipped", kind)]
        assert (entry["count"], entry["denominator"]) == (2700, 10600)
        assert entry["denominator_measure"] == "accepted"
        assert f"{entry['fraction']:.2%}" == "25.47%"


def test_malformed_rows_are_the_planned_ones(rejects: list[set[str]]) -> None:
    malformed = {reason.code for reason in MALFORMED}
    found = [codes & malformed for codes in rejects if codes & malformed]
    assert len(found) == 1200
    assert all(len(codes) == 1 for codes in found)
    assert sum("duplicate" in codes for codes in rejects) == 200
    assert sum("duplicate" in codes and bool(codes & malformed) for codes in rejects) == 40
    assert sum(codes == {"mask_mismatch"} for codes in rejects) == 40
    assert len(rejects) == 1400


def test_every_boundary_occurs_but_zero_discount(result: RunResult) -> None:
    absent = {name for name in BOUNDARIES if not count(result, "boundary", name)}
    assert absent == {"zero_discount"}


def test_no_warning_is_raised(result: RunResult) -> None:
    assert not any(row["count"] for row in result.audit if row["measure"] == "warning")


def test_measures_are_those_of_the_readme(result: RunResult) -> None:
    table = table_of("measure")
    assert list(table) == ["received", "unique", "accepted", "rejected"]
    for measure, row in table.items():
        assert count(result, measure) == number(row["rows"])
    share = count(result, "accepted") / count(result, "received")
    assert table["accepted"][""] == f"{100 * share:.2f} % of received"


def test_reasons_are_those_of_the_readme(result: RunResult) -> None:
    table = table_of("reason")
    named = [reason.code for reason in Reason if reason.code in table]
    assert list(table) == [*named, "every other reason", "sum"]
    for measure in ("rejected_any", "rejected_primary"):
        counts = {reason.code: count(result, measure, reason.code) for reason in Reason}
        assert {code: number(table[code][measure]) for code in named} == {
            code: found for code, found in counts.items() if found
        }
        assert sum(counts.values()) == number(table["sum"][measure])
        assert number(table["every other reason"][measure]) == 0


def test_clipped_rows_are_those_of_the_readme(result: RunResult) -> None:
    table = table_of("ratio > 1")
    for row, measure in (("received", "clipped_received"), ("accepted", "clipped")):
        cells = list(table[row].values())
        for kind in ("rho", "c", "pg_rho"):
            (entry,) = [r for r in result.audit if (r["measure"], r["kind"]) == (measure, kind)]
            assert entry["count"] == number(cells[1])
            assert entry["denominator"] == number(cells[2])
            assert f"{100 * entry['fraction']:.2f} %" == cells[3]


def test_boundaries_are_those_of_the_readme(result: RunResult) -> None:
    table = table_of("boundary of accepted rows")
    assert set(table) == {*BOUNDARIES, "sum"}
    parts = [pq.read_table(path) for path in (result.path / "targets").iterdir()]
    pairs = [
        pair
        for part in parts
        for pair in zip(
            *(part[n].to_pylist() for n in ("boundary", "bootstrap_source")), strict=True
        )
    ]
    for name in BOUNDARIES:
        assert count(result, "boundary", name) == number(table[name]["rows"])
        for source in BOOTSTRAP_SOURCES:
            assert pairs.count((name, source)) == number(table[name].get(source, ""))
    for source in BOOTSTRAP_SOURCES:
        assert count(result, "bootstrap", source) == number(table["sum"].get(source, ""))
    assert len(pairs) == number(table["sum"]["rows"])


def test_windows_and_deliveries_are_those_of_the_readme(result: RunResult) -> None:
    text = " ".join((SAMPLE_DATA / "README.md").read_text().split())
    measures = ("windows", "deliveries", "deliveries_duplicate")
    windows, deliveries, retries = (count(result, measure) for measure in measures)
    stated = (
        f"{windows} windows arrive in {deliveries} deliveries, {retries} of them all duplicates"
    )
    assert stated in text


def test_two_steps_are_those_worked_by_hand(tmp_path: Path) -> None:
    table = table_of("step")
    result = process(TWO_STEP, tmp_path / "run", Settings(gamma=0.9, backend="numba"))
    (part,) = (result.path / "targets").iterdir()
    rows = pq.read_table(part).to_pylist()
    assert [row["value_target"] for row in rows] == pytest.approx([4.87, 4.30], rel=1e-6)
    assert [row["advantage"] for row in rows] == pytest.approx([2.87, 1.30], rel=1e-6)
    assert (count(result, "clipped", "rho"), count(result, "accepted")) == (1, 2)
    assert [str(row["step"]) for row in rows] == list(table)
    for row in rows:
        for name, cell in table[str(row["step"])].items():
            stated = cell if name in ("boundary", "bootstrap_source") else float(cell)
            assert row[name] == (stated if isinstance(stated, str) else pytest.approx(stated))


def test_generator_writes_the_tables_that_are_here(tmp_path: Path) -> None:
    copy = tmp_path / "sample_data"
    for name in ("logs", "two_step"):
        (copy / name).mkdir(parents=True)
    for name in ("make_logs.py", "check_logs.py"):
        shutil.copy(SAMPLE_DATA / name, copy)
    subprocess.run([sys.executable, copy / "make_logs.py"], check=True)
    written = {path.relative_to(copy) for path in copy.rglob("*.parquet")}
    assert written == {path.relative_to(SAMPLE_DATA) for path in SAMPLE_DATA.rglob("*.parquet")}
    for path in sorted(written):
        ours, new = pq.read_table(SAMPLE_DATA / path), pq.read_table(copy / path)
        assert new.schema == ours.schema
        assert repr(new.to_pylist()) == repr(ours.to_pylist()), path
