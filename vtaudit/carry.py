"""Which log columns are carried into the targets, and the one type each has in all files."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from vtaudit.errors import SchemaError, SettingsError, name_choices
from vtaudit.mapping import read_column
from vtaudit.records import InputFile
from vtaudit.schemas import load_columns

ALL = "all"
# integers of this many bytes are exact as float64
EXACT_INTEGERS = (pl.Int8, pl.Int16, pl.Int32, pl.UInt8, pl.UInt16, pl.UInt32)


def carry_types(
    carry: Sequence[str], files: Sequence[InputFile]
) -> tuple[dict[str, pl.DataType], list[str]]:
    """Return the type of each carried column, and a note on each that `all` leaves out.

    Raises:
        SchemaError: no file has a column that was named, or its types cannot be joined.
        SettingsError: the targets have a column of the name already.
    """
    names = list(dict.fromkeys(name for file in files for name in file.schema.names))
    taken = {column.name for column in load_columns("targets")}
    types: dict[str, pl.DataType] = {}
    notes = []
    if ALL in carry:
        for name in (name for name in names if name not in taken):
            try:
                types[name] = _carry_type(name, names, taken, files)
            except (SchemaError, SettingsError) as error:
                notes.append(f"not carried: {error}")
        return types, notes
    return {name: _carry_type(name, names, taken, files) for name in carry}, notes


def _carry_type(
    name: str, names: Sequence[str], taken: set[str], files: Sequence[InputFile]
) -> pl.DataType:
    if name not in names:
        raise SchemaError(f"--carry {name}: no file has it{name_choices(name, names)}")
    if name.lower() in taken:
        raise SettingsError(f"--carry {name}: the targets have a column of this name already")
    columns = [
        read_column(file.schema.empty_table().column(name), (), name)
        for file in files
        if name in file.schema.names
    ]
    dtype = columns[0].dtype
    for column in columns[1:]:
        joined = _join(dtype, column.dtype)
        if joined is None:
            raise SchemaError(
                f"--carry {name}: found {dtype} in one file and {column.dtype} in another, which "
                "no type holds without loss; re-export them alike"
            )
        dtype = joined
    return dtype


def _join(one: pl.DataType, other: pl.DataType) -> pl.DataType | None:
    """Return the type that holds both without loss, None where there is none."""
    if one == other or other == pl.Null:
        return one
    if one == pl.Null:
        return other
    if isinstance(one, pl.List) and isinstance(other, pl.List):
        inner = _join(_inner(one), _inner(other))
        return pl.List(inner) if inner is not None else None
    integers = [dtype for dtype in (one, other) if dtype.is_integer()]
    floats = [dtype for dtype in (one, other) if dtype.is_float()]
    if len(floats) == 2 or (floats and integers and integers[0] in EXACT_INTEGERS):
        return pl.Float64()
    if len(integers) == 2 and pl.UInt64 not in integers:
        return pl.Int64()
    return None


def _inner(dtype: pl.List) -> pl.DataType:
    inner = dtype.inner
    return inner if isinstance(inner, pl.DataType) else inner()
