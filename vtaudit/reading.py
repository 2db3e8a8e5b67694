"""Decode stretches of the log's files into frames of canonical and carried columns."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.types as pat
from numpy.typing import NDArray

from vtaudit import mapping as mappings
from vtaudit.canonical import CARRIED, PRESENT, TOLD_APART, cast_frame
from vtaudit.errors import UnreadableError
from vtaudit.labels import code_dictionary, code_texts, concat_coded, decode_text
from vtaudit.plan import Plan
from vtaudit.sources import read_batches
from vtaudit.stretches import find_stretches, lengths_of

Rows = NDArray[np.int64]
# rows of a frame where a whole file is read
FRAME_ROWS = 262_144


@dataclass(frozen=True, slots=True)
class Range:
    """Rows of one file of the plan, from `start` to before `stop`."""

    place: int
    start: int
    stop: int


def read_apart(
    plan: Plan, ranges: Sequence[Range], bounds: Sequence[Rows]
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the rows of some ranges in two frames, each in their order.

    The columns are `file`, `row`, the canonical columns in the types of the log, text as Enums, and
    the carried columns.

    Args:
        plan: of the run.
        ranges: what is read.
        bounds: of each range the ends of stretches, from its first row to the one after its last;
            the first stretch, the third and so on go into the first frame.

    Raises:
        UnreadableError: a file cannot be decoded, or changed while it was read.
    """
    pairs = [_read_apart(plan, *each) for each in zip(ranges, bounds, strict=True)]
    first, second = zip(*pairs, strict=True)
    return concat_coded(first), concat_coded(second)


def has_own_discounts(rows: pl.DataFrame) -> bool:
    """Return whether a discount is neither 0 nor 1."""
    if "discount" not in rows.columns:
        return False
    return bool(rows.select(((pl.col("discount") > 0) & (pl.col("discount") < 1)).any()).item())


def find_unreadable(plan: Plan) -> dict[int, str]:
    """Return the errors of the files that cannot be decoded, by place; their footers were sound."""

    def read(place: int) -> str | None:
        try:
            for _ in _decode(plan, Range(place, 0, plan.files[place].rows or 0)):
                pass
        except UnreadableError as error:
            return str(error)
        return None

    places = [place for place, file in enumerate(plan.files) if file.error is None]
    with ThreadPoolExecutor(plan.settings.threads) as pool:
        errors = dict(zip(places, pool.map(read, places), strict=True))
    return {place: error for place, error in errors.items() if error is not None}


