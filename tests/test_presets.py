"""Presets on small logs in the shape that each ecosystem writes, and on its real log."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from commands import invoke
from logs import Cells, Run, run
from vtaudit import SchemaError, Settings, process
from vtaudit.presets import list_presets, load_preset

REAL_LOGS = Path(__file__).resolve().parents[2] / "shared" / "real_logs"
LEARNER = {"target_log_prob": -0.5, "value": 2.0}
FLOATS = pa.list_(pa.float32())
TORCHRL_NEXT = pa.struct(
    {
        "reward": pa.float32(),
        "done": pa.bool_(),
        "terminated": pa.bool_(),
        "truncated": pa.bool_(),
        "observation": FLOATS,
    }.items()
)
TORCHRL_TYPES = {
    "observation": FLOATS,
    "action": pa.list_(pa.int64()),
    "action_log_prob": pa.float32(),
    "sample_log_prob": pa.float32(),
    "step_count": pa.int64(),
    "done": pa.bool_(),
    "collector": pa.struct([("traj_ids", pa.int64())]),
    "collector.traj_ids": pa.int64(),
    "next": TORCHRL_NEXT,
    "collector_traj_ids": pa.int64(),
    **{f"next{separator}reward": pa.float32() for separator in "._"},
    **{f"next{separator}terminated": pa.bool_() for separator in "._"},
    **{f"next{separator}truncated": pa.bool_() for separator in "._"},
}


def boundaries(found: Run) -> dict[Any, str]:
    """The boundary of every accepted row."""
    return found.column("boundary")


def torchrl_rows(log_prob: str = "action_log_prob") -> list[Cells]:
    """Trajectory 0 of three steps terminates, trajectory 1 of two is truncated."""
    rows = []
    for trajectory, length in ((0, 3), (1, 2)):
        for step in range(length):
            is_last = step == length - 1
            after = {"reward": float(step), "done": is_last, "observation": [0.0, 1.0]}
            after |= {"terminated": is_last and trajectory == 0}
            after |= {"truncated": is_last and trajectory == 1}
            row = {"observation": [0.0, 1.0], "action": [0, 1], log_prob: -0.7}
            row |= {"step_count": step, "done": False, "terminated": False, "truncated": False}
            row |= {"collector": {"traj_ids": trajectory}, "next": after, **LEARNER}
            rows.append(row)
    return rows


def flatten_keys(row: Cells, separator: str = ".") -> Cells:
    """The row with the nested keys that are read as TensorDict.flatten_keys names them."""
    flat = {name: cell for name, cell in row.items() if name not in ("next", "collector")}
    flat[f"collector{separator}traj_ids"] = row["collector"]["traj_ids"]
    names = ("reward", "terminated", "truncated")
    return {**flat, **{f"next{separator}{name}": row["next"][name] for name in names}}


@pytest.mark.parametrize("log_prob", ["action_log_prob", "sample_log_prob"])
@pytest.mark.parametrize("separator", ["", ".", "_"], ids=["structs", "dots", "underscores"])
def test_torchrl_reads_what_stands_under_next(
    tmp_path: Path, separator: str, log_prob: str
) -> None:
    rows = torchrl_rows(log_prob)
    rows = [flatten_keys(row, separator) for row in rows] if separator else rows
    found = run(rows, tmp_path, types=TORCHRL_TYPES, preset="torchrl")
    assert boundaries(found) == {0: "interior", 1: "interior", 2: "terminated", 3: "gap"}
    assert found.reasons == {4: ["bootstrap_missing"]}
    assert found.column("reward") == {0: 0.0, 1: 1.0, 2: 2.0, 3: 0.0}
    assert found.column("step") == {0: 0, 1: 1, 2: 2, 3: 0}


def test_torchrl_truncation_bootstraps_when_the_learner_scored_it(tmp_path: Path) -> None:
    rows = [{**row, "bootstrap_value": 3.0} for row in torchrl_rows()]
    found = run(rows, tmp_path, types=TORCHRL_TYPES, preset="torchrl")
    assert list(boundaries(found).values())[3:] == ["interior", "truncated"]
    assert found.targets[4]["next_value"] == 3.0


def test_torchrl_rows_are_in_order_when_no_step_was_counted(tmp_path: Path) -> None:
    rows = [{k: v for k, v in row.items() if k != "step_count"} for row in torchrl_rows()]
    found = run(rows, tmp_path, types=TORCHRL_TYPES, preset="torchrl")
    assert found.column("step") == {0: 0, 1: 1, 2: 2, 3: 0}


def test_torchrl_never_reads_the_flags_of_the_root(tmp_path: Path) -> None:
    rows = [flatten_keys(row) for row in torchrl_rows()]
    rows = [{k: v for k, v in row.items() if k != "next.terminated"} for row in rows]
    with pytest.raises(SchemaError, match="column terminated: no file has it"):
        run(rows, tmp_path, types=TORCHRL_TYPES, preset="torchrl")


def test_torchrl_lists_of_one_are_read_when_picked(tmp_path: Path) -> None:
    names = ("reward", "terminated", "truncated")
    rows = [flatten_keys(row) for row in torchrl_rows()]
    rows = [{k: [v] if k.startswith("next.") else v for k, v in row.items()} for row in rows]
    lists = {f"next.{name}": pa.list_(TORCHRL_TYPES[f"next.{name}"]) for name in names}
    columns = {name: f"pick(next.{name},lit(0))" for name in names}
    found = run(rows, tmp_path, types={**TORCHRL_TYPES, **lists}, preset="torchrl", columns=columns)
    assert boundaries(found) == {0: "interior", 1: "interior", 2: "terminated", 3: "gap"}


def coach_rows() -> list[Cells]:
    """Episode 0 of two transitions, episode 1 of one, each with its final observation."""
    rows: list[Cells] = []
    for episode, length in ((0, 2), (1, 1)):
        for step in range(length):
            row = {"action": step, "all_action_probabilities": [0.25, 0.75], "reward": -1.0}
            rows.append({**row, "episode_id": episode, "transition_number": step, **LEARNER})
        rows.append({"episode_id": episode})
    return [{**row, "episode_name": "acrobot", "state_feature_0": 0.5} for row in rows]


COACH_TYPES = {
    "all_action_probabilities": pa.list_(pa.float64()),
    "episode_id": pa.int64(),
    "episode_name": pa.string(),
    "transition_number": pa.int64(),
    "state_feature_0": pa.float64(),
}


def test_coach_final_observations_are_padding(tmp_path: Path) -> None:
    found = run(coach_rows(), tmp_path, types=COACH_TYPES, preset="coach", dtype="float64")
    assert boundaries(found) == {0: "interior", 1: "terminated", 3: "terminated"}
    assert found.reasons == {}
    assert found.entry("padding")["count"] == 2
    log_ratios = [-0.5 - math.log(p) for p in (0.25, 0.75, 0.25)]
    assert list(found.column("log_ratio").values()) == pytest.approx(log_ratios, rel=1e-12)


def test_coach_end_is_truncated_when_told_so(tmp_path: Path) -> None:
    rows = [{**row, "bootstrap_value": 1.0} for row in coach_rows()]
    found = run(rows, tmp_path, types=COACH_TYPES, preset="coach", end_of_trajectory="truncated")
    assert boundaries(found) == {0: "interior", 1: "truncated", 3: "truncated"}


def reagent_rows(probability: str) -> list[Cells]:
    """Two chains, whose rows are shuffled as ReAgent's timeline shuffles them."""
    keys = (("a", 1), ("b", 0), ("a", 0))
    return [
        {
            "mdp_id": mdp,
            "sequence_number": number,
            "state_features": [("0", 0.5)],
            "action": "left",
            "reward": 1.0,
            "possible_actions": ["left", "right"],
            "possible_actions_mask": [1, 1],
            probability: 0.5,
            "ds": "2019-01-01",
            **LEARNER,
        }
        for mdp, number in keys
    ]


