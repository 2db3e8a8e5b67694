"""Every reason and every warning on a minimal log, and the near misses that are accepted."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from logs import Cells, Run, make_row, make_stream, run
from vtaudit.reasons import Reason, Warn

INF, NAN = math.inf, math.nan
LOG_3 = math.log(3)
BEHAVIOR_MASK, TARGET_MASK = "behavior_action_mask", "target_action_mask"
BEHAVIOR_LOGITS, TARGET_LOGITS = "behavior_logits", "target_logits"

CONTRACT_ORDER = (
    *("valid_missing", "key_missing", "key_conflict", "duplicate", "flag_missing"),
    *("flag_contradiction", "behavior_log_prob_missing", "behavior_log_prob_nan"),
    *("behavior_log_prob_infinite", "behavior_log_prob_positive", "behavior_logits_malformed"),
    *("behavior_log_prob_unreconciled", "target_log_prob_invalid", "mask_malformed"),
    *("mask_mismatch", "action_out_of_range", "action_masked", "reward_not_finite"),
    *("value_not_finite", "discount_out_of_range", "version_mismatch", "policy_too_stale"),
    *("policy_version_in_future", "bootstrap_missing", "target_not_finite", "window_malformed"),
)

# the action is 1; softmax of (0, log 3) is (1/4, 3/4)
MASKED: Cells = {"action": 1, BEHAVIOR_MASK: [True, True, False], TARGET_MASK: [True, True, False]}
SAMPLED: Cells = {"action": 1, BEHAVIOR_LOGITS: [0.0, LOG_3], "behavior_log_prob": math.log(0.75)}
FLOAT_ACTION = {"action": pa.float64()}
EXPECTED = {"expect": {"env_version": ("3", "4")}}
VERSIONED: Cells = {"env_version": 3, "mask_version": "m1", "actor_id": "a"}


@dataclass(frozen=True)
class Case:
    """A log and the reasons of its rejected rows by row number."""

    name: str
    rows: list[Cells]
    wanted: dict[int, list[str]] = field(default_factory=dict)
    warnings: dict[str, int] = field(default_factory=dict)
    types: dict[str, pa.DataType] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)

    def run(self, tmp_path: Path) -> Run:
        return run(self.rows, tmp_path, types=self.types, **self.settings)


def first_row(name: str, base: Cells, cells: Cells, *reasons: Reason, **more: Any) -> Case:
    """Three sound rows, `cells` put into the first; what is no field of Case is a setting.

    `reasons` are the first row's, where it has others than the one that the case stands under.
    """
    rows = make_stream(3, **base)
    rows[0] |= cells
    named = {"warnings": more.pop("warnings", {}), "types": more.pop("types", {})}
    wanted = {0: [reason.code for reason in reasons]} if reasons else {}
    return Case(name, rows, wanted, **named, settings=more)


def column(name: str, *cells: Any, base: Cells | None = None, **more: Any) -> list[Case]:
    """One case per value of a column."""
    return [first_row(f"{name}={cell}", base or {}, {name: cell}, **more) for cell in cells]


def both_masks(mask: list[bool | None]) -> Cells:
    return {BEHAVIOR_MASK: mask, TARGET_MASK: list(mask)}


KEY_CASES = {
    Reason.VALID_MISSING: column("valid", None, base={"valid": True}),
    Reason.KEY_MISSING: [*column("trajectory_id", None), *column("step", None, -1)],
    Reason.KEY_CONFLICT: [
        Case(
            "differs",
            [*make_stream(2), make_row(0, reward=9.0)],
            {0: ["key_conflict"], 2: ["key_conflict"]},
        )
    ],
    Reason.DUPLICATE: [Case("equal", [*make_stream(2), make_row(0)], {2: ["duplicate"]})],
    Reason.FLAG_MISSING: [
        *column("terminated", None),
        *column("truncated", None),
        *column("terminated", 2, -1, types={"terminated": pa.int64()}),
        *column("truncated", 0.5, NAN, types={"truncated": pa.float64()}),
        first_row(
            "opposite infinities",
            {},
            {"terminated": INF, "truncated": -INF},
            types={"terminated": pa.float64(), "truncated": pa.float64()},
        ),
    ],
    Reason.FLAG_CONTRADICTION: [
        first_row("both", {}, {"terminated": True, "truncated": True}, strict_flags=True)
    ],
}

LOG_PROB_CASES = {
    Reason.BEHAVIOR_LOG_PROB_MISSING: column("behavior_log_prob", None),
    Reason.BEHAVIOR_LOG_PROB_NAN: column("behavior_log_prob", NAN),
    Reason.BEHAVIOR_LOG_PROB_INFINITE: column("behavior_log_prob", INF, -INF),
    Reason.BEHAVIOR_LOG_PROB_POSITIVE: [
        *column("behavior_log_prob", 0.0011, 2.0),
        *column("behavior_log_prob", 1e-9, log_prob_tolerance=0.0),
    ],
    Reason.TARGET_LOG_PROB_INVALID: [
        *column("target_log_prob", None, NAN, INF, 0.0011),
        *column("target_log_prob", 1e-9, log_prob_tolerance=0.0),
        *column("target_log_prob", None, NAN, INF, base={"action": 0.5}, types=FLOAT_ACTION),
    ],
    Reason.BEHAVIOR_LOGITS_MALFORMED: [
        first_row(
            "empty",
            SAMPLED,
            {BEHAVIOR_LOGITS: []},
            *(Reason.BEHAVIOR_LOGITS_MALFORMED, Reason.ACTION_OUT_OF_RANGE),
        ),
        *column(
            BEHAVIOR_LOGITS,
            *([None, LOG_3], [NAN, LOG_3], [INF, LOG_3], [-INF, -INF]),
            base=SAMPLED,
        ),
        first_row("longer target_logits", SAMPLED, {TARGET_LOGITS: [0.0, 1.0, 2.0]}),
        *column("behavior_temperature", NAN, INF, -0.5, base=SAMPLED),
        *column("behavior_epsilon", NAN, INF, -0.1, 1.1, base=SAMPLED),
    ],
    Reason.BEHAVIOR_LOG_PROB_UNRECONCILED: [
        first_row("above", SAMPLED, {"behavior_log_prob": math.log(0.75) + 0.0011}),
        first_row("below", SAMPLED, {"behavior_log_prob": math.log(0.75) - 0.0011}),
        first_row(
            "tolerance",
            SAMPLED,
            {"behavior_log_prob": math.log(0.75) + 1e-4},
            reconcile_tolerance=1e-5,
        ),
        first_row("without its temperature", SAMPLED, {"behavior_temperature": 0.5}),
        first_row("without its epsilon", SAMPLED, {"behavior_epsilon": 0.2}),
        first_row("without its mask", SAMPLED, {BEHAVIOR_MASK: [False, True]}),
        first_row("action of logit -inf", SAMPLED, {BEHAVIOR_LOGITS: [0.0, -INF]}),
        first_row(
            "action of logit -inf and epsilon",
            SAMPLED,
            {
                BEHAVIOR_LOGITS: [0.0, -INF],
                "behavior_epsilon": 0.5,
                "behavior_log_prob": math.log(0.5),
            },
        ),
    ],
}

LIST_CASES = {
    Reason.MASK_MALFORMED: [
        first_row(
            "empty",
            MASKED,
            both_masks([]),
            *(Reason.MASK_MALFORMED, Reason.ACTION_OUT_OF_RANGE),
        ),
        first_row(
            "all false",
            MASKED,
            both_masks([False, False, False]),
            *(Reason.MASK_MALFORMED, Reason.ACTION_MASKED),
        ),
        first_row("null in both", MASKED, both_masks([True, True, None])),
        first_row("null at the action", MASKED, both_masks([True, None, True])),
        first_row(
            "null in one",
            MASKED,
            {TARGET_MASK: [True, True, None]},
            *(Reason.MASK_MALFORMED, Reason.MASK_MISMATCH),
        ),
        first_row("masks of two lengths", MASKED, {TARGET_MASK: [True, True]}),
        first_row(
            "longer than behavior_logits",
            SAMPLED,
            {BEHAVIOR_MASK: [True, True, False]},
            warnings={"not_rebuilt": 1},
        ),
        first_row("longer than target_logits", MASKED, {TARGET_LOGITS: [0.0, 0.0]}),
    ],
    Reason.MASK_MISMATCH: [
        first_row("differ", MASKED, {TARGET_MASK: [True, True, True]}),
        first_row("target smaller", MASKED, {TARGET_MASK: [False, True, False]}),
        first_row("behavior null", MASKED, {BEHAVIOR_MASK: None}),
        first_row("target null", MASKED, {TARGET_MASK: None}),
        first_row("not a subset", MASKED, {TARGET_MASK: [True, True, True]}, mask_policy="subset"),
        first_row("null allows all", MASKED, {TARGET_MASK: None}, mask_policy="subset"),
    ],
    Reason.ACTION_OUT_OF_RANGE: [
        *column("action", None, -1, 3, base=MASKED),
        *column("action", None, -1, 2, base=SAMPLED, warnings={"not_rebuilt": 1}),
        *column(
            "action",
            *(1.5, NAN, -1.0),
            base=MASKED,
            types=FLOAT_ACTION,
            action_space="discrete",
        ),
        first_row(
            "too large for one mask",
            MASKED,
            {"action": 2, TARGET_MASK: [True, True]} | {BEHAVIOR_MASK: [True, True, True]},
            *(Reason.MASK_MALFORMED, Reason.ACTION_OUT_OF_RANGE),
        ),
        first_row(
            "too large for target_logits",
            SAMPLED,
            {TARGET_LOGITS: [0.0]},
            *(Reason.BEHAVIOR_LOGITS_MALFORMED, Reason.ACTION_OUT_OF_RANGE),
        ),
        first_row("a mask alone", {"action": 1, BEHAVIOR_MASK: [True, True]}, {"action": 2}),
    ],
    Reason.ACTION_MASKED: [
        first_row("both masks", MASKED, {"action": 2}),
        first_row("behavior alone", {"action": 0, BEHAVIOR_MASK: [True, False]}, {"action": 1}),
        first_row("target alone", {"action": 0, TARGET_MASK: [True, False]}, {"action": 1}),
        first_row(
            "target of a subset", MASKED, {TARGET_MASK: [True, False, False]}, mask_policy="subset"
        ),
        first_row(
            "one of two",
            MASKED,
            {TARGET_MASK: [True, False, False]},
            *(Reason.MASK_MISMATCH, Reason.ACTION_MASKED),
        ),
        first_row(
            "with logits",
            SAMPLED,
            {BEHAVIOR_MASK: [True, False]},
            warnings={"not_rebuilt": 1},
        ),
    ],
}

NUMBER_CASES = {
    Reason.REWARD_NOT_FINITE: column("reward", None, NAN, INF, -INF),
    Reason.VALUE_NOT_FINITE: column("value", None, NAN, INF, -INF),
    Reason.DISCOUNT_OUT_OF_RANGE: column(
        "discount", *(None, NAN, -0.1, 1.1, INF), base={"discount": 1.0}
    ),
    Reason.VERSION_MISMATCH: [
        *column("env_version", 5, None, base=VERSIONED, expect={"env_version": ("3", "4")}),
        *column("mask_version", "M1", None, base=VERSIONED, expect={"mask_version": ("m1",)}),
        first_row(
            "one of two",
            VERSIONED,
            {"actor_id": "b"},
            expect={"env_version": ("3",), "actor_id": ("a",)},
        ),
    ],
    Reason.POLICY_TOO_STALE: column(
        "policy_version",
        *(6, -100),
        base={"policy_version": 10},
        learner_version=10,
        max_policy_lag=3,
    ),
    Reason.POLICY_VERSION_IN_FUTURE: [
        *column("policy_version", 11, base={"policy_version": 10}, learner_version=10),
        *column(
            "policy_version",
            *(11, 1000),
            base={"policy_version": 10},
            learner_version=10,
            max_policy_lag=3,
        ),
    ],
    Reason.BOOTSTRAP_MISSING: [
        first_row("truncated", {}, {"truncated": True}),
        Case("gap", [make_row(0), make_row(2, terminated=True)], {0: ["bootstrap_missing"]}),
        *(
            Case(f"edge, {value}", [make_row(0, bootstrap_value=value)], {0: ["bootstrap_missing"]})
            for value in (None, NAN, INF, -INF)
        ),
    ],
    Reason.TARGET_NOT_FINITE: [
        *column("reward", 1e300, -1e39),
        first_row("float64", {}, {"reward": 1.7e308, "value": -1e307}, dtype="float64"),
        first_row("advantage", {}, {"behavior_log_prob": -95.0}, pg_rho_bar=INF),
    ],
}

CASES: dict[Reason, list[Case]] = {**KEY_CASES, **LOG_PROB_CASES, **LIST_CASES, **NUMBER_CASES}

ACCEPTED = [
    Case("plain", make_stream(3)),
    *column("valid", True, base={"valid": True}),
    *column("terminated", 1, 0, types={"terminated": pa.int64()}),
    *column("truncated", 0.0, types={"truncated": pa.float64()}),
    first_row("both flags", {}, {"terminated": True, "truncated": True}, warnings={"ends_both": 1}),
    *column("behavior_log_prob", 5e-4, 1e-3, warnings={"log_prob_rounded": 1}),
    *column("target_log_prob", 5e-4, 1e-3, warnings={"log_prob_rounded": 1}),
    *column("behavior_log_prob", 0.25, log_prob_tolerance=0.25, warnings={"log_prob_rounded": 1}),
    *column("behavior_log_prob", 0.0, -0.0, -1e30, log_prob_tolerance=0.0),
    *column("behavior_log_prob", 3.5, base={"action": 0.5}, types=FLOAT_ACTION),
    *column("target_log_prob", 3.5, base={"action": 0.5}, types=FLOAT_ACTION),
    *column("behavior_log_prob", 3.5, base={"action": 2}, action_space="continuous"),
    *column(
        "behavior_log_prob",
        3.5,
        base={"action": [0.5, -1.5]},
        types={"action": pa.list_(pa.float64())},
    ),
    *column("target_log_prob", -INF),
    *column("discount", 0.0, -0.0, 1.0, base={"discount": 1.0}),
    *(Case(f"env_version={n}", make_stream(2, env_version=n), settings=EXPECTED) for n in (3, 4)),
    *column("policy_version", 7, base={"policy_version": 10}, learner_version=10, max_policy_lag=3),
    *column("policy_version", -100, base={"policy_version": 10}, learner_version=10),
    *column("policy_version", 99, None, base={"policy_version": 10}),
    *column(
        "policy_version",
        None,
        base={"policy_version": 10},
        learner_version=10,
        max_policy_lag=3,
        warnings={"policy_version_missing": 1},
    ),
    first_row("truncated", {}, {"truncated": True, "bootstrap_value": 0.5}),
    first_row(
        "truncated at 0",
        {},
        {"truncated": True, "bootstrap_value": -0.0},
        warnings={"bootstrap_zero": 1},
    ),
    Case("bootstrap 0 at an edge", [make_row(0, bootstrap_value=0.0)]),
    *column("reward", 3e38, -3e38),
    first_row("large in float64", {}, {"reward": 1e300}, dtype="float64"),
    first_row("any action without masks", {"action": 1}, {"action": -5}),
    first_row("null action without masks", {"action": 1}, {"action": None}),
]

ACCEPTED_LISTS = [
    Case("masks", make_stream(3, **MASKED)),
    first_row("no masks on a row", MASKED, {BEHAVIOR_MASK: None, TARGET_MASK: None}),
    first_row("masks of other lengths by row", MASKED, both_masks([True, True])),
    Case("a behavior mask alone", make_stream(3, action=1, behavior_action_mask=[True, True])),
    Case("a target mask alone", make_stream(3, action=1, target_action_mask=[True, True])),
    first_row("subset", MASKED, {TARGET_MASK: [False, True, False]}, mask_policy="subset"),
    first_row("of all", MASKED, {BEHAVIOR_MASK: None}, mask_policy="subset"),
    first_row(
        "of all, given",
        MASKED,
        {BEHAVIOR_MASK: [True, True, True], TARGET_MASK: None},
        mask_policy="subset",
    ),
    Case(
        "action is a whole float",
        make_stream(3, **{**MASKED, "action": 1.0}),
        types=FLOAT_ACTION,
        settings={"action_space": "discrete"},
    ),
    Case("logits", make_stream(3, **SAMPLED)),
    first_row("target_logits of the length", SAMPLED, {TARGET_LOGITS: [NAN, INF]}),
    first_row("within tolerance", SAMPLED, {"behavior_log_prob": math.log(0.75) - 9e-4}),
    first_row("no logits on a row", SAMPLED, {BEHAVIOR_LOGITS: None, "behavior_log_prob": -9.0}),
    first_row("masked by the mask", SAMPLED, {BEHAVIOR_LOGITS: [0.0, LOG_3, 7.0]} | MASKED),
    first_row("masked by -inf", SAMPLED, {BEHAVIOR_LOGITS: [0.0, LOG_3, -INF]}),
    *column("behavior_temperature", None, 1.0, base=SAMPLED),
    *column("behavior_epsilon", None, 0.0, base=SAMPLED),
    first_row("temperature 0", SAMPLED, {"behavior_temperature": 0.0}, warnings={"not_rebuilt": 1}),
]

# softmax of (0, log 3) / 0.5 is (1/10, 9/10); softmax of (0, log 3) / 2 is (0.366, 0.634)
REBUILT: dict[str, tuple[Cells, float]] = {
    "temperature": ({"behavior_temperature": 0.5}, math.log(0.9)),
    "high temperature": ({"behavior_temperature": 2.0}, math.log(3**0.5 / (1 + 3**0.5))),
    "epsilon": ({"behavior_epsilon": 0.2}, math.log(0.8 * 0.75 + 0.1)),
    "epsilon 1": ({"behavior_epsilon": 1.0}, math.log(0.5)),
    "both": ({"behavior_temperature": 0.5, "behavior_epsilon": 0.2}, math.log(0.8 * 0.9 + 0.1)),
    "epsilon over legal actions": (
        {BEHAVIOR_LOGITS: [0.0, LOG_3, -INF, 5.0], "behavior_epsilon": 0.2}
        | both_masks([True, True, True, False]),
        math.log(0.8 * 0.75 + 0.1),
    ),
    "log space": ({BEHAVIOR_LOGITS: [2000.0, 0.0]}, -2000.0),
    "log space, epsilon": (
        {BEHAVIOR_LOGITS: [2000.0, 0.0], "behavior_epsilon": 1e-6},
        math.log(5e-7),
    ),
    "one action": ({BEHAVIOR_LOGITS: [-INF, -3.0]}, 0.0),
}
NOT_READ = {reason for reason in Reason if reason.stage == "sources"}
FROM_SCORES = {Warn.SCORE_MISSING, Warn.SCORE_SURPLUS}
OF_STORES = {Warn.LATER_CONFLICT, Warn.EDGE_BEFORE_SUCCESSOR, Warn.KEYS_FORGOTTEN}


def test_reasons_are_those_of_the_contract_in_its_order() -> None:
    assert tuple(reason.code for reason in Reason) == CONTRACT_ORDER


def test_every_reason_has_a_case() -> None:
    assert {Reason.WINDOW_MALFORMED} == NOT_READ
    assert set(CASES) == set(Reason) - NOT_READ
    assert all(CASES.values())


def test_every_warning_has_a_case() -> None:
    cases = [*ACCEPTED, *ACCEPTED_LISTS, *(case for group in CASES.values() for case in group)]
    warned = {code for case in cases for code in case.warnings}
    assert warned == {warning.code for warning in set(Warn) - FROM_SCORES - OF_STORES}


@pytest.mark.parametrize(
    ("reason", "case"),
    [
        pytest.param(reason, case, id=f"{reason.code}-{case.name}")
        for reason, cases in CASES.items()
        for case in cases
    ],
)
def test_row_is_rejected_when_it_is_at_fault(reason: Reason, case: Case, tmp_path: Path) -> None:
    wanted = case.wanted or {0: [reason.code]}
    assert any(reason.code in codes for codes in wanted.values())
    found = case.run(tmp_path)
    assert found.reasons == wanted
    assert found.warnings == case.warnings
    assert len(found.targets) == len(case.rows) - len(wanted)
    for row in found.rejects.values():
        assert row["primary_reason"] == row["reasons"][0]


@pytest.mark.parametrize("case", [*ACCEPTED, *ACCEPTED_LISTS], ids=lambda case: case.name)
def test_row_is_accepted_when_it_is_a_near_miss(case: Case, tmp_path: Path) -> None:
    found = case.run(tmp_path)
    assert found.reasons == {}
    assert found.warnings == case.warnings
    assert len(found.targets) == len(case.rows)


@pytest.mark.parametrize("name", REBUILT)
def test_log_prob_is_reconciled_when_logits_give_it(name: str, tmp_path: Path) -> None:
    cells, log_prob = REBUILT[name]
    rows = [{**make_row(k, **SAMPLED), **cells} for k in range(3)]
    for row, shift in zip(rows, (0.0, 0.0011, -0.0011), strict=True):
        row |= {"behavior_log_prob": log_prob + shift, "terminated": True}
    found = run(rows, tmp_path, log_prob_tolerance=0.01)
    unreconciled = [Reason.BEHAVIOR_LOG_PROB_UNRECONCILED.code]
    assert found.reasons == {1: unreconciled, 2: unreconciled}
    assert "not_rebuilt" not in found.warnings


def test_log_prob_counts_as_zero_when_it_is_within_the_tolerance(tmp_path: Path) -> None:
    rows = make_stream(3)
    rows[0]["behavior_log_prob"] = rows[1]["target_log_prob"] = 5e-4
    rows[2] |= {"behavior_log_prob": 5e-4, "target_log_prob": 1e-3}
    found = run(rows, tmp_path, dtype="float64")
    assert found.column("log_ratio") == {0: -1.5, 1: 1.0, 2: 0.0}
    assert found.warnings == {"log_prob_rounded": 3}


def test_density_is_kept_when_actions_are_continuous(tmp_path: Path) -> None:
    rows = make_stream(2, action=0.5)
    rows[0] |= {"behavior_log_prob": 5e-4, "target_log_prob": 1.0}
    found = run(rows, tmp_path, types=FLOAT_ACTION, dtype="float64")
    assert found.targets[0]["log_ratio"] == 1.0 - 5e-4
    assert found.warnings == {}


def test_null_is_absent_when_its_file_lacks_the_column(tmp_path: Path) -> None:
    full = make_stream(2, discount=1.0, valid=True, **MASKED)
    bare = make_stream(2, trajectory_id="u", action=1, behavior_action_mask=[True, True])
    found = run({"a.parquet": full, "b.parquet": bare}, tmp_path)
    assert found.reasons == {}
    holed = [{**row, "discount": None, "valid": None, TARGET_MASK: None} for row in bare]
    found = run({"a.parquet": full, "b.parquet": holed}, tmp_path)
    reasons = [Reason.VALID_MISSING, Reason.MASK_MISMATCH, Reason.DISCOUNT_OUT_OF_RANGE]
    codes = [reason.code for reason in reasons]
    assert found.reasons == {("b.parquet", 0): codes, ("b.parquet", 1): codes}


def test_flag_is_missing_when_only_other_files_have_it(tmp_path: Path) -> None:
    bare = [make_row(0, trajectory_id="u")]
    del bare[0]["truncated"]
    found = run({"a.parquet": make_stream(2), "b.parquet": bare}, tmp_path)
    assert found.reasons == {("b.parquet", 0): ["flag_missing"]}


def test_padding_is_not_received_when_valid_is_false(tmp_path: Path) -> None:
    rows = [*make_stream(2, valid=True), make_row(0, valid=False, reward=NAN)]
    found = run(rows, tmp_path)
    assert found.reasons == {}
    summary = found.result.summary
    assert (summary["received"], summary["padding"], summary["accepted"]) == (2, 1, 2)


COMBINED: list[tuple[Cells, list[Reason]]] = [
    (
        {"reward": None, "behavior_log_prob": NAN},
        [Reason.BEHAVIOR_LOG_PROB_NAN, Reason.REWARD_NOT_FINITE],
    ),
    (
        {"value": INF, "behavior_log_prob": None, "action": 2},
        [Reason.BEHAVIOR_LOG_PROB_MISSING, Reason.ACTION_MASKED, Reason.VALUE_NOT_FINITE],
    ),
    (
        {"discount": None, "step": None, "terminated": None},
        [Reason.KEY_MISSING, Reason.FLAG_MISSING, Reason.DISCOUNT_OUT_OF_RANGE],
    ),
    (
        {"policy_version": 11, "env_version": None, "target_log_prob": INF},
        [
            Reason.TARGET_LOG_PROB_INVALID,
            Reason.VERSION_MISMATCH,
            Reason.POLICY_VERSION_IN_FUTURE,
        ],
    ),
    (
        {BEHAVIOR_LOGITS: [0.0, NAN, 0.0], "behavior_log_prob": INF},
        [Reason.BEHAVIOR_LOG_PROB_INFINITE, Reason.BEHAVIOR_LOGITS_MALFORMED],
    ),
    (
        {BEHAVIOR_LOGITS: [0.0, LOG_3, 0.0], "behavior_log_prob": 1.0},
        [Reason.BEHAVIOR_LOG_PROB_POSITIVE, Reason.BEHAVIOR_LOG_PROB_UNRECONCILED],
    ),
    (
        {TARGET_MASK: [True, True, None], "action": 7, "policy_version": 1},
        [
            *(Reason.MASK_MALFORMED, Reason.MASK_MISMATCH),
            *(Reason.ACTION_OUT_OF_RANGE, Reason.POLICY_TOO_STALE),
        ],
    ),
]


def combined_log() -> list[Cells]:
    """A faulty row and its copy in a trajectory of their own, for each of COMBINED."""
    base: Cells = {**MASKED, BEHAVIOR_LOGITS: None, "discount": 1.0, "terminated": True}
    base |= {"policy_version": 10, "env_version": 3}
    rows = []
    for number, (cells, _) in enumerate(COMBINED):
        row = {**make_row(0, trajectory_id=f"t{number}", **base), **cells}
        rows += [row, dict(row)]
    return rows


def run_combined(tmp_path: Path) -> Run:
    return run(
        combined_log(),
        tmp_path,
        expect={"env_version": ("3",)},
        learner_version=10,
        max_policy_lag=3,
    )


def combined_reasons() -> list[set[Reason]]:
    """The reasons of each row of `combined_log`; rows without a key have no copies."""
    found = []
    for _, reasons in COMBINED:
        copy = set() if Reason.KEY_MISSING in reasons else {Reason.DUPLICATE}
        found += [set(reasons), {*reasons, *copy}]
    return found


def test_reasons_stand_in_contract_order_when_there_are_several(tmp_path: Path) -> None:
    found = run_combined(tmp_path)
    wanted = [[reason.code for reason in Reason if reason in row] for row in combined_reasons()]
    assert found.reasons == dict(enumerate(wanted))
    primary = {place: row["primary_reason"] for place, row in found.rejects.items()}
    assert primary == {place: codes[0] for place, codes in enumerate(wanted)}


def test_counts_are_exclusive_by_primary_reason_only(tmp_path: Path) -> None:
    found = run_combined(tmp_path)
    any_ = {reason.code: 0 for reason in Reason}
    primary = dict(any_)
    for row in combined_reasons():
        for reason in row:
            any_[reason.code] += 1
        primary[next(reason for reason in Reason if reason in row).code] += 1
    summary = found.result.summary
    for code in any_:
        for measure, counts in (("rejected_any", any_), ("rejected_primary", primary)):
            assert summary[f"{measure}_{code}"] == counts[code], (measure, code)
            entry = found.entry(measure, code)
            assert (entry["count"], entry["denominator"]) == (counts[code], 14)
    assert sum(primary.values()) == summary["rejected"] == summary["received"] == 14
    assert sum(any_.values()) > 14