def note_files(plan: Plan, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows with source_file, and with what their file has where absent is not null."""
    file = rows["file"].to_numpy()
    firsts = find_stretches([file])
    places, number = np.unique(file[firsts], return_inverse=True)
    paths = [plan.files[place].name for place in places]
    names = pl.Series("source_file", paths, dtype=pl.Enum(sorted(set(paths))))
    if len(firsts) == 1:
        names = names.new_from_index(0, len(file))
    else:
        names = names[np.repeat(number, lengths_of(firsts, len(file)))]
    present = []
    for name in TOLD_APART:
        if name in plan.shape.dtypes:
            has = pl.Series([file.name in plan.shape.present[name] for file in plan.files])
            present.append(has[rows["file"]].alias(PRESENT + name))
    return rows.hstack([names, *present])


@dataclass(frozen=True, slots=True)
class Batch:
    """Some received rows, of which few are wanted.

    Attributes:
        place: of their file.
        frame: `row` and the canonical columns but those of `texts`.
        texts: text columns that are mapped as they stand, one dictionary each, no null in it.
    """

    place: int
    frame: pl.DataFrame
    texts: dict[str, pa.DictionaryArray]

    def told_apart(self, name: str) -> pl.Series:
        """Return what differs where the values of a column do, null where they are  # [N]."""
        if name not in self.texts:
            return self.frame[name]
        return pl.Series(name, self.texts[name].indices)

    def take(self, rows: NDArray[np.int64]) -> pl.DataFrame:
        """Return some rows whole, no text as Enums."""
        with _naming(self.place):
            texts = [
                mappings.read_column(column.take(pa.array(rows)), (), name)
                for name, column in self.texts.items()
            ]
        return decode_text(self.frame[rows]).hstack(texts)


def read_batchwise(plan: Plan, rows: Range, names: Sequence[str]) -> Iterator[Batch]:
    """Return some canonical columns of a range, a batch at a time.

    Raises:
        UnreadableError: as `read_apart`.
    """
    wanted = {k: v for k, v in plan.mapping.expressions.items() if k in names}
    shape = replace(plan.shape, dtypes={name: plan.shape.dtypes[name] for name in names})
    plan = replace(plan, mapping=mappings.Mapping(wanted), shape=shape, carry={})
    for table, start in _join_batches(plan, rows):
        yield _take_apart(plan, table, rows.place, start)


def _join_batches(plan: Plan, rows: Range) -> Iterator[tuple[pa.Table, int]]:
    """Yield tables of about FRAME_ROWS, and the first row of each."""
    start, waiting = rows.start, []
    for table in _decode(plan, rows):
        waiting.append(table)
        height = sum(each.num_rows for each in waiting)
        if height >= FRAME_ROWS or start + height == rows.stop:
            yield _join(waiting).combine_chunks(), start
            start, waiting = start + height, []


def read_where(plan: Plan, where: pl.Expr) -> pl.DataFrame:
    """Return the received rows of the log for which `where` holds; unreadable files have none."""

    def read(place: int) -> list[pl.DataFrame]:
        rows = Range(place, 0, plan.files[place].rows or 0)
        try:
            return [
                _frame(plan, table, place, _number(start, table)).filter(where)
                for table, start in _join_batches(plan, rows)
            ]
        except UnreadableError:
            return []

    places = [place for place, file in enumerate(plan.files) if file.error is None]
    with ThreadPoolExecutor(plan.settings.threads) as pool:
        found = [frame for frames in pool.map(read, places) for frame in frames]
    if not found and places:
        found = [_read_apart(plan, Range(places[0], 0, 0), np.zeros(2, np.int64))[0]]
    rows = concat_coded(found)
    if "valid" in rows.columns:
        rows = rows.filter(pl.col("valid").ne_missing(0))
    return note_files(plan, rows)


def _read_apart(plan: Plan, span: Range, bounds: Rows) -> tuple[pl.DataFrame, pl.DataFrame]:
    stretches = list(itertools.pairwise(bounds.tolist()))
    first, second = stretches[::2], stretches[1::2]
    table = _join([*_decode(plan, span, at_once=True)] or [_no_rows(plan, span)])
    table = _take(table, span.start, [*first, *second])
    rows = np.concatenate([np.arange(low, high) for low, high in (*first, *second)])
    frame = _frame(plan, table, span.place, rows)
    height = sum(high - low for low, high in first)
    return frame[:height], frame[height:]


def _no_rows(plan: Plan, rows: Range) -> pa.Table:
    table: pa.Table = plan.files[rows.place].schema.empty_table()
    return table


def _take(table: pa.Table, start: int, stretches: Sequence[tuple[int, int]]) -> pa.Table:
    """Return stretches of a table whose first row has the number `start`, each column as one."""
    parts = [table.slice(low - start, high - low) for low, high in stretches]
    return pa.concat_tables(parts).combine_chunks()


def _decode(plan: Plan, rows: Range, *, at_once: bool = False) -> Iterator[pa.Table]:
    """Yield the needed columns of a range as they are in its file."""
    file = plan.files[rows.place]
    needed = mappings.needed_columns(plan.mapping, file.schema)
    needed += [name for name in plan.carry if name in file.schema.names]
    needed = list(dict.fromkeys(needed))
    with _naming(rows.place):
        for batch in read_batches(
            file,
            needed,
            rows=(rows.start, rows.stop),
            coded=list(_coded_columns(plan, file.schema).values()),
            at_once=at_once,
        ):
            yield pa.Table.from_batches([batch])


@contextmanager
def _naming(place: int) -> Iterator[None]:
    """Note of which file it is that cannot be read."""
    try:
        yield
    except UnreadableError as error:
        error.place = place
        raise


def _coded_columns(plan: Plan, schema: pa.Schema) -> dict[str, str]:
    """Return the text columns that are mapped as they stand: canonical name -> column."""
    coded = {}
    for name, expression in plan.mapping.expressions.items():
        column = mappings.plain_column(expression, schema)
        if plan.shape.dtypes.get(name) != pl.String or column is None:
            continue
        if _is_text(schema.field(column).type):
            coded[name] = column
    return coded


def _is_text(found: pa.DataType) -> bool:
    return bool(pat.is_string(found) or pat.is_large_string(found))


def _join(tables: list[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables).unify_dictionaries() if len(tables) > 1 else tables[0]


def _take_apart(plan: Plan, table: pa.Table, place: int, start: int) -> Batch:
    texts = {}
    for name, column in _coded_columns(plan, plan.files[place].schema).items():
        chunks = table.column(column).chunks
        if len(chunks) == 1 and not chunks[0].dictionary.null_count:
            texts[name] = chunks[0]
    return Batch(place, _others(plan, table, place, _number(start, table), texts), texts)


def _number(start: int, table: pa.Table) -> Rows:
    return np.arange(start, start + table.num_rows)


def _others(
    plan: Plan, table: pa.Table, place: int, rows: Rows, texts: Collection[str]
) -> pl.DataFrame:
    """Return `row`, which is `rows`, and the canonical columns but `texts`."""
    coded = _coded_columns(plan, plan.files[place].schema)
    others = {k: v for k, v in plan.mapping.expressions.items() if k not in coded}
    dtypes = {k: v for k, v in plan.shape.dtypes.items() if k not in coded}
    with _naming(place):
        mapped = mappings.map_table(table, mappings.Mapping(others))
        frame = cast_frame(mapped, replace(plan.shape, dtypes=dtypes), rows)
        columns = [
            code_dictionary(table.column(column), name)
            for name, column in coded.items()
            if name not in texts
        ]
    return code_texts(frame).hstack(columns)


def _frame(plan: Plan, table: pa.Table, place: int, rows: Rows) -> pl.DataFrame:
    frame = _others(plan, table, place, rows, ())
    columns = [pl.Series("file", [place], dtype=pl.Int32).new_from_index(0, table.num_rows)]
    for name, dtype in plan.carry.items():
        if name in table.schema.names:
            with _naming(place):
                column = mappings.read_column(table.column(name), (), name).cast(dtype)
        else:
            column = pl.Series(name, [None], dtype=dtype).new_from_index(0, table.num_rows)
        columns.append(column.alias(CARRIED + name))
    carried = [CARRIED + name for name in plan.carry]
    names = ("file", "row", *plan.shape.dtypes, *carried)
    found = {column.name: column for column in (*frame, *columns)}
    # of columns: a selection by expressions would be handed to the pool of Polars
    return pl.DataFrame([found[name] for name in names])
