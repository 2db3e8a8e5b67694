"""Whether what was timed did its job: rows counted, and targets held against those by hand."""

from __future__ import annotations

from pathlib import Path

import duckdb
from pipeline_jobs import BenchmarkError

TOLERANCE = 1e-5
TARGETS = ("value_target", "advantage")
# in DuckDB NaN <= NaN holds, so the bound must be finite
CLOSE = (
    "isfinite(found.{0}) AND "
    f"abs(found.{{0}} - expected.{{0}}) <= {TOLERANCE} * greatest(1, abs(found.{{0}}))"
)
# a kept copy of a conflict changes its neighbors too, so such trajectories are left out
COMPARISON = f"""
    WITH torn AS (
        SELECT DISTINCT trajectory_id FROM rejects WHERE list_contains(reasons, 'key_conflict')),
    found AS (SELECT * FROM targets WHERE trajectory_id NOT IN (FROM torn)),
    expected AS (SELECT * FROM by_hand WHERE trajectory_id NOT IN (FROM torn)),
    compared AS (
        SELECT found.step IS NOT NULL AND expected.step IS NOT NULL AS in_both,
            {" AND ".join(CLOSE.format(name) for name in TARGETS)} AS is_close
        FROM found FULL JOIN expected USING (trajectory_id, step))
    SELECT (SELECT count(*) FROM found), (SELECT count(*) FROM expected),
        count(*) FILTER (in_both), count(*) FILTER (in_both AND is_close)
    FROM compared
"""


def check_run(rows: int, run: Path) -> dict[str, float]:
    """Return the run's seconds by stage.

    Raises:
        BenchmarkError: the run did not receive `rows`, or its counts do not add up.
    """
    with open_run(run) as connection:
        received, accepted, rejected, targets, rejects = connection.execute(
            "SELECT received, accepted, rejected, (SELECT count(*) FROM targets), "
            f"(SELECT count(*) FROM rejects) FROM '{run}/audit/summary.parquet'"
        ).fetchone()
        expect("received", received, rows)
        expect("accepted + rejected", accepted + rejected, rows)
        expect("rows of the targets", targets, accepted)
        expect("rows of the rejects", rejects, rejected)
        seconds = f"SELECT seconds FROM '{run}/audit/runs.parquet'"
        return dict(connection.execute(seconds).fetchone()[0])


def check_copy(rows: int, copied: Path) -> None:
    """Raise a BenchmarkError where the copy does not hold so many rows."""
    found = duckdb.execute(f"SELECT count(*) FROM '{copied}'").fetchone()[0]
    expect("rows of the copy", found, rows)


def compare_targets(run: Path, by_hand: Path) -> int:
    """Return the rows compared: those of all trajectories without a conflict.

    Raises:
        BenchmarkError: the two do not hold the same keys, or their targets differ.
    """
    with open_run(run) as connection:
        connection.execute(f"CREATE VIEW by_hand AS FROM '{by_hand}'")
        ours, theirs, both, close = connection.execute(COMPARISON).fetchone()
    expect("rows accepted without a conflict", ours, theirs)
    expect("keys that the run and the targets by hand share", both, ours)
    expect(f"rows whose targets agree to {TOLERANCE}", close, both)
    if not both:
        raise BenchmarkError("every trajectory holds a conflict: found no row to compare")
    return both


def open_run(run: Path) -> duckdb.DuckDBPyConnection:
    """Return a connection with the views targets and rejects."""
    connection = duckdb.connect()
    for table in ("targets", "rejects"):
        connection.execute(f"CREATE VIEW {table} AS FROM '{run}/{table}/*.parquet'")
    return connection


def expect(what: str, found: int, expected: int) -> None:
    """Raise a BenchmarkError where two counts differ."""
    if found != expected:
        raise BenchmarkError(f"{what}: found {found}, expected {expected}")
