"""V-trace targets: three backends behind two functions; the reference is the specification.

Importing this package loads neither torch, Triton nor numba: each backend loads what it needs.
"""

from __future__ import annotations

from vtaudit.kernels.backends import BACKENDS, has_cuda, resolve_backend
from vtaudit.kernels.dense import vtrace
from vtaudit.kernels.packed import describe_kernel, vtrace_packed
from vtaudit.kernels.targets import PIECE_ROWS, Carry, Thresholds, VTrace

__all__ = [
    "BACKENDS",
    "PIECE_ROWS",
    "Carry",
    "Thresholds",
    "VTrace",
    "describe_kernel",
    "has_cuda",
    "resolve_backend",
    "vtrace",
    "vtrace_packed",
]
