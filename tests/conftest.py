"""Without a CUDA device Triton's interpreter stands in, chosen here before Triton is imported."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pytest

from vtaudit.kernels import has_cuda

if TYPE_CHECKING:
    from s3_server import Bucket, Server

if not has_cuda():
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture
def small_blocks(monkeypatch):
    """Shrink Triton's blocks in the interpreter, which takes a millisecond for each scanned row."""
    triton_scan = pytest.importorskip("vtaudit.kernels.triton_scan")
    if not has_cuda():
        monkeypatch.setattr(triton_scan, "BLOCK_TIMES", (8, 32))
        monkeypatch.setattr(triton_scan, "BLOCK_ROWS", 32)
        launches = pytest.importorskip("vtaudit.kernels.launches")
        monkeypatch.setattr(launches, "CHUNK_ROWS", 32)
        monkeypatch.setattr(launches, "TREE_CHUNK_ROWS", 32)
        launches.launch_windows.cache_clear()
    with np.errstate(all="ignore"):  # the interpreter computes in NumPy
        yield
    if not has_cuda():
        launches.launch_windows.cache_clear()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[Server]:
    """An S3 server on this machine."""
    from s3_server import serve

    with serve() as server:
        yield server


@pytest.fixture
def bucket(s3_server: Server, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """A bucket of its own, which s3:// leads to by the environment."""
    from s3_server import Bucket

    found = Bucket(s3_server)
    for name, value in found.env.items():
        monkeypatch.setenv(name, value)
    return found