REAGENT_TYPES = {
    "mdp_id": pa.string(),
    "sequence_number": pa.int64(),
    "sequence_number_ordinal": pa.int64(),
    "state_features": pa.map_(pa.string(), pa.float64()),
    "action": pa.string(),
    "possible_actions": pa.list_(pa.string()),
    "possible_actions_mask": pa.list_(pa.int8()),
    "action_probability": pa.float64(),
    "propensity": pa.float64(),
    "ds": pa.string(),
}


@pytest.mark.parametrize("probability", ["action_probability", "propensity"])
def test_reagent_chains_end_terminated(tmp_path: Path, probability: str) -> None:
    rows = reagent_rows(probability)
    found = run(rows, tmp_path, types=REAGENT_TYPES, preset="reagent", dtype="float64")
    assert boundaries(found) == {0: "terminated", 1: "terminated", 2: "interior"}
    assert found.reasons == {}
    assert found.targets[0]["log_ratio"] == pytest.approx(-0.5 - math.log(0.5), rel=1e-12)


def test_reagent_ordinal_goes_before_numbers_that_jump(tmp_path: Path) -> None:
    rows = reagent_rows("action_probability")
    rows = [{**row, "sequence_number": 10 * row["sequence_number"]} for row in rows]
    found = run(rows, tmp_path, types=REAGENT_TYPES, preset="reagent")
    assert found.reasons == {2: ["bootstrap_missing"]}
    rows = [{**row, "sequence_number_ordinal": 1 + row["sequence_number"] // 10} for row in rows]
    found = run(rows, tmp_path, types=REAGENT_TYPES, preset="reagent")
    assert boundaries(found) == {0: "terminated", 1: "terminated", 2: "interior"}


def d4rl_rows(log_prob: str) -> list[Cells]:
    """Three episodes one after the other: terminal, timeout, and one that is cut off."""
    ends = ["", "terminal", "", "timeout", "", ""]
    return [
        {
            "observations": [0.0, 1.0],
            "actions": [0.5, -0.5],
            "rewards": float(place),
            "terminals": end == "terminal",
            "timeouts": end == "timeout",
            log_prob: {"action_log_probs": 1.5} if log_prob == "infos" else 1.5,
            **LEARNER,
        }
        for place, end in enumerate(ends)
    ]


D4RL_TYPES = {
    "observations": FLOATS,
    "actions": pa.list_(pa.float32(), 2),
    "rewards": pa.float32(),
    "terminals": pa.bool_(),
    "timeouts": pa.bool_(),
    "infos/action_log_probs": pa.float32(),
    "action_log_probs": pa.float32(),
    "infos": pa.struct([("action_log_probs", pa.float32())]),
}


@pytest.mark.parametrize("log_prob", ["infos/action_log_probs", "infos", "action_log_probs"])
def test_d4rl_is_one_stream_of_episodes(tmp_path: Path, log_prob: str) -> None:
    found = run(d4rl_rows(log_prob), tmp_path, types=D4RL_TYPES, preset="d4rl")
    ends = {0: "interior", 1: "terminated", 2: "gap", 4: "gap"}
    assert boundaries(found) == ends
    assert found.reasons == {3: ["bootstrap_missing"], 5: ["bootstrap_missing"]}
    scored = [{**row, "bootstrap_value": 7.0} for row in d4rl_rows(log_prob)]
    found = run(scored, tmp_path, types=D4RL_TYPES, preset="d4rl")
    assert list(boundaries(found).values()) == [
        *("interior", "terminated", "interior", "truncated", "interior", "window_edge")
    ]
    assert found.column("step") == {place: place for place in range(6)}


def test_d4rl_time_limit_is_not_guessed_when_there_are_no_timeouts(tmp_path: Path) -> None:
    rows = [{k: v for k, v in row.items() if k != "timeouts"} for row in d4rl_rows("infos")]
    with pytest.raises(SchemaError, match="column truncated: no file has it"):
        run(rows, tmp_path, types=D4RL_TYPES, preset="d4rl")


def test_d4rl_episodes_stand_apart_when_they_have_ids(tmp_path: Path) -> None:
    rows = [{**row, "episode_id": place // 2} for place, row in enumerate(d4rl_rows("infos"))]
    types = {**D4RL_TYPES, "episode_id": pa.int64()}
    found = run(rows, tmp_path, types=types, preset="d4rl")
    assert found.result.summary["windows"] == 3


def write_minari_storage(directory: Path) -> None:
    """Write two episodes as Minari's ArrowStorage does: actions padded with zeros, ids as paths."""
    for episode, (length, end) in enumerate([(3, "terminations"), (2, "truncations")]):
        flags = {name: np.zeros(length + 1, bool) for name in ("terminations", "truncations")}
        flags[end][length - 1] = True
        actions = np.pad(np.ones((length, 2), np.float32), ((0, 1), (0, 0)))
        fixed = pa.list_(pa.float32(), 2)
        batch = {
            "episode_id": np.full(length + 1, episode, np.int32),
            "observations": pa.FixedSizeListArray.from_arrays(
                np.zeros(2 * (length + 1), np.float32), type=fixed
            ),
            "actions": pa.FixedSizeListArray.from_arrays(actions.reshape(-1), type=fixed),
            "rewards": np.pad(np.arange(length, dtype=np.float64), (0, 1)),
            **flags,
        }
        ds.write_dataset(
            pa.RecordBatch.from_pydict(batch),
            directory,
            format="arrow",
            partitioning=["episode_id"],
            existing_data_behavior="overwrite_or_ignore",
        )


def minari_rows(tmp_path: Path) -> list[Cells]:
    """The storage read as the preset says, with the log-probs that it does not hold."""
    write_minari_storage(tmp_path / "data")
    data = ds.dataset(tmp_path / "data", format="arrow", partitioning=["episode_id"])
    rows: list[Cells] = data.to_table().sort_by("episode_id").to_pylist()
    return [{**row, "behavior_log_prob": 0.3, **LEARNER} for row in rows]


MINARI_TYPES = {
    "episode_id": pa.int32(),
    "observations": pa.list_(pa.float32(), 2),
    "actions": pa.list_(pa.float32(), 2),
    "rewards": pa.float64(),
    "terminations": pa.bool_(),
    "truncations": pa.bool_(),
}
MINARI_FINALS = (3, 6)


def test_minari_final_observations_are_padding_when_their_action_is_null(tmp_path: Path) -> None:
    rows = minari_rows(tmp_path)
    rows = [
        {**row, "actions": None} if place in MINARI_FINALS else row
        for place, row in enumerate(rows)
    ]
    rows = [{**row, "bootstrap_value": 7.0} for row in rows]
    found = run(rows, tmp_path, types=MINARI_TYPES, preset="minari")
    ends = ["interior", "interior", "terminated", "interior", "truncated"]
    assert list(boundaries(found).values()) == ends
    assert found.reasons == {}
    assert found.entry("padding")["count"] == 2
    assert found.column("reward") == {0: 0.0, 1: 1.0, 2: 2.0, 4: 0.0, 5: 1.0}


def test_minari_zero_filled_rows_are_rejected_and_reach_no_other(tmp_path: Path) -> None:
    rows = minari_rows(tmp_path)
    rows[5]["bootstrap_value"] = 7.0
    found = run(rows, tmp_path, types=MINARI_TYPES, preset="minari")
    assert found.reasons == {place: ["bootstrap_missing"] for place in MINARI_FINALS}
    assert boundaries(found)[2] == "terminated"
    assert found.targets[5]["next_value"] == 7.0


def test_minari_row_per_episode_is_refused(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    flags = [[False, True]]
    columns = {"id": [0], "actions": [[0, 1]], "rewards": [[1.0, 1.0]]}
    columns |= {"terminations": flags, "truncations": flags, "behavior_log_prob": [[0.0, 0.0]]}
    pq.write_table(pa.table(columns), tmp_path / "logs" / "a.parquet")
    settings = Settings(preset="minari", targets=False)
    with pytest.raises(SchemaError, match="column reward: found list"):
        process(tmp_path / "logs", tmp_path / "run", settings)


def test_rllib_dones_are_terminated_and_rows_in_order(tmp_path: Path) -> None:
    types = {
        "eps_id": pa.int64(),
        "obs": FLOATS,
        "actions": pa.int64(),
        "rewards": pa.float64(),
        "dones": pa.bool_(),
        "action_prob": pa.float64(),
        "action_logp": pa.float64(),
        "action_dist_inputs": pa.list_(pa.float64()),
    }
    row = {"eps_id": 7, "obs": [0.0], "actions": 1, "rewards": 1.0, "dones": False}
    row |= {"action_prob": 0.5, "action_logp": math.log(0.5), "action_dist_inputs": [0.0, 0.0]}
    rows = [{**row, **LEARNER}, {**row, **LEARNER, "dones": True}]
    found = run(rows, tmp_path, types=types, preset="rllib")
    assert boundaries(found) == {0: "interior", 1: "terminated"}


@pytest.mark.skipif(not REAL_LOGS.is_dir(), reason=f"{REAL_LOGS}: the real logs are not here")
@pytest.mark.parametrize(
    ("preset", "log", "rows", "padding", "trajectories"),
    [("coach", "coach_acrobot", 9804, 30, 30), ("reagent", "reagent_cartpole", 3925, 0, 26)],
)
def test_preset_reads_its_real_log(
    tmp_path: Path, preset: str, log: str, rows: int, padding: int, trajectories: int
) -> None:
    settings = Settings(preset=preset, targets=False, threads=2)
    found = process(REAL_LOGS / log, tmp_path / "run", settings)
    summary = found.summary
    assert (summary["received"], summary["accepted"]) == (rows, rows)
    assert (summary["padding"], summary["windows"]) == (padding, trajectories)
    scored = {"columns": {"target_log_prob": "lit(-0.5)", "value": "lit(0)"}}
    found = process(REAL_LOGS / log, tmp_path / "scored", Settings(preset=preset, **scored))
    ends = {row["kind"]: row["count"] for row in found.audit if row["measure"] == "boundary"}
    assert ends["terminated"] == trajectories
    assert ends["interior"] == rows - trajectories


def test_run_notes_what_its_preset_assumes(tmp_path: Path) -> None:
    found = run(coach_rows(), tmp_path, types=COACH_TYPES, preset="coach")
    for sentence in load_preset("coach").assumes:
        assert f"preset coach assumes: {sentence}" in found.result.notes


def test_presets_command_tells_everything() -> None:
    result = invoke("presets")
    assert result.exit_code == 0
    printed = " ".join(result.stdout.split())
    listed = json.loads(invoke("presets", "--json").stdout)
    assert [each["name"] for each in listed] == list(list_presets())
    for each in listed:
        assert each["description"] in printed
        for canonical, texts in each["columns"].items():
            assert canonical in printed
            assert all(text in printed for text in texts)
        for sentence in each["assumes"]:
            assert sentence in printed
