"""Hand-worked checks of the oracle and of the random logs."""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from oracle import REASONS, LogFile, OracleResult, OracleRow, audit_log, natural_key, rounded
from random_logs import PROFILES, make_random_log, write_log

NAN, INF = math.nan, math.inf
Cells = dict[str, Any]


def row(step: int | None = 0, **cells: Any) -> Cells:
    """A sound row that terminates its episode."""
    sound = {"trajectory_id": "a", "step": step, "reward": 1.0, "value": 0.0}
    sound |= {"terminated": True, "truncated": False}
    return sound | {"behavior_log_prob": -1.0, "target_log_prob": -1.0} | cells


def open_row(step: int, **cells: Any) -> Cells:
    """A sound row that ends nothing."""
    return row(step, **{"terminated": False} | cells)


def log_file(*rows: Cells, without: tuple[str, ...] = ()) -> LogFile:
    """A file with every column that some row names, but those of `without`."""
    names = dict.fromkeys(name for cells in rows for name in cells)
    return LogFile([name for name in names if name not in without], list(rows))


def audit(*rows: Cells, **settings: Any) -> OracleResult:
    """The audit of one file."""
    return audit_log({"w.parquet": log_file(*rows)}, **settings)


def fates(result: OracleResult, name: str = "w.parquet") -> list[OracleRow]:
    """One file's rows in order."""
    return [fate for (file, _), fate in sorted(result.rows.items()) if file == name]


def reasons(*rows: Cells, **settings: Any) -> list[list[str]]:
    """Each row's reasons."""
    return [fate.reasons for fate in fates(audit(*rows, **settings))]


def discrete(**cells: Any) -> Cells:
    """A terminal row with action 1 of 2, uniform logits and equal masks."""
    sound: Cells = {"action": 1, "behavior_logits": [0.0, 0.0], "target_logits": [0.0, 0.0]}
    sound |= {"behavior_action_mask": [True, True], "target_action_mask": [True, True]}
    half = math.log(0.5)
    return row(**sound | {"behavior_log_prob": half, "target_log_prob": half} | cells)


def two_steps(**cells: Any) -> list[Cells]:
    """Two rows of one window: probabilities .20, .80 under mu and .60, .40 under pi."""
    first = {"reward": 1.0, "value": 2.0}
    first |= {"behavior_log_prob": math.log(0.2), "target_log_prob": math.log(0.6)}
    second = {"reward": 2.0, "value": 3.0, "bootstrap_value": 4.0}
    second |= {"behavior_log_prob": math.log(0.8), "target_log_prob": math.log(0.4)}
    return [open_row(0, **first | cells), open_row(1, **second | cells)]


def test_two_steps_by_hand() -> None:
    # ratios 3 and 1/2, clipped at 1: rho 1, 1/2.
    # delta_1 = .5 (2 + .9*4 - 3) = 1.3; target_1 = 4.3
    # delta_0 = 1 + .9*3 - 2 = 1.7; target_0 = 2 + 1.7 + .9*1.3 = 4.87
    # advantage_1 = .5 * 2.6 = 1.3; advantage_0 = 1 + .9*4.3 - 2 = 2.87
    first, second = fates(audit(*two_steps(), gamma=0.9, dtype="float64"))
    assert first.value_target == pytest.approx(4.87)
    assert second.value_target == pytest.approx(4.30)
    assert first.advantage == pytest.approx(2.87)
    assert second.advantage == pytest.approx(1.30)
    assert (first.boundary, second.boundary) == ("interior", "window_edge")
    assert (first.bootstrap_source, second.bootstrap_source) == ("none", "logged")
    assert (first.next_value, second.next_value) == (3.0, 4.0)
    assert (first.rho, first.c, first.pg_rho) == (1.0, 1.0, 1.0)
    assert second.rho == pytest.approx(0.5)
    # trace_1 = 1; trace_0 = 1 + c_0 * 1 = 2
    assert (first.trace_length, second.trace_length) == (2.0, 1.0)


