"""The Triton kernels against numba: segments apart, or one stream of chunks in chains or trees.

In the interpreter, which takes about a millisecond for each scanned row, blocks are small.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from vtaudit.kernels import has_cuda, vtrace_packed
from vtrace_definition import THRESHOLDS, assert_close, assert_same_bits, make_rows

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="Triton is not installed")
launches = pytest.importorskip("vtaudit.kernels.launches")

CHUNK = launches.CHUNK_ROWS if has_cuda() else 32  # of the fixture small_blocks
LENGTHS = [1, 2, 3, CHUNK - 1, CHUNK, CHUNK + 1, 63, 64, 65, 7 * CHUNK + 5, 1000]


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request, small_blocks):
    """Where Triton runs."""
    if request.param == "cuda" and not has_cuda():
        pytest.skip("no CUDA device")
    if request.param == "cpu" and has_cuda():
        pytest.skip("Triton compiles for the CUDA device, so it does not interpret")
    return request.param


@pytest.fixture(params=["segments", "chain", "tree"])
def scan(request, device, monkeypatch):
    """How rows are scanned: vtrace_packed on the device."""
    monkeypatch.setattr(launches, "CHAIN_PANELS", {"chain": 2}.get(request.param, 10**9))
    monkeypatch.setattr(launches, "STREAM_PANELS", 3)
    monkeypatch.setattr(launches, "CHAIN_GROUP", 2)
    monkeypatch.setattr(launches, "TREE_GROUP", 2)
    monkeypatch.setattr(launches, "LONG_WINDOW", 3)
    monkeypatch.setattr(launches, "TURNS", 2)
    monkeypatch.setattr(launches, "MAX_SHARE_AHEAD", 100)

    def scan(rows, thresholds=THRESHOLDS["ones"], **options):
        is_stream = request.param != "segments"
        options = {"backend": "triton", "device": device, "as_stream": is_stream, **options}
        return vtrace_packed(*rows, thresholds=thresholds, **options)

    return scan


@pytest.fixture
def poisoned(monkeypatch):
    """Fill results with NaN before a kernel writes them."""

    def empty_nan(shape, *, dtype, **options):
        nothing = math.nan if dtype.is_floating_point else 0
        return torch.full(shape, nothing, dtype=dtype, **options)

    def empty_like_nan(like, dtype):
        return torch.full_like(like, math.nan, dtype=dtype)

    monkeypatch.setattr(torch, "empty", empty_nan)
    monkeypatch.setattr(torch, "empty_like", empty_like_nan)


def specify(rows, thresholds=THRESHOLDS["ones"], dtype="float64"):
    rounded = (rows[0].astype(np.float32), *rows[1:])
    return vtrace_packed(*rounded, thresholds=thresholds, backend="numba", dtype=dtype)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("length", LENGTHS)
def test_triton_equals_numba(length, scan):
    rows = make_rows([length], seed=length)
    assert_close(scan(rows), specify(rows))


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("name", THRESHOLDS)
def test_triton_equals_numba_for_each_threshold(name, scan):
    rows = make_rows([2 * CHUNK + 6, 5], seed=1)
    assert_close(scan(rows, THRESHOLDS[name]), specify(rows, THRESHOLDS[name]))


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(
    "lengths",
    [
        [],
        [0, 0],
        [9 * CHUNK, *[1, 2, 3] * 20],
        [0, 7, 0, 0, 2 * CHUNK + 1, 0],
        [8, 9, 32, 33],
        [CHUNK] * 4,
    ],
    ids=["no_segment", "empty", "huge_and_tiny", "empty_among_others", "edges", "chunks"],
)
def test_triton_equals_numba_for_ragged_segments(lengths, scan):
    rows = make_rows(lengths)
    assert_close(scan(rows), specify(rows))


@pytest.mark.parametrize("out", ["float32", "float64"])
@pytest.mark.parametrize("given", [np.float32, np.float64])
def test_triton_equals_numba_for_each_dtype(given, out, scan):
    rows = make_rows([2 * CHUNK], given)
    found = scan(rows, dtype=out)
    assert {column.dtype.name for column in found} == {out}
    assert_close(found, vtrace_packed(*rows, backend="numba", dtype=out))


@pytest.mark.parametrize("log_ratio", [200.0, -200.0, 1000.0, -1000.0])
def test_triton_equals_numba_for_extreme_ratios(log_ratio, scan):
    rows = make_rows([40])
    rows[0][::3] = log_ratio
    for name in ("apart", "open"):
        expected = specify(rows, THRESHOLDS[name], "float32")
        assert_close(scan(rows, THRESHOLDS[name]), expected)


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("column", [0, 1, 2, 4], ids=["log_ratio", "value", "reward", "bootstrap"])
def test_poisoned_segment_leaves_the_others_untouched(column, poison, scan):
    rows = make_rows([CHUNK // 2, 6, CHUNK, 3 * CHUNK, 7], zero_discounts=False)
    start, stop = rows[5][2:4]
    before = scan(rows)
    rows[column][2 if column == 4 else slice(start, stop)] = poison
    after = scan(rows)
    assert_same_bits(after, before, slice(0, start))
    assert_same_bits(after, before, slice(stop, None))
    assert_close(after, specify(rows))
