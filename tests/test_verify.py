"""`vtaudit verify`: a sound run holds, and whatever was changed in it is found."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest

from commands import SAMPLE_LOGS, invoke, read_manifest
from logs import Cells, make_row, make_stream, write_rows
from vtaudit import InputError, Settings, process, shards
from vtaudit.verification import verify
from vtaudit.verification.comparison import Verification

NAN, INF = math.nan, math.inf
TARGETS, REJECTS = "targets/part-00000.parquet", "rejects/part-00000.parquet"
AUDIT = "audit/audit.parquet"
ALL_FILES = (
    *(TARGETS, REJECTS, "audit.duckdb"),
    *(f"audit/{name}.parquet" for name in ("audit", "audit_by", "files", "runs", "summary")),
)
Change = Callable[[pl.DataFrame], pl.DataFrame]


def make_log() -> list[Cells]:
    """Two streams: a gap behind a rejected row, a duplicate, a truncation, two windows."""
    rows = make_stream(6, unroll_id=0, policy_version=3)
    rows[2]["reward"] = None
    rows += [dict(rows[1]), make_row(0, trajectory_id="u", unroll_id=0, policy_version=4)]
    rows += [make_row(1, trajectory_id="u", unroll_id=1, policy_version=4)]
    rows[-1] |= {"truncated": True, "bootstrap_value": 0.5, "behavior_log_prob": -2.0}
    return rows


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of `make_log` beside its logs."""
    home = tmp_path_factory.mktemp("sound")
    write_rows(make_log(), home / "logs" / "a.parquet")
    return process(home / "logs", home / "run", Settings(backend="numba")).path


@pytest.fixture
def run(sound: Path, tmp_path: Path) -> Path:
    """A copy of the sound run that a test may change."""
    shutil.copytree(sound, tmp_path / "run")
    return tmp_path / "run"


