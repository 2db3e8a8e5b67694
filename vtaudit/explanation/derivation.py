"""Every term of one row's target and advantage, with its formula and the numbers in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from vtaudit.plan import Plan
from vtaudit.reasons import Warn
from vtaudit.shard import Shard


@dataclass(frozen=True, slots=True)
class Term:
    """One term.

    Attributes:
        name: as in the contract's formulas.
        formula: how it is made.
        filled: the formula with the numbers.
        value: in float64.
        stored: what the run's targets hold of it; None where they have no such column.
    """

    name: str
    formula: str
    filled: str
    value: float
    stored: float | None


@dataclass(frozen=True, slots=True)
class Numbers:
    """What the terms of a row are made of, in float64."""

    target_log_prob: float
    behavior_log_prob: float
    log_ratio: float
    gamma_t: float
    discount: float | None
    r: float
    V: float
    Vnext: float
    rho: float
    c: float
    pg_rho: float
    delta: float
    gate: float
    Delta_next: float
    Delta: float
    value_target: float
    vnext: float
    V_after: float
    advantage: float
    trace_next: float
    trace_length: float


def derive_terms(
    plan: Plan, shard: Shard, row: int, origin: str, stored: Mapping[str, Any]
) -> list[Term]:
    """Return the terms of a row of `shard.segments`, which has results in float64.

    Args:
        plan: of the run.
        shard: with one segment, the row's.
        row: the row's number in the shard.
        origin: where V(s_{t+1}) came from, in words.
        stored: the row in the run's targets, empty where it is not there.
    """
    numbers = _gather(plan, shard, row)
    is_last = int(shard.segments.rows[-1]) == row
    lines = [
        *_weight_lines(plan, numbers),
        *_sum_lines(numbers, origin, is_last=is_last),
    ]
    names = {"gamma_t": "discount", "r": "reward", "V": "value", "Vnext": "next_value"}
    return [
        Term(name, formula, filled, value, stored.get(names.get(name, name)))
        for name, formula, filled, value in lines
    ]


def show(value: float | None) -> str:
    """Return a float64 with as many digits as a sum on paper needs."""
    return "null" if value is None else f"{value:.12g}"


def _gather(plan: Plan, shard: Shard, row: int) -> Numbers:
    """Read the row's numbers, and sum what the trace carries from the steps after it."""
    results = shard.results
    assert results is not None
    place = int(np.flatnonzero(shard.segments.rows == row)[0])
    after = len(shard.segments.rows) - 1 - place
    gamma = shard.discount[shard.segments.rows]
    # a factor of 0 lets nothing through, NaN included
    gates = np.where(results.c * gamma == 0, 0.0, results.c * gamma)
    gates[-1] = 0.0
    carried = 0.0
    for t in range(place + after, place, -1):
        carried = float(results.delta[t]) + (float(gates[t]) * carried if gates[t] else 0.0)
    gate, delta = float(gates[place]), float(results.delta[place])
    log_probs = {
        name: _log_prob(plan, shard, row, name) for name in ("target_log_prob", "behavior_log_prob")
    }
    has_discount = "discount" in shard.rows.columns
    return Numbers(
        **log_probs,
        log_ratio=float(shard.log_ratio[row]),
        gamma_t=float(shard.discount[row]),
        discount=shard.rows["discount"][row] if has_discount else None,
        r=float(shard.columns.floats("reward")[row]),
        V=float(shard.columns.floats("value")[row]),
        Vnext=float(results.next_value[place]),
        rho=float(results.rho[place]),
        c=float(results.c[place]),
        pg_rho=float(results.pg_rho[place]),
        delta=delta,
        gate=gate,
        Delta_next=carried if gate else 0.0,
        Delta=delta + (gate * carried if gate else 0.0),
        value_target=float(results.value_target[place]),
        vnext=float(results.value_target[place + 1] if after else results.next_value[place]),
        V_after=float(results.next_value[place]),
        advantage=float(results.advantage[place]),
        trace_next=float(results.trace_length[place + 1]) if after else 0.0,
        trace_length=float(results.trace_length[place]),
    )


