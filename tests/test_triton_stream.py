"""The stream kernel: `vtrace` on a device, and `vtrace_packed` with as_stream, against numba.

In the interpreter chunks are small, and groups of panels and trees are forced.
"""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest

from stream_definition import define_stream
from vtaudit.errors import SettingsError
from vtaudit.kernels import Thresholds, VTrace, has_cuda, vtrace, vtrace_packed
from vtrace_definition import (
    THRESHOLDS,
    assert_close,
    assert_same_bits,
    make_rows,
    make_zero_factor_rows,
    to_numpy,
)

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="Triton is not installed")
launches = pytest.importorskip("vtaudit.kernels.launches")
words = pytest.importorskip("vtaudit.kernels.triton_words")
workspaces = pytest.importorskip("vtaudit.kernels.workspaces")

on_cuda = pytest.mark.skipif(not has_cuda(), reason="no CUDA device")
CHUNK = launches.CHUNK_ROWS if has_cuda() else 32  # of the fixture small_blocks
TREE_ROWS = words.TREE_WIDTH * CHUNK


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request, small_blocks):
    """Where Triton runs."""
    if request.param == "cuda" and not has_cuda():
        pytest.skip("no CUDA device")
    if request.param == "cpu" and has_cuda():
        pytest.skip("Triton compiles for the CUDA device, so it does not interpret")
    return request.param


def use_carry(monkeypatch, kind):
    """Make launches use one way to pass x on, whatever their shape."""
    monkeypatch.setattr(launches, "CHAIN_PANELS", {"chain": 2}.get(kind, 10**9))
    monkeypatch.setattr(launches, "STREAM_PANELS", 3)
    monkeypatch.setattr(launches, "CHAIN_GROUP", 2)
    monkeypatch.setattr(launches, "TREE_GROUP", 2)
    monkeypatch.setattr(launches, "LONG_WINDOW", 3)
    monkeypatch.setattr(launches, "TURNS", 2)
    monkeypatch.setattr(launches, "MAX_SHARE_AHEAD", 100)
    launches.launch_windows.cache_clear()


@pytest.fixture(params=["chain", "tree"])
def kind(request, monkeypatch, small_blocks):
    """How chunks pass x on."""
    use_carry(monkeypatch, request.param)
    return request.param


@pytest.fixture
def poisoned(monkeypatch):
    """Fill results with NaN before the kernel writes them."""

    def empty_nan(like, dtype):
        return torch.full_like(like, math.nan, dtype=dtype)

    monkeypatch.setattr(torch, "empty_like", empty_nan)


def scan(rows, device, thresholds=THRESHOLDS["ones"], **options):
    return vtrace_packed(
        *rows, thresholds=thresholds, backend="triton", device=device, as_stream=True, **options
    )


def specify(rows, thresholds=THRESHOLDS["ones"], dtype="float64"):
    rounded = (rows[0].astype(np.float32), *rows[1:])
    return vtrace_packed(*rounded, thresholds=thresholds, backend="numba", dtype=dtype)


@pytest.mark.parametrize("length", [TREE_ROWS - 1, TREE_ROWS + 1, 2 * TREE_ROWS + CHUNK])
def test_trees_pass_undamped_traces_from_group_to_group(length, device, monkeypatch):
    use_carry(monkeypatch, "tree")
    rows = make_rows([length], zero_discounts=False)
    rows[0][:], rows[3][:] = 1, 1  # on-policy, without discount
    rows[2][:], rows[4][:] = 2.0**-10, 0.5
    found = scan(rows, device)
    np.testing.assert_array_equal(found.trace_length, np.arange(length, 0, -1))
    # values telescope: each target is the sum of the rewards to come, and the bootstrap
    expected = 0.5 + 2.0**-10 * np.arange(length, 0, -1)
    np.testing.assert_allclose(found.value_target, expected, rtol=1e-4)


