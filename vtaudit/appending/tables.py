"""The audit tables of a store: the whole of it, and each batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

from vtaudit import audit
from vtaudit.appending.counting import of_batch, whole_store
from vtaudit.appending.taking import Files, as_inputs, latest_files
from vtaudit.plan import Plan
from vtaudit.store import write_table
from vtaudit.tallies import tally_of

Rows = list[dict[str, Any]]
Batches = Sequence[Mapping[str, Any]]


def tabulate_store(
    plan: Plan, counts: pl.DataFrame, files: Files, batches: Batches
) -> dict[str, Any]:
    """Return the rows of summary, audit, audit_by, files and runs.

    Args:
        plan: of the last batch.
        counts: of all batches.
        files: the manifest's entries.
        batches: the manifest's entries.
    """
    unknown = audit.unknown_counts(
        ordered=False, targets=plan.settings.targets, ratio=plan.shape.has("target_log_prob")
    )
    whole = whole_store(counts)
    rows = audit.audit_rows(whole, unknown)
    by_batch = pl.concat([_group(counts, entry["batch"]) for entry in batches])
    return {
        "summary": [audit.summary_row(rows, whole, latest_files(files))],
        "audit": rows,
        "audit_by": by_batch,
        "files": [
            {**row, "batch": entry["batch"]}
            for row, entry in zip(audit.file_rows(as_inputs(files)), files, strict=True)
        ],
        "runs": [_run_row(entry) for entry in batches],
    }


def _group(counts: pl.DataFrame, batch: int) -> pl.DataFrame:
    """Return the rows of `audit_by` of one batch."""
    is_batch = pl.col("scope") == "batch"
    return audit.tabulate_groups(tally_of(of_batch(counts, batch))).with_columns(
        pl.lit(batch, pl.Int64).alias("batch"),
        pl.when(is_batch).then(pl.lit(str(batch))).otherwise("scope_value").alias("scope_value"),
    )


def _run_row(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of `runs`; a batch that forgot keys says so in its settings."""
    settings = dict(entry["settings"])
    if entry["forgotten"]:
        settings["forgotten"] = entry["forgotten"]
    row = audit.run_row(settings, entry["versions"], entry["tags"], entry["seconds"])
    return {**row, "batch": entry["batch"]}


def write_tables(folder: Path, run_id: str, tables: Mapping[str, Any]) -> None:
    """Write the tables as Parquet, and as audit.duckdb with macros over every batch.

    Raises:
        InputError: the disk failed.
    """
    written: dict[str, pa.Table] = {
        name: audit.make_table(name, run_id, rows) for name, rows in tables.items()
    }
    for name, table in written.items():
        write_table(table, folder / "audit" / f"{name}.parquet")
    audit.write_duckdb(folder / "audit.duckdb", written, is_store=True)