def test_two_steps_without_clips_and_with_lambda() -> None:
    # rho_0 = pg_0 = 3, c_0 = .5 * min(2, 3) = 1
    # target_0 = 2 + 3*1.7 + .9*1*1.3 = 8.27; advantage_0 = 3 * 2.87 = 8.61
    settings = {"rho_bar": INF, "pg_rho_bar": INF, "c_bar": 2.0, "lambda_": 0.5}
    first, _ = fates(audit(*two_steps(), gamma=0.9, dtype="float64", **settings))
    assert first.value_target == pytest.approx(8.27)
    assert first.advantage == pytest.approx(8.61)
    assert (first.c, first.trace_length) == (1.0, 2.0)


def test_on_policy_is_the_discounted_return() -> None:
    # rewards 1, 1, 1, gamma .5, bootstrap 8: 1 + .5 + .25 + .125*8 = 2.75, whatever V is
    rows = [open_row(i, value=float(i * i)) for i in range(3)]
    rows[2]["bootstrap_value"] = 8.0
    targets = [fate.value_target for fate in fates(audit(*rows, gamma=0.5, dtype="float64"))]
    assert targets == pytest.approx([2.75, 3.5, 5.0])


def test_lambda_zero_is_one_step() -> None:
    # target_0 = 1 + .5*3 = 2.5: the reward of row 1 cannot reach it
    rows = [open_row(0), row(1, reward=100.0, value=3.0)]
    first, _ = fates(audit(*rows, gamma=0.5, lambda_=0.0))
    assert (first.value_target, first.trace_length) == (2.5, 1.0)


def test_numbers_are_rounded_once_to_float32() -> None:
    fate = fates(audit(row(reward=0.1)))[0]
    assert fate.value_target == rounded(0.1, "float32") != 0.1
    assert rounded(1e39, "float32") == INF


def test_log_ratio_is_rounded_before_it_is_clipped() -> None:
    # 1 + 1e-12 rounds to 1, which is not above the bar of 1
    cells: Cells = {"behavior_log_prob": -2.0, "target_log_prob": -1.0 + 1e-12}
    counts = audit(row(**cells), rho_bar=math.e).counts
    assert counts["clipped", "rho"] == 0
    assert counts["clipped", "c"] == 1
    assert audit(row(**cells), rho_bar=math.e, dtype="float64").counts["clipped", "rho"] == 1


def test_target_of_minus_infinity_is_legal() -> None:
    # pi = 0: rho = c = pg = 0, so the target is V and nothing passes, not even infinity
    rows = [open_row(0, target_log_prob=-INF, value=5.0), row(1, reward=1e308, value=-1e308)]
    first, second = fates(audit(*rows))
    assert (first.value_target, first.advantage, first.trace_length) == (5.0, 0.0, 1.0)
    assert first.log_ratio == -INF
    assert second.reasons == ["target_not_finite"]


def test_infinite_difference_stays_behind_a_ratio_of_zero() -> None:
    # 1e308 + 1e308 overflows, but rho = pg = 0 selects V and 0
    cells: Cells = {"target_log_prob": -INF, "reward": 1e308, "value": -1e308}
    fate = fates(audit(row(**cells), dtype="float64"))[0]
    assert (fate.value_target, fate.advantage) == (-1e308, 0.0)


def test_overflowing_ratio_is_the_bar() -> None:
    fate = fates(audit(row(behavior_log_prob=-2000.0), rho_bar=2.0))[0]
    assert (fate.rho, fate.value_target) == (2.0, 2.0)


def test_target_not_finite_does_not_cut_its_neighbours() -> None:
    # 1e300 is no float32; it reaches rows 0 and 1 of its segment, not row 3 after it
    rows = [open_row(0), open_row(1), open_row(2, reward=1e300), row(3)]
    bad = ["target_not_finite"]
    assert reasons(*rows) == [bad, bad, bad, []]
    result = audit(*rows, lambda_=0.0, c_bar=1.0)
    assert [fate.reasons for fate in fates(result)] == [[], bad, bad, []]
    assert fates(result)[0].boundary == "interior"
    assert fates(audit(*rows, dtype="float64"))[1].status == "accepted"


