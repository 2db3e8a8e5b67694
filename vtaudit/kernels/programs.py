"""A kernel with its grid and options, launched again without Triton's look at every argument.

Triton finds out at each call which compiled kernel fits, which takes longer than the launch. It
depends on the arguments' types, on which are None, and on whether all memory begins at multiples of
16 bytes; not on integers that the kernel does not specialize on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

ALIGNMENT_BYTES = 16


@dataclass(frozen=True, slots=True)
class Program:
    """What calls that are alike launch.

    Attributes:
        kernel: a Triton function; it specializes on no integer, and tensors are its first
            parameters, then integers, then constants.
        grid: of programs, three numbers.
        options: the constants by name, and options of the launch.
        known: launches of what was compiled, by device and dtypes.
    """

    kernel: Any
    grid: tuple[int, int, int]
    options: dict[str, Any]
    known: dict[tuple[Any, ...], Callable[..., None]] = field(default_factory=dict)

    def launch(
        self, device: int, tensors: tuple[torch.Tensor | None, ...], numbers: tuple[int, ...]
    ) -> None:
        """Launch the kernel on the current device, which has this index and the tensors."""
        places = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
        key = tuple([None if tensor is None else tensor.dtype for tensor in tensors])
        bits = 0
        for place in places:
            bits |= place or 0
        is_aligned = bits % ALIGNMENT_BYTES == 0
        launch = self.known.get((device, key)) if is_aligned else None
        if launch is not None:
            launch(*places, *numbers)
            return
        compiled = self.kernel[self.grid](*tensors, *numbers, **self.options)
        if compiled is not None and is_aligned:  # the interpreter compiles nothing
            self.known[device, key] = self._bind(compiled)

    def _bind(self, compiled: Any) -> Callable[..., None]:
        """Return the launch of a compiled kernel, which takes addresses and numbers."""
        names = self.kernel.arg_names
        constants = [self.options[name] for name in names if name in self.options]
        launch = compiled[self.grid]
        return lambda *arguments: launch(*arguments, *constants)
