"""How the libraries of the process allocate and thread."""

from __future__ import annotations

import ctypes
import os

# glibc's numbers of the two options, and what they are set to: chunks of rows are freed and
# allocated over and over, and pages that were returned cost a fault each when they are needed again
TRIM_THRESHOLD, TRIM_BYTES = -1, 64 << 20
MMAP_THRESHOLD, MMAP_BYTES = -3, 32 << 20
# a variable that the user has set stays
KEEP = 0


def tune_process(threads: int | None) -> None:
    """Keep freed memory for what comes next, in one allocator, and start no idle threads.

    Only a command does so, before it imports the libraries: what imports vtaudit is left alone.

    Args:
        threads: of Polars' pool, which is sized when Polars is imported; None leaves it.
    """
    if threads is not None:
        os.putenv("POLARS_MAX_THREADS", str(threads))
    libc = ctypes.CDLL(None)
    libc.setenv(b"ARROW_DEFAULT_MEMORY_POOL", b"system", KEEP)
    libc.setenv(b"OPENBLAS_NUM_THREADS", b"1", KEEP)
    if hasattr(libc, "mallopt"):
        libc.mallopt(TRIM_THRESHOLD, TRIM_BYTES)
        libc.mallopt(MMAP_THRESHOLD, MMAP_BYTES)


def give_back() -> None:
    """Return what glibc keeps of freed memory to the system: the next stage needs other sizes."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
