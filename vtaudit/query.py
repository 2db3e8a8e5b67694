"""SQL over a run: targets, rejects and every audit table by plain name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb

from vtaudit.audit import macro_over
from vtaudit.errors import InputError, SettingsError
from vtaudit.places import is_store, list_places
from vtaudit.schemas import load_columns
from vtaudit.store import read_manifest

PARTS = ("targets", "rejects")
AUDIT_TABLES = ("summary", "audit", "audit_by", "files", "runs")
FETCH_ROWS = 10_000
# what DuckDB raises for SQL that it cannot run, apart from failing files
WRONG_SQL = (
    duckdb.ParserException,
    duckdb.BinderException,
    duckdb.CatalogException,
    duckdb.ConversionException,
    duckdb.OutOfRangeException,
    duckdb.TypeMismatchException,
)
BY_REASON = ("rejected_any_", "rejected_primary_")


@dataclass(frozen=True, slots=True)
class Answer:
    """The columns of a query's result, and its rows in batches, as they are computed."""

    columns: list[str]
    batches: Iterator[list[tuple[object, ...]]]


def open_run(run: Path) -> duckdb.DuckDBPyConnection:
    """Return a connection in memory that has a view for each table of the run or store.

    Raises:
        InputError: no vtaudit run stands there, or a file of it cannot be read.
    """
    manifest = read_manifest(run)
    connection = duckdb.connect()
    connection.execute("SET parquet_can_have_nan = true")
    parts, audit = list_places(run, manifest)
    paths = {name: [part / name / "*.parquet" for part in parts] for name in PARTS}
    paths |= {name: [audit / "audit" / f"{name}.parquet"] for name in AUDIT_TABLES}
    try:
        for name, places in paths.items():
            literals = ", ".join(_quote_glob(path) for path in places)
            sql = f"FROM read_parquet([{literals}], union_by_name = {len(places) > 1})"
            connection.execute(f"CREATE VIEW {name} AS {sql}")
        for name in PARTS:
            connection.execute(f"CREATE MACRO {macro_over(name, is_store=is_store(manifest))}")
    except duckdb.Error as error:
        connection.close()
        raise InputError(f"{run}: {name} cannot be read: {error}") from None
    return connection


def _quote_glob(path: Path) -> str:
    literal = _escape_glob(path.parent) + "/" + path.name
    return "'" + literal.replace("'", "''") + "'"


def _escape_glob(path: Path) -> str:
    return re.sub(r"([*?\[])", r"[\1]", str(path.absolute()))


def ask(connection: duckdb.DuckDBPyConnection, sql: str) -> Answer:
    """Run one statement and return its result.

    Raises:
        SettingsError: there is no statement, or it is not SQL that DuckDB accepts.
        InputError: a file of the run is damaged.
    """
    try:
        if not connection.extract_statements(sql):
            raise SettingsError("query: found no statement, expected SQL")
        result = connection.execute(sql)
        columns = [column[0] for column in result.description or []]
        first = result.fetchmany(FETCH_ROWS)
    except WRONG_SQL as error:
        raise SettingsError(f"query: {error}") from None
    except duckdb.Error as error:
        raise InputError(f"query: {error}") from None

    def batches() -> Iterator[list[tuple[object, ...]]]:
        rows = first
        while rows:
            yield rows
            rows = result.fetchmany(FETCH_ROWS)

    return Answer(columns, batches())


def describe_tables(
    connection: duckdb.DuckDBPyConnection, *, brief: bool
) -> list[tuple[str, str, str, str]]:
    """Return table, column, type and meaning of everything that can be queried.

    Args:
        connection: of `open_run`.
        brief: whether the columns that each reason has stand in one row.
    """
    rows: list[tuple[str, str, str, str]] = []
    for table in (*PARTS, *AUDIT_TABLES):
        meanings = {column.name: column.meaning for column in load_columns(table)}
        for name, kind, *_ in connection.execute(f"DESCRIBE {table}").fetchall():
            meaning = meanings.get(name, "carried from the log")
            if brief and name.startswith(BY_REASON):
                name = next(each for each in BY_REASON if name.startswith(each)) + "<reason>"
            if (table, name, kind, meaning) not in rows[-1:]:
                rows.append((table, name, kind, meaning))
    return rows


def compare_tables(run: Path, names: Sequence[str]) -> list[str]:
    """Return how the tables in audit.duckdb differ from the Parquet files, a sentence each.

    Args:
        run: the run directory.
        names: the tables whose Parquet files can be read.

    Raises:
        InputError: audit.duckdb cannot be read.
    """
    name = "list"
    try:
        with duckdb.connect(run / "audit.duckdb", read_only=True) as connection:
            listed = connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()
            there = [each for each in names if (each,) in listed]
            found = [f"audit.duckdb: it has no table {each}" for each in names if each not in there]
            for name in there:
                only = _count_differing(connection, name, run / "audit" / f"{name}.parquet")
                if any(only):
                    found.append(
                        f"audit.duckdb: table {name} has {only[0]} rows that the Parquet file has "
                        f"not, and lacks {only[1]} of its rows"
                    )
    except duckdb.Error as error:
        raise InputError(f"audit.duckdb: table {name} cannot be compared: {error}") from None
    return found


def _count_differing(
    connection: duckdb.DuckDBPyConnection, name: str, path: Path
) -> tuple[int, int]:
    """Return how many rows only the table has, and how many only the Parquet file."""
    literal = _escape_glob(path).replace("'", "''")
    tables = (f'"{name}"', f"read_parquet('{literal}')")
    counts = []
    for one, other in (tables, tables[::-1]):
        sql = f"SELECT count(*) FROM (FROM {one} EXCEPT ALL FROM {other})"
        counts.append(int(connection.execute(sql).fetchall()[0][0]))
    return counts[0], counts[1]
