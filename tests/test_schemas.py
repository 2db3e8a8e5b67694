"""schemas/ is what the tables of a run are, in the Parquet, in DuckDB and in the wheel."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from commands import ROOT, ROWS, SAMPLE_LOGS, make_table, write_files
from vtaudit import Settings, process
from vtaudit.errors import SchemaError
from vtaudit.reasons import BOOTSTRAP_SOURCES, BOUNDARIES, Reason, Warn
from vtaudit.schemas import TABLES, load_columns

AUDIT_TABLES = ("summary", "audit", "audit_by", "files", "runs")
TYPES = {
    "string": pa.string(),
    "int64": pa.int64(),
    "float64": pa.float64(),
    "list<string>": pa.list_(pa.field("element", pa.string(), nullable=False)),
    "map<string,float64>": pa.map_(pa.string(), pa.float64()),
}
DUCKDB_TYPES = {
    "string": "VARCHAR",
    "int64": "BIGINT",
    "float64": "DOUBLE",
    "map<string,float64>": "MAP(VARCHAR, DOUBLE)",
}
KINDS: dict[str, tuple[str | None, ...]] = {
    "rejected_any": tuple(reason.code for reason in Reason),
    "rejected_primary": tuple(reason.code for reason in Reason),
    "warning": tuple(warning.code for warning in Warn),
    "clipped": ("rho", "c", "pg_rho"),
    "clipped_received": ("rho", "c", "pg_rho"),
    "boundary": BOUNDARIES,
    "bootstrap": BOOTSTRAP_SOURCES,
}


def read_schema(table: str) -> dict[str, Any]:
    schema: dict[str, Any] = json.loads((ROOT / "schemas" / f"{table}.json").read_text())
    return schema


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the run of the sample logs."""
    out = tmp_path_factory.mktemp("sample") / "run"
    process(SAMPLE_LOGS, out, Settings(backend="numba"))
    return out


def read_audit(run: Path, table: str) -> pa.Table:
    return pq.read_table(run / "audit" / f"{table}.parquet")


def expected_fields(
    table: str, *, trajectory: str = "string", unroll: str = "string", real: str = "float32"
) -> list[pa.Field]:
    """Return the fields that schemas/ promises, optional columns left out."""
    ids = {"trajectory_id": trajectory, "unroll_id": unroll}
    types = {**TYPES, "real": pa.type_for_alias(real)}
    fields = []
    for column in read_schema(table)["columns"]:
        if "optional" in column:
            continue
        names = [column["name"]]
        if column.get("each") == "reason":
            names = [names[0].replace("<reason>", reason.code) for reason in Reason]
        if column["type"] == "id":
            types["id"] = pa.type_for_alias(ids[column["name"]])
        fields += [pa.field(name, types[column["type"]], column["nullable"]) for name in names]
    return fields


def check_fields(path: Path, expected: list[pa.Field]) -> None:
    found = list(pq.read_schema(path))
    assert [field.name for field in found] == [field.name for field in expected]
    for field, wanted in zip(found, expected, strict=True):
        assert field.type == wanted.type, field.name
        assert field.nullable == wanted.nullable, field.name


@pytest.mark.parametrize("table", sorted(path.stem for path in (ROOT / "schemas").iterdir()))
def test_schema_file_is_complete(table: str) -> None:
    schema = read_schema(table)
    assert (schema["table"], schema["version"]) == (table, 1)
    assert schema["description"].endswith(".")
    names = [column["name"] for column in schema["columns"]]
    assert len(set(names)) == len(names) > 0
    for column in schema["columns"]:
        assert column["name"]
        assert column["type"]
        assert isinstance(column["nullable"], bool)
        assert column["meaning"]
    assert load_columns(table)[0].name == names[0]


def test_every_schema_file_is_a_table_and_the_reverse() -> None:
    assert sorted(path.name for path in (ROOT / "schemas").iterdir()) == sorted(
        f"{table}.json" for table in TABLES
    )


def test_unknown_table_is_refused_with_the_valid_ones() -> None:
    with pytest.raises(SchemaError, match=r"did you mean targets\?.*valid: audit"):
        load_columns("target")


@pytest.mark.parametrize("table", ["targets", "rejects"])
def test_rows_have_the_schema(table: str, run: Path) -> None:
    (path,) = (run / table).iterdir()
    check_fields(path, expected_fields(table, unroll="int64"))


@pytest.mark.parametrize("table", AUDIT_TABLES)
def test_audit_tables_have_the_schema(table: str, run: Path) -> None:
    check_fields(run / "audit" / f"{table}.parquet", expected_fields(table))


def test_audit_directory_holds_the_tables_and_no_other(run: Path) -> None:
    assert {path.stem for path in (run / "audit").iterdir()} == set(AUDIT_TABLES)


