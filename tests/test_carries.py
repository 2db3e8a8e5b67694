"""Segments in pieces: what a call carries into the next gives the bits of one call."""

from __future__ import annotations

import math

import numpy as np
import pytest

from vtaudit.errors import SettingsError
from vtaudit.kernels import PIECE_ROWS, Carry, VTrace, has_cuda, vtrace_packed
from vtrace_definition import THRESHOLDS, assert_close, assert_same_bits, define_packed, make_rows

BLOCK = 32  # of Triton's largest blocks in the fixture small_blocks
HOSTS = ["reference", "numba"]
LENGTHS = [5, 3 * BLOCK + 7, 0, BLOCK, 2 * BLOCK]


def list_cases(*pieces):
    """Return backend, device and rows of a piece: those given for hosts, blocks for Triton."""
    pytest.importorskip("triton", reason="Triton is not installed")
    cases = [(backend, "cpu", rows) for backend in HOSTS for rows in pieces]
    real = PIECE_ROWS if has_cuda() else BLOCK
    cases += [("triton", "cpu", real), ("triton", "cuda", real)]
    marks = {"cuda": [pytest.mark.gpu]}
    return [
        pytest.param(case, id="-".join(map(str, case)), marks=marks.get(case[1], ()))
        for case in cases
    ]


@pytest.fixture(params=list_cases(1, 7, BLOCK))
def case(request, small_blocks):
    backend, device, _ = request.param
    if device == "cuda" and not has_cuda():
        pytest.skip("no CUDA device")
    if backend == "triton" and device == "cpu" and has_cuda():
        pytest.skip("Triton compiles for the CUDA device, so it does not interpret")
    return request.param


def end_all(segments):
    """Return carries that are not followed, NaN where nothing may be read."""
    return Carry(
        np.zeros(segments, np.bool_), np.full(segments, math.nan), np.full(segments, math.nan)
    )


def scan_pieces(rows, piece_rows, scan):
    """Return whole columns made of pieces, the last piece of each segment first."""
    offsets, columns = rows[5], rows[:4]
    firsts, stops, bootstrap = offsets[:-1], offsets[1:].copy(), rows[4].copy()
    carry = end_all(len(firsts))
    whole = [np.full(offsets[-1], math.nan, column.dtype) for column in scan(rows)]
    while (stops > firsts).any():
        starts = np.maximum(stops - piece_rows, firsts)
        taken = np.concatenate([np.arange(*bounds) for bounds in zip(starts, stops, strict=True)])
        bounds = np.concatenate([[0], np.cumsum(stops - starts)])
        piece = (*(column[taken] for column in columns), bootstrap, bounds)
        found = scan(piece, carry=carry, first_carry=carry)
        for column, part in zip(whole, found, strict=True):
            column[taken] = part
        bootstrap = np.where(
            starts < stops, rows[1][np.minimum(starts, offsets[-1] - 1)], bootstrap
        )
        bootstrap = bootstrap.astype(rows[4].dtype)
        stops = starts
    return VTrace(*whole)


def scan_with(case, thresholds=THRESHOLDS["ones"], **always):
    backend, device, _ = case

    def scan(rows, **options):
        options = {**always, **options}
        return vtrace_packed(
            *rows, thresholds=thresholds, backend=backend, device=device, **options
        )

    return scan


@pytest.mark.parametrize("name", ["ones", "apart"])
@pytest.mark.parametrize(("given", "out"), [("float32", "float32"), ("float64", "float64")])
def test_pieces_give_the_bits_of_the_whole(case, name, given, out):
    rows = make_rows(LENGTHS, np.dtype(given), zero_discounts=name == "apart")
    scan = scan_with(case, THRESHOLDS[name], dtype=out)
    assert_same_bits(scan_pieces(rows, case[2], scan), scan(rows))


