"""How many rows are held at once, and how many threads fit in the memory that a run may use."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from vtaudit import shards
from vtaudit.config import Settings
from vtaudit.errors import SettingsError
from vtaudit.ranges import parse_size
from vtaudit.records import InputFile

# measured: the interpreter with its packages, the survey, and what allocators keep
BASE_BYTES = 420 << 20
# measured: a row's decoded bytes are held about so many times, and so many bytes beside
COPIES_OF_A_ROW = 3.0
BYTES_BESIDE_A_ROW = 300.0
# a limit may be passed by so much
SLACK = 1.25


def bytes_per_row(files: Sequence[InputFile], columns: Sequence[Collection[str]]) -> float:
    """Return the greatest decoded size of a row over the files, of the columns that each needs."""
    sizes = [
        sum(size for name, size in file.column_bytes if name in needed)
        for file, needed in zip(files, columns, strict=True)
    ]
    return max(sizes, default=0.0)


def rows_at_once(row_bytes: float) -> int:
    """Return how many rows a unit of the log holds; a number of the log alone."""
    return max(min(shards.SHARD_ROWS, int(shards.SHARD_BYTES / max(row_bytes, 1.0))), 1)


def limit_threads(settings: Settings, row_bytes: float) -> Settings:
    """Return the settings with as many of their threads as the memory limit has room for.

    Raises:
        SettingsError: there is no room for one.
    """
    if settings.memory_limit is None or settings.threads is None:
        return settings
    limit = parse_size(settings.memory_limit)
    unit = rows_at_once(row_bytes) * (COPIES_OF_A_ROW * row_bytes + BYTES_BESIDE_A_ROW)
    if BASE_BYTES + unit > SLACK * limit:
        need = int((BASE_BYTES + unit) / SLACK) >> 20
        raise SettingsError(
            f"memory_limit: found {settings.memory_limit}, expected {need + 1}MiB or more for rows "
            "of this log; give more, or leave wide columns out with --map COLUMN=lit(null)"
        )
    room = max(int((limit - BASE_BYTES) // unit), 1)
    return replace(settings, threads=min(settings.threads, room))
