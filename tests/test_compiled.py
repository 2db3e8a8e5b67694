"""What compiled passes are given and how they are compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import types
from numba.core import caching

from vtaudit.compiled import array_of, compile_pass, compile_step, lay_out

SIGNATURE = types.void(array_of("float64"), array_of("float64", readonly=False))


@compile_step
def _halve(number: float) -> float:
    return number / 2


def _halve_all(numbers: Any, halves: Any) -> None:
    for i in range(len(numbers)):
        halves[i] = _halve(numbers[i])


def _invert_all(numbers: Any, inverses: Any) -> None:
    for i in range(len(numbers)):
        inverses[i] = 1 / numbers[i]


def test_pass_runs_without_a_cache_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    for cache in (caching.CompileResultCacheImpl, caching.CodeLibraryCacheImpl):
        monkeypatch.setattr(cache, "_locator_classes", [])
    halves = np.empty(2)
    compile_pass(_halve_all, SIGNATURE)(lay_out(np.array([1, 5]), "float64"), halves)
    assert halves.tolist() == [0.5, 2.5]


def test_division_by_zero_gives_what_numpy_gives() -> None:
    found = np.empty(3)
    compile_pass(_invert_all, SIGNATURE)(np.array([0.0, -0.0, np.nan]), found)
    assert found.tolist()[:2] == [np.inf, -np.inf]
    assert np.isnan(found[2])


def test_column_is_copied_only_where_it_has_to_be() -> None:
    numbers = np.arange(6)
    assert np.shares_memory(lay_out(numbers, "int64"), numbers)
    assert lay_out(numbers[::2], "int64").tolist() == [0, 2, 4]
    assert lay_out(numbers[::2], "int64").flags.c_contiguous
    assert lay_out(numbers > 2, "bool").dtype == np.bool_
    assert not lay_out(numbers, "int64").flags.writeable
    assert numbers.flags.writeable
