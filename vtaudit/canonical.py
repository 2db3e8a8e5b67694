"""Types of the canonical columns over all files, and the cast of one batch to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.types as pat
from numpy.typing import NDArray

from vtaudit.errors import SchemaError, UnreadableError
from vtaudit.schemas import Column, load_columns

LOG_COLUMNS: dict[str, Column] = {column.name: column for column in load_columns("trajectory_log")}
PAYLOAD = tuple(name for name, column in LOG_COLUMNS.items() if column.payload)
LINEAGE = tuple(name for name, column in LOG_COLUMNS.items() if column.lineage)
LIST_COLUMNS = (
    "behavior_action_mask",
    "target_action_mask",
    "behavior_logits",
    "target_logits",
)
KEYS = ("trajectory_id", "step")
# how carried columns are named within a frame, apart from the canonical ones
CARRIED = "carried:"
# prefix of the columns that say whether a row's file has a column, where null and absent differ
PRESENT = "present:"
TOLD_APART = ("discount", "behavior_action_mask", "target_action_mask")
ABSENT = {"valid": 1}
# how the names of score files begin where their types are checked
SCORES = "scores "


@dataclass(frozen=True, slots=True)
class LogShape:
    """What the log holds, over all readable files.

    Attributes:
        dtypes: type of each canonical column that some file has.
        present: for each of them, the names of the files that have it.
        is_discrete: whether actions are discrete.
    """

    dtypes: dict[str, pl.DataType]
    present: dict[str, frozenset[str]]
    is_discrete: bool

    def has(self, *names: str) -> bool:
        """Return whether every one of the columns is mapped in some file."""
        return all(name in self.dtypes for name in names)


def unify_types(found: Mapping[str, Mapping[str, pa.DataType]], action_space: str) -> LogShape:
    """Return the one type of each canonical column over all files.

    Args:
        found: file name -> canonical column -> type that the file gives it.
        action_space: auto, discrete or continuous.

    Raises:
        SchemaError: a column has a type that the contract does not allow, an id is text in one
            file and a number in another, or masks or logits are mapped with continuous actions.
    """
    dtypes: dict[str, pl.DataType] = {}
    present: dict[str, set[str]] = {}
    for file, types in found.items():
        for name, arrow_type in types.items():
            dtype = _canonical_type(file, LOG_COLUMNS[name], arrow_type)
            present.setdefault(name, set()).add(file)
            if dtype != pl.Null:
                old = dtypes.get(name, dtype)
                dtypes[name] = _join_types(file, LOG_COLUMNS[name], old, dtype)
    for name in present:
        dtypes.setdefault(name, _default_type(LOG_COLUMNS[name]))
    is_discrete = {"discrete": True, "continuous": False}.get(
        action_space, dtypes.get("action", pl.Int64()) == pl.Int64
    )
    _check_action_space(dtypes, is_discrete)
    ordered = {name: dtypes[name] for name in LOG_COLUMNS if name in dtypes}
    return LogShape(ordered, {k: frozenset(v) for k, v in present.items()}, is_discrete)


def _check_action_space(dtypes: Mapping[str, pl.DataType], is_discrete: bool) -> None:
    mapped = [name for name in LIST_COLUMNS if name in dtypes]
    if mapped and not is_discrete:
        raise SchemaError(
            f"column {mapped[0]}: found with continuous actions, expected with discrete ones only; "
            "say --action-space discrete if the actions are indices, or do not map it"
        )
    if is_discrete and isinstance(dtypes.get("action"), pl.List):
        raise SchemaError(
            "column action: found lists with --action-space discrete, expected one index per row"
        )


def _canonical_type(file: str, column: Column, found: pa.DataType) -> pl.DataType:
    """Return the type that holds the column, Null where the file has nothing but nulls."""
    if pat.is_null(found):
        return pl.Null()
    kinds: dict[str, pl.DataType | None] = {
        "id": _label_type(found),
        "label": _label_type(found),
        "integer": pl.Int64() if pat.is_integer(found) else None,
        "float": pl.Float64() if _is_number(found) else None,
        "flag": _flag_type(found),
        "action": _action_type(found),
        "list<flag>": pl.List(pl.Boolean()) if _is_list_of(found, _is_flag) else None,
        "list<float>": _float_list(found) if _is_list_of(found, _is_number) else None,
        "timestamp": pl.Datetime("us") if pat.is_timestamp(found) else None,
    }
    dtype = kinds[column.type]
    if dtype is None:
        raise SchemaError(
            f"{file}, column {column.name}: found {found}, trajectory_log v1 expects "
            f"{column.type}; {_advice(file, column)}"
        )
    return dtype


def _advice(file: str, column: Column) -> str:
    if file.startswith(SCORES):
        return "write the scores in this type"
    advice = f"re-export it, or map another column with --map {column.name}=..."
    return advice if column.needed else f"{advice} (lit(null) leaves it out)"


def _flag_type(found: pa.DataType) -> pl.DataType | None:
    """Booleans are 0 and 1; a number is kept as it is, for it may be neither."""
    if pat.is_boolean(found):
        return pl.Int8()
    return pl.Float64() if _is_number(found) else None


def _label_type(found: pa.DataType) -> pl.DataType | None:
    if pat.is_integer(found):
        return pl.Int64()
    is_text = pat.is_string(found) or pat.is_large_string(found) or pat.is_string_view(found)
    return pl.String() if is_text else None


def _action_type(found: pa.DataType) -> pl.DataType | None:
    if pat.is_integer(found) or pat.is_boolean(found):
        return pl.Int64()
    if _is_number(found):
        return pl.Float64()
    return pl.List(pl.Float64()) if _is_list_of(found, _is_number) else None


def _float_list(found: pa.DataType) -> pl.DataType:
    """Lists are wide, so float32 stays what it is; every rule computes in float64."""
    return pl.List(pl.Float32() if pat.is_float32(found.value_type) else pl.Float64())


def _is_number(found: pa.DataType) -> bool:
    return bool(pat.is_floating(found) or pat.is_integer(found) or pat.is_decimal(found))


def _is_flag(found: pa.DataType) -> bool:
    return bool(pat.is_boolean(found)) or _is_number(found)


def _is_list_of(found: pa.DataType, test: Callable[[pa.DataType], bool]) -> bool:
    is_list = pat.is_list(found) or pat.is_large_list(found) or pat.is_fixed_size_list(found)
    is_list = is_list or pat.is_list_view(found) or pat.is_large_list_view(found)
    return bool(is_list) and (pat.is_null(found.value_type) or test(found.value_type))


def _join_types(file: str, column: Column, one: pl.DataType, other: pl.DataType) -> pl.DataType:
    if one == other:
        return one
    pair = {type(one), type(other)}
    if column.type == "label":
        return pl.String()
    if column.type in ("action", "flag") and pl.List not in pair:
        return pl.Float64()
    if column.type == "list<float>":
        return pl.List(pl.Float64())
    raise SchemaError(
        f"{file}, column {column.name}: found {other}, other files have {one}; expected one type "
        "in all files; re-export them alike"
    )


def _default_type(column: Column) -> pl.DataType:
    return {
        "integer": pl.Int64(),
        "float": pl.Float64(),
        "flag": pl.Int8(),
        "action": pl.Int64(),
        "list<flag>": pl.List(pl.Boolean()),
        "list<float>": pl.List(pl.Float64()),
        "timestamp": pl.Datetime("us"),
    }.get(column.type, pl.String())


def cast_frame(frame: pl.DataFrame, shape: LogShape, rows: NDArray[np.int64]) -> pl.DataFrame:
    """Return `row` and the canonical columns of one batch in the types of the whole log.

    `rows` are the numbers of its rows, also where `frame` has no columns.

    A column that the file lacks is null, apart from valid, which is true. A mask element that is
    neither 0 nor 1 becomes null.

    Raises:
        UnreadableError: a value does not fit its type, as an unsigned id above 2^63 - 1.
    """
    columns = [pl.Series("row", rows)]
    try:
        for name, dtype in shape.dtypes.items():
            if name not in frame.columns:
                columns.append(
                    pl.Series(name, [ABSENT.get(name)], dtype=dtype).new_from_index(0, len(rows))
                )
            elif frame.schema[name] == dtype:
                columns.append(frame[name])
            else:
                columns.append(_cast(frame[name], dtype))
    except pl.exceptions.InvalidOperationError as error:
        text = str(error).splitlines()[0]
        raise UnreadableError(f"a value does not fit its column: {text}") from None
    return pl.DataFrame(columns)


def _cast(column: pl.Series, dtype: pl.DataType) -> pl.Series:
    if dtype == pl.List(pl.Boolean) and column.dtype != pl.Null:
        inner = getattr(column.dtype, "inner", None)
        element = pl.element()
        if inner not in (pl.Boolean, pl.Null):
            is_true = pl.when(element == 1).then(True).when(element == 0).then(False)
            return column.list.eval(is_true)
    return column.cast(dtype)