def _log_prob(plan: Plan, shard: Shard, row: int, name: str) -> float:
    """Return a log-prob as it counts: 0 for a discrete one just above 0."""
    value = float(shard.columns.floats(name)[row])
    is_rounded = bool(shard.found.warnings[row] & np.uint64(Warn.LOG_PROB_ROUNDED.bit))
    return 0.0 if is_rounded and 0 < value <= plan.settings.log_prob_tolerance else value


Line = tuple[str, str, str, float]


def _weight_lines(plan: Plan, n: Numbers) -> list[Line]:
    """Return the ratio and what is clipped from it."""
    settings = plan.settings
    with np.errstate(over="ignore"):
        ratio = float(np.exp(np.float64(n.log_ratio)))
    rounded = f", rounded to {settings.dtype}" if settings.dtype != "float64" else ""
    shown = show(ratio)
    gamma = show(settings.gamma)
    return [
        (
            "log_ratio",
            "target_log_prob - behavior_log_prob",
            f"{show(n.target_log_prob)} - {_signed(n.behavior_log_prob)}{rounded}",
            n.log_ratio,
        ),
        ("ratio", "exp(log_ratio)", f"exp({show(n.log_ratio)})", ratio),
        ("rho", "min(rho_bar, ratio)", f"min({show(settings.rho_bar)}, {shown})", n.rho),
        (
            "c",
            "lambda min(c_bar, ratio)",
            f"{show(settings.lambda_)} x min({show(settings.c_bar)}, {shown})",
            n.c,
        ),
        (
            "pg_rho",
            "min(pg_rho_bar, ratio)",
            f"min({show(settings.pg_rho_bar)}, {shown})",
            n.pg_rho,
        ),
        (
            "gamma_t",
            "gamma" if n.discount is None else "gamma discount",
            gamma if n.discount is None else f"{gamma} x {show(n.discount)}",
            n.gamma_t,
        ),
    ]


def _signed(value: float) -> str:
    return f"({show(value)})" if value < 0 else show(value)


def _sum_lines(n: Numbers, origin: str, *, is_last: bool) -> list[Line]:
    """Return the temporal difference, the target and the advantage."""
    cut = "0: the trace is cut here"
    own = f"{show(n.gamma_t)} x"
    error = f"({show(n.r)} + {own} {_signed(n.Vnext)} - {_signed(n.V)})"
    gain = f"({show(n.r)} + {own} {_signed(n.vnext)} - {_signed(n.V)})"
    return [
        ("r", "reward", "as logged", n.r),
        ("V", "value", "as given", n.V),
        ("Vnext", "V(s_{t+1})", origin, n.Vnext),
        ("delta", "rho (r + gamma_t Vnext - V)", f"{show(n.rho)} x {error}", n.delta),
        ("gamma_t c", "gamma_t c (1 - d)", cut if is_last else f"{own} {show(n.c)}", n.gate),
        (
            "Delta_next",
            "value_target_{t+1} - V_{t+1}",
            cut if is_last else f"{show(n.vnext)} - {_signed(n.V_after)}",
            n.Delta_next,
        ),
        (
            "Delta",
            "delta + gamma_t c Delta_{t+1}",
            f"{show(n.delta)} + {show(n.gate)} x {_signed(n.Delta_next)}",
            n.Delta,
        ),
        ("value_target", "V + Delta", f"{show(n.V)} + {_signed(n.Delta)}", n.value_target),
        ("vnext", "Vnext" if is_last else "value_target_{t+1}", "", n.vnext),
        ("advantage", "pg_rho (r + gamma_t vnext - V)", f"{show(n.pg_rho)} x {gain}", n.advantage),
        (
            "trace_length",
            "1 + c (1 - d) trace_length_{t+1}",
            "1" if is_last else f"1 + {show(n.c)} x {show(n.trace_next)}",
            n.trace_length,
        ),
    ]
