"""What of a run or a store can be held against itself: fingerprints, counts, laws, audit.duckdb."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from vtaudit.config import Settings
from vtaudit.errors import VtauditError
from vtaudit.laws import Counts, Law, rejects_laws, sum_laws, targets_laws
from vtaudit.places import BATCH, STATE
from vtaudit.query import compare_tables
from vtaudit.store import MANIFEST
from vtaudit.verification.comparison import Verification, read_table

DUCKDB = "audit.duckdb"
TABLES = ("targets", "rejects")


def list_parts(run: Path, table: str) -> list[str]:
    """Return the part files of a table, of a run or of every batch of a store, within it."""
    found = [*run.glob(f"{table}/*"), *run.glob(f"{BATCH}-*/{table}/*")]
    return sorted(path.relative_to(run).as_posix() for path in found)


def check_files(run: Path, listed: dict[str, Any], found: Verification) -> None:
    """Hold every file against its fingerprint; name those that are lost and those that are strange.

    The manifest is in no list, nor is its copy in the state of a store.
    """
    there = {p.relative_to(run).as_posix() for p in run.rglob("*") if p.is_file()}
    there -= {MANIFEST, *(f"{state.name}/{MANIFEST}" for state in run.glob(f"{STATE}-*"))}
    lost, strange = sorted(set(listed) - there), sorted(there - set(listed))
    found.damaged += [f"{name}: not there, though the manifest lists it" for name in lost]
    found.damaged += [f"{name}: there, though the manifest does not list it" for name in strange]
    for name in sorted(there & set(listed)):
        with (run / name).open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        if digest != listed[name].get("sha256"):
            found.damaged.append(f"{name}: its content has changed since the run wrote it")
    found.compared.append(f"{len(listed)} files: with their fingerprints")


def check_counts(
    run: Path, manifest: dict[str, Any], settings: Settings, found: Verification
) -> None:
    """Hold audit, summary and manifest against each other and against the rows."""
    summary = read_table(run, "audit/summary.parquet", found)
    row = summary.to_dicts()[0] if summary is not None and summary.height else {}
    if row:
        _compare_named("summary", row, "the manifest", manifest["counts"], found)
    table = read_table(run, "audit/audit.parquet", found)
    if table is None:
        return
    rows = table.to_dicts()
    counts = {(each["measure"], each["kind"]): each["count"] or 0 for each in rows}
    named = {"_".join(p for p in (e["measure"], e["kind"]) if p): e["count"] for e in rows}
    if row:
        _compare_named("audit", named, "summary", row, found)
    _check_fractions(rows, counts, row, found)
    for name, one, other in _laws(run, settings, counts, found):
        if one != other:
            found.broken.append(f"{name}: {one} and {other}")
    found.compared.append(f"{len(rows)} counts: with each other and with the rows of the run")


def _compare_named(
    one: str, counts: dict[str, Any], other: str, others: dict[str, Any], found: Verification
) -> None:
    for name in counts.keys() & others.keys() - {"run_id"}:
        if counts[name] != others[name]:
            found.broken.append(f"{name}: {one} has {counts[name]}, {other} {others[name]}")


def check_run_rows(run: Path, entries: Sequence[dict[str, Any]], found: Verification) -> None:
    """Hold the rows of the table runs against the manifest, an entry each."""
    table = read_table(run, "audit/runs.parquet", found)
    if table is None:
        return
    rows = table.to_dicts() or [{}]
    if len(rows) != len(entries):
        found.broken.append(f"runs: it has {len(rows)} rows, the manifest {len(entries)}")
    for row, entry in zip(rows, entries, strict=False):
        for name in ("settings", "versions", "tags"):
            if row.get(name) != json.dumps(entry.get(name), sort_keys=True):
                found.broken.append(f"runs: {name} are not those of the manifest")


def _check_fractions(
    rows: Sequence[dict[str, Any]], counts: Counts, summary: dict[str, Any], found: Verification
) -> None:
    """Hold every fraction against its count and denominator, and that against its own count."""
    totals: dict[str, Any] = {
        measure: count for (measure, kind), count in counts.items() if kind is None
    }
    totals["rows"] = totals.get("received", 0) + totals.get("padding", 0)
    totals["received_with_ratio"] = summary.get("received_with_ratio")
    for row in rows:
        name = " ".join(part for part in ("audit", row["measure"], row["kind"]) if part)
        count, over = row["count"], row["denominator"]
        if row["fraction"] != (count / over if count is not None and over else None):
            found.broken.append(f"{name}: fraction {row['fraction']} is not {count} / {over}")
        total = totals.get(row["denominator_measure"] or "")
        if total is not None and over != total:
            label = row["denominator_measure"]
            found.broken.append(f"{name}: denominator {over} is not {label}, {total}")


def _laws(run: Path, settings: Settings, counts: Counts, found: Verification) -> Iterator[Law]:
    """Yield the laws that can be judged; note those that cannot."""
    yield from sum_laws(counts)
    parts = {table: [run / name for name in list_parts(run, table)] for table in TABLES}
    laws = {"rejects": rejects_laws(parts["rejects"], counts)}
    if settings.targets:
        laws["targets"] = targets_laws(parts["targets"], counts, settings.thresholds())
    for table, each in laws.items():
        if any(f"{table}/" in line for line in found.damaged) or not parts[table]:
            found.skipped.append(f"counts against the rows of {table}: a part of it is damaged")
            continue
        try:
            yield from each
        except (OSError, pa.ArrowException) as error:
            found.damaged.append(f"{table}: cannot be read: {str(error).splitlines()[0]}")


def check_duckdb(run: Path, listed: dict[str, Any], found: Verification) -> None:
    """Hold the tables of audit.duckdb against the Parquet files."""
    names = [Path(name).stem for name in listed if name.startswith("audit/")]
    damaged = {line.partition(":")[0] for line in found.damaged}
    sound = [name for name in names if f"audit/{name}.parquet" not in damaged]
    if DUCKDB in damaged or not (run / DUCKDB).is_file():
        found.skipped.append(f"tables of {DUCKDB}: the file is damaged")
        return
    try:
        found.broken += compare_tables(run, sound)
    except VtauditError as error:
        found.damaged.append(str(error))
        return
    found.compared.append(f"{len(sound)} tables of {DUCKDB}: with the Parquet files")
