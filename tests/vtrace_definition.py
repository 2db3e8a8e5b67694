"""V-trace as Espeholt et al. 2018 write it: sums and products, O(T^2), one segment at a time.

It shares nothing with the library. The rest of the module makes packed rows and compares results.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from vtaudit.kernels import Thresholds, VTrace

RELATIVE_TOLERANCE = 1e-5
ABSOLUTE_TOLERANCE = 1e-6


def define_segment(log_ratio, value, reward, discount, bootstrap, thresholds):
    """Return {name: [T]} for one segment of T finite rows, eq. (1) and section 4.2.

    v_s = V_s + sum over t >= s of (prod over s <= i < t of gamma_i c_i) delta_t
    delta_t = rho_t (r_t + gamma_t V_{t+1} - V_t)
    A_s = pg_s (r_s + gamma_s v_{s+1} - V_s), v_{s+1} = V_{s+1} where the sum ends at s
    trace_length_s = sum over t >= s of (prod over s <= i < t of c_i)

    The sums end with the segment, and with a row whose discount is 0.
    """
    steps = range(len(value))
    next_value = [*value[1:], bootstrap]
    next_value = [0.0 if discount[t] == 0 else next_value[t] for t in steps]
    rho = [min(thresholds.rho_bar, math.exp(x)) for x in log_ratio]
    c = [thresholds.lambda_ * min(thresholds.c_bar, math.exp(x)) for x in log_ratio]
    pg_rho = [min(thresholds.pg_rho_bar, math.exp(x)) for x in log_ratio]
    delta = [rho[t] * (reward[t] + discount[t] * next_value[t] - value[t]) for t in steps]
    end = [next((t for t in steps[s:] if discount[t] == 0), steps[-1]) for s in steps]

    target, trace_length = [], []
    for s in steps:
        reach = range(s, end[s] + 1)
        decay = [math.prod(discount[i] * c[i] for i in range(s, t)) for t in reach]
        target.append(value[s] + math.fsum(b * delta[t] for b, t in zip(decay, reach, strict=True)))
        trace_length.append(math.fsum(math.prod(c[i] for i in range(s, t)) for t in reach))
    next_target = [next_value[s] if s == end[s] else target[s + 1] for s in steps]
    advantage = [pg_rho[t] * (reward[t] + discount[t] * next_target[t] - value[t]) for t in steps]
    return {
        "value_target": target,
        "advantage": advantage,
        "log_ratio": list(log_ratio),
        "rho": rho,
        "c": c,
        "pg_rho": pg_rho,
        "delta": delta,
        "next_value": next_value,
        "trace_length": trace_length,
    }


def define_packed(rows, thresholds):
    """Return the definition's VTrace of packed rows, float64."""
    columns = {name: [] for name in VTrace._fields}
    lists = [np.asarray(column, np.float64).tolist() for column in rows[:5]]
    for segment, (start, stop) in enumerate(pairwise(rows[5].tolist())):
        if stop > start:
            parts = [column[start:stop] for column in lists[:4]]
            defined = define_segment(*parts, lists[4][segment], thresholds)
            for name, column in defined.items():
                columns[name].extend(column)
    return VTrace(**{name: np.array(column) for name, column in columns.items()})


def make_rows(lengths, dtype=np.float32, *, seed=0, zero_discounts=True, span=3.0):
    """Return log_ratio, value, reward, discount, bootstrap_value, offsets; log-ratios in ±span."""
    random = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(np.asarray(lengths, np.int64))]).astype(np.int64)
    count = int(offsets[-1])
    discount = random.uniform(0.9, 1.0, count)
    if zero_discounts:
        discount[random.random(count) < 0.03] = 0
    return (
        random.uniform(-span, span, count).astype(dtype),
        random.normal(size=count).astype(dtype),
        random.normal(size=count).astype(dtype),
        discount.astype(dtype),
        random.normal(size=len(offsets) - 1).astype(dtype),
        offsets,
    )


def make_zero_factor_rows(poison):
    """Return a segment of 8 rows with `poison` where only factors of 0 could pass it on.

    Rows 2 and 4 have a ratio of 0 and a poisoned reward; row 7 has discount 0 and a poisoned
    bootstrap.
    """
    rows = make_rows([8], np.float64, zero_discounts=False)
    rows[0][[2, 4]] = -math.inf
    rows[2][[2, 4]] = poison
    rows[3][7] = 0
    rows[4][:] = poison
    return rows


def to_numpy(column):
    return column if isinstance(column, np.ndarray) else column.cpu().numpy()


def assert_close(actual, expected, *, rtol=RELATIVE_TOLERANCE, atol=ABSOLUTE_TOLERANCE):
    """Compare two VTraces element by element; NaN equals NaN, inf equals inf."""
    for name in VTrace._fields:
        np.testing.assert_allclose(
            to_numpy(getattr(actual, name)).astype(np.float64),
            to_numpy(getattr(expected, name)).astype(np.float64),
            rtol=rtol,
            atol=atol,
            err_msg=name,
        )


def assert_same_bits(actual, expected, rows=slice(None)):
    for name in VTrace._fields:
        a, b = (to_numpy(getattr(result, name))[rows] for result in (actual, expected))
        assert a.dtype == b.dtype, name
        assert a.tobytes() == b.tobytes(), name


THRESHOLDS = {
    "ones": Thresholds(),
    "apart": Thresholds(rho_bar=1.5, c_bar=1.0, pg_rho_bar=2.0, lambda_=0.9),
    "open": Thresholds(rho_bar=math.inf, c_bar=1.0, pg_rho_bar=math.inf, lambda_=0.95),
    "no_trace": Thresholds(lambda_=0.0),
}
