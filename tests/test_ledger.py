"""Copies of a key: which is kept, what conflicts, and how deliveries are counted."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from logs import Cells, make_row, make_stream, run, write_rows
from vtaudit import Settings, process

NAN = math.nan
CONFLICT, DUPLICATE = ["key_conflict"], ["duplicate"]
MASK, LOGITS = "behavior_action_mask", "behavior_logits"


def end(**cells: Any) -> Cells:
    """A row that needs no successor."""
    return {**make_row(0, terminated=True), **cells}


def is_conflict(one: Cells, other: Cells, tmp_path: Path, **types: pa.DataType) -> bool:
    """Whether two copies that differ in these cells conflict; else they are duplicates."""
    found = run([end(**one), end(**other)], tmp_path, types=types).reasons
    conflicts = [place for place, codes in found.items() if "key_conflict" in codes]
    duplicates = [place for place, codes in found.items() if "duplicate" in codes]
    assert (conflicts, len(duplicates)) in (([0, 1], 0), ([], 1))
    return bool(conflicts)


def test_first_copy_is_kept_when_all_are_sound(tmp_path: Path) -> None:
    found = run([end(value=1.0), end(value=2.0), end(value=3.0)], tmp_path)
    assert found.reasons == {1: DUPLICATE, 2: DUPLICATE}
    assert found.targets[0]["value"] == 1.0


def test_first_sound_copy_is_kept_when_the_first_has_another_reason(tmp_path: Path) -> None:
    found = run([end(value=NAN), end(target_log_prob=None), end(), end()], tmp_path)
    assert found.reasons == {
        0: ["duplicate", "value_not_finite"],
        1: ["duplicate", "target_log_prob_invalid"],
        3: DUPLICATE,
    }


def test_first_copy_is_kept_when_none_is_sound(tmp_path: Path) -> None:
    found = run([end(reward=None, value=NAN), end(reward=None)], tmp_path)
    assert found.reasons == {
        0: ["reward_not_finite", "value_not_finite"],
        1: ["duplicate", "reward_not_finite"],
    }


def test_every_copy_conflicts_when_one_of_three_differs(tmp_path: Path) -> None:
    for rows in (
        [end(), end(), end(reward=5.0)],
        [end(reward=5.0), end(), end()],
        [end(), end(reward=5.0), end()],
    ):
        found = run(rows, tmp_path)
        assert found.reasons == {0: CONFLICT, 1: CONFLICT, 2: CONFLICT}
        assert found.result.summary["unique"] == 1


def test_sound_copy_conflicts_when_the_other_is_rejected_otherwise(tmp_path: Path) -> None:
    found = run([end(reward=NAN), end()], tmp_path)
    assert found.reasons == {0: ["key_conflict", "reward_not_finite"], 1: CONFLICT}


def test_copies_in_other_trajectories_and_without_keys_stay_apart(tmp_path: Path) -> None:
    rows = [end(), end(trajectory_id="u", reward=2.0), end(trajectory_id=None)]
    rows += [end(trajectory_id=None, reward=3.0), end(step=-1), end(step=-1, reward=4.0)]
    rows += [end(step=None), end(step=None)]
    found = run(rows, tmp_path)
    assert found.reasons == {place: ["key_missing"] for place in range(2, 8)}
    assert found.result.summary["unique"] == 2


EQUAL: dict[str, tuple[Cells, Cells]] = {
    "NaN": ({"reward": NAN}, {"reward": NAN}),
    "zeros": ({"reward": 0.0}, {"reward": -0.0}),
    "null": ({"policy_version": None}, {"policy_version": None}),
    "NaN discount": ({"discount": NAN}, {"discount": NAN}),
    "temperature": ({"behavior_temperature": NAN}, {"behavior_temperature": NAN}),
    "epsilon": ({"behavior_epsilon": 0.0}, {"behavior_epsilon": -0.0}),
    "NaN in a list": ({LOGITS: [0.0, NAN]}, {LOGITS: [0.0, NAN]}),
    "zeros in a list": ({LOGITS: [0.0, -0.0]}, {LOGITS: [-0.0, 0.0]}),
    "null in a list": ({LOGITS: [0.0, None]}, {LOGITS: [0.0, None]}),
    "null in a mask": ({MASK: [True, None]}, {MASK: [True, None]}),
    "empty lists": ({LOGITS: []}, {LOGITS: []}),
    "null lists": ({LOGITS: None}, {LOGITS: None}),
}
DIFFERENT: dict[str, tuple[Cells, Cells]] = {
    "action": ({"action": 0}, {"action": 1}),
    "behavior_log_prob": ({"behavior_log_prob": -1.0}, {"behavior_log_prob": -1.0000000001}),
    "NaN and null": ({"reward": NAN}, {"reward": None}),
    "NaN and number": ({"reward": NAN}, {"reward": 0.0}),
    "infinities": ({"reward": math.inf}, {"reward": -math.inf}),
    "terminated": ({}, {"terminated": False}),
    "truncated": ({}, {"truncated": True}),
    "terminated null": ({}, {"terminated": None}),
    "discount": ({"discount": 1.0}, {"discount": 0.0}),
    "policy_version": ({"policy_version": 1}, {"policy_version": None}),
    "env_version": ({"env_version": 1}, {"env_version": 2}),
    "reward_version": ({"reward_version": "a"}, {"reward_version": "b"}),
    "mask_version": ({"mask_version": "a"}, {"mask_version": None}),
    "temperature": ({"behavior_temperature": 1.0}, {"behavior_temperature": None}),
    "epsilon": ({"behavior_epsilon": 0.0}, {"behavior_epsilon": 0.1}),
    "logits": ({LOGITS: [0.0, 1.0]}, {LOGITS: [0.0, 2.0]}),
    "longer logits": ({LOGITS: [0.0, 1.0]}, {LOGITS: [0.0, 1.0, 2.0]}),
    "NaN and null in a list": ({LOGITS: [0.0, NAN]}, {LOGITS: [0.0, None]}),
    "zero and null in a list": ({LOGITS: [0.0, 0.0]}, {LOGITS: [0.0, None]}),
    "empty and null list": ({LOGITS: []}, {LOGITS: None}),
    "mask": ({MASK: [True, True]}, {MASK: [True, False]}),
    "false and null in a mask": ({MASK: [True, False]}, {MASK: [True, None]}),
}
NOT_PAYLOAD: dict[str, Any] = {
    "unroll_id": 7,
    "actor_id": "b",
    "value": 9.0,
    "target_log_prob": -3.0,
    "bootstrap_value": 1.0,
    "target_action_mask": [True],
    "target_logits": [1.0, 2.0, 3.0],
    "valid": None,
}


@pytest.mark.parametrize("name", EQUAL)
def test_copies_are_duplicates_when_their_payload_is_equal(name: str, tmp_path: Path) -> None:
    one, other = EQUAL[name]
    assert not is_conflict(one, other, tmp_path)


@pytest.mark.parametrize("name", DIFFERENT)
def test_copies_conflict_when_their_payload_differs(name: str, tmp_path: Path) -> None:
    one, other = DIFFERENT[name]
    assert is_conflict(one, other, tmp_path)


@pytest.mark.parametrize("name", NOT_PAYLOAD)
def test_copies_are_duplicates_when_only_other_columns_differ(name: str, tmp_path: Path) -> None:
    given = {name: True} if name == "valid" else {}
    assert not is_conflict(given, {name: NOT_PAYLOAD[name]}, tmp_path)


def test_continuous_actions_are_compared_by_element(tmp_path: Path) -> None:
    lists = {"action": pa.list_(pa.float64())}
    assert not is_conflict({"action": [0.0, NAN]}, {"action": [-0.0, NAN]}, tmp_path, **lists)
    assert is_conflict({"action": [0.5, 1.0]}, {"action": [0.5, 1.5]}, tmp_path, **lists)


def test_absent_column_equals_null_in_the_payload(tmp_path: Path) -> None:
    found = run({"a.parquet": [end()], "b.parquet": [end(policy_version=None)]}, tmp_path)
    assert found.reasons == {("b.parquet", 0): DUPLICATE}
    found = run({"a.parquet": [end()], "b.parquet": [end(policy_version=1)]}, tmp_path)
    assert found.reasons == {("a.parquet", 0): CONFLICT, ("b.parquet", 0): CONFLICT}


def test_kept_copy_stays_when_its_bootstrap_is_missing(tmp_path: Path) -> None:
    found = run([make_row(0), make_row(0, bootstrap_value=1.0)], tmp_path)
    assert found.reasons == {0: ["bootstrap_missing"], 1: DUPLICATE}


def test_kept_copy_stays_when_its_target_is_not_finite(tmp_path: Path) -> None:
    found = run([end(value=1e300), end()], tmp_path)
    assert found.reasons == {0: ["target_not_finite"], 1: DUPLICATE}


def test_first_file_is_by_natural_order_when_names_hold_numbers(tmp_path: Path) -> None:
    files = {name: [end()] for name in ("w_10.parquet", "w_2.parquet", "w_02.parquet")}
    assert run(files, tmp_path).reasons == {
        ("w_2.parquet", 0): DUPLICATE,
        ("w_10.parquet", 0): DUPLICATE,
    }
    nested = {name: [end()] for name in ("b/10/x.parquet", "b/9/x.parquet")}
    assert run(nested, tmp_path).reasons == {("b/10/x.parquet", 0): DUPLICATE}


def test_value_of_the_kept_copy_is_used_when_files_differ_in_it(tmp_path: Path) -> None:
    files = {"w_10.parquet": [end(value=10.0)], "w_2.parquet": [end(value=2.0)]}
    assert run(files, tmp_path).column("value") == {("w_2.parquet", 0): 2.0}


def test_retry_is_a_delivery_of_its_own_in_the_same_file(tmp_path: Path) -> None:
    window = make_stream(3, unroll_id=1)
    found = run([*window, *window, *window[:2]], tmp_path)
    assert found.reasons == dict.fromkeys(range(3, 8), DUPLICATE)
    counts = [found.entry(name)["count"] for name in ("deliveries", "deliveries_duplicate")]
    assert counts == [3, 2]
    assert found.entry("windows")["count"] == 1


def test_retry_is_a_delivery_of_its_own_in_another_file(tmp_path: Path) -> None:
    window = make_stream(3, unroll_id=1)
    found = run({"a.parquet": window, "b.parquet": window}, tmp_path)
    assert found.reasons == {("b.parquet", place): DUPLICATE for place in range(3)}
    assert found.entry("deliveries")["count"] == 2
    assert found.entry("deliveries_duplicate")["fraction"] == 0.5


def test_delivery_is_no_duplicate_when_one_row_is_new(tmp_path: Path) -> None:
    rows = make_stream(4, unroll_id=1)
    found = run({"a.parquet": rows[:3], "b.parquet": rows[1:]}, tmp_path)
    assert found.entry("deliveries")["count"] == 2
    assert found.entry("deliveries_duplicate")["count"] == 0


def test_windows_are_split_by_unroll_id_and_null_is_one(tmp_path: Path) -> None:
    unrolls = [1, 1, None, None, 2, 2]
    rows = [end(unroll_id=unroll) | {"step": k} for k, unroll in enumerate(unrolls)]
    rows.append(end(trajectory_id="u", unroll_id=1))
    assert run(rows, tmp_path).entry("windows")["count"] == 4


def test_deliveries_are_counted_when_some_are_retried(tmp_path: Path) -> None:
    windows = [
        make_stream(2, trajectory_id=f"t{number % 13}", first=2 * number, unroll_id=number)
        for number in range(780)
    ]
    first = [row for window in windows[:400] for row in window]
    rest = [row for window in windows[400:] for row in window]
    retried = [row for window in windows[::39] for row in window]
    found = run({"a.parquet": first, "b.parquet": rest, "c.parquet": retried}, tmp_path)
    deliveries, retries = found.entry("deliveries"), found.entry("deliveries_duplicate")
    assert deliveries["count"] == 800
    assert (retries["count"], retries["denominator"], retries["fraction"]) == (20, 800, 0.025)
    assert retries["denominator_measure"] == "deliveries"
    assert found.entry("windows")["count"] == 780
    assert found.result.summary["rejected_any_duplicate"] == 40
    assert found.result.summary["accepted"] == 1560


def test_retries_are_counted_where_they_were_received(tmp_path: Path) -> None:
    window = make_stream(3, unroll_id=1)
    files = {
        "a.parquet": [row | {"actor_id": "a", "policy_version": 1} for row in window],
        "b.parquet": [row | {"actor_id": "b", "policy_version": 1} for row in window[:2]],
    }
    found = run(files, tmp_path)
    rows = pl.read_parquet(found.result.path / "audit" / "audit_by.parquet")
    rows = rows.filter(pl.col("measure").is_in(["received", "unique", "deliveries", "accepted"]))
    counts = {
        key[:2]: dict(part.select("measure", "count").rows())
        for key, part in rows.partition_by(
            "scope_value", "scope", as_dict=True, maintain_order=True
        ).items()
    }
    first = {"received": 3, "unique": 3, "deliveries": 1, "accepted": 3}
    again = {"received": 2, "unique": 2, "deliveries": 1}
    assert counts["a.parquet", "source_file"] == counts["a", "actor_id"] == first
    assert counts["b.parquet", "source_file"] == counts["b", "actor_id"] == again
    both = {"received": 5, "unique": 3, "deliveries": 2, "accepted": 3}
    assert counts["1", "policy_version"] == both


def stepless(rows: list[Cells]) -> list[Cells]:
    """The rows without a step."""
    return [{name: cell for name, cell in row.items() if name != "step"} for row in rows]


def test_steps_go_on_over_files_when_they_come_from_the_order(tmp_path: Path) -> None:
    rows = stepless([make_row(0), make_row(0, terminated=True)])
    other = stepless([end(trajectory_id="u")])
    files = {"w_2.parquet": rows, "w_10.parquet": [*other, *rows]}
    found = run(files, tmp_path, step_from="order")
    assert found.reasons == {}
    assert found.column("step") == {
        ("w_2.parquet", 0): 0,
        ("w_2.parquet", 1): 1,
        ("w_10.parquet", 0): 0,
        ("w_10.parquet", 1): 2,
        ("w_10.parquet", 2): 3,
    }


def test_duplicates_are_not_detectable_when_steps_come_from_the_order(tmp_path: Path) -> None:
    rows = stepless([end(), end(reward=5.0), end()])
    found = run(rows, tmp_path, step_from="order")
    assert found.reasons == {}
    kinds = [(m, k) for m in ("rejected_any", "rejected_primary") for k in (*DUPLICATE, *CONFLICT)]
    for measure, kind in [*kinds, ("deliveries_duplicate", None)]:
        entry = found.entry(measure, kind)
        assert (entry["count"], entry["fraction"]) == (None, None)
        assert entry["null_reason"].startswith("not detectable")
        name = measure if kind is None else f"{measure}_{kind}"
        assert found.result.summary[name] is None
    assert found.entry("rejected_any", "flag_missing")["count"] == 0


def test_repeated_file_is_all_duplicates_when_steps_come_from_the_order(tmp_path: Path) -> None:
    rows = stepless([make_row(0, reward=NAN), make_row(0), end()])
    files = {"w_1.parquet": rows, "w_2.parquet": rows, "w_3.parquet": rows[2:]}
    found = run(files, tmp_path, step_from="order")
    assert found.reasons == {
        ("w_1.parquet", 0): ["reward_not_finite"],
        ("w_2.parquet", 0): ["duplicate", "reward_not_finite"],
        ("w_2.parquet", 1): DUPLICATE,
        ("w_2.parquet", 2): DUPLICATE,
    }
    assert found.targets["w_3.parquet", 0]["step"] == 3
    assert found.entry("rejected_any", "duplicate")["count"] == 3
    assert found.entry("rejected_any", "key_conflict")["count"] is None
    assert found.entry("deliveries_duplicate")["count"] == 1


def test_step_column_is_ignored_when_steps_come_from_the_order(tmp_path: Path) -> None:
    found = run([make_row(7), end()], tmp_path, step_from="order")
    assert found.column("step") == {0: 0, 1: 1}


def test_ledger_is_the_same_when_the_log_is_spread_over_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [row for number in range(9) for row in make_stream(3, trajectory_id=f"t{number}")]
    rows += [*rows[::4], end(trajectory_id="t1", reward=7.0), make_row(None)]
    write_rows(rows, tmp_path / "logs" / "log.parquet")
    settings = Settings(backend="reference")
    whole = process(tmp_path / "logs", tmp_path / "whole", settings)
    monkeypatch.setattr("vtaudit.shards.SHARD_ROWS", 5)
    parts = process(tmp_path / "logs", tmp_path / "parts", settings)
    assert len(list((tmp_path / "parts" / "targets").iterdir())) > 1
    assert parts.audit == whole.audit
    assert parts.summary == whole.summary