@pytest.mark.parametrize("chunks", [15, 16, 17, 39])
def test_trees_pass_undamped_traces_over_many_groups(chunks, device, monkeypatch):
    if device != "cpu":
        pytest.skip("a device compiles groups of 32 chunks")
    use_carry(monkeypatch, "tree")
    monkeypatch.setattr(words, "WIDTH", words.tl.constexpr(4))
    monkeypatch.setattr(workspaces, "TREE_WIDTH", 4)
    length = chunks * CHUNK - 3
    rows = make_rows([length], zero_discounts=False)
    rows[0][:], rows[3][:] = 1, 1
    rows[3][length // 3] = 0  # a cut, far from the first row
    rows[2][:], rows[4][:] = 2.0**-10, 0.5
    found = scan(rows, device)
    left = np.concatenate(
        [np.arange(length // 3 + 1, 0, -1), np.arange(length - length // 3 - 1, 0, -1)]
    )
    np.testing.assert_array_equal(found.trace_length, left)
    bootstrap = np.where(np.arange(length) > length // 3, 0.5, 0)
    np.testing.assert_allclose(found.value_target, bootstrap + 2.0**-10 * left, 1e-4, 1e-5)
    assert_same_bits(scan(rows, device), found)


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_poison_reaches_every_earlier_row_though_the_gates_underflow(poison, kind, device):
    rows = make_rows([5 * CHUNK], zero_discounts=False)
    rows[0][:] = -30.0
    rows[2][-3] = poison
    rows[3][CHUNK] = 0
    found, expected = scan(rows, device), specify(rows, dtype="float32")
    np.testing.assert_array_equal(
        np.isfinite(found.value_target), np.isfinite(expected.value_target)
    )
    assert np.isfinite(expected.value_target[: CHUNK + 1]).all()
    assert not np.isfinite(expected.value_target[CHUNK + 1 : -2]).any()


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_nothing_passes_a_factor_of_zero(poison, device):
    rows = make_zero_factor_rows(poison)
    for given in (rows, (*(column.astype(np.float32) for column in rows[:5]), rows[5])):
        for name in ("ones", "no_trace"):
            found = scan(given, device, THRESHOLDS[name])
            assert_close(found, specify(given, THRESHOLDS[name]))


def make_windows(num_envs, seq_len, seed=0):
    """Return NumPy arguments of vtrace; NaN where no bootstrap is needed."""
    random = np.random.default_rng(seed)
    shape = (num_envs, seq_len)
    ends = random.choice(np.array([0, 1, 2, 3], np.uint8), shape, p=[0.85, 0.05, 0.05, 0.05])
    is_needed = (ends & 2) != 0
    is_needed[:, -1] = True
    is_needed &= (ends & 1) == 0
    columns = {
        name: random.uniform(-1.5, 1.5, shape).astype(np.float32)
        for name in ("target_log_prob", "behavior_log_prob", "value", "reward")
    }
    columns["bootstrap_values"] = np.where(is_needed, columns["value"] + 1, np.nan)
    columns["bootstrap_values"] = columns["bootstrap_values"].astype(np.float32)
    return columns, ends


SHAPES = [(1, 1), (5, 3), (3, 7), (5, 8), (7, CHUNK), (1, CHUNK + 1), (2, 300), (5, 3 * CHUNK)]


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_windows_equal_numba(shape, kind, device):
    columns, ends = make_windows(*shape)
    flags = {"terminated": (ends & 1) != 0, "truncated": ends & 2}
    expected = vtrace(**columns, **flags, gamma=0.97, backend="numba")
    for given in (flags, {"ends": ends}):
        tensors = {
            name: torch.tensor(column, device=device)
            for name, column in {**columns, **given}.items()
        }
        assert_close(vtrace(**tensors, gamma=0.97, backend="triton"), expected)


def test_only_outputs_asked_for_are_there(device):
    columns, ends = make_windows(3, 40)
    tensors = {name: torch.tensor(c, device=device) for name, c in columns.items()}
    tensors["ends"] = torch.tensor(ends, device=device)
    everything = vtrace(**tensors, gamma=0.9, backend="triton")
    for names in (["advantage"], ["value_target", "trace_length"], ["rho", "log_ratio"]):
        found = vtrace(**tensors, gamma=0.9, backend="triton", outputs=names)
        for name, column in zip(VTrace._fields, found, strict=True):
            if name in names:
                assert torch.equal(column, getattr(everything, name))
            else:
                assert column is None


@pytest.mark.parametrize("backend", ["numba", "triton"])
def test_clip_counts_are_added(backend, device):
    if backend == "numba" and device != "cpu":
        pytest.skip("numba runs on the CPU only")
    rows = make_rows([3 * CHUNK, 10])
    thresholds = Thresholds(1.5, 1.0, 2.0)
    wide = rows[0].astype(np.float64)
    expected = [100 + int((wide > math.log(bar)).sum()) for bar in (1.5, 1.0, 2.0)]
    for as_stream in (False, True):
        counts = np.full(3, 100, np.int64)
        vtrace_packed(
            *rows,
            thresholds=thresholds,
            backend=backend,
            device=device,
            as_stream=as_stream,
            clip_counts=counts,
        )
        assert counts.tolist() == expected


def test_clip_counts_add_up_call_after_call(device):
    columns, ends = make_windows(9, CHUNK + 3)
    tensors = {name: torch.tensor(c, device=device) for name, c in columns.items()}
    tensors["ends"] = torch.tensor(ends, device=device)
    log_ratio = columns["target_log_prob"].astype(np.float64) - columns["behavior_log_prob"]
    bars = {"rho_bar": 1.5, "c_bar": 1.0, "pg_rho_bar": 2.0}
    expected = [int((log_ratio > math.log(bar)).sum()) for bar in bars.values()]
    counts = torch.zeros((3, 2), dtype=torch.int64, device=device)[:, 0]
    for calls in (1, 2, 3):
        vtrace(**tensors, gamma=0.9, **bars, backend="triton", clip_counts=counts)
        assert counts.tolist() == [calls * count for count in expected]


@pytest.mark.parametrize(
    ("shape", "grid", "turns"),
    [
        ((65536, 1024), (65536, 1, 1), 1),
        ((4096, 2048), (410, 4, 10), 1),  # ten groups, 4 panels too many
        ((1024, 65536), (512, 128 + 15, 2), 16),
        ((600, 1536), (600, 3, 1), 1),
        ((40, 65536), (20, 256, 2), 1),  # a tree
        ((1, 2**20), (4096, 1, 1), 1),
        ((16384, 1000), (500, 1 + 32, 2), 1),  # 1000 panels that look ahead
    ],
)
def test_panels_run_in_groups_and_long_windows_in_turns(shape, grid, turns):
    launches.launch_windows.cache_clear()
    launch = launches.launch_windows(*shape)
    assert (launch.grid, launch.turns) == (grid, turns)


def test_discount_and_last_value_are_read(device):
    columns, _ = make_windows(4, 20)
    del columns["bootstrap_values"]
    columns["terminated"] = np.random.default_rng(1).random((4, 20)) < 0.1
    columns["discount"] = np.where(columns["value"] > 1, 0, 0.9).astype(np.float32)
    columns["last_value"] = np.arange(4, dtype=np.float32)
    expected = vtrace(**columns, gamma=0.97, backend="numba")
    tensors = {name: torch.tensor(column, device=device) for name, column in columns.items()}
    assert_close(vtrace(**tensors, gamma=0.97, backend="triton"), expected)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"outputs": ["advantages"]}, "outputs: found 'advantages'.*did you mean advantage"),
        ({"clip_counts": np.zeros(3)}, "clip_counts: found float64"),
        ({"clip_counts": np.zeros(2, np.int64)}, r"clip_counts: found int64, shape \(2,\)"),
        ({"terminated": None}, "found none; expected terminated"),
        ({"ends": np.zeros((2, 3), np.uint8)}, "expected terminated, or terminated and truncated"),
    ],
)
def test_arguments_are_refused(changed, message):
    columns, ends = make_windows(2, 3)
    with pytest.raises(SettingsError, match=message):
        vtrace(**{**columns, "terminated": ends > 0, **changed}, gamma=0.9, backend="numba")


