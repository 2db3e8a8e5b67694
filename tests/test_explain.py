"""`vtaudit explain`: one row, its verdicts and terms, against hand-worked numbers and the run."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from commands import ROOT, SAMPLE_LOGS, invoke, make_table, write_files
from logs import Cells, make_row, make_stream, write_rows
from test_validation import ACCEPTED, ACCEPTED_LISTS, CASES, MASKED, SAMPLED, Case
from vtaudit import Settings, audit, process
from vtaudit.explanation import Explanation, explain
from vtaudit.explanation.acceptance import ACCEPTED as TEXTS
from vtaudit.explanation.acceptance import tell_accepted
from vtaudit.explanation.evidence import EVIDENCE
from vtaudit.explanation.ruling import Ruling
from vtaudit.plain import to_plain
from vtaudit.reasons import Reason

NAN, INF = math.nan, math.inf
TWO_STEP = ROOT / "sample_data" / "two_step"


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return process(SAMPLE_LOGS, tmp_path_factory.mktemp("sample") / "run").path


@pytest.fixture(scope="module")
def two_step(tmp_path_factory: pytest.TempPathFactory) -> Path:
    chosen = Settings(gamma=0.9, dtype="float64", backend="reference")
    return process(TWO_STEP, tmp_path_factory.mktemp("two_step") / "run", chosen).path


def process_rows(
    home: Path,
    log: list[Cells] | dict[str, list[Cells]],
    types: dict[str, pa.DataType] | None = None,
    **settings: Any,
) -> Path:
    """Process rows of one file, a.parquet, or of several."""
    files = log if isinstance(log, dict) else {"a.parquet": log}
    for name, rows in files.items():
        write_rows(rows, home / "logs" / name, types)
    chosen = Settings(**{"backend": "reference", **settings})
    with mock.patch.object(audit, "write_duckdb"):
        return process(home / "logs", home / "run", chosen).path


def terms_of(found: Explanation) -> dict[str, float]:
    return {term.name: term.value for term in found.terms}


def broken(found: Explanation) -> dict[str, Ruling]:
    return {ruling.reason: ruling for ruling in found.rulings if ruling.state == "broken"}


def ruling(found: Explanation, reason: Reason) -> Ruling:
    (one,) = [each for each in found.rulings if each.reason == reason.code]
    return one


def test_terms_are_those_worked_by_hand(two_step: Path) -> None:
    first = explain(two_step, row=("two_step", 0))
    hand = {"log_ratio": math.log(3), "ratio": 3, "rho": 1, "c": 1, "pg_rho": 1, "gamma_t": 0.9}
    hand |= {"r": 1, "V": 2, "Vnext": 3, "delta": 1.7, "gamma_t c": 0.9, "Delta_next": 1.3}
    hand |= {"Delta": 2.87, "value_target": 4.87, "vnext": 4.3, "advantage": 2.87}
    hand |= {"trace_length": 2}
    assert terms_of(first) == pytest.approx(hand, abs=1e-12)
    second = explain(two_step, row=("two_step", 1))
    hand |= {"log_ratio": math.log(0.5), "ratio": 0.5, "rho": 0.5, "c": 0.5, "pg_rho": 0.5}
    hand |= {"r": 2, "V": 3, "Vnext": 4, "delta": 1.3, "gamma_t c": 0, "Delta_next": 0}
    hand |= {"Delta": 1.3, "value_target": 4.3, "vnext": 4, "advantage": 1.3, "trace_length": 1}
    assert terms_of(second) == pytest.approx(hand, abs=1e-12)


def test_report_shows_the_sum_worked_by_hand(two_step: Path) -> None:
    lines = invoke("explain", two_step, "--row", "two_step", "0").stdout.splitlines()
    printed = {" ".join(line.split()) for line in lines}
    assert {
        "two_step step 0, two_step.parquet:0: accepted",
        "the only copy of its key",
        "steps 0 to 1, 2 rows of window 0, ends in window_edge",
        "this row: interior; V(s_{t+1}) is value of step 1, at two_step.parquet:1",
        "= min(1, 3)",
        "= 1 x (1 + 0.9 x 3 - 2)",
        "= 1.7 + 0.9 x 1.3",
        "value_target 4.87 = V + Delta 4.87",
        "= 2 + 2.87",
        "advantage 2.87 = pg_rho (r + gamma_t vnext - V) 2.87",
        "= 1 x (1 + 0.9 x 4.3 - 2)",
        "trace_length 2 = 1 + c (1 - d) trace_length_{t+1} 2",
    } <= printed


def test_stored_values_stand_beside(two_step: Path) -> None:
    found = explain(two_step, row=("two_step", 1))
    stored = {term.name: term.stored for term in found.terms if term.stored is not None}
    assert stored.keys() == {
        *("log_ratio", "gamma_t", "r", "V", "Vnext", "value_target", "advantage", "trace_length"),
    }
    assert all(stored[term.name] == term.value for term in found.terms if term.name in stored)
    assert (found.stored["boundary"], found.stored["bootstrap_source"]) == ("window_edge", "logged")


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"lambda_": 0.5, "rho_bar": 0.7, "c_bar": 0.6, "pg_rho_bar": 2.0},
        {"rho_bar": INF, "c_bar": INF, "pg_rho_bar": INF, "weights": True},
        {"dtype": "float64", "gamma": 0.0},
        {"windows": "stitched"},
    ],
)
def test_terms_add_up_and_are_the_stored_ones(settings: dict[str, Any], tmp_path: Path) -> None:
    rows = make_stream(12)
    for k, row in enumerate(rows):
        row |= {"behavior_log_prob": -1.5 + 0.1 * k, "value": 0.3 * k - 1, "unroll_id": k // 5}
    rows[2] |= {"truncated": True, "bootstrap_value": 7.0}
    rows[7]["reward"] = NAN
    run = process_rows(tmp_path, rows, **settings)
    targets = pl.read_parquet(run / "targets" / "*.parquet")
    assert targets.height == 11
    for row in targets.to_dicts():
        found = explain(run, row=("t", row["step"]))
        n = terms_of(found)
        assert n["delta"] == pytest.approx(n["rho"] * (n["r"] + n["gamma_t"] * n["Vnext"] - n["V"]))
        assert n["Delta"] == pytest.approx(n["delta"] + n["gamma_t c"] * n["Delta_next"])
        assert n["value_target"] == pytest.approx(n["V"] + n["Delta"])
        gain = n["r"] + n["gamma_t"] * n["vnext"] - n["V"]
        assert n["advantage"] == pytest.approx(n["pg_rho"] * gain)
        for name in ("value_target", "advantage", "trace_length"):
            assert row[name] == pytest.approx(n[name], rel=1e-6, abs=1e-6)
        assert found.cut is not None
        assert (found.cut.boundary, found.cut.source) == (row["boundary"], row["bootstrap_source"])
        if found.cut.boundary == "interior" and row["step"] < 11:
            after = terms_of(explain(run, row=("t", row["step"] + 1)))
            assert n["Delta_next"] == pytest.approx(after["Delta"], abs=1e-12) or not n["gamma_t c"]


@pytest.mark.parametrize(
    ("reason", "case"),
    [
        pytest.param(reason, case, id=f"{reason.code}-{case.name}")
        for reason, cases in CASES.items()
        for case in cases
    ],
)
def test_rejected_row_is_explained(reason: Reason, case: Case, tmp_path: Path) -> None:
    run = process_rows(tmp_path, case.rows, case.types, **case.settings)
    wanted = case.wanted or {0: [reason.code]}
    for number in sorted({*wanted, len(case.rows) - 1}):
        found = explain(run, at=("a.parquet", number))
        assert list(broken(found)) == wanted.get(number, [])
        assert found.verdict == ("rejected" if number in wanted else "accepted")
        assert found.notes == []
        for each in broken(found).values():
            assert each.found
            assert each.accepted
            assert "{" not in each.accepted
    number = next(number for number, codes in wanted.items() if reason.code in codes)
    if case is CASES[reason][0]:
        shown = invoke("explain", run, "--at", f"a.parquet:{number}")
        assert shown.exit_code == 0, shown.output
        assert f"rejected: {reason.code}" in shown.stdout
    printed = json.dumps(to_plain(explain(run, at=("a.parquet", number))), default=str)
    assert json.loads(printed, parse_constant=pytest.fail)["verdict"] == "rejected"


@pytest.mark.parametrize("case", [*ACCEPTED, *ACCEPTED_LISTS], ids=lambda case: case.name)
def test_accepted_row_breaks_no_rule(case: Case, tmp_path: Path) -> None:
    run = process_rows(tmp_path, case.rows, case.types, **case.settings)
    found = explain(run, at=("a.parquet", 0))
    assert broken(found) == {}
    assert [line.partition(":")[0] for line in found.warnings] == list(case.warnings)
    assert terms_of(found)["value_target"] == pytest.approx(found.stored["value_target"], rel=1e-6)


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_evidence_and_tells_what_is_accepted(reason: Reason) -> None:
    assert reason in EVIDENCE
    text = tell_accepted(reason, Settings(expect={"env_version": ("3", "4")}))
    assert text
    assert "{" not in text
    assert set(TEXTS) == set(EVIDENCE) == set(Reason)


def evidence(
    reason: Reason, rows: list[Cells], tmp_path: Path, number: int = 0, **settings: Any
) -> tuple[dict[str, Any], str]:
    types = settings.pop("types", None)
    found = explain(process_rows(tmp_path, rows, types, **settings), at=("a.parquet", number))
    each = broken(found)[reason.code]
    assert each.accepted is not None
    return each.found, each.accepted


def test_positive_log_prob_tells_value_and_tolerance(tmp_path: Path) -> None:
    rows = [make_row(0, behavior_log_prob=0.5, terminated=True)]
    found, accepted = evidence(
        Reason.BEHAVIOR_LOG_PROB_POSITIVE, rows, tmp_path, log_prob_tolerance=0.25
    )
    assert found == {"behavior_log_prob": 0.5}
    assert accepted == "at most log_prob_tolerance, 0.25"


def test_unreconciled_tells_rebuilt_log_prob_and_legal_actions(tmp_path: Path) -> None:
    logits = [0.0, math.log(3), -INF, 5.0]
    masks = {"behavior_action_mask": [True, True, True, False], "behavior_epsilon": 0.2}
    row = {**SAMPLED, **masks, "behavior_logits": logits, "behavior_log_prob": -1.0}
    rows = [*make_stream(2, trajectory_id="s"), make_row(0, **row, terminated=True)]
    found, accepted = evidence(Reason.BEHAVIOR_LOG_PROB_UNRECONCILED, rows, tmp_path, 2)
    rebuilt = math.log(0.8 * 0.75 + 0.1)
    assert found["rebuilt log mu"] == pytest.approx(rebuilt)
    assert found["difference"] == pytest.approx(1 + rebuilt)
    assert found["actions in L"] == [0, 1]
    assert (found["action"], found["temperature"], found["epsilon"]) == (1, 1.0, 0.2)
    assert accepted == "a difference of at most reconcile_tolerance, 0.001"


def test_mismatch_tells_both_masks_and_where_they_differ(tmp_path: Path) -> None:
    rows = [make_row(0, **{**MASKED, "target_action_mask": [False, True, True]}, terminated=True)]
    found, accepted = evidence(Reason.MASK_MISMATCH, rows, tmp_path)
    assert found == {
        "behavior_action_mask": [True, True, False],
        "target_action_mask": [False, True, True],
        "differ at actions": [0, 2],
    }
    assert accepted.endswith("this run: equal")


def test_masked_action_tells_what_each_mask_allows(tmp_path: Path) -> None:
    rows = [make_row(0, **{**MASKED, "action": 2}, terminated=True)]
    found, _ = evidence(Reason.ACTION_MASKED, rows, tmp_path)
    assert found == {
        "action": 2,
        "behavior_action_mask allows": [0, 1],
        "target_action_mask allows": [0, 1],
    }


def test_conflict_tells_where_payloads_differ(tmp_path: Path) -> None:
    rows = [*make_stream(1, action=1), make_row(0, reward=9.0, action=2, terminated=True)]
    rows.append(dict(rows[0]))
    found, _ = evidence(Reason.KEY_CONFLICT, rows, tmp_path)
    assert found == {
        "a.parquet:1": {"action": {"here": 1, "there": 2}, "reward": {"here": 1.0, "there": 9.0}},
        "a.parquet:2": "equal payload",
    }


def test_duplicate_tells_the_kept_copy(tmp_path: Path) -> None:
    rows = [make_row(0, terminated=True, value=NAN), make_row(0, terminated=True)]
    run = process_rows(tmp_path, {"b.parquet": rows[:1], "c.parquet": rows[1:]})
    found = explain(run, at=("b.parquet", 0))
    assert broken(found)["duplicate"].found == {
        "kept": "c.parquet:0",
        "copies": ["b.parquet:0", "c.parquet:0"],
    }
    copies = {copy.place: copy.reasons for copy in found.copies}
    assert copies == {"b.parquet:0": ["duplicate", "value_not_finite"], "c.parquet:0": []}
    kept = explain(run, row=("t", 0))
    assert (kept.place, kept.verdict) == ("c.parquet:0", "accepted")
    assert kept.copies == found.copies


def test_version_and_lag_tell_what_was_expected(tmp_path: Path) -> None:
    rows = make_stream(1, policy_version=3, env_version=5, actor_id="a")
    settings = {"learner_version": 10, "max_policy_lag": 4, "expect": {"env_version": ("3", "4")}}
    found = broken(explain(process_rows(tmp_path, rows, **settings), row=("t", 0)))
    stale, other = found["policy_too_stale"], found["version_mismatch"]
    assert stale.found == {"policy_version": 3, "learner_version": 10, "lag": 7}
    assert stale.accepted == "a lag of at most max_policy_lag, 4"
    assert (other.found, other.accepted) == ({"env_version": 5}, "env_version: 3 or 4")


@pytest.mark.parametrize(
    ("rows", "looked"),
    [
        pytest.param(
            [make_row(0, truncated=True), make_row(1, terminated=True)],
            ["not the next row", "bootstrap_value: not mapped"],
            id="truncated",
        ),
        pytest.param(
            [make_row(0, bootstrap_value=INF), make_row(2, terminated=True)],
            ["a row of step 1: none was received", "bootstrap_value of this row: inf"],
            id="gap",
        ),
        pytest.param(
            [make_row(0), make_row(1, value=NAN), make_row(2, terminated=True)],
            ["step 1 at a.parquet:1: value_not_finite", "bootstrap_value: not mapped"],
            id="value not finite",
        ),
        pytest.param(
            [make_row(0, actor_id="a"), make_row(1, terminated=True, actor_id="b")],
            ["step 1 at a.parquet:1: actor_id b, here a", "bootstrap_value: not mapped"],
            id="another actor",
        ),
    ],
)
def test_missing_bootstrap_tells_what_was_looked_for(
    rows: list[Cells], looked: list[str], tmp_path: Path
) -> None:
    found, _ = evidence(Reason.BOOTSTRAP_MISSING, rows, tmp_path)
    assert len(found["looked for"]) == len(looked)
    for line, start in zip(found["looked for"], looked, strict=True):
        assert line.startswith(start)


def test_target_that_is_not_finite_shows_its_terms(tmp_path: Path) -> None:
    run = process_rows(tmp_path, make_stream(2, reward=1e300))
    found = explain(run, row=("t", 0))
    each = broken(found)["target_not_finite"]
    assert each.found["value_target"] == terms_of(found)["value_target"] > 9e299
    assert each.found["greatest float32"] == pytest.approx(3.4028235e38)
    assert found.stored == {}


def origin_of(run: Path, step: int) -> tuple[str, str, str]:
    cut = explain(run, row=("t", step)).cut
    assert cut is not None
    return cut.boundary, cut.source, cut.origin


def test_bootstrap_names_the_very_row(tmp_path: Path) -> None:
    rows = [make_row(k, unroll_id=k // 2) for k in range(7)]
    rows[3] |= {"reward": NAN}
    rows[4] |= {"truncated": True, "bootstrap_value": 0.5}
    rows[5] |= {"terminated": True}
    rows[6] |= {"bootstrap_value": 2.5, "unroll_id": 9}
    late = [{**rows[2], "value": NAN}, rows[2]]
    run = process_rows(tmp_path, {"b.parquet": [*rows[:2], *rows[3:]], "c.parquet": late})
    assert origin_of(run, 0) == ("interior", "none", "value of step 1, at b.parquet:1")
    assert origin_of(run, 1) == ("window_edge", "next_row", "value of step 2, at c.parquet:1")
    assert origin_of(run, 2) == ("gap", "next_row", "value of step 3, at b.parquet:2")
    assert origin_of(run, 4) == ("truncated", "logged", "bootstrap_value, in b.parquet:3")
    assert origin_of(run, 5) == ("terminated", "none", "0: terminated")
    assert origin_of(run, 6) == ("window_edge", "logged", "bootstrap_value, in b.parquet:5")


def test_bootstrap_of_the_scores_is_said(tmp_path: Path) -> None:
    scores = [{"trajectory_id": "t", "step": 0, "value": 1.0, "bootstrap_value": 2.0}]
    write_rows(scores, tmp_path / "scores" / "s.parquet")
    run = process_rows(tmp_path, [make_row(0)], scores=str(tmp_path / "scores"))
    assert origin_of(run, 0) == ("window_edge", "logged", "bootstrap_value, in the scores")
    found = explain(run, row=("t", 0))
    assert found.mapped["value"] == {"from": "the scores", "value": 1.0}
    assert found.logged["value"] == 2.0


def test_row_is_shown_as_logged_and_as_mapped(tmp_path: Path) -> None:
    rows = make_stream(2)
    for row in rows:
        row["prob"] = math.exp(row.pop("behavior_log_prob"))
        row["note"] = "kept aside"
    run = process_rows(
        tmp_path,
        rows,
        {"prob": pa.float32(), "note": pa.string()},
        columns={"behavior_log_prob": "log(prob)"},
    )
    found = explain(run, row=("t", 1))
    assert found.logged["prob"] == pytest.approx(math.exp(-1))
    assert found.logged["note"] == "kept aside"
    assert found.mapped["behavior_log_prob"]["from"] == "log(prob)"
    assert found.mapped["behavior_log_prob"]["value"] == pytest.approx(-1.0)
    shown = invoke("explain", run, "--row", "t", "1").stdout
    assert "log(prob)" in shown.split("read as")[1]


def test_row_of_a_later_row_group_is_the_right_one(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    rows = pl.DataFrame(make_stream(10)).with_columns(pl.col("step").alias("mark"))
    rows.write_parquet(tmp_path / "logs" / "a.parquet", row_group_size=3)
    run = process(tmp_path / "logs", tmp_path / "run", Settings(backend="reference")).path
    marks = [explain(run, at=("a.parquet", k)).logged["mark"] for k in range(10)]
    assert marks == list(range(10))


def test_steps_and_ends_that_settings_give_are_shown(tmp_path: Path) -> None:
    rows = make_stream(3)
    for row in rows:
        del row["step"], row["terminated"], row["truncated"]
    run = process_rows(tmp_path, rows, step_from="order", end_of_trajectory="terminated")
    found = explain(run, at=("a.parquet", 2))
    assert (found.step, found.cut and found.cut.boundary) == (2, "terminated")
    assert found.mapped["terminated"] == {"from": "end_of_trajectory", "value": 1}
    assert found.mapped["step"] == {"from": "step_from order", "value": 2}
    assert ruling(found, Reason.DUPLICATE).state == "not judged"


def test_rules_that_were_not_judged_say_why(tmp_path: Path) -> None:
    found = explain(process_rows(tmp_path, make_stream(1)), row=("t", 0))
    why = {each.reason: each.why for each in found.rulings if each.state == "not judged"}
    assert why["mask_mismatch"] == "behavior_action_mask, target_action_mask not mapped"
    assert why["discount_out_of_range"] == "discount not mapped"
    assert why["version_mismatch"] == "--expect was not given"
    assert "reward_not_finite" not in why
    assert ruling(found, Reason.BOOTSTRAP_MISSING).state == "holds"
    rejected = explain(process_rows(tmp_path / "b", [make_row(0, reward=None)]), row=("t", 0))
    assert ruling(rejected, Reason.BOOTSTRAP_MISSING).why == (
        "only rows without another reason get a target"
    )
    assert (rejected.cut, rejected.terms) == (None, [])


def test_row_without_targets_is_explained(tmp_path: Path) -> None:
    run = process_rows(tmp_path, make_stream(2), targets=False)
    found = explain(run, row=("t", 0))
    assert (found.verdict, found.cut, found.terms) == ("accepted", None, [])
    assert ruling(found, Reason.TARGET_NOT_FINITE).why == "no targets were asked for"


def test_padding_is_told(tmp_path: Path) -> None:
    rows = [*make_stream(2, valid=True), make_row(5, valid=False)]
    run = process_rows(tmp_path, rows)
    found = explain(run, at=("a.parquet", 2))
    assert (found.verdict, found.logged["step"]) == ("padding", 5)
    assert "padding" in invoke("explain", run, "--at", "a.parquet:2").stdout


@pytest.mark.parametrize("key", [{"trajectory_id": None}, {"step": None}, {"step": -1}])
def test_row_without_a_key_is_explained_by_its_place(key: Cells, tmp_path: Path) -> None:
    run = process_rows(tmp_path, [*make_stream(2), {**make_row(0), **key}])
    found = explain(run, at=("a.parquet", 2))
    assert list(broken(found)) == ["key_missing"]
    assert [copy.place for copy in found.copies] == ["a.parquet:2"]
    assert ruling(found, Reason.DUPLICATE).why == "the row has no key"


def test_integer_ids_are_found_and_text_is_refused(tmp_path: Path) -> None:
    rows = make_stream(2, trajectory_id=7)
    run = process_rows(tmp_path, rows, {"trajectory_id": pa.int64()})
    assert explain(run, row=("7", 1)).trajectory_id == 7
    result = invoke("explain", run, "--row", "seven", "1")
    assert result.exit_code == 2
    assert "the log has integers" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--row", "actor_0/env_0", "99999"], "nearest: 1478 and 1479"),
        (["--row", "actor_0/env_0", "-5"], "nearest: 0 and 1"),
        (["--row", "actor_0/env_9", "0"], "it has 8, as actor_"),
        (["--at", "actor_0_part_0.parquet:1479"], "the file has 1479 rows, 0 to 1478"),
        (["--at", "actor_0_part_7.parquet:0"], "it has 8, as actor_0_part"),
        (["--at", "actor_0_part_0.parquet"], "expected FILE:ROW"),
        (["--at", "actor_0_part_0.parquet:x"], "expected FILE:ROW"),
        ([], "--row TRAJECTORY STEP, or --at FILE:ROW"),
        (["--row", "actor_0/env_0", "0", "--at", "a:0"], "--row TRAJECTORY STEP, or --at"),
    ],
)
def test_row_that_is_not_there_is_one_clear_error(
    arguments: list[str], told: str, sample: Path
) -> None:
    result = invoke("explain", sample, *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert len(result.stderr.splitlines()) == 1
    assert told in result.stderr


def test_sample_rows_are_explained_as_the_run_has_them(sample: Path) -> None:
    rejects = pl.read_parquet(sample / "rejects" / "*.parquet")
    chosen = rejects.unique("reasons", keep="first", maintain_order=True)
    assert chosen.height > 10
    for row in chosen.to_dicts():
        found = explain(sample, at=(row["source_file"], row["source_row"]))
        assert list(broken(found)) == row["reasons"]
        assert (found.step, found.notes) == (row["step"], [])
    targets = pl.read_parquet(sample / "targets" / "*.parquet")
    kinds = ["boundary", "bootstrap_source"]
    for row in targets.unique(kinds, keep="first", maintain_order=True).to_dicts():
        found = explain(sample, row=(row["trajectory_id"], row["step"]))
        assert found.cut is not None
        assert (found.cut.boundary, found.cut.source) == (row["boundary"], row["bootstrap_source"])
        assert terms_of(found)["value_target"] == pytest.approx(row["value_target"], rel=1e-6)
        assert terms_of(found)["Vnext"] == pytest.approx(row["next_value"], rel=1e-6)


def test_moved_logs_are_asked_for_and_changed_ones_refused(tmp_path: Path) -> None:
    run = process_rows(tmp_path, make_stream(2))
    (tmp_path / "logs").rename(tmp_path / "moved")
    result = invoke("explain", run, "--row", "t", "0")
    assert result.exit_code == 3
    assert "say --logs DIR" in result.stderr
    result = invoke("explain", run, "--row", "t", "0", "--logs", tmp_path / "moved")
    assert result.exit_code == 0
    write_rows(make_stream(3), tmp_path / "moved" / "a.parquet")
    result = invoke("explain", run, "--row", "t", "0", "--logs", tmp_path / "moved")
    assert result.exit_code == 3
    assert "a.parquet has changed since the run read it" in result.stderr


def test_damaged_run_is_said_and_the_row_explained(tmp_path: Path) -> None:
    run = process_rows(tmp_path, make_stream(2))
    shutil.rmtree(run / "targets")
    found = explain(run, row=("t", 0))
    assert len(found.terms) > 10
    assert len(found.notes) == 1
    assert "targets of the run cannot be read" in found.notes[0]


def test_row_of_an_unreadable_file_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "b.parquet").write_bytes(b"no Parquet")
    run = process_rows(tmp_path, make_stream(2))
    assert explain(run, row=("t", 0)).verdict == "accepted"
    result = invoke("explain", run, "--at", "b.parquet:0")
    assert result.exit_code == 3
    assert "unreadable, so its rows are unknown" in result.stderr
    result = invoke("explain", run, "--row", "u", "0")
    assert "1 files were unreadable" in result.stderr


def test_row_of_a_file_with_a_damaged_page_is_unknown(tmp_path: Path) -> None:
    files = {"a.parquet": make_stream(2), "b.parquet": make_stream(2, trajectory_id="u")}
    for name, rows in files.items():
        write_rows(rows, tmp_path / "logs" / name)
    damaged = tmp_path / "logs" / "b.parquet"
    pq.write_table(pq.read_table(damaged), damaged, write_page_checksum=True, use_dictionary=False)
    content = bytearray(damaged.read_bytes())
    column = pq.ParquetFile(damaged).metadata.row_group(0).column(2)
    content[column.data_page_offset + column.total_compressed_size - 1] ^= 255
    damaged.write_bytes(content)
    process(tmp_path / "logs", tmp_path / "run", Settings(backend="reference"))
    for place in ("b.parquet:0", "b.parquet:1"):
        result = invoke("explain", tmp_path / "run", "--at", place)
        assert result.exit_code == 3
        assert "b.parquet: unreadable, so its rows are unknown: " in result.stderr
    assert explain(tmp_path / "run", row=("t", 0)).verdict == "accepted"
    assert invoke("verify", tmp_path / "run").exit_code == 0


def test_row_of_a_log_without_rows_is_refused(tmp_path: Path) -> None:
    logs = write_files(tmp_path / "logs", {"a.parquet": make_table().slice(0, 0)})
    assert invoke("process", logs, "--out", tmp_path / "run", "--quiet").exit_code == 0
    result = invoke("explain", tmp_path / "run", "--row", "t", "0")
    assert (result.exit_code, result.stderr) == (
        2,
        "vtaudit: --row t: no such trajectory in the log\n",
    )
