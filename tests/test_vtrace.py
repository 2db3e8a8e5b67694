"""vtrace on windows, vtrace_packed's checks, and the choice of backend."""

from __future__ import annotations

import math

import numpy as np
import pytest

from vtaudit.errors import EngineError, SettingsError
from vtaudit.kernels import (
    PIECE_ROWS,
    Thresholds,
    VTrace,
    backends,
    describe_kernel,
    resolve_backend,
    vtrace,
    vtrace_packed,
)
from vtrace_definition import assert_close, assert_same_bits

torch = pytest.importorskip("torch")

NAN = math.nan
NUM_ENVS, SEQ_LEN = 4, 12
HALVES = [torch.float16, torch.bfloat16]


def make_windows(num_envs=NUM_ENVS, seq_len=SEQ_LEN, dtype=torch.float32, seed=0):
    """Return the arguments of vtrace with ends of both kinds and NaN wherever none is needed."""
    torch.manual_seed(seed)
    shape = (num_envs, seq_len)
    terminated, truncated = torch.rand(shape) < 0.15, torch.rand(shape) < 0.15
    is_needed = truncated.clone()
    is_needed[:, -1:] = True
    is_needed &= ~terminated
    return {
        "target_log_prob": torch.randn(shape).to(dtype),
        "behavior_log_prob": torch.randn(shape).to(dtype),
        "value": torch.randn(shape, dtype=dtype),
        "reward": torch.randn(shape, dtype=dtype),
        "terminated": terminated,
        "truncated": truncated,
        "discount": torch.rand(shape, dtype=dtype) * 0.1 + 0.9,
        "bootstrap_values": torch.randn(shape, dtype=dtype).masked_fill(~is_needed, NAN),
    }


def run(windows, **options):
    return vtrace(**windows, gamma=0.97, **{"backend": "numba", **options})


def define_windows(windows, gamma=0.97):
    """Return value_target and advantage by the contract's section 5, step by step; rho_bar 1."""
    w = {name: column.double().numpy() for name, column in windows.items()}
    target, advantage = np.zeros(w["value"].shape), np.zeros(w["value"].shape)
    for env, t in np.ndindex(w["value"].shape):
        t = w["value"].shape[1] - 1 - t
        g = gamma * w["discount"][env, t]
        ratio = min(1.0, math.exp(w["target_log_prob"][env, t] - w["behavior_log_prob"][env, t]))
        value, reward = w["value"][env, t], w["reward"][env, t]
        carry = 0.0
        if w["terminated"][env, t]:
            next_value = next_target = 0.0
        elif w["truncated"][env, t] or t == w["value"].shape[1] - 1:
            next_value = next_target = w["bootstrap_values"][env, t]
        else:
            next_value, next_target = w["value"][env, t + 1], target[env, t + 1]
            carry = g * ratio * (next_target - next_value)
        target[env, t] = value + ratio * (reward + g * next_value - value) + carry
        advantage[env, t] = ratio * (reward + g * next_target - value)
    return target, advantage


@pytest.mark.parametrize("seed", range(4))
def test_windows_equal_the_definition(seed):
    windows = make_windows(dtype=torch.float64, seed=seed)
    found = run(windows)
    target, advantage = define_windows(windows)
    np.testing.assert_allclose(found.value_target, target, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found.advantage, advantage, rtol=1e-12, atol=1e-12)
    assert found.value_target.dtype == torch.float64


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("backend", ["reference", "triton"])
def test_backends_agree_on_windows(backend):
    windows = make_windows()
    moved = {name: column.to(resolve_backend(backend)[1]) for name, column in windows.items()}
    assert_close(run(moved, backend=backend), run(windows))


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0, 0)], ids=str)
def test_empty_windows_give_empty_targets(shape):
    found = run(make_windows(*shape))
    assert {tuple(column.shape) for column in found} == {shape}
    windows = make_windows(*shape)
    del windows["bootstrap_values"]
    assert run(windows).value_target.shape == shape


@pytest.mark.parametrize("shape", [(5, 5), (3, 7)], ids=str)
def test_time_major_transposes_arguments_and_results(shape):
    windows = make_windows(*shape)
    expected = run(windows)
    transposed = {name: column.T.contiguous() for name, column in windows.items()}
    found = run(transposed, time_major=True)
    assert_same_bits(found, VTrace(*(column.T.contiguous() for column in expected)))
    assert found.value_target.is_contiguous()


def test_views_give_the_same_targets_as_copies():
    windows = make_windows()
    views = {name: column.repeat_interleave(2, 1)[:, ::2] for name, column in windows.items()}
    assert not views["value"].is_contiguous()
    assert_same_bits(run(views), run(windows))
    expanded = {**windows, "reward": torch.ones(1, 1).expand(NUM_ENVS, SEQ_LEN)}
    copied = {**windows, "reward": torch.ones(NUM_ENVS, SEQ_LEN)}
    assert_same_bits(run(expanded), run(copied))


