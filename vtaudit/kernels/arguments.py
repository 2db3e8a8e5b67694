"""Arguments of the public functions: where they are, what they are, what is asked for."""

from __future__ import annotations

import functools
import sys
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from vtaudit.errors import SettingsError, name_choices
from vtaudit.kernels.targets import Array, Carry, VTrace

if TYPE_CHECKING:
    import torch

NUMBERS = ("float32", "float64")
# name, shape, dtype and device of arrays; NumPy's device is a str
Signature: TypeAlias = tuple[tuple[str, tuple[int, ...], Any, Any], ...]
WINDOW_NUMBERS = ("float16", "bfloat16", *NUMBERS)
FLAGS = {"terminated": ("bool", "uint8"), "truncated": ("bool", "uint8"), "ends": ("uint8",)}
ALL_OUTPUTS = frozenset(VTrace._fields)


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
    return _find_one(found)


def sign_arrays(arrays: dict[str, Array]) -> Signature:
    """Return name, shape, dtype and device of each array: what calls that are alike share.

    Raises:
        SettingsError: something is neither a NumPy array nor a torch tensor.
    """
    try:
        return tuple([(name, a.shape, a.dtype, a.device) for name, a in arrays.items()])
    except AttributeError:
        find_device(arrays)
        raise


def find_place(signature: Signature) -> str | None:
    """Return the device of torch tensors, or None for NumPy arrays, as `find_device` does.

    Raises:
        SettingsError: a mixture of both, or tensors of several devices.
    """
    return _find_one(
        {name: "numpy" if type(device) is str else str(device) for name, _, _, device in signature}
    )


def _find_one(found: dict[str, str]) -> str | None:
    places = set(found.values())
    if len(places) > 1:
        listed = ", ".join(f"{name} {place}" for name, place in found.items())
        raise SettingsError(
            f"arguments: found {listed}; expected all NumPy, or tensors of one device"
        )
    place = places.pop()
    return None if place == "numpy" else place


def choose_dtype(dtype: object, *given: object) -> str:
    """Return the name of the results' dtype: as asked, else float64 where a given dtype is."""
    if dtype is None:
        return "float64" if "float64" in map(name_dtype, given) else "float32"
    name = getattr(dtype, "__name__", str(dtype)).removeprefix("torch.")
    if name not in NUMBERS:
        raise SettingsError(f"dtype: found {dtype}, expected float32 or float64")
    return name


def choose_outputs(outputs: Collection[str] | None) -> frozenset[str]:
    """Return the names of the fields to fill: as asked, else all.

    Raises:
        SettingsError: an unknown name.
    """
    for name in outputs or ():
        if name not in VTrace._fields:
            raise SettingsError(f"outputs: found {name!r}{name_choices(name, VTrace._fields)}")
    return ALL_OUTPUTS if outputs is None else frozenset(outputs)


def check_windows(signature: Signature, *, time_major: bool) -> None:
    """Check names, shapes and dtypes of the arrays of `vtrace`.

    Raises:
        SettingsError: some are missing, too many, or of another kind than expected.
    """
    shapes = {name: tuple(found) for name, found, _, _ in signature}
    if "bootstrap_values" in shapes and "last_value" in shapes:
        raise SettingsError(
            "bootstrap_values, last_value: found both, expected at most one; bootstrap_values holds"
            " the last column's value too"
        )
    if ("ends" in shapes) == ("terminated" in shapes) or {"ends", "truncated"} <= shapes.keys():
        raise SettingsError(
            "terminated, truncated, ends: found"
            f" {', '.join(name for name in FLAGS if name in shapes) or 'none'};"
            " expected terminated, or terminated and truncated, or ends"
        )
    layout = "[seq_len, num_envs]" if time_major else "[num_envs, seq_len]"
    shape = shapes["value"]
    if len(shape) != 2:
        raise SettingsError(f"value: found shape {shape}, expected {layout}")
    num_envs = shape[1] if time_major else shape[0]
    for name, found, kind, _ in signature:
        is_last = name == "last_value"
        if tuple(found) != ((num_envs,) if is_last else shape):
            like = f"[num_envs] = {(num_envs,)}" if is_last else f"{layout} = {shape}, like value"
            raise SettingsError(f"{name}: found shape {tuple(found)}, expected {like}")
        dtypes = FLAGS.get(name, WINDOW_NUMBERS)
        if (dtype := name_dtype(kind)) not in dtypes:
            raise SettingsError(f"{name}: found dtype {dtype}, expected {' or '.join(dtypes)}")


