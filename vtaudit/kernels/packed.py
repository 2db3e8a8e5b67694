"""V-trace of packed segments: checks, choice of backend, conversion in and out."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vtaudit.errors import SettingsError
from vtaudit.kernels.arguments import (
    NUMBERS,
    ask_device,
    check_carry,
    check_clip_counts,
    choose_dtype,
    choose_outputs,
    find_device,
    name_dtype,
    to_numpy,
    to_tensor,
)
from vtaudit.kernels.backends import resolve_backend
from vtaudit.kernels.targets import Array, Carry, PackedRows, Thresholds, VTrace

DEFAULT_THRESHOLDS = Thresholds()


def vtrace_packed(
    log_ratio: Array,
    value: Array,
    reward: Array,
    discount: Array,
    bootstrap_value: Array,
    offsets: Array,
    *,
    thresholds: Thresholds = DEFAULT_THRESHOLDS,
    backend: str = "auto",
    dtype: Any = None,
    device: str | None = None,
    outputs: Collection[str] | None = None,
    clip_counts: Array | None = None,
    as_stream: bool = False,
    carry: Carry | None = None,
    first_carry: Carry | None = None,
) -> VTrace:
    """Return the V-trace targets of N rows in S segments (the equations: `reference.scan_rows`).

    Within a segment every row is followed by its successor, apart from the last and from rows whose
    discount is 0: those are cut, and what follows them cannot reach them, NaN included. Arguments
    are all NumPy arrays or all torch tensors of one device; results are of that kind and device.

    A segment too long for memory is given piece by piece, the last piece first. Each call's
    `first_carry` and its first rows' values are the `carry` and `bootstrap_value` of the piece
    before, and the results are those of the whole segment, bit for bit: from numba and the
    reference at any cut, from Triton where every cut is a multiple of PIECE_ROWS before the
    segment's end.

    Args:
        log_ratio: [N], log pi - log mu; rounded to the result's dtype before any use. Returned
            itself where it has that dtype already.
        value: [N], V(s_t).
        reward: [N], of the action at t.
        discount: [N], gamma_t in [0, 1].
        bootstrap_value: [S], V(s_{t+1}) of each segment's last row; 0 where it terminated, and
            ignored where its discount is 0.
        offsets: [S + 1], int64: the first row of each segment, and N. A segment may be empty.
        thresholds: clip thresholds and lambda.
        backend: "reference", "numba", "triton" or "auto": Triton for CUDA tensors and for a CUDA
            `device`, else numba.
        dtype: float32 or float64, of the results; default float64 where value or reward is, else
            float32. The arithmetic is float64 unless `as_stream`.
        device: for NumPy arrays, where to compute.
        outputs: fields of the result to fill; all by default.
        clip_counts: [3], int64, of the kind of the arguments: the numbers of rows with a clipped
            rho, c and pg_rho are added to it.
        as_stream: Triton alone: scan all rows as one stream, at the limit of the device's memory
            and in float32 where the arguments are. Else a segment's results are the same bits
            whatever stands beside it, which a stream's need not be.
        carry: [S] each: where a segment is followed its last row is interior, and bootstrap_value
            is its successor's value. By default no segment is. Not with `as_stream`.
        first_carry: [S] each, written in place: the carry that the row before each segment's first
            row needs, float64. An empty segment passes its own carry on. May be `carry` itself.

    Raises:
        SettingsError: an argument of a wrong kind, shape or dtype; a backend that cannot run there.
        EngineError: the backend or the device is not there.
    """
    rows = PackedRows(log_ratio, value, reward, discount, bootstrap_value)
    at = find_device(dict(zip(PackedRows._fields, rows, strict=True)))
    checked_offsets = _check_rows(rows, offsets)
    result_dtype = choose_dtype(dtype, value.dtype, reward.dtype)
    if at is not None and device not in (None, at, at.partition(":")[0]):
        raise SettingsError(f"device: found {device!r}, expected {at!r}, where the tensors are")
    names = choose_outputs(outputs)
    check_clip_counts(clip_counts, at)
    for name, given in (("carry", carry), ("first_carry", first_carry)):
        check_carry(name, given, len(checked_offsets) - 1, at, as_stream=as_stream)
    backend, place = resolve_backend(backend, ask_device(backend, at or device))
    call = _Call(rows, checked_offsets, thresholds, result_dtype, backend, place, names)
    if backend == "triton" and as_stream:
        return _run_stream(call, clip_counts)
    run = _run_triton if backend == "triton" else _run_on_host
    results, first = run(call, carry)
    if first_carry is not None:
        for kept, found in zip(first_carry, first, strict=True):
            kept[:] = found
    if clip_counts is not None:
        count_clips(clip_counts, results.log_ratio, thresholds)
    return results._replace(**{name: None for name in VTrace._fields if name not in names})


@dataclass(frozen=True, slots=True)
class _Call:
    """Checked arguments, and where they are scanned."""

    rows: PackedRows
    offsets: NDArray[np.int64]
    thresholds: Thresholds
    dtype: str
    backend: str
    place: str
    outputs: frozenset[str]

    @property
    def is_numpy(self) -> bool:
        return isinstance(self.rows.value, np.ndarray)


def _check_rows(rows: PackedRows, offsets: Array) -> NDArray[np.int64]:
    count = np.shape(rows.value)[:1]
    for name, array in zip(PackedRows._fields, rows, strict=True):
        if name_dtype(array.dtype) not in NUMBERS:
            found = name_dtype(array.dtype)
            raise SettingsError(f"{name}: found dtype {found}, expected float32 or float64")
        shape = tuple(array.shape)
        if name != "bootstrap_value" and (len(shape) != 1 or shape != count):
            raise SettingsError(f"{name}: found shape {shape}, expected [N] like value")
    find_device({"offsets": offsets})
    bounds: NDArray[np.int64] = np.asarray(to_numpy(offsets))
    segments = tuple(rows.bootstrap_value.shape)
    if bounds.ndim != 1 or bounds.dtype != np.int64 or segments != (len(bounds) - 1,):
        raise SettingsError(
            f"offsets: found {bounds.dtype}, shape {bounds.shape}, for bootstrap_value of shape"
            f" {segments}; expected int64 [S + 1] for [S]"
        )
    if bounds[0] != 0 or bounds[-1] != count[0] or (np.diff(bounds) < 0).any():
        raise SettingsError(
            f"offsets: found {bounds[0]} to {bounds[-1]} for {count[0]} rows; expected 0 to the"
            " number of rows, never decreasing"
        )
    return bounds


def _run_on_host(call: _Call, carry: Carry | None) -> tuple[VTrace, Carry]:
    if call.backend == "numba":
        from vtaudit.kernels.numba_scan import scan_rows
    else:
        from vtaudit.kernels.reference import scan_rows
    carries = _end_segments(call) if carry is None else Carry(*map(to_numpy, carry))
    dtype = np.dtype(call.dtype)
    found, first = scan_rows(
        _round_ratios(call), call.offsets, call.thresholds, dtype, call.outputs, carries
    )
    if call.is_numpy:
        return found, first
    import torch

    tensors = (None if column is None else torch.from_numpy(column) for column in found)
    return VTrace(*tensors), Carry(*map(torch.from_numpy, first))


def _run_triton(call: _Call, carry: Carry | None) -> tuple[VTrace, Carry]:
    import torch

    from vtaudit.kernels.batches import Scan, scan_arrays
    from vtaudit.kernels.triton_scan import scan_rows

    carries = _end_segments(call) if carry is None else carry
    if call.is_numpy:
        scan = Scan(call.thresholds, np.dtype(call.dtype), call.outputs, call.place)
        return scan_arrays(_round_ratios(call), call.offsets, carries, scan)
    dtype = getattr(torch, call.dtype)
    columns = PackedRows(*(column.detach() for column in call.rows))
    columns = columns._replace(log_ratio=columns.log_ratio.to(dtype))
    return scan_rows(columns, call.offsets, call.thresholds, dtype, call.outputs, carries)


def _round_ratios(call: _Call) -> PackedRows:
    """Return the rows as NumPy arrays, log-ratios in the results' dtype."""
    columns = PackedRows(*map(to_numpy, call.rows))
    with np.errstate(over="ignore"):
        return columns._replace(log_ratio=columns.log_ratio.astype(call.dtype, copy=False))