def test_pieces_equal_the_definition(case):
    rows = make_rows(LENGTHS, np.float64)
    found = scan_pieces(rows, case[2], scan_with(case, dtype="float64"))
    assert_close(found, define_packed(rows, THRESHOLDS["ones"]), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rows_of_a_piece", [PIECE_ROWS, 2 * PIECE_ROWS])
def test_triton_gives_the_bits_of_the_whole_with_its_real_blocks(rows_of_a_piece):
    pytest.importorskip("triton", reason="Triton is not installed")
    rows = make_rows([2 * PIECE_ROWS + 30])
    scan = scan_with(("triton", None, None), dtype="float64")
    assert_same_bits(scan_pieces(rows, rows_of_a_piece, scan), scan(rows))


def test_triton_scans_each_piece_in_the_blocks_of_the_whole():
    triton_scan = pytest.importorskip("vtaudit.kernels.triton_scan")
    offsets, is_followed = np.array([0, 30, 60]), np.array([False, True])
    groups = dict(triton_scan.group_segments(offsets, is_followed))
    assert {time: segments.tolist() for time, segments in groups.items()} == {
        triton_scan.BLOCK_TIMES[0]: [0],
        PIECE_ROWS: [1],
    }


def test_carries_are_float64_sums_of_the_first_rows(case):
    rows = make_rows([20, 9], np.float32)
    first = end_all(2)
    scan_with(case)(rows, first_carry=first)
    defined = define_packed(rows, THRESHOLDS["ones"])
    starts = rows[5][:-1]
    wide = (defined.value_target - rows[1].astype(np.float64))[starts]
    assert first.is_followed.all()
    np.testing.assert_allclose(first.delta_sum, wide, rtol=1e-12)
    np.testing.assert_allclose(first.trace_length, defined.trace_length[starts], rtol=1e-12)


def test_nan_in_a_carry_that_is_not_followed_reaches_nothing(case):
    rows = make_rows([9, 4, 6])
    scan, carry = scan_with(case), end_all(3)
    carry.is_followed[1], carry.delta_sum[1], carry.trace_length[1] = True, 0.5, 2.0
    clean = Carry(carry.is_followed, *(np.nan_to_num(column) for column in carry[1:]))
    first, expected_first = end_all(3), end_all(3)
    found = scan(rows, carry=carry, first_carry=first)
    assert_same_bits(found, scan(rows, carry=clean, first_carry=expected_first))
    assert all(np.isfinite(column).all() for column in found)
    for one, other in zip(first, expected_first, strict=True):
        assert one.tobytes() == other.tobytes()
    alone = scan(rows)
    assert_same_bits(found, alone, slice(0, 9))
    assert_same_bits(found, alone, slice(13, None))
    assert found.value_target[12] != alone.value_target[12]


def test_discount_of_zero_at_the_last_row_cuts_the_carry(case):
    rows = make_rows([8], zero_discounts=False)
    rows[3][-1], rows[4][:] = 0, math.nan
    carry = Carry(np.array([True]), np.array([math.nan]), np.array([math.inf]))
    found = scan_with(case)(rows, carry=carry)
    assert all(np.isfinite(column).all() for column in found)
    assert found.trace_length[-1] == 1
    assert found.next_value[-1] == 0


def test_poison_that_is_carried_reaches_its_segment_alone(case):
    rows = make_rows([6, 5], zero_discounts=False)
    carry = Carry(np.array([False, True]), np.array([0, math.nan]), np.array([0, 1.0]))
    found, alone = scan_with(case)(rows, carry=carry), scan_with(case)(rows)
    assert np.isnan(found.value_target[6:]).all()
    assert_same_bits(found, alone, slice(0, 6))


def test_empty_segment_passes_its_carry_on(case):
    rows = make_rows([0, 3, 0])
    carry = Carry(np.array([True, False, False]), np.array([1.5, 0, 0]), np.array([4.0, 0, 0]))
    first = end_all(3)
    scan_with(case)(rows, carry=carry, first_carry=first)
    assert first.is_followed.tolist() == [True, True, False]
    assert (first.delta_sum[0], first.trace_length[0]) == (1.5, 4.0)


def test_tensors_carry_tensors(case):
    torch = pytest.importorskip("torch")
    backend, device, _ = case
    rows, carry = make_rows([5, 2]), end_all(2)
    expected = end_all(2)
    carry.is_followed[0], carry.delta_sum[0], carry.trace_length[0] = True, -0.25, 3.0
    found = scan_with(case)(rows, carry=carry, first_carry=expected)
    tensors = tuple(torch.tensor(column, device=device) for column in rows)
    given, first = (
        Carry(*(torch.tensor(column, device=device) for column in columns))
        for columns in (carry, end_all(2))
    )
    assert_same_bits(
        vtrace_packed(*tensors, backend=backend, carry=given, first_carry=first), found
    )
    for one, other in zip(first, expected, strict=True):
        assert one.cpu().numpy().tobytes() == other.tobytes()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"carry": end_all(3)}, r"carry.is_followed: found bool, shape \(3,\), on NumPy; expected"),
        (
            {"first_carry": end_all(2)._replace(delta_sum=np.zeros(2, np.float32))},
            r"first_carry.delta_sum: found float32, .* expected float64, shape \(2,\)",
        ),
        ({"carry": end_all(2)._replace(is_followed=np.zeros(2))}, "found float64.*expected bool"),
        ({"carry": end_all(2), "as_stream": True}, "carry: found with as_stream"),
    ],
)
def test_carries_of_another_kind_are_refused(changed, message):
    with pytest.raises(SettingsError, match=message):
        vtrace_packed(*make_rows([2, 3]), backend="numba", **changed)
