"""What must not change the results of `process`, and what must change them by how much."""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from oracle import PAYLOAD, LogFile
from random_logs import FLAGS, PROFILES, Profile, make_random_log, write_log
from test_against_oracle import as_settings
from vtaudit import audit as audit_module
from vtaudit import process
from vtaudit import shards as shards_module

Files = dict[str, LogFile]
Options = dict[str, Any]
Cells = dict[str, Any]
Key = tuple[Any, Any]

ROOT = Path(__file__).resolve().parents[1]
FULL = {"discount": 1.0, "valid": True, "terminated": False, "truncated": False}
SOURCE = ("source_file", "source_row")
REAL = ("value_target", "advantage", "next_value", "log_ratio", "trace_length", "rho", "c")
DELIVERIES = ("deliveries", "deliveries_duplicate")
SOUND = Profile(
    fault_rate=0.0,
    copy_rate=0.05,
    redelivery_rate=0.1,
    kinds=("plain", "discrete", "continuous"),
    order=0.0,
    lacking=0.0,
)
faulty = st.sampled_from([PROFILES[n] for n in ("discrete", "continuous", "copies", "bounds")])
seeds = st.integers(0, 2**32)
checked = settings(
    derandomize=True,
    deadline=None,
    max_examples=6,
    database=None,
    # a smaller seed is no smaller log
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@dataclass(frozen=True)
class Outcome:
    """Targets and rejects without their sources, and the audit's counts by measure and kind."""

    targets: dict[Key, Cells]
    rejects: Counter[str]
    counts: dict[tuple[str, str | None], int | None]

    def agrees_with(self, other: Outcome, *, without: tuple[str, ...] = ()) -> bool:
        """Whether every row and every count is the same, bit for bit."""
        mine, theirs = (
            {key: count for key, count in outcome.counts.items() if key[0] not in without}
            for outcome in (self, other)
        )
        return (
            bits(self.targets) == bits(other.targets)
            and self.rejects == other.rejects
            and mine == theirs
        )


@pytest.fixture(autouse=True)
def _without_duckdb(monkeypatch: pytest.MonkeyPatch) -> None:
    """The database repeats the audit's Parquet files; without it a run takes half the time."""
    monkeypatch.setattr(audit_module, "write_duckdb", lambda *_: None)


def bits(rows: dict[Key, Cells]) -> dict[Key, list[Any]]:
    """Return the rows with floats as text that tells every bit pattern apart."""
    return {
        key: [cell.hex() if isinstance(cell, float) else cell for cell in row.values()]
        for key, row in rows.items()
    }


def read_frames(directory: Path) -> pl.DataFrame:
    """Return all parts of a table."""
    return pl.concat([pl.read_parquet(path, glob=False) for path in directory.iterdir()])


def run(files: Files, options: Options, **more: Any) -> Outcome:
    """Write the log, process it, and read the run."""
    with tempfile.TemporaryDirectory() as name:
        logs, out = Path(name) / "logs", Path(name) / "run"
        write_log(files, logs)
        return run_directory(logs, out, options, **more)


def run_directory(logs: Path | list[Path], out: Path, options: Options, **more: Any) -> Outcome:
    """Process a directory or files, and read the run."""
    chosen = {"backend": "numba", "weights": True, "threads": 1, **more}
    process(logs, out, as_settings({**options, **chosen}))
    return read_run(out)


def read_run(out: Path) -> Outcome:
    """Read the targets, the rejects and the audit of a run."""
    targets = read_frames(out / "targets").drop(SOURCE)
    rejects = read_frames(out / "rejects").drop(SOURCE)
    audit = pl.read_parquet(out / "audit" / "audit.parquet", glob=False)
    return Outcome(
        {(row["trajectory_id"], row["step"]): row for row in targets.iter_rows(named=True)},
        Counter(repr(row) for row in rejects.iter_rows()),
        {(row["measure"], row["kind"]): row["count"] for row in audit.iter_rows(named=True)},
    )


def make_log(seed: int, profile: Profile, **more: Any) -> tuple[Files, Options]:
    """Return a log whose files all have all columns and whose duplicates are exact."""
    with mock.patch.dict(PROFILES, {"drawn": profile}):
        files, options = make_random_log(seed, profile="drawn", **more)
    names = list(dict.fromkeys(name for file in files.values() for name in file.columns))
    if seed % 3 == 0:
        options["end_of_trajectory"] = FLAGS[seed % 2]
        names = [name for name in names if name not in FLAGS]
    elif options.get("end_of_trajectory") is None:
        names = list(dict.fromkeys([*names, *FLAGS]))
    first: dict[Key, Cells] = {}
    full = {}
    for path, file in files.items():
        lacking = {name: FULL.get(name) for name in names if name not in file.columns}
        rows = [{name: row.get(name) for name in names} | lacking for row in file.rows]
        full[path] = LogFile(names, [exact_copy(first, row) for row in rows])
    return full, options


def exact_copy(first: dict[Key, Cells], row: Cells) -> Cells:
    """Return a copy of the first row of this key where the payloads are equal, else the row."""
    kept = first.setdefault(key_of(row), row)
    return dict(kept) if None not in key_of(row) and payload_of(kept) == payload_of(row) else row


def key_of(row: Cells) -> Key:
    """Return trajectory_id and step."""
    return row["trajectory_id"], row["step"]


def payload_of(row: Cells) -> str:
    """Return the payload as text, -0.0 as 0.0."""
    return repr([row[n] + 0 if isinstance(row[n], float) else row[n] for n in PAYLOAD if n in row])


def with_rows(files: Files, rows: dict[str, list[Cells]]) -> Files:
    """Return files of the same columns that hold these rows."""
    columns = next(iter(files.values())).columns
    return {path: LogFile(columns, given) for path, given in rows.items()}


def all_rows(files: Files) -> list[Cells]:
    """Return the rows of all files."""
    return [row for file in files.values() for row in file.rows]


def shuffled(rows: list[Cells], order: random.Random) -> list[Cells]:
    """Return the rows in another order."""
    return order.sample(rows, len(rows))


def changed(files: Files, key: Key, name: str, change: Callable[[Any], Any]) -> Files:
    """Return the log with one column changed in every copy of a key."""

    def edit(row: Cells) -> Cells:
        return {**row, name: change(row[name])} if key_of(row) == key else row

    return with_rows(files, {path: [edit(row) for row in f.rows] for path, f in files.items()})


def cut_into_segments(targets: dict[Key, Cells]) -> list[list[Key]]:
    """Return the keys of each segment, in order."""
    segments: list[list[Key]] = [[]]
    for key in sorted(targets):
        segments[-1].append(key)
        if targets[key]["boundary"] != "interior":
            segments.append([])
    return segments[:-1]


def choose_row(targets: dict[Key, Cells], order: random.Random) -> tuple[list[Key], int]:
    """Return a segment and a place in it; longer segments are more likely."""
    segment = max(order.choices(cut_into_segments(targets), k=3), key=len)
    return segment, order.randrange(len(segment))


def only(rows: dict[Key, Cells], keys: Iterable[Key]) -> dict[Key, list[Any]]:
    """Return the bits of some of the rows."""
    return bits({key: rows[key] for key in keys})


@checked
@given(seeds, faulty, seeds)
def test_results_unchanged_when_rows_of_a_file_are_permuted(
    seed: int, profile: Profile, order: int
) -> None:
    files, options = make_log(seed, profile)
    draw = random.Random(order)
    permuted = {path: shuffled(file.rows, draw) for path, file in files.items()}
    assert run(with_rows(files, permuted), options).agrees_with(run(files, options))


@checked
@given(seeds, faulty, seeds)
def test_results_unchanged_when_files_are_renamed_and_listed_in_another_order(
    seed: int, profile: Profile, order: int
) -> None:
    files, options = make_log(seed, profile)
    expected, draw = run(files, options), random.Random(order)
    names = draw.sample(["z/1", "z/10", "z/9", "b", "B", "0", "a_2", "a_10"], len(files))
    renamed = {f"{name}.parquet": file for name, file in zip(names, files.values(), strict=True)}
    # a copy in another file is kept where that file comes first: its delivery is then not repeated
    repeated = ("deliveries_duplicate",)
    assert run(renamed, options).agrees_with(expected, without=repeated)
    with tempfile.TemporaryDirectory() as name:
        write_log(renamed, Path(name) / "logs")
        listed = draw.sample(sorted(Path(name).rglob("*.parquet")), len(files))
        found = run_directory(listed, Path(name) / "run", options)
    assert found.agrees_with(expected, without=repeated)


@checked
@given(seeds, faulty, seeds)
def test_results_unchanged_when_rows_move_between_files(
    seed: int, profile: Profile, order: int
) -> None:
    files, options = make_log(seed, profile)
    draw = random.Random(order)
    moved: dict[str, list[Cells]] = {f"{name}.parquet": [] for name in ("9", "10", "2/1", "empty")}
    for row in shuffled(all_rows(files), draw):
        moved[draw.choice(list(moved)[:3])].append(row)
    found = run(with_rows(files, moved), options)
    assert found.agrees_with(run(files, options), without=DELIVERIES)


@checked
@given(seeds, faulty, seeds)
def test_results_unchanged_when_a_file_is_split_in_two(
    seed: int, profile: Profile, order: int
) -> None:
    files, options = make_log(seed, profile)
    draw = random.Random(order)
    path = draw.choice(list(files))
    at = draw.randint(0, len(files[path].rows))
    rows = {name: file.rows for name, file in files.items()}
    parts = {path: rows[path][at:], f"0/{path}": rows[path][:at]}
    found = run(with_rows(files, rows | parts), options)
    assert found.agrees_with(run(files, options), without=DELIVERIES)


@checked
@given(seeds, faulty, st.integers(15, 60), st.integers(2, 5))
def test_results_unchanged_by_shard_count_and_threads(
    seed: int, profile: Profile, shard_rows: int, threads: int
) -> None:
    files, options = make_log(seed, profile)
    expected = run(files, options)
    with mock.patch.object(shards_module, "SHARD_ROWS", shard_rows):
        assert run(files, options, threads=threads).agrees_with(expected)


@checked
@given(seeds, faulty, st.integers(30, 200), st.integers(2, 5))
def test_the_same_bytes_are_written_by_any_number_of_threads(
    seed: int, profile: Profile, shard_rows: int, threads: int
) -> None:
    files, options = make_log(seed, profile)
    with (
        tempfile.TemporaryDirectory() as name,
        mock.patch.object(shards_module, "SHARD_ROWS", shard_rows),
    ):
        logs, one, several = (Path(name) / part for part in ("logs", "one", "several"))
        write_log(files, logs)
        run_directory(logs, one, options)
        run_directory(logs, several, options, threads=threads)
        assert written_bytes(several) == written_bytes(one)


def written_bytes(out: Path) -> dict[str, bytes]:
    """Return the Parquet files of a run; `runs` holds times and is left out."""
    paths = {path.relative_to(out).as_posix(): path for path in out.rglob("*.parquet")}
    return {name: path.read_bytes() for name, path in paths.items() if "runs" not in name}


@checked
@given(seeds, faulty, seeds)
def test_only_duplicates_are_counted_when_exact_copies_of_accepted_rows_are_added(
    seed: int, profile: Profile, order: int
) -> None:
    files, options = make_log(seed, profile)
    expected, draw = run(files, options), random.Random(order)
    kept = {key_of(row): row for row in all_rows(files) if key_of(row) in expected.targets}
    kept = {key: row for key, row in kept.items() if row.get("valid", True)}
    extra = draw.choices(list(kept.values()), k=draw.randint(1, 20))
    found = run(with_copies(files, extra, draw), options)
    assert bits(found.targets) == bits(expected.targets)
    grown = {("received", None), ("rejected", None)}
    grown |= {("rejected_any", "duplicate"), ("rejected_primary", "duplicate")}
    grown |= {("received_with_ratio", None)} & found.counts.keys()
    for key, count in found.counts.items():
        if key[0] not in (*DELIVERIES, "warning", "clipped_received"):
            assert count == plus(expected.counts[key], len(extra) * (key in grown)), key


@checked
@given(seeds, faulty, seeds)
def test_targets_unchanged_when_exact_copies_of_any_rows_are_added(
    seed: int, profile: Profile, order: int
) -> None:
    files, options = make_log(seed, profile)
    expected, draw = run(files, options), random.Random(order)
    extra = draw.choices(all_rows(files), k=20)
    found = run(with_copies(files, extra, draw), options)
    assert bits(found.targets) == bits(expected.targets)
    for key, count in found.counts.items():
        if key[0] in ("unique", "accepted", "clipped", "boundary", "bootstrap", "windows"):
            assert count == expected.counts[key], key
    whole = [("received", None), ("padding", None)]
    assert sum(found.counts[key] or 0 for key in whole) == 20 + sum(
        expected.counts[key] or 0 for key in whole
    )


def with_copies(files: Files, extra: list[Cells], draw: random.Random) -> Files:
    """Return the log with the extra rows at any places."""
    rows = {path: list(file.rows) for path, file in files.items()}
    for row in extra:
        given = rows[draw.choice(list(rows))]
        given.insert(draw.randint(0, len(given)), dict(row))
    return with_rows(files, rows)


def plus(count: int | None, more: int) -> int | None:
    """Return the sum; what is unknown stays so."""
    return None if count is None else count + more


@checked
@given(seeds, faulty)
def test_trajectories_together_give_what_each_gives_alone(seed: int, profile: Profile) -> None:
    files, options = make_log(seed, profile)
    whole = run(files, options)
    ids = sorted({str(row["trajectory_id"]) for row in all_rows(files)})
    with tempfile.TemporaryDirectory() as name:
        parts = []
        for number, share in enumerate((ids[::2], ids[1::2])):
            logs = Path(name) / f"logs-{number}"
            write_log(files, logs)
            keep_trajectories(logs, share)
            parts.append(run_directory(logs, Path(name) / f"run-{number}", options))
    one, other = parts
    assert one.targets
    assert bits(one.targets | other.targets) == bits(whole.targets)
    assert one.rejects + other.rejects == whole.rejects
    for key, count in whole.counts.items():
        assert count == plus(one.counts[key], other.counts[key] or 0), key


def keep_trajectories(logs: Path, ids: list[str]) -> None:
    """Leave only these trajectories in the files, which keep their types."""
    for path in logs.rglob("*.parquet"):
        table = pq.read_table(path, partitioning=None)
        keep = [str(value) in ids for value in table["trajectory_id"].to_pylist()]
        pq.write_table(table.filter(pa.array(keep, pa.bool_())), path)


@checked
@given(seeds, seeds, st.floats(-10, 10).filter(lambda x: abs(x) > 0.1))
def test_a_reward_reaches_earlier_rows_of_its_segment_alone(
    seed: int, order: int, raised: float
) -> None:
    files, options = make_log(seed, SOUND)
    before = run(files, options, dtype="float64").targets
    segment, place = choose_row(before, random.Random(order))
    raised_files = changed(files, segment[place], "reward", lambda reward: reward + raised)
    after = run(raised_files, options, dtype="float64").targets
    untouched = before.keys() - set(segment[: place + 1])
    assert only(after, untouched) == only(before, untouched)
    assert after.keys() == before.keys()
    row = before[segment[place]]
    gain, pg_gain = raised * row["rho"], raised * row["pg_rho"]
    for key in reversed(segment[: place + 1]):
        found = {name: after[key][name] - before[key][name] for name in REAL[:2]}
        scale = 1e-12 * (1 + abs(before[key]["value_target"]) + abs(before[key]["advantage"]))
        assert found["value_target"] == pytest.approx(gain, rel=1e-9, abs=10 * scale)
        assert found["advantage"] == pytest.approx(pg_gain, rel=1e-9, abs=10 * scale)
        if key != segment[0]:
            previous = before[(key[0], key[1] - 1)]
            pg_gain = previous["pg_rho"] * previous["discount"] * gain
            gain *= previous["discount"] * previous["c"]


PLANTED = [
    (name, cell)
    for name in ("value", "reward", "behavior_log_prob", "target_log_prob")
    for cell in (math.nan, math.inf, -math.inf, None)
]


@settings(checked, max_examples=2)
@given(seeds, seeds, st.sampled_from(["numba", "reference"]))
def test_a_number_that_is_not_finite_stays_in_its_segment(
    seed: int, order: int, backend: str
) -> None:
    files, options = make_log(seed, SOUND)
    before, draw = run(files, options, backend=backend).targets, random.Random(order)
    for name, planted in PLANTED:
        segment, place = choose_row(before, draw)
        poisoned = changed(files, segment[place], name, lambda _, cell=planted: cell)
        after = run(poisoned, options, backend=backend).targets
        reached = set(segment[: place + 1])
        if name == "value" and place == 0:
            reached |= segment_that_ends_before(before, segment[0])
        untouched = before.keys() - reached
        assert only(after, untouched) == only(before, untouched), (name, planted)
        assert after.keys() >= set(segment[: max(place - 1, 0)]), (name, planted)
        is_legal = (name, planted) == ("target_log_prob", -math.inf)
        assert (segment[place] in after) == is_legal, (name, planted)


def segment_that_ends_before(targets: dict[Key, Cells], key: Key) -> set[Key]:
    """Return the segment that may have been cut with the value of this row."""
    trajectory, step = key
    ends = (s for s in cut_into_segments(targets) if s[-1] == (trajectory, step - 1))
    return set(next(ends, []))


def assert_close(found: Outcome, expected: Outcome, rtol: float) -> None:
    """Compare every number of every target."""
    assert found.targets.keys() == expected.targets.keys()
    assert found.counts == expected.counts
    for key, row in found.targets.items():
        for name in REAL:
            wanted = expected.targets[key][name]
            assert row[name] == pytest.approx(wanted, rel=rtol, abs=1e-6), (key, name)


@checked
@given(seeds)
def test_float32_and_float64_agree_when_the_log_is_sound(seed: int) -> None:
    files, options = make_log(seed, SOUND)
    single = run(files, options, dtype="float32")
    assert_close(single, run(files, options, dtype="float64"), 1e-5)


@checked
@given(seeds, faulty, st.sampled_from(["float32", "float64"]))
def test_reference_and_numba_agree_when_the_log_is_faulty(
    seed: int, profile: Profile, dtype: str
) -> None:
    files, options = make_log(seed, profile)
    reference = run(files, options, backend="reference", dtype=dtype)
    numba = run(files, options, dtype=dtype)
    assert numba.rejects == reference.rejects
    assert_close(numba, reference, 1e-5 if dtype == "float32" else 1e-12)


APART = {"rho_bar": 1.5, "c_bar": 0.9, "pg_rho_bar": 1.2, "lambda_": 0.95}
TRITON = f"""
import sys
from vtaudit import Settings, process

settings = Settings(backend="triton", device="cpu", weights=True, **{APART})
process(sys.argv[1], sys.argv[2], settings)
"""


def test_triton_agrees_with_reference_when_interpreted(tmp_path: Path) -> None:
    files, _ = make_log(4, PROFILES["bounds"], rows=60)
    rows = {path: [row | {"discount": 1.0} for row in f.rows] for path, f in files.items()}
    files = with_rows(files, rows)
    logs, out = tmp_path / "logs", tmp_path / "run"
    write_log(files, logs)
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-c", TRITON, str(logs), str(out)]
    subprocess.run(command, env=environment, cwd=ROOT, check=True)
    expected = run_directory(logs, tmp_path / "expected", APART, backend="reference")
    assert_close(read_run(out), expected, 1e-5)


def write_ratios(directory: Path, log_ratio: Sequence[float], type_: pa.DataType) -> Cells:
    """Write one trajectory that ends, with these log ratios; return its columns."""
    height = len(log_ratio)
    rng = np.random.default_rng(7)
    behavior = -np.abs(np.nan_to_num(log_ratio, neginf=0.0)) - rng.random(height)
    columns: Cells = {
        "trajectory_id": ["t"] * height,
        "step": list(range(height)),
        "reward": rng.normal(size=height),
        "terminated": [False] * (height - 1) + [True],
        "truncated": [False] * height,
        "behavior_log_prob": pa.array(behavior).cast(type_, safe=False),
        "target_log_prob": pa.array(behavior + log_ratio).cast(type_, safe=False),
        "value": rng.normal(size=height),
    }
    directory.mkdir()
    pq.write_table(pa.table(columns), directory / "log.parquet")
    return columns


def by_step(outcome: Outcome, name: str) -> list[float]:
    """Return a column of the targets of one trajectory, in order."""
    return [outcome.targets[key][name] for key in sorted(outcome.targets)]


NO_CLIPS = {"rho_bar": math.inf, "c_bar": math.inf, "pg_rho_bar": math.inf}


def unclipped_targets(columns: Cells, gamma: float) -> list[float]:
    """Return V_t + sum over s >= t of gamma^(s-t) ratio_t ... ratio_s delta V_s."""
    behavior, target = (np.array(columns[f"{who}_log_prob"]) for who in ("behavior", "target"))
    ratio, value = np.exp(target - behavior), np.append(columns["value"], 0.0)
    error = columns["reward"] + gamma * value[1:] - value[:-1]
    height = len(error)
    return [
        value[t]
        + sum(gamma ** (s - t) * np.prod(ratio[t : s + 1]) * error[s] for s in range(t, height))
        for t in range(height)
    ]


@pytest.mark.parametrize("backend", ["numba", "reference"])
def test_targets_follow_the_definition_when_nothing_is_clipped(
    backend: str, tmp_path: Path
) -> None:
    ratios = [0.5, 1.5, -2.0, 0.0, 2.5, 0.25]
    columns = write_ratios(tmp_path / "logs", ratios, pa.float64())
    options = {**NO_CLIPS, "gamma": 0.9, "dtype": "float64"}
    found = run_directory(tmp_path / "logs", tmp_path / "run", options, backend=backend)
    assert by_step(found, "value_target") == pytest.approx(unclipped_targets(columns, 0.9), 1e-12)
    assert found.counts["clipped", "rho"] == 0


@pytest.mark.parametrize("backend", ["numba", "reference"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_ratios_are_clipped_in_log_space_when_they_overflow(
    dtype: str, backend: str, tmp_path: Path
) -> None:
    far = 200.0 if dtype == "float32" else 800.0
    write_ratios(tmp_path / "logs", [far, -far, far], pa.float64())
    options = {"dtype": dtype, "rho_bar": 2.0, "c_bar": 1.5, "pg_rho_bar": 3.0}
    found = run_directory(tmp_path / "logs", tmp_path / "run", options, backend=backend)
    assert by_step(found, "log_ratio") == pytest.approx([far, -far, far])
    assert by_step(found, "rho") == pytest.approx([2.0, 0.0, 2.0], abs=1e-80)
    assert by_step(found, "c") == pytest.approx([1.5, 0.0, 1.5], abs=1e-80)
    assert by_step(found, "pg_rho") == pytest.approx([3.0, 0.0, 3.0], abs=1e-80)
    assert by_step(found, "value_target")[1] == by_step(found, "value")[1]
    assert found.counts["clipped", "rho"] == 2


@pytest.mark.parametrize("backend", ["numba", "reference"])
def test_what_overflows_stays_behind_a_ratio_of_0_when_nothing_is_clipped(
    backend: str, tmp_path: Path
) -> None:
    write_ratios(tmp_path / "logs", [0.5, -math.inf, 0.5, 800.0], pa.float64())
    options = {**NO_CLIPS, "dtype": "float64"}
    found = run_directory(tmp_path / "logs", tmp_path / "run", options, backend=backend)
    assert [step for _, step in sorted(found.targets)] == [0, 1]
    assert by_step(found, "value_target")[1] == by_step(found, "value")[1]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_targets_that_overflow_the_type_are_rejected_when_nothing_is_clipped(
    dtype: str, tmp_path: Path
) -> None:
    columns = write_ratios(tmp_path / "logs", [0.5, -200.0, 200.0, 0.5], pa.float64())
    options = {**NO_CLIPS, "gamma": 0.9, "dtype": dtype}
    found = run_directory(tmp_path / "logs", tmp_path / "run", options)
    exact = unclipped_targets(columns, 0.9)
    lost = [2] if dtype == "float32" else []
    assert found.counts["rejected_any", "target_not_finite"] == len(lost)
    rtol = 1e-12 if dtype == "float64" else 1e-5
    for (_, step), row in found.targets.items():
        assert row["value_target"] == pytest.approx(exact[step], rel=rtol), step
    assert {step for _, step in found.targets} == {0, 1, 2, 3} - set(lost)


def test_half_precision_log_probs_are_read_exactly_when_subtracted(tmp_path: Path) -> None:
    columns = write_ratios(tmp_path / "logs", [0.1, -0.3, 1.7, -4.0], pa.float16())
    found = run_directory(tmp_path / "logs", tmp_path / "run", {"dtype": "float64"})
    behavior, target = (
        np.array(columns[f"{who}_log_prob"].to_pylist(), np.float64)
        for who in ("behavior", "target")
    )
    assert by_step(found, "log_ratio") == list(target - behavior)
