"""A stream of batches from pinned memory through the kernel and back, copies beside compute."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch

from vtaudit.kernels import Thresholds, vtrace_packed
from vtaudit.kernels.launches import Cuts, mark_cuts
from vtaudit.kernels.stream import scan_segments
from vtaudit.kernels.targets import PackedRows, VTrace

TARGETS = frozenset({"value_target", "advantage"})
SLOTS = 3  # batches in flight


@dataclass(slots=True)
class Slot:
    """Memory of one batch in flight: on the device, and pinned for its results."""

    rows: list[torch.Tensor]
    results: list[torch.Tensor]
    loaded: torch.cuda.Event
    computed: torch.cuda.Event
    stored: torch.cuda.Event


class HostToHost:
    """Three streams: copies in, the kernel, copies out."""

    def __init__(self, batch: PackedRows, cuts: Cuts) -> None:
        self.batch, self.cuts = batch, cuts
        self.streams = [torch.cuda.Stream() for _ in range(3)]
        count = len(batch.value)
        self.slots = [
            Slot(
                [torch.empty_like(column, device="cuda") for column in batch],
                [torch.empty(count, pin_memory=True) for _ in TARGETS],
                *(torch.cuda.Event() for _ in range(3)),
            )
            for _ in range(SLOTS)
        ]

    def send(self, number: int, compute: Callable[[list[torch.Tensor]], VTrace]) -> None:
        """Enqueue one batch."""
        copy_in, kernel, copy_out = self.streams
        slot = self.slots[number % SLOTS]
        with torch.cuda.stream(copy_in):
            copy_in.wait_event(slot.computed)
            for there, here in zip(slot.rows, self.batch, strict=True):
                there.copy_(here, non_blocking=True)
            slot.loaded.record()
        with torch.cuda.stream(kernel):
            kernel.wait_event(slot.loaded)
            found = compute(slot.rows)
            slot.computed.record()
        with torch.cuda.stream(copy_out):
            copy_out.wait_event(slot.computed)
            for here, there in zip(slot.results, found[:2], strict=True):
                there.record_stream(copy_out)
                here.copy_(there, non_blocking=True)
            slot.stored.record()

    def run(self, batches: int, compute: Callable[[list[torch.Tensor]], VTrace]) -> float:
        """Return the seconds that so many batches take."""
        torch.cuda.synchronize()
        start = time.perf_counter()
        for number in range(batches):
            self.slots[number % SLOTS].stored.synchronize()
            self.send(number, compute)
        torch.cuda.synchronize()
        return time.perf_counter() - start


def stream_arrays(count: int, lengths: int, threads: int, backend: str) -> float:
    """Return the rows a second of NumPy arrays through `vtrace_packed`, some threads at once."""
    random = np.random.default_rng(0)
    offsets = np.arange(0, count + 1, lengths, dtype=np.int64)
    rows = (
        random.uniform(-3, 3, count).astype(np.float32),
        *random.normal(size=(2, count)).astype(np.float32),
        np.full(count, 0.99, np.float32),
        random.normal(size=len(offsets) - 1).astype(np.float32),
        offsets,
    )
    device = "cuda" if backend == "triton" else "cpu"

    def scan() -> VTrace:
        return vtrace_packed(*rows, backend=backend, device=device, outputs=TARGETS)

    found, expected = scan(), vtrace_packed(*rows, backend="numba", outputs=TARGETS)
    for name in TARGETS:
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), 1e-5, 1e-6)

    def drop(_: int) -> None:
        for _ in range(8):
            scan()

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(drop, range(threads)))
        start = time.perf_counter()
        list(pool.map(drop, range(threads)))
        return 8 * threads * count / (time.perf_counter() - start)


def stream_batches(count: int, lengths: int, batches: int) -> tuple[float, float, HostToHost]:
    """Return bytes a second with the kernel and of the copies alone, and the last batches."""
    offsets = np.arange(0, count + 1, lengths, dtype=np.int64)
    rows = PackedRows(
        log_ratio=6 * torch.rand(count) - 3,
        value=torch.randn(count),
        reward=torch.randn(count),
        discount=torch.full((count,), 0.99),
        bootstrap_value=torch.randn(len(offsets) - 1),
    )
    flow = HostToHost(PackedRows(*(c.pin_memory() for c in rows)), mark_cuts(offsets, "cuda"))

    def scan(columns: list[torch.Tensor]) -> VTrace:
        return scan_segments(PackedRows(*columns), flow.cuts, Thresholds(), torch.float32, TARGETS)

    def pass_through(columns: list[torch.Tensor]) -> VTrace:
        return VTrace(columns[1], columns[2], *[None] * 7)

    size = sum(4 * len(column) for column in rows) + 8 * count
    rates = {scan: 0.0, pass_through: 0.0}
    for _ in range(3):
        for compute in (pass_through, scan):
            flow.run(SLOTS, compute)
            rates[compute] = max(rates[compute], batches * size / flow.run(batches, compute))
    flow.run(SLOTS, scan)
    return rates[scan], rates[pass_through], flow
