"""NumPy columns through a device in batches: copies in, scans and copies out beside each other.

While the host fills the pinned memory of one batch, those before it are copied and scanned, each on
one of STREAMS streams of the calling thread.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vtaudit.kernels.targets import Carry, PackedRows, Thresholds, VTrace
from vtaudit.kernels.transfers import pin, send
from vtaudit.kernels.triton_scan import scan_rows

# a batch ends with the segment that reaches so many rows: long copies, and little memory
BATCH_ROWS = 1 << 21
STREAMS = 3

_thread = threading.local()


@dataclass(frozen=True, slots=True)
class Scan:
    """How all batches are scanned; see `scan_rows`."""

    thresholds: Thresholds
    dtype: np.dtype[Any]
    outputs: frozenset[str]
    device: str


def scan_arrays(
    rows: PackedRows, offsets: NDArray[np.int64], carry: Carry, scan: Scan
) -> tuple[VTrace, Carry]:
    """Return the V-trace targets of packed rows and their carries, all NumPy arrays.

    The results of a GPU lie in pinned memory, which they give back when they are freed.
    """
    found = VTrace(
        *(
            pin(rows.value.shape, scan.dtype, scan.device) if name in names else None
            for names in [scan.outputs - {"log_ratio"}]
            for name in VTrace._fields
        )
    )
    first = Carry(*(pin(column.shape, column.dtype, scan.device) for column in carry))
    streams = _list_streams(scan.device)
    for number, (low, high) in enumerate(split_segments(offsets)):
        with torch.cuda.stream(streams[number % STREAMS]) if streams else contextlib.nullcontext():
            _scan_batch(rows, offsets[low : high + 1], (low, high), carry, scan, (found, first))
    for stream in streams:
        stream.synchronize()
    results = VTrace(*(None if column is None else column.numpy() for column in found))
    return results._replace(log_ratio=rows.log_ratio), Carry(*(c.numpy() for c in first))


def _scan_batch(
    rows: PackedRows,
    offsets: NDArray[np.int64],
    segments: tuple[int, int],
    carry: Carry,
    scan: Scan,
    results: tuple[VTrace, Carry],
) -> None:
    """Enqueue one batch on the current stream; its results arrive with the stream's work."""
    here, span = slice(*segments), slice(offsets[0], offsets[-1])
    columns = (*(column[span] for column in rows[:4]), rows.bootstrap_value[here])
    batch = PackedRows(*send(columns, scan.device))
    dtype = getattr(torch, scan.dtype.name)
    given = Carry(*(column[here] for column in carry))
    found, first = scan_rows(
        batch, offsets - offsets[0], scan.thresholds, dtype, scan.outputs, given
    )
    for whole, part in zip(results[0], found, strict=True):
        if whole is not None:
            whole[span].copy_(part, non_blocking=True)
    for whole, part in zip(results[1], first, strict=True):
        whole[here].copy_(part, non_blocking=True)


def split_segments(offsets: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield the first segment of each batch, and that after its last."""
    low, last = 0, len(offsets) - 1
    while low < last:
        high = int(np.searchsorted(offsets, offsets[low] + BATCH_ROWS))
        high = min(max(high, low + 1), last)
        yield low, high
        low = high


def _list_streams(device: str) -> list[torch.cuda.Stream]:
    """Return the thread's streams on a GPU; none on a CPU."""
    if torch.device(device).type != "cuda":
        return []
    kept: dict[str, list[torch.cuda.Stream]] = _thread.__dict__.setdefault("streams", {})
    if device not in kept:
        kept[device] = [
            torch.cuda.Stream(device=device)  # type: ignore[no-untyped-call]
            for _ in range(STREAMS)
        ]
    return kept[device]
