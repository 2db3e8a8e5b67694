"""The benchmark of the pipeline on a small log, its checks on damaged results, and its log."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from make_log import LogSpec, write_log
from pipeline_checks import check_copy, check_run, compare_targets
from pipeline_jobs import BenchmarkError
from pipeline_report import BY_HAND, COPY, PROCESS, Cost, Job, cost_table, extra_line, growth_line

from commands import ROOT

ROWS = 20_000
OPTIONS = "--files 3 --repeats 1 --trajectory-rows 200 --retried 0.2 --conflicts 0.05"
RUN, BY_HAND_OUT, COPY_OUT = (
    "vtaudit_process_0.02_M_rows",
    "DuckDB_window_+_NumPy_loop_0.02_M_rows.parquet",
    "Polars_copy_0.02_M_rows.parquet",
)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the benchmark left, with its report in the file `report`."""
    home = tmp_path_factory.mktemp("pipeline") / "kept"
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    options = [f"--rows={ROWS}", f"--keep={home}", "--malformed=0.02", *OPTIONS.split()]
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "pipeline.py", *options],
        env={**env, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    (home / "report").write_text(done.stdout)
    return home


def test_report_has_a_line_for_each_candidate_and_stage(kept: Path) -> None:
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in (kept / "report").read_text().splitlines()
        if line.startswith("|")
    ]
    costs = {cells_of[1]: cells_of for cells_of in cells if cells_of[0] == "0.02 M rows"}
    assert list(costs) == [COPY, PROCESS, BY_HAND]
    assert costs[COPY][3] == costs[COPY][5] == "1.00 (1.00-1.00)"
    assert all(float(line[column]) > 0 for line in costs.values() for column in (2, 4, 7))
    assert {"read", "judge", "write"} <= {line[0] for line in cells}


def test_log_of_the_benchmark_has_every_kind_of_row(kept: Path) -> None:
    rejects = pq.read_table(kept / RUN / "rejects")
    reasons = set(pc.list_flatten(rejects["reasons"]).to_pylist())
    expected = {"duplicate", "key_conflict", "value_not_finite", "bootstrap_missing"}
    assert expected <= reasons
    targets = pq.read_table(kept / RUN / "targets")
    assert {"interior", "terminated", "truncated", "window_edge", "gap"} == set(
        targets["boundary"].to_pylist()
    )


def test_checks_pass_on_sound_results(kept: Path) -> None:
    assert "read" in check_run(ROWS, kept / RUN)
    check_copy(ROWS, kept / COPY_OUT)
    compared = compare_targets(kept / RUN, kept / BY_HAND_OUT)
    assert ROWS / 2 < compared < pq.read_metadata(kept / BY_HAND_OUT).num_rows
    assert f"in {compared:,} rows compared" in (kept / "report").read_text()


def test_checks_fail_on_lost_rows(kept: Path) -> None:
    with pytest.raises(BenchmarkError, match="received: found 20000, expected 20001"):
        check_run(ROWS + 1, kept / RUN)
    with pytest.raises(BenchmarkError, match="copy: found 20000, expected 20001"):
        check_copy(ROWS + 1, kept / COPY_OUT)


def conflict_free_row(kept: Path) -> int:
    """Return a row of the targets by hand whose trajectory has no conflict."""
    rejects = pq.read_table(kept / RUN / "rejects").to_pylist()
    torn = {row["trajectory_id"] for row in rejects if "key_conflict" in row["reasons"]}
    ids = pq.read_table(kept / BY_HAND_OUT)["trajectory_id"].to_pylist()
    return next(row for row, trajectory in enumerate(ids) if trajectory not in torn)


@pytest.mark.parametrize("name", ["value_target", "advantage"])
@pytest.mark.parametrize("wrong", [np.nan, 1e-3])
def test_comparison_fails_on_one_wrong_target(
    kept: Path, tmp_path: Path, wrong: float, name: str
) -> None:
    table, row = pq.read_table(kept / BY_HAND_OUT), conflict_free_row(kept)
    values = table[name].to_numpy().copy()
    values[row] += wrong * max(1.0, abs(values[row]))
    column = table.schema.get_field_index(name)
    table = table.set_column(column, name, pa.array(values))
    pq.write_table(table, tmp_path / "wrong.parquet")
    with pytest.raises(BenchmarkError, match="targets agree"):
        compare_targets(kept / RUN, tmp_path / "wrong.parquet")


