"""The rows of targets and rejects of one shard, in the schemas of schemas/."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from vtaudit.canonical import CARRIED
from vtaudit.reasons import BOOTSTRAP_SOURCES, BOUNDARIES, Reason
from vtaudit.schemas import arrow_field, load_columns

CODED_TEXT = pa.dictionary(pa.int32(), pa.string())
# columns with min/max statistics: none of them can hold NaN
STATISTICS = ("trajectory_id", "step", "source_row", "policy_version")


def targets_schema(ids: Mapping[str, str], real: str, *, weights: bool) -> pa.Schema:
    """Return the schema of targets without carried columns; `ids` gives the id types."""
    return _schema("targets", ids, real, weights=weights)


def rejects_schema(ids: Mapping[str, str]) -> pa.Schema:
    """Return the schema of rejects; `ids` gives the id types."""
    return _schema("rejects", ids, "float64", weights=False)


def _schema(table: str, ids: Mapping[str, str], real: str, *, weights: bool) -> pa.Schema:
    return pa.schema(
        arrow_field(column, id_type=ids.get(column.name, "string"), real=real)
        for column in load_columns(table)
        if weights or not column.optional
    )


def build_targets(
    frame: pl.DataFrame,
    results: Mapping[str, NDArray[np.generic]],
    schema: pa.Schema,
    carry: list[str],
) -> pa.Table:
    """Return the targets table of accepted rows, texts of the schema as dictionaries.

    Args:
        frame: accepted rows in order: ids, step, policy_version, source_file, row, carried columns.
        results: the computed columns by name, and boundary and bootstrap_source as codes.
        schema: of `targets_schema`.
        carry: names of the carried columns that follow.
    """
    arrays = [_target_column(frame, results, field) for field in schema]
    fields = [field.with_type(array.type) for field, array in zip(schema, arrays, strict=True)]
    for name in carry:
        column = frame[CARRIED + name].to_arrow(compat_level=pl.CompatLevel.oldest())
        arrays.append(column)
        fields.append(pa.field(name, column.type))
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _target_column(
    frame: pl.DataFrame, results: Mapping[str, NDArray[np.generic]], field: pa.Field
) -> pa.Array:
    texts = {"boundary": BOUNDARIES, "bootstrap_source": BOOTSTRAP_SOURCES}
    if field.name in texts:
        codes = pa.array(results[field.name].astype(np.int32))
        return pa.DictionaryArray.from_arrays(codes, pa.array(texts[field.name], pa.string()))
    if field.name in results:
        return pa.array(results[field.name], type=field.type)
    return _logged_column(frame, field)


def _logged_column(frame: pl.DataFrame, field: pa.Field, *, coded: bool = True) -> pa.Array:
    name = "row" if field.name == "source_row" else field.name
    if name not in frame.columns:
        return pa.nulls(frame.height, field.type)
    column = frame[name].to_arrow(compat_level=pl.CompatLevel.oldest())
    if coded and pa.types.is_dictionary(column.type):
        return column.cast(CODED_TEXT)
    return column.cast(field.type)


def build_rejects(frame: pl.DataFrame, reasons: NDArray[np.uint64], schema: pa.Schema) -> pa.Table:
    """Return the rejects table of rejected rows.

    Args:
        frame: rejected rows in order: ids, step, source_file, row.
        reasons: their reason bits, none of them 0  # [N]
        schema: of `rejects_schema`.
    """
    sets, place = np.unique(reasons, return_inverse=True)
    lists = [[reason.code for reason in Reason if int(bits) & reason.bit] for bits in sets]
    listed = pa.array(lists, type=schema.field("reasons").type).take(pa.array(place))
    first = pa.array([codes[0] for codes in lists], type=pa.string()).take(pa.array(place))
    columns = {"reasons": listed, "primary_reason": first}
    arrays = [
        columns[field.name] if field.name in columns else _logged_column(frame, field, coded=False)
        for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)
