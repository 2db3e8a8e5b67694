"""Hold a run against its fingerprints, its laws, and the float64 reference on the logs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from vtaudit.config import settings_from_json
from vtaudit.errors import LawError
from vtaudit.laws import check_laws
from vtaudit.recompute import Verification, recompute
from vtaudit.store import MANIFEST, read_manifest


def verify(
    run: Path, logs: Sequence[Path] = (), *, sample: int | None = None, seed: int = 0
) -> Verification:
    """Return what of a run holds.

    Args:
        run: the run directory.
        logs: where its logs are now; by default where they were.
        sample: how many segments to recompute; all by default.
        seed: of the sample.

    Raises:
        InputError: no vtaudit run stands there, or the logs given are not those of the run.
    """
    manifest = read_manifest(run)
    found = Verification()
    _check_files(run, manifest, found)
    if found.damaged:
        found.skipped.append("laws and targets: the run's files are damaged")
        return found
    _check_counts(run, manifest, found)
    places = [Path(log) for log in logs] or [Path(log) for log in manifest["logs"]]
    lost = [place for place in places if not place.exists()]
    if lost and not logs:
        found.skipped.append(f"targets: the logs are no longer at {lost[0]}; say --logs DIR")
    else:
        recompute(run, manifest, places, _draw(run, sample, seed), found)
    return found


def _draw(run: Path, sample: int | None, seed: int) -> NDArray[np.int64] | None:
    """Return the numbers of the segments to recompute, None for all."""
    if sample is None:
        return None
    rows = pl.scan_parquet(sorted((run / "targets").iterdir()), glob=False)
    ends = rows.select((pl.col("boundary") != "interior").sum()).collect().item()
    generator = np.random.default_rng(seed)
    return np.sort(generator.choice(ends, min(sample, ends), replace=False))


def _check_files(run: Path, manifest: dict[str, Any], found: Verification) -> None:
    listed = manifest["outputs"]
    there = {p.relative_to(run).as_posix() for p in run.rglob("*") if p.is_file()} - {MANIFEST}
    lost, strange = sorted(set(listed) - there), sorted(there - set(listed))
    found.damaged += [f"{name}: not there, though the manifest lists it" for name in lost]
    found.damaged += [f"{name}: there, though the manifest does not list it" for name in strange]
    for name in sorted(there & set(listed)):
        with (run / name).open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        if digest != listed[name]["sha256"]:
            found.damaged.append(f"{name}: its content has changed since the run wrote it")
    found.compared.append(f"{len(listed)} files with their fingerprints")


def _check_counts(run: Path, manifest: dict[str, Any], found: Verification) -> None:
    """Hold audit, summary and manifest against each other and against the rows."""
    table = pl.read_parquet(run / "audit" / "audit.parquet", glob=False).to_dicts()
    summary = pl.read_parquet(run / "audit" / "summary.parquet", glob=False).to_dicts()[0]
    counts = {(row["measure"], row["kind"]): row["count"] or 0 for row in table}
    try:
        settings = settings_from_json(manifest["settings"])
        check_laws(run, run.name, counts, settings.thresholds(), targets=settings.targets)
    except LawError as error:
        found.broken.append(str(error))
    for row in table:
        name = "_".join(part for part in (row["measure"], row["kind"]) if part)
        known = row["count"] is not None and bool(row["denominator"])
        if row["fraction"] != (row["count"] / row["denominator"] if known else None):
            found.broken.append(f"audit {name}: fraction is not count / denominator")
        if name in summary and summary[name] != row["count"]:
            found.broken.append(f"{name}: audit has {row['count']}, summary {summary[name]}")
    for name, count in manifest["counts"].items():
        if summary[name] != count:
            found.broken.append(f"{name}: summary has {summary[name]}, the manifest {count}")
    found.compared.append(f"{len(table)} counts with the rows of targets and rejects")
