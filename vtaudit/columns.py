"""Columns of a shard as arrays, and those that are computed from them: gamma_t and log_ratio."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from vtaudit.canonical import PRESENT
from vtaudit.plan import Plan

Floats = NDArray[np.float64]


def floats(rows: pl.DataFrame, name: str) -> Floats:
    """Return a column with NaN for null, all NaN where it is not mapped."""
    if name not in rows.columns:
        return np.full(rows.height, np.nan)
    # Arrow fills nulls in half the time that Polars takes
    return np.asarray(rows[name].to_arrow().to_numpy(zero_copy_only=False))


def gamma_of(plan: Plan, rows: pl.DataFrame) -> Floats:
    """Return gamma_t = gamma x discount_t of each row  # [N]."""
    gamma = float(plan.settings.gamma or 0.0)
    if "discount" not in rows.columns:
        return np.full(rows.height, gamma)
    discount = np.where(rows[PRESENT + "discount"], floats(rows, "discount"), 1.0)
    return gamma * discount


def log_ratio_of(plan: Plan, rows: pl.DataFrame) -> NDArray[np.floating]:
    """Return target - behavior log-prob, subtracted in float64 and rounded once, NaN for none."""
    parts = []
    for name in ("target_log_prob", "behavior_log_prob"):
        log_prob = floats(rows, name)
        if plan.shape.is_discrete and (log_prob > 0).any():
            rounded = (log_prob > 0) & (log_prob <= plan.settings.log_prob_tolerance)
            log_prob = np.where(rounded, 0.0, log_prob)
        parts.append(log_prob)
    with np.errstate(invalid="ignore", over="ignore"):
        return (parts[0] - parts[1]).astype(plan.settings.dtype)