@pytest.mark.parametrize("table", ["targets", "rejects"])
def test_empty_tables_have_the_schema(table: str, tmp_path: Path) -> None:
    values = [math.nan] * ROWS if table == "targets" else [0.0] * ROWS
    logs = write_files(tmp_path / "logs", {"a.parquet": make_table(value=values)})
    process(logs, tmp_path / "run", Settings(backend="reference"))
    (path,) = (tmp_path / "run" / table).iterdir()
    assert pq.read_metadata(path).num_rows == 0
    check_fields(path, expected_fields(table))


def test_targets_asked_for_in_float64_with_number_ids_and_weights(tmp_path: Path) -> None:
    numbers = pa.array([1] * ROWS, pa.int32())
    table = make_table(trajectory_id=numbers, unroll_id=numbers, obs=[0.5] * ROWS)
    logs = write_files(tmp_path / "logs", {"a.parquet": table})
    settings = Settings(backend="reference", dtype="float64", weights=True, carry=("obs",))
    process(logs, tmp_path / "run", settings)
    expected = expected_fields("targets", trajectory="int64", unroll="int64", real="float64")
    expected += [pa.field(name, pa.float64(), False) for name in ("rho", "c", "pg_rho")]
    expected += [pa.field("obs", pa.float64())]
    (path,) = (tmp_path / "run" / "targets").iterdir()
    check_fields(path, expected)


@pytest.mark.parametrize("table", AUDIT_TABLES)
def test_duckdb_holds_the_same_tables(table: str, run: Path) -> None:
    columns = read_schema(table)["columns"]
    types = {column["name"]: DUCKDB_TYPES[column["type"]] for column in columns}
    with duckdb.connect(str(run / "audit.duckdb"), read_only=True) as connection:
        described = connection.execute(f"DESCRIBE {table}").fetchall()
        rows = connection.execute(f"FROM {table}").fetchall()
    parquet = read_audit(run, table)
    assert [name for name, *_ in described] == parquet.column_names
    for name, type_, *_ in described:
        assert type_ == types.get(name, "BIGINT"), name
    expected = [tuple(row.values()) for row in parquet.to_pylist(maps_as_pydicts="strict")]
    assert rows == expected
    assert rows


def test_duckdb_holds_the_tables_and_no_other(run: Path) -> None:
    with duckdb.connect(str(run / "audit.duckdb"), read_only=True) as connection:
        tables = connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()
    assert {name for (name,) in tables} == set(AUDIT_TABLES)


def count_rows(database: Path, macro: str, run: Path) -> int:
    with duckdb.connect(str(database), read_only=True) as connection:
        (count,) = connection.execute(f"SELECT count(*) FROM {macro}(?)", [str(run)]).fetchall()[0]
    return int(count)


def test_macros_read_the_run_wherever_it_is(run: Path, tmp_path: Path) -> None:
    summary = read_audit(run, "summary").to_pylist()[0]
    moved = tmp_path / "it's [moved]" / "run"
    shutil.copytree(run, tmp_path / "copy")
    moved.parent.mkdir()
    (tmp_path / "copy").rename(moved)
    for home in (run, moved):
        assert count_rows(home / "audit.duckdb", "targets", run) == summary["accepted"]
        assert count_rows(home / "audit.duckdb", "rejects", run) == summary["rejected"]
    plain = tmp_path / "plain"
    moved.rename(plain)
    assert count_rows(plain / "audit.duckdb", "targets", plain) == summary["accepted"]


def test_macros_read_a_run_whose_path_is_a_pattern(run: Path, tmp_path: Path) -> None:
    summary = read_audit(run, "summary").to_pylist()[0]
    odd = tmp_path / "it's a run; DROP TABLE audit; --"
    shutil.copytree(run, odd)
    assert count_rows(odd / "audit.duckdb", "targets", odd) == summary["accepted"]


def test_duckdb_storage_is_of_1_0_0(run: Path) -> None:
    with duckdb.connect(str(run / "audit.duckdb"), read_only=True) as connection:
        query = "SELECT tags FROM duckdb_databases() WHERE NOT internal"
        (tags,) = connection.execute(query).fetchall()[0]
    assert tags["storage_version"].startswith("v1.0.0")
    # the header of a database: a checksum, a mark, and the storage version, 64 since 0.10
    header = (run / "audit.duckdb").read_bytes()[:20]
    assert header[8:12] == b"DUCK"
    assert int.from_bytes(header[12:20], "little") == 64