def test_numpy_arrays_come_back_as_numpy_arrays():
    windows = make_windows()
    arrays = {name: column.numpy() for name, column in windows.items()}
    for column in arrays.values():
        column.flags.writeable = False
    found = run(arrays, backend="auto")
    assert all(isinstance(column, np.ndarray) for column in found)
    assert_same_bits(found, run(windows, backend="auto"))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_half_precision_log_probs_are_subtracted_in_float64(dtype):
    windows = make_windows()
    for name in ("target_log_prob", "behavior_log_prob"):
        windows[name] = (windows[name] * 8).to(dtype)
    wide = {**windows}
    for name in ("target_log_prob", "behavior_log_prob"):
        wide[name] = windows[name].double()
    found = run(windows)
    assert found.log_ratio.dtype == torch.float32
    assert_same_bits(found, run(wide))


def test_log_ratio_is_rounded_once():
    windows = make_windows(1, 1)
    for name, number in (("target_log_prob", -1e-9), ("behavior_log_prob", -1.0 - 1e-9)):
        windows[name] = torch.full((1, 1), number, dtype=torch.float64)
    assert run(windows).log_ratio.item() == 1.0


def test_float64_reward_makes_float64_results():
    windows = make_windows()
    windows["reward"] = windows["reward"].double()
    assert {column.dtype for column in run(windows)} == {torch.float64}


def test_flags_may_be_uint8_and_termination_wins():
    windows = make_windows()
    flags = ("terminated", "truncated")
    found = run({**windows, **{name: windows[name].to(torch.uint8) for name in flags}})
    assert_same_bits(found, run(windows))
    both = {**windows, "truncated": windows["truncated"] | windows["terminated"]}
    assert_same_bits(run(both), run(windows))


def test_results_carry_no_gradient():
    windows = make_windows()
    for name in ("target_log_prob", "value", "reward", "bootstrap_values"):
        windows[name].requires_grad_()
    assert not any(column.requires_grad for column in run(windows))


def test_last_value_serves_the_last_column():
    windows = make_windows()
    windows["truncated"][:] = False
    last = torch.randn(NUM_ENVS)
    windows["bootstrap_values"] = torch.full((NUM_ENVS, SEQ_LEN), NAN)
    windows["bootstrap_values"][:, -1] = last
    expected = run(windows)
    del windows["bootstrap_values"]
    last[windows["terminated"][:, -1]] = NAN
    assert_same_bits(run({**windows, "last_value": last}), expected)


def test_no_bootstrap_is_asked_for_where_none_is_needed():
    windows = make_windows()
    windows["truncated"][:] = windows["terminated"]
    windows["terminated"][:2, -1] = True
    windows["discount"][2:, -1] = 0
    del windows["bootstrap_values"]
    found = run(windows)
    assert not found.next_value[:, -1].any()
    assert found.value_target.isfinite().all()


@pytest.mark.parametrize(
    ("env", "step", "last_value"),
    [(1, SEQ_LEN - 1, None), (2, 3, None), (2, 3, torch.zeros(NUM_ENVS))],
    ids=["last_column", "truncation", "truncation_with_last_value"],
)
def test_missing_bootstrap_names_the_place(env, step, last_value):
    windows = make_windows()
    windows["truncated"][:] = False
    windows["terminated"][:] = False
    windows["terminated"][:, -1] = True
    if step == SEQ_LEN - 1:
        windows["terminated"][env, step] = False
    windows["truncated"][env, step] = True
    del windows["bootstrap_values"]
    with pytest.raises(SettingsError, match=f"missing for env {env}, step {step}, and needed in 1"):
        run({**windows, "last_value": last_value})


