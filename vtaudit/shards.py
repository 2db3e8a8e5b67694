"""Rows that are brought together by trajectory: spread over buckets, on disk if there are many."""

from __future__ import annotations

import itertools
import threading
import zlib
from collections.abc import Collection
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.ipc as ipc
from numpy.typing import NDArray

from vtaudit.canonical import CARRIED
from vtaudit.errors import InputError
from vtaudit.labels import code_dictionary, concat_coded, number_values

MAX_BUCKETS = 4_096
SHARD_ROWS = 262_144
SHARD_BYTES = 128 << 20
# batches are small: to decompress their columns in several threads takes twice the time
ALONE = ipc.IpcReadOptions(use_threads=False)
CODED = pa.dictionary(pa.int32(), pa.large_string())


def count_buckets(rows: int, decoded_bytes: int) -> int:
    """Return how many buckets rows of this size are spread over; a number of the log alone."""
    wanted = max(-(-rows // SHARD_ROWS), -(-decoded_bytes // SHARD_BYTES), 1)
    return min(wanted, MAX_BUCKETS)


def bucket_of(trajectory_id: pl.Series, buckets: int) -> NDArray[np.int32]:
    """Return the bucket of each row; a trajectory is whole in one, null stands in 0  # [N]."""
    codes, texts = number_values(trajectory_id)
    used = np.flatnonzero(np.bincount(codes, minlength=len(texts))[1:]) + 1
    bucket = np.zeros(len(texts), np.int32)
    bucket[used] = [zlib.crc32(text.encode()) % buckets for text in texts[used].to_list()]
    return bucket[codes]


@dataclass(slots=True)
class Spill:
    """Rows waiting in buckets: in memory where there is one bucket, else as Arrow files.

    Each part is one file, with a batch for each bucket. Parts may be added by several threads, and
    one that is there already is replaced. They need not be compressed where few rows wait.
    """

    folder: Path
    buckets: int
    is_on_disk: bool
    is_compressed: bool = True
    _parts: dict[int, pl.DataFrame] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, part: int, rows: pl.DataFrame) -> list[Path]:
        """Add rows that have a trajectory_id; return the files, which are not flushed.

        Raises:
            InputError: the disk failed.
        """
        if not self.is_on_disk:
            with self._lock:
                self._parts[part] = rows
            return []
        bucket = bucket_of(rows["trajectory_id"], self.buckets)
        rows = _spell_out(rows, self.buckets)
        order = np.argsort(bucket, kind="stable")
        bounds = np.searchsorted(bucket[order], np.arange(self.buckets + 1))
        table = rows[order].to_arrow(compat_level=pl.CompatLevel.oldest()).combine_chunks()
        table = table.cast(pa.schema(_plainly(field) for field in table.schema))
        whole = (table.to_batches() or [pa.RecordBatch.from_pylist([], schema=table.schema)])[0]
        path = self._path(part)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            codec = "lz4" if self.is_compressed else None
            options = ipc.IpcWriteOptions(compression=codec, use_threads=False)
            with ipc.new_file(path, table.schema, options=options) as writer:
                for start, stop in itertools.pairwise(bounds):
                    writer.write_batch(whole.slice(start, stop - start))
        except (OSError, pa.ArrowException) as error:
            raise InputError(f"{path}: cannot be written: {error}") from None
        return [path]

    def load(self, bucket: int) -> pl.DataFrame:
        """Return the rows of one bucket, in the order of the parts.

        Raises:
            InputError: the disk failed.
        """
        if not self.is_on_disk:
            return concat_coded(
                [rows for _, rows in sorted(self._parts.items(), key=itemgetter(0))]
            )
        table, coded = self._load_table(bucket)
        return pl.DataFrame(
            [
                code_dictionary(column, name) if name in coded else pl.Series(name, column)
                for name, column in zip(table.column_names, table.columns, strict=True)
            ]
        )

    def _load_table(self, bucket: int) -> tuple[pa.Table, set[str]]:
        """Return one bucket of all parts, and the names of the columns that were Enums."""
        batches = [_load(path, bucket) for path in sorted(self.folder.iterdir())]
        columns = [column for batch in batches for column in batch.schema]
        coded = {column.name for column in columns if pa.types.is_dictionary(column.type)}
        spelled = {column.name for column in columns if pa.types.is_large_string(column.type)}
        table = pa.concat_tables(_even_out(batch, coded & spelled) for batch in batches)
        own = {name for name in spelled | coded if not name.startswith(CARRIED)}
        return table.unify_dictionaries().combine_chunks(), own

    def _path(self, part: int) -> Path:
        return self.folder / f"{part:05d}.arrow"


def _plainly(field: pa.Field) -> pa.Field:
    """Return a field with a type that is the same in every part, however many words there are."""
    is_coded = pa.types.is_dictionary(field.type)
    return pa.field(field.name, CODED if is_coded else field.type)


def _spell_out(rows: pl.DataFrame, buckets: int) -> pl.DataFrame:
    """Return the rows with those Enums as text whose words, read again with each of the buckets,
    are more than the rows."""
    many = [
        name
        for name, dtype in rows.schema.items()
        if isinstance(dtype, pl.Enum) and len(dtype.categories) * buckets > rows.height
    ]
    return rows.with_columns(pl.col(many).cast(pl.String)) if many else rows


def _even_out(batch: pa.RecordBatch, coded: Collection[str]) -> pa.Table:
    """Return a batch whose `coded` columns are dictionaries, as they are in some other part."""
    table = pa.Table.from_batches([batch])
    for place, column in enumerate(batch.schema):
        if column.name in coded and not pa.types.is_dictionary(column.type):
            codes = table.column(place).dictionary_encode()
            table = table.set_column(place, column.name, codes)
    return table


def _load(path: Path, bucket: int) -> pa.RecordBatch:
    """Return one bucket of one part."""
    try:
        with pa.OSFile(str(path)) as source, ipc.open_file(source, options=ALONE) as reader:
            return reader.get_batch(bucket)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path}: cannot be read: {error}") from None
