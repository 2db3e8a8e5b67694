"""Where no CUDA device is, Triton's interpreter stands in: it must be chosen before Triton loads."""

from __future__ import annotations

import os

from vtaudit.kernels import has_cuda

if not has_cuda():
    os.environ.setdefault("TRITON_INTERPRET", "1")
