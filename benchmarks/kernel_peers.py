"""Peers of the kernel: other ways to compute V-trace targets of the same windows on a GPU."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

Windows = dict[str, torch.Tensor]

CUDA_SOURCE = r"""
extern "C" __global__ void vtrace(
    const float* target, const float* behavior, const float* value, const float* reward,
    const unsigned char* ends, const float* bootstrap, float* value_target, float* advantage,
    float gamma, int num_envs, int seq_len)
{
    int env = blockIdx.x * blockDim.x + threadIdx.x;
    if (env >= num_envs) return;
    float delta_sum = 0;
    for (int t = seq_len - 1; t >= 0; --t) {
        long long i = (long long)env * seq_len + t;
        unsigned char end = t == seq_len - 1 && ends[i] == 0 ? 2 : ends[i];
        float rho = fminf(1.0f, expf(target[i] - behavior[i]));
        float next = end & 1 ? 0.0f : end & 2 ? bootstrap[i] : value[i + 1];
        float error = reward[i] + gamma * next - value[i];
        float later = end ? 0.0f : gamma * delta_sum;
        delta_sum = rho * (error + later);
        value_target[i] = value[i] + delta_sum;
        advantage[i] = rho * (error + later);
    }
}
"""


@dataclass(frozen=True, slots=True)
class Peer:
    """A way to compute targets.

    Attributes:
        run: computes on the device and returns what `read` takes.
        read: returns the targets as a tensor.
        measure: given a timer of device events, returns the times of `run`.
        most_steps: of the windows it is timed with: some take a launch or more for each step.
    """

    run: Callable[[], Any]
    read: Callable[[Any], torch.Tensor]
    measure: Callable[[Callable[..., Any]], Any]
    most_steps: int = 1 << 30


def _time_run(run: Callable[[], Any]) -> Callable[[Callable[..., Any]], Any]:
    return lambda measure: measure(run)


def _split(windows: Windows, gamma: float) -> tuple[torch.Tensor, ...]:
    """Return rho, next value, discount and carry of each row."""
    rho = (windows["target_log_prob"] - windows["behavior_log_prob"]).exp().clamp(max=1)
    is_end = windows["ends"] == 2
    is_end = torch.cat([is_end[:, :-1], torch.ones_like(is_end[:, :1])], 1)
    discount = torch.where(windows["ends"] == 1, 0.0, gamma)
    value = windows["value"]
    following = torch.cat([value[:, 1:], value[:, :1]], 1)
    next_value = torch.where(is_end, windows["bootstrap_values"], following)
    return rho, next_value, discount, torch.where(is_end, 0.0, discount * rho)


def double(windows: Windows, gamma: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return targets and advantages by doubling: log2(seq_len) passes."""
    rho, next_value, discount, carry = _split(windows, gamma)
    value = windows["value"]
    error = windows["reward"] + discount * next_value - value
    delta_sum, weight, step = rho * error, carry, 1
    while step < value.shape[1]:
        pad = torch.zeros_like(value[:, :step])
        delta_sum = delta_sum + weight * torch.cat([delta_sum[:, step:], pad], 1)
        weight = weight * torch.cat([weight[:, step:], pad], 1)
        step *= 2
    later = torch.cat([delta_sum[:, 1:], torch.zeros_like(value[:, :1])], 1)
    gate = torch.where(carry != 0, discount, 0.0)
    return value + delta_sum, rho * (error + gate * later)


def compile_doubling(windows: Windows, gamma: float) -> Peer:
    compiled = torch.compile(double, dynamic=False)

    def run() -> tuple[torch.Tensor, torch.Tensor]:
        return compiled(windows, gamma)

    return Peer(run, lambda found: found[0], _time_run(run))


