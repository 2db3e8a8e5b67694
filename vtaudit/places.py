"""Where the files of a run or a store stand, by its manifest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

STORE_FORMAT = "vtaudit store v1"
# what a store holds of each batch, and as of the last
BATCH = "batch"
STATE = "state"


def is_store(manifest: dict[str, Any]) -> bool:
    """Return whether a manifest is that of a store, which --append made."""
    return bool(manifest["format"] == STORE_FORMAT)


def list_places(run: Path, manifest: dict[str, Any]) -> tuple[list[Path], Path]:
    """Return where the parts of targets and rejects stand, and where the audit does.

    A run has both in one place; a store has a place for each batch, and one for what is as of the
    last.
    """
    if not is_store(manifest):
        return [run], run
    numbers = [entry["batch"] for entry in manifest["batches"]]
    return [run / numbered(BATCH, number) for number in numbers], run / numbered(STATE, numbers[-1])


def numbered(name: str, batch: int) -> str:
    """Return the name of a batch's directory in a store."""
    return f"{name}-{batch:05d}"
