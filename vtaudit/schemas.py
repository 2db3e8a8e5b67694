"""schemas/*.json -> column definitions and Arrow schemas; the only reader of that folder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from vtaudit.errors import SchemaError, name_choices
from vtaudit.reasons import Reason

if TYPE_CHECKING:
    import pyarrow as pa

TABLES = (
    "trajectory_log",
    "targets",
    "rejects",
    "summary",
    "audit",
    "audit_by",
    "diagnostics",
    "ratio_histogram",
    "files",
    "runs",
)


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: its name, type word, nullability, meaning, and marks."""

    name: str
    type: str
    nullable: bool
    meaning: str
    payload: bool = False
    lineage: bool = False
    optional: bool = False
    needed: bool = False


def _folder() -> Path:
    packaged = Path(__file__).parent / "_schemas"
    return packaged if packaged.is_dir() else Path(__file__).parent.parent / "schemas"


@cache
def load_columns(table: str) -> tuple[Column, ...]:
    """Return the columns of `table` in order, one per reason where the file says so.

    Raises:
        SchemaError: no such table, or its file is missing from the installation.
    """
    if table not in TABLES:
        raise SchemaError(f"table {table}: not one of vtaudit's{name_choices(table, TABLES)}")
    path = _folder() / f"{table}.json"
    if not path.is_file():
        raise SchemaError(f"{path}: not found; the installation is incomplete, reinstall vtaudit")
    entries = json.loads(path.read_text(encoding="utf-8"))["columns"]
    return tuple(column for entry in entries for column in _expand(entry))


def _expand(entry: dict[str, object]) -> list[Column]:
    column = Column(
        name=str(entry["name"]),
        type=str(entry["type"]),
        nullable=bool(entry["nullable"]),
        meaning=str(entry["meaning"]),
        payload=bool(entry.get("payload", False)),
        lineage=bool(entry.get("lineage", False)),
        optional="optional" in entry,
        needed=str(entry.get("needed", "no")).startswith("yes"),
    )
    if entry.get("each") != "reason":
        return [column]
    return [
        Column(column.name.replace("<reason>", reason.code), column.type, True, column.meaning)
        for reason in Reason
    ]


def arrow_schema(table: str, *, id_type: str = "string", real: str = "float64") -> pa.Schema:
    """Return the Arrow schema of an output table without its optional columns.

    Args:
        table: name of the table.
        id_type: type of trajectory_id and unroll_id, "string" or "int64"; a mapping of the two
            is made by the caller with `arrow_field`.
        real: type of the results, "float32" or "float64".
    """
    import pyarrow as pa

    fields = [
        arrow_field(column, id_type=id_type, real=real)
        for column in load_columns(table)
        if not column.optional
    ]
    return pa.schema(fields)


def arrow_field(column: Column, *, id_type: str = "string", real: str = "float64") -> pa.Field:
    """Return the Arrow field of one output column."""
    import pyarrow as pa

    types: dict[str, pa.DataType] = {
        "id": pa.type_for_alias(id_type),
        "real": pa.type_for_alias(real),
        "string": pa.string(),
        "int64": pa.int64(),
        "float64": pa.float64(),
        "list<string>": pa.list_(pa.field("element", pa.string(), nullable=False)),
        "map<string,float64>": pa.map_(pa.string(), pa.float64()),
    }
    return pa.field(column.name, types[column.type], nullable=column.nullable)
