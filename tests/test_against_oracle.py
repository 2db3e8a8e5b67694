"""`process` agrees with the brute-force oracle on every row of random faulty logs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from oracle import OracleResult, audit_log
from random_logs import make_random_log, write_log
from vtaudit import Settings, process
from vtaudit import shards as shards_module

SEEDS = range(60)
NUMBERS = ("next_value", "log_ratio", "discount", "value_target", "advantage", "trace_length")
WEIGHTS = ("rho", "c", "pg_rho")


def as_settings(options: dict[str, Any], **more: Any) -> Settings:
    """Return the oracle's options as settings."""
    expect = {name: tuple(values) for name, values in options.get("expect", {}).items()}
    return Settings(**{**options, "expect": expect, **more})


def read_run(run: Path, table: str) -> dict[tuple[str, int], dict[str, Any]]:
    """Return the rows of a table of a run by their place in the log."""
    frame = pl.concat(
        [pl.read_parquet(path, glob=False) for path in sorted((run / table).iterdir())]
    )
    return {(row["source_file"], row["source_row"]): row for row in frame.iter_rows(named=True)}


def assert_rows_agree(run: Path, expected: OracleResult, dtype: str, *, targets: bool) -> None:
    """Compare verdicts, boundaries, sources and numbers of every row, element by element."""
    rejects, accepted = read_run(run, "rejects"), read_run(run, "targets")
    wanted = {place: row for place, row in expected.rows.items() if row.status == "rejected"}
    assert {place: row["reasons"] for place, row in rejects.items()} == {
        place: row.reasons for place, row in wanted.items()
    }
    for place, row in rejects.items():
        assert row["primary_reason"] == row["reasons"][0]
        assert (row["step"], row["trajectory_id"]) == (
            wanted[place].step,
            wanted[place].trajectory_id,
        )
    if not targets:
        assert not accepted
        return
    kept = {place: row for place, row in expected.rows.items() if row.status == "accepted"}
    assert accepted.keys() == kept.keys()
    rtol = 1e-5 if dtype == "float32" else 1e-12
    for place, row in accepted.items():
        want = kept[place]
        for name in ("trajectory_id", "unroll_id", "step", "boundary", "bootstrap_source"):
            assert row[name] == getattr(want, name), (place, name)
        for name in (*NUMBERS, *WEIGHTS):
            assert row[name] == pytest.approx(getattr(want, name), rel=rtol, abs=1e-6), (
                place,
                name,
            )


def assert_counts_agree(run: Path, expected: OracleResult) -> None:
    """Compare every count of the audit; what cannot be known is null."""
    audit = pl.read_parquet(run / "audit" / "audit.parquet", glob=False)
    for row in audit.iter_rows(named=True):
        if row["count"] is None:
            assert row["null_reason"]
            continue
        key = (row["measure"], row["kind"])
        assert row["count"] == expected.counts.get(key, 0), key
        if row["denominator"]:
            assert row["fraction"] == row["count"] / row["denominator"]


@pytest.mark.parametrize("seed", SEEDS)
def test_process_agrees_with_the_oracle_when_logs_are_faulty(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, options = make_random_log(seed)
    write_log(files, tmp_path / "logs")
    monkeypatch.setattr(shards_module, "SHARD_ROWS", 40 if seed % 2 else 250_000)
    run = tmp_path / "run"
    mapped = {name for file in files.values() for name in file.columns}
    if options.get("learner_version") is not None and "policy_version" not in mapped:
        pytest.skip("refused: a learner_version without any policy_version")
    flags = {"terminated", "truncated"} - mapped
    if options.get("end_of_trajectory") is None:
        options["columns"] = dict.fromkeys(flags, "lit(false)")
    process(tmp_path / "logs", run, as_settings(options, weights=True, backend="numba"))
    options.pop("columns", None)
    expected = audit_log(files, **options)
    dtype, targets = options.get("dtype", "float32"), options.get("targets", True)
    assert_rows_agree(run, expected, dtype, targets=targets)
    assert_counts_agree(run, expected)
