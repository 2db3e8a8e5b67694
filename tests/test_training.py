"""The training reader: every row once, whole segments, a seeded order, sound tensors."""

from __future__ import annotations

import itertools
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from logs import Cells, make_row, make_stream, run
from vtaudit import EngineError, InputError, SchemaError, SettingsError
from vtaudit.training import Batch, epoch, read

UNITS = ("rows", "segments")
KEYS = ("trajectory_id", "step")
LENGTHS = (1, 7, 3, 12, 5, 2, 9, 4, 6, 11)
ROWS = sum(LENGTHS)
Key = tuple[str, int]


def keys_of(batch: Batch) -> list[Key]:
    """Return the key of each row."""
    return list(zip(batch.lists["trajectory_id"], batch["step"].tolist(), strict=True))


def all_keys(path: Path, **options: Any) -> list[Key]:
    """Return the keys in the order in which the epoch gives them."""
    return [key for batch in read(path, columns=KEYS, **options) for key in keys_of(batch)]


def stored_rows(path: Path) -> list[Cells]:
    """Return the rows of the targets in the files' order."""
    parts = sorted((path / "targets").iterdir())
    return [row for part in parts for row in pq.read_table(part).to_pylist()]


def stored_keys(path: Path) -> list[Key]:
    return [(row["trajectory_id"], row["step"]) for row in stored_rows(path)]


def stored_segments(path: Path) -> list[list[Key]]:
    """Return the keys of each segment, by the definition."""
    segments: list[list[Key]] = []
    before: Cells | None = None
    for row in stored_rows(path):
        goes_on = (
            before is not None
            and before["boundary"] == "interior"
            and before["trajectory_id"] == row["trajectory_id"]
            and before["step"] + 1 == row["step"]
        )
        if not goes_on:
            segments.append([])
        segments[-1].append((row["trajectory_id"], row["step"]))
        before = row
    return segments


def segments_of(batch: Batch) -> list[list[Key]]:
    """Return the keys of each segment of a batch."""
    keys, offsets = keys_of(batch), batch.offsets
    assert offsets is not None
    assert (offsets[0], offsets[-1]) == (0, batch.rows)
    bounds = offsets.tolist()
    return [keys[start:stop] for start, stop in itertools.pairwise(bounds)]


def make_log() -> list[Cells]:
    """Ten trajectories of an episode each, and in the last one a hole: target_not_finite."""
    rows = [
        {**row, "observation": [float(row["step"]), 0.5]}
        for number, length in enumerate(LENGTHS)
        for row in make_stream(length, trajectory_id=f"t{number}")
    ]
    # ratios of nearly 0 keep the row that overflows away from those before it
    for row in rows[-11:]:
        row["target_log_prob"] = -200.0
    rows[-4] |= {"reward": 1e60, "target_log_prob": -1.0}
    return rows


ID = {"trajectory_id": "t"}
TYPES = {"observation": pa.list_(pa.float32())}


@pytest.fixture(scope="module")
def several_parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in several parts of several row groups."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vtaudit.shards.SHARD_ROWS", 15)
        home = tmp_path_factory.mktemp("run")
        path = run(make_log(), home, types=TYPES, carry=("observation",)).result.path
    parts = sorted((path / "targets").iterdir())
    assert len(parts) > 2
    for part in parts:
        pq.write_table(pq.read_table(part), part, row_group_size=7)
    assert max(pq.ParquetFile(part).num_row_groups for part in parts) > 1
    return path


@pytest.fixture(params=[4, 8192], ids=["small-reads", "one-read"])
def read_rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(epoch, "READ_ROWS", request.param)
    return int(request.param)


def test_log_has_the_hole_that_splits_a_segment(several_parts: Path) -> None:
    keys = stored_keys(several_parts)
    assert len(keys) == ROWS - 1
    assert ("t9", 7) not in keys
    lengths = Counter(len(segment) for segment in stored_segments(several_parts))
    assert lengths == Counter([*LENGTHS[:-1], 7, 3])


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("batch_size", [1, 5, 16, 1000])
def test_order_is_the_files_when_not_shuffled(
    several_parts: Path, batch_size: int, unit: str, read_rows: int
) -> None:
    assert all_keys(several_parts, batch_size=batch_size, unit=unit) == stored_keys(several_parts)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("buffer", [1, 10, 1000])
