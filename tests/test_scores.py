"""The learner's numbers from --scores: joined by key, missing, surplus, twice, or of other ids."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from commands import invoke, make_table, write_files
from logs import Cells, make_row, make_stream, run, write_rows
from vtaudit.errors import InputError, SchemaError

LEARNER = ("target_log_prob", "value", "bootstrap_value")


def score(step: int | None, trajectory_id: str | int | None = "t", **cells: float | None) -> Cells:
    """Scores of one key, value 50 + step."""
    given = {"target_log_prob": -0.25, "value": 50.0 + (step or 0)}
    return {"trajectory_id": trajectory_id, "step": step, **given, **cells}


def without(rows: list[Cells], *names: str) -> list[Cells]:
    """The rows without these columns."""
    return [{name: cell for name, cell in row.items() if name not in names} for row in rows]


def named_keys(notes: tuple[str, ...]) -> list[str]:
    return [note for note in notes if note.startswith("scores:")]


def test_scores_replace_the_logged_values(tmp_path: Path) -> None:
    scores = [score(2), score(0), score(1)]
    found = run(make_stream(3), tmp_path, scores=scores, dtype="float64")
    assert found.reasons == {}
    assert found.warnings == {}
    assert found.column("value") == {0: 50.0, 1: 51.0, 2: 52.0}
    assert found.column("next_value") == {0: 51.0, 1: 52.0, 2: 0.0}
    assert set(found.column("log_ratio").values()) == {0.75}
    assert named_keys(found.result.notes) == []


def test_scores_serve_a_log_without_the_learners_columns(tmp_path: Path) -> None:
    files = {"a.parquet": [score(0)], "b.parquet": [score(1)]}
    found = run(without(make_stream(2), *LEARNER), tmp_path, scores=files)
    assert found.reasons == {}
    assert found.column("value") == {0: 50.0, 1: 51.0}


def test_other_columns_of_the_scores_are_ignored(tmp_path: Path) -> None:
    found = run(make_stream(1), tmp_path, scores=[score(0, reward=9.0)])
    assert found.column("reward") == {0: 1.0}


def test_copies_of_a_row_get_the_same_score(tmp_path: Path) -> None:
    rows = [*make_stream(1, value=None), *make_stream(1)]
    found = run(rows, tmp_path, scores=[score(0)])
    assert found.reasons == {1: ["duplicate"]}
    assert found.column("value") == {0: 50.0}


def test_row_is_rejected_and_named_when_its_score_is_missing(tmp_path: Path) -> None:
    rows = [*make_stream(3), *make_stream(1, trajectory_id="u")]
    found = run(rows, tmp_path, scores=[score(1), score(2)])
    missing = ["target_log_prob_invalid", "value_not_finite"]
    assert found.reasons == {0: missing, 3: missing}
    assert found.warnings == {"score_missing": 2}
    (note,) = named_keys(found.result.notes)
    assert "2 " in note
    assert "t step 0" in note
    assert "u step 0" in note
    assert "step 1" not in note


def test_score_is_no_score_when_it_is_null(tmp_path: Path) -> None:
    found = run(make_stream(2), tmp_path, scores=[score(0, value=None), score(1)])
    assert found.reasons == {0: ["value_not_finite"]}
    assert found.warnings == {}


def test_surplus_scores_are_counted_and_named(tmp_path: Path) -> None:
    scores = [score(0), score(1), score(2), score(0, "v"), score(-1)]
    found = run(make_stream(2), tmp_path, scores=scores)
    assert found.reasons == {}
    assert found.warnings == {"score_surplus": 3}
    (note,) = named_keys(found.result.notes)
    for key in ("t step -1", "t step 2", "v step 0"):
        assert key in note
    assert "t step 1" not in note


def test_score_of_padding_is_surplus(tmp_path: Path) -> None:
    rows = [*make_stream(1, valid=True), make_row(1, valid=False)]
    found = run(rows, tmp_path, scores=[score(0), score(1)])
    assert found.warnings == {"score_surplus": 1}


def test_few_keys_are_named_when_many_are_missing(tmp_path: Path) -> None:
    found = run(make_stream(30), tmp_path, scores=[score(29)])
    assert found.warnings == {"score_missing": 29}
    (note,) = named_keys(found.result.notes)
    assert note.count("step") < 10


def test_row_without_a_key_has_no_score(tmp_path: Path) -> None:
    rows = [make_row(None), make_row(0, trajectory_id=None), *make_stream(1)]
    found = run(rows, tmp_path, scores=[score(0)])
    codes = ["key_missing", "target_log_prob_invalid", "value_not_finite"]
    assert found.reasons == {0: codes, 1: codes}
    assert found.warnings == {"score_missing": 2}


@pytest.mark.parametrize("value", [50.0, None, float("nan"), -0.0])
def test_key_may_stand_twice_when_its_scores_are_equal(value: float | None, tmp_path: Path) -> None:
    twice = score(0, value=value)
    files = {"a.parquet": [twice, twice, score(1)], "b.parquet": [twice]}
    found = run(make_stream(2), tmp_path, scores=files)
    assert found.warnings == {}
    assert len(found.targets) == (2 if value in (50.0, -0.0) else 1)


def test_run_fails_and_names_the_key_when_its_scores_differ(tmp_path: Path) -> None:
    files = {"a.parquet": [score(0), score(1)], "b.parquet": [score(1, value=7.0)]}
    with pytest.raises(InputError, match=r"trajectory_id t, step 1 "):
        run(make_stream(2), tmp_path, scores=files)
    assert not list(tmp_path.glob("*/run"))


@pytest.mark.parametrize("key", ["trajectory_id", "step"])
def test_scores_are_refused_when_they_lack_a_key(key: str, tmp_path: Path) -> None:
    files = {"a.parquet": [score(0)], "b.parquet": without([score(1)], key)}
    with pytest.raises(SchemaError, match=rf"b\.parquet: no column {key}"):
        run(make_stream(2), tmp_path, scores=files)


@pytest.mark.parametrize("scores", [score(None), score(0, None)])
def test_scores_are_refused_when_a_key_is_null(scores: Cells, tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="key is null"):
        run(make_stream(2), tmp_path, scores=[score(0), scores])


def test_scores_are_refused_when_they_have_nothing_to_give(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="target_log_prob, value, bootstrap_value"):
        run(make_stream(2), tmp_path, scores=[{"trajectory_id": "t", "step": 0, "reward": 1.0}])


def test_scores_are_refused_when_files_differ_in_their_columns(tmp_path: Path) -> None:
    files = {"a.parquet": [score(0)], "b.parquet": [score(1, bootstrap_value=1.0)]}
    with pytest.raises(SchemaError, match="the same ones in every file"):
        run(make_stream(2), tmp_path, scores=files)


def test_scores_are_refused_when_a_value_is_text(tmp_path: Path) -> None:
    text = [{"trajectory_id": "t", "step": 0, "value": "50"}]
    write_rows(text, tmp_path / "scores" / "a.parquet", {"value": pa.string()})
    with pytest.raises(SchemaError, match=r"scores a\.parquet, column value: found string"):
        run(make_stream(2), tmp_path, scores=tmp_path / "scores")


def test_scores_are_refused_when_ids_are_text_on_one_side_alone(tmp_path: Path) -> None:
    numbers = {"trajectory_id": pa.int64()}
    rows = make_stream(2, trajectory_id=7)
    scores = [score(0, 7), score(1, 7)]
    assert run(rows, tmp_path, types=numbers, scores=scores).reasons == {}
    write_rows([score(0, "7"), score(1, "7")], tmp_path / "text" / "a.parquet")
    with pytest.raises(SchemaError, match=r"trajectory_id: found String, the log has Int64"):
        run(rows, tmp_path, types=numbers, scores=tmp_path / "text")
    write_rows(scores, tmp_path / "numbers" / "a.parquet", numbers)
    with pytest.raises(SchemaError, match=r"trajectory_id: found Int64, the log has String"):
        run(make_stream(2), tmp_path, scores=tmp_path / "numbers")


def test_scores_are_refused_when_a_file_is_unreadable(tmp_path: Path) -> None:
    (tmp_path / "scores").mkdir()
    (tmp_path / "scores" / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match=r"a\.parquet: .*; scores must be whole"):
        run(make_stream(2), tmp_path, scores=tmp_path / "scores")


def bootstraps(*values: float | None) -> list[Cells]:
    """Scores of steps 0, 1, ... with a bootstrap_value alone."""
    return [
        {"trajectory_id": "t", "step": step, "bootstrap_value": value}
        for step, value in enumerate(values)
    ]


def test_scored_bootstrap_goes_before_the_logged_one(tmp_path: Path) -> None:
    rows = [make_row(step, truncated=True, bootstrap_value=7.0) for step in range(3)]
    found = run(rows, tmp_path, scores=bootstraps(3.0, None))
    assert found.column("next_value") == {0: 3.0, 1: 7.0, 2: 7.0}
    assert found.column("value") == {0: 2.0, 1: 2.0, 2: 2.0}
    assert set(found.column("bootstrap_source").values()) == {"logged"}
    assert found.warnings == {"score_missing": 1}


def test_scored_bootstrap_serves_a_log_that_has_none(tmp_path: Path) -> None:
    rows = [make_row(step, truncated=True) for step in range(2)]
    found = run(rows, tmp_path, scores=bootstraps(3.0))
    assert found.reasons == {1: ["bootstrap_missing"]}
    assert found.column("next_value") == {0: 3.0}


def test_scores_are_joined_by_place_when_steps_come_from_the_order(tmp_path: Path) -> None:
    rows = without(make_stream(2), "step")
    files = {"w_2.parquet": rows, "w_10.parquet": rows[:1], "w_11.parquet": rows}
    scores = [score(step) for step in range(4)]
    found = run(files, tmp_path, scores=scores, step_from="order", windows="stitched")
    assert found.column("value") == {
        ("w_2.parquet", 0): 50.0,
        ("w_2.parquet", 1): 51.0,
    }
    assert found.reasons == {
        ("w_10.parquet", 0): ["bootstrap_missing"],
        ("w_11.parquet", 0): ["duplicate"],
        ("w_11.parquet", 1): ["duplicate"],
    }
    assert found.warnings == {"score_surplus": 1}


def test_scores_are_joined_when_the_log_is_spread_over_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"t{number}" for number in range(9)]
    rows = [row for name in names for row in make_stream(2, trajectory_id=name)]
    scores = [score(step, name) for name in names[1:] for step in range(3)]
    whole = run(rows, tmp_path, scores=scores)
    monkeypatch.setattr("vtaudit.shards.SHARD_ROWS", 4)
    parts = run(rows, tmp_path, scores=scores)
    assert parts.warnings == {"score_missing": 2, "score_surplus": 8}
    assert (parts.targets, parts.rejects) == (whole.targets, whole.rejects)
    assert parts.result.audit == whole.result.audit


def test_scores_without_a_row_leave_every_row_without_a_score(tmp_path: Path) -> None:
    rows = make_table()
    logs = write_files(tmp_path / "logs", {"a.parquet": rows})
    none = rows.select(["trajectory_id", "step", "value"]).slice(0, 0)
    scores = write_files(tmp_path / "scores", {"s.parquet": none})
    result = invoke("process", logs, "--out", tmp_path / "run", "--scores", scores, "--json")
    assert result.exit_code == 0, result.stderr
    summary = json.loads(result.stdout)["summary"]
    assert summary["received"] == rows.num_rows
    assert summary["rejected_any_value_not_finite"] == rows.num_rows