def test_padding_is_never_received() -> None:
    result = audit(row(0, valid=True), row(0, valid=False, reward=NAN), row(1, valid=None))
    assert [fate.status for fate in fates(result)] == ["accepted", "padding", "rejected"]
    assert fates(result)[2].reasons == ["valid_missing"]
    assert (result.counts["padding", None], result.counts["received", None]) == (1, 2)


def test_valid_of_a_file_without_the_column() -> None:
    files = {"a": log_file(row(0, valid=True)), "b": log_file(row(1))}
    assert audit_log(files).counts["accepted", None] == 2


@pytest.mark.parametrize("cells", [{"trajectory_id": None}, {"step": None}, {"step": -1}])
def test_key_missing(cells: Cells) -> None:
    bad = {**row(0), **cells}
    result = audit(bad, bad, row(5))
    assert [fate.reasons for fate in fates(result)] == [["key_missing"], ["key_missing"], []]
    assert result.counts["unique", None] == 1
    assert result.counts["deliveries", None] == result.counts["windows", None] == 1


def test_a_a_b_is_three_conflicts() -> None:
    assert reasons(row(), row(), row(reward=2.0)) == [["key_conflict"]] * 3


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"reward": 0.0}, {"reward": -0.0}),
        ({"reward": NAN}, {"reward": NAN}),
        ({"actor_id": 1}, {"actor_id": 2}),
        ({"unroll_id": 1}, {"unroll_id": 2}),
        ({"value": 1.0}, {"value": 2.0}),
        ({"target_log_prob": -1.0}, {"target_log_prob": -2.0}),
        ({"action": 1}, {"action": 1.0}),
        ({"behavior_action_mask": [True, None]}, {"behavior_action_mask": [True, None]}),
    ],
)
def test_equal_payloads_are_duplicates(one: Cells, other: Cells) -> None:
    assert ["duplicate" in found for found in reasons(row(**one), row(**other))] == [False, True]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"policy_version": 1}, {"policy_version": None}),
        ({"behavior_logits": [0.0]}, {"behavior_logits": [0.0, 0.0]}),
        ({"env_version": "1"}, {"env_version": "2"}),
        ({"behavior_epsilon": 0.0}, {"behavior_epsilon": None}),
        ({"truncated": False}, {"truncated": None}),
    ],
)
def test_different_payloads_are_conflicts(one: Cells, other: Cells) -> None:
    assert all("key_conflict" in found for found in reasons(row(**one), row(**other)))


def test_absent_discount_is_null_in_the_payload() -> None:
    files = {"a": log_file(row(discount=1.0)), "b": log_file(row())}
    assert audit_log(files).counts["rejected_any", "key_conflict"] == 2


def test_kept_is_the_first_copy_without_another_reason() -> None:
    found = reasons(row(value=NAN), row(value=1.0), row(value=2.0))
    assert found == [["duplicate", "value_not_finite"], [], ["duplicate"]]
    found = reasons(row(value=NAN), row(value=INF))
    assert found == [["value_not_finite"], ["duplicate", "value_not_finite"]]


def test_bootstrap_missing_does_not_choose_the_kept_copy() -> None:
    found = reasons(open_row(0, bootstrap_value=None), open_row(0, bootstrap_value=1.0))
    assert found == [["bootstrap_missing"], ["duplicate"]]


def test_first_is_by_natural_order_of_the_files() -> None:
    names = ["w_10", "w_2", "w_02", "W_3", "w_2b", "w"]
    assert sorted(names, key=natural_key) == ["W_3", "w", "w_02", "w_2", "w_2b", "w_10"]
    result = audit_log({name: log_file(row()) for name in names})
    kept = [file for (file, _), fate in result.rows.items() if fate.status == "accepted"]
    assert kept == ["W_3"]


