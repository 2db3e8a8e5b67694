"""The footers of the files: schemas and where they drift, copies, what was left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from vtaudit.canonical import LogShape, unify_types
from vtaudit.errors import SchemaError
from vtaudit.mapping import available, column_paths, expression_type
from vtaudit.mapping.expressions import parse_expression, path_text
from vtaudit.records import InputFile
from vtaudit.sources import examine
from vtaudit.storage import Place, is_hidden, list_names

MAX_HASHED_BYTES = 1 << 31


@dataclass(frozen=True, slots=True)
class ColumnType:
    """One type that a column has, and the files that give it that type."""

    type: str
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SchemaColumn:
    """A column of the log: its types over all files, and the files that lack it."""

    name: str
    types: tuple[ColumnType, ...]
    lacking: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Footers:
    """The distinct schemas of the readable files, each with the names of the files that have it."""

    schemas: tuple[tuple[pa.Schema, tuple[str, ...]], ...]
    paths: tuple[str, ...]

    @property
    def columns(self) -> list[str]:
        """The top-level columns over all files, as an expression would name them."""
        names = dict.fromkeys(name for schema, _ in self.schemas for name in schema.names)
        return [path_text((name,)) for name in names]

    def find_fault(self, canonical: str, text: str) -> str | None:
        """Return why the expression cannot be the canonical column, None where it can."""
        try:
            shape = self.unify({canonical: text})
        except SchemaError as error:
            return str(error)
        return None if shape.has(canonical) else f"{text}: no file has all of its columns"

    def unify(self, texts: Mapping[str, str]) -> LogShape:
        """Return the types of the canonical columns that are read from these expressions.

        Raises:
            SchemaError: a type that a function or the contract does not allow.
        """
        expressions = {name: parse_expression(text) for name, text in texts.items()}
        found = {
            files[0]: {
                name: expression_type(expression, schema)
                for name, expression in expressions.items()
                if available(expression, schema)
            }
            for schema, files in self.schemas
        }
        return unify_types(found, "auto")


def gather_footers(files: Iterable[InputFile]) -> Footers:
    """Return the schemas of the readable files."""
    schemas: dict[str, tuple[pa.Schema, list[str]]] = {}
    paths: dict[str, None] = {}
    for file in files:
        if file.error is None:
            schema = file.schema.remove_metadata()
            schemas.setdefault(schema.to_string(), (schema, []))[1].append(file.name)
    for schema, _ in schemas.values():
        paths.update(dict.fromkeys(column_paths(schema)))
    return Footers(tuple((s, tuple(names)) for s, names in schemas.values()), tuple(paths))


def examine_all(files: Sequence[InputFile]) -> list[InputFile]:
    """Return the files with size, schema and rows, or with the error that prevents it."""
    with ThreadPoolExecutor() as pool:
        return list(pool.map(lambda file: examine(file, digest=False), files))


def find_copies(files: Sequence[InputFile]) -> dict[str, str]:
    """Return the files that repeat an earlier file's content; large files are not compared."""
    sizes = Counter((file.size, file.rows) for file in files)
    alike = [file for file in files if sizes[file.size, file.rows] > 1]
    if sum(file.size or 0 for file in alike) > MAX_HASHED_BYTES:
        return {}
    with ThreadPoolExecutor() as pool:
        hashed = list(pool.map(examine, alike))
    first: dict[str | None, str] = {}
    for file in hashed:
        first.setdefault(file.sha256, file.name)
    return {
        file.name: first[file.sha256]
        for file in hashed
        if file.sha256 is not None and first[file.sha256] != file.name
    }


def describe_schema(footers: Footers) -> tuple[SchemaColumn, ...]:
    """Return every column with its types over all files."""
    names = dict.fromkeys(name for schema, _ in footers.schemas for name in schema.names)
    columns = []
    for name in names:
        types: dict[str, list[str]] = {}
        lacking: list[str] = []
        for schema, files in footers.schemas:
            has = name in schema.names
            group = types.setdefault(str(schema.field(name).type), []) if has else lacking
            group.extend(files)
        kinds = tuple(ColumnType(kind, tuple(files)) for kind, files in types.items())
        columns.append(SchemaColumn(path_text((name,)), kinds, tuple(lacking)))
    return tuple(columns)


def count_skipped(logs: Sequence[Place]) -> dict[str, int]:
    """Return how many files were left out: hidden Parquet, and other files by their suffix."""
    skipped: Counter[str] = Counter()
    for log in logs:
        for name in list_names(log):
            if not name.endswith(".parquet"):
                skipped[Path(name).suffix or "no suffix"] += 1
            elif is_hidden(name):
                skipped["hidden .parquet"] += 1
    return dict(skipped)
