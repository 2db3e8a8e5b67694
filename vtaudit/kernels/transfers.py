"""NumPy arrays to a device and back through pinned memory, so that nobody waits for a copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


def send(array: NDArray[Any], device: torch.device | str) -> torch.Tensor:
    """Return a copy on the device, on its way when this returns; on a CPU a copy."""
    pinned = pin(array.shape, array.dtype, device)
    if array.flags.writeable and array.flags.c_contiguous and array.dtype.isnative:
        pinned.copy_(torch.from_numpy(array))  # in several threads
    else:
        np.copyto(pinned.numpy(), array)
    return pinned.to(device, non_blocking=True)


def pin(shape: tuple[int, ...], dtype: np.dtype[Any], device: torch.device | str) -> torch.Tensor:
    """Return memory of the host for copies from or to the device, pinned if that is a GPU."""
    is_cuda = torch.device(device).type == "cuda"
    return torch.empty(shape, dtype=getattr(torch, dtype.name), pin_memory=is_cuda)
