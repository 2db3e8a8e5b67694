"""Boundaries, bootstraps and the targets at each of them, by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from logs import Cells, Run, make_row, make_stream, run

INF, NAN = math.inf, math.nan


def cut(log: Any, tmp_path: Path, **settings: Any) -> Run:
    """A run in float64 with gamma 0.5."""
    return run(log, tmp_path, **{"dtype": "float64", "gamma": 0.5, **settings})


def cuts(found: Run) -> dict[Any, tuple[str, str, float]]:
    """(boundary, bootstrap_source, next_value) of every accepted row."""
    names = ("boundary", "bootstrap_source", "next_value")
    return {place: tuple(row[name] for name in names) for place, row in found.targets.items()}


def valued(*rows: Cells) -> list[Cells]:
    """The rows with value 10, 11, 12, ... by step, so that a next_value names its row."""
    return [{**row, "value": 10.0 + row["step"]} for row in rows]


def test_interior_rows_go_on_to_the_next_value(tmp_path: Path) -> None:
    found = cut(valued(*make_stream(3)), tmp_path)
    assert cuts(found) == {
        0: ("interior", "none", 11.0),
        1: ("interior", "none", 12.0),
        2: ("terminated", "none", 0.0),
    }


@pytest.mark.parametrize(
    ("cells", "wanted"),
    [
        ({"terminated": True}, ("terminated", "none", 0.0)),
        ({"terminated": True, "truncated": True}, ("terminated", "none", 0.0)),
        ({"terminated": True, "discount": 0.0}, ("terminated", "none", 0.0)),
        ({"discount": 0.0}, ("zero_discount", "none", 0.0)),
        ({"discount": -0.0}, ("zero_discount", "none", 0.0)),
        ({"discount": 0.0, "truncated": True}, ("zero_discount", "none", 0.0)),
        ({"truncated": True}, ("truncated", "logged", 7.0)),
        ({}, ("interior", "none", 11.0)),
    ],
)
def test_first_case_that_holds_is_the_boundary(
    cells: Cells, wanted: tuple[str, str, float], tmp_path: Path
) -> None:
    first = make_row(0, **{"discount": 1.0, "bootstrap_value": 7.0, **cells})
    found = cut(valued(first, make_row(1, terminated=True, discount=1.0)), tmp_path)
    assert found.reasons == {}
    assert cuts(found)[0] == wanted


def test_every_row_is_cut_when_gamma_is_zero(tmp_path: Path) -> None:
    found = cut([make_row(0), make_row(1, truncated=True), make_row(2)], tmp_path, gamma=0.0)
    assert set(cuts(found).values()) == {("zero_discount", "none", 0.0)}
    assert found.kinds("boundary") == {"zero_discount": 3}


def test_ends_need_no_bootstrap(tmp_path: Path) -> None:
    rows = [make_row(0, terminated=True), make_row(1, discount=0.0), make_row(2, terminated=True)]
    found = cut([{"discount": 1.0, **row} for row in rows], tmp_path)
    assert found.reasons == {}
    wanted = pytest.approx(2 + math.exp(-0.5) * (1 - 2))
    assert list(found.column("value_target").values()) == [wanted] * 3


def test_edge_takes_the_next_row_before_the_logged_bootstrap(tmp_path: Path) -> None:
    rows = [make_row(0, unroll_id=1, bootstrap_value=7.0), *make_stream(1, first=1, unroll_id=2)]
    assert cuts(cut(valued(*rows), tmp_path))[0] == ("window_edge", "next_row", 11.0)


def test_edge_takes_the_logged_bootstrap_when_no_row_follows(tmp_path: Path) -> None:
    for value in (7.0, 0.0):
        found = cut([make_row(0, bootstrap_value=value)], tmp_path)
        assert cuts(found) == {0: ("window_edge", "logged", value)}
        assert found.warnings == {}


def test_edge_takes_the_logged_bootstrap_when_a_step_is_lost(tmp_path: Path) -> None:
    rows = [make_row(0, unroll_id=1, bootstrap_value=7.0), *make_stream(1, first=2, unroll_id=2)]
    assert cuts(cut(rows, tmp_path))[0] == ("window_edge", "logged", 7.0)


def test_edge_takes_a_next_row_of_any_window(tmp_path: Path) -> None:
    files = {
        "b.parquet": valued(make_row(0, unroll_id=5)),
        "a.parquet": valued(*make_stream(1, first=1, unroll_id=3)),
    }
    assert cuts(cut(files, tmp_path))["b.parquet", 0] == ("window_edge", "next_row", 11.0)


def test_gap_takes_the_logged_bootstrap_when_a_step_is_lost(tmp_path: Path) -> None:
    rows = [make_row(0, bootstrap_value=7.0), *make_stream(2, first=2)]
    found = cut(rows, tmp_path)
    assert found.reasons == {}
    assert cuts(found)[0] == ("gap", "logged", 7.0)


def test_gap_takes_the_value_of_a_rejected_next_row(tmp_path: Path) -> None:
    rows = valued(
        make_row(0, bootstrap_value=7.0), make_row(1, reward=NAN), *make_stream(1, first=2)
    )
    found = cut(rows, tmp_path)
    assert found.reasons == {1: ["reward_not_finite"]}
    assert cuts(found)[0] == ("gap", "next_row", 11.0)


def test_row_before_is_a_gap_when_the_last_row_of_its_window_is_rejected(tmp_path: Path) -> None:
    found = cut(valued(make_row(0), make_row(1, reward=NAN, terminated=True)), tmp_path)
    assert cuts(found) == {0: ("gap", "next_row", 11.0)}


@pytest.mark.parametrize("value", [None, NAN, INF])
def test_gap_takes_the_logged_bootstrap_when_the_next_value_is_not_finite(
    value: float | None, tmp_path: Path
) -> None:
    rows = [make_row(0, bootstrap_value=7.0), make_row(1, value=value), *make_stream(1, first=2)]
    assert cuts(cut(rows, tmp_path))[0] == ("gap", "logged", 7.0)


def test_next_row_gives_no_value_when_its_copies_conflict(tmp_path: Path) -> None:
    rows = valued(make_row(0, bootstrap_value=7.0), make_row(1), make_row(1, reward=5.0))
    found = cut([*rows, *make_stream(1, first=2)], tmp_path)
    assert found.reasons == {1: ["key_conflict"], 2: ["key_conflict"]}
    assert cuts(found)[0] == ("gap", "logged", 7.0)


def test_duplicate_gives_the_value_when_the_first_copy_has_none(tmp_path: Path) -> None:
    rows = [make_row(0), make_row(1, value=NAN, reward=NAN), make_row(1, value=21.0, reward=NAN)]
    found = cut([*rows, *make_stream(1, first=2)], tmp_path)
    assert found.reasons[2] == ["duplicate", "reward_not_finite"]
    assert cuts(found)[0] == ("gap", "next_row", 21.0)


def test_first_copy_gives_the_value_when_a_later_one_is_kept(tmp_path: Path) -> None:
    first = make_row(1, value=21.0, target_log_prob=NAN, unroll_id=2)
    kept = make_row(1, value=22.0, unroll_id=2)
    rows = [make_row(0, unroll_id=1), first, kept, *make_stream(1, first=2, unroll_id=2)]
    found = cut(rows, tmp_path)
    assert found.reasons == {1: ["duplicate", "target_log_prob_invalid"]}
    assert cuts(found)[0] == ("window_edge", "next_row", 21.0)


def test_interior_row_goes_on_to_the_kept_copy(tmp_path: Path) -> None:
    first = make_row(1, value=21.0, target_log_prob=NAN, terminated=True)
    rows = [make_row(0), first, make_row(1, value=22.0, terminated=True)]
    assert cuts(cut(rows, tmp_path))[0] == ("interior", "none", 22.0)


def test_value_comes_from_a_duplicate_of_the_same_actor(tmp_path: Path) -> None:
    rows = [make_row(0, actor_id="a", unroll_id=1)]
    rows += [make_row(1, actor_id="b", unroll_id=2, value=21.0, terminated=True)]
    rows += [make_row(1, actor_id="a", unroll_id=2, value=22.0, terminated=True)]
    found = cut(rows, tmp_path)
    assert found.reasons == {2: ["duplicate"]}
    assert cuts(found)[0] == ("window_edge", "next_row", 22.0)


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("actor_id", "a", "b"),
        ("actor_id", "a", None),
        ("env_version", 3, 4),
        ("reward_version", "a", "b"),
        ("mask_version", None, "b"),
    ],
)
def test_next_row_is_no_successor_when_its_lineage_differs(
    name: str, one: object, other: object, tmp_path: Path
) -> None:
    rows = [make_row(0, bootstrap_value=7.0), *make_stream(1, first=1)]
    rows[0][name], rows[1][name] = one, other
    found = cut(rows, tmp_path)
    assert cuts(found)[0] == ("gap", "logged", 7.0)
    rows[0]["bootstrap_value"] = None
    assert cut(rows, tmp_path).reasons == {0: ["bootstrap_missing"]}
    rows[1][name] = one
    assert cuts(cut(rows, tmp_path))[0] == ("interior", "none", 2.0)


def test_next_row_is_a_successor_when_only_its_policy_version_differs(tmp_path: Path) -> None:
    rows = [make_row(0, policy_version=1), make_row(1, policy_version=2, terminated=True)]
    assert cuts(cut(rows, tmp_path))[0] == ("interior", "none", 2.0)


def two_windows() -> list[Cells]:
    """Steps 0 to 4 of two windows, and a hole before step 6."""
    unrolls = {0: 1, 1: 1, 2: 2, 3: 2, 4: 2, 6: 3}
    rows = [make_row(step, unroll_id=unroll) for step, unroll in unrolls.items()]
    rows[4]["bootstrap_value"], rows[5]["terminated"] = 7.0, True
    return valued(*rows)


def test_windows_are_cut_apart_when_delivered(tmp_path: Path) -> None:
    found = cut(two_windows(), tmp_path)
    assert [boundary for boundary, _, _ in cuts(found).values()] == [
        *("interior", "window_edge", "interior", "interior", "window_edge", "terminated")
    ]
    assert found.kinds("bootstrap") == {"none": 4, "next_row": 1, "logged": 1}


def test_windows_are_joined_but_holes_stay_when_stitched(tmp_path: Path) -> None:
    found = cut(two_windows(), tmp_path, windows="stitched")
    assert [boundary for boundary, _, _ in cuts(found).values()] == [
        *("interior", "interior", "interior", "interior", "gap", "terminated")
    ]
    assert found.kinds("bootstrap") == {"none": 5, "logged": 1}
    assert found.entry("windows")["count"] == 3


def test_stitched_targets_are_those_of_one_window(tmp_path: Path) -> None:
    rows = two_windows()
    joined = cut([{**row, "unroll_id": 1} for row in rows], tmp_path)
    stitched = cut(rows, tmp_path, windows="stitched")
    for name in ("value_target", "advantage", "trace_length", "next_value"):
        assert stitched.column(name) == joined.column(name)


def test_interleaved_windows_are_cut_at_every_step(tmp_path: Path) -> None:
    rows = [make_row(step, unroll_id=step % 2) for step in range(4)]
    rows[3]["terminated"] = True
    assert cuts(cut(valued(*rows), tmp_path)) == {
        0: ("gap", "next_row", 11.0),
        1: ("gap", "next_row", 12.0),
        2: ("window_edge", "next_row", 13.0),
        3: ("terminated", "none", 0.0),
    }


def test_rows_of_another_trajectory_never_follow(tmp_path: Path) -> None:
    rows = [make_row(0, bootstrap_value=7.0), *make_stream(1, first=1, trajectory_id="u")]
    assert cuts(cut(rows, tmp_path))[0] == ("window_edge", "logged", 7.0)


def test_one_row_is_lost_when_a_bootstrap_is_missing(tmp_path: Path) -> None:
    found = cut(valued(make_row(0), make_row(1), make_row(2)), tmp_path)
    assert found.reasons == {2: ["bootstrap_missing"]}
    assert cuts(found) == {0: ("interior", "none", 11.0), 1: ("gap", "next_row", 12.0)}
    assert found.kinds("boundary") == {"interior": 1, "gap": 1}


def test_row_before_takes_the_lost_rows_value_before_its_own_bootstrap(tmp_path: Path) -> None:
    rows = valued(make_row(0, bootstrap_value=7.0), make_row(1, truncated=True), make_row(2))
    found = cut([*rows, *make_stream(1, first=3)], tmp_path)
    assert found.reasons == {1: ["bootstrap_missing"]}
    assert cuts(found)[0] == ("gap", "next_row", 11.0)


def test_window_of_one_row_is_lost_alone_when_its_bootstrap_is_missing(tmp_path: Path) -> None:
    rows = [make_row(0, unroll_id=1), make_row(1, unroll_id=2)]
    found = cut(valued(*rows), tmp_path)
    assert found.reasons == {1: ["bootstrap_missing"]}
    assert cuts(found) == {0: ("window_edge", "next_row", 11.0)}


def test_next_row_is_never_used_at_a_truncation(tmp_path: Path) -> None:
    rows = valued(make_row(0, truncated=True), *make_stream(1, first=1))
    assert cut(rows, tmp_path).reasons == {0: ["bootstrap_missing"]}
    rows[0]["bootstrap_value"] = 7.0
    assert cuts(cut(rows, tmp_path))[0] == ("truncated", "logged", 7.0)


@pytest.mark.parametrize("value", [0.0, -0.0])
def test_zero_bootstrap_is_counted_when_the_row_is_truncated(value: float, tmp_path: Path) -> None:
    rows = [make_row(0, truncated=True, bootstrap_value=value)]
    rows += [make_row(1, truncated=True, bootstrap_value=1e-30)]
    rows += [make_row(2, bootstrap_value=0.0)]
    found = cut(rows, tmp_path)
    assert found.reasons == {}
    assert found.warnings == {"bootstrap_zero": 1}


def test_zero_bootstrap_is_not_counted_when_the_row_is_rejected(tmp_path: Path) -> None:
    rows = [make_row(0, truncated=True, bootstrap_value=0.0, reward=NAN)]
    assert cut(rows, tmp_path).warnings == {}


def test_overflow_reaches_the_rows_before_in_its_segment_alone(tmp_path: Path) -> None:
    rows = make_stream(5)
    rows[0]["terminated"] = True
    rows[2]["reward"] = 1e300
    found = cut(rows, tmp_path, dtype="float32")
    assert found.reasons == {1: ["target_not_finite"], 2: ["target_not_finite"]}
    assert cuts(found) == {
        0: ("terminated", "none", 0.0),
        3: ("interior", "none", 2.0),
        4: ("terminated", "none", 0.0),
    }


def test_row_before_stays_interior_when_the_next_target_is_not_finite(tmp_path: Path) -> None:
    rows = valued(*make_stream(2))
    rows[1]["reward"] = 1e300
    rows[0]["target_log_prob"] = -INF
    found = cut(rows, tmp_path, dtype="float32")
    assert found.reasons == {1: ["target_not_finite"]}
    assert cuts(found) == {0: ("interior", "none", 11.0)}
    assert found.targets[0]["value_target"] == 10.0


def test_targets_are_those_by_hand_at_each_boundary(tmp_path: Path) -> None:
    rows = [make_row(0, reward=1.0, value=2.0), make_row(1, reward=2.0, value=3.0)]
    rows += [make_row(2, reward=4.0, value=1.0, truncated=True, bootstrap_value=6.0)]
    rows += [make_row(3, reward=8.0, value=5.0, terminated=True)]
    for row, ratio in zip(rows, (3.0, 0.5, 0.25, 1.0), strict=True):
        row |= {"behavior_log_prob": -4.0, "target_log_prob": -4.0 + math.log(ratio)}
    found = cut(rows, tmp_path, weights=True)
    # deltas by hand: 0.25 (4 + 3 - 1) = 1.5; 0.5 (2 + 0.5 - 3) = -0.25; 1 + 1.5 - 2 = 0.5
    deltas = {3: 3.0, 2: 1.5, 1: -0.25 + 0.5 * 0.5 * 1.5, 0: 0.5 + 0.5 * 1.0 * 0.125}
    for place, delta in deltas.items():
        assert found.targets[place]["value_target"] == pytest.approx(rows[place]["value"] + delta)
    advantages = {3: 3.0, 2: 1.5, 1: 0.5 * (2 + 0.5 * 2.5 - 3), 0: 1 + 0.5 * 3.125 - 2}
    assert found.column("advantage") == pytest.approx(advantages)
    assert found.column("trace_length") == pytest.approx({0: 2.5, 1: 1.5, 2: 1.0, 3: 1.0})
    assert found.column("rho") == pytest.approx({0: 1.0, 1: 0.5, 2: 0.25, 3: 1.0})
    assert found.column("discount") == {0: 0.5, 1: 0.5, 2: 0.5, 3: 0.5}


def test_trace_does_not_pass_a_cut(tmp_path: Path) -> None:
    rows = make_stream(4)
    rows[1] |= {"truncated": True, "bootstrap_value": 3.0}
    plain = cut(rows, tmp_path)
    rows[2]["reward"], rows[3]["reward"] = 1e6, NAN
    spoiled = cut(rows, tmp_path)
    assert spoiled.reasons == {3: ["reward_not_finite"]}
    for name in ("value_target", "advantage", "trace_length"):
        for place in (0, 1):
            assert spoiled.targets[place][name] == plain.targets[place][name]


def test_nothing_is_cut_when_no_targets_are_asked_for(tmp_path: Path) -> None:
    rows = [make_row(0, truncated=True), make_row(1, reward=NAN), make_row(2)]
    found = cut(rows, tmp_path, targets=False)
    assert found.reasons == {1: ["reward_not_finite"]}
    assert found.targets == {}
    assert found.result.summary["accepted"] == 2
    for measure, kind in (("boundary", "gap"), ("bootstrap", "logged"), ("clipped", "rho")):
        entry = found.entry(measure, kind)
        assert (entry["count"], entry["fraction"]) == (None, None)
        assert entry["null_reason"]
    assert found.entry("clipped_received", "rho")["count"] == 0


def test_log_needs_no_scores_when_no_targets_are_asked_for(tmp_path: Path) -> None:
    rows = make_stream(2)
    for row in rows:
        del row["value"], row["target_log_prob"]
    found = cut(rows, tmp_path, targets=False)
    assert found.reasons == {}
    assert found.entry("clipped_received", "rho")["count"] is None