REFUSED = {
    "one_dimension": ({"value": torch.zeros(5)}, "value: found shape .5,., expected"),
    "broadcast": ({"reward": torch.zeros(NUM_ENVS, 1)}, r"reward: found shape \(4, 1\), expected"),
    "last_value_shape": (
        {"bootstrap_values": None, "last_value": torch.zeros(NUM_ENVS, 1)},
        r"last_value: found shape \(4, 1\), expected \[num_envs\]",
    ),
    "integer_reward": (
        {"reward": torch.zeros(NUM_ENVS, SEQ_LEN, dtype=torch.int64)},
        "reward: found dtype int64, expected float16 or",
    ),
    "float_flags": (
        {"terminated": torch.zeros(NUM_ENVS, SEQ_LEN)},
        "terminated: found dtype float32, expected bool or uint8",
    ),
    "both_bootstraps": ({"last_value": torch.zeros(NUM_ENVS)}, "found both, expected at most one"),
    "list": ({"value": [[1.0]]}, "value: found list, expected a NumPy array or a torch tensor"),
    "mixture": ({"value": np.zeros((NUM_ENVS, SEQ_LEN))}, "value numpy"),
    "devices": ({"value": torch.zeros((NUM_ENVS, SEQ_LEN), device="meta")}, "value meta"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_arguments_are_refused_with_what_was_expected(case):
    changed, message = REFUSED[case]
    with pytest.raises(SettingsError, match=message):
        run({**make_windows(), **changed})


@pytest.mark.parametrize("gamma", [-0.1, 1.5, NAN, True, "0.9"])
def test_gamma_out_of_range_is_refused(gamma):
    with pytest.raises(SettingsError, match="gamma: found"):
        vtrace(**make_windows(), gamma=gamma)


def pack(count=4, **changed):
    column = np.zeros(count, np.float32)
    given = dict.fromkeys(("log_ratio", "value", "reward", "discount"), column)
    given |= {"bootstrap_value": column[:1], "offsets": np.array([0, count])}
    return given | changed


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"reward": np.zeros(3, np.float32)}, r"reward: found shape \(3,\), expected \[N\]"),
        ({"value": np.zeros((4, 1), np.float32)}, "found shape"),
        ({"discount": np.zeros(4, np.float16)}, "discount: found dtype float16, expected float32"),
        ({"offsets": np.array([0, 3])}, "offsets: found 0 to 3 for 4 rows"),
        ({"offsets": np.array([1, 4])}, "offsets: found 1 to 4"),
        ({"offsets": np.array([0, 4], np.int32)}, "offsets: found int32"),
        ({"offsets": np.array([0, 2, 4])}, r"offsets: found int64, shape \(3,\)"),
        ({"offsets": np.array([], np.int64)}, r"offsets: found int64, shape \(0,\)"),
        (
            {"offsets": np.array([0, 5, 4]), "bootstrap_value": np.zeros(2, np.float32)},
            "never decreasing",
        ),
        ({"dtype": "float16"}, "dtype: found float16, expected float32 or float64"),
        ({"backend": "nmba"}, "did you mean numba"),
        ({"device": "tpu"}, "device: found 'tpu'"),
    ],
)
def test_packed_arguments_are_refused_with_what_was_expected(changed, message):
    with pytest.raises(SettingsError, match=message):
        vtrace_packed(**pack(**changed))


def test_packed_tensors_come_back_as_tensors():
    given = pack(value=np.ones(4, np.float32))
    tensors = {name: torch.tensor(column) for name, column in given.items()}
    found = vtrace_packed(**tensors, thresholds=Thresholds(c_bar=2.0))
    assert all(isinstance(column, torch.Tensor) for column in found)
    assert_same_bits(found, vtrace_packed(**given, thresholds=Thresholds(c_bar=2.0)))
    with pytest.raises(SettingsError, match="device: found 'cuda', expected 'cpu'"):
        vtrace_packed(**tensors, device="cuda")


def test_kernels_are_described_by_their_constants():
    assert describe_kernel("reference") == {"backend": "reference"}
    assert describe_kernel("numba")["block_rows"] > 0
    pytest.importorskip("triton", reason="Triton is not installed")
    described = describe_kernel("triton")
    assert described["block_times"][-1] == PIECE_ROWS
    assert described.keys() == {"backend", "block_times", "block_rows", "num_warps"}


@pytest.fixture
def no_cuda(monkeypatch):
    monkeypatch.setattr(backends, "_has_nvidia_driver", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def with_cuda(monkeypatch):
    monkeypatch.setattr(backends, "_has_nvidia_driver", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(backends, "_has_triton", lambda: True)


@pytest.mark.usefixtures("no_cuda")
def test_backend_without_cuda(monkeypatch):
    assert resolve_backend("auto") == ("numba", "cpu")
    assert resolve_backend("auto", "cpu") == ("numba", "cpu")
    assert resolve_backend("reference", "cpu") == ("reference", "cpu")
    monkeypatch.setattr(backends, "_has_triton", lambda: True)
    monkeypatch.setattr(backends, "_is_interpreting", lambda: True)
    assert resolve_backend("triton") == ("triton", "cpu")
    for asked in ("auto", "triton"):
        with pytest.raises(EngineError, match=r"device cuda: torch .* finds no CUDA device"):
            resolve_backend(asked, "cuda")
    monkeypatch.setattr(backends, "_is_interpreting", lambda: False)
    with pytest.raises(EngineError, match="TRITON_INTERPRET=1"):
        resolve_backend("triton", "cpu")


@pytest.mark.usefixtures("with_cuda")
def test_backend_with_cuda(monkeypatch):
    assert resolve_backend("auto") == ("triton", "cuda")
    assert resolve_backend("auto", "cpu") == ("numba", "cpu")
    assert resolve_backend("triton") == ("triton", "cuda")
    assert resolve_backend("triton", "cuda:1") == ("triton", "cuda:1")
    with pytest.raises(EngineError, match="device cuda:2: expected an index below 2"):
        resolve_backend("triton", "cuda:2")
    with pytest.raises(SettingsError, match="backend numba runs on the CPU only"):
        resolve_backend("numba", "cuda")
    monkeypatch.setattr(backends, "_has_triton", lambda: False)
    assert resolve_backend("auto") == ("numba", "cpu")
    with pytest.raises(EngineError, match="triton is not installed"):
        resolve_backend("auto", "cuda")
