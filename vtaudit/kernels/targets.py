"""The values that go into and come out of a V-trace kernel.

A field typed `Array` is a NumPy array or a torch tensor: results are of the kind that came in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from vtaudit.errors import SettingsError

Array: TypeAlias = Any

# a segment may be cut into pieces at multiples of this many rows, counted from its end, and every
# backend gives the bits of the whole; numba and the reference do at any cut
PIECE_ROWS = 512


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Clip thresholds of V-trace and its lambda, by their names in Espeholt et al. 2018.

    Attributes:
        rho_bar: clips the ratio that weighs the temporal difference; > 0, inf clips nothing.
        c_bar: clips the ratio that carries the trace; > 0, inf clips nothing.
        pg_rho_bar: clips the ratio that weighs the advantage; > 0, inf clips nothing.
        lambda_: scales c only (remark 2 of the paper); in [0, 1].

    Raises:
        SettingsError: a value is out of range.
    """

    rho_bar: float = 1.0
    c_bar: float = 1.0
    pg_rho_bar: float = 1.0
    lambda_: float = 1.0

    def __post_init__(self) -> None:
        for name in ("rho_bar", "c_bar", "pg_rho_bar"):
            bar = getattr(self, name)
            if not _is_number(bar) or not bar > 0:
                raise SettingsError(
                    f"{name}: found {bar!r}, expected a number > 0; inf clips nothing"
                )
        if not _is_number(self.lambda_) or not 0 <= self.lambda_ <= 1:
            raise SettingsError(f"lambda_: found {self.lambda_!r}, expected a number in [0, 1]")

    @property
    def parameters(self) -> tuple[float, ...]:
        """The three bars, the logarithm of each, and lambda: what a kernel needs."""
        bars = (float(self.rho_bar), float(self.c_bar), float(self.pg_rho_bar))
        return (*bars, *(math.log(bar) for bar in bars), float(self.lambda_))


class PackedRows(NamedTuple):
    """Segments laid one after the other: N rows of S segments, all floating point.

    Segment s holds the rows offsets[s] to offsets[s + 1] - 1, in time order.
    """

    log_ratio: Array  # [N]
    value: Array  # [N]
    reward: Array  # [N]
    discount: Array  # [N], gamma_t
    bootstrap_value: Array  # [S], V(s_{t+1}) of each segment's last row


class Carry(NamedTuple):
    """What a segment's last row needs of its successor, where a later call or piece holds that.

    Attributes:
        is_followed: whether the segment goes on; where not, the others are not read.
        delta_sum: Delta_{t+1} of the successor of the segment's last row.
        trace_length: trace_length_{t+1} of it.
    """

    is_followed: Array  # [S], bool
    delta_sum: Array  # [S], float64
    trace_length: Array  # [S], float64


class VTrace(NamedTuple):
    """Targets and everything they were made of; one shape, one dtype; None if not asked for.

    Attributes:
        value_target: v_t = V_t + Delta_t.
        advantage: pg_t (r_t + gamma_t v_{t+1} - V_t).
        log_ratio: log pi - log mu as every formula used it.
        rho: min(rho_bar, ratio).
        c: lambda min(c_bar, ratio).
        pg_rho: min(pg_rho_bar, ratio).
        delta: rho_t (r_t + gamma_t V_{t+1} - V_t).
        next_value: the V(s_{t+1}) used; 0 where terminated or where the discount is 0.
        trace_length: 1 + c_t trace_length_{t+1}, cut like the targets; the trace's reach in steps.
    """

    value_target: Array
    advantage: Array
    log_ratio: Array
    rho: Array
    c: Array
    pg_rho: Array
    delta: Array
    next_value: Array
    trace_length: Array


def _is_number(found: object) -> bool:
    return isinstance(found, int | float) and not isinstance(found, bool)
