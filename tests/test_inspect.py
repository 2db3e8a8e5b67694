"""`vtaudit inspect`: what it finds in logs made for it, and whether its commands run."""

from __future__ import annotations

import json
import shlex
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from commands import ROWS, SAMPLE_LOGS, invoke, make_table, write_files
from logs import make_row, make_stream, write_rows
from vtaudit import audit
from vtaudit.canonical import LOG_COLUMNS
from vtaudit.errors import InputError, SchemaError, SettingsError
from vtaudit.inspection import Inspection, footers, inspect_log, survey
from vtaudit.inspection.streams import Bin, EndKind
from vtaudit.mapping.expressions import parse_expression
from vtaudit.presets.aliases import find_names, load_aliases, load_ambiguities

REAL_LOGS = Path(__file__).resolve().parents[2] / "shared" / "real_logs"
FAST = ("--backend", "reference", "--json", "--no-targets")
Cells = dict[str, Any]


@pytest.fixture(autouse=True)
def without_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave audit.duckdb out: it takes longer than the rest."""
    monkeypatch.setattr(audit, "write_duckdb", lambda *_: None)


def inspect_tables(tmp_path: Path, files: dict[str, pa.Table | bytes], **given: Any) -> Inspection:
    """Write a log and inspect it."""
    return inspect_log([write_files(tmp_path / "logs", files)], **given)


def inspect_table(tmp_path: Path, **columns: Any) -> Inspection:
    """Inspect one sound trajectory of ROWS rows with these columns put in or taken out."""
    varied = {"behavior_log_prob": pa.array([-0.5, -1.0] * (ROWS // 2)), **columns}
    return inspect_tables(tmp_path, {"a.parquet": make_table(**varied)})


def inspect_rows(tmp_path: Path, rows: list[Cells], **types: pa.DataType) -> Inspection:
    """Inspect rows of one file."""
    write_rows(rows, tmp_path / "logs" / "a.parquet", types)
    return inspect_log([tmp_path / "logs"])


def texts(found: Inspection, kind: str) -> list[str]:
    return [finding.text for finding in found.findings if finding.kind == kind]


def proposal(found: Inspection, canonical: str) -> tuple[str, str | None]:
    (one,) = [each for each in found.columns if each.canonical == canonical]
    return one.status, one.expression


def run_suggested(found: Inspection, tmp_path: Path, *options: str) -> dict[str, Any]:
    """Run the suggested command with another output; return the summary."""
    words = shlex.split(found.suggestion.command)
    assert words[:2] == ["vtaudit", "process"]
    words[words.index("--out") + 1] = str(tmp_path / "suggested")
    result = invoke(*words[1:], *FAST, *options)
    assert result.exit_code == 0, result.output
    summary: dict[str, Any] = json.loads(result.stdout)["summary"]
    return summary


def episodes(*lengths: int, **last: Any) -> list[Cells]:
    """Return one trajectory of each length, whose last rows have these cells."""
    rows: list[Cells] = []
    for number, length in enumerate(lengths):
        stream = make_stream(length, trajectory_id=f"t{number}")
        stream[-1].update(last)
        rows += stream
    return rows


def test_canonical_log_needs_no_option(tmp_path: Path) -> None:
    found = inspect_table(tmp_path)
    assert (found.files, found.rows, found.preset) == (1, ROWS, "vtaudit")
    assert found.bytes == (tmp_path / "logs" / "a.parquet").stat().st_size
    assert found.suggestion.command == f"vtaudit process {tmp_path / 'logs'} --out run"
    assert found.suggestion.is_complete
    assert (found.suggestion.assumptions, found.suggestion.choices, found.findings) == ((), (), ())
    assert proposal(found, "reward") == ("own", "reward")
    assert proposal(found, "valid") == ("missing", None)
    assert run_suggested(found, tmp_path)["accepted"] == ROWS


def test_sample_log_shows_what_was_planted() -> None:
    found = inspect_log([SAMPLE_LOGS])
    assert (found.files, found.rows) == (8, 12_000)
    assert found.streams is not None
    assert found.sample.behavior is not None
    assert (found.streams.repeated, found.streams.holes, found.streams.trajectories) == (200, 40, 8)
    assert found.streams.windows.count == 591
    assert (found.sample.behavior.null, found.sample.behavior.nan) == (180, 180)
    assert (found.sample.behavior.infinite, found.sample.behavior.positive) == (160, 140)


@pytest.mark.parametrize(
    ("column", "canonical", "expression"),
    [
        ("ep.id", "trajectory_id", None),
        ("mdp_id", "trajectory_id", "mdp_id"),
        ("Trajectory-ID", "trajectory_id", "Trajectory-ID"),
        ("frame_index", "step", "frame_index"),
        ("rewards", "reward", "rewards"),
        ("is_terminal", "terminated", "is_terminal"),
        ("TimeLimit.truncated", "truncated", '"TimeLimit.truncated"'),
        ("behaviour_logp", "behavior_log_prob", "behaviour_logp"),
        ("neglogpac", "behavior_log_prob", "neg(neglogpac)"),
        ("propensity", "behavior_log_prob", "log(propensity)"),
    ],
)
def test_known_name_is_proposed_with_its_transform(
    column: str, canonical: str, expression: str | None, tmp_path: Path
) -> None:
    cells = make_table()[canonical]
    if "logp" not in column and canonical == "behavior_log_prob":
        cells = pa.array([0.25, 0.5] * (ROWS // 2))
    if column == "neglogpac":
        cells = pa.array([0.5, 2.0] * (ROWS // 2))
    found = inspect_table(tmp_path, **{canonical: None, column: cells})
    assert proposal(found, canonical)[1] == expression
    if expression is not None:
        assert proposal(found, canonical)[0] == "alias"
        assert shlex.split(found.suggestion.command)[-2:] == ["--map", f"{canonical}={expression}"]
        assert run_suggested(found, tmp_path)["accepted"] == ROWS


def test_missing_column_has_near_matches_and_a_placeholder(tmp_path: Path) -> None:
    nested = pa.array([{"rewards": 1.0}] * ROWS)
    found = inspect_table(tmp_path, reward=None, rewardz=pa.array([1.0] * ROWS), info=nested)
    (reward,) = [each for each in found.columns if each.canonical == "reward"]
    assert (reward.status, reward.near) == ("missing", ("info.rewards", "rewardz"))
    assert not found.suggestion.is_complete
    assert "--map reward=COLUMN" in found.suggestion.command
    assert any("which column is reward?" in choice for choice in found.suggestion.choices)


def test_second_candidate_is_told(tmp_path: Path) -> None:
    logp = pa.array([-0.5] * ROWS)
    found = inspect_table(tmp_path, behavior_log_prob=None, action_logp=logp, logprobs=logp)
    (behavior,) = [each for each in found.columns if each.canonical == "behavior_log_prob"]
    assert (behavior.expression, behavior.note) == ("action_logp", "or logprobs")


def test_lone_done_is_ambiguous_and_assumed(tmp_path: Path) -> None:
    done = make_table()["terminated"]
    found = inspect_table(tmp_path, terminated=None, truncated=None, done=done)
    (text,) = texts(found, "ambiguous")
    assert text.startswith("done may be terminated or truncated")
    assert proposal(found, "terminated") == ("assumed", "done")
    assert proposal(found, "truncated") == ("assumed", "lit(false)")
    assert found.suggestion.assumptions[0] == "--map terminated=done"
    assert run_suggested(found, tmp_path)["accepted"] == ROWS


def test_done_beside_both_flags_is_no_matter(tmp_path: Path) -> None:
    assert texts(inspect_table(tmp_path, done=make_table()["terminated"]), "ambiguous") == []


def test_is_last_is_truncated_beside_a_terminal_flag(tmp_path: Path) -> None:
    flags = make_table()["terminated"]
    found = inspect_table(
        tmp_path, terminated=None, truncated=None, is_terminal=flags, is_last=flags
    )
    assert proposal(found, "terminated") == ("alias", "is_terminal")
    assert proposal(found, "truncated") == ("assumed", "is_last")
    assert run_suggested(found, tmp_path)["accepted"] == ROWS


@pytest.mark.parametrize("flag", ["terminated", "truncated"])
def test_flag_that_is_missing_is_assumed_never_to_occur(flag: str, tmp_path: Path) -> None:
    found = inspect_table(tmp_path, **{flag: None})
    assert proposal(found, flag) == ("assumed", "lit(false)")
    assert any(flag in assumption for assumption in found.suggestion.assumptions)
    assert run_suggested(found, tmp_path)["received"] == ROWS


def test_log_without_flags_asks_how_trajectories_end(tmp_path: Path) -> None:
    found = inspect_table(tmp_path, terminated=None, truncated=None)
    assert "--end-of-trajectory terminated" in found.suggestion.command
    assert any("--end-of-trajectory truncated" in text for text in found.suggestion.choices)
    assert any("--end-of-trajectory" in text for text in found.suggestion.assumptions)
    assert run_suggested(found, tmp_path)["accepted"] == ROWS


def test_old_log_probs_are_ambiguous_and_assumed(tmp_path: Path) -> None:
    values = pa.array([-0.5, -1.0] * (ROWS // 2))
    found = inspect_table(tmp_path, behavior_log_prob=None, old_log_probs=values)
    assert proposal(found, "behavior_log_prob") == ("assumed", "old_log_probs")
    assert "verl" in texts(found, "ambiguous")[0]
    assert run_suggested(found, tmp_path)["accepted"] == ROWS


@pytest.mark.parametrize(
    ("values", "words", "expression"),
    [
        ([0.25, 0.5], "probabilities, no log-probs", "log(behavior_log_prob)"),
        ([0.25, 1.5], "negated log-probs, no log-probs", "neg(behavior_log_prob)"),
        ([0.0, 0.0], "are 0, as if", "behavior_log_prob"),
        ([-0.5, -0.5], "are -0.5", "behavior_log_prob"),
        ([-0.5, 0.0], "are exactly 0", "behavior_log_prob"),
        ([-0.5, 0.5], "are above 0, up to 0.5", "behavior_log_prob"),
        ([-0.5, None], "3 null of 6 values", "behavior_log_prob"),
        ([-0.5, float("-inf")], "3 infinite of 6 values", "behavior_log_prob"),
        ([None, float("nan")], "no finite value", "behavior_log_prob"),
    ],
)
def test_odd_behavior_log_probs_are_told(
    values: list[float | None], words: str, expression: str, tmp_path: Path
) -> None:
    cells = pa.array(values * (ROWS // 2), pa.float64())
    found = inspect_table(tmp_path, behavior_log_prob=cells)
    assert any(words in text for text in texts(found, "behavior")), found.findings
    assert proposal(found, "behavior_log_prob")[1] == expression
    run_suggested(found, tmp_path)


def test_log_densities_above_0_are_sound_when_actions_are_continuous(tmp_path: Path) -> None:
    cells = pa.array([-0.5, 0.5] * (ROWS // 2))
    found = inspect_table(tmp_path, behavior_log_prob=cells, action=pa.array([0.5] * ROWS))
    assert texts(found, "behavior") == []


def test_struct_called_action_is_left_out(tmp_path: Path) -> None:
    found = inspect_table(tmp_path, action=pa.array([{"0": 1.0}] * ROWS))
    assert "found struct<0: double>" in texts(found, "unusable")[0]
    assert shlex.split(found.suggestion.command)[-1] == "action=lit(null)"
    assert run_suggested(found, tmp_path)["accepted"] == ROWS


def test_reward_of_text_leaves_a_placeholder(tmp_path: Path) -> None:
    found = inspect_table(tmp_path, reward=pa.array(["1"] * ROWS))
    assert "column reward: found string" in texts(found, "unusable")[0]
    assert "--map reward=COLUMN" in found.suggestion.command


def test_logits_are_left_out_when_actions_are_continuous(tmp_path: Path) -> None:
    logits = pa.array([[0.0, 1.0]] * ROWS)
    found = inspect_table(tmp_path, action=pa.array([0.5] * ROWS), behavior_logits=logits)
    assert "--map 'behavior_logits=lit(null)'" in found.suggestion.command
    assert run_suggested(found, tmp_path)["accepted"] == ROWS


def test_drift_names_the_files(tmp_path: Path) -> None:
    tables: dict[str, pa.Table | bytes] = {
        "w_1.parquet": make_table("a", extra=pa.array([1] * ROWS)),
        "w_2.parquet": make_table("b", extra=pa.array([1.0] * ROWS)),
        "w_10.parquet": make_table("c", value=None, extra=pa.array([1] * ROWS)),
    }
    found = inspect_tables(tmp_path, tables)
    assert texts(found, "drift") == [
        "value is absent from w_10.parquet",
        "extra is int64 in w_1.parquet, w_10.parquet; double in w_2.parquet",
    ]


def test_ids_that_are_text_and_numbers_become_keys(tmp_path: Path) -> None:
    tables: dict[str, pa.Table | bytes] = {
        "a.parquet": make_table("a"),
        "b.parquet": make_table("b", trajectory_id=pa.array([7] * ROWS)),
    }
    found = inspect_tables(tmp_path, tables)
    assert proposal(found, "trajectory_id") == ("assumed", "key(trajectory_id)")
    assert run_suggested(found, tmp_path)["accepted"] == 2 * ROWS


def test_files_are_counted_and_odd_ones_named(tmp_path: Path) -> None:
    stream = pa.BufferOutputStream()
    pq.write_table(make_table(), stream)
    body = stream.getvalue().to_pybytes()
    files: dict[str, pa.Table | bytes] = {
        "a.parquet": body,
        "b.parquet": body,
        "c.parquet": b"",
        "_tmp/d.parquet": body,
        ".e.parquet": body,
        "meta.json": b"{}",
    }
    found = inspect_tables(tmp_path, files)
    assert (found.files, found.rows) == (2, 2 * ROWS)
    assert found.copies == {"b.parquet": "a.parquet"}
    assert found.unreadable == {"c.parquet": "the file is empty"}
    assert found.skipped == {"hidden .parquet": 2, ".json": 1}
    assert [text.split()[0] for text in texts(found, "file")] == ["c.parquet", "b.parquet"]
    assert found.streams is not None
    assert found.streams.repeated == 0


def test_large_files_are_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(footers, "MAX_HASHED_BYTES", 10)
    found = inspect_tables(tmp_path, {"a.parquet": make_table(), "b.parquet": make_table()})
    assert found.copies == {}
    assert found.streams is not None
    assert found.streams.repeated == ROWS


def test_damaged_page_is_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    stream = pa.BufferOutputStream()
    options = {"compression": "none", "use_dictionary": False, "write_page_checksum": True}
    pq.write_table(make_table("b"), stream, **options)
    body = bytearray(stream.getvalue().to_pybytes())
    group = pq.ParquetFile(pa.BufferReader(bytes(body))).metadata.row_group(0)
    (column,) = [
        group.column(k)
        for k in range(group.num_columns)
        if group.column(k).path_in_schema == "step"
    ]
    place = column.data_page_offset + column.total_compressed_size - 1
    body[place] ^= 0xFF
    found = inspect_tables(tmp_path, {"a.parquet": make_table("a"), "b.parquet": bytes(body)})
    assert list(found.unreadable) == ["b.parquet"]
    assert found.sample.rows == ROWS


def test_log_that_is_not_there_or_unreadable_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        inspect_log([tmp_path / "none"])
    with pytest.raises(InputError, match="none of 1 files is readable"):
        inspect_tables(tmp_path, {"a.parquet": b"{}"})


def test_large_log_is_sampled_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey, "MAX_ROWS", 2 * ROWS)
    tables: dict[str, pa.Table | bytes] = {f"{k}.parquet": make_table(str(k)) for k in range(8)}
    found = inspect_tables(tmp_path, tables)
    assert (found.sample.rows, found.sample.files, found.rows) == (2 * ROWS, 2, 8 * ROWS)
    assert "12 of 48 rows were looked at, in 2 of 8 files" in texts(found, "sample")[0]


def test_one_large_file_is_read_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey, "MAX_ROWS", 4)
    found = inspect_table(tmp_path)
    assert (found.sample.rows, found.sample.is_partial) == (4, True)


def test_log_without_rows_is_no_crash(tmp_path: Path) -> None:
    found = inspect_tables(tmp_path, {"a.parquet": make_table().slice(0, 0)})
    assert found.streams is not None
    assert (found.rows, found.streams.trajectories, found.streams.lengths) == (0, 0, ())
    assert invoke("inspect", tmp_path / "logs").exit_code == 0


def test_all_ends_at_one_length_are_probably_a_time_limit(tmp_path: Path) -> None:
    found = inspect_rows(tmp_path, episodes(*[20] * 6))
    (text,) = texts(found, "ends")
    assert text.startswith("all 6 terminated episodes end at length 20: probably a time limit")
    assert found.streams is not None
    assert found.streams.ends == (EndKind("terminated", 6, 20, 20, 6),)
    assert found.streams.lengths == (Bin(20, 20, 6),)


def test_many_ends_at_the_greatest_length_are_probably_a_time_limit(tmp_path: Path) -> None:
    found = inspect_rows(tmp_path, episodes(20, 20, 20, 5, 7, 12))
    assert texts(found, "ends")[0].startswith("3 of 6 terminated episodes end at length 20")


@pytest.mark.parametrize("lengths", [(20, 20, 20), (20, 19, 18, 5, 7, 12), (1, 1, 1, 1, 1, 1)])
def test_ends_that_prove_nothing_are_not_told(lengths: tuple[int, ...], tmp_path: Path) -> None:
    assert texts(inspect_rows(tmp_path, episodes(*lengths)), "ends") == []


def test_kinds_of_ends_are_counted(tmp_path: Path) -> None:
    rows = episodes(3, 4)
    rows += [
        {**row, "trajectory_id": "cut"} for row in episodes(5, terminated=False, truncated=True)
    ]
    rows += [{**row, "trajectory_id": "both"} for row in episodes(6, truncated=True)]
    rows += [make_row(step, trajectory_id="open") for step in range(2)]
    found = inspect_rows(tmp_path, rows)
    assert found.streams is not None
    assert {end.kind: end.episodes for end in found.streams.ends} == {
        "terminated": 2,
        "truncated": 1,
        "both": 1,
        "open": 1,
    }
    assert sum(one.episodes for one in found.streams.lengths) == 4
    told = " ".join(texts(found, "ends"))
    assert "1 episodes end terminated and truncated at once" in told
    assert "1 truncated episodes and no bootstrap_value" in told


def test_zero_discount_ends_an_episode(tmp_path: Path) -> None:
    rows = [make_row(step, discount=0.0 if step == 2 else 1.0) for step in range(5)]
    found = inspect_rows(tmp_path, rows)
    assert found.streams is not None
    assert {end.kind: end.longest for end in found.streams.ends} == {"zero_discount": 3, "open": 2}


def test_discounts_of_its_own_need_gamma(tmp_path: Path) -> None:
    found = inspect_rows(tmp_path, make_stream(4, discount=0.9))
    assert shlex.split(found.suggestion.command)[-2:] == ["--gamma", "1"]
    assert run_suggested(found, tmp_path)["accepted"] == 4


def test_log_without_any_end_is_told(tmp_path: Path) -> None:
    found = inspect_rows(tmp_path, [make_row(step) for step in range(4)])
    assert "no row of 1 trajectories ends an episode" in texts(found, "ends")


def test_keys_are_judged(tmp_path: Path) -> None:
    rows = [make_row(step, actor_id="w") for step in (0, 1, 1, 4, 5, None)]
    found = inspect_rows(tmp_path, rows)
    assert found.streams is not None
    assert (found.streams.keyless, found.streams.repeated) == (1, 1)
    assert (found.streams.holes, found.streams.with_holes) == (2, 1)
    advice = [finding.advice for finding in found.findings if "repeat" in finding.text]
    assert "with actor_id" in advice[0]


def test_windows_are_judged_by_where_their_rows_stand(tmp_path: Path) -> None:
    def window(number: int, *steps: int) -> list[Cells]:
        return [make_row(step, unroll_id=number) for step in steps]

    one = [*window(0, 0, 1), *window(1, 2), *window(2, 4), *window(1, 3), *window(3, 6, 5)]
    two = [*window(2, 7), *window(4, 8, 9)]
    for name, rows in (("a.parquet", one), ("b.parquet", two)):
        write_rows(rows, tmp_path / "logs" / name)
    found = inspect_log([tmp_path / "logs"])
    assert found.streams is not None
    windows = found.streams.windows
    assert (windows.count, windows.contiguous) == (5, 2)
    assert (windows.in_several_files, windows.interleaved, windows.out_of_order) == (1, 1, 1)
    assert (found.streams.trajectories, found.streams.in_several_files) == (1, 1)


def test_rows_without_action_at_the_ends_are_padding(tmp_path: Path) -> None:
    rows = [make_row(step, action=None if step == 3 else 1) for step in range(4)]
    found = inspect_rows(tmp_path, rows)
    assert proposal(found, "valid") == ("assumed", "notnull(action)")
    assert texts(found, "padding") == ["1 of 4 rows have no action"]
    assert (found.sample.rows, found.sample.padding) == (3, 1)
    assert run_suggested(found, tmp_path)["padding"] == 1


def test_rows_without_action_in_between_are_only_told(tmp_path: Path) -> None:
    rows = [make_row(step, action=None if step == 1 else 1) for step in range(4)]
    found = inspect_rows(tmp_path, rows)
    assert proposal(found, "valid") == ("missing", None)
    assert texts(found, "padding") == ["1 of 4 rows have no action"]


def test_log_without_step_takes_the_order(tmp_path: Path) -> None:
    found = inspect_table(tmp_path, step=None)
    assert "--step-from order" in found.suggestion.command
    assert found.streams is not None
    assert (found.streams.repeated, found.streams.holes) == (None, None)
    assert run_suggested(found, tmp_path)["accepted"] == ROWS


def test_log_without_trajectory_id_has_no_streams(tmp_path: Path) -> None:
    found = inspect_table(tmp_path, trajectory_id=None)
    assert found.streams is None
    assert "--map trajectory_id=COLUMN" in found.suggestion.command
    assert (
        "streams, windows and episodes are unknown" in invoke("inspect", tmp_path / "logs").stdout
    )


@pytest.mark.parametrize("absent", ["target_log_prob", "value"])
def test_log_without_scores_is_audited_alone(absent: str, tmp_path: Path) -> None:
    found = inspect_table(tmp_path, **{absent: None, "next_value": pa.array([1.0] * ROWS)})
    assert shlex.split(found.suggestion.command)[-1] == "--no-targets"
    assert any(absent in choice and "--scores" in choice for choice in found.suggestion.choices)
    assert "bootstrap_value" not in found.suggestion.command


def test_stated_maps_and_preset_go_before_proposals(tmp_path: Path) -> None:
    tables: dict[str, pa.Table | bytes] = {
        "a.parquet": make_table(reward=None, rewards=pa.array([1.0] * ROWS))
    }
    maps = {"reward": "neg(rewards)", "value": "lit(null)"}
    found = inspect_tables(tmp_path, tables, preset="rllib", maps=maps)
    assert (found.preset, proposal(found, "reward")) == ("rllib", ("stated", "neg(rewards)"))
    assert proposal(found, "value") == ("left_out", None)
    assert "--preset rllib" in found.suggestion.command
    assert run_suggested(found, tmp_path)["accepted"] == ROWS
    with pytest.raises(SchemaError, match="no file has a column nothing"):
        inspect_log([tmp_path / "logs"], maps={"reward": "nothing"})
    with pytest.raises(SettingsError, match="no preset"):
        inspect_log([tmp_path / "logs"], preset="rlib")


def test_aliases_are_expressions_of_canonical_columns() -> None:
    for alias in load_aliases():
        assert alias.canonical in LOG_COLUMNS
        parse_expression(alias.expression.format(column="x", action="y"))
        assert not set(alias.names) & set(LOG_COLUMNS)
    for entry in load_ambiguities():
        assert set(entry.about) | set(entry.assume) <= set(LOG_COLUMNS)
        assert "{column}" not in entry.choose.format(column="x")
        for text in entry.assume.values():
            parse_expression(text.format(column="x"))


def test_name_is_known_as_one_column_or_as_ambiguous() -> None:
    names = [name for alias in load_aliases() for name in alias.names]
    names += [name for entry in load_ambiguities() for name in entry.names]
    for name in names:
        owners = {a.canonical for a in load_aliases() if find_names(a.names, [name])}
        is_ambiguous = any(find_names(entry.names, [name]) for entry in load_ambiguities())
        assert len(owners) + is_ambiguous == 1, name


def test_json_holds_everything(tmp_path: Path) -> None:
    write_files(tmp_path / "logs", {"a.parquet": make_table(behavior_log_prob=[None] * ROWS)})
    result = invoke("inspect", tmp_path / "logs", "--json")
    assert result.exit_code == 0

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    printed = json.loads(result.stdout, parse_constant=refuse)
    assert set(printed) == {item.name for item in fields(Inspection)}
    assert printed["suggestion"]["command"].startswith("vtaudit process")


def test_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(tmp_path / "logs", {"a.parquet": make_table()})
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert invoke("inspect", "logs").exit_code == 0
    assert sorted(tmp_path.rglob("*")) == before


def test_run_that_exists_is_not_suggested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(tmp_path / "logs", {"a.parquet": make_table()})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    assert "vtaudit process logs --out run-2\n" in invoke("inspect", "logs").stdout


def test_unreadable_file_exits_1(tmp_path: Path) -> None:
    write_files(tmp_path / "logs", {"a.parquet": make_table(), "b.parquet": b""})
    result = invoke("inspect", tmp_path / "logs")
    assert result.exit_code == 1
    assert "b.parquet cannot be read: the file is empty" in result.stdout


def test_report_is_printed_whole_when_names_hold_markup(tmp_path: Path) -> None:
    columns = {f"feature_{k}": pa.array([0.0] * ROWS) for k in range(60)}
    table = make_table(**{"[bold]x[/]": pa.array([0.0] * ROWS), **columns})
    write_files(tmp_path / "logs", {"a.parquet": table, "b.parquet": make_table("b")})
    printed = invoke("inspect", tmp_path / "logs").stdout
    assert "[bold]x[/]" in printed
    assert "more; --json has all" in printed
    assert "absent from 1 file" in printed


def real_log(name: str) -> Inspection:
    if not REAL_LOGS.is_dir():
        pytest.skip(f"{REAL_LOGS}: the real logs are not here")
    return inspect_log([REAL_LOGS / name])


def test_suggestion_for_rllib_runs_as_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = real_log("rllib_cartpole")
    monkeypatch.chdir(tmp_path)
    words = shlex.split(found.suggestion.command)
    result = invoke(*words[1:], "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["summary"]["accepted"] == 4137
    assert found.preset == "rllib"
    assert words[-3:] == ["--preset", "rllib", "--no-targets"]
    assert any("20 of 21 terminated episodes end at length 200" in t for t in texts(found, "ends"))


def test_suggestion_for_coach_tells_padding_and_asks_for_ends(tmp_path: Path) -> None:
    found = real_log("coach_acrobot")
    assert found.preset == "coach"
    summary = run_suggested(found, tmp_path)
    assert (summary["accepted"], summary["padding"], summary["rejected"]) == (9804, 30, 0)
    assert "13 of 30 trajectories without an end flag end at length 500" in texts(found, "ends")[0]


def test_suggestion_for_reagent_leaves_the_struct_out(tmp_path: Path) -> None:
    found = real_log("reagent_cartpole")
    summary = run_suggested(found, tmp_path)
    assert (summary["accepted"], summary["rejected"]) == (3925, 0)
    assert found.streams is not None
    assert found.streams.windows.contiguous == 0
    assert found.preset == "reagent"
    assert proposal(found, "behavior_log_prob") == ("preset", "log(propensity)")
    assert proposal(found, "action") == ("preset", None)
    assert "--end-of-trajectory terminated" in found.suggestion.command


@pytest.mark.parametrize(
    ("name", "accepted"), [("coach_acrobot", 9804), ("reagent_cartpole", 3925)]
)
def test_names_alone_suggest_as_much_as_a_preset(name: str, accepted: int, tmp_path: Path) -> None:
    real_log(name)
    found = inspect_log([REAL_LOGS / name], preset="vtaudit")
    assert "--preset" not in found.suggestion.command
    summary = run_suggested(found, tmp_path)
    assert (summary["accepted"], summary["rejected"]) == (accepted, 0)


def test_preset_is_chosen_by_its_names(tmp_path: Path) -> None:
    renamed = {
        "trajectory_id": "eps_id",
        "reward": "rewards",
        "terminated": "dones",
        "truncated": None,
        "behavior_log_prob": "action_logp",
        "step": None,
    }
    table = make_table()
    columns = {new: table[old] for old, new in renamed.items() if new is not None}
    tables: dict[str, pa.Table | bytes] = {
        "a.parquet": make_table(**dict.fromkeys(renamed), **columns)
    }
    found = inspect_tables(tmp_path, tables)
    assert found.preset == "rllib"
    assert shlex.split(found.suggestion.command)[-2:] == ["--preset", "rllib"]
    assert run_suggested(found, tmp_path)["accepted"] == ROWS
