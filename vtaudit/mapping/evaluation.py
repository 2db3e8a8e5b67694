"""What the functions of mapping expressions compute, on whole columns.

Values are never repaired: a flag that is neither 0 nor 1 stays what it is, log of a negative
number is NaN, and what does not exist is null.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import polars
import pyarrow
import pyarrow.compute
from polars import (
    Binary,
    Boolean,
    DataType,
    Expr,
    Float32,
    Float64,
    Int64,
    List,
    Null,
    Series,
    String,
)
from pyarrow import types

from vtaudit.errors import SchemaError, UnreadableError
from vtaudit.mapping.expressions import Call

_LISTS = (
    types.is_list,
    types.is_large_list,
    types.is_fixed_size_list,
    types.is_list_view,
    types.is_large_list_view,
)
# of which a list is as plain as it can be
_PLAIN = (pyarrow.bool_(), pyarrow.int64(), pyarrow.float32(), pyarrow.float64())
_TEXTS = (types.is_string, types.is_large_string, types.is_string_view)
_BINARIES = (types.is_large_binary, types.is_binary_view, types.is_fixed_size_binary)


def read_column(
    column: pyarrow.Array | pyarrow.ChunkedArray, path: Sequence[int], text: str
) -> Series:
    """Return a column, or the field that `path` reaches in it, as plain Polars values.

    Raises:
        SchemaError: no canonical column can come from this type.
        UnreadableError: text that is no UTF-8, or more than 2^31 bytes or elements in one batch.
    """
    chunks = [column]
    if isinstance(column, pyarrow.ChunkedArray):
        chunks = column.chunks or [column.combine_chunks()]
    if path:
        # the siblings are never converted: their types may be ones that Polars cannot hold
        chunks = [pyarrow.compute.struct_field(chunk, list(path)) for chunk in chunks]
    try:
        return Series(text, pyarrow.chunked_array([plain_array(chunk) for chunk in chunks]))
    except pyarrow.ArrowNotImplementedError as error:
        raise SchemaError(f"column {text}: type {chunks[0].type} cannot be mapped") from error
    except pyarrow.ArrowInvalid as error:
        raise UnreadableError(f"column {text}: {error}") from error


def plain_array(array: pyarrow.Array) -> pyarrow.Array:
    """Return equal values in the plainest type: no dictionary, view, extension or metadata.

    Lists and structs are built anew from their parts. A cast would be shorter, but PyArrow 26
    makes invalid arrays of list views that hold a null.

    Raises:
        pyarrow.ArrowNotImplementedError: maps, unions, intervals and other unusual types.
        pyarrow.ArrowInvalid: text that is no UTF-8.
    """
    type_ = array.type
    if isinstance(array, pyarrow.ExtensionArray):
        return plain_array(array.storage)
    if types.is_dictionary(type_):
        return plain_array(array.dictionary_decode())
    if types.is_list(type_) and type_.value_type in _PLAIN:
        return array
    if any(is_list(type_) for is_list in _LISTS):
        return _plain_list(array)
    if types.is_struct(type_) and type_.num_fields:
        return _plain_struct(array)
    if any(is_text(type_) for is_text in _TEXTS):
        text = array.cast(pyarrow.string())
        # Parquet files can hold any bytes as text, and Polars trusts what it is given
        text.validate(full=True)
        return text
    if any(is_binary(type_) for is_binary in _BINARIES):
        return array.cast(pyarrow.binary())
    if types.is_float16(type_):
        return array.cast(pyarrow.float32())
    if types.is_decimal256(type_):
        return array.cast(pyarrow.float64())
    if types.is_timestamp(type_) and type_.tz is not None:
        return array.cast(pyarrow.timestamp(type_.unit, "UTC"))
    if types.is_nested(type_) or types.is_interval(type_):
        raise pyarrow.ArrowNotImplementedError(str(type_))
    return array


def _plain_list(array: pyarrow.Array) -> pyarrow.Array:
    compute = pyarrow.compute
    lengths = compute.fill_null(compute.list_value_length(array), 0).cast(pyarrow.int64())
    ends = compute.cumulative_sum(lengths).cast(pyarrow.int32())
    offsets = pyarrow.concat_arrays([pyarrow.array([0], pyarrow.int32()), ends])
    values = plain_array(array.flatten())
    return pyarrow.ListArray.from_arrays(offsets, values, mask=array.is_null())


def _plain_struct(array: pyarrow.Array) -> pyarrow.Array:
    names = [field.name for field in array.type]
    values = [plain_array(part) for part in array.flatten()]
    return pyarrow.StructArray.from_arrays(values, names=names, mask=array.is_null())


def repeat_literal(value: bool | int | float | str | None, length: int) -> Series:
    """Return a column of one value: bool, int64, float64, string, or null of type null."""
    dtypes = {bool: Boolean, int: Int64, float: Float64, str: String, type(None): Null}
    return polars.repeat(value, length, dtype=dtypes[type(value)](), eager=True)


def apply_function(call: Call, arguments: Sequence[Series]) -> Series:
    """Return the value of one function on columns of equal length.

    Raises:
        SchemaError: an argument has a type that the function does not take.
    """
    function = _FUNCTIONS[call.function]
    for position, (part, argument) in enumerate(zip(call.arguments, arguments, strict=True)):
        kind = function.takes[min(position, len(function.takes) - 1)]
        if argument.dtype != Null and not _KINDS[kind](argument.dtype):
            raise SchemaError(
                f"{call.text}: {call.function} takes {kind} here, found {part.text} of type "
                f"{argument.dtype}; map another column or expression"
            )
    return function.compute(*arguments)


def _log(values: Series) -> Series:
    return values.cast(Float64).log()


def _negated(values: Series) -> Series:
    # integers become floats: the least one of each integer type has no negative in its type
    return -(values if values.dtype == Float32 else values.cast(Float64))


def _inverted(flags: Series) -> Series:
    if flags.dtype == Boolean:
        return ~flags
    if flags.dtype == Null:
        return flags
    if flags.dtype.is_decimal():
        flags = flags.cast(Float64)
    flag = polars.first()
    one, zero = (polars.lit(value, dtype=flags.dtype) for value in (1, 0))
    return _compute(
        polars.when(flag == 0).then(one).when(flag == 1).then(zero).otherwise(flag), flags
    )


def _picked(lists: Series, index: Series) -> Series:
    if lists.dtype == Null:
        return lists
    place = polars.first().cast(Int64, strict=False)
    # only a place that exists: Polars counts a negative one from the end
    exact = polars.when((place >= 0) & (place == polars.first())).then(place)
    picked = polars.nth(0).list.get(polars.nth(1), null_on_oob=True)
    return _compute(picked, lists, _compute(exact, index))


def _key(*parts: Series) -> Series:
    return _compute(polars.concat_str(polars.all(), separator="/"), *map(_part_text, parts))


def _part_text(part: Series) -> Series:
    """Return a part of a key as text, the same for equal numbers of any type, null for NaN."""
    if part.dtype.is_float():
        return _compute(_float_text(polars.first()), part)
    if part.dtype == Binary:
        return part.bin.encode("hex")
    if part.dtype != String:
        return part.cast(String)
    escaped = part.str.replace_all("\\", r"\\", literal=True)
    return escaped.str.replace_all("/", r"\/", literal=True)


def _float_text(number: Expr) -> Expr:
    # integers with a gap come as floats from pandas: 3.0 in one file is 3 in the next
    whole = (number == number.floor()) & (number.abs() < 2.0**63)
    text = number.cast(Int64, strict=False).cast(String)
    return (
        polars.when(number.is_nan())
        .then(None)
        .when(whole)
        .then(text)
        .otherwise(number.cast(String))
    )


def _compute(expression: Expr, *columns: Series) -> Series:
    frame = polars.DataFrame({str(place): column for place, column in enumerate(columns)})
    return frame.select(expression).to_series()


@dataclass(frozen=True, slots=True)
class _Function:
    """What one function takes, the last kind being that of all further arguments, and does."""

    takes: tuple[str, ...]
    compute: Callable[..., Series]


_KINDS: dict[str, Callable[[DataType], bool]] = {
    "numbers": lambda dtype: dtype.is_numeric(),
    "booleans or numbers": lambda dtype: dtype.is_numeric() or dtype == Boolean,
    "lists": lambda dtype: isinstance(dtype, List),
    "numbers, text, booleans or times": lambda dtype: (
        not dtype.is_nested() and dtype != polars.Duration
    ),
    "any values": lambda dtype: True,
}
_FUNCTIONS = {
    "log": _Function(("numbers",), _log),
    "neg": _Function(("numbers",), _negated),
    "not": _Function(("booleans or numbers",), _inverted),
    "notnull": _Function(("any values",), Series.is_not_null),
    "pick": _Function(("lists", "numbers"), _picked),
    "key": _Function(("numbers, text, booleans or times",), _key),
}