@pytest.mark.parametrize("times", [0, 2])
def test_comparison_fails_on_a_row_lost_or_kept_twice(
    kept: Path, tmp_path: Path, times: int
) -> None:
    table, row = pq.read_table(kept / BY_HAND_OUT), conflict_free_row(kept)
    parts = [table[:row], *[table[row : row + 1]] * times, table[row + 1 :]]
    pq.write_table(pa.concat_tables(parts), tmp_path / "wrong.parquet")
    with pytest.raises(BenchmarkError, match="accepted without a conflict"):
        compare_targets(kept / RUN, tmp_path / "wrong.parquet")


def make_round(small: tuple[int, int], large: tuple[int, int]) -> dict[Job, Cost]:
    """Return costs of copy and process on two logs: n wall seconds, 2 n of CPU, n GiB."""
    return {
        Job(log, candidate): Cost(wall, 2 * wall, wall * 2**30)
        for log, walls in (("small", small), ("large", large))
        for candidate, wall in zip((COPY, PROCESS), walls, strict=True)
    }


def test_ratios_are_within_a_round_and_reported_by_their_median() -> None:
    rounds = [
        make_round(small=(1, 2), large=(4, 9)),
        make_round(small=(2, 8), large=(8, 48)),
        make_round(small=(1, 3), large=(3, 15)),
    ]
    lines = cost_table(rounds, {"small": 6_000_000, "large": 30_000_000}).splitlines()
    ratio = "3.00 (2.00-4.00)"
    assert (
        lines[3] == f"| small | vtaudit process | 3.00 | {ratio} | 6.00 | {ratio} | 2.00 | 3.00 |"
    )
    assert growth_line(rounds, "small", "large").startswith(
        "From small to large: time 5.00 (4.50-6.00)-fold, peak memory 5.00 (4.50-6.00)-fold"
    )
    assert extra_line(rounds, "small", "large").endswith(
        "12.00 s more in process, 3.00 s more in the copy: "
        "6.00 (2.33-6.67) copies of their own size."
    )


def read_log(path: Path, **more: Any) -> pa.Table:
    write_log(path, LogSpec(2_000, 2, 7, retried=0.2, malformed=0.0, **more))
    return pq.read_table(path)


def test_log_is_the_same_from_the_same_seed(tmp_path: Path) -> None:
    one, two = (read_log(tmp_path / name, actions=3) for name in "ab")
    assert one.equals(two)


def test_actions_add_columns_and_change_only_the_log_probs(tmp_path: Path) -> None:
    plain, wide = read_log(tmp_path / "plain"), read_log(tmp_path / "wide", actions=3)
    changed = {name for name in plain.column_names if not plain[name].equals(wide[name])}
    assert changed == {"behavior_log_prob", "target_log_prob"}
    assert set(wide.column_names) - set(plain.column_names) == {
        "action",
        "behavior_action_mask",
        "target_action_mask",
        "behavior_logits",
    }


def test_log_prob_is_that_of_the_action_under_the_masked_logits(tmp_path: Path) -> None:
    rows = read_log(tmp_path, actions=5).to_pylist()
    assert {len(row["behavior_logits"]) for row in rows} == {5}
    assert any(False in row["behavior_action_mask"] for row in rows)
    for row in rows:
        mask, logits = row["behavior_action_mask"], row["behavior_logits"]
        assert row["target_action_mask"] == mask
        assert mask[row["action"]]
        total = sum(np.exp(logit) for logit, legal in zip(logits, mask, strict=True) if legal)
        expected = np.log(np.exp(logits[row["action"]]) / total)
        assert row["behavior_log_prob"] == pytest.approx(expected, abs=1e-12)
