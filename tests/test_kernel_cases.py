"""Every defect of ../shared/cases/kernel_cases.json, on each backend, with the right numbers."""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path

import numpy as np
import pytest

from vtaudit.kernels import vtrace

CASES_PATH = Path(__file__).parents[2] / "shared" / "cases" / "kernel_cases.json"
HAS_CASES = CASES_PATH.exists()
CASES = {}
if HAS_CASES:
    CASES = {case["id"]: case for case in json.loads(CASES_PATH.read_text())["cases"]}
ODD = {  # cases of another form than one row of an environment; each has its own test below
    "noncontiguous_view",
    "bf16_log_probs",
    "time_major_confusion",
    "sampling_temperature_mismatch",
    "joint_ratio_of_factored_action",
}

pytestmark = pytest.mark.skipif(not HAS_CASES, reason=f"{CASES_PATH} is not there")


@pytest.fixture(params=["reference", "numba", "triton"], autouse=True)
def backend(request):
    if request.param == "triton":
        request.getfixturevalue("small_blocks")
    return request.param


def read_numbers(found):
    """Return a float64 array: null is NaN, and so is "NaN"."""
    return np.array([math.nan if x is None else float(x) for x in found])


def run_row(inputs, backend, keep=slice(None)):
    """Return the VTrace of one environment's row, of the steps that `keep` selects."""
    value = read_numbers(inputs["values"])
    zeros = [0] * len(value)
    log_ratio = inputs.get("log_ratio", np.log(inputs.get("ratio", [1.0] * len(value))))
    columns = [log_ratio, zeros, value, read_numbers(inputs["rewards"])]
    bars = {name: inputs[name] for name in ("rho_bar", "c_bar", "pg_rho_bar") if name in inputs}
    gamma = np.broadcast_to(np.array(inputs["gamma"], np.float64), value.shape)
    found = vtrace(
        *(np.array([column], np.float64)[:, keep] for column in columns),
        *(np.array([inputs.get(f, zeros)], bool)[:, keep] for f in ("terminated", "truncated")),
        gamma=1.0,
        discount=gamma[None, keep],
        bootstrap_values=np.array([inputs["bootstrap"]], np.float64)[:, keep],
        lambda_=inputs.get("lam", 1.0),
        backend=backend,
        **bars,
    )
    return type(found)(*(column[0] for column in found))


@pytest.mark.parametrize("case_id", [case_id for case_id in CASES if case_id not in ODD])
def test_case_gives_the_right_numbers(case_id, backend):
    case = CASES[case_id]
    right = case["right"].get("seed_rl", case["right"])
    listed = {name: numbers for name, numbers in right.items() if isinstance(numbers, list)}
    # a null stands for a row that is no transition: it never reaches the kernel
    keep = [x is not None for x in next(iter(listed.values()))]
    found = run_row(case["inputs"], backend, keep)
    assert listed
    delta_sum = found.value_target - read_numbers(case["inputs"]["values"])[keep]
    # on-policy, the error of the lambda-return is what GAE calls the advantage
    advantage = delta_sum if case["kind"] == "gae" else found.advantage
    actual = {"vs": found.value_target, "advantage": advantage, "delta": delta_sum}
    for name, numbers in listed.items():
        expected = read_numbers(numbers)[keep]
        np.testing.assert_allclose(actual[name], expected, rtol=1e-9, atol=1e-12, err_msg=name)
    if "mean_vs" in right:
        assert found.value_target.mean() == pytest.approx(right["mean_vs"])


def run_rewards(reward, gamma, backend, *, time_major=False):
    """Return the targets of rewards alone: on-policy, every value 0, nothing after the window."""
    zeros = np.zeros_like(reward)
    flags = zeros.astype(bool)
    last = np.zeros(reward.shape[1 if time_major else 0])
    columns = (zeros, zeros, zeros, reward, flags, flags)
    found = vtrace(*columns, gamma=gamma, last_value=last, backend=backend, time_major=time_major)
    return found.value_target


def test_noncontiguous_view_is_read_by_its_strides(backend):
    case = CASES["noncontiguous_view"]
    packed = np.array(case["inputs"]["rewards_view"]).T.copy()  # [3, 2]; its transpose is the view
    assert not packed.T.flags.c_contiguous
    found = run_rewards(packed.T, case["inputs"]["gamma"], backend)
    np.testing.assert_allclose(found, case["right"]["vs"])


def test_square_windows_follow_time_major(backend):
    case = CASES["time_major_confusion"]
    reward = np.array(case["inputs"]["rewards_BT"])
    right = np.array(case["right"]["vs_BT"])
    gamma = case["inputs"]["gamma"]
    np.testing.assert_allclose(run_rewards(reward, gamma, backend), right)
    found = run_rewards(reward.T.copy(), gamma, backend, time_major=True)
    np.testing.assert_allclose(found, right.T)


def find_ratio(target_log_prob, behavior_log_prob, backend):
    """Return the unclipped ratio of one action."""
    torch = pytest.importorskip("torch")
    device = "cuda" if backend == "triton" and torch.cuda.is_available() else "cpu"
    target, behavior = (
        torch.as_tensor(x).reshape(1, 1).to(device) for x in (target_log_prob, behavior_log_prob)
    )
    zero = torch.zeros((1, 1), dtype=torch.float64, device=device)
    is_end, never = zero == 0, zero != 0
    run = functools.partial(vtrace, target, behavior, zero, zero, is_end, never, gamma=0.9)
    return float(run(rho_bar=math.inf, backend=backend).rho)


def test_bf16_log_probs_lose_nothing_in_the_subtraction(backend):
    torch = pytest.importorskip("torch")
    case = CASES["bf16_log_probs"]
    pair = [
        torch.tensor(case["inputs"][name], dtype=torch.float64) for name in ("log_pi", "log_mu")
    ]
    assert find_ratio(*pair, backend) == pytest.approx(case["right"]["ratio"], rel=1e-12)
    # once stored in bfloat16 the precision is gone, but the subtraction takes no more of it
    stored = [x.to(torch.bfloat16) for x in pair]
    assert stored[0].item() == case["wrong"]["bf16_log_pi"]
    assert find_ratio(*stored, backend) == pytest.approx(case["wrong"]["ratio"], rel=1e-12)


def test_ratio_of_the_distribution_that_sampled(backend):
    case = CASES["sampling_temperature_mismatch"]
    inputs = case["inputs"]

    def log_prob(logits, temperature=1.0):
        scaled = np.array(logits, np.float64) / temperature
        return scaled[inputs["action"]] - np.logaddexp.reduce(scaled)

    target = log_prob(inputs["target_logits"])
    behavior = log_prob(inputs["logits"], inputs["temperature"])
    assert behavior == pytest.approx(case["right"]["log_mu"])
    assert find_ratio(target, behavior, backend) == pytest.approx(case["right"]["ratio"])
    untempered = find_ratio(target, log_prob(inputs["logits"]), backend)
    assert untempered == pytest.approx(case["wrong"]["ratio"])


def test_joint_ratio_is_of_summed_log_probs(backend):
    case = CASES["joint_ratio_of_factored_action"]
    target, behavior = (np.sum(case["inputs"][name]) for name in ("log_pi", "log_mu"))
    assert find_ratio(target, behavior, backend) == pytest.approx(case["right"]["ratio"])


def test_every_odd_case_is_in_the_file():
    assert set(CASES) >= ODD
