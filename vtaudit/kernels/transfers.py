"""NumPy arrays to a device and back through pinned memory, so that nobody waits for a copy.

Page-locking an array where it lies takes longer than to copy it into memory that is pinned already.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

# arrays that travel together begin at multiples of so many bytes
ALIGNMENT_BYTES = 256


def send(arrays: Iterable[NDArray[Any]], device: torch.device | str) -> list[torch.Tensor]:
    """Return copies on the device, in one copy on its way when this returns; on a CPU copies."""
    given = list(arrays)
    ends = np.cumsum([-(-array.nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES for array in given])
    places = [0, *ends.tolist()]
    pinned = pin((places[-1],), np.dtype(np.uint8), device)
    for array, place in zip(given, places, strict=False):
        _fill(_view(pinned, place, array), array)
    sent = pinned.to(device, non_blocking=True)
    return [_view(sent, place, array) for array, place in zip(given, places, strict=False)]


def pin(shape: tuple[int, ...], dtype: np.dtype[Any], device: torch.device | str) -> torch.Tensor:
    """Return memory of the host for copies from or to the device, pinned if that is a GPU."""
    is_cuda = torch.device(device).type == "cuda"
    return torch.empty(shape, dtype=_find_dtype(dtype), pin_memory=is_cuda)


def _view(block: torch.Tensor, place: int, array: NDArray[Any]) -> torch.Tensor:
    """Return the part of a block of bytes that holds a copy of the array."""
    part = block[place : place + array.nbytes]
    return part.view(_find_dtype(array.dtype)).view(array.shape)


def _fill(pinned: torch.Tensor, array: NDArray[Any]) -> None:
    if array.flags.writeable and array.flags.c_contiguous and array.dtype.isnative:
        pinned.copy_(torch.from_numpy(array))  # in several threads
    else:
        np.copyto(pinned.numpy(), array)


@functools.cache
def _find_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    found: torch.dtype = getattr(torch, dtype.name)
    return found