def repair(run: Path, *names: str) -> None:
    """Write the fingerprints of changed files into the manifest."""
    manifest = read_manifest(run)
    for name in names:
        body = (run / name).read_bytes()
        manifest["outputs"][name] = {
            "bytes": len(body),
            "sha256": hashlib.sha256(body).hexdigest(),
        }
    (run / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")


def edit(run: Path, name: str, change: Change) -> None:
    """Change a table of the run, and its fingerprint."""
    change(pl.read_parquet(run / name)).write_parquet(run / name)
    repair(run, name)


def flip_bit(path: Path, place: int) -> None:
    body = bytearray(path.read_bytes())
    body[place] ^= 1
    path.write_bytes(body)


def write_log(home: Path, rows: list[Cells], **settings: Any) -> Path:
    types = settings.pop("types", None)
    write_rows(rows, home / "logs" / "a.parquet", types)
    chosen = Settings(**{"backend": "reference", **settings})
    return process(home / "logs", home / "run", chosen).path


def is_sound(found: Verification) -> bool:
    return (found.damaged, found.broken, found.skipped) == ([], [], [])


def text(found: Verification) -> str:
    return "\n".join([*found.damaged, *found.broken])


def test_sample_run_holds_when_nothing_changed(tmp_path: Path) -> None:
    run = process(SAMPLE_LOGS, tmp_path / "run", Settings(carry=("observation",))).path
    result = invoke("verify", run)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "10,600 rows of targets, 1,182 of 1,182 segments" in result.stdout
    assert "1,400 rows of rejects" in result.stdout
    assert "everything holds" in result.stdout
    printed = json.loads(invoke("verify", run, "--json").stdout)
    assert (printed["damaged"], printed["broken"], printed["skipped"]) == ([], [], [])
    largest = printed["largest"]["value_target"]
    assert 0 < largest["difference"] < 1e-6
    assert largest["trajectory_id"].startswith("actor_")


@pytest.mark.parametrize(
    ("rows", "settings"),
    [
        pytest.param(make_log(), {"dtype": "float64"}, id="float64"),
        pytest.param(make_log(), {"targets": False}, id="no targets"),
        pytest.param(make_log(), {"weights": True, "rho_bar": INF}, id="weights"),
        pytest.param(make_log(), {"windows": "stitched"}, id="stitched"),
        pytest.param(make_log(), {"carry": ("all",)}, id="carry"),
        pytest.param([make_row(0, reward=None)], {}, id="all rejected"),
        pytest.param(
            [*make_stream(2, target_log_prob=-INF), make_row(7, reward=1e300, terminated=True)],
            {},
            id="target -inf and target not finite",
        ),
        pytest.param([*make_stream(2), make_row(None), make_row(-1)], {}, id="keys missing"),
        pytest.param(
            [*make_stream(2, trajectory_id=5), make_row(0, trajectory_id=None)],
            {"types": {"trajectory_id": pa.int64()}},
            id="integer ids",
        ),
        pytest.param(
            make_stream(2, observation=[NAN, None]),
            {"types": {"observation": pa.list_(pa.float32())}, "carry": ("observation",)},
            id="NaN in carried lists",
        ),
        pytest.param([*make_stream(2), *make_stream(2)], {"step_from": "order"}, id="order"),
        pytest.param(
            make_stream(3, reward=1e30, value=-1e30, truncated=False), {}, id="huge numbers"
        ),
        pytest.param([*make_stream(2, valid=True), make_row(5, valid=False)], {}, id="padding"),
    ],
)
def test_run_holds_when_nothing_changed(
    rows: list[Cells], settings: dict[str, Any], tmp_path: Path
) -> None:
    found = verify(write_log(tmp_path, rows, **settings))
    assert is_sound(found), found


def test_run_with_scores_holds_and_needs_them(tmp_path: Path) -> None:
    scores = [{"trajectory_id": "t", "step": k, "value": 0.5} for k in range(4)]
    write_rows(scores, tmp_path / "scores" / "s.parquet")
    run = write_log(tmp_path, make_stream(3), scores=str(tmp_path / "scores"))
    assert is_sound(verify(run))
    (tmp_path / "scores").rename(tmp_path / "moved")
    assert "scores is not there" in verify(run).skipped[0]
    assert is_sound(verify(run, scores=tmp_path / "moved"))


@pytest.mark.parametrize("name", ALL_FILES)
def test_flipped_bit_is_found_and_the_rest_is_compared(name: str, run: Path) -> None:
    flip_bit(run / name, (run / name).stat().st_size // 2)
    result = invoke("verify", run, "--json")
    assert result.exit_code == InputError.exit_code == 3
    found = json.loads(result.stdout)
    assert found["damaged"] == [f"{name}: its content has changed since the run wrote it"]
    assert found["broken"] == []
    assert found["skipped"] or name.endswith("runs.parquet")
    assert any("with the rules" in line for line in found["compared"])
    assert any("with the float64 reference" in line for line in found["compared"])


@pytest.mark.parametrize("name", ALL_FILES)
@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
def test_flipped_byte_is_found_when_its_fingerprint_is_repaired(
    name: str, part: float, run: Path
) -> None:
    path = run / name
    size = path.stat().st_size
    body = bytearray(path.read_bytes())
    for place in range(int(part * size), int(part * size) + size // 20):
        body[place] ^= 0x55
    path.write_bytes(body)
    repair(run, name)
    found = verify(run)
    if is_sound(found):
        assert name.endswith((".duckdb", "runs.parquet"))
        pytest.skip("no table holds the bytes")
    assert name.rpartition("/")[2].partition(".")[0] in text(found), found


@pytest.mark.parametrize("name", ALL_FILES)
def test_lost_file_is_found(name: str, run: Path) -> None:
    (run / name).unlink()
    result = invoke("verify", run)
    assert result.exit_code == 3
    assert f"{name}: not there" in result.stdout
    assert "does not hold: 1 damaged, 0 broken" in result.stderr


def test_strange_file_is_found(run: Path) -> None:
    shutil.copy(run / TARGETS, run / "targets" / "part-00001.parquet")
    result = invoke("verify", run)
    assert result.exit_code == 3
    assert "targets/part-00001.parquet: there, though" in result.stdout
    repair(run, "targets/part-00001.parquet")
    found = verify(run)
    assert found.damaged == []
    assert "accepted = rows of targets: 7 and 14" in found.broken


def raise_count(measure: str, kind: str | None, *, fraction: bool) -> Change:
    """Add 1 to a count of the table audit, and to its fraction's numerator too."""
    here = (pl.col("measure") == measure) & pl.col("kind").eq_missing(pl.lit(kind, pl.String))
    raised = [pl.when(here).then(pl.col("count") + 1).otherwise("count").alias("count")]
    if fraction:
        new = (pl.col("count") + 1) / pl.col("denominator")
        raised.append(pl.when(here).then(new).otherwise("fraction").alias("fraction"))
    return lambda table: table.with_columns(raised)


@pytest.mark.parametrize("fraction", [False, True])
@pytest.mark.parametrize(
    ("measure", "kind"),
    [
        *((name, None) for name in ("padding", "received", "accepted", "rejected", "pending")),
        *((name, None) for name in ("unique", "deliveries", "windows", "deliveries_duplicate")),
        ("rejected_any", "duplicate"),
        ("rejected_primary", "value_not_finite"),
        ("warning", "ends_both"),
        ("clipped", "rho"),
        ("clipped_received", "c"),
        ("boundary", "gap"),
        ("bootstrap", "logged"),
    ],
)
def test_edited_count_breaks_a_law(
    measure: str, kind: str | None, fraction: bool, run: Path
) -> None:
    edit(run, AUDIT, raise_count(measure, kind, fraction=fraction))
    result = invoke("verify", run)
    assert result.exit_code == 70
    assert (kind or measure) in result.stdout.split("broken")[1]


@pytest.mark.parametrize("measure", ["unique", "warning", "deliveries"])
def test_count_is_found_when_it_was_edited_everywhere(measure: str, run: Path) -> None:
    kind = "ends_both" if measure == "warning" else None
    edit(run, AUDIT, raise_count(measure, kind, fraction=True))
    if kind is None:
        edit(run, "audit/summary.parquet", lambda t: t.with_columns(pl.col(measure) + 1))
    with duckdb.connect(run / "audit.duckdb") as connection:
        for name in ("audit", "summary"):
            path = run / "audit" / f"{name}.parquet"
            connection.execute(f"CREATE OR REPLACE TABLE {name} AS FROM read_parquet('{path}')")
    manifest = read_manifest(run)
    if kind is None:
        manifest["counts"][measure] += 1
    (run / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    repair(run, "audit.duckdb")
    found = verify(run)
    assert (found.damaged, len(found.broken)) == ([], 1 + (kind is None)) or measure == "deliveries"
    assert any(f"audit {measure}" in line and "the logs give" in line for line in found.broken)


@pytest.mark.parametrize("name", ["audit", "audit_by", "files", "summary"])
def test_count_edited_in_the_duckdb_file_is_found(name: str, run: Path) -> None:
    column = {"files": "rows", "summary": "accepted"}.get(name, "count")
    with duckdb.connect(run / "audit.duckdb") as connection:
        connection.execute(f"UPDATE {name} SET {column} = {column} + 1")
    repair(run, "audit.duckdb")
    result = invoke("verify", run)
    assert result.exit_code == 70
    assert f"audit.duckdb: table {name} has" in result.stdout


def test_table_dropped_from_the_duckdb_file_is_found(run: Path) -> None:
    with duckdb.connect(run / "audit.duckdb") as connection:
        connection.execute("DROP TABLE runs")
    repair(run, "audit.duckdb")
    assert verify(run).broken == ["audit.duckdb: it has no table runs"]


@pytest.mark.parametrize("name", ["audit_by", "files"])
def test_row_dropped_from_an_audit_table_is_found(name: str, run: Path) -> None:
    edit(run, f"audit/{name}.parquet", lambda table: table.slice(0, table.height - 1))
    assert any(line.startswith(f"{name}: it has") for line in verify(run).broken)


@pytest.mark.parametrize("name", [TARGETS, REJECTS])
def test_deleted_row_is_found_when_its_fingerprint_is_repaired(name: str, run: Path) -> None:
    edit(run, name, lambda table: table.slice(1))
    result = invoke("verify", run)
    assert result.exit_code == 70
    assert f"{name}: 1 rows, as" in result.stdout
    assert "not there, though the logs give it" in result.stdout


@pytest.mark.parametrize("name", [TARGETS, REJECTS])
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda table: pl.concat([table, table.slice(0, 1)]), id="copied"),
        pytest.param(lambda table: table.reverse(), id="reversed"),
    ],
)
def test_copied_or_moved_row_is_found(name: str, change: Change, run: Path) -> None:
    edit(run, name, change)
    assert f"{name}: rows stand there twice, or in another order" in verify(run).broken


def add_to(column: str, amount: float) -> Change:
    """Add to a number of the second row."""
    here = pl.int_range(pl.len()) == 1
    new = pl.when(here).then(pl.col(column) + amount).otherwise(column)
    return lambda table: table.with_columns(new.cast(table.schema[column]).alias(column))


@pytest.mark.parametrize("name", ["value_target", "advantage", "trace_length"])
def test_changed_number_is_found_with_its_place_and_size(name: str, run: Path) -> None:
    edit(run, TARGETS, add_to(name, 1e-4))
    result = invoke("verify", run, "--json")
    assert result.exit_code == 70
    found = json.loads(result.stdout)
    assert len(found["broken"]) == 1
    assert f"{TARGETS}, {name}: 1 rows differ; t step 1 has" in found["broken"][0]
    largest = found["largest"][name]
    assert largest["difference"] == pytest.approx(1e-4, rel=1e-2)
    assert (largest["trajectory_id"], largest["step"]) == ("t", 1)


@pytest.mark.parametrize("name", ["value", "next_value", "reward", "discount", "log_ratio"])
def test_changed_input_is_found_when_it_is_off_by_one_bit(name: str, run: Path) -> None:
    edit(run, TARGETS, add_to(name, 2.0**-22))
    assert any(f", {name}: 1 rows differ" in line for line in verify(run).broken)


@pytest.mark.parametrize(
    ("name", "column", "value"),
    [
        (TARGETS, "boundary", "gap"),
        (TARGETS, "bootstrap_source", "policy"),
        (TARGETS, "source_row", 99),
        (TARGETS, "source_file", "b.parquet"),
        (TARGETS, "policy_version", None),
        (TARGETS, "value_target", NAN),
        (TARGETS, "value_target", None),
        (REJECTS, "reasons", ["duplicate"]),
        (REJECTS, "primary_reason", "duplicate"),
        (REJECTS, "step", 0),
    ],
)
def test_changed_cell_is_found(name: str, column: str, value: object, run: Path) -> None:
    def change(table: pl.DataFrame) -> pl.DataFrame:
        cells = table[column].to_list()
        cells[-1] = value
        return table.with_columns(pl.Series(column, cells, table.schema[column]))

    edit(run, name, change)
    assert any(line.startswith(f"{name}, {column}:") for line in verify(run).broken)


def test_other_columns_are_found(run: Path) -> None:
    edit(run, TARGETS, lambda table: table.drop("advantage"))
    edit(run, REJECTS, lambda table: table.with_columns(pl.col("step").cast(pl.Int32)))
    expected = [f"{name}: its columns or their types are not those" for name in (TARGETS, REJECTS)]
    assert all(any(line.startswith(each) for line in verify(run).broken) for each in expected)


def test_lost_logs_are_said_and_the_rest_is_compared(sound: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    shutil.copytree(sound.parent, home)
    manifest = read_manifest(home / "run")
    manifest["logs"] = [str(tmp_path / "nowhere")]
    (home / "run" / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    result = invoke("verify", home / "run")
    assert result.exit_code == 0
    assert "rows against the logs" in result.stdout
    assert "say --logs DIR" in result.stdout
    assert "what was compared holds" in result.stdout
    result = invoke("verify", home / "run", "--logs", home / "logs")
    assert result.exit_code == 0
    assert "everything holds" in result.stdout
    edit(home / "run", TARGETS, lambda table: table.slice(1))
    assert invoke("verify", home / "run").exit_code == 70


def test_logs_of_another_run_are_refused(run: Path, tmp_path: Path) -> None:
    result = invoke("verify", run, "--logs", SAMPLE_LOGS)
    assert result.exit_code == 3
    assert "the run read a.parquet" in result.stdout
    write_rows(make_stream(3), tmp_path / "other" / "a.parquet")
    result = invoke("verify", run, "--logs", tmp_path / "other")
    assert result.exit_code == 3
    assert "a.parquet has changed since the run read it" in result.stdout
    assert "8 files: with their fingerprints" in result.stdout
    assert invoke("verify", run, "--logs", tmp_path / "nowhere").exit_code == 3


def test_no_run_is_refused_in_one_line(tmp_path: Path, run: Path) -> None:
    result = invoke("verify", tmp_path)
    assert (result.exit_code, len(result.stderr.splitlines())) == (3, 1)
    manifest = read_manifest(run)
    for key, value in (("settings", {"unknown": 1}), ("settings", {"gamma": 7}), ("outputs", None)):
        changed = {name: each for name, each in (manifest | {key: value}).items() if each}
        (run / "manifest.json").write_text(json.dumps(changed), encoding="utf-8")
        result = invoke("verify", run)
        assert (result.exit_code, len(result.stderr.splitlines())) == (3, 1), result.stderr


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the sample data in several shards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "SHARD_ROWS", 3000)
        out = tmp_path_factory.mktemp("sharded") / "run"
        return process(SAMPLE_LOGS, out, Settings(backend="numba")).path


@pytest.fixture
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "SHARD_ROWS", 3000)


@pytest.mark.usefixtures("few_rows")
def test_run_of_several_shards_holds(sharded: Path) -> None:
    assert len(list((sharded / "targets").iterdir())) > 1
    assert is_sound(verify(sharded))


@pytest.mark.usefixtures("few_rows")
def test_sample_is_of_the_size_asked_for_and_of_its_seed(sharded: Path) -> None:
    one, same, other = (verify(sharded, sample=20, seed=seed) for seed in (1, 1, 2))
    assert any("20 of 1,182 segments" in line for line in one.compared)
    assert one == same
    assert one.compared != other.compared
    assert one.broken == []
    assert any("sample" in line for line in one.skipped)
    whole = verify(sharded, sample=5000)
    assert any("1,182 of 1,182 segments" in line for line in whole.compared)


@pytest.mark.usefixtures("few_rows")
def test_sample_finds_what_stands_in_it(sharded: Path, tmp_path: Path) -> None:
    shutil.copytree(sharded, tmp_path / "run")
    for name in sorted(path.name for path in (sharded / "targets").iterdir()):
        changed = (pl.col("value_target") + 1).cast(pl.Float32)
        edit(tmp_path / "run", f"targets/{name}", lambda t: t.with_columns(changed))  # noqa: B023
    found = verify(tmp_path / "run", sample=2)
    assert any("value_target" in line for line in found.broken)
    assert found.largest["value_target"].difference == pytest.approx(1, rel=1e-3)


def test_sample_still_compares_the_rejects(run: Path) -> None:
    edit(run, REJECTS, lambda table: table.slice(1))
    found = verify(run, sample=1)
    assert any(line.startswith(REJECTS) for line in found.broken)


def test_rules_of_another_version_are_said(run: Path) -> None:
    manifest = read_manifest(run)
    manifest["versions"]["vtaudit"] = "0.0.1"
    (run / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    found = verify(run)
    assert found.skipped[0].startswith("with vtaudit 0.0.1")


def test_files_of_these_tests_are_those_of_a_run(sound: Path) -> None:
    assert sorted(read_manifest(sound)["outputs"]) == sorted(ALL_FILES)


def raise_denominator(measure: str) -> Change:
    """Add 1 to a count that is a denominator of others."""
    counted = (pl.col("measure") == measure) & pl.col("kind").is_null()
    return lambda table: table.with_columns(
        pl.when(counted).then(pl.col("count") + 1).otherwise("count").alias("count")
    )


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (raise_count("warning", "ends_both", fraction=False), "audit warning ends_both: fraction"),
        (raise_denominator("deliveries"), "denominator 4 is not deliveries, 5"),
        (raise_count("accepted", None, fraction=True), "received = accepted + rejected + pending"),
    ],
)
def test_counts_are_held_against_each_other_when_the_logs_are_lost(
    change: Change, told: str, run: Path, tmp_path: Path
) -> None:
    manifest = read_manifest(run)
    manifest["logs"] = [str(tmp_path / "nowhere")]
    (run / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    edit(run, AUDIT, change)
    assert any(told in line for line in verify(run).broken), verify(run).broken