@pytest.mark.parametrize("value", [None, 2, -1, NAN])
def test_flag_missing(value: Any) -> None:
    assert reasons(row(truncated=value)) == [["flag_missing"]]
    assert reasons(row(terminated=value, truncated=True, bootstrap_value=1.0)) == [["flag_missing"]]


def test_flag_column_that_one_file_lacks() -> None:
    files = {"a": log_file(row(0)), "b": log_file(row(1), without=("truncated",))}
    assert fates(audit_log(files), "b")[0].reasons == ["flag_missing"]


def test_log_with_one_flag_column() -> None:
    result = audit_log({"a": log_file(row(0), without=("truncated",))})
    assert fates(result, "a")[0].boundary == "terminated"


def test_flag_contradiction() -> None:
    result = audit(row(truncated=1, terminated=1))
    assert fates(result)[0].boundary == "terminated"
    assert result.counts["warning", "ends_both"] == 1
    result = audit(row(truncated=1, terminated=1), strict_flags=True)
    assert fates(result)[0].reasons == ["flag_contradiction"]
    assert result.counts["warning", "ends_both"] == 0


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "behavior_log_prob_missing"),
        (NAN, "behavior_log_prob_nan"),
        (INF, "behavior_log_prob_infinite"),
        (-INF, "behavior_log_prob_infinite"),
        (0.002, "behavior_log_prob_positive"),
    ],
)
def test_behavior_log_prob(value: float | None, reason: str) -> None:
    assert reasons(row(behavior_log_prob=value)) == [[reason]]


@pytest.mark.parametrize("value", [None, NAN, INF, 0.002])
def test_target_log_prob_invalid(value: float | None) -> None:
    assert reasons(row(target_log_prob=value)) == [["target_log_prob_invalid"]]


def test_log_prob_within_tolerance_counts_as_zero() -> None:
    result = audit(row(behavior_log_prob=0.001, target_log_prob=0.0005))
    assert fates(result)[0].log_ratio == 0.0
    assert result.counts["warning", "log_prob_rounded"] == 1


def test_positive_densities_are_continuous() -> None:
    cells: Cells = {"behavior_log_prob": 0.5, "target_log_prob": 0.25}
    assert fates(audit(row(**cells, action=0.3)))[0].log_ratio == -0.25
    assert fates(audit(row(**cells, action=[0.3])))[0].status == "accepted"
    assert fates(audit(row(**cells, action=3), action_space="continuous"))[0].reasons == []
    assert len(fates(audit(row(**cells, action=3)))[0].reasons) == 2
    files = {"a": log_file(row(0, **cells, action=3)), "b": log_file(row(1, action=0.5))}
    assert audit_log(files).counts["accepted", None] == 2


@pytest.mark.parametrize(
    "cells",
    [
        {"behavior_logits": []},
        {"behavior_logits": [0.0, None]},
        {"behavior_logits": [0.0, NAN]},
        {"behavior_logits": [INF, 0.0]},
        {"behavior_logits": [-INF, -INF]},
        {"target_logits": [0.0]},
        {"behavior_temperature": NAN},
        {"behavior_temperature": INF},
        {"behavior_temperature": -1.0},
        {"behavior_epsilon": NAN},
        {"behavior_epsilon": -0.1},
        {"behavior_epsilon": 1.1},
    ],
)
def test_behavior_logits_malformed(cells: Cells) -> None:
    result = audit(discrete(**cells))
    assert "behavior_logits_malformed" in fates(result)[0].reasons
    assert result.counts["warning", "not_rebuilt"] == 0
    assert result.counts["rejected_any", "behavior_log_prob_unreconciled"] == 0


