"""V-trace of one long stream of rows in float64, by doubling, and how much rounding may cost.

For streams too long for `vtrace_definition`, whose sums these are, taken 1, 2, 4, ... rows at a
time. All thresholds are 1. It shares nothing with the library.
"""

from __future__ import annotations

import torch


def define_stream(log_ratio, value, reward, discount, is_end, bootstrap):
    """Return value_target, advantage, and for each the sum that bounds its error; all [N] float64.

    The sum is over the trace of |weight| (|r| + |gamma V'| + |V|), V' the next value.

    Args:
        log_ratio, value, reward: [N].
        discount: [N], 0 where terminated.
        is_end: [N] bool, row has no successor.
        bootstrap: [N], read where is_end and discount is not 0.
    """
    log_ratio, value, reward, discount = (
        column.double() for column in (log_ratio, value, reward, discount)
    )
    rho = log_ratio.exp().clamp(max=1)
    is_interior = ~is_end & (discount != 0)
    next_value = torch.where(is_interior, _shift(value, 1), bootstrap.double())
    next_value = torch.where(discount != 0, next_value, 0)
    error = reward + discount * next_value - value
    size = reward.abs() + (discount * next_value).abs() + value.abs()
    decay = torch.where(is_interior, discount * rho, 0)
    delta_sum, bound = _sum_traces(decay, rho * error, rho * size)
    later = torch.where(is_interior, discount * _shift(delta_sum, 1), 0)
    later_bound = torch.where(is_interior, discount * _shift(bound, 1), 0)
    advantage = rho * (error + later)
    return value + delta_sum, advantage, value.abs() + bound, rho * (size + later_bound)


def _sum_traces(decay, *columns):
    """Return x_t = column_t + decay_t x_{t+1} of each column."""
    step, weight = 1, decay
    while step < len(decay) and bool(weight.any()):
        columns = [column + weight * _shift(column, step) for column in columns]
        weight = weight * _shift(weight, step)
        step *= 2
    return columns


def _shift(column, step):
    shifted = torch.zeros_like(column)
    shifted[:-step] = column[step:]
    return shifted
