"""The numba backend against the reference."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from vtaudit.kernels import VTrace, numba_scan, vtrace_packed
from vtrace_definition import (
    THRESHOLDS,
    assert_close,
    assert_same_bits,
    make_rows,
    make_zero_factor_rows,
)

BLOCK = numba_scan.BLOCK_ROWS


def scan(rows, thresholds=THRESHOLDS["ones"], **options):
    return vtrace_packed(*rows, thresholds=thresholds, backend="numba", **options)


def specify(rows, thresholds=THRESHOLDS["ones"], dtype="float64"):
    rounded = (rows[0].astype(np.float32), *rows[1:])
    return vtrace_packed(*rounded, thresholds=thresholds, backend="reference", dtype=dtype)


@pytest.fixture
def poisoned(monkeypatch):
    """Fill results with NaN before the scan writes them."""
    allocate = numba_scan._allocate

    def allocate_nan(*arguments):
        columns = allocate(*arguments)
        for column in columns:
            column.fill(np.nan)
        return columns

    monkeypatch.setattr(numba_scan, "_allocate", allocate_nan)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("name", THRESHOLDS)
@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, BLOCK - 1, BLOCK, BLOCK + 1, 1000])
def test_numba_equals_reference(length, name):
    rows = make_rows([length, 3, length], seed=length)
    assert_close(scan(rows, THRESHOLDS[name]), specify(rows, THRESHOLDS[name]))


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(
    "lengths",
    [[], [0, 0], [5000], [5000, *[1, 2, 3] * 50], [0, 7, 0, 0, 513, 0]],
    ids=["no_segment", "empty", "huge", "huge_and_tiny", "empty_among_others"],
)
def test_numba_equals_reference_for_ragged_segments(lengths):
    rows = make_rows(lengths)
    assert_close(scan(rows), specify(rows))


@pytest.mark.parametrize("out", ["float32", "float64"])
@pytest.mark.parametrize("given", [np.float32, np.float64])
def test_numba_equals_reference_for_each_dtype(given, out):
    rows = make_rows([300, 20], given)
    expected = vtrace_packed(*rows, backend="reference", dtype=out)
    assert_close(scan(rows, dtype=out), expected)
    mixed = (rows[0], rows[1].astype(np.float64), *rows[2:])
    assert_close(scan(mixed, dtype=out), vtrace_packed(*mixed, backend="reference", dtype=out))


@pytest.mark.parametrize("log_ratio", [200.0, -200.0, 1000.0, -1000.0])
def test_numba_equals_reference_for_extreme_ratios(log_ratio):
    rows = make_rows([40])
    rows[0][::3] = log_ratio
    for name in THRESHOLDS:
        assert_close(scan(rows, THRESHOLDS[name]), specify(rows, THRESHOLDS[name], "float32"))


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("column", [0, 1, 2, 4], ids=["log_ratio", "value", "reward", "bootstrap"])
def test_poisoned_segment_leaves_the_others_untouched(column, poison):
    rows = make_rows([70, 30, 70], zero_discounts=False)
    before = scan(rows)
    rows[column][1 if column == 4 else slice(70, 100)] = poison
    after = scan(rows)
    assert_same_bits(after, before, slice(0, 70))
    assert_same_bits(after, before, slice(100, 170))
    assert_close(after, specify(rows))


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_nothing_passes_a_factor_of_zero(poison):
    rows = make_zero_factor_rows(poison)
    for name in ("ones", "no_trace"):
        found = scan(rows, THRESHOLDS[name])
        assert_close(found, specify(rows, THRESHOLDS[name]))
        assert all(np.isfinite(column).all() for column in found._replace(log_ratio=found.rho))
    rows[0][1] = np.nan  # lambda 0: a NaN ratio weighs, but carries nothing
    assert scan(rows, THRESHOLDS["no_trace"]).trace_length.tolist() == [1.0] * 8


def test_nan_reaches_every_earlier_row_of_its_segment():
    rows = make_rows([2000], zero_discounts=False)
    rows[2][-1] = np.nan
    assert np.isnan(scan(rows).value_target).all()


def test_two_runs_have_the_same_bits():
    rows = make_rows([1000, 3])
    assert_same_bits(scan(rows), scan(rows))


def test_segment_has_the_same_bits_alone_and_among_others():
    rows = make_rows([700, 5, 900])
    alone = (*(column[:700] for column in rows[:4]), rows[4][:1], np.array([0, 700]))
    among = scan(rows)
    assert_same_bits(scan(alone), VTrace(*(column[:700] for column in among)))


def test_arrays_of_any_layout_give_the_same_targets():
    rows = make_rows([50, 20])
    expected = scan(rows)
    strided = tuple(np.repeat(column, 2)[::2] for column in rows[:5])
    backward = tuple(column[::-1].copy()[::-1] for column in rows[:5])
    swapped = tuple(column.astype(column.dtype.newbyteorder(">")) for column in rows[:5])
    for columns in (strided, backward, swapped):
        assert_same_bits(scan((*columns, rows[5])), expected)
    for column in rows:
        column.flags.writeable = False
    assert_same_bits(scan(rows), expected)


def test_threads_share_the_compiled_scan():
    rows = make_rows([400] * 20)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(scan, [rows] * 8):
            assert_same_bits(found, scan(rows))


def test_scan_runs_without_a_cache_directory(monkeypatch):
    caching = pytest.importorskip("numba.core.caching")
    for cache in (caching.CompileResultCacheImpl, caching.CodeLibraryCacheImpl):
        monkeypatch.setattr(cache, "_locator_classes", [])
    numba_scan._compile_scan.cache_clear()
    rows = make_rows([30])
    assert_close(scan(rows), specify(rows))
    numba_scan._compile_scan.cache_clear()


def test_numba_on_arrays_loads_no_torch():
    code = (
        "import sys, numpy as np; from vtaudit.kernels import vtrace_packed, resolve_backend;"
        "a = np.zeros(3, np.float32);"
        "assert not {'torch', 'triton', 'numba'} & set(sys.modules);"
        "assert resolve_backend('numba') == ('numba', 'cpu');"
        "vtrace_packed(a, a, a, a, a[:1], np.array([0, 3]), backend='numba');"
        "assert not {'torch', 'triton'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