@pytest.mark.parametrize(
    ("cells", "probability"),
    [
        ({}, 0.5),
        # 3 : 1, so the second of them has 1/4
        ({"behavior_logits": [math.log(3.0), 0.0]}, 0.25),
        # at temperature 1/2 it is 9 : 1
        ({"behavior_logits": [math.log(3.0), 0.0], "behavior_temperature": 0.5}, 0.1),
        # .8 * .25 + .2 / 2 = .3
        ({"behavior_logits": [math.log(3.0), 0.0], "behavior_epsilon": 0.2}, 0.3),
        ({"behavior_logits": [math.log(3.0), 0.0], "behavior_epsilon": 1.0}, 0.5),
        # the action alone is legal
        ({"behavior_action_mask": [False, True], "target_action_mask": [False, True]}, 1.0),
        ({"behavior_logits": [-INF, 0.0], "behavior_epsilon": 0.2}, 1.0),
        # far below what a probability in float64 could hold
        ({"behavior_logits": [1000.0, 0.0]}, None),
    ],
)
def test_behavior_log_prob_unreconciled(cells: Cells, probability: float | None) -> None:
    log_prob = -1000.0 if probability is None else math.log(probability)
    sound = discrete(**cells, behavior_log_prob=log_prob)
    assert reasons(sound) == [[]]
    off = {**sound, "behavior_log_prob": log_prob - 0.0011}
    assert reasons(off) == [["behavior_log_prob_unreconciled"]]
    assert reasons(off, reconcile_tolerance=0.01) == [[]]


def test_action_outside_the_support_is_unreconciled() -> None:
    cells = {"behavior_logits": [0.0, -INF], "behavior_epsilon": 0.5}
    assert reasons(discrete(**cells)) == [["behavior_log_prob_unreconciled"]]


@pytest.mark.parametrize(
    ("cells", "found"),
    [
        ({"behavior_temperature": 0.0}, []),
        ({"action": None}, ["action_out_of_range"]),
        ({"action": 2}, ["action_out_of_range"]),
        ({"action": -1}, ["action_out_of_range"]),
        ({"behavior_action_mask": [True, False]}, ["mask_mismatch", "action_masked"]),
        ({"target_action_mask": [True, None]}, ["mask_malformed", "mask_mismatch"]),
    ],
)
def test_not_rebuilt(cells: Cells, found: list[str]) -> None:
    result = audit(discrete(behavior_log_prob=-9.0, **cells))
    assert fates(result)[0].reasons == found
    assert result.counts["warning", "not_rebuilt"] == 1


@pytest.mark.parametrize("mask", [[], [False, False], [True, None], [True], [True] * 3])
def test_mask_malformed(mask: list[bool | None]) -> None:
    assert "mask_malformed" in reasons(discrete(behavior_action_mask=mask))[0]
    both = {"behavior_action_mask": mask, "target_action_mask": list(mask)}
    found = reasons(discrete(**both))[0]
    assert "mask_malformed" in found
    assert "mask_mismatch" not in found


@pytest.mark.parametrize(
    ("behavior", "target", "equal", "subset"),
    [
        ([True, True], [True, True], False, False),
        ([True, True], [False, True], True, False),
        ([False, True], [True, True], True, True),
        ([True, True], None, True, False),
        ([False, True], None, True, True),
        (None, [False, True], True, False),
        (None, None, False, False),
        ([None, True], [True, True], True, False),
        ([False, True], [None, True], True, False),
        ([True], [False, True], False, False),
    ],
)
def test_mask_mismatch(
    behavior: list[bool] | None, target: list[bool] | None, equal: bool, subset: bool
) -> None:
    bad = discrete(behavior_action_mask=behavior, target_action_mask=target)
    assert ("mask_mismatch" in reasons(bad)[0]) is equal
    assert ("mask_mismatch" in reasons(bad, mask_policy="subset")[0]) is subset


def test_mask_column_that_the_file_lacks() -> None:
    lacking = log_file(
        discrete(behavior_action_mask=[False, True], behavior_log_prob=0.0),
        without=("target_action_mask",),
    )
    for policy in ("equal", "subset"):
        assert audit_log({"a": lacking}, mask_policy=policy).counts["accepted", None] == 1


def test_action_rules_need_what_they_judge() -> None:
    assert reasons(row(action=7)) == [[]]
    assert reasons(row(action=7, target_logits=[0.0])) == [[]]
    assert reasons(row(action=7, target_action_mask=[True])) == [["action_out_of_range"]]
    assert reasons(row(target_action_mask=[True])) == [[]]
    # no rule hides another: 1 is no index of the target mask, and false in the other
    masks: Cells = {"behavior_action_mask": [True, False], "target_action_mask": [True]}
    expected = ["mask_malformed", "action_out_of_range", "action_masked"]
    assert reasons(row(action=1, **masks)) == [expected]


