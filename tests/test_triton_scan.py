"""The Triton backend against numba: in the interpreter, or on a CUDA device where there is one.

The interpreter takes about a millisecond for each scanned row: there, most tests shrink the blocks.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from vtaudit.kernels import Thresholds, VTrace, has_cuda, vtrace_packed
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
triton_scan = pytest.importorskip("vtaudit.kernels.triton_scan")

BLOCK_TIMES, BLOCK_ROWS = triton_scan.BLOCK_TIMES, triton_scan.BLOCK_ROWS
SMALL_BLOCK = 32  # of the fixture small_blocks
LENGTHS = [1, 2, SMALL_BLOCK - 1, SMALL_BLOCK, SMALL_BLOCK + 1, 63, 64, 65, 1000]


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request, small_blocks):
    """Where Triton runs."""
    if request.param == "cuda" and not has_cuda():
        pytest.skip("no CUDA device")
    if request.param == "cpu" and has_cuda():
        pytest.skip("Triton compiles for the CUDA device, so it does not interpret")
    return request.param


@pytest.fixture
def poisoned(monkeypatch):
    """Fill results with NaN before the kernel writes them."""

    def empty_nan(shape, *, dtype, **options):
        nothing = math.nan if dtype.is_floating_point else 0
        return torch.full(shape, nothing, dtype=dtype, **options)

    monkeypatch.setattr(torch, "empty", empty_nan)


def scan(rows, device, thresholds=THRESHOLDS["ones"], **options):
    return vtrace_packed(*rows, thresholds=thresholds, backend="triton", device=device, **options)


def specify(rows, thresholds=THRESHOLDS["ones"], dtype="float64"):
    rounded = (rows[0].astype(np.float32), *rows[1:])
    return vtrace_packed(*rounded, thresholds=thresholds, backend="numba", dtype=dtype)


@pytest.mark.usefixtures("poisoned")
def test_triton_equals_numba_with_the_real_blocks(device, monkeypatch):
    monkeypatch.setattr(triton_scan, "BLOCK_TIMES", BLOCK_TIMES)
    monkeypatch.setattr(triton_scan, "BLOCK_ROWS", BLOCK_ROWS)
    rows = make_rows([time + more for time in BLOCK_TIMES for more in (-1, 0, 1)])
    assert_close(scan(rows, device), specify(rows))


def test_overflowing_gates_leave_the_same_rows_finite(device):
    rows = make_rows([90], zero_discounts=False)
    rows[0][:] = 200.0
    rows[0][50] = -np.inf
    rows[2][51:], rows[1][51:], rows[4][:] = 0, 0, 0
    unclipped = Thresholds(math.inf, math.inf, math.inf)
    found, expected = scan(rows, device, unclipped), specify(rows, unclipped, "float32")
    for name in VTrace._fields:
        finite = np.isfinite(getattr(expected, name))
        assert (np.isfinite(getattr(found, name)) == finite).all(), name
    assert np.isfinite(found.value_target[50:]).all()


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_nothing_passes_a_factor_of_zero(poison, device):
    rows = make_zero_factor_rows(poison)
    for name in ("ones", "no_trace"):
        found = scan(rows, device, THRESHOLDS[name])
        assert_close(found, specify(rows, THRESHOLDS[name]))
        assert all(np.isfinite(column).all() for column in found._replace(log_ratio=found.rho))
    rows[0][1] = np.nan  # lambda 0: a NaN ratio weighs, but carries nothing
    assert scan(rows, device, THRESHOLDS["no_trace"]).trace_length.tolist() == [1.0] * 8


def test_nan_reaches_every_earlier_row_though_the_gates_underflow(device):
    rows = make_rows([200], zero_discounts=False)
    rows[0][:] = -30.0
    rows[2][-1] = np.nan
    found = scan(rows, device)
    assert np.isnan(found.value_target).all()
    assert_close(found, specify(rows))


def test_nan_stays_behind_a_zero_discount_in_its_block(device):
    rows = make_rows([30], zero_discounts=False)
    rows[3][14] = 0
    before = scan(rows, device)
    rows[1][15:] = np.nan
    after = scan(rows, device)
    assert_same_bits(after, before, slice(0, 15))
    assert np.isnan(after.value_target[15:]).all()


def test_two_runs_have_the_same_bits(device):
    rows = make_rows([100, 3])
    assert_same_bits(scan(rows, device), scan(rows, device))


def test_segment_has_the_same_bits_alone_and_among_others(device):
    rows = make_rows([100, 5, 40, 33])
    alone = (*(column[105:145] for column in rows[:4]), rows[4][2:3], np.array([0, 40]))
    among = scan(rows, device)
    assert_same_bits(scan(alone, device), VTrace(*(column[105:145] for column in among)))


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("batch_rows", [1, 10, 33, 1000])
def test_arrays_in_batches_give_the_bits_of_tensors(batch_rows, device, monkeypatch):
    batches = pytest.importorskip("vtaudit.kernels.batches")
    monkeypatch.setattr(batches, "BATCH_ROWS", batch_rows)
    rows = make_rows([7, 0, 40, 1, 0, 0, 12, 3])
    tensors = tuple(torch.tensor(column, device=device) for column in rows)
    found = scan(rows, device)
    assert_same_bits(found, vtrace_packed(*tensors, backend="triton"))


def test_arrays_of_any_layout_are_sent(device):
    rows = make_rows([20, 9])
    expected = scan(rows, device)
    for change in (
        lambda column: np.repeat(column, 2)[::2],
        lambda column: column[::-1].copy()[::-1],
        lambda column: column.astype(column.dtype.newbyteorder(">")),
    ):
        changed = (*(change(column) for column in rows[:5]), rows[5])
        for column in changed[:5]:
            column.flags.writeable = False
        assert_same_bits(scan(changed, device), expected)


@pytest.mark.parametrize(("lone", "parallel"), [(0, 0), (100, 0), (100, 10**9), (10**9, 50)])
def test_arrays_together_and_alone_are_sent_whole(lone, parallel, device, monkeypatch):
    transfers = pytest.importorskip("vtaudit.kernels.transfers")
    monkeypatch.setattr(transfers, "LONE_BYTES", lone)
    monkeypatch.setattr(transfers, "PARALLEL_BYTES", parallel)
    given = [
        np.arange(9.0),
        np.zeros(0, np.float32),
        np.array([True, False, True]),
        np.arange(40, dtype=np.int64)[::-2],
        np.arange(24, dtype=">f4").reshape(4, 6),
    ]
    for found, expected in zip(transfers.send(given, device), given, strict=True):
        assert found.device.type == device
        np.testing.assert_array_equal(to_numpy(found), expected)


def test_batches_end_with_segments_and_hold_all(monkeypatch):
    batches = pytest.importorskip("vtaudit.kernels.batches")
    monkeypatch.setattr(batches, "BATCH_ROWS", 10)
    offsets = np.cumsum([0, 4, 6, 0, 25, 0, 0, 3, 3])
    assert list(batches.split_segments(offsets)) == [(0, 2), (2, 4), (4, 8)]
    assert list(batches.split_segments(np.array([0]))) == []
    assert list(batches.split_segments(np.array([0, 0, 0]))) == [(0, 2)]


@pytest.mark.parametrize("backend", ["numba", "triton"])
def test_only_outputs_asked_for_are_there(backend, device):
    if backend == "numba" and device != "cpu":
        pytest.skip("numba runs on the CPU only")
    rows = make_rows([20, 9])
    everything = vtrace_packed(*rows, backend=backend, device=device)
    for names in (["advantage"], ["value_target", "trace_length"], ["rho", "log_ratio"], []):
        found = vtrace_packed(*rows, backend=backend, device=device, outputs=names)
        for name, column in found._asdict().items():
            if name in names:
                assert column.tobytes() == getattr(everything, name).tobytes()
            else:
                assert column is None


def test_tensors_stay_on_their_device(device):
    rows = make_rows([20, 9])
    tensors = tuple(torch.tensor(column, device=device) for column in rows)
    found = vtrace_packed(*tensors, backend="triton")
    assert {column.device.type for column in found} == {device}
    assert_close(found, specify(rows))


@pytest.mark.gpu
@pytest.mark.skipif(not has_cuda(), reason="no CUDA device")
@pytest.mark.parametrize(
    "lengths", [[513] * 4096, [100_003] * 3, [1] * 50_000], ids=["wide", "long", "tiny"]
)
def test_large_batches_on_cuda(lengths):
    rows = make_rows(lengths)
    assert_close(scan(rows, "cuda"), specify(rows))
    assert_same_bits(scan(rows, "cuda"), scan(rows, "cuda"))
