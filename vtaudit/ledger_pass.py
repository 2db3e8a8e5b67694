"""The loop over all rows of `ledger`, compiled: keys."""

from __future__ import annotations

import functools
from collections.abc import Callable
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
    return Numbered(keys.key, *(column[:count] for column in keys[1:]))


@functools.cache
def _compile_keys() -> Callable[..., int]:
    keys = types.NamedUniTuple(_result("int64"), len(Numbered._fields), Numbered)
    rows = (array_of("bool"), array_of("int64"), array_of("bool"))
    return compile_pass(_number_keys, types.int64(*rows, keys))


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