def test_float_action_must_be_integral_to_be_an_index() -> None:
    for action, found in ((1.0, []), (1.5, ["action_out_of_range"])):
        bad = row(action=action, behavior_action_mask=[True, True])
        assert reasons(bad, action_space="discrete") == [found]


@pytest.mark.parametrize("value", [None, NAN, INF, -INF])
def test_reward_and_value_not_finite(value: float | None) -> None:
    expected = [["reward_not_finite", "value_not_finite"]]
    assert reasons(row(reward=value, value=value)) == expected


@pytest.mark.parametrize("value", [None, NAN, -0.1, 1.1, INF])
def test_discount_out_of_range(value: float | None) -> None:
    assert reasons(row(discount=value)) == [["discount_out_of_range"]]


def test_version_mismatch() -> None:
    rows = [row(i, env_version=v) for i, v in enumerate([3, 4, 33, None])]
    bad = ["version_mismatch"]
    assert reasons(*rows, expect={"env_version": ["3", "4"]}) == [[], [], bad, bad]


def test_policy_versions() -> None:
    rows = [row(i, policy_version=v) for i, v in enumerate([10, 7, 6, 11, None])]
    result = audit(*rows, learner_version=10, max_policy_lag=3)
    stale, future = ["policy_too_stale"], ["policy_version_in_future"]
    assert [fate.reasons for fate in fates(result)] == [[], [], stale, future, []]
    assert result.counts["warning", "policy_version_missing"] == 1
    assert audit(*rows, learner_version=10).counts["rejected", None] == 1
    assert audit(*rows, max_policy_lag=3).counts["rejected", None] == 0


def test_reasons_stand_in_the_order_of_the_table() -> None:
    found = reasons(row(step=-1, reward=NAN, valid=None, terminated=None))[0]
    assert found == ["valid_missing", "key_missing", "flag_missing", "reward_not_finite"]


def test_truncation_takes_its_own_bootstrap() -> None:
    # target_0 = 1 + .5*10 = 6: the next episode's 99 is never used
    rows = [open_row(0, truncated=True, bootstrap_value=10.0), row(1, value=99.0)]
    first, _ = fates(audit(*rows, gamma=0.5))
    assert (first.boundary, first.bootstrap_source) == ("truncated", "logged")
    assert (first.value_target, first.advantage) == (6.0, 6.0)
    assert reasons(open_row(0, truncated=True), row(1)) == [["bootstrap_missing"], []]
    zero = audit(open_row(0, truncated=True, bootstrap_value=-0.0))
    assert zero.counts["warning", "bootstrap_zero"] == 1


def test_zero_discount_ends_without_a_flag() -> None:
    first, _ = fates(audit(open_row(0, discount=0.0, truncated=True), row(1, value=99.0)))
    assert (first.boundary, first.next_value, first.value_target) == ("zero_discount", 0.0, 1.0)


def test_window_edge_takes_the_successor_before_the_logged_bootstrap() -> None:
    # windows 1 and 2: 1 + .5*4 = 3; stitched the trace goes on: 1 + .5*(1) = 1.5
    rows = [open_row(0, unroll_id=1, bootstrap_value=7.0), row(1, unroll_id=2, value=4.0)]
    first, _ = fates(audit(*rows, gamma=0.5))
    assert (first.boundary, first.bootstrap_source) == ("window_edge", "next_row")
    assert first.value_target == 3.0
    first, _ = fates(audit(*rows, gamma=0.5, windows="stitched"))
    assert (first.boundary, first.value_target) == ("interior", 1.5)