def _end_segments(call: _Call) -> Carry:
    """Return carries of which none is followed, NumPy arrays."""
    size = len(call.offsets) - 1
    return Carry(np.zeros(size, np.bool_), np.zeros(size), np.zeros(size))


def _run_stream(call: _Call, clip_counts: Array | None) -> VTrace:
    import torch

    from vtaudit.kernels.launches import mark_cuts
    from vtaudit.kernels.stream import scan_segments

    columns = PackedRows(*(to_tensor(column, call.place).contiguous() for column in call.rows))
    counts = clip_counts
    if call.is_numpy and clip_counts is not None:
        counts = torch.zeros(3, dtype=torch.int64, device=call.place)
    cuts = mark_cuts(call.offsets, columns.value.device)
    dtype = getattr(torch, call.dtype)
    results = scan_segments(columns, cuts, call.thresholds, dtype, call.outputs, counts)
    if not call.is_numpy:
        return results
    if clip_counts is not None and counts is not None:
        clip_counts += counts.cpu().numpy()
    return VTrace(*(None if column is None else column.cpu().numpy() for column in results))


def describe_kernel(backend: str) -> dict[str, Any]:
    """Return a backend's name and the constants by which it cuts rows into blocks.

    They are the same at every call of `vtrace_packed`, apart from `as_stream`.
    """
    described: dict[str, Any] = {"backend": backend}
    if backend == "numba":
        from vtaudit.kernels import numba_scan

        described["block_rows"] = numba_scan.BLOCK_ROWS
    elif backend == "triton":
        from vtaudit.kernels import triton_scan

        described["block_times"] = list(triton_scan.BLOCK_TIMES)
        described["block_rows"] = triton_scan.BLOCK_ROWS
        described["num_warps"] = triton_scan.NUM_WARPS
    return described


def count_clips(clip_counts: Array, log_ratio: Array, thresholds: Thresholds) -> None:
    """Add the numbers of clipped rows; a bar's logarithm is a float64, so compare as such."""
    wide = log_ratio.astype(np.float64) if isinstance(log_ratio, np.ndarray) else log_ratio.double()
    for i, log_bar in enumerate(thresholds.parameters[3:6]):
        clip_counts[i] += (wide > log_bar).sum()
