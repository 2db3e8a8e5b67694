"""Loops over rows compiled with numba: they run without the interpreter lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
from numba import types
from numpy.typing import DTypeLike, NDArray

Function = TypeVar("Function", bound=Callable[..., Any])

# counting references to arrays, at each access in a loop, takes 40 times as long as the work on a
# row; a pass borrows its arrays from its caller, so none has to be counted
OPTIONS = {"error_model": "numpy", "_nrt": False}


def compile_pass(function: Callable[..., Any], signature: Any) -> Callable[..., Any]:
    """Return the function compiled for one signature, from numba's cache on disk if there is one.

    It runs without the interpreter lock; divisions by zero and NaN give what they give in NumPy.
    It can make no arrays, so results are written into its arguments.
    """
    compiled: Callable[..., Any]
    try:
        compiled = numba.njit(signature, nogil=True, cache=True, **OPTIONS)(function)
    except (RuntimeError, OSError):  # numba found no directory that it can write, or it is full
        compiled = numba.njit(signature, nogil=True, **OPTIONS)(function)
    return compiled


def compile_step(function: Function) -> Function:
    """Return a function that passes of the same module call for each row, compiled with them."""
    compiled: Function = numba.njit(**OPTIONS)(function)
    return compiled


def array_of(dtype: str, *, readonly: bool = True) -> types.Array:
    """Return the type of a one-dimensional array, say of "int64", in a signature."""
    return types.Array(numba.from_dtype(np.dtype(dtype)), 1, "C", readonly=readonly)


def lay_out(column: NDArray[Any], dtype: DTypeLike) -> NDArray[Any]:
    """Return the column as the one kind of array that a compiled pass reads: `array_of` its dtype.

    It is copied only where it is of another dtype or not contiguous.
    """
    laid_out = np.require(column, dtype, ["C_CONTIGUOUS", "ALIGNED"]).view()
    laid_out.flags.writeable = False
    return laid_out