def test_rejected_row_leaves_a_gap_and_its_value() -> None:
    # the reward of row 1 is unknown, its value is not: 1 + .5*4 = 3
    rows = [open_row(0), open_row(1, reward=NAN, value=4.0), row(2)]
    first = fates(audit(*rows, gamma=0.5))[0]
    assert (first.boundary, first.bootstrap_source, first.value_target) == ("gap", "next_row", 3.0)


def test_hole_stays_a_gap() -> None:
    rows = [open_row(0, bootstrap_value=2.0), row(2)]
    assert fates(audit(*rows, windows="stitched"))[0].boundary == "gap"
    assert fates(audit(*rows))[0].bootstrap_source == "logged"


def test_missing_bootstrap_loses_one_row() -> None:
    # row 1 has nothing to look ahead with; row 0 then looks at row 1's value
    first, second = fates(audit(open_row(0), open_row(1, value=4.0), gamma=0.5))
    assert second.reasons == ["bootstrap_missing"]
    assert (first.boundary, first.next_value, first.value_target) == ("gap", 4.0, 3.0)


def test_edge_counts_rejected_rows_of_a_greater_step() -> None:
    rows = [open_row(0, bootstrap_value=2.0), row(7, reward=NAN)]
    assert fates(audit(*rows))[0].boundary == "gap"


def test_successor_needs_the_lineage() -> None:
    rows = [open_row(0, actor_id="x", bootstrap_value=2.0), row(1, actor_id="y", value=4.0)]
    first, _ = fates(audit(*rows))
    assert (first.boundary, first.next_value) == ("gap", 2.0)
    same = [{**cells, "actor_id": None} for cells in rows]
    assert fates(audit(*same))[0].boundary == "interior"


def test_successor_value_of_the_first_usable_copy() -> None:
    # the copy of window 2 is kept, the duplicate of window 1 comes first in file order but
    # for its null value
    rows = [open_row(0, unroll_id=1), row(1, unroll_id=2, value=None, target_log_prob=None)]
    rows += [row(1, unroll_id=2, value=5.0, target_log_prob=None), row(1, unroll_id=2, value=6.0)]
    fate = fates(audit(*rows))
    assert fate[0].next_value == 5.0
    assert fate[3].status == "accepted"


def test_interior_takes_the_value_of_the_accepted_copy() -> None:
    # the first copy of row 1 is not accepted, so its 4 is not in the segment: V = 6 is
    rows = [open_row(0), row(1, value=4.0, target_log_prob=None), row(1, value=6.0)]
    first = fates(audit(*rows))[0]
    assert (first.boundary, first.next_value) == ("interior", 6.0)


def test_conflicting_successor_has_no_value() -> None:
    rows = [open_row(0), row(1), row(1, reward=2.0)]
    assert reasons(*rows)[0] == ["bootstrap_missing"]


def test_duplicates_do_not_break_a_segment() -> None:
    first, *_ = fates(audit(open_row(0), open_row(0), row(1), row(1)))
    assert first.boundary == "interior"


def test_end_of_trajectory() -> None:
    flags = ("terminated", "truncated")
    file = log_file(row(0), row(1), row(1), row(-1), without=flags)
    result = audit_log({"w.parquet": file}, end_of_trajectory="terminated")
    assert [fate.boundary for fate in fates(result)] == ["interior", "terminated", None, None]
    result = audit_log({"w.parquet": file}, end_of_trajectory="truncated")
    assert fates(result)[1].reasons == ["bootstrap_missing"]
    with pytest.raises(ValueError, match="end_of_trajectory"):
        audit_log({"w.parquet": file})


def test_step_from_order() -> None:
    def file(*ids: str | None) -> LogFile:
        rows = [row(trajectory_id=i, reward=float(n)) for n, i in enumerate(ids)]
        return log_file(*rows, without=("step",))

    files = {"w_10": file("a", "b"), "w_2": file("a", None, "a"), "w_11": file("a", "b")}
    files["w_12"] = file("b")
    result = audit_log(files, step_from="order")
    steps = {place: fate.step for place, fate in result.rows.items()}
    assert [steps["w_2", i] for i in range(3)] == [0, None, 1]
    assert [steps["w_10", i] for i in range(2)] == [2, 0]
    assert [steps["w_11", i] for i in range(2)] == [2, 0]
    assert steps["w_12", 0] == 1
    assert [fate.reasons for fate in fates(result, "w_11")] == [["duplicate"], ["duplicate"]]