@pytest.mark.parametrize("batch_size", [1, 5, 16, 1000])
def test_every_row_comes_once_when_shuffled(
    several_parts: Path,
    monkeypatch: pytest.MonkeyPatch,
    batch_size: int,
    buffer: int,
    unit: str,
    read_rows: int,
) -> None:
    monkeypatch.setattr(epoch, "BUFFER_ROWS", buffer)
    options: dict[str, Any] = {"batch_size": batch_size, "unit": unit, "shuffle": True}
    first = all_keys(several_parts, seed=1, **options)
    assert sorted(first) == sorted(stored_keys(several_parts))
    assert first != stored_keys(several_parts)
    assert all_keys(several_parts, seed=1, **options) == first
    assert all_keys(several_parts, seed=2, **options) != first


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("batch_size", [1, 5, 16, 1000])
def test_segments_are_whole(
    several_parts: Path,
    monkeypatch: pytest.MonkeyPatch,
    batch_size: int,
    shuffle: bool,
    read_rows: int,
) -> None:
    monkeypatch.setattr(epoch, "BUFFER_ROWS", 20)
    options: dict[str, Any] = {"batch_size": batch_size, "shuffle": shuffle, "unit": "segments"}
    batches = [segments_of(batch) for batch in read(several_parts, columns=KEYS, **options)]
    found = [segment for batch in batches for segment in batch]
    assert sorted(found) == sorted(stored_segments(several_parts))
    assert shuffle or found == stored_segments(several_parts)
    for batch, after in zip(batches, [*batches[1:], None], strict=True):
        rows = sum(map(len, batch))
        assert rows <= batch_size or len(batch) == 1
        assert after is None or rows + len(after[0]) > batch_size or shuffle


def test_segment_ends_with_its_trajectory_when_the_last_row_was_lost(tmp_path: Path) -> None:
    lost = make_stream(3, trajectory_id="a", target_log_prob=-200.0)
    lost[-1] |= {"reward": 1e60, "target_log_prob": -1.0}
    rows = [*lost, *make_stream(2, first=2, trajectory_id="b")]
    path = run(rows, tmp_path).result.path
    assert [row["boundary"] for row in stored_rows(path)][:2] == ["interior"] * 2
    (batch,) = read(path, columns=KEYS, unit="segments")
    assert segments_of(batch) == [[("a", 0), ("a", 1)], [("b", 2), ("b", 3)]]


def test_segment_ends_with_its_episode_when_the_stream_goes_on(tmp_path: Path) -> None:
    path = run([*make_stream(2), *make_stream(3, first=2)], tmp_path).result.path
    (batch,) = read(path, unit="segments")
    assert batch.offsets is not None
    assert batch.offsets.tolist() == [0, 2, 5]


@pytest.mark.parametrize("shuffle", [False, True])
def test_batches_are_full_but_for_the_last(
    several_parts: Path, monkeypatch: pytest.MonkeyPatch, shuffle: bool, read_rows: int
) -> None:
    monkeypatch.setattr(epoch, "BUFFER_ROWS", 20)
    sizes = [batch.rows for batch in read(several_parts, batch_size=8, shuffle=shuffle)]
    assert sizes == [8] * 7 + [ROWS - 1 - 56]


def test_shuffle_is_uniform_when_the_run_is_small(tmp_path: Path) -> None:
    path = run(make_stream(3), tmp_path).result.path
    orders = Counter(tuple(all_keys(path, shuffle=True, seed=seed)) for seed in range(600))
    assert len(orders) == 6
    # 5 standard deviations about 100
    assert all(54 < count < 146 for count in orders.values()), orders


@pytest.mark.parametrize(
    ("name", "limit", "most"), [("BUFFER_ROWS", 12, 12 + 2), ("BUFFER_BYTES", 1, 2 + 2)]
)
def test_buffer_is_bounded_when_the_run_is_large(
    several_parts: Path, monkeypatch: pytest.MonkeyPatch, name: str, limit: int, most: int
) -> None:
    monkeypatch.setattr(epoch, "READ_ROWS", 2)
    monkeypatch.setattr(epoch, name, limit)
    held = []
    take = epoch._Pool.take

    def watch(pool: epoch._Pool, batch_size: int, **options: Any) -> Any:
        held.append(pool.table.num_rows)
        return take(pool, batch_size, **options)

    monkeypatch.setattr(epoch._Pool, "take", watch)
    keys = all_keys(several_parts, shuffle=True, batch_size=1)
    assert sorted(keys) == sorted(stored_keys(several_parts))
    assert len(held) > 5
    assert max(held) <= most


def test_default_columns_are_targets_and_what_was_carried(several_parts: Path) -> None:
    (batch,) = read(several_parts)
    rows = stored_rows(several_parts)
    assert set(batch.tensors) == {"value_target", "advantage", "observation"}
    assert batch.lists == {}
    assert batch.offsets is None
    assert batch["observation"].shape == (ROWS - 1, 2)
    for name in batch.tensors:
        assert batch[name].dtype == torch.float32
        assert batch[name].tolist() == [row[name] for row in rows]
        assert not batch[name].requires_grad


def test_batch_is_frozen(several_parts: Path) -> None:
    batch = next(read(several_parts))
    with pytest.raises(AttributeError):
        batch.rows = 0  # type: ignore[misc]
    with pytest.raises(TypeError):
        batch.tensors["advantage"] = torch.zeros(1)  # type: ignore[index]


CARRIED: list[tuple[str, pa.DataType, list[Any], torch.dtype]] = [
    ("flag", pa.bool_(), [True, False], torch.bool),
    ("small", pa.int8(), [-1, 2], torch.int8),
    ("wide", pa.uint32(), [1, 2**32 - 1], torch.int64),
    ("infinite", pa.float64(), [1.0, float("inf")], torch.float64),
    ("mask", pa.list_(pa.bool_()), [[True, False], [False, True]], torch.bool),
    ("fixed", pa.list_(pa.float32(), 3), [[1, 2, 3], [4, 5, 6]], torch.float32),
    ("image", pa.list_(pa.list_(pa.uint8())), [[[1], [2]], [[3], [4]]], torch.uint8),
    ("empty", pa.list_(pa.float32()), [[], []], torch.float32),
]


