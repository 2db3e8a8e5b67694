"""A user's own columns -> canonical columns: which expression each one has, and its values.

Polars and PyArrow are imported where values are computed: resolving names needs neither.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vtaudit.errors import SchemaError, SettingsError, name_choices
from vtaudit.mapping.expressions import (
    Call,
    Column,
    Expression,
    Literal,
    Node,
    parse_assignment,
    parse_expression,
    path_text,
)
from vtaudit.presets import Preset, list_presets, load_preset

if TYPE_CHECKING:
    import polars
    import pyarrow

__all__ = [
    "Expression",
    "Mapping",
    "Preset",
    "available",
    "column_paths",
    "expression_type",
    "list_presets",
    "load_preset",
    "map_table",
    "needed_columns",
    "parse_assignment",
    "parse_expression",
    "plain_column",
    "read_column",
    "resolve_mapping",
]


@dataclass(frozen=True, slots=True)
class Mapping:
    """Canonical name -> expression, in the order of the canonical columns."""

    expressions: dict[str, Expression]


def resolve_mapping(
    maps: dict[str, str],
    preset: Preset | None,
    canonical: Sequence[str],
    columns: Collection[str],
) -> Mapping:
    """Return the expression of each canonical column that the log has.

    An explicit map goes before the preset's entry, and that before a column of the canonical
    name itself. `lit(null)` in a map or a preset says that there is no such column.

    Args:
        maps: canonical name -> text of an expression.
        preset: names and expressions of a known kind of log.
        canonical: all canonical names.
        columns: union of `column_paths` over all files (bare top-level names do as well,
            where nothing refers into a struct).

    Raises:
        SettingsError: a map to an unknown canonical name, or a text that is no expression.
        SchemaError: a map refers to a column that no file has.
    """
    for name, text in maps.items():
        if name not in canonical:
            raise SettingsError(
                f"--map {name}={text}: no canonical column is named {name!r}"
                f"{name_choices(name, canonical)}"
            )
    known = frozenset(columns)
    found: dict[str, Expression] = {}
    for name in canonical:
        if name in maps:
            expression = _explicit_expression(name, maps[name], known)
        else:
            expression = _implied_expression(name, preset, known)
        if expression is not None:
            found[name] = expression
    return Mapping(found)


def _explicit_expression(name: str, text: str, known: frozenset[str]) -> Expression | None:
    expression = parse_expression(text)
    if _is_null(expression):
        return None
    for reference in expression.references():
        if not _is_known(reference, known):
            raise SchemaError(
                f"--map {name}={text}: no file has a column {reference.text}"
                f"{name_choices(reference.text, known)}"
            )
    return expression


def _implied_expression(
    name: str, preset: Preset | None, known: frozenset[str]
) -> Expression | None:
    choices = preset.columns.get(name, ()) if preset else ()
    for text in (*choices, name):
        expression = parse_expression(text)
        if all(_is_known(reference, known) for reference in expression.references()):
            return None if _is_null(expression) else expression
    return None


def _is_null(expression: Expression) -> bool:
    return isinstance(expression.root, Literal) and expression.root.value is None


def _is_known(reference: Column, known: frozenset[str]) -> bool:
    return any(
        path_text(path) in known or (len(path) == 1 and _is_raw_name(path[0], known))
        for path in reference.paths
    )


def _is_raw_name(name: str, known: frozenset[str]) -> bool:
    # column_paths quotes a name with a dot, so without quotes it is a path into a known struct
    head, dot, _ = name.partition(".")
    return name in known and not (dot and head in known)


def column_paths(schema: pyarrow.Schema) -> list[str]:
    """Return each column, and each field within a struct, as an expression would name it."""
    paths: list[tuple[tuple[str, ...], pyarrow.DataType]]
    paths = [((field.name,), field.type) for field in schema]
    for path, type_ in paths:
        # the loop reaches what it appends, so structs within structs are listed as well
        paths.extend(((*path, inner.name), inner.type) for inner in _struct_fields(type_))
    return [path_text(path) for path, _ in paths]


def _struct_fields(type_: pyarrow.DataType) -> list[pyarrow.Field]:
    import pyarrow

    return list(type_) if pyarrow.types.is_struct(type_) else []


def _locate(reference: Column, schema: pyarrow.Schema) -> tuple[int, ...] | None:
    for path in reference.paths:
        fields, indices = list(schema), []
        for name in path:
            matches = [index for index, field in enumerate(fields) if field.name == name]
            if len(matches) > 1:
                raise SchemaError(
                    f"column {reference.text}: the file has {name} {len(matches)} times"
                )
            if not matches:
                break
            indices.append(matches[0])
            fields = _struct_fields(fields[matches[0]].type)
        else:
            return tuple(indices)
    return None


def available(expression: Expression, schema: pyarrow.Schema) -> bool:
    """Return whether a file of this schema has every column the expression refers to."""
    return all(_locate(reference, schema) is not None for reference in expression.references())


def plain_column(expression: Expression, schema: pyarrow.Schema) -> str | None:
    """Return the name of the column that an expression is, as it stands; None for any other."""
    if not isinstance(expression.root, Column):
        return None
    path = _locate(expression.root, schema)
    return schema.field(path[0]).name if path is not None and len(path) == 1 else None


def needed_columns(mapping: Mapping, schema: pyarrow.Schema) -> list[str]:
    """Return the top-level columns that the available expressions read, in the file's order."""
    needed: set[int] = set()
    for expression in mapping.expressions.values():
        paths = [_locate(reference, schema) for reference in expression.references()]
        if None not in paths:
            needed.update(path[0] for path in paths if path)
    return [schema.field(index).name for index in sorted(needed)]


