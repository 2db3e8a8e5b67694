"""Logs that RLlib, Coach and ReAgent ship, audited the way their users would."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

from vtaudit.cli import main

LOGS = Path(__file__).resolve().parents[2] / "shared" / "real_logs"
GAMMA = 0.99
THREADS = ("--threads", "2")
COACH = (
    *("--map", "trajectory_id=episode_id"),
    *("--map", "step=transition_number"),
    *("--map", "behavior_log_prob=log(pick(all_action_probabilities,action))"),
    *("--map", "valid=notnull(action)"),
    *("--end-of-trajectory", "terminated"),
)
COACH_TARGET = (
    *("--map", "target_log_prob=log(pick(all_action_probabilities,action))"),
    *("--map", "value=lit(0)"),
)
REAGENT = (
    *("--map", "trajectory_id=mdp_id"),
    *("--map", "step=sequence_number"),
    *("--map", "behavior_log_prob=log(propensity)"),
    *("--map", "action=lit(null)"),
    *("--end-of-trajectory", "terminated"),
)
Floats = NDArray[np.float64]

pytestmark = pytest.mark.skipif(not LOGS.is_dir(), reason=f"{LOGS}: the real logs are not here")


def audit(logs: Path, out: Path, *options: str) -> tuple[dict[str, Any], dict[str, int]]:
    """Run `vtaudit process`; return the summary and the warnings of its JSON."""
    command = ["process", str(logs), "--out", str(out), "--json", *THREADS, *options]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.output
    body = json.loads(result.stdout)
    warnings = {row["kind"]: row["count"] for row in body["audit"] if row["measure"] == "warning"}
    return body["summary"], warnings


def read_targets(run: Path) -> pl.DataFrame:
    """Return the targets of a run."""
    return pl.concat([pl.read_parquet(path) for path in (run / "targets").iterdir()])


def test_rllib_targets_equal_the_logged_ones_when_on_policy(tmp_path: Path) -> None:
    summary, warnings = audit(
        LOGS / "rllib_cartpole",
        tmp_path / "run",
        *("--preset", "rllib", "--gamma", str(GAMMA), "--carry", "value_targets"),
        *("--map", "target_log_prob=action_logp", "--map", "value=lit(0)"),
    )
    assert (summary["received"], summary["accepted"]) == (4137, 4137)
    assert summary["rejected_any_behavior_log_prob_unreconciled"] == 0
    assert warnings["not_rebuilt"] == 0
    targets = read_targets(tmp_path / "run")
    logged, found = targets["value_targets"].to_numpy(), targets["value_target"].to_numpy()
    assert len(found) == 4137
    np.testing.assert_allclose(found, logged, rtol=1e-5)


def test_rllib_log_prob_is_unreconciled_when_it_is_not_that_of_the_logits(tmp_path: Path) -> None:
    summary, _ = audit(
        LOGS / "rllib_cartpole",
        tmp_path / "run",
        *("--preset", "rllib", "--no-targets", "--map", "behavior_log_prob=neg(action_prob)"),
    )
    assert summary["rejected_any_behavior_log_prob_unreconciled"] > 4000


def natural_order(directory: Path) -> list[Path]:
    """Return the files, whose names are numbers of fixed width, in natural order."""
    return sorted(directory.glob("*.parquet"), key=lambda path: path.name)


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[pl.DataFrame]]:
    """Write scores of a random learner; return their directory and the rows of each episode."""
    rng = np.random.default_rng(11)
    policy, critic = rng.normal(0.0, 2.0, (4, 2)), rng.normal(0.0, 5.0, 4)
    paths = natural_order(LOGS / "rllib_cartpole")
    rows = pl.concat([pl.read_parquet(path) for path in paths])
    obs = np.array(rows["obs"].to_list())
    scores = obs @ policy
    log_probs = scores - np.logaddexp(scores[:, :1], scores[:, 1:])
    taken = log_probs[np.arange(rows.height), rows["actions"].to_numpy()]
    rows = rows.with_columns(
        pl.col("eps_id").alias("trajectory_id"),
        pl.int_range(pl.len()).over("eps_id").alias("step"),
        pl.Series("target_log_prob", taken),
        pl.Series("value", np.tanh(obs @ critic) * 20 + 40),
    )
    ratio = (rows["target_log_prob"] - rows["action_logp"]).exp()
    assert 0.2 < (ratio > 1).mean() < 0.8
    directory = tmp_path_factory.mktemp("scores")
    rows.select("trajectory_id", "step", "target_log_prob", "value").write_parquet(
        directory / "scores.parquet"
    )
    return directory, rows.partition_by("trajectory_id")


def paper_targets(
    episode: pl.DataFrame, bars: tuple[float, float, float]
) -> Iterator[tuple[int, float, float]]:
    """Yield step, v_s and the advantage of each row of an episode that terminates.

    v_s = V(x_s) + sum over t = s .. T-1 of gamma^(t-s) (prod_{i=s}^{t-1} c_i) delta_t V, with
    delta_t V = rho_t (r_t + gamma V(x_{t+1}) - V(x_t)), and the advantage is
    rho_s (r_s + gamma v_{s+1} - V(x_s)) with its own clip (Espeholt et al. 2018, sections 4.1 and
    4.2). V and v of the terminal state are 0.
    """
    rho_bar, c_bar, pg_rho_bar = bars
    log_ratio = (episode["target_log_prob"] - episode["action_logp"]).to_numpy()
    ratio, reward = np.exp(log_ratio), episode["rewards"].to_numpy()
    value = np.append(episode["value"].to_numpy(), 0.0)
    rho, c = np.minimum(rho_bar, ratio), np.minimum(c_bar, ratio)
    delta = rho * (reward + GAMMA * value[1:] - value[:-1])
    height = len(ratio)
    v = np.append([value[s] + trace_sum(c, delta, s) for s in range(height)], 0.0)
    pg = np.minimum(pg_rho_bar, ratio) * (reward + GAMMA * v[1:] - value[:-1])
    for s in range(height):
        yield int(episode["step"][s]), float(v[s]), float(pg[s])


def trace_sum(c: Floats, delta: Floats, s: int) -> float:
    """Return the sum over t >= s of gamma^(t-s) (prod_{i=s}^{t-1} c_i) delta_t."""
    products = np.cumprod(np.append(1.0, c[s:-1]))
    return float(np.sum(GAMMA ** np.arange(len(delta) - s) * products * delta[s:]))


@pytest.mark.parametrize(
    ("dtype", "rtol", "atol", "bars"),
    [
        ("float32", 1e-5, 1e-6, (1.0, 1.0, 1.0)),
        ("float64", 1e-12, 1e-12, (1.0, 1.0, 1.0)),
        ("float64", 1e-12, 1e-12, (1.5, 0.8, 2.0)),
    ],
    ids=["float32", "float64", "float64-clips-apart"],
)
def test_rllib_targets_equal_the_paper_when_off_policy(
    bars: tuple[float, float, float],
    dtype: str,
    rtol: float,
    atol: float,
    scored: tuple[Path, list[pl.DataFrame]],
    tmp_path: Path,
) -> None:
    scores, episodes = scored
    names = ("--rho-bar", "--c-bar", "--pg-rho-bar")
    clips = [text for name, bar in zip(names, bars, strict=True) for text in (name, str(bar))]
    summary, _ = audit(
        LOGS / "rllib_cartpole",
        tmp_path / "run",
        *("--preset", "rllib", "--scores", str(scores), "--gamma", str(GAMMA)),
        *("--dtype", dtype, *clips),
    )
    assert (summary["received"], summary["accepted"]) == (4137, 4137)
    expected = pl.DataFrame(
        [
            (episode["trajectory_id"][0], *numbers)
            for episode in episodes
            for numbers in paper_targets(episode, bars)
        ],
        schema=["trajectory_id", "step", "v", "pg"],
        orient="row",
    )
    rows = read_targets(tmp_path / "run").join(expected, on=["trajectory_id", "step"])
    assert rows.height == 4137
    for name, exact in (("value_target", "v"), ("advantage", "pg")):
        found, wanted = rows[name].to_numpy().astype(np.float64), rows[exact].to_numpy()
        np.testing.assert_allclose(found, wanted, rtol=rtol, atol=atol, err_msg=name)


@pytest.mark.parametrize("more", [("--no-targets",), COACH_TARGET], ids=["audit", "targets"])
def test_coach_padding_is_not_received_when_its_action_is_null(
    more: tuple[str, ...], tmp_path: Path
) -> None:
    summary, _ = audit(LOGS / "coach_acrobot", tmp_path / "run", *COACH, *more)
    assert summary["padding"] == 30
    assert (summary["received"], summary["accepted"], summary["rejected"]) == (9804, 9804, 0)
    targets = read_targets(tmp_path / "run")
    assert targets.height == (0 if "--no-targets" in more else 9804)
    if targets.height:
        ends = targets.group_by("trajectory_id").agg(pl.col("boundary").sort_by("step").last())
        assert set(ends["boundary"]) == {"terminated"}
        assert (targets["boundary"] == "terminated").sum() == ends.height
        assert (targets["log_ratio"] == 0).all()


def test_coach_log_prob_is_that_of_the_action_when_picked(tmp_path: Path) -> None:
    certain = ("--map", "target_log_prob=lit(0)", "--map", "value=lit(0)", "--dtype", "float64")
    audit(LOGS / "coach_acrobot", tmp_path / "run", *COACH, *certain)
    rows = pl.read_parquet(LOGS / "coach_acrobot" / "*.parquet").drop_nulls("action")
    keys = ["trajectory_id", "step"]
    rows = rows.rename({"episode_id": keys[0], "transition_number": keys[1]})
    joined = read_targets(tmp_path / "run").join(rows, on=keys)
    assert joined.height == 9804
    probabilities = np.array(joined["all_action_probabilities"].to_list())
    taken = probabilities[np.arange(joined.height), joined["action"].to_numpy()]
    np.testing.assert_allclose(joined["log_ratio"].to_numpy(), -np.log(taken), rtol=1e-12)


def test_reagent_rows_are_accepted_when_their_action_is_a_struct(tmp_path: Path) -> None:
    options = (*REAGENT, "--map", "target_log_prob=log(propensity)", "--map", "value=lit(0)")
    summary, _ = audit(LOGS / "reagent_cartpole", tmp_path / "run", *options)
    assert (summary["received"], summary["accepted"]) == (3925, 3925)
    assert summary["windows"] == 26
    assert read_targets(tmp_path / "run")["trajectory_id"].n_unique() == 26
    again, _ = audit(LOGS / "reagent_cartpole", tmp_path / "audit", *REAGENT, "--no-targets")
    assert (again["received"], again["accepted"], again["windows"]) == (3925, 3925, 26)