@pytest.mark.parametrize(
    ("name", "kind", "cells", "dtype"), CARRIED, ids=[case[0] for case in CARRIED]
)
def test_numbers_and_lists_become_tensors(
    tmp_path: Path, name: str, kind: pa.DataType, cells: list[Any], dtype: torch.dtype
) -> None:
    rows = [{**row, name: cell} for row, cell in zip(make_stream(2), cells, strict=True)]
    path = run(rows, tmp_path, types={name: kind}, carry=(name,)).result.path
    (batch,) = read(path, columns=[name])
    assert batch[name].dtype == dtype
    assert batch[name].shape[0] == 2
    assert batch[name].tolist() == cells


def test_text_and_structs_stay_out_of_tensors(tmp_path: Path) -> None:
    cells = {"text": "é", "pair": {"a": 1}, "words": ["x", None]}
    types = {"text": pa.string(), "pair": pa.struct([("a", pa.int64())])}
    types["words"] = pa.list_(pa.string())
    rows = [{**row, **cells} for row in make_stream(2)]
    path = run(rows, tmp_path, types=types, carry=tuple(cells)).result.path
    (batch,) = read(path, columns=[*cells, *ID])
    assert dict(batch.tensors) == {}
    assert batch.lists == {name: [cell] * 2 for name, cell in {**cells, **ID}.items()}


@pytest.mark.parametrize(
    ("kind", "cells", "words"),
    [
        (pa.int64(), [1, None, 3], "found 1 nulls"),
        (pa.list_(pa.float32()), [[1.0], None, [2.0]], "found 1 nulls"),
        (pa.list_(pa.float32()), [[1.0], [None], [2.0]], "found 1 nulls"),
        (pa.list_(pa.float32()), [[1.0], [1.0, 2.0], [2.0]], "lists of 1 and of 2 items"),
        (pa.list_(pa.list_(pa.int8())), [[[1]], [[1, 2]], [[1]]], "lists of 1 and of 2 items"),
        (pa.uint64(), [1, 2**63, 3], "int64 at most"),
    ],
    ids=["null", "null-list", "null-inside", "ragged", "ragged-inside", "too-great"],
)
@pytest.mark.parametrize("batch_size", [1, 3])
def test_column_is_named_when_it_makes_no_tensor(
    tmp_path: Path, kind: pa.DataType, cells: list[Any], words: str, batch_size: int
) -> None:
    rows = [{**row, "extra": cell} for row, cell in zip(make_stream(3), cells, strict=True)]
    path = run(rows, tmp_path, types={"extra": kind}, carry=("extra",)).result.path
    with pytest.raises(SchemaError, match=f"column extra: .*{words}"):
        list(read(path, batch_size=batch_size))
    assert sum(batch.rows for batch in read(path, columns=["advantage"])) == 3


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("unit", UNITS)
def test_run_without_accepted_rows_has_no_batches(tmp_path: Path, unit: str, shuffle: bool) -> None:
    path = run([make_row(reward=None)], tmp_path).result.path
    assert list(read(path, unit=unit, shuffle=shuffle)) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"unit": "row"}, "unit: found 'row', expected one of rows, segments"),
        ({"batch_size": 0}, "batch_size: found 0"),
        ({"batch_size": 2.5}, "batch_size: found 2.5"),
        ({"seed": -1}, "seed: found -1"),
        ({"columns": ["advantages"]}, "no advantages.*did you mean advantage"),
    ],
)
def test_argument_is_refused_before_the_first_batch(
    several_parts: Path, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(SettingsError, match=words):
        read(several_parts, **options)


def test_device_is_refused_when_it_is_not_there(several_parts: Path) -> None:
    with pytest.raises(EngineError, match="device nowhere"):
        read(several_parts, device="nowhere")
    (batch,) = read(several_parts, device="cpu", unit="segments")
    assert batch.offsets is not None
    assert batch.offsets.device == batch["advantage"].device == torch.device("cpu")


def test_anything_but_a_run_with_targets_is_refused(several_parts: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"manifest.json is missing"):
        read(several_parts / "targets")
    audited = run(make_stream(2), tmp_path, targets=False).result.path
    with pytest.raises(InputError, match="--no-targets"):
        read(audited)


@pytest.mark.parametrize("damage", ["gone", "cut", "garbled"])
def test_part_is_named_when_it_cannot_be_read(
    several_parts: Path, tmp_path: Path, damage: str
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(several_parts, copy)
    part = sorted((copy / "targets").iterdir())[1]
    body = part.read_bytes()
    part.unlink()
    if damage == "cut":
        part.write_bytes(body[: len(body) // 2])
    if damage == "garbled":
        part.write_bytes(body[:40] + bytes(200) + body[240:])
    with pytest.raises(InputError, match=part.name):
        list(read(copy, columns=["trajectory_id", "unroll_id", "step", "value_target"]))
