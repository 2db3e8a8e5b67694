"""V-trace of packed segments: checks, choice of backend, conversion in and out."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vtaudit.errors import SettingsError
from vtaudit.kernels.backends import resolve_backend
from vtaudit.kernels.targets import Array, PackedRows, Thresholds, VTrace

DEFAULT_THRESHOLDS = Thresholds()
NUMBERS = ("float32", "float64")


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
) -> VTrace:
    """Return the V-trace targets of N rows in S segments (the equations: `reference.scan_rows`).

    Within a segment every row is followed by its successor, apart from the last and from rows whose
    discount is 0: those are cut, and what follows them cannot reach them, NaN included. Arguments
    are all NumPy arrays or all torch tensors of one device; results are of that kind and device.

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
            float32. The arithmetic is float64.
        device: for NumPy arrays, where to compute.

    Raises:
        SettingsError: an argument of a wrong kind, shape or dtype; a backend that cannot run there.
        EngineError: the backend or the device is not there.
    """
    rows = PackedRows(log_ratio, value, reward, discount, bootstrap_value)
    at = find_device(dict(zip(PackedRows._fields, rows, strict=True)))
    checked_offsets = _check_rows(rows, offsets)
    result_dtype = choose_dtype(dtype, value, reward)
    if at is not None and device not in (None, at, at.partition(":")[0]):
        raise SettingsError(f"device: found {device!r}, expected {at!r}, where the tensors are")
    backend, place = resolve_backend(backend, ask_device(backend, at or device))
    if backend == "triton":
        return _run_triton(rows, checked_offsets, thresholds, result_dtype, place)
    return _run_on_host(rows, checked_offsets, thresholds, result_dtype, backend)


def find_device(arrays: dict[str, Array]) -> str | None:
    """Return the device of the torch tensors, or None where all are NumPy arrays.

    Raises:
        SettingsError: something else, a mixture of both, or tensors of several devices.
    """
    torch = sys.modules.get("torch")
    found = {}
    for name, array in arrays.items():
        if torch is not None and isinstance(array, torch.Tensor):
            found[name] = str(array.device)
        elif isinstance(array, np.ndarray):
            found[name] = "numpy"
        else:
            kind = type(array).__name__
            raise SettingsError(f"{name}: found {kind}, expected a NumPy array or a torch tensor")
    places = set(found.values())
    if len(places) > 1:
        listed = ", ".join(f"{name} {place}" for name, place in found.items())
        raise SettingsError(
            f"arguments: found {listed}; expected all NumPy, or tensors of one device"
        )
    place = places.pop()
    return None if place == "numpy" else place


def choose_dtype(dtype: object, value: Array, reward: Array) -> str:
    """Return the name of the results' dtype: as asked, else float64 where an argument is."""
    if dtype is None:
        return "float64" if "float64" in (name_dtype(value), name_dtype(reward)) else "float32"
    name = getattr(dtype, "__name__", str(dtype)).removeprefix("torch.")
    if name not in NUMBERS:
        raise SettingsError(f"dtype: found {dtype}, expected float32 or float64")
    return name


def name_dtype(array: Array) -> str:
    """Return the dtype's name, the same for NumPy and torch, whatever the byte order."""
    return str(getattr(array.dtype, "name", array.dtype)).removeprefix("torch.")


def ask_device(backend: str, device: str | None) -> str | None:
    """Return the device to ask for: without a word on it, "auto" leaves NumPy arrays on the CPU."""
    return "cpu" if backend == "auto" and device is None else device


def _check_rows(rows: PackedRows, offsets: Array) -> NDArray[np.int64]:
    count = np.shape(rows.value)[:1]
    for name, array in zip(PackedRows._fields, rows, strict=True):
        if name_dtype(array) not in NUMBERS:
            found = name_dtype(array)
            raise SettingsError(f"{name}: found dtype {found}, expected float32 or float64")
        shape = tuple(array.shape)
        if name != "bootstrap_value" and (len(shape) != 1 or shape != count):
            raise SettingsError(f"{name}: found shape {shape}, expected [N] like value")
    find_device({"offsets": offsets})
    bounds: NDArray[np.int64] = np.asarray(_to_numpy(offsets))
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


def _run_on_host(
    rows: PackedRows, offsets: NDArray[np.int64], thresholds: Thresholds, dtype: str, backend: str
) -> VTrace:
    if backend == "numba":
        from vtaudit.kernels.numba_scan import scan_rows
    else:
        from vtaudit.kernels.reference import scan_rows
    columns = PackedRows(*map(_to_numpy, rows))
    with np.errstate(over="ignore"):
        columns = columns._replace(log_ratio=columns.log_ratio.astype(dtype, copy=False))
    results = scan_rows(columns, offsets, thresholds, np.dtype(dtype))
    if isinstance(rows.value, np.ndarray):
        return results
    import torch

    return VTrace(*map(torch.from_numpy, results))


def _run_triton(
    rows: PackedRows, offsets: NDArray[np.int64], thresholds: Thresholds, dtype: str, device: str
) -> VTrace:
    import torch

    from vtaudit.kernels.triton_scan import scan_rows

    columns = PackedRows(*(to_tensor(column, device) for column in rows))
    columns = columns._replace(log_ratio=columns.log_ratio.to(getattr(torch, dtype)))
    results = scan_rows(columns, offsets, thresholds, getattr(torch, dtype))
    if isinstance(rows.value, np.ndarray):
        return VTrace(*(column.cpu().numpy() for column in results))
    return results


def _to_numpy(array: Array) -> NDArray[Any]:
    numpy_array: NDArray[Any] = (
        array if isinstance(array, np.ndarray) else array.detach().cpu().numpy()
    )
    return numpy_array


def to_tensor(array: Array, device: str) -> Array:
    """Return a tensor as it is, detached, and a NumPy array as a copy on the device."""
    import torch

    if not isinstance(array, np.ndarray):
        return array.detach()
    # torch knows neither negative strides nor a foreign byte order
    return torch.tensor(np.ascontiguousarray(array, name_dtype(array)), device=device)