def test_ends_and_flags_are_the_same_on_a_host():
    columns, ends = make_windows(5, 9)
    flags = {"terminated": (ends & 1) != 0, "truncated": ends & 2}
    expected = vtrace(**columns, **flags, gamma=0.9, backend="numba")
    assert_same_bits(vtrace(**columns, ends=ends, gamma=0.9, backend="numba"), expected)


def make_stream(num_envs, seq_len, center=0.0, seed=0):
    """Return vtrace's arguments on a CUDA device: 0.2 % ends, log-ratios in [-3, 3]."""
    random = torch.Generator("cuda").manual_seed(seed)
    shape = (num_envs, seq_len)

    def draw(kind=torch.randn):
        return kind(shape, generator=random, device="cuda")

    behavior = -draw().abs()
    ends = draw(torch.rand)
    return {
        "target_log_prob": behavior + 6 * draw(torch.rand) - 3,
        "behavior_log_prob": behavior,
        "value": center + draw(),
        "reward": draw(),
        "ends": (ends < 0.001).to(torch.uint8) + 2 * (ends > 0.999).to(torch.uint8),
        "bootstrap_values": center + draw(),
    }


def define_windows(windows, gamma):
    """Return `define_stream` of windows; gamma as float32, as the kernel takes it."""
    ends, shape = windows["ends"], windows["value"].shape
    discount = torch.where(ends == 1, 0.0, float(np.float32(gamma)))
    is_end = ends == 2
    is_end[:, -1] = True
    log_ratio = windows["target_log_prob"] - windows["behavior_log_prob"]
    columns = (windows["value"], windows["reward"], discount, is_end, windows["bootstrap_values"])
    found = define_stream(log_ratio.reshape(-1), *(column.reshape(-1) for column in columns))
    return [column.reshape(shape) for column in found]


GPU_SHAPES = [(4096, 128), (4096, 1000), (4096, 2048), (16, 65536), (3, 1_000_001), (8, 2**20)]


