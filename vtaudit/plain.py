"""Cells as values that JSON has."""

from __future__ import annotations

import math
from dataclasses import asdict, is_dataclass
from decimal import Decimal
from typing import Any


def to_plain(cell: Any) -> Any:
    """Return a cell as JSON values: NaN and infinities as text, decimals as numbers."""
    if isinstance(cell, float) and not math.isfinite(cell):
        return str(cell)
    if isinstance(cell, Decimal):
        return float(cell)
    if is_dataclass(cell) and not isinstance(cell, type):
        return to_plain(asdict(cell))
    if isinstance(cell, dict):
        return {str(key): to_plain(item) for key, item in cell.items()}
    return [to_plain(item) for item in cell] if isinstance(cell, list | tuple) else cell