@pytest.mark.parametrize("statistics", [True, False])
def test_nan_of_a_carried_column_is_seen_by_a_plain_query(statistics: bool, tmp_path: Path) -> None:
    obs = [math.nan, 1.0, math.nan, 2.0, 3.0, math.nan]
    nested = pa.array([{"x": number, "step": number} for number in obs])
    table = make_table(obs=obs, small=pa.array(obs, pa.float32()), nested=nested)
    logs = tmp_path / "logs"
    logs.mkdir()
    pq.write_table(table, logs / "a.parquet", write_statistics=statistics)
    carry = ("obs", "small", "nested")
    process(logs, tmp_path / "run", Settings(backend="reference", carry=carry))
    files = str(tmp_path / "run" / "targets" / "*.parquet")
    for column in ("obs", "small", "nested.x", "nested.step"):
        query = f"SELECT count(*) FROM read_parquet(?) WHERE isnan({column})"
        assert duckdb.execute(query, [files]).fetchall() == [(3,)], column


def test_no_column_that_can_hold_nan_has_statistics(run: Path) -> None:
    for path in run.rglob("*.parquet"):
        group = pq.ParquetFile(path).metadata.row_group(0)
        for place in range(group.num_columns):
            column = group.column(place)
            if column.physical_type in ("FLOAT", "DOUBLE"):
                assert not column.is_stats_set, (path.name, column.path_in_schema)


def test_keys_have_statistics_to_skip_by(run: Path) -> None:
    (path,) = (run / "targets").iterdir()
    group = pq.ParquetFile(path).metadata.row_group(0)
    columns = {group.column(k).path_in_schema: group.column(k) for k in range(group.num_columns)}
    assert columns["trajectory_id"].statistics.min == "actor_0/env_0"
    assert columns["step"].statistics.min == 0


def test_measures_are_those_of_the_schema(run: Path) -> None:
    rows = read_audit(run, "audit").to_pylist()
    assert list(dict.fromkeys(row["measure"] for row in rows)) == [
        *read_schema("audit")["measures"]
    ]
    found = [(row["measure"], row["kind"]) for row in rows]
    assert found == [
        (measure, kind)
        for measure in read_schema("audit")["measures"]
        for kind in KINDS.get(measure, (None,))
    ]


@pytest.mark.parametrize("table", ["audit", "audit_by"])
def test_fraction_is_count_over_denominator_or_null_with_a_reason(table: str, run: Path) -> None:
    for row in read_audit(run, table).to_pylist():
        if row["fraction"] is None:
            assert table == "audit_by" or row["null_reason"], row
            assert row["count"] is None or not row["denominator"], row
        else:
            assert row["fraction"] == row["count"] / row["denominator"]
            assert row["denominator_measure"]
            assert row.get("null_reason") is None


def test_scopes_are_those_of_the_schema(run: Path) -> None:
    rows = read_audit(run, "audit_by").to_pylist()
    (column,) = [c for c in read_schema("audit_by")["columns"] if c["name"] == "scope"]
    assert {row["scope"] for row in rows} <= set(column["values"])
    assert {"batch", "source_file", "policy_version"} <= {row["scope"] for row in rows}
    assert all(row["count"] for row in rows)


@pytest.mark.parametrize("column", ["boundary", "bootstrap_source"])
def test_values_are_those_of_the_schema(column: str, run: Path) -> None:
    (entry,) = [c for c in read_schema("targets")["columns"] if c["name"] == column]
    found = set(pq.read_table(run / "targets", columns=[column])[column].to_pylist())
    assert found <= set(entry["values"])
    assert len(found) > 1


@pytest.fixture(scope="module")
def unpacked_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory that holds what a wheel of this checkout installs."""
    home = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(home)]
    done = subprocess.run([*command, str(ROOT)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = home.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(home / "site")
    return home / "site"


def test_wheel_loads_every_schema_from_its_own_copy(unpacked_wheel: Path, tmp_path: Path) -> None:
    code = (
        "import json, vtaudit; from vtaudit import schemas;"
        "print(json.dumps([vtaudit.__file__, str(schemas._folder()),"
        "{table: [c.name for c in schemas.load_columns(table)] for table in schemas.TABLES}]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(unpacked_wheel)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    package, folder, columns = json.loads(done.stdout)
    assert Path(package).parent == unpacked_wheel / "vtaudit"
    assert Path(folder) == unpacked_wheel / "vtaudit" / "_schemas"
    assert columns == {table: [c.name for c in load_columns(table)] for table in TABLES}


def test_wheel_holds_the_schemas_as_they_are(unpacked_wheel: Path) -> None:
    packed = unpacked_wheel / "vtaudit" / "_schemas"
    assert {path.name: path.read_bytes() for path in packed.iterdir()} == {
        path.name: path.read_bytes() for path in (ROOT / "schemas").iterdir()
    }
