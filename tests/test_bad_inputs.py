"""Files and logs as they go wrong in practice: what the run makes of each."""

from __future__ import annotations

import gzip
import io
import json
import math
import os
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

from commands import ROOT, ROWS, invoke, make_table, write_files
from vtaudit import audit as audit_module
from vtaudit import reading as reading_module
from vtaudit import sources as sources_module

CASES = ROOT.parent / "shared" / "cases" / "bad_inputs.json"
LATER = {
    "fuzzed": "files are not decoded in a child process yet",
    "huge_row_group": "a row group of 3 GiB is too much for a test; no cap on memory yet",
    "torch_pickle": "there is no --policy yet",
}
GOOD = make_table()
NAN, INF = math.nan, math.inf
MASK = [[True, False, True]] * ROWS
LIST = pa.list_(pa.bool_())


@dataclass(frozen=True)
class Case:
    """A log, and what `vtaudit process` makes of it.

    Attributes:
        write: writes the log into a directory.
        accepted: rows.
        reasons: rows by reason, not exclusive.
        unreadable: part of the error of each unreadable file, by its name.
        refused: words of the message where the run does not start, exit code 3.
        files: number of files found.
        options: of the command.
    """

    write: Callable[[Path], object]
    accepted: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)
    refused: tuple[str, ...] = ()
    files: int = 2
    options: tuple[str, ...] = ("--backend", "reference")
    received: int | None = None


def pair(first: pa.Table | bytes, second: pa.Table | bytes) -> Callable[[Path], object]:
    """Return what writes a.parquet and b.parquet."""
    return lambda logs: write_files(logs, {"a.parquet": first, "b.parquet": second})


def beside(body: pa.Table | bytes) -> Callable[[Path], object]:
    """Return what writes b.parquet beside a sound a.parquet."""
    return pair(GOOD, body)


def other(**columns: Any) -> pa.Table:
    return make_table("b", **columns)


def as_bytes(table: pa.Table, **options: Any) -> bytes:
    stream = io.BytesIO()
    pq.write_table(table, stream, **options)
    return stream.getvalue()


OTHER = as_bytes(other())


def arrow_file() -> bytes:
    stream = io.BytesIO()
    with pyarrow.ipc.new_file(stream, GOOD.schema) as writer:
        writer.write_table(GOOD)
    return stream.getvalue()


def with_twin(name: str) -> pa.Table:
    """Return sound rows with one more column of rewards."""
    return other().append_column(name, pa.array([1.0] * ROWS))


def long_table(**columns: Any) -> pa.Table:
    """Return 3,000 sound rows whose rewards are long and compress well."""
    rows = 500 * ROWS
    table = pa.concat_tables([other()] * 500)
    last = [False] * (rows - 1) + [True]
    replaced = {"step": list(range(rows)), "terminated": last, **columns}
    for name, column in replaced.items():
        table = table.set_column(table.column_names.index(name), name, pa.array(column))
    return table


def damaged(start: int, length: int, **options: Any) -> bytes:
    """Return a file with bytes of its pages of rewards inverted."""
    rewards = [float(place % 97) for place in range(500 * ROWS)]
    body = as_bytes(long_table(reward=rewards), use_dictionary=False, **options)
    group = pq.ParquetFile(io.BytesIO(body)).metadata.row_group(0)
    columns = [group.column(place) for place in range(group.num_columns)]
    (page,) = [each.data_page_offset for each in columns if each.path_in_schema == "reward"]
    place = page + start
    broken = bytes(byte ^ 0xFF for byte in body[place : place + length])
    return body[:place] + broken + body[place + length :]


def masked(table: pa.Table, layout: pa.DataType, rows: list[Any] = MASK) -> pa.Table:
    table = table.append_column("action", pa.array([0] * ROWS))
    is_flag = layout.value_type == pa.bool_()
    given = rows if is_flag else [[int(flag) for flag in row] for row in rows]
    table = table.append_column("behavior_action_mask", pa.array(given, layout))
    return table.append_column("target_action_mask", pa.array(rows, LIST))


