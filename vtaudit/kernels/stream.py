"""One stream of rows on a device: what is asked for, allocated and launched."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np
import torch
from triton import knobs

from vtaudit.kernels import launches
from vtaudit.kernels.arguments import Signature
from vtaudit.kernels.launches import Cuts, Launch
from vtaudit.kernels.programs import Program, look_at
from vtaudit.kernels.targets import Array, PackedRows, Thresholds, VTrace
from vtaudit.kernels.triton_counts import add_counts_kernel
from vtaudit.kernels.triton_stream import vtrace_stream_kernel
from vtaudit.kernels.triton_words import CHAIN, NONE, REPAIR, TREE
from vtaudit.kernels.workspaces import find_workspace, give_slots, take_slots

# registers of a thread in float32 arithmetic, few enough for many programs on a multiprocessor; a
# tree or a chain that looks ahead needs more, as do more outputs than targets and advantages
REGISTERS, CARRY_REGISTERS, OUTPUT_REGISTERS = 40, 48, 56

# arguments whose dtype does not decide on that of the arithmetic
NARROW = ("target_log_prob", "behavior_log_prob", "terminated", "truncated", "ends")


class Columns(NamedTuple):
    """N rows in time order, contiguous tensors on one device; a cut is a code or a bit.

    Attributes:
        target_log_prob, behavior_log_prob: [N]; without behavior, target is the log-ratio.
        value, reward: [N].
        discount: [N]; multiplied by gamma. None for 1, but not where gamma is 0.
        ends: [N] uint8, 1 terminated, 2 truncated; flags of termination where `truncated` is
            given; of packed segments `Cuts.words`.
        truncated: [N] or None.
        bootstrap: [N], of packed segments [S].
    """

    target_log_prob: Array
    behavior_log_prob: Array | None
    value: Array
    reward: Array
    discount: Array | None
    ends: Array
    truncated: Array | None
    bootstrap: Array


class Setup(NamedTuple):
    """What a launch needs besides tensors: the same for calls that are alike."""

    launch: Launch
    window: int
    dtype: torch.dtype
    wanted: tuple[bool, ...]
    scans: int
    is_wide: bool
    bits: tuple[int, ...]
    programs: tuple[Program, ...]
    counter: Program


@functools.lru_cache(maxsize=256)
def set_up(
    launch: Launch,
    window: int,
    gamma: float,
    thresholds: Thresholds,
    dtype: torch.dtype,
    kinds: frozenset[torch.dtype],
    outputs: frozenset[str],
) -> Setup:
    """Return what a launch needs besides tensors.

    Args:
        launch: see `Launch`.
        window: rows of a window, whose last is cut; 0 for packed segments.
        gamma: the factor of all discounts.
        thresholds: clip thresholds and lambda.
        dtype: of the results. The arithmetic is float32 if no argument but a log-prob is float64
            and every bar is finite, else float64.
        kinds: dtypes of all arguments but log-probs and flags.
        outputs: names of VTrace's fields.
    """
    bars = {thresholds.rho_bar, thresholds.c_bar, thresholds.pg_rho_bar}
    is_wide = torch.float64 in {dtype, *kinds} or math.inf in bars
    if is_wide:  # limited by arithmetic, and programs wait longer for each other
        launch = launch._replace(group=launch.panels, turns=1)
    options = {
        "M": launch.chunk_rows // 4,
        "HAS_ONE_PANEL": launch.panels == 1,
        "HAS_GROUPS": launch.grid[2] > 1,
        "TURNS": launch.turns,
        "HAS_GAPS": math.prod(launch.grid) > launch.panels * (launch.chunks + launch.looks_ahead),
        "LOOKS_AHEAD": int(launch.looks_ahead),
        "WINDOW": launch.window,
        "ARE_BARS_ONE": bars == {1} and thresholds.lambda_ == 1,
        "IS_RESULT_WIDE": dtype == torch.float64,
        "IS_COMPUTE_WIDE": is_wide,
        "WAITS": not knobs.runtime.interpret,
        "num_warps": max(launch.chunk_rows // 128, 1),
    }
    limits = {} if is_wide else {"maxnreg": _limit_registers(launch, outputs)}
    return Setup(
        launch=launch,
        window=window,
        dtype=dtype,
        wanted=tuple(name in outputs for name in VTrace._fields),
        scans=2 if "trace_length" in outputs else 1,
        is_wide=is_wide,
        bits=_list_bits(gamma, thresholds, is_wide),
        programs=_list_programs(launch, options, limits),
        counter=Program(add_counts_kernel, (1, 1, 1), {**_start_early(), "num_warps": 8}),
    )


def _limit_registers(launch: Launch, outputs: frozenset[str]) -> int:
    if not outputs <= {"value_target", "advantage"}:
        return OUTPUT_REGISTERS
    is_simple = launch.carry in (NONE, CHAIN) and not launch.looks_ahead
    return REGISTERS if is_simple else CARRY_REGISTERS


def _list_programs(
    launch: Launch, options: dict[str, Any], limits: dict[str, int]
) -> tuple[Program, ...]:
    """Return what is launched one after the other."""
    scan = {"CARRY": launch.carry, "IS_EARLY": False, **options, **limits}
    programs = [Program(vtrace_stream_kernel, launch.grid, scan)]
    if launch.carry == TREE:
        repair = {"CARRY": REPAIR, **options, "HAS_GROUPS": False, **_start_early()}
        programs.append(Program(vtrace_stream_kernel, (launch.panels, 1, 1), repair))
    return tuple(programs)


@functools.cache
def _start_early() -> dict[str, bool]:
    """Return options of a kernel that is launched, where that works on every device, before the one
    ahead of it is done, and waits for it.
    """
    devices = range(torch.cuda.device_count())
    is_early = bool(devices) and all(torch.cuda.get_device_capability(i)[0] >= 9 for i in devices)
    return {"IS_EARLY": is_early, "launch_pdl": is_early}


def set_up_windows(
    signature: Signature,
    gamma: float,
    thresholds: Thresholds,
    dtype: str,
    outputs: frozenset[str],
) -> Setup:
    """Return `set_up` for arguments of `vtrace`."""
    shapes = {name: shape for name, shape, _, _ in signature}
    kinds = {kind for name, _, kind, _ in signature if name not in NARROW}
    launch = launches.launch_windows(*shapes["value"])
    number = getattr(torch, dtype)
    window = shapes["value"][1]
    return set_up(launch, window, gamma, thresholds, number, frozenset(kinds), outputs)


def scan_windows(
    windows: dict[str, torch.Tensor], setup: Setup, clip_counts: torch.Tensor | None = None
) -> VTrace:
    """Return the V-trace targets of windows [num_envs, seq_len], as `scan_columns` does.

    Args:
        windows: tensors on one device by the names of `vtrace`'s arguments, copied where they are
            not contiguous.
        setup: of `set_up_windows`.
        clip_counts: see `scan_columns`.
    """
    arrays = {name: column.contiguous() for name, column in windows.items()}
    terminated = arrays.get("terminated")
    columns = Columns(
        arrays["target_log_prob"],
        arrays["behavior_log_prob"],
        arrays["value"],
        arrays["reward"],
        arrays.get("discount"),
        arrays["ends"] if terminated is None else terminated,
        # a terminated row is not truncated: where none is, its own flags do no harm
        arrays.get("truncated", terminated),
        arrays["bootstrap_values"],
    )
    return scan_columns(columns, setup, clip_counts)


def scan_segments(
    rows: PackedRows,
    cuts: Cuts,
    thresholds: Thresholds,
    dtype: torch.dtype,
    outputs: frozenset[str],
    clip_counts: torch.Tensor | None = None,
) -> VTrace:
    """Return the V-trace targets of packed rows, as `scan_columns` does; tensors on one device."""
    log_ratio, value, reward, discount, bootstrap = rows
    if cuts.filled is not None:
        bootstrap = bootstrap[cuts.filled]
    log_ratio = log_ratio.to(dtype)
    kinds = frozenset({column.dtype for column in (value, reward, discount, bootstrap)})
    setup = set_up(cuts.launch, 0, 1.0, thresholds, dtype, kinds, outputs - {"log_ratio"})
    columns = Columns(log_ratio, None, value, reward, discount, cuts.words, None, bootstrap)
    found = scan_columns(columns, setup, clip_counts)
    return found._replace(log_ratio=log_ratio) if "log_ratio" in outputs else found


def scan_columns(columns: Columns, setup: Setup, clip_counts: torch.Tensor | None = None) -> VTrace:
    """Return the V-trace targets of a stream of rows, None for each output not asked for.

    Args:
        columns: see `Columns`.
        setup: see `set_up`.
        clip_counts: [3] int64, to which the numbers of rows with a clipped rho, c, pg_rho are
            added.
    """
    value, launch = columns.value, setup.launch
    results = [
        torch.empty_like(value, dtype=setup.dtype) if is_wanted else None
        for is_wanted in setup.wanted
    ]
    if value.numel():
        slots = None if clip_counts is None else take_slots(value.device)
        words, tag = find_workspace(launch, setup.scans, setup.is_wide, value.device)
        sizes = (value.numel(), setup.window, launch.panels, launch.chunks)
        _launch(setup.programs, (*columns, *results, slots, words), (*sizes, tag, *setup.bits))
        if slots is not None and clip_counts is not None:
            _launch((setup.counter,), (slots, clip_counts), (clip_counts.stride(0),))
            give_slots(slots)
    return VTrace(*results)


def _launch(
    programs: tuple[Program, ...], tensors: tuple[Any, ...], numbers: tuple[int, ...]
) -> None:
    """Launch programs one after the other on the device of the first tensor."""
    device = tensors[0].get_device()
    if device >= 0 and device != torch.cuda.current_device():
        with torch.cuda.device(device):
            _launch(programs, tensors, numbers)
        return
    look = look_at(tensors, device)
    for program in programs:
        program.launch(tensors, numbers, look)


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
