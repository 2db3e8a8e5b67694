"""Hold a run against its fingerprints, its laws, and the float64 reference on the logs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from vtaudit.config import Settings
from vtaudit.errors import VtauditError
from vtaudit.laws import Counts, Law, rejects_laws, sum_laws, targets_laws
from vtaudit.plan import versions
from vtaudit.query import compare_tables
from vtaudit.storage import Place, parse_place, parse_run, tell_lost
from vtaudit.store import MANIFEST
from vtaudit.verification.comparison import Verification, read_table
from vtaudit.verification.recompute import recompute
from vtaudit.verification.replay import find_logs, open_manifest, plan_again

DUCKDB = "audit.duckdb"


def verify(
    run: str | Path,
    logs: Sequence[str | Path] = (),
    *,
    scores: str | Path | None = None,
    sample: int | None = None,
    seed: int = 0,
) -> Verification:
    """Return what of a run holds; what is damaged does not keep the rest from being checked.

    Args:
        run: the run directory.
        logs: where its logs are now; by default where they were.
        scores: where its scores are now, likewise.
        sample: how many segments to recompute; all by default.
        seed: of the sample.

    Raises:
        InputError: no vtaudit run stands there.
    """
    run = parse_run(run)
    manifest, settings = open_manifest(run)
    settings = settings if scores is None else replace(settings, scores=str(scores))
    found = Verification()
    writer, ours = (each.get("vtaudit") for each in (manifest["versions"], versions()))
    if writer != ours:
        found.skipped.append(f"with vtaudit {writer}, which wrote the run; this is {ours}")
    _check_files(run, manifest["outputs"], found)
    _check_counts(run, manifest, settings, found)
    _check_run_row(run, manifest, found)
    _check_duckdb(run, manifest["outputs"], found)
    places = find_logs(manifest, logs)
    lost = tell_lost([*places, *_given(settings.scores)])
    if lost is not None and not logs:
        found.skipped.append(f"rows against the logs: {lost}; say --logs DIR")
        return found
    try:
        plan = plan_again(manifest, settings, places)
    except VtauditError as error:
        found.damaged.append(str(error))
        found.skipped.append("rows against the logs: the logs are not those of the run")
        return found
    chosen = None if sample is None else _draw(run, sample, seed, found)
    recompute(run, manifest["run_id"], plan, chosen, found)
    return found


def _given(path: str | None) -> list[Place]:
    return [] if path is None else [parse_place(path)]


def _draw(run: Path, sample: int, seed: int, found: Verification) -> NDArray[np.int64]:
    """Return the numbers of the segments to recompute, ascending."""
    ends = 0
    for name in _parts(run, "targets"):
        rows = read_table(run, name, found)
        if rows is not None and "boundary" in rows.columns:
            ends += int((rows["boundary"] != "interior").sum())
    generator = np.random.default_rng(seed)
    return np.sort(generator.choice(ends, min(sample, ends), replace=False))


def _parts(run: Path, table: str) -> list[str]:
    folder = run / table
    return sorted(f"{table}/{path.name}" for path in folder.iterdir()) if folder.is_dir() else []


def _check_files(run: Path, listed: dict[str, Any], found: Verification) -> None:
    there = {p.relative_to(run).as_posix() for p in run.rglob("*") if p.is_file()} - {MANIFEST}
    lost, strange = sorted(set(listed) - there), sorted(there - set(listed))
    found.damaged += [f"{name}: not there, though the manifest lists it" for name in lost]
    found.damaged += [f"{name}: there, though the manifest does not list it" for name in strange]
    for name in sorted(there & set(listed)):
        with (run / name).open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        if digest != listed[name].get("sha256"):
            found.damaged.append(f"{name}: its content has changed since the run wrote it")
    found.compared.append(f"{len(listed)} files: with their fingerprints")


def _check_counts(
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


def _check_run_row(run: Path, manifest: dict[str, Any], found: Verification) -> None:
    """Hold the row of the table runs against the manifest."""
    table = read_table(run, "audit/runs.parquet", found)
    if table is None:
        return
    row = table.to_dicts()[0] if table.height else {}
    for name in ("settings", "versions", "tags"):
        if row.get(name) != json.dumps(manifest.get(name), sort_keys=True):
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
    laws = {"rejects": rejects_laws(run, counts)}
    if settings.targets:
        laws["targets"] = targets_laws(run, counts, settings.thresholds())
    for table, each in laws.items():
        if any(line.startswith(f"{table}/") for line in found.damaged) or not _parts(run, table):
            found.skipped.append(f"counts against the rows of {table}: a part of it is damaged")
            continue
        try:
            yield from each
        except (OSError, pl.exceptions.PolarsError) as error:
            found.damaged.append(f"{table}: cannot be read: {str(error).splitlines()[0]}")


def _check_duckdb(run: Path, listed: dict[str, Any], found: Verification) -> None:
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
