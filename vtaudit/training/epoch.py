"""One pass over the targets of a run: rows or whole segments, in file order or shuffled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from vtaudit.errors import InputError, SettingsError
from vtaudit.store import read_manifest

UNITS = ("rows", "segments")
SEGMENT_COLUMNS = ("trajectory_id", "step", "boundary")
READ_ROWS = 8_192
# a run that fits into the buffer is shuffled exactly
BUFFER_ROWS = 262_144
BUFFER_BYTES = 1 << 30
Piece = tuple[pa.Table, NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class Targets:
    """The parts of targets of a run in order, and their schema."""

    parts: tuple[Path, ...]
    schema: pa.Schema


@dataclass(frozen=True, slots=True)
class Order:
    """How an epoch goes through the rows.

    Raises:
        SettingsError: no such unit, or a batch without rows.
    """

    batch_size: int
    unit: str
    shuffle: bool
    seed: int

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise SettingsError(f"unit: found {self.unit!r}, expected one of {', '.join(UNITS)}")
        for name, least in (("batch_size", 1), ("seed", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise SettingsError(
                    f"{name}: found {value!r}, expected a whole number, {least} or above"
                )


def open_targets(run: Path) -> Targets:
    """Return the parts that the manifest of a run or a store lists.

    Raises:
        InputError: no vtaudit run stands there, it has no targets, or a part cannot be read.
    """
    manifest = read_manifest(run)
    if not manifest["settings"]["targets"]:
        raise InputError(f"{run}: was made with --no-targets; process the logs without it")
    names = sorted(name for name in manifest["outputs"] if "targets" in Path(name).parts)
    parts = tuple(run / name for name in names)
    schemas = [_open(part).schema_arrow for part in parts]
    for part, schema in zip(parts, schemas, strict=True):
        if schema != schemas[0]:
            raise InputError(
                f"{part}: its columns are not those of the first batch; name the log's columns "
                "with --carry instead of all, or process the whole log without --append"
            )
    return Targets(parts, schemas[0])


def draw_batches(targets: Targets, columns: Sequence[str], order: Order) -> Iterator[Piece]:
    """Yield every row once: the rows of each batch, and the lengths of its rows or segments.

    A batch holds as many whole units as fit into batch_size rows, and at least one. Shuffled, the
    row groups (for segments, the parts) are read in random order into a buffer; when it is full,
    its units are permuted and half of them are given out.

    Raises:
        InputError: a part cannot be read.
    """
    rng = np.random.default_rng(order.seed)
    capacity = max(BUFFER_ROWS, 2 * order.batch_size)
    pool = _Pool(pa.table([], pa.schema([])), np.zeros(0, np.int64))
    for table, lengths in _read_pieces(targets, columns, order, rng):
        pool.add(table, lengths)
        if not order.shuffle:
            yield from pool.take(order.batch_size)
        elif pool.table.num_rows >= capacity or pool.table.nbytes >= BUFFER_BYTES:
            pool.permute(rng)
            yield from pool.take(order.batch_size, keep=pool.table.num_rows // 2)
    if order.shuffle:
        pool.permute(rng)
    yield from pool.take(order.batch_size, is_last=True)


@dataclass(slots=True)
class _Pool:
    """Rows that wait for their batch, and the lengths of the units that they make up."""

    table: pa.Table
    lengths: NDArray[np.int64]  # [S]

    def add(self, table: pa.Table, lengths: NDArray[np.int64]) -> None:
        self.table = pa.concat_tables([self.table, table]) if len(self.lengths) else table
        self.lengths = np.concatenate([self.lengths, lengths])

    def permute(self, rng: np.random.Generator) -> None:
        order = rng.permutation(len(self.lengths))
        starts = np.cumsum(self.lengths) - self.lengths
        lengths = self.lengths[order]
        shift = starts[order] - (np.cumsum(lengths) - lengths)
        rows = np.arange(self.table.num_rows) + np.repeat(shift, lengths)
        self.table, self.lengths = self.table.take(pa.array(rows)), lengths

    def take(self, batch_size: int, *, keep: int = 0, is_last: bool = False) -> Iterator[Piece]:
        """Yield batches; leave about `keep` rows, and the batch that may not be full yet."""
        ends = np.cumsum(self.lengths)
        units, rows = 0, 0
        while units < len(ends):
            fitting = int(np.searchsorted(ends, rows + batch_size, side="right"))
            stop = max(fitting, units + 1)
            is_enough = units > 0 and ends[stop - 1] > self.table.num_rows - keep
            if not is_last and (stop == len(ends) or is_enough):
                break
            length = int(ends[stop - 1]) - rows
            yield self.table.slice(rows, length), self.lengths[units:stop]
            units, rows = stop, rows + length
        self.table, self.lengths = self.table.slice(rows), self.lengths[units:]


def _read_pieces(
    targets: Targets, columns: Sequence[str], order: Order, rng: np.random.Generator
) -> Iterator[Piece]:
    is_segments = order.unit == "segments"
    names = list(dict.fromkeys([*columns, *(SEGMENT_COLUMNS if is_segments else ())]))
    blocks: list[tuple[Path, list[int] | None]] = [(part, None) for part in targets.parts]
    if order.shuffle and not is_segments:
        # a segment may reach over row groups, a row cannot
        counts = [(part, _open(part).num_row_groups) for part in targets.parts]
        blocks = [(part, [group]) for part, count in counts for group in range(count)]
    if order.shuffle:
        blocks = [blocks[place] for place in rng.permutation(len(blocks))]
    for part, groups in blocks:
        tables = _read_tables(part, groups, names)
        if is_segments:
            yield from _cut_segments(tables)
        else:
            yield from ((table, np.ones(table.num_rows, np.int64)) for table in tables)


def _cut_segments(tables: Iterable[pa.Table]) -> Iterator[Piece]:
    """Yield whole segments of the rows of one part; a trajectory is whole in one part."""
    waiting: pa.Table | None = None
    for table in tables:
        rows = table if waiting is None else pa.concat_tables([waiting, table])
        starts = _segment_starts(rows)
        if len(starts) > 1:
            yield rows.slice(0, starts[-1]), np.diff(starts)
        waiting = rows.slice(starts[-1])
    if waiting is not None:
        yield waiting, np.array([waiting.num_rows])


def _segment_starts(rows: pa.Table) -> NDArray[np.int64]:
    """Return where a segment begins: after a boundary, in a new trajectory, behind a lost row."""
    trajectory, step, boundary = (rows[name].combine_chunks() for name in SEGMENT_COLUMNS)
    before = slice(None, -1)
    is_new = pc.not_equal(trajectory[1:], trajectory[before]).to_numpy(zero_copy_only=False)
    is_new = is_new | (np.diff(step.to_numpy()) != 1)
    is_new |= pc.not_equal(boundary[before], "interior").to_numpy(zero_copy_only=False)
    return np.append(0, np.flatnonzero(is_new) + 1)


def _read_tables(part: Path, groups: list[int] | None, names: list[str]) -> Iterator[pa.Table]:
    file = _open(part)
    try:
        for batch in file.iter_batches(READ_ROWS, row_groups=groups, columns=names):
            if batch.num_rows:
                yield pa.Table.from_batches([batch])
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{part}: cannot be read: {error}") from None


def _open(part: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(part, page_checksum_verification=True)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{part}: cannot be read: {error}") from None
