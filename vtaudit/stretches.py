"""Stretches of rows that are alike in some columns.

Labels of rows, as ids and versions, mostly come in long stretches, so it is their first rows that
are numbered and counted.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from vtaudit.labels import code_values

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Columns = Sequence[pl.Series | NDArray[np.generic]]


def mark_changes(column: pl.Series | NDArray[np.generic]) -> Bools:
    """Return whether each row but the first has another value than the one before it  # [N - 1]."""
    if isinstance(column, np.ndarray):
        return np.asarray(column[1:] != column[:-1])
    if isinstance(column.dtype, pl.Enum):
        column = column.to_physical()
    if column.null_count() or not column.dtype.is_integer():
        return column.ne_missing(column.shift()).to_numpy()[1:]
    return mark_changes(column.to_numpy())


def find_stretches(columns: Columns) -> Ints:
    """Return the first row of each stretch in which no column of N rows changes  # [R]."""
    rows = len(columns[0])
    is_first = np.zeros(rows, np.bool_)
    is_first[:1] = True
    for column in columns:
        is_first[1:] |= mark_changes(column)
    return np.flatnonzero(is_first)


def lengths_of(firsts: NDArray[np.integer], rows: int) -> Ints:
    """Return the rows of each stretch  # [R]."""
    return np.diff(firsts, append=rows)


def number_rows(columns: Columns, rows: int) -> Ints:
    """Return one number per distinct combination of the columns, from 0  # [N].

    Args:
        columns: of N rows; null is a value like others.
        rows: N, for there may be no columns.
    """
    if not columns:
        return np.zeros(rows, np.int64)
    firsts = find_stretches(columns)
    number = np.zeros(len(firsts), np.int64)
    for column in columns:
        code = column[firsts] if isinstance(column, np.ndarray) else code_values(column[firsts])
        _, each = np.unique(code, return_inverse=True)
        number = number * (int(each.max(initial=0)) + 1) + each
        _, number = np.unique(number, return_inverse=True)
    return np.repeat(number, lengths_of(firsts, rows))
