"""NumPy arrays to a device and back through pinned memory, so that nobody waits for a copy.

Page-locking an array where it lies takes longer than to copy it into memory that is pinned already.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

# arrays of fewer bytes travel together, and begin at multiples of so many
LONE_BYTES = 4 << 20
ALIGNMENT_BYTES = 256
# arrays of so many bytes are copied in several threads
PARALLEL_BYTES = 256 << 10


def send(arrays: Iterable[NDArray[Any]], device: torch.device | str) -> list[torch.Tensor]:
    """Return copies on the device, on their way when this returns; on a CPU copies."""
    given = list(arrays)
    sizes = [0 if array.nbytes >= LONE_BYTES else array.nbytes for array in given]
    places = [0, *accumulate(-(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES for size in sizes)]
    pinned = pin((places[-1],), np.dtype(np.uint8), device)
    block = pinned.numpy()
    for array, place, size in zip(given, places, sizes, strict=False):
        part = block[place : place + size].view(array.dtype.newbyteorder("="))
        if size:
            _fill(part.reshape(array.shape), array)
    sent = pinned.to(device, non_blocking=True)
    return [
        _send_alone(array, device)
        if array.nbytes > size
        else sent[place : place + size].view(_find_dtype(array.dtype)).view(array.shape)
        for array, place, size in zip(given, places, sizes, strict=False)
    ]


def pin(shape: tuple[int, ...], dtype: np.dtype[Any], device: torch.device | str) -> torch.Tensor:
    """Return memory of the host for copies from or to the device, pinned if that is a GPU."""
    is_cuda = torch.device(device).type == "cuda"
    return torch.empty(shape, dtype=_find_dtype(dtype), pin_memory=is_cuda)


def _send_alone(array: NDArray[Any], device: torch.device | str) -> torch.Tensor:
    pinned = pin(array.shape, array.dtype, device)
    _fill(pinned.numpy(), array)
    return pinned.to(device, non_blocking=True)


def _fill(pinned: NDArray[Any], array: NDArray[Any]) -> None:
    is_plain = array.flags.writeable and array.flags.c_contiguous and array.dtype.isnative
    if is_plain and array.nbytes >= PARALLEL_BYTES:
        torch.from_numpy(pinned).copy_(torch.from_numpy(array))
    else:
        np.copyto(pinned, array)


@functools.cache
def _find_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    found: torch.dtype = getattr(torch, dtype.name)
    return found
