"""Spread the rows over shards by trajectory, on disk where there are many; load one shard."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl

from vtaudit.errors import InputError

MAX_SHARDS = 64
SHARD_ROWS = 250_000
SHARD_BYTES = 128 << 20


def count_shards(rows: int, decoded_bytes: int) -> int:
    """Return how many shards a log of this size is spread over; a number of the log alone."""
    wanted = max(-(-rows // SHARD_ROWS), -(-decoded_bytes // SHARD_BYTES), 1)
    return min(wanted, MAX_SHARDS)


def shard_of(trajectory_id: pl.Series, shards: int) -> pl.Series:
    """Return the shard of each row; a trajectory is whole in one shard, null stands in 0."""
    ids = trajectory_id.unique()
    numbers = [zlib.crc32(str(key).encode()) % shards if key is not None else 0 for key in ids]
    table = pl.DataFrame({"id": ids, "shard": pl.Series(numbers, dtype=pl.Int32)})
    rows = pl.DataFrame({"id": trajectory_id})
    return rows.join(table, on="id", how="left", nulls_equal=True, maintain_order="left")["shard"]


@dataclass(slots=True)
class Spill:
    """Rows waiting in shards: in memory where there is one shard, else as Arrow files on disk.

    Frames may be added by several threads; their order does not matter.
    """

    directory: Path
    name: str
    shards: int
    _frames: list[list[pl.DataFrame]] = field(init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _written: int = 0

    def __post_init__(self) -> None:
        self._frames = [[] for _ in range(self.shards)]

    def add(self, frame: pl.DataFrame) -> None:
        """Add rows that have a trajectory_id."""
        if self.shards == 1:
            with self._lock:
                self._frames[0].append(frame)
            return
        numbered = frame.with_columns(shard_of(frame["trajectory_id"], self.shards).alias("shard"))
        with self._lock:
            self._written += 1
            place = self._written
        for part in numbered.partition_by("shard"):
            folder = self.directory / f"{self.name}-{part['shard'][0]}"
            path = folder / f"{place}.arrow"
            try:
                folder.mkdir(parents=True, exist_ok=True)
                part.drop("shard").write_ipc(path, compression="lz4")
            except (OSError, pl.exceptions.PolarsError) as error:
                raise InputError(f"{path}: cannot be written: {error}") from None

    def load(self, shard: int, without: Collection[int] = ()) -> list[pl.DataFrame]:
        """Return the frames of one shard and forget them; rows of files `without` are left out."""
        frames, self._frames[shard] = self._frames[shard], []
        folder = self.directory / f"{self.name}-{shard}"
        if folder.is_dir():
            for path in sorted(folder.iterdir()):
                with path.open("rb") as stream:  # a path may hold what a glob takes
                    frames.append(pl.read_ipc(stream))
                path.unlink()
        if without:
            bad = np.array(sorted(without))
            frames = [frame.filter(~pl.col("file").is_in(bad)) for frame in frames]
        return frames
