"""V-trace of windows of equal length, [num_envs, seq_len]: checks, cuts and bootstrap values."""

from __future__ import annotations

import functools
from collections.abc import Collection
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

from vtaudit.errors import SettingsError
from vtaudit.kernels.arguments import (
    Signature,
    ask_device,
    check_clip_counts,
    check_windows,
    choose_dtype,
    choose_outputs,
    complete_bootstraps,
    find_place,
    give_back,
    read_flags,
    sign_arrays,
    to_numpy,
    to_tensor,
)
from vtaudit.kernels.backends import resolve_backend
from vtaudit.kernels.packed import vtrace_packed
from vtaudit.kernels.targets import Array, PackedRows, Thresholds, VTrace

if TYPE_CHECKING:
    import torch

    from vtaudit.kernels.stream import Setup


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
    plan = _plan_call(
        sign_arrays(given),
        gamma,
        rho_bar,
        c_bar,
        pg_rho_bar,
        lambda_,
        time_major,
        backend,
        outputs if outputs is None else tuple(outputs),
    )
    check_clip_counts(clip_counts, plan.device)
    if plan.setup is None:
        return _run_laid_out(given, plan, time_major, clip_counts)
    given["bootstrap_values"] = complete_bootstraps(given, plan.gamma)
    return _scan_on_device(given, plan, clip_counts)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a call of these shapes, dtypes and settings does; see `vtrace`."""

    gamma: float
    thresholds: Thresholds
    dtype: str
    backend: str
    device: str | None
    place: str
    outputs: frozenset[str]
    setup: Setup | None


@functools.lru_cache(maxsize=256, typed=True)
def _plan_call(
    signature: Signature,
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
    device = find_place(signature)
    thresholds = Thresholds(rho_bar, c_bar, pg_rho_bar, lambda_)
    if isinstance(gamma, bool) or not isinstance(gamma, int | float) or not 0 <= gamma <= 1:
        raise SettingsError(f"gamma: found {gamma!r}, expected a number in [0, 1]")
    check_windows(signature, time_major=time_major)
    kinds = {name: kind for name, _, kind, _ in signature}
    backend, place = resolve_backend(backend, device or ask_device(backend, None))
    dtype, names = choose_dtype(None, kinds["value"], kinds["reward"]), choose_outputs(outputs)
    setup = None
    if backend == "triton" and device and not time_major:
        setup = _load_stream().set_up_windows(signature, float(gamma), thresholds, dtype, names)
    return _Plan(float(gamma), thresholds, dtype, backend, device, place, names, setup)


def _run_laid_out(
    given: dict[str, Array],
    plan: _Plan,
    time_major: bool,
    clip_counts: Array | None,
) -> VTrace:
    """Run on a copy where NumPy arrays came in, or another order of dimensions."""
    windows = {name: to_tensor(array, plan.place) for name, array in given.items()}
    if time_major:
        windows = {name: c.T if c.ndim == 2 else c for name, c in windows.items()}
    counts = clip_counts
    if clip_counts is not None and plan.device is None:
        counts = to_tensor(clip_counts, plan.place)
    windows["bootstrap_values"] = complete_bootstraps(windows, plan.gamma)
    scan = _scan_on_device if plan.backend == "triton" else _scan_packed
    found = scan(windows, plan, counts)
    if clip_counts is not None and counts is not clip_counts:
        clip_counts[:] = to_numpy(counts)
    return VTrace(*(give_back(column, plan.device is not None, time_major) for column in found))


def _scan_on_device(
    windows: dict[str, torch.Tensor], plan: _Plan, clip_counts: torch.Tensor | None
) -> VTrace:
    """Return the targets of windows as one stream of rows, without a look at any of them."""
    stream, setup = _load_stream(), plan.setup
    if setup is None:
        setup = stream.set_up_windows(
            sign_arrays(windows), plan.gamma, plan.thresholds, plan.dtype, plan.outputs
        )
    if plan.gamma == 0 and "discount" not in windows:
        windows["discount"] = windows["value"].new_zeros(windows["value"].shape)
    found: VTrace = stream.scan_windows(windows, setup, clip_counts)
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