def test_audit_without_targets() -> None:
    rows = [open_row(0), open_row(3)]
    file = log_file(*rows, without=("value", "target_log_prob"))
    result = audit_log({"w.parquet": file}, targets=False)
    assert result.counts["accepted", None] == 2
    assert fates(result)[0].value_target is None
    assert fates(result)[0].log_ratio is None
    bad = row(target_log_prob=NAN, value=None)
    assert reasons(bad, targets=False) == [["target_log_prob_invalid", "value_not_finite"]]


def test_clipped_and_received_counts() -> None:
    # ratios e, 1, e with a bad reward, NaN, and none
    pairs = [(-2.0, -1.0), (-1.0, -1.0), (-2.0, -1.0), (NAN, -1.0), (None, -1.0)]
    rows = [row(i, behavior_log_prob=b, target_log_prob=t) for i, (b, t) in enumerate(pairs)]
    rows[2]["reward"] = NAN
    counts = audit(*rows, c_bar=INF).counts
    assert counts["clipped", "rho"] == 1
    assert counts["clipped_received", "rho"] == 2
    assert counts["clipped_received", "c"] == 0
    assert counts["received_with_ratio", None] == 3


def test_deliveries() -> None:
    # the window twice in one file, and once more in another: two repeated deliveries
    window = [open_row(0, unroll_id=1), row(1, unroll_id=1)]
    files = {"a": log_file(*window, *window), "b": log_file(*window, row(2, unroll_id=2))}
    counts = audit_log(files).counts
    assert counts["deliveries", None] == 4
    assert counts["deliveries_duplicate", None] == 2
    assert counts["windows", None] == 2


@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_random_logs_keep_the_laws(profile: str) -> None:
    shares = []
    for seed in range(40):
        files, settings = make_random_log(seed, profile=profile)
        result = audit_log(files, **settings)
        counts = result.counts
        assert counts["received", None] == counts["accepted", None] + counts["rejected", None]
        primary = sum(n for (measure, _), n in counts.items() if measure == "rejected_primary")
        assert primary == counts["rejected", None]
        edges = sum(n for (measure, _), n in counts.items() if measure == "boundary")
        assert edges == counts["accepted", None]
        assert len(result.rows) == sum(len(file.rows) for file in files.values())
        shares.append(counts["accepted", None] / counts["received", None])
    assert sum(shares) / len(shares) > 0.6


def test_random_logs_hold_every_fault() -> None:
    seen: Counter[str] = Counter()
    for seed in range(150):
        files, settings = make_random_log(seed)
        for fate in audit_log(files, **settings).rows.values():
            seen.update(fate.reasons)
    assert set(REASONS) - set(seen) == {"window_malformed"}


def test_random_logs_are_repeatable() -> None:
    assert repr(make_random_log(7)) == repr(make_random_log(7))
    assert repr(make_random_log(7)) != repr(make_random_log(8))


def comparable(cell: Any) -> str:
    """A cell as text, so that NaN equals NaN; flags as they compare in Python."""
    return repr(int(cell)) if isinstance(cell, bool) else repr(cell)


@pytest.mark.parametrize("seed", range(12))
def test_written_logs_read_back(seed: int, tmp_path: Path) -> None:
    files, _ = make_random_log(seed)
    write_log(files, tmp_path)
    types: dict[str, object] = {}
    for name, file in files.items():
        table = pq.ParquetFile(tmp_path / name).read()
        assert table.column_names == file.columns
        for column in table.schema:
            assert types.setdefault(column.name, column.type) == column.type
        for written, cells in zip(table.to_pylist(), file.rows, strict=True):
            given = {column: comparable(cells.get(column)) for column in file.columns}
            assert {column: comparable(cell) for column, cell in written.items()} == given
