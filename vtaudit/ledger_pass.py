"""The loops over all rows of `ledger`, compiled: keys, and runs of equal numbers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from vtaudit.compiled import array_of, compile_pass, lay_out

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
NO_KEY = -1


class Numbered(NamedTuple):
    """The fields of `ledger.Keys`."""

    key: Any
    starts: Any
    counts: Any
    trajectory: Any
    step: Any


def number_keys(is_first: Bools, step: Ints, key_missing: Bools) -> Numbered:
    """Return the keys of rows in order; `is_first` rows are of another trajectory than before."""
    keys = Numbered(*(np.empty(len(step), np.int64) for _ in Numbered._fields))
    rows = (lay_out(is_first, "bool"), lay_out(step, "int64"), lay_out(key_missing, "bool"))
    count = _compile_keys()(*rows, keys)
    return Numbered(keys.key, *(column[:count].copy() for column in keys[1:]))


def find_runs(columns: Sequence[NDArray[np.integer]]) -> Ints:
    """Return the first rows of the runs of one combination  # [R]."""
    size = len(columns[0])
    is_first, firsts = np.zeros(size, np.bool_), np.empty(size, np.int64)
    for column in columns:
        _compile_marks()(lay_out(column, "int64"), is_first)
    count = _compile_list()(lay_out(is_first, "bool"), firsts)
    return firsts[:count].copy()


def spread_runs(numbers: Ints, firsts: Ints, rows: int) -> Ints:
    """Return the number of the run that each row is in  # [N]."""
    spread = np.empty(rows, np.int64)
    _compile_spread()(lay_out(numbers, "int64"), lay_out(firsts, "int64"), spread)
    return spread


@functools.cache
def _compile_keys() -> Callable[..., int]:
    keys = types.NamedUniTuple(_result("int64"), len(Numbered._fields), Numbered)
    rows = (array_of("bool"), array_of("int64"), array_of("bool"))
    return compile_pass(_number_keys, types.int64(*rows, keys))


@functools.cache
def _compile_marks() -> Callable[..., None]:
    return compile_pass(_mark_changes, types.void(array_of("int64"), _result("bool")))


@functools.cache
def _compile_list() -> Callable[..., int]:
    return compile_pass(_list_firsts, types.int64(array_of("bool"), _result("int64")))


@functools.cache
def _compile_spread() -> Callable[..., None]:
    numbers = (array_of("int64"), array_of("int64"))
    return compile_pass(_spread_runs, types.void(*numbers, _result("int64")))


def _result(dtype: str) -> types.Array:
    return array_of(dtype, readonly=False)


def _number_keys(is_first: Any, step: Any, key_missing: Any, keys: Any) -> int:
    """Fill `keys`; return how many there are."""
    count, trajectory = 0, 0
    for row in range(len(step)):
        trajectory += is_first[row]
        if key_missing[row]:
            keys.key[row] = NO_KEY
            continue
        last = count - 1
        if count and trajectory == keys.trajectory[last] and step[row] == keys.step[last]:
            keys.counts[last] += 1
        else:
            keys.starts[count], keys.counts[count] = row, 1
            keys.trajectory[count], keys.step[count] = trajectory, step[row]
            count += 1
        keys.key[row] = count - 1
    return count


def _mark_changes(column: Any, is_first: Any) -> None:
    if len(column):
        is_first[0] = True
    for row in range(1, len(column)):
        is_first[row] |= column[row] != column[row - 1]


def _list_firsts(is_first: Any, firsts: Any) -> int:
    count = 0
    for row in range(len(is_first)):
        if is_first[row]:
            firsts[count] = row
            count += 1
    return count


def _spread_runs(numbers: Any, firsts: Any, spread: Any) -> None:
    for run in range(len(firsts)):
        stop = firsts[run + 1] if run + 1 < len(firsts) else len(spread)
        for row in range(firsts[run], stop):
            spread[row] = numbers[run]
