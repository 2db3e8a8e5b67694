"""Shards that are done, kept in the workspace, so that a run that ended early can go on.

A shard counts as done once its file stands under its final name; its parts were flushed before.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vtaudit.errors import InputError, SettingsError
from vtaudit.outputs import ShardResult
from vtaudit.pieces import junction_from_json
from vtaudit.store import PROGRESS, SPILL, clear, replace_text
from vtaudit.tallies import tally_from_json

RUN_ID = "run_id"
UNREADABLE = "unreadable"
PARTS = ("targets", "rejects")


def prepare_workspace(work: Path, run_id: str, *, resume: bool) -> None:
    """Empty the workspace, apart from what an earlier run of this run_id has done.

    Raises:
        SettingsError: the earlier run had other settings, inputs or version.
        InputError: the disk failed.
    """
    marker = work / PROGRESS / RUN_ID
    if resume and marker.is_file():
        found = marker.read_text(encoding="utf-8")
        if found != run_id:
            raise SettingsError(
                f"--resume: the unfinished run is {found}, this one would be {run_id}: settings, "
                "inputs or version differ; give the same ones, or drop --resume to start anew"
            )
        clear(work, but=(PROGRESS, SPILL, *PARTS))
    else:
        clear(work)
        replace_text(marker, run_id)


def load_unreadable(work: Path) -> dict[int, str]:
    """Return the errors of files that turned out unreadable, by their place in the plan."""
    path = work / PROGRESS / UNREADABLE
    if not path.is_file():
        return {}
    return {int(place): error for place, error in _read_json(path).items()}


def start_anew(work: Path, run_id: str, unreadable: dict[int, str]) -> None:
    """Empty the workspace of a run some of whose files turned out unreadable.

    Raises:
        InputError: the disk failed.
    """
    clear(work)
    replace_text(work / PROGRESS / UNREADABLE, json.dumps(unreadable))
    replace_text(work / PROGRESS / RUN_ID, run_id)


def save_shard(work: Path, number: int, result: ShardResult) -> None:
    """Note that a shard is done.

    Raises:
        InputError: the disk failed.
    """
    body = {
        "counts": result.counts.as_json(),
        "surplus": result.surplus,
        "unscored": result.unscored,
        "unused": result.unused,
        "has_discounts": result.has_discounts,
        "junction": result.junction and result.junction.as_json(),
    }
    replace_text(_path(work, number), json.dumps(body))


def load_shard(work: Path, number: int) -> ShardResult | None:
    """Return what a shard that is done left, None where it is not done."""
    path = _path(work, number)
    if not path.is_file():
        return None
    body = _read_json(path)
    return ShardResult(
        counts=tally_from_json(body["counts"]),
        surplus=body["surplus"],
        unscored=tuple((trajectory, step) for trajectory, step in body["unscored"]),
        unused=tuple((trajectory, step) for trajectory, step in body["unused"]),
        has_discounts=body["has_discounts"],
        junction=junction_from_json(body["junction"]),
    )


def _path(work: Path, number: int) -> Path:
    return work / PROGRESS / f"shard-{number:05d}.json"


def _read_json(path: Path) -> dict[str, Any]:
    try:
        body: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {error}; start anew without --resume") from None
    return body
