"""Columns of a shard as arrays, and those that are computed from them: gamma_t and log_ratio."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from vtaudit.canonical import PRESENT
from vtaudit.plan import Plan

Floats = NDArray[np.float64]
Number = TypeVar("Number", bound=np.number[Any])


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of N rows as arrays, each made once."""

    rows: pl.DataFrame
    _made: dict[str, Floats] = field(default_factory=dict)

    def floats(self, name: str) -> Floats:
        """Return a column with NaN for null, all NaN where it is not mapped; not to be written."""
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name]

    def _make(self, name: str) -> Floats:
        if name not in self.rows.columns:
            return np.full(self.rows.height, np.nan)
        # Arrow fills nulls in half the time that Polars takes
        made = self.rows[name].to_arrow().to_numpy(zero_copy_only=False)
        return np.asarray(made, np.float64)

    def nulls(self, name: str) -> NDArray[np.bool_]:
        """Return where a column is null  # [N]"""
        if not self.rows[name].null_count():
            return np.zeros(self.rows.height, np.bool_)
        return np.asarray(self.rows[name].is_null().to_numpy())


def choose(rows: NDArray[np.int64], size: int) -> pl.Series:
    """Return which rows of N, the size, are among some of them, which ascend  # [N] bool"""
    chosen = np.zeros(size, np.bool_)
    chosen[rows] = True
    return pl.Series(chosen)


def pick(column: NDArray[Number], chosen: pl.Series) -> NDArray[Number]:
    """Return the chosen rows of a column, in a quarter of the time that NumPy takes  # [A]"""
    picked: NDArray[Number] = pl.Series(column).filter(chosen).to_numpy()
    return picked


def gamma_of(plan: Plan, columns: Columns) -> Floats:
    """Return gamma_t = gamma x discount_t of each row  # [N]."""
    gamma, rows = float(plan.settings.gamma or 0.0), columns.rows
    if "discount" not in rows.columns:
        return np.full(rows.height, gamma)
    discount = np.where(rows[PRESENT + "discount"], columns.floats("discount"), 1.0)
    return gamma * discount


def log_ratio_of(plan: Plan, columns: Columns) -> NDArray[np.floating]:
    """Return target - behavior log-prob, subtracted in float64 and rounded once, NaN for none."""
    parts = []
    for name in ("target_log_prob", "behavior_log_prob"):
        log_prob = columns.floats(name)
        if plan.shape.is_discrete:
            above = np.flatnonzero(log_prob > 0)
            rounded = above[log_prob[above] <= plan.settings.log_prob_tolerance]
            if len(rounded):
                log_prob = log_prob.copy()
                log_prob[rounded] = 0.0
        parts.append(log_prob)
    with np.errstate(invalid="ignore", over="ignore"):
        return (parts[0] - parts[1]).astype(plan.settings.dtype)
