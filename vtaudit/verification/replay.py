"""Judge the logs of a run once more, as the run did, with the float64 reference on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vtaudit.config import Settings, settings_from_json
from vtaudit.errors import InputError, SettingsError
from vtaudit.places import is_store
from vtaudit.plan import Plan, make_plan
from vtaudit.records import InputFile
from vtaudit.shard import Shard, compute_targets, note_not_finite
from vtaudit.storage import Place, parse_places
from vtaudit.store import MANIFEST, read_manifest

NEEDED = ("run_id", "versions", "settings", "logs", "inputs", "scores", "outputs", "counts")


def open_manifest(run: Path) -> tuple[dict[str, Any], Settings]:
    """Return the manifest of a run, and its settings.

    Raises:
        InputError: no vtaudit run stands there, or its manifest lacks what this version needs.
    """
    manifest = read_manifest(run)
    if is_store(manifest):
        raise InputError(
            f"{run}: is a store, whose rows were judged batch by batch; expected a run directory "
            "(process the same LOGS without --append for one)"
        )
    lacking = [name for name in NEEDED if name not in manifest]
    if lacking:
        raise InputError(f"{run}/{MANIFEST}: no {lacking[0]} in it; the manifest was changed")
    try:
        return manifest, settings_from_json(manifest["settings"])
    except (KeyError, TypeError, AttributeError, SettingsError) as error:
        raise InputError(
            f"{run}/{MANIFEST}: settings that this version of vtaudit does not know: {error}"
        ) from None


def find_logs(manifest: dict[str, Any], logs: Sequence[str | Path]) -> list[Place]:
    """Return where the logs are: as given, else where they were."""
    return parse_places(logs or manifest["logs"])


def plan_again(manifest: dict[str, Any], settings: Settings, logs: Sequence[Place]) -> Plan:
    """Return the plan of a run for the reference on the CPU, over the very files that it read.

    Raises:
        InputError: the logs or scores are not there, or are not those that the run read.
    """
    plan = make_plan(logs, replace(settings, backend="reference", device="cpu"))
    for kind, files in (("inputs", plan.files), ("scores", plan.scores)):
        _check_files(kind, manifest[kind], files)
    errors = {place: each.get("error") for place, each in enumerate(manifest["inputs"])}
    return plan.without({place: error for place, error in errors.items() if error})


def _check_files(kind: str, listed: list[dict[str, Any]], files: Sequence[InputFile]) -> None:
    what = "logs" if kind == "inputs" else kind
    nothing = ("no file", None)
    wanted = [(entry["name"], entry["sha256"]) for entry in listed]
    there = [(file.name, file.sha256) for file in files]
    for (name, digest), (other, found) in zip_longest(wanted, there, fillvalue=nothing):
        if name != other:
            raise InputError(f"{what}: found {other}, the run read {name}; say --logs DIR")
        if digest != found:
            raise InputError(f"{what}: {name} has changed since the run read it")


def take_segments(shard: Shard, numbers: NDArray[np.int64]) -> Shard:
    """Return the shard with some of its segments only; `numbers` ascend."""
    offsets = shard.segments.offsets
    lengths = np.diff(offsets)[numbers]
    begin = np.concatenate(([0], np.cumsum(lengths)))
    places = np.repeat(offsets[numbers] - begin[:-1], lengths) + np.arange(begin[-1])
    segments = replace(shard.segments, rows=shard.segments.rows[places], offsets=begin)
    return replace(shard, segments=segments)


def compute_exactly(plan: Plan, shard: Shard) -> Shard:
    """Return the shard with the targets of its segments in float64, and what they reveal noted."""
    if not plan.settings.targets:
        return shard
    results = compute_targets(plan, shard, "float64", shard.carries)
    note_not_finite(shard, results, plan.settings.dtype)
    return replace(shard, results=results)
