"""Counts -> the audit tables and audit.duckdb."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa

from vtaudit.counts import RUN
from vtaudit.errors import InputError
from vtaudit.reasons import BOOTSTRAP_SOURCES, BOUNDARIES, Reason, Warn
from vtaudit.records import InputFile
from vtaudit.schemas import arrow_schema, load_columns
from vtaudit.tallies import Group, Tally, text_columns

BATCH = 0
CLIPS = ("rho", "c", "pg_rho")
DUCKDB_STORAGE = "v1.0.0"
NOT_DETECTABLE = "not detectable without a step column"
ABOUT_TARGETS = "no targets were asked for"
NO_RATIO = "no target_log_prob was given"
NO_READER = "no training reader ran"
TOTAL = "a total"

# measure, its kinds, and the measure that is its denominator
MEASURES: tuple[tuple[str, tuple[str | None, ...], str | None], ...] = (
    ("padding", (None,), "rows"),
    ("received", (None,), "rows"),
    ("unique", (None,), "received"),
    ("accepted", (None,), "received"),
    ("rejected", (None,), "received"),
    ("pending", (None,), "received"),
    ("rejected_any", tuple(reason.code for reason in Reason), "received"),
    ("rejected_primary", tuple(reason.code for reason in Reason), "received"),
    ("warning", tuple(warning.code for warning in Warn), "received"),
    ("clipped", CLIPS, "accepted"),
    ("clipped_received", CLIPS, "received_with_ratio"),
    ("boundary", BOUNDARIES, "accepted"),
    ("bootstrap", BOOTSTRAP_SOURCES, "accepted"),
    ("deliveries", (None,), None),
    ("deliveries_duplicate", (None,), "deliveries"),
    ("windows", (None,), None),
    ("applied", (None,), "accepted"),
)
Counts = dict[tuple[str, str | None], int]


def unknown_counts(*, ordered: bool, targets: bool, ratio: bool) -> dict[tuple[str, str], str]:
    """Return why counts cannot be known, by (measure, kind); kind "" stands for every kind.

    Args:
        ordered: steps came from the order of the rows, so that repeated rows look new.
        targets: targets were computed.
        ratio: a target_log_prob was given.
    """
    unknown = {("applied", ""): NO_READER}
    if ordered:
        for reason in (Reason.DUPLICATE, Reason.KEY_CONFLICT):
            unknown[("rejected_any", reason.code)] = NOT_DETECTABLE
            unknown[("rejected_primary", reason.code)] = NOT_DETECTABLE
        unknown[("deliveries_duplicate", "")] = NOT_DETECTABLE
    if not targets:
        unknown[("clipped", "")] = ABOUT_TARGETS
        unknown[("boundary", "")] = ABOUT_TARGETS
        unknown[("bootstrap", "")] = ABOUT_TARGETS
    if not ratio:
        unknown[("clipped_received", "")] = NO_RATIO
    return unknown


def audit_rows(counts: Counts, unknown: Mapping[tuple[str, str], str]) -> list[dict[str, Any]]:
    """Return the rows of `audit`.

    Each has measure, kind, count, denominator, denominator_measure, fraction, null_reason. A
    count that cannot be known is null unless something was found all the same.
    """
    totals = {measure: count for (measure, kind), count in counts.items() if kind is None}
    totals["rows"] = totals.get("received", 0) + totals.get("padding", 0)
    rows = []
    for measure, kinds, over in MEASURES:
        for kind in kinds:
            found = counts.get((measure, kind), 0)
            why = unknown.get((measure, kind or ""), unknown.get((measure, "")))
            count = None if why and not found else found
            rows.append(_audit_row(measure, kind, count, over, totals.get(over or "", 0), why))
    return rows


def _audit_row(
    measure: str, kind: str | None, count: int | None, over: str | None, total: int, why: str | None
) -> dict[str, Any]:
    fraction = count / total if count is not None and over and total else None
    if fraction is not None:
        why = None
    elif count is not None:
        why = f"no {over}" if over else TOTAL
    return {
        "measure": measure,
        "kind": kind,
        "count": count,
        "denominator": total if over else None,
        "denominator_measure": over,
        "fraction": fraction,
        "null_reason": why,
    }


def tabulate_groups(tally: Tally) -> pl.DataFrame:
    """Return the rows of `audit_by`: every scope and value, non-zero counts only."""
    order = sorted(range(len(tally.groups)), key=lambda k: _text_order(tally.groups[k]))
    of_name = dict(zip(tally.names, tally.table[order].T, strict=True))
    nothing = np.zeros(len(order), np.int64)
    received, padding = (of_name.get((name, None), nothing) for name in ("received", "padding"))
    of_name["rows", None] = received + padding
    places = [(measure, kind, over) for measure, kinds, over in MEASURES for kind in kinds]
    counts = np.stack([of_name.get(place[:2], nothing) for place in places], axis=1)
    totals = np.stack([of_name.get((over or "", None), nothing) for *_, over in places], axis=1)
    line, place = np.nonzero(counts)
    measures, kinds = text_columns([place[:2] for place in places])
    overs = pl.Series([over for *_, over in places], dtype=pl.String)
    scopes, values = text_columns([_shown_group(tally.groups[k]) for k in order])
    frame = pl.DataFrame(
        {
            "measure": measures.gather(place),
            "kind": kinds.gather(place),
            "count": counts[line, place],
            "denominator": totals[line, place],
            "denominator_measure": overs.gather(place),
            "scope": scopes.gather(line),
            "scope_value": values.gather(line),
        }
    )
    total = pl.when(pl.col("denominator_measure").is_not_null()).then(pl.col("denominator"))
    return frame.with_columns(
        total,
        pl.when(total > 0).then(pl.col("count") / total).alias("fraction"),
        pl.lit(BATCH).cast(pl.Int64).alias("batch"),
    )


def _text_order(group: Group) -> tuple[bytes, bool, bytes]:
    scope, value = group
    return scope.encode(), value is not None, (value or "").encode()


def _shown_group(group: Group) -> tuple[str, str | None]:
    return ("batch", str(BATCH)) if group[0] == RUN else group


def summary_row(
    audit: Sequence[Mapping[str, Any]], counts: Counts, files: Sequence[InputFile]
) -> dict[str, Any]:
    """Return the one row of `summary`."""
    row: dict[str, Any] = {
        f"{entry['measure']}_{entry['kind']}" if entry["kind"] else entry["measure"]: entry["count"]
        for entry in audit
    }
    row["received_with_ratio"] = counts.get(("received_with_ratio", None), 0)
    row["files"] = len(files)
    row["files_unreadable"] = sum(file.error is not None for file in files)
    names = {column.name for column in load_columns("summary")}
    return {name: value for name, value in row.items() if name in names}


def file_rows(files: Sequence[InputFile]) -> list[dict[str, Any]]:
    """Return the rows of `files`."""
    return [
        {
            "batch": BATCH,
            "path": file.name,
            "bytes": file.size,
            "rows": file.rows if file.error is None else None,
            "status": "read" if file.error is None else "unreadable",
            "error": file.error,
        }
        for file in files
    ]


def make_table(
    name: str, run_id: str, rows: Sequence[Mapping[str, Any]] | pl.DataFrame
) -> pa.Table:
    """Return rows as an Arrow table with the schema of schemas/NAME.json."""
    if isinstance(rows, pl.DataFrame):
        schema = arrow_schema(name)
        rows = rows.with_columns(pl.lit(run_id).alias("run_id"))
        # column by column, as a copy of the whole table would be large
        oldest = pl.CompatLevel.oldest()
        columns = [
            rows[field.name].to_arrow(compat_level=oldest).cast(field.type) for field in schema
        ]
        return pa.Table.from_arrays(columns, schema=schema)
    return pa.Table.from_pylist([{"run_id": run_id, **row} for row in rows], arrow_schema(name))


def write_duckdb(path: Path, tables: Mapping[str, pa.Table], *, is_store: bool = False) -> None:
    """Write the audit tables and the macros over the Parquet into one DuckDB file.

    Raises:
        InputError: the file could not be written.
    """
    try:
        with duckdb.connect() as connection:
            connection.execute(
                f"ATTACH '{_quoted(path)}' AS run (STORAGE_VERSION '{DUCKDB_STORAGE}')"
            )
            for name, table in tables.items():
                connection.register("source_table", table)
                connection.execute(f'CREATE TABLE run."{name}" AS SELECT * FROM source_table')
                connection.unregister("source_table")
            for name in ("targets", "rejects"):
                connection.execute(f"CREATE MACRO run.{macro_over(name, is_store=is_store)}")
            connection.execute("DETACH run")
    except duckdb.Error as error:
        raise InputError(f"{path}: cannot be written: {error}") from None


def macro_over(table: str, *, is_store: bool = False) -> str:
    """Return the SQL of a table macro TABLE(run) over the Parquet files of any run or store."""
    folder = f"/batch-*/{table}" if is_store else f"/{table}"
    more = ", union_by_name = true" if is_store else ""
    return f"{table}(run) AS TABLE SELECT * FROM read_parquet(run || '{folder}/*.parquet'{more})"


def _quoted(path: Path) -> str:
    return str(path).replace("'", "''")


def run_row(
    settings: Any, versions: Any, tags: Any, seconds: Mapping[str, float]
) -> dict[str, Any]:
    """Return the one row of `runs`."""
    return {
        "batch": BATCH,
        "settings": json.dumps(settings, sort_keys=True),
        "versions": json.dumps(versions, sort_keys=True),
        "tags": json.dumps(tags, sort_keys=True),
        "seconds": list(seconds.items()),
    }