def thread_a_row(windows: Windows, gamma: float) -> Peer:
    """A CUDA kernel with one thread for each window."""
    import cupy

    kernel = cupy.RawKernel(CUDA_SOURCE, "vtrace")
    num_envs, seq_len = windows["value"].shape
    names = ("target_log_prob", "behavior_log_prob", "value", "reward", "ends", "bootstrap_values")
    arrays = [cupy.from_dlpack(windows[name]) for name in names]
    stream = cupy.cuda.Stream.from_external(torch.cuda.current_stream())

    def run() -> torch.Tensor:
        value_target, advantage = torch.empty((2, num_envs, seq_len), device="cuda").unbind()
        out = [cupy.from_dlpack(value_target), cupy.from_dlpack(advantage)]
        sizes = (cupy.float32(gamma), cupy.int32(num_envs), cupy.int32(seq_len))
        with stream:
            kernel((-(-num_envs // 128),), (128,), (*arrays, *out, *sizes))
        return value_target

    return Peer(run, lambda found: found, _time_run(run))


def run_rl_triton(windows: Windows, gamma: float) -> Peer:
    """rl-triton's compute_vtrace: flags as float32, bootstraps 0 where none is needed."""
    from rl_triton import compute_vtrace

    ends, bootstrap = windows["ends"], windows["bootstrap_values"]
    is_needed = ends == 2
    is_needed[:, -1] |= ends[:, -1] == 0
    bootstrap = torch.where(is_needed, bootstrap, 0.0)
    columns = [windows[name] for name in ("target_log_prob", "behavior_log_prob", "value")]
    flags = [(ends == code).float() for code in (1, 2)]

    def run() -> Any:
        return compute_vtrace(
            *columns, windows["reward"], *flags, gamma=gamma, bootstrap_values=bootstrap
        )

    return Peer(run, lambda found: found[0], _time_run(run))


def run_torchrl(windows: Windows, gamma: float) -> Peer:
    """TorchRL's vtrace_advantage_estimate, which is given next values; a launch a step."""
    from torchrl.objectives.value.functional import vtrace_advantage_estimate

    ends, next_value = windows["ends"], _split(windows, gamma)[1]
    names = ("target_log_prob", "behavior_log_prob", "value")
    columns = [windows[name] for name in names] + [next_value, windows["reward"], ends != 0]
    columns = [column.unsqueeze(-1) for column in (*columns, ends == 1)]

    def run() -> Any:
        return vtrace_advantage_estimate(gamma, *columns)

    return Peer(run, lambda found: found[1].squeeze(-1), _time_run(run), most_steps=2048)


def run_rlax(windows: Windows, gamma: float) -> Peer:
    """rlax's vtrace_td_error_and_advantage; a step of a loop a step.

    It knows no truncation: there the bootstrap is given as a part of the reward, and discount 0.
    """
    import jax
    import rlax

    _, next_value, discount, _ = _split(windows, gamma)
    ratio = (windows["target_log_prob"] - windows["behavior_log_prob"]).exp()
    is_truncated = windows["ends"] == 2
    reward = windows["reward"] + torch.where(is_truncated, discount * next_value, 0.0)
    discount = torch.where(is_truncated, 0.0, discount)
    parts = (windows["value"], next_value, reward, discount, ratio)
    arrays = [jax.dlpack.from_dlpack(part.contiguous()) for part in parts]

    @jax.jit
    def targets(*columns: Any) -> Any:
        found = jax.vmap(rlax.vtrace_td_error_and_advantage)(*columns)
        return found.errors + columns[0], found.pg_advantage

    def run() -> Any:
        return targets(*arrays)

    return Peer(run, lambda found: torch.from_dlpack(found[0]), _time_jax(run), most_steps=2048)


def scan_in_jax(windows: Windows, gamma: float) -> Peer:
    """jax.lax.associative_scan, given ratios and next values."""
    import jax
    import jax.numpy as jnp

    def compose(later: Any, earlier: Any) -> Any:
        return earlier[0] + earlier[1] * later[0], earlier[1] * later[1]

    @jax.jit
    def targets(
        rho: Any, next_value: Any, discount: Any, carry: Any, value: Any, reward: Any
    ) -> Any:
        error = reward + discount * next_value - value
        pairs = (rho * error, carry)
        delta_sum, _ = jax.lax.associative_scan(compose, pairs, axis=1, reverse=True)
        later = jnp.concatenate([delta_sum[:, 1:], jnp.zeros_like(value[:, :1])], 1)
        return value + delta_sum, rho * (error + jnp.where(carry != 0, discount * later, 0))

    parts = (*_split(windows, gamma), windows["value"], windows["reward"])
    arrays = [jax.dlpack.from_dlpack(part.contiguous()) for part in parts]

    def run() -> Any:
        return targets(*arrays)

    return Peer(run, lambda found: torch.from_dlpack(found[0]), _time_jax(run))


def _time_jax(run: Callable[[], Any]) -> Callable[[Callable[..., Any]], Any]:
    """Time by the host, ten calls at once: torch's events do not see what JAX launches."""
    import jax

    def measure(_: Callable[..., Any]) -> tuple[float, float, float]:
        jax.block_until_ready(run())
        seconds = []
        for _ in range(10):
            start = time.perf_counter()
            jax.block_until_ready([run() for _ in range(10)])
            seconds.append((time.perf_counter() - start) / 10)
        median, low, high = np.quantile(seconds, [0.5, 0.2, 0.8]).tolist()
        return median, low, high

    return measure


PEERS = {
    "torch.compile of a doubling scan": ("torch", compile_doubling),
    "CUDA, one thread a row (CuPy)": ("cupy", thread_a_row),
    "JAX associative_scan (ratios given)": ("jax", scan_in_jax),
    "rl-triton": ("rl_triton", run_rl_triton),
    "TorchRL (next values given)": ("torchrl", run_torchrl),
    "rlax (next values given)": ("rlax", run_rlax),
}


def list_peers() -> tuple[dict[str, Callable[[Windows, float], Peer]], list[str]]:
    """Return the peers that are installed, and the names of those that are not."""
    found = {name: prepare for name, (module, prepare) in PEERS.items() if _is_installed(module)}
    return found, [name for name in PEERS if name not in found]


def _is_installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None
