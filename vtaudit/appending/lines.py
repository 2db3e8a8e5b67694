"""The ledger of a store: what later batches need to know of rows that were judged.

A line is about one row, or about one window (`is_window`). The lines are spread over a fixed number
of buckets by trajectory, as the rows of a batch are, and one bucket at a time is in memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq

from vtaudit.canonical import LINEAGE, PRESENT, LogShape
from vtaudit.errors import InputError
from vtaudit.labels import code_text, decode_text
from vtaudit.store import write_table

BUCKETS = 64
KEY = ["trajectory_id", "step"]
WINDOW = ["trajectory_id", "unroll_id"]
# of every line, apart from trajectory_id, whose type is the log's
LINE: dict[str, pl.DataType] = {
    "step": pl.Int64(),  # of a window: the greatest received
    "unroll_id": pl.String(),
    **dict.fromkeys(LINEAGE, pl.String()),
    "is_window": pl.Boolean(),
    "is_kept": pl.Boolean(),  # its later copies are duplicates, or conflicts
    "is_head": pl.Boolean(),  # it begins a segment, so delta_sum and trace_length are there
    "is_torn": pl.Boolean(),  # its key is in conflict
    "gives": pl.Boolean(),  # the first of its key and lineage whose value may be used
    "took_logged": pl.Boolean(),  # an edge or gap that took a logged bootstrap
    "value": pl.Float64(),
    "delta_sum": pl.Float64(),
    "trace_length": pl.Float64(),
    "low": pl.UInt64(),  # of the hash of the payload
    "high": pl.UInt64(),
    "policy_version": pl.Int64(),
    "batch": pl.Int32(),
    "file": pl.Int32(),
    "row": pl.Int64(),
}


@dataclass(frozen=True, slots=True)
class Forget:
    """Which lines to drop: of batches before `batch`, and of versions below `version`."""

    batch: int = 0
    version: int | None = None

    def drop(self, lines: pl.DataFrame) -> pl.DataFrame:
        """Return the lines that stay."""
        is_old = pl.col("batch") < self.batch
        if self.version is not None:
            is_old |= (pl.col("policy_version") < self.version).fill_null(False)
        return lines.filter(~is_old)


def line_schema(shape: LogShape) -> dict[str, pl.DataType]:
    """Return the columns of a line and their types."""
    return {"trajectory_id": shape.dtypes["trajectory_id"], **LINE}


def load_lines(state: Path | None, bucket: int, shape: LogShape) -> pl.DataFrame:
    """Return the lines of one bucket.

    Raises:
        InputError: the store is damaged.
    """
    empty = pl.DataFrame(schema=line_schema(shape))
    path = None if state is None else state / bucket_name("ledger", bucket)
    if path is None or not path.exists():
        return empty
    return read_state(path).cast(empty.schema).select(empty.columns)


def load_pending(state: Path | None, bucket: int, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the pending rows of one bucket, with the columns and types of `rows`.

    A column that was new since is null, as in a file that lacks it.

    Raises:
        InputError: the store is damaged.
    """
    path = None if state is None else state / bucket_name("pending", bucket)
    if path is None or not path.exists():
        return rows.clear()
    found = read_state(path)
    columns: list[pl.Expr] = []
    for name, dtype in rows.schema.items():
        absent: Any = {"valid": 1, "scored": True}.get(name)
        absent = False if name.startswith(PRESENT) else absent
        column = pl.col(name) if name in found.columns else pl.lit(absent)
        kind = pl.String() if isinstance(dtype, pl.Enum) else dtype
        columns.append(column.cast(kind).alias(name))
    rows_found = found.select(columns)
    return rows_found.with_columns(
        code_text(rows_found[name])
        for name, dtype in rows.schema.items()
        if isinstance(dtype, pl.Enum)
    )


def read_state(path: Path) -> pl.DataFrame:
    """Return one file of the store's state, page checksums verified.

    Raises:
        InputError: it is damaged or missing.
    """
    try:
        table = pq.ParquetFile(path, page_checksum_verification=True).read()
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: the store is damaged: {error}") from None
    return pl.DataFrame(pl.from_arrow(table))


def save_state(state: Path, table: str, bucket: int, frame: pl.DataFrame) -> None:
    """Write the lines or the pending rows of one bucket, if there are any.

    Raises:
        InputError: the disk failed.
    """
    if frame.height:
        arrow = decode_text(frame).to_arrow(compat_level=pl.CompatLevel.oldest())
        write_table(arrow, state / bucket_name(table, bucket))


def bucket_name(table: str, bucket: int) -> str:
    """Return where a bucket of a table stands within the state."""
    return f"{table}/bucket-{bucket:02d}.parquet"
