"""One stream of rows on a device: what is asked for, allocated and launched."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np
import torch
from triton import knobs

from vtaudit.kernels import launches
from vtaudit.kernels.launches import Cuts, Launch
from vtaudit.kernels.targets import Array, PackedRows, Thresholds, VTrace
from vtaudit.kernels.triton_stream import CLIP_SLOTS, vtrace_stream_kernel
from vtaudit.kernels.triton_words import CHAIN, NONE, REPAIR, TREE
from vtaudit.kernels.workspaces import find_workspace

# registers of a thread in float32 arithmetic: twelve programs fit a multiprocessor, ten with a
# chain, nine with a tree, eight with more outputs than targets and advantages
REGISTERS = {NONE: 40, CHAIN: 48, TREE: 56}
OUTPUT_REGISTERS = 64


class Stream(NamedTuple):
    """N rows in time order; a cut is a code or a bit.

    Attributes:
        target_log_prob, behavior_log_prob: [N]; without behavior, target is the log-ratio.
        value, reward: [N].
        discount: [N] or None, for 1; multiplied by gamma.
        ends: [N] uint8, 1 terminated, 2 truncated; flags of termination where `truncated` is
            given; of packed segments `Cuts.words`.
        truncated: [N] or None.
        bootstrap: [N], of packed segments [S].
        gamma: the factor of all discounts.
        window: rows of a window, whose last is cut; 0 for packed segments.
        launch: see `Launch`.
    """

    target_log_prob: Array
    behavior_log_prob: Array | None
    value: Array
    reward: Array
    discount: Array | None
    ends: Array
    truncated: Array | None
    bootstrap: Array
    gamma: float
    window: int
    launch: Launch


def scan_windows(
    windows: dict[str, torch.Tensor],
    gamma: float,
    thresholds: Thresholds,
    dtype: str,
    outputs: frozenset[str],
    clip_counts: torch.Tensor | None = None,
) -> VTrace:
    """Return the V-trace targets of windows [num_envs, seq_len], as `scan_stream` does.

    Args:
        windows: tensors on one device by the names of `vtrace`'s arguments, copied where they are
            not contiguous.
        gamma, thresholds, outputs, clip_counts: see `scan_stream`.
        dtype: "float32" or "float64".
    """
    columns = {name: column.contiguous() for name, column in windows.items()}
    terminated = columns.get("terminated")
    value = columns["value"]
    stream = Stream(
        target_log_prob=columns["target_log_prob"],
        behavior_log_prob=columns["behavior_log_prob"],
        value=value,
        reward=columns["reward"],
        discount=columns.get("discount"),
        ends=columns["ends"] if terminated is None else terminated,
        # a terminated row is not truncated: where none is, its own flags do no harm
        truncated=columns.get("truncated", terminated),
        bootstrap=columns["bootstrap_values"],
        gamma=gamma,
        window=value.shape[1],
        launch=launches.launch_windows(*value.shape),
    )
    return scan_stream(stream, thresholds, getattr(torch, dtype), outputs, clip_counts)


def scan_segments(
    rows: PackedRows,
    cuts: Cuts,
    thresholds: Thresholds,
    dtype: torch.dtype,
    outputs: frozenset[str],
    clip_counts: torch.Tensor | None = None,
) -> VTrace:
    """Return the V-trace targets of packed rows, as `scan_stream` does; tensors on one device."""
    bootstrap = rows.bootstrap_value if cuts.filled is None else rows.bootstrap_value[cuts.filled]
    log_ratio, value, reward, discount, _ = rows
    columns = (log_ratio.to(dtype), None, value, reward, discount, cuts.words, None, bootstrap)
    stream = Stream(*columns, gamma=1.0, window=0, launch=cuts.launch)
    return scan_stream(stream, thresholds, dtype, outputs, clip_counts)


def scan_stream(
    stream: Stream,
    thresholds: Thresholds,
    dtype: torch.dtype,
    outputs: frozenset[str],
    clip_counts: torch.Tensor | None = None,
) -> VTrace:
    """Return the V-trace targets of a stream, None for each output not asked for.

    Args:
        stream: contiguous tensors on one device.
        thresholds: clip thresholds and lambda.
        dtype: of the results. The arithmetic is float32 if no argument but a log-prob is float64
            and every bar is finite, else float64.
        outputs: names of VTrace's fields.
        clip_counts: [3] int64, to which the numbers of rows with a clipped rho, c, pg_rho are
            added.
    """
    value, discount = stream.value, stream.discount
    is_given = stream.behavior_log_prob is None and stream.target_log_prob.dtype == dtype
    setup = _set_up(
        stream.launch,
        thresholds,
        stream.gamma,
        dtype,
        (
            value.dtype,
            stream.reward.dtype,
            None if discount is None else discount.dtype,
            stream.bootstrap.dtype,
        ),
        outputs - {"log_ratio"} if is_given else outputs,
    )
    results = [torch.empty_like(value, dtype=dtype) if wanted else None for wanted in setup.wanted]
    if value.numel():
        slots = None
        if clip_counts is not None:
            slots = torch.zeros((CLIP_SLOTS, 3), dtype=torch.int64, device=value.device)
        words, tag = find_workspace(stream.launch, setup.scans, setup.is_wide, value.device)
        numbers = (value.numel(), stream.window, stream.launch.chunks, tag, *setup.bits)
        _launch((*stream[:8], *results, slots, words, *numbers), setup)
        if clip_counts is not None and slots is not None:
            clip_counts += slots.sum(0)
    if is_given and "log_ratio" in outputs:
        results[2] = stream.target_log_prob
    return VTrace(*results)


class _Setup(NamedTuple):
    """What a launch needs besides tensors: the same for calls that are alike."""

    wanted: tuple[bool, ...]
    scans: int
    is_wide: bool
    bits: tuple[int, ...]
    grid: tuple[int, int]
    options: dict[str, Any]
    repair_grid: tuple[int, int]
    repair_options: dict[str, Any] | None


@functools.lru_cache(maxsize=256)
def _set_up(
    launch: Launch,
    thresholds: Thresholds,
    gamma: float,
    dtype: torch.dtype,
    kinds: tuple[torch.dtype | None, ...],
    outputs: frozenset[str],
) -> _Setup:
    bars = (thresholds.rho_bar, thresholds.c_bar, thresholds.pg_rho_bar)
    is_wide = torch.float64 in (dtype, *kinds) or math.inf in bars
    options = {
        "M": launch.chunk_rows // 4,
        "HAS_ONE_PANEL": launch.panels == 1,
        "LOOKS_AHEAD": int(launch.looks_ahead),
        "WINDOW": launch.window,
        "HAS_ONE_BAR": len({*bars}) == 1 and bars[0] <= 1 and thresholds.lambda_ == 1,
        "IS_RESULT_WIDE": dtype == torch.float64,
        "IS_COMPUTE_WIDE": is_wide,
        "WAITS": not knobs.runtime.interpret,
        "num_warps": max(launch.chunk_rows // 128, 1),
    }
    limits = {}
    if not is_wide:
        limits["maxnreg"] = REGISTERS[launch.carry]
        if not outputs <= {"value_target", "advantage"}:
            limits["maxnreg"] = OUTPUT_REGISTERS
    return _Setup(
        wanted=tuple(name in outputs for name in VTrace._fields),
        scans=2 if "trace_length" in outputs else 1,
        is_wide=is_wide,
        bits=_list_bits(gamma, thresholds, is_wide),
        grid=_size_grid(launch),
        options={"CARRY": launch.carry, **options, **limits},
        repair_grid=(1, 1) if launch.panels == 1 else (launch.panels, 1),
        repair_options={"CARRY": REPAIR, **options} if launch.carry == TREE else None,
    )


def _launch(arguments: tuple[Any, ...], setup: _Setup) -> None:
    device = arguments[2].device
    if device.type == "cuda" and device.index != torch.cuda.current_device():
        with torch.cuda.device(device):
            _launch(arguments, setup)
        return
    vtrace_stream_kernel[setup.grid](*arguments, **setup.options)
    if setup.repair_options is not None:
        vtrace_stream_kernel[setup.repair_grid](*arguments, **setup.repair_options)


def _size_grid(launch: Launch) -> tuple[int, int]:
    if launch.panels == 1:
        return launch.chunks, 1
    return launch.panels, launch.chunks + launch.looks_ahead


def _list_bits(gamma: float, thresholds: Thresholds, is_wide: bool) -> tuple[int, ...]:
    """Return gamma and the thresholds' parameters as the kernel takes them, bits of numbers.

    Logarithms of bars are rounded down, so that a log-ratio in float32 is above the one exactly if
    it is above the other.
    """
    numbers = np.array([gamma, *thresholds.parameters])
    if is_wide:
        return tuple(numbers.view(np.int64).tolist())
    rounded = numbers.astype(np.float32)
    is_above = rounded > numbers
    is_above[[0, 1, 2, 3, 7]] = False
    rounded[is_above] = np.nextafter(rounded[is_above], np.float32(-np.inf))
    return tuple(rounded.view(np.int32).tolist())
