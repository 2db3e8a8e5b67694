"""V-trace of windows of equal length, [num_envs, seq_len]: checks, cuts and bootstrap values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vtaudit.errors import SettingsError
from vtaudit.kernels.backends import resolve_backend
from vtaudit.kernels.packed import (
    ask_device,
    choose_dtype,
    find_device,
    name_dtype,
    to_tensor,
    vtrace_packed,
)
from vtaudit.kernels.targets import Array, PackedRows, Thresholds, VTrace

if TYPE_CHECKING:
    import torch

NUMBERS = ("float16", "bfloat16", "float32", "float64")
FLAGS = ("bool", "uint8")


def vtrace(
    target_log_prob: Array,
    behavior_log_prob: Array,
    value: Array,
    reward: Array,
    terminated: Array,
    truncated: Array,
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
        gamma: in [0, 1].
        discount: [num_envs, seq_len], any float in [0, 1]; 1 if not given.
        rho_bar, c_bar, pg_rho_bar, lambda_: see `Thresholds`.
        bootstrap_values: [num_envs, seq_len], any float; V(s_{t+1}) where rows need a bootstrap.
        last_value: [num_envs], any float; V(s_{t+1}) of the last column, in its place.
        time_major: all two-dimensional arguments and results are [seq_len, num_envs].
        backend: see `vtrace_packed`; "auto" is Triton for CUDA tensors, else numba.

    Returns:
        Tensors, or NumPy arrays if those came in, of the shape of value, on its device; float64
        where value or reward is, else float32.

    Raises:
        SettingsError: an argument of a wrong kind, shape, dtype or range; a bootstrap missing.
        EngineError: the backend is not there.
    """
    thresholds = Thresholds(rho_bar, c_bar, pg_rho_bar, lambda_)
    arrays = {
        "target_log_prob": target_log_prob,
        "behavior_log_prob": behavior_log_prob,
        "value": value,
        "reward": reward,
        "terminated": terminated,
        "truncated": truncated,
        "discount": discount,
        "bootstrap_values": bootstrap_values,
        "last_value": last_value,
    }
    given = {name: array for name, array in arrays.items() if array is not None}
    device = find_device(given)
    _check_arguments(given, gamma, time_major)
    place = device or resolve_backend(backend, ask_device(backend, None))[1]
    windows = {name: _lay_out(array, place, time_major) for name, array in given.items()}
    rows, offsets = _pack(windows, float(gamma), choose_dtype(None, value, reward))
    packed = vtrace_packed(*rows, offsets, thresholds=thresholds, backend=backend)
    shaped = (_unpack(column, windows["value"].shape, time_major) for column in packed)
    return VTrace(*(column if device else column.cpu().numpy() for column in shaped))


def _check_arguments(given: dict[str, Array], gamma: float, time_major: bool) -> None:
    if isinstance(gamma, bool) or not isinstance(gamma, int | float) or not 0 <= gamma <= 1:
        raise SettingsError(f"gamma: found {gamma!r}, expected a number in [0, 1]")
    if "bootstrap_values" in given and "last_value" in given:
        raise SettingsError(
            "bootstrap_values, last_value: found both, expected at most one; bootstrap_values holds"
            " the last column's value too"
        )
    layout = "[seq_len, num_envs]" if time_major else "[num_envs, seq_len]"
    shape = tuple(given["value"].shape)
    if len(shape) != 2:
        raise SettingsError(f"value: found shape {shape}, expected {layout}")
    num_envs = shape[1] if time_major else shape[0]
    for name, array in given.items():
        is_last = name == "last_value"
        expected = f"[num_envs] = {(num_envs,)}" if is_last else f"{layout} = {shape}, like value"
        if tuple(array.shape) != ((num_envs,) if is_last else shape):
            raise SettingsError(f"{name}: found shape {tuple(array.shape)}, expected {expected}")
        dtypes = FLAGS if name in ("terminated", "truncated") else NUMBERS
        if (dtype := name_dtype(array)) not in dtypes:
            raise SettingsError(f"{name}: found dtype {dtype}, expected {' or '.join(dtypes)}")


def _lay_out(array: Array, device: str, time_major: bool) -> torch.Tensor:
    """Return a detached tensor, [num_envs, seq_len] where it has two dimensions."""
    tensor: torch.Tensor = to_tensor(array, device)
    return tensor.transpose(0, 1) if time_major and tensor.ndim == 2 else tensor


def _unpack(column: torch.Tensor, shape: torch.Size, time_major: bool) -> torch.Tensor:
    window = column.reshape(shape)
    return window.transpose(0, 1).contiguous() if time_major else window


def _pack(
    windows: dict[str, torch.Tensor], gamma: float, dtype: str
) -> tuple[PackedRows, torch.Tensor]:
    """Cut windows after each end of an episode and each last column; return rows and offsets."""
    import torch

    number = getattr(torch, dtype)
    terminated = windows["terminated"] != 0
    is_end = terminated | (windows["truncated"] != 0)
    is_end[:, -1:] = True
    ends = is_end.reshape(-1).nonzero()[:, 0]  # [S]
    offsets = torch.cat([ends.new_zeros(1), ends + 1])

    discount = torch.full_like(windows["value"], gamma, dtype=torch.float64)
    if "discount" in windows:
        discount = discount * windows["discount"]
    discount = discount.masked_fill(terminated, 0).reshape(-1)
    log_ratio = windows["target_log_prob"].double() - windows["behavior_log_prob"].double()
    rows = PackedRows(
        log_ratio=log_ratio.to(number).reshape(-1),
        value=windows["value"].to(number).reshape(-1),
        reward=windows["reward"].to(number).reshape(-1),
        discount=discount,
        bootstrap_value=_select_bootstraps(windows, ends, discount[ends] != 0).to(number),
    )
    return rows, offsets


def _select_bootstraps(
    windows: dict[str, torch.Tensor], ends: torch.Tensor, is_needed: torch.Tensor
) -> torch.Tensor:
    """Return V(s_{t+1}) of each segment's last row, anything where none is needed; all [S]."""
    if "bootstrap_values" in windows:
        return windows["bootstrap_values"].reshape(-1)[ends]
    seq_len = max(windows["value"].shape[1], 1)
    is_missing = is_needed
    found = windows["value"].new_zeros(len(ends))
    if "last_value" in windows:
        is_missing = is_needed & (ends % seq_len != seq_len - 1)
        found = windows["last_value"][ends // seq_len]
    if is_missing.any():
        env, step = divmod(int(ends[is_missing][0]), seq_len)
        raise SettingsError(
            f"bootstrap_values: missing for env {env}, step {step}, and needed in"
            f" {int(is_missing.sum())} place(s): at each truncation, and in the last column unless"
            " it is terminated; give bootstrap_values (last_value serves the last column only)"
        )
    return found