@pytest.mark.gpu
@on_cuda
@pytest.mark.parametrize("center", [0.0, 100.0])
@pytest.mark.parametrize("shape", GPU_SHAPES, ids=str)
def test_error_is_bounded_element_by_element(shape, center):
    windows = make_stream(*shape, center)
    found = vtrace(**windows, gamma=0.99, outputs=["value_target", "advantage"])
    target, advantage, target_bound, advantage_bound = define_windows(windows, 0.99)
    for actual, expected, bound in (
        (found.value_target, target, target_bound),
        (found.advantage, advantage, advantage_bound),
    ):
        assert float(((actual - expected).abs() / bound).max()) <= 8 * 2**-24


@pytest.mark.gpu
@on_cuda
@pytest.mark.parametrize("shape", [(1024, 8192), (16, 65536), (1, 2**23)], ids=str)
def test_a_thousand_runs_have_the_same_bits(shape):
    windows = make_stream(*shape)
    names = ["value_target", "advantage"]
    first = vtrace(**windows, gamma=0.99, outputs=names)
    differences = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(1000):
        again = vtrace(**windows, gamma=0.99, outputs=names)
        for a, b in zip(first[:2], again[:2], strict=True):
            differences += (a.view(torch.int32) != b.view(torch.int32)).sum()
    assert int(differences) == 0


@pytest.mark.gpu
@on_cuda
@pytest.mark.parametrize("shape", [(1024, 8192), (16, 65536), (1, 2**23)], ids=str)
def test_graphs_and_streams_run_the_kernel(shape):
    windows = make_stream(*shape)
    expected = vtrace(**windows, gamma=0.99)
    others = [torch.cuda.Stream() for _ in range(4)]
    torch.cuda.synchronize()
    found = []
    for other in others * 5:
        with torch.cuda.stream(other):
            found.append(vtrace(**windows, gamma=0.99))
    torch.cuda.synchronize()
    for result in found:
        assert_same_bits(result, expected)
    graph = torch.cuda.CUDAGraph()
    counts = torch.zeros(3, dtype=torch.int64, device="cuda")
    with torch.cuda.graph(graph):
        captured = vtrace(**windows, gamma=0.99, clip_counts=counts)
    clipped = int((expected.log_ratio > 0).sum())
    for replays in (1, 2, 3):
        for column in captured[:2]:
            column.fill_(math.nan)
        graph.replay()
        torch.cuda.synchronize()
        assert_same_bits(captured, expected)
        assert counts.tolist() == [replays * clipped] * 3


@pytest.mark.gpu
@on_cuda
def test_calls_do_not_synchronize():
    windows = make_stream(4096, 128)
    vtrace(**windows, gamma=0.99)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a prototype
        torch.cuda.set_sync_debug_mode("error")
        try:
            vtrace(**windows, gamma=0.99)
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@on_cuda
@pytest.mark.parametrize("log_prob", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_log_probs_of_any_width(log_prob):
    windows = make_stream(300, 700)
    for name in ("target_log_prob", "behavior_log_prob"):
        windows[name] = windows[name].to(log_prob)
    host = {name: column.cpu() for name, column in windows.items()}
    assert_close(vtrace(**windows, gamma=0.99), vtrace(**host, gamma=0.99))


@pytest.mark.gpu
@on_cuda
@pytest.mark.parametrize(
    "lengths",
    [[513] * 4096, [100_003] * 3, [1] * 50_000, [20] * 50_000, [2_000_000]],
    ids=["wide", "long", "tiny", "short", "one"],
)
def test_large_streams_on_cuda(lengths):
    rows = make_rows(lengths)
    assert_close(scan(rows, "cuda"), specify(rows), atol=2e-6)
    assert_same_bits(scan(rows, "cuda"), scan(rows, "cuda"))


@pytest.mark.gpu
@on_cuda
def test_more_rows_than_an_int32_counts():
    count = 2**31 + 12_345
    if torch.cuda.mem_get_info()[0] < 40 * count:
        pytest.skip("needs 86 GB of device memory")
    tail = make_stream(1, 100_000)
    windows = {}
    for name, column in tail.items():
        windows[name] = torch.zeros((1, count), dtype=column.dtype, device="cuda")
        windows[name][:, -column.shape[1] :] = column
    windows["ends"][:, -tail["value"].shape[1] - 1] = 1
    names = ["value_target", "advantage"]
    found = vtrace(**windows, gamma=0.99, outputs=names)
    expected = vtrace(**tail, gamma=0.99, outputs=names)
    for a, b in zip(found[:2], expected[:2], strict=True):
        kept = a[:, -b.shape[1] :]
        np.testing.assert_allclose(to_numpy(kept), to_numpy(b), rtol=1e-5, atol=1e-5)
        assert not a[:, : -b.shape[1] - 1].any()