def write_beside(name: str, make: Callable[[Path], object]) -> Callable[[Path], object]:
    """Return what writes a sound a.parquet and makes something at `name`."""

    def write(logs: Path) -> None:
        write_files(logs, {"a.parquet": GOOD})
        (logs / name).parent.mkdir(parents=True, exist_ok=True)
        make(logs / name)

    return write


def make_pipe_and_directory(path: Path) -> None:
    os.mkfifo(path)
    write_files(path.parent / "dir.parquet", {"c.parquet": other()})


MARKERS = {
    "a.parquet": GOOD,
    "_SUCCESS": b"",
    ".a.parquet.crc": b"x",
    "_temporary/b.parquet": OTHER,
    "_metadata": OTHER,
    ".hidden.parquet": OTHER,
    "._a.parquet": b"\0\5\x16\7",
    "part.parquet.tmp": OTHER,
    "notes.txt": b"x",
}
HIDDEN = {"a.parquet": GOOD, "_b.parquet": OTHER, ".c.parquet": OTHER, "_tmp/d.parquet": OTHER}
ODD_NAMES = ("we ird [x]*?{a}.parquet", "new\nline.parquet", "%2e.parquet", "日本.parquet")
ODD = {name: make_table(f"t{place}") for place, name in enumerate(ODD_NAMES)}
FOOTER = "Parquet magic bytes not found in footer"
PARTS = {"1": 1, "9": 9, "100": 100, "half": len(OTHER) // 2}
FOREIGN = {
    "magic": (OTHER[:-4] + b"XXXX", FOOTER),
    "gzip": (gzip.compress(OTHER), "not Parquet but gzip"),
    "csv": (b"trajectory_id,step\na,0\n", FOOTER),
    "html": (b"<html><body>403</body></html>", "not Parquet but HTML"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\n", "not Parquet but a Git LFS pointer"),
    "arrow": (arrow_file(), "not Parquet but an Arrow IPC file"),
}
LENGTHS = {"huge": struct.pack("<i", 2**31 - 1), "negative": struct.pack("<i", -1)}
LAYOUTS = (
    *(pa.list_(pa.bool_()), pa.large_list(pa.bool_()), pa.list_(pa.bool_(), 3)),
    *(pa.list_view(pa.bool_()), pa.large_list_view(pa.bool_()), pa.list_(pa.uint8())),
)
NOT_FINITE = [1.0, None, NAN, INF, -INF, 1.0]


def value_cases() -> Iterator[tuple[str, Case]]:
    """Yield the cases about single values."""
    finite = {"reward_not_finite": 4}
    yield "null_vs_nan", Case(beside(other(reward=NOT_FINITE)), 8, finite)
    yield (
        "nan_stats_duckdb",
        Case(beside(other(reward=[NAN, 1, 2, NAN, 3, 4.0])), 10, {"reward_not_finite": 2}),
    )
    for name, code in (
        ("behavior", "behavior_log_prob_nan"),
        ("target", "target_log_prob_invalid"),
    ):
        broken = other(**{f"{name}_log_prob": [NAN] + [-1.0] * (ROWS - 1)})
        yield f"nan_clip_to_one:{name}", Case(beside(broken), 11, {code: 1})
    log_probs = [0.5, -INF, INF, 0.0, 1e-4, -1.0]
    reasons = {"behavior_log_prob_positive": 1, "behavior_log_prob_infinite": 2}
    yield "logprob_positive", Case(beside(other(behavior_log_prob=log_probs)), 9, reasons)
    flags = pa.array([0, 0, 2, 0, 255, 1], pa.uint8())
    yield "bool_as_uint8", Case(beside(other(terminated=flags)), 10, {"flag_missing": 2})
    ragged = [[True, True], [True, None, True], [], None, [False] * 3, [True, False, True]]
    mask = masked(other(), LIST, ragged)
    both = pa.array([[True] * 3] * ROWS)
    mask = mask.set_column(
        mask.column_names.index("target_action_mask"), "target_action_mask", both
    )
    reasons = {"mask_malformed": 4, "mask_mismatch": 4, "action_out_of_range": 1}
    yield "mask_ragged", Case(beside(mask), 6, {**reasons, "action_masked": 1})


def type_cases() -> Iterator[tuple[str, Case]]:
    """Yield the cases about columns and types that differ between files."""
    missing = {"reward_not_finite": ROWS}
    nulls = pa.nulls(ROWS)
    yield "first_file_lacks_column", Case(pair(make_table(reward=None), OTHER), 6, missing)
    yield "null_typed_first", Case(pair(make_table(reward=nulls), OTHER), 6, missing)
    yield "null_typed_later", Case(beside(other(reward=nulls)), 6, missing)
    small = make_table(reward=pa.array([1.0] * ROWS, pa.float32()))
    huge = other(reward=[1e300] + [1.0] * (ROWS - 1))
    yield "f32_then_f64", Case(pair(small, huge), 11, {"target_not_finite": 1})
    wide = ("--backend", "reference", "--dtype", "float64")
    yield "f32_then_f64:float64", Case(pair(small, huge), 12, options=wide)
    cents = pa.array([1] * ROWS).cast(pa.decimal128(21, 2))
    yield "decimal_first", Case(pair(make_table(reward=cents), OTHER), 12)
    words = ("b.parquet, column trajectory_id", "one type in all files")
    numbers = make_table(trajectory_id=[1] * ROWS)
    yield "id_type_mix", Case(pair(numbers, OTHER), refused=words)
    twins = {"b.parquet": "two columns are named reward"}
    yield "dup_columns", Case(beside(with_twin("reward")), 6, unreadable=twins)
    yield "dup_columns_case", Case(beside(with_twin("REWARD")), 12)
    coded = make_table(unroll_id=pa.array(["u"] * ROWS).dictionary_encode())
    yield "dict_vs_string", Case(pair(coded, OTHER), 12)
    for layout in (pa.large_string(), pa.string_view()):
        ids = pa.array(["b"] * ROWS, layout)
        yield f"large_string_view:{layout}", Case(beside(other(trajectory_id=ids)), 12)
    for layout in LAYOUTS:
        table = masked(other(), layout)
        yield f"mask_types:{layout}", Case(pair(masked(GOOD, LIST), table), 12)
        yield f"mask_types:{layout} first", Case(pair(table, masked(GOOD, LIST)), 12)
    times = {unit: pa.array([1] * ROWS, pa.timestamp(unit)) for unit in ("ns", "us")}
    stamped = [make_table(n, collected_at=times[unit]) for n, unit in (("a", "us"), ("b", "ns"))]
    yield "ts_int96_ns_us", Case(pair(*stamped), 12)
    int96 = as_bytes(stamped[1], use_deprecated_int96_timestamps=True)
    yield "ts_int96_ns_us:int96", Case(pair(stamped[0], int96), 12)


def corrupt_cases() -> Iterator[tuple[str, Case]]:
    """Yield the cases about broken files: one beside a sound one."""

    def broken(body: bytes, error: str) -> Case:
        return Case(beside(body), 6, unreadable={"b.parquet": error})

    yield "zero_bytes", broken(b"", "the file is empty")
    for name, missing in PARTS.items():
        yield f"truncated:{name}", broken(OTHER[:-missing], FOOTER)
    yield "growing_upload", broken(OTHER[:4] + b"\0" * 500, FOOTER)
    for name, (body, error) in FOREIGN.items():
        yield f"wrong_magic_tail:{name}", broken(body, error)
    yield "wrong_magic_head", Case(beside(b"XXXX" + OTHER[4:]), 12)
    thrift = "thrift"
    yield "footer_garbage", broken(OTHER[:-60] + b"\xff" * 52 + OTHER[-8:], thrift)
    for name, length in LENGTHS.items():
        yield f"footer_garbage:{name}", broken(OTHER[:-8] + length + b"PAR1", "footer")
    yield "footer_garbage:nothing", broken(b"PAR1" + b"\0" * 4 + b"PAR1", thrift)
    for codec in ("none", "snappy", "zstd"):
        flipped = damaged(100, 8, compression=codec, write_page_checksum=True)
        yield f"page_bitflip:{codec}", broken(flipped, "CRC checksum verification failed")
    yield "page_zeroed", broken(damaged(60, 200, compression="zstd"), "")
    yield "page_zeroed:header", broken(damaged(0, 20, compression="zstd"), "page header")


def path_cases() -> Iterator[tuple[str, Case]]:
    """Yield the cases about names and links."""
    below = {"step=999/reward=7/a.parquet": GOOD}
    yield "hive_key_overrides", Case(lambda logs: write_files(logs, below), 6, files=1)
    yield "markers", Case(lambda logs: write_files(logs, MARKERS), 6, files=1)
    yield "hidden_valid", Case(lambda logs: write_files(logs, HIDDEN), 6, files=1)
    loop = write_beside("x/loop", lambda path: path.symlink_to(".."))
    yield "symlink_loop", Case(loop, 6, files=1)
    twice = {"duplicate": 6}
    link = write_beside("b.parquet", lambda path: path.symlink_to("a.parquet"))
    yield "symlink_dup", Case(link, 6, twice)
    hard = write_beside("b.parquet", lambda path: path.hardlink_to(path.parent / "a.parquet"))
    yield "symlink_dup:hard", Case(hard, 6, twice)
    dangling = write_beside("d.parquet", lambda path: path.symlink_to("nowhere"))
    yield "dangling_symlink", Case(dangling, 6, unreadable={"d.parquet": "No such file"})
    pipe = {"f.parquet": "not a regular file"}
    odd = write_beside("f.parquet", make_pipe_and_directory)
    yield "fifo_and_dir", Case(odd, 12, unreadable=pipe, files=3)
    yield "glob_chars", Case(lambda logs: write_files(logs, ODD), 24, files=4)
    evil = {"quote'dir/a'; DROP TABLE x; --.parquet": GOOD}
    yield "sql_injection_path", Case(lambda logs: write_files(logs, evil), 6, files=1)
    column = 'x"; DROP TABLE t; --'
    table = other(**{column: [1.0] * ROWS})
    carry = ("--backend", "reference", "--carry", column)
    yield "evil_column", Case(beside(table), 12, options=carry)


def delivery_cases() -> Iterator[tuple[str, Case]]:
    """Yield the cases about how rows are spread over files."""
    yield "dup_same", Case(pair(GOOD, GOOD), 6, {"duplicate": 6})
    tiny = as_bytes(long_table(), row_group_size=3)
    yield "tiny_row_groups", Case(beside(tiny), 3006)
    rows = pa.concat_tables([GOOD, other()]).sort_by("step")
    mixed = {"a.parquet": rows.slice(0, 5), "b.parquet": rows.slice(5)}
    yield "interleaved_unrolls", Case(lambda logs: write_files(logs, mixed), 12)


TABLE: dict[str, Case] = {
    name: case
    for cases in (value_cases, type_cases, corrupt_cases, path_cases, delivery_cases)
    for name, case in cases()
}
# these have a test of their own
# tested apart; a path that is used again in tests/test_append.py
ALONE = {"overwrite_in_place", "path_reused", "unreadable"}


@pytest.fixture(autouse=True)
def without_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave audit.duckdb out: it takes longer than the rest and repeats the other tables."""
    monkeypatch.setattr(audit_module, "write_duckdb", lambda *_: None)


def read_table(run: Path, name: str) -> list[dict[str, Any]]:
    """Return the rows of a table of a run."""
    is_split = name in ("targets", "rejects")
    paths = (run / name).iterdir() if is_split else [run / "audit" / f"{name}.parquet"]
    tables = [pq.read_table(path) for path in sorted(paths)]
    rows: list[dict[str, Any]] = pa.concat_tables(tables).to_pylist()
    return rows


def check_run(run: Path, case: Case) -> None:
    """Compare files, counts and rows; every number of the targets is finite."""
    files = read_table(run, "files")
    assert len(files) == case.files
    bad = {row["path"]: row for row in files if row["status"] == "unreadable"}
    assert bad.keys() == case.unreadable.keys()
    for name, error in case.unreadable.items():
        assert error in bad[name]["error"]
        assert len(bad[name]["error"].splitlines()) == 1
        assert bad[name]["rows"] is None
    found = {
        row["kind"]: row["count"]
        for row in read_table(run, "audit")
        if row["measure"] == "rejected_any" and row["count"]
    }
    assert found == case.reasons
    (summary,) = read_table(run, "summary")
    assert summary["accepted"] == case.accepted
    assert summary["received"] == summary["accepted"] + summary["rejected"]
    targets = read_table(run, "targets")
    assert len(targets) == case.accepted
    for row in targets:
        assert all(math.isfinite(row[name]) for name in ("value_target", "advantage", "log_ratio"))


@pytest.mark.parametrize("name", TABLE)
def test_bad_input_becomes_what_the_contract_says(name: str, tmp_path: Path) -> None:
    case = TABLE[name]
    case.write(tmp_path / "logs")
    run = tmp_path / "it's a run; --"
    result = invoke("process", tmp_path / "logs", "--out", run, *case.options)
    if case.refused:
        assert result.exit_code == 3
        assert all(word in result.stderr for word in case.refused)
        assert not run.exists()
        return
    assert result.exit_code == (1 if case.unreadable else 0), result.output
    check_run(run, case)


@pytest.mark.skipif(not CASES.is_file(), reason="shared/cases is not beside the repository")
def test_every_known_case_has_a_test_or_a_reason_to_wait() -> None:
    known = {case["id"] for case in json.loads(CASES.read_text(encoding="utf-8"))["cases"]}
    tested = {name.partition(":")[0] for name in TABLE} | ALONE
    assert tested & LATER.keys() == set()
    assert known == tested | LATER.keys()


@pytest.mark.parametrize("name", LATER)
def test_case_of_a_later_feature(name: str) -> None:
    pytest.skip(LATER[name])


def test_file_that_changes_while_it_is_read_is_unreadable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = write_files(tmp_path / "logs", {"a.parquet": GOOD, "b.parquet": long_table()})
    read_batches = reading_module.read_batches

    def rewrite(file: Any, columns: Any, **options: Any) -> Iterator[pa.RecordBatch]:
        for place, batch in enumerate(read_batches(file, columns, **options)):
            yield batch
            if file.name == "b.parquet" and place == 0:
                with file.path.open("r+b") as stream:
                    stream.truncate(file.size - 100)
                    stream.seek(0, os.SEEK_END)
                    stream.write(b"\0" * 100)
                os.utime(file.path, ns=(0, file.mtime_ns + 1))

    monkeypatch.setattr(sources_module, "BATCH_ROWS", 100)
    monkeypatch.setattr(reading_module, "read_batches", rewrite)
    run = tmp_path / "run"
    result = invoke("process", logs, "--out", run, "--backend", "reference")
    assert result.exit_code == 1
    changed = {"b.parquet": "changed while it was read"}
    check_run(run, Case(beside(OTHER), 6, unreadable=changed))


@pytest.mark.parametrize("rows", [[1.0], [1.0, 2.0]], ids=["smaller", "larger"])
def test_file_that_is_replaced_between_plan_and_read_is_unreadable(
    rows: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = write_files(tmp_path / "logs", {"a.parquet": GOOD, "b.parquet": OTHER})
    read_batches = reading_module.read_batches

    def replace(file: Any, columns: Any, **options: Any) -> Iterator[pa.RecordBatch]:
        if file.name == "b.parquet":
            pq.write_table(other(reward=rows * (ROWS // len(rows))), file.path)
            os.utime(file.path, ns=(0, file.mtime_ns + 1))
        yield from read_batches(file, columns, **options)

    monkeypatch.setattr(reading_module, "read_batches", replace)
    run = tmp_path / "run"
    result = invoke("process", logs, "--out", run, "--backend", "reference")
    assert result.exit_code == 1
    check_run(run, Case(beside(OTHER), 6, unreadable={"b.parquet": "changed while it was read"}))


def test_file_that_may_not_be_read_is_unreadable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = write_files(tmp_path / "logs", {"a.parquet": GOOD, "b.parquet": OTHER})
    opened = Path.open

    def deny(path: Path, *arguments: Any, **options: Any) -> Any:
        if path.name == "b.parquet":
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", deny)
    run = tmp_path / "run"
    result = invoke("process", logs, "--out", run, "--backend", "reference")
    assert result.exit_code == 1
    check_run(run, Case(beside(OTHER), 6, unreadable={"b.parquet": "Permission denied"}))


def test_decimals_in_one_file_do_not_round_those_of_another(tmp_path: Path) -> None:
    cents = pa.array([1] * ROWS).cast(pa.decimal128(21, 2))
    eighth = other(reward=pa.array([0.125] * ROWS, pa.float32()))
    logs = write_files(tmp_path / "logs", {"a.parquet": make_table(reward=cents)})
    pq.write_table(eighth, logs / "b.parquet")
    assert invoke("process", logs, "--out", tmp_path / "run").exit_code == 0
    rows = read_table(tmp_path / "run", "targets")
    assert {row["reward"] for row in rows if row["trajectory_id"] == "b"} == {0.125}


def test_quotes_in_paths_and_columns_never_become_sql(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    column = 'x"; DROP TABLE audit; --'
    table = make_table(**{column: [1.0] * ROWS})
    logs = write_files(tmp_path / "it's", {"quote'dir/a'; DROP TABLE audit; --.parquet": table})
    run = tmp_path / "run'; DROP TABLE audit; --"
    assert invoke("process", logs, "--out", run, "--carry", column).exit_code == 0
    with duckdb.connect(str(run / "audit.duckdb"), read_only=True) as connection:
        (count,) = connection.execute("SELECT count(*) FROM audit").fetchall()[0]
        rows = connection.execute("FROM targets(?)", [str(run)])
        assert column in [name for name, *_ in rows.description]
        assert len(rows.fetchall()) == ROWS
    assert count == len(read_table(run, "audit"))


def test_odd_names_stand_in_source_file(tmp_path: Path) -> None:
    logs = write_files(tmp_path / "logs", ODD)
    assert invoke("process", logs, "--out", tmp_path / "run").exit_code == 0
    rows = read_table(tmp_path / "run", "targets")
    assert {row["source_file"] for row in rows} == set(ODD_NAMES)


def test_steps_come_from_the_file_when_its_path_names_others(tmp_path: Path) -> None:
    logs = write_files(tmp_path / "logs", {"step=999/a.parquet": GOOD})
    assert invoke("process", logs, "--out", tmp_path / "run").exit_code == 0
    rows = read_table(tmp_path / "run", "targets")
    assert sorted(row["step"] for row in rows) == list(range(ROWS))


def test_targets_are_the_same_when_unrolls_are_interleaved(tmp_path: Path) -> None:
    rows = pa.concat_tables([GOOD, other()])
    mixed = rows.sort_by("step")
    write_files(tmp_path / "plain", {"a.parquet": GOOD, "b.parquet": OTHER})
    write_files(tmp_path / "mixed", {"x.parquet": mixed.slice(0, 5), "y.parquet": mixed.slice(5)})
    tables = []
    for name in ("plain", "mixed"):
        assert invoke("process", tmp_path / name, "--out", tmp_path / f"{name}-run").exit_code == 0
        found = read_table(tmp_path / f"{name}-run", "targets")
        tables.append([{k: row[k] for k in row if not re.match("source_", k)} for row in found])
    assert tables[0] == tables[1]


def test_redelivery_is_counted_as_one(tmp_path: Path) -> None:
    logs = write_files(tmp_path / "logs", {"a.parquet": GOOD, "b.parquet": GOOD})
    assert invoke("process", logs, "--out", tmp_path / "run").exit_code == 0
    (summary,) = read_table(tmp_path / "run", "summary")
    assert (summary["received"], summary["unique"]) == (2 * ROWS, ROWS)
    assert (summary["deliveries"], summary["deliveries_duplicate"]) == (2, 1)
    assert summary["windows"] == 1
    rows = read_table(tmp_path / "run", "targets")
    assert {row["source_file"] for row in rows} == {"a.parquet"}
