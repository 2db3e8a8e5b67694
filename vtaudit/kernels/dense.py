"""V-trace of windows of equal length, [num_envs, seq_len]: checks, cuts and bootstrap values."""

from __future__ import annotations

import functools
from collections.abc import Collection
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

from vtaudit.errors import SettingsError
from vtaudit.kernels.arguments import (
    ask_device,
    check_clip_counts,
    check_windows,
    choose_dtype,
    choose_outputs,
    complete_bootstraps,
    find_device,
    read_flags,
    to_numpy,
    to_tensor,
)
from vtaudit.kernels.backends import resolve_backend
from vtaudit.kernels.packed import vtrace_packed
from vtaudit.kernels.targets import Array, PackedRows, Thresholds, VTrace

if TYPE_CHECKING:
    import torch


def vtrace(
    target_log_prob: Array,
    behavior_log_prob: Array,
    value: Array,
    reward: Array,
    terminated: Array | None = None,
    truncated: Array | None = None,
    *,
    gamma: float,
    discount: Array | None = None,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
    pg_rho_bar: float = 1.0,
    lambda_: float = 1.0,
    bootstrap_values: Array | None = None,
    last_value: Array | None = None,
    time_major: bool = False,
    backend: str = "auto",
    ends: Array | None = None,
    outputs: Collection[str] | None = None,
    clip_counts: Array | None = None,
) -> VTrace:
    """Return the V-trace targets of [num_envs, seq_len] windows (Espeholt et al. 2018, eq. 1).

    With gamma_t = gamma discount_t, ratio_t = exp(target_log_prob_t - behavior_log_prob_t):

        rho_t = min(rho_bar, ratio_t), c_t = lambda min(c_bar, ratio_t)
        delta_t = rho_t (r_t + gamma_t V(s_{t+1}) - V_t)
        Delta_t = delta_t + gamma_t c_t Delta_{t+1}, value_target_t = V_t + Delta_t
        advantage_t = min(pg_rho_bar, ratio_t) (r_t + gamma_t value_target_{t+1} - V_t)

    V(s_{t+1}) is 0 at a terminated row or a discount of 0, the bootstrap at a truncated row and in
    the last column, else value_{t+1}; at all but the last of these the trace is cut, and at a
    bootstrap it stands for value_target_{t+1} too. Termination wins over truncation. Cuts select:
    a value that no row needs is never read, NaN included. Results carry no gradient.

    Args:
        target_log_prob, behavior_log_prob: [num_envs, seq_len], any float; log pi and log mu of
            the action. Subtracted in float64, then rounded once to the results' dtype.
        value, reward: [num_envs, seq_len], any float; V(s_t), and the reward of the action at t.
        terminated, truncated: [num_envs, seq_len], bool or uint8; row t was its episode's last.
            Without `truncated` no row was truncated.
        gamma: in [0, 1].
        discount: [num_envs, seq_len], any float in [0, 1]; 1 if not given.
        rho_bar, c_bar, pg_rho_bar, lambda_: see `Thresholds`.
        bootstrap_values: [num_envs, seq_len], any float; V(s_{t+1}) where rows need a bootstrap.
        last_value: [num_envs], any float; V(s_{t+1}) of the last column, in its place.
        time_major: all two-dimensional arguments and results are [seq_len, num_envs].
        backend: see `vtrace_packed`; "auto" is Triton for CUDA tensors, else numba. Triton
            computes in float32 where the results and everything but log-probs are float32 and no
            bar is infinite, gamma then rounded; it waits for the device only to find missing
            bootstraps, where bootstrap_values is not given and rows may be truncated.
        ends: [num_envs, seq_len], uint8, in place of both flags: 1 terminated, 2 truncated.
        outputs: fields of the result to fill; all by default, None for the others.
        clip_counts: see `vtrace_packed`.

    Returns:
        Tensors, or NumPy arrays if those came in, of the shape of value, on its device; float64
        where value or reward is, else float32.

    Raises:
        SettingsError: an argument of a wrong kind, shape, dtype or range; a bootstrap missing.
        EngineError: the backend is not there.
    """
    arrays = {
        "target_log_prob": target_log_prob,
        "behavior_log_prob": behavior_log_prob,
        "value": value,
        "reward": reward,
        "terminated": terminated,
        "truncated": truncated,
        "ends": ends,
        "discount": discount,
        "bootstrap_values": bootstrap_values,
        "last_value": last_value,
    }
    given = {name: array for name, array in arrays.items() if array is not None}
    device = find_device(given)
    check_clip_counts(clip_counts, device)
    plan = _plan_call(
        tuple([(name, array.shape, array.dtype) for name, array in given.items()]),
        device,
        gamma,
        rho_bar,
        c_bar,
        pg_rho_bar,
        lambda_,
        time_major,
        backend,
        outputs if outputs is None else tuple(outputs),
    )
    if device is None or time_major or plan.backend != "triton":
        return _run_laid_out(given, plan, time_major, clip_counts, device is not None)
    given["bootstrap_values"] = complete_bootstraps(given, plan.gamma)
    return _scan_on_device(given, plan, clip_counts)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a call of these shapes, dtypes and settings does; see `vtrace`."""

    gamma: float
    thresholds: Thresholds
    dtype: str
    backend: str
    place: str
    outputs: frozenset[str]


@functools.lru_cache(maxsize=256, typed=True)
def _plan_call(
    signature: tuple[tuple[str, tuple[int, ...], object], ...],
    device: str | None,
    gamma: float,
    rho_bar: float,
    c_bar: float,
    pg_rho_bar: float,
    lambda_: float,
    time_major: bool,
    backend: str,
    outputs: tuple[str, ...] | None,
) -> _Plan:
    """Check everything but numbers; once for calls that are alike, since checks take a while."""
    thresholds = Thresholds(rho_bar, c_bar, pg_rho_bar, lambda_)
    if isinstance(gamma, bool) or not isinstance(gamma, int | float) or not 0 <= gamma <= 1:
        raise SettingsError(f"gamma: found {gamma!r}, expected a number in [0, 1]")
    check_windows(signature, time_major=time_major)
    kinds = {name: kind for name, _, kind in signature}
    backend, place = resolve_backend(backend, device or ask_device(backend, None))
    dtype = choose_dtype(None, kinds["value"], kinds["reward"])
    return _Plan(float(gamma), thresholds, dtype, backend, place, choose_outputs(outputs))


def _run_laid_out(
    given: dict[str, Array],
    plan: _Plan,
    time_major: bool,
    clip_counts: Array | None,
    is_tensor: bool,
) -> VTrace:
    """Run on a copy where NumPy arrays came in, or another order of dimensions."""
    windows = {name: _lay_out(array, plan.place, time_major) for name, array in given.items()}
    counts = clip_counts
    if clip_counts is not None and not is_tensor:
        counts = to_tensor(clip_counts, plan.place)
    windows["bootstrap_values"] = complete_bootstraps(windows, plan.gamma)
    scan = _scan_on_device if plan.backend == "triton" else _scan_packed
    found = scan(windows, plan, counts)
    if clip_counts is not None and counts is not clip_counts:
        clip_counts[:] = to_numpy(counts)
    return VTrace(*(_give_back(column, is_tensor, time_major) for column in found))


def _lay_out(array: Array, device: str, time_major: bool) -> torch.Tensor:
    """Return a detached tensor, [num_envs, seq_len] where it has two dimensions."""
    tensor: torch.Tensor = to_tensor(array, device)
    return tensor.transpose(0, 1) if time_major and tensor.ndim == 2 else tensor


def _give_back(column: torch.Tensor | None, is_tensor: bool, time_major: bool) -> Array | None:
    if column is None:
        return None
    if time_major:
        column = column.transpose(0, 1).contiguous()
    return column if is_tensor else column.cpu().numpy()


def _scan_on_device(
    windows: dict[str, torch.Tensor], plan: _Plan, clip_counts: torch.Tensor | None
) -> VTrace:
    """Return the targets of windows as one stream of rows, without a look at any of them."""
    stream = _load_stream()
    found: VTrace = stream.scan_windows(
        windows, plan.gamma, plan.thresholds, plan.dtype, plan.outputs, clip_counts
    )
    return found


@functools.cache
def _load_stream() -> ModuleType:
    """Import the kernel when it is first needed: it takes seconds."""
    from vtaudit.kernels import stream

    return stream


def _scan_packed(
    windows: dict[str, torch.Tensor], plan: _Plan, clip_counts: torch.Tensor | None
) -> VTrace:
    """Return the targets of windows cut after each end of an episode and each last column."""
    import torch

    number = getattr(torch, plan.dtype)
    terminated, truncated = read_flags(windows)
    is_end = terminated | truncated
    is_end[:, -1:] = True
    ends = is_end.reshape(-1).nonzero()[:, 0]  # [S]
    discount = torch.full_like(windows["value"], plan.gamma, dtype=torch.float64)
    if "discount" in windows:
        discount = discount * windows["discount"]
    log_ratio = windows["target_log_prob"].double() - windows["behavior_log_prob"].double()
    rows = PackedRows(
        log_ratio=log_ratio.to(number).reshape(-1),
        value=windows["value"].to(number).reshape(-1),
        reward=windows["reward"].to(number).reshape(-1),
        discount=discount.masked_fill(terminated, 0).reshape(-1),
        bootstrap_value=windows["bootstrap_values"].reshape(-1)[ends].to(number),
    )
    offsets = torch.cat([ends.new_zeros(1), ends + 1])
    found = vtrace_packed(
        *rows,
        offsets,
        thresholds=plan.thresholds,
        backend=plan.backend,
        outputs=plan.outputs,
        clip_counts=clip_counts,
    )
    shape = windows["value"].shape
    return VTrace(*(None if column is None else column.reshape(shape) for column in found))