def read_column(
    column: pyarrow.Array | pyarrow.ChunkedArray, path: Sequence[int], text: str
) -> polars.Series:
    """Return a column, or the field that `path` reaches in it, as plain Polars values.

    Raises:
        SchemaError: Polars cannot hold the type.
        UnreadableError: text that is no UTF-8.
    """
    from vtaudit.mapping import evaluation

    return evaluation.read_column(column, path, text)


def map_table(table: pyarrow.Table | pyarrow.RecordBatch, mapping: Mapping) -> polars.DataFrame:
    """Return the canonical columns of one decoded batch, as computed, without any other.

    A column whose expression is not available is left out; the frame of a mapping without any
    available expression has no rows. Types: see `expression_type`.

    Raises:
        SchemaError: a function got a type that it does not take; the message names both.
        InputError: a text column holds bytes that are no UTF-8.
    """
    import polars

    values = {}
    for name, expression in mapping.expressions.items():
        if available(expression, table.schema):
            values[name] = _evaluate(expression.root, table).alias(name)
    return polars.DataFrame(values)


def expression_type(expression: Expression, schema: pyarrow.Schema) -> pyarrow.DataType:
    """Return the type that an available expression has on a file of this schema.

    log is float64, neg float32 or float64, notnull bool, key string; not and pick keep their
    argument's type. Text is string, a list of any layout list, a dictionary its values' type.

    Raises:
        SchemaError: the expression is not available, or a function does not take a type.
    """
    from vtaudit.mapping.evaluation import plain_array

    if not available(expression, schema):
        raise SchemaError(f"{expression.text}: the file lacks one of {expression.columns()}")
    return plain_array(_evaluate(expression.root, schema.empty_table()).to_arrow()).type


def _evaluate(node: Node, table: pyarrow.Table | pyarrow.RecordBatch) -> polars.Series:
    from vtaudit.mapping import evaluation

    if isinstance(node, Literal):
        return evaluation.repeat_literal(node.value, table.num_rows)
    if isinstance(node, Call):
        return evaluation.apply_function(node, [_evaluate(part, table) for part in node.arguments])
    path = _locate(node, table.schema)
    if path is None:
        raise SchemaError(f"column {node.text}: not in this file")
    return read_column(table.column(path[0]), path[1:], node.text)
