"""Batch by batch or all at once: the same rows are accepted, with the same bits."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from growing import (
    Grown,
    bits,
    cut_into_batches,
    draw_log,
    grow,
    process_all,
    read_grown,
    received,
    without_logged,
)
from random_logs import write_log
from test_properties import Cells, Files, Options
from vtaudit.appending.payloads import hash_payload
from vtaudit.canonical import PAYLOAD

SEEDS = range(16)
# which copy of a rejected key is called a duplicate depends on what was known of it
OF_COPIES = ("rejected_any", "rejected_primary", "deliveries_duplicate", "warning")
BY_NAME = ("boundary",)
EDGES = {"window_edge", "gap"}


def grow_and_compare(seed: int, tmp_path: Path, *, logged: bool) -> tuple[Files, Grown, Grown]:
    """Return a random log, and what became of it at once and batch by batch."""
    files, options = draw_log(seed)
    files = files if logged else without_logged(files)
    write_log(files, tmp_path / "whole_logs")
    process_all(tmp_path / "whole_logs", tmp_path / "run", options)
    batches = cut_into_batches(list(files), random.Random(seed))
    found = grow(files, batches, tmp_path, options)
    assert_laws(tmp_path / "store", files, options)
    return files, read_grown(tmp_path / "run"), found


def assert_laws(store: Path, files: Files, options: Options) -> None:
    """Received is accepted, rejected and pending, of every batch, and adds up over them."""
    rows = pl.read_parquet(store / "audit" / "audit_by.parquet", glob=False)
    totals: dict[str, int] = {}
    for (_,), batch in rows.filter(scope="batch").group_by("batch"):
        counts = dict(batch.filter(pl.col("kind").is_null()).select("measure", "count").iter_rows())
        states = ("accepted", "rejected", "pending")
        assert counts["received"] == sum(counts.get(state, 0) for state in states)
        for measure, count in counts.items():
            totals[measure] = totals.get(measure, 0) + count
    whole = pl.read_parquet(store / "audit" / "summary.parquet", glob=False).to_dicts()[0]
    assert whole["received"] == totals["received"] == len(received(files))
    for measure in ("accepted", "rejected", "padding", "deliveries"):
        assert whole[measure] == totals.get(measure, 0)
    assert whole["pending"] == 0


def without_names_of_edges(row: Cells) -> dict[str, Any]:
    """Return the bits of a row; an edge that later becomes a gap keeps its name."""
    found = bits(row)
    return {**found, "boundary": "cut"} if row["boundary"] in EDGES else found


@pytest.mark.parametrize("seed", SEEDS)
def test_store_is_the_whole_run_when_no_edge_takes_a_logged_bootstrap(
    seed: int, tmp_path: Path
) -> None:
    _, whole, grown = grow_and_compare(seed, tmp_path, logged=False)
    expected = {place: without_names_of_edges(row) for place, row in whole.targets.items()}
    assert {p: without_names_of_edges(row) for p, row in grown.targets.items()} == expected
    assert whole.rejects.keys() == grown.rejects.keys()
    for key, count in whole.counts.items():
        if key[0] not in (*OF_COPIES, *BY_NAME):
            assert grown.counts[key] == count, key
    for kind in ("later_conflict", "edge_before_successor"):
        assert grown.counts["warning", kind] == 0


@pytest.mark.parametrize("seed", range(100, 112))
def test_store_differs_only_behind_edges_that_the_warning_counts(seed: int, tmp_path: Path) -> None:
    _, whole, grown = grow_and_compare(seed, tmp_path, logged=True)
    places = whole.targets.keys() & grown.targets.keys()
    differing = {
        place
        for place in places
        if without_names_of_edges(whole.targets[place])
        != without_names_of_edges(grown.targets[place])
    }
    early = {
        place
        for place in places
        if grown.targets[place]["bootstrap_source"] == "logged"
        and whole.targets[place]["bootstrap_source"] != "logged"
    }
    assert len(early) <= grown.counts["warning", "edge_before_successor"]
    allowed = {grown.targets[place]["trajectory_id"] for place in early}
    assert {grown.targets[place]["trajectory_id"] for place in differing} <= allowed
    if not early:
        assert whole.targets.keys() == grown.targets.keys()


def test_random_logs_exercise_what_stores_must_get_right(tmp_path: Path) -> None:
    """Rows that waited, and rows that go on into a trace which was judged with an earlier batch."""
    waited = joined = warned = 0
    for seed in (0, 101):
        home = tmp_path / str(seed)
        _, _, grown = grow_and_compare(seed, home, logged=seed > 0)
        paths = sorted((home / "store").glob("batch-*/targets/*.parquet"))
        frames = [
            pl.read_parquet(path, glob=False).with_columns(batch=pl.lit(int(path.parts[-3][-5:])))
            for path in paths
        ]
        rows = pl.concat(frames)
        listed = pl.read_parquet(home / "store" / "audit" / "files.parquet", glob=False)
        of_file = dict(listed.select("path", "batch").iter_rows())
        brought = rows["source_file"].replace_strict(of_file)
        waited += int((rows["batch"] > brought).sum())
        after = rows.select("trajectory_id", pl.col("step") - 1, pl.col("batch").alias("later"))
        pairs = rows.filter(boundary="interior").join(after, on=["trajectory_id", "step"])
        joined += pairs.filter(pl.col("later") < pl.col("batch")).height
        warned += int(grown.counts["warning", "edge_before_successor"] or 0)
    assert (waited > 0, joined > 0, warned > 0) == (True, True, True)


def frame(**columns: Any) -> pl.DataFrame:
    return pl.DataFrame(columns)


def test_hash_of_a_payload_is_the_same_in_every_version() -> None:
    """Pinned: a store that was begun with one version of a package goes on with another."""
    rows = frame(
        reward=[1.5, float("nan"), None],
        terminated=pl.Series([0, 1, 0], dtype=pl.Int8),
        action=[3, 4, 5],
        behavior_logits=[[0.0, 1.0], [], None],
        env_version=["a", None, "ü"],
    )
    low, high = hash_payload(rows)
    assert [f"{word:016x}" for word in low] == LOW
    assert [f"{word:016x}" for word in high] == HIGH


LOW = ["c8566d80f98f3ceb", "e3b617c1f1e19e07", "9ef48de79c2c5bca"]
HIGH = ["a24cd7958effa88f", "7d350f4d693406bc", "f960e16f51d02e14"]

EQUAL = [
    (frame(reward=[0.0]), frame(reward=[-0.0])),
    (frame(reward=[float("nan")]), frame(reward=[-np.float64("nan")])),
    (frame(action=[3]), frame(action=[3.0])),
    (frame(env_version=[3]), frame(env_version=["3"])),
    (frame(reward=[1.0]), frame(reward=[1.0], discount=[None])),
    (frame(reward=[1.0]), frame(reward=[1.0], value=[5.0], unroll_id=[9])),
    (frame(behavior_logits=[[0.0, None]]), frame(behavior_logits=[[-0.0, None]])),
    (frame(terminated=[True]), frame(terminated=pl.Series([1], dtype=pl.Int8))),
]
DIFFERENT = [
    (frame(reward=[None], discount=[1.0]), frame(reward=[1.0], discount=[None])),
    (frame(reward=[1.0], discount=[2.0]), frame(reward=[2.0], discount=[1.0])),
    (frame(reward=[float("nan")]), frame(reward=pl.Series([None], dtype=pl.Float64))),
    (frame(reward=[1.0]), frame(reward=[np.nextafter(1.0, 2.0)])),
    (frame(behavior_logits=[[1.0, 2.0]]), frame(behavior_logits=[[2.0, 1.0]])),
    (frame(behavior_logits=[[0.0]]), frame(behavior_logits=[[0.0, 0.0]])),
    (frame(behavior_logits=[[0.0]]), frame(behavior_logits=[[None]])),
    (
        frame(behavior_logits=pl.Series([[]], dtype=pl.List(pl.Float64))),
        frame(behavior_logits=pl.Series([None], dtype=pl.List(pl.Float64))),
    ),
    (
        frame(env_version=["a"], reward_version=[None]),
        frame(env_version=[None], reward_version=["a"]),
    ),
    (frame(env_version=[""]), frame(env_version=pl.Series([None], dtype=pl.String))),
]


@pytest.mark.parametrize(("one", "other"), EQUAL)
def test_hashes_are_equal_when_payloads_are(one: pl.DataFrame, other: pl.DataFrame) -> None:
    assert [half.tolist() for half in hash_payload(one)] == [
        half.tolist() for half in hash_payload(other)
    ]


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_hashes_differ_when_payloads_do(one: pl.DataFrame, other: pl.DataFrame) -> None:
    for half, another in zip(hash_payload(one), hash_payload(other), strict=True):
        assert half.tolist() != another.tolist()


def test_every_column_of_the_payload_counts() -> None:
    for name in PAYLOAD:
        cell = [True] if name == "behavior_action_mask" else [1.0]
        cells: list[Any] = [cell] if name.startswith("behavior_logits") or cell == [True] else [1.0]
        with_it, without = frame(**{name: cells}), frame(other=[1.0])
        assert hash_payload(with_it)[0].tolist() != hash_payload(without)[0].tolist(), name


def test_hashes_do_not_collide_among_many_rows() -> None:
    rows = frame(reward=np.arange(200_000.0), action=np.arange(200_000) % 7)
    low, high = hash_payload(rows)
    assert len(np.unique(low)) == len(np.unique(high)) == 200_000
    bits_set = [int(word).bit_count() for word in low[:2000]]
    assert 31 < float(np.mean(bits_set)) < 33
