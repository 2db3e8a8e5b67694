"""Hold a run against its fingerprints, its laws, and the float64 reference on the logs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vtaudit.errors import VtauditError
from vtaudit.places import is_store
from vtaudit.plan import versions
from vtaudit.storage import Place, parse_place, parse_run, tell_lost
from vtaudit.store import read_manifest
from vtaudit.verification.checks import (
    check_counts,
    check_duckdb,
    check_files,
    check_run_rows,
    list_parts,
)
from vtaudit.verification.comparison import Verification, read_table
from vtaudit.verification.recompute import recompute
from vtaudit.verification.replay import find_logs, open_manifest, plan_again
from vtaudit.verification.stores import verify_store


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
    if is_store(read_manifest(run)):
        return verify_store(run, [parse_run(str(log)) for log in logs], scores)
    manifest, settings = open_manifest(run)
    settings = settings if scores is None else replace(settings, scores=str(scores))
    found = Verification()
    writer, ours = (each.get("vtaudit") for each in (manifest["versions"], versions()))
    if writer != ours:
        found.skipped.append(f"with vtaudit {writer}, which wrote the run; this is {ours}")
    check_files(run, manifest["outputs"], found)
    check_counts(run, manifest, settings, found)
    check_run_rows(run, [manifest], found)
    check_duckdb(run, manifest["outputs"], found)
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
    for name in list_parts(run, "targets"):
        rows = read_table(run, name, found)
        if rows is not None and "boundary" in rows.columns:
            ends += int((rows["boundary"] != "interior").sum())
    generator = np.random.default_rng(seed)
    return np.sort(generator.choice(ends, min(sample, ends), replace=False))
