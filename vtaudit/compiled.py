"""Passes over columns that numba compiles, kept in its cache on disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def compile_pass(function: Callable[..., None], signature: Any) -> Callable[..., None]:
    """Return the function compiled for one signature, without the interpreter lock.

    It comes from numba's cache on disk if that can be written. Divisions by 0 give inf or NaN.
    """
    compiled: Callable[..., None]
    try:
        compiled = numba.njit(signature, nogil=True, error_model="numpy", cache=True)(function)
    except (RuntimeError, OSError):  # numba found no directory that it can write, or it is full
        compiled = numba.njit(signature, nogil=True, error_model="numpy")(function)
    return compiled