def check_clip_counts(clip_counts: Array | None, device: str | None) -> None:
    """Check that the counts are [3] int64, of the kind and on the device of the other arguments.

    Raises:
        SettingsError: they are not.
    """
    if clip_counts is None:
        return
    at = find_device({"clip_counts": clip_counts})
    found = (at, name_dtype(clip_counts.dtype), tuple(clip_counts.shape))
    if found != (device, "int64", (3,)):
        raise SettingsError(
            f"clip_counts: found {found[1]}, shape {found[2]}, on {at or 'NumPy'}; expected int64,"
            f" shape (3,), on {device or 'NumPy'}, like the other arguments"
        )


def check_carry(
    name: str, carry: Carry | None, segments: int, device: str | None, *, as_stream: bool
) -> None:
    """Check that carries are [S], bool and float64, of the kind of the other arguments.

    Raises:
        SettingsError: they are not, or are given with `as_stream`.
    """
    if carry is None:
        return
    if as_stream:
        raise SettingsError(f"{name}: found with as_stream, which scans whole segments; omit one")
    at = find_device({f"{name}.{field}": column for field, column in carry._asdict().items()})
    for field, column in carry._asdict().items():
        dtype = "bool" if field == "is_followed" else "float64"
        found = (at, name_dtype(column.dtype), tuple(column.shape))
        if found != (device, dtype, (segments,)):
            raise SettingsError(
                f"{name}.{field}: found {found[1]}, shape {found[2]}, on {at or 'NumPy'}; expected"
                f" {dtype}, shape ({segments},), on {device or 'NumPy'}, like the other arguments"
            )


@functools.cache
def name_dtype(dtype: Any) -> str:
    """Return the dtype's name, the same for NumPy and torch, whatever the byte order."""
    return str(getattr(dtype, "name", dtype)).removeprefix("torch.")


def ask_device(backend: str, device: str | None) -> str | None:
    """Return the device to ask for: without a word on it, "auto" leaves NumPy arrays on the CPU."""
    return "cpu" if backend == "auto" and device is None else device


def to_numpy(array: Array) -> NDArray[Any]:
    numpy_array: NDArray[Any] = (
        array if isinstance(array, np.ndarray) else array.detach().cpu().numpy()
    )
    return numpy_array


def give_back(column: torch.Tensor | None, is_tensor: bool, time_major: bool) -> Array | None:
    """Return a result [num_envs, seq_len] in the order and of the kind of the arguments."""
    if column is None:
        return None
    column = column.T.contiguous() if time_major else column
    return column if is_tensor else column.cpu().numpy()


def to_tensor(array: Array, device: str) -> Array:
    """Return a tensor as it is, detached, and a NumPy array as a copy on the device."""
    import torch

    if not isinstance(array, np.ndarray):
        return array.detach()
    # torch knows neither negative strides nor a foreign byte order
    return torch.tensor(np.ascontiguousarray(array, name_dtype(array.dtype)), device=device)


def complete_bootstraps(windows: dict[str, torch.Tensor], gamma: float) -> torch.Tensor:
    """Return V(s_{t+1}) of the rows that need a bootstrap, anything elsewhere.

    Raises:
        SettingsError: a bootstrap is missing.
    """
    if "bootstrap_values" in windows:
        return windows["bootstrap_values"]
    value = windows["value"]
    bootstrap_values = value.new_zeros(value.shape)
    if "last_value" in windows:
        bootstrap_values = value.new_empty(value.shape, dtype=windows["last_value"].dtype)
        bootstrap_values[:, -1:] = windows["last_value"][:, None]
        if "truncated" not in windows and "ends" not in windows:
            return bootstrap_values
    terminated, is_needed = (flag.clone() for flag in read_flags(windows))
    is_needed[:, -1:] = "last_value" not in windows
    is_needed &= ~terminated
    if gamma == 0 or "discount" in windows:
        is_needed &= gamma * windows.get("discount", value) != 0
    if is_needed.any():
        env, step = is_needed.nonzero()[0].tolist()
        raise SettingsError(
            f"bootstrap_values: missing for env {env}, step {step}, and needed in"
            f" {int(is_needed.sum())} place(s): at each truncation, and in the last column unless"
            " it is terminated; give bootstrap_values (last_value serves the last column only)"
        )
    return bootstrap_values


def read_flags(windows: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return which rows are terminated and which truncated."""
    if "ends" in windows:
        return (windows["ends"] & 1) != 0, (windows["ends"] & 2) != 0
    terminated = windows["terminated"] != 0
    if "truncated" in windows:
        return terminated, windows["truncated"] != 0
    return terminated, terminated & False
