"""A kernel with its grid and options, launched again without Triton's look at every argument.

Triton finds out at each call which compiled kernel fits, which takes longer than the launch. It
depends on the arguments' types, on which are None, and on whether all memory begins at multiples of
16 bytes; not on integers that the kernel does not specialize on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import torch

ALIGNMENT_BYTES = 16


Tensors: TypeAlias = tuple[torch.Tensor | None, ...]


class Look(NamedTuple):
    """What launches need to know of their tensors.

    Attributes:
        key: on what it depends which compiled kernel fits; None where memory is not aligned.
        places: their addresses.
    """

    key: Any
    places: list[int | None]


def look_at(tensors: Tensors, device: int) -> Look:
    """Return what launches need to know of tensors on the device of this index."""
    places = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
    bits = 0
    for place in places:
        bits |= place or 0
    if bits % ALIGNMENT_BYTES:
        return Look(None, places)
    return Look((device, *[None if t is None else t.dtype for t in tensors]), places)


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
    known: dict[Any, Callable[..., None]] = field(default_factory=dict)

    def launch(self, tensors: Tensors, numbers: tuple[int, ...], look: Look) -> None:
        """Launch the kernel on the current device, where the tensors are."""
        launch = self.known.get(look.key)
        if launch is not None:
            launch(*look.places, *numbers)
            return
        compiled = self.kernel[self.grid](*tensors, *numbers, **self.options)
        if compiled is not None and look.key is not None:  # the interpreter compiles nothing
            self.known[look.key] = self._bind(compiled)

    def _bind(self, compiled: Any) -> Callable[..., None]:
        """Return the launch of a compiled kernel, which takes addresses and numbers."""
        names = self.kernel.arg_names
        constants = [self.options[name] for name in names if name in self.options]
        launch = compiled[self.grid]
        return lambda *arguments: launch(*arguments, *constants)
