"""The loops over all rows of `counts`, compiled: states, histograms, distinct things of groups."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from vtaudit.compiled import array_of, compile_pass, compile_step, lay_out

Ints = NDArray[np.integer]
# slots of the table of states at first; it grows where a shard has more states than half of them
FIRST_SLOTS = 1024
# of a code: boundary and source, four bits each, and whether there is a ratio; clips follow
CODE_BITS = 9
GROWTH = 8
HASH_FACTOR = np.uint64(0x9E3779B97F4A7C15)
HASH_SHIFT = np.uint64(29)


class Columns(NamedTuple):
    """What makes the state of a row, as in `records.Verdicts`; and the logarithms of the clips."""

    reasons: Any
    warnings: Any
    boundary: Any
    source: Any
    log_ratio: Any
    log_bars: Any


COLUMN_DTYPES = ("uint64", "uint64", "uint8", "uint8", "float64", "float64")


class Table(NamedTuple):
    """The states found so far.

    Attributes:
        slots: a hash table of numbers of states, -1 for none.
        firsts: the first row of each state  # [S] int64
        codes: of each state, its boundary, source, has_ratio and clips  # [S] int64
        plain: by code, the state without reasons and warnings, which most rows have, -1 for none.
    """

    slots: Any
    firsts: Any
    codes: Any
    plain: Any


def number_states(columns: Columns) -> tuple[Ints, Ints]:
    """Return the number of each row's state  # [N], and the first row of each state  # [S]."""
    laid_out = (lay_out(*each) for each in zip(columns, COLUMN_DTYPES, strict=True))
    arguments, slots = Columns(*laid_out), FIRST_SLOTS
    state = np.empty(len(arguments.reasons), np.int32)
    while True:
        firsts, codes = (np.empty(slots // 2, np.int64) for _ in range(2))
        plain = np.full(1 << CODE_BITS + len(columns.log_bars), -1, np.int32)
        table = Table(np.full(slots, -1, np.int32), firsts, codes, plain)
        count = _compile_states()(arguments, table, state)
        if count >= 0:
            return state, table.firsts[:count]
        slots *= GROWTH


def count_pairs(group: Ints, firsts: Ints, state: Ints, groups: int, states: int) -> Ints:
    """Return how many rows each group has of each state  # [G x S].

    Args:
        group: of each stretch  # [R]
        firsts: the first row of each stretch  # [R]
        state: of each row  # [N]
        groups: how many there may be.
        states: how many there may be.
    """
    counts = np.zeros(groups * states, np.int64)
    stretches = (lay_out(group, "int32"), lay_out(firsts, "int64"))
    _compile_pairs()(*stretches, lay_out(state, "int32"), states, counts)
    return counts


def count_distinct(group: Ints, number: Ints, groups: int, size: int) -> Ints:
    """Return how many distinct numbers, but -1, each group has  # [G].

    Args:
        group: of each row or stretch  # [N]
        number: of each of them, below `size`  # [N]
        groups: how many there may be.
        size: how many numbers there may be.
    """
    counts, first = np.zeros(groups, np.int64), np.full(size, -1, np.int32)
    others = np.empty(len(number), np.int64)
    arguments = (lay_out(group, "int32"), lay_out(number, "int64"))
    found = _compile_distinct()(*arguments, first, counts, others)
    if found:
        counts += np.bincount(np.unique(others[:found]) // size, minlength=groups)
    return counts


@functools.cache
def _compile_states() -> Callable[..., int]:
    columns = types.NamedTuple([array_of(dtype) for dtype in COLUMN_DTYPES], Columns)
    dtypes = ("int32", "int64", "int64", "int32")
    table = types.NamedTuple([array_of(dtype, readonly=False) for dtype in dtypes], Table)
    return compile_pass(_number_states, types.int64(columns, table, _result("int32")))


@functools.cache
def _compile_pairs() -> Callable[..., None]:
    numbers = (array_of("int32"), array_of("int64"), array_of("int32"))
    return compile_pass(_count_pairs, types.void(*numbers, types.int64, _result("int64")))


@functools.cache
def _compile_distinct() -> Callable[..., int]:
    results = (_result("int32"), _result("int64"), _result("int64"))
    signature = types.int64(array_of("int32"), array_of("int64"), *results)
    return compile_pass(_count_distinct, signature)


def _result(dtype: str) -> types.Array:
    return array_of(dtype, readonly=False)


def _number_states(columns: Any, table: Any, state: Any) -> int:
    """Fill `state` and the table; return how many states there are, -1 if they are too many."""
    count = 0
    for row in range(len(state)):
        code = _encode(columns, row)
        is_plain = columns.reasons[row] == 0 and columns.warnings[row] == 0
        number = table.plain[code] if is_plain else np.int32(-1)
        if number < 0:
            slot = _find_slot(columns, table, row, code)
            if table.slots[slot] < 0:
                if count == len(table.firsts):
                    return -1
                table.slots[slot] = count
                table.firsts[count], table.codes[count] = row, code
                count += 1
            number = table.slots[slot]
            if is_plain:
                table.plain[code] = number
        state[row] = number
    return count


@compile_step
def _encode(columns: Any, row: int) -> Any:
    """Return one number for boundary, source, whether there is a ratio, and which clips bind."""
    log_ratio = columns.log_ratio[row]
    # there are fewer than 15 of each, and NOT_CUT becomes 0
    code = ((np.int64(columns.boundary[row]) + 1) & 15) << 4
    code |= (np.int64(columns.source[row]) + 1) & 15
    code = 2 * code + (not np.isnan(log_ratio))
    for log_bar in columns.log_bars:
        code = 2 * code + (log_ratio > log_bar)
    return code


@compile_step
def _is_state(columns: Any, table: Any, state: int, row: int, code: int) -> bool:
    first = table.firsts[state]
    is_same: bool = columns.reasons[first] == columns.reasons[row]
    is_same = is_same and columns.warnings[first] == columns.warnings[row]
    return is_same and table.codes[state] == code


@compile_step
def _find_slot(columns: Any, table: Any, row: int, code: int) -> Any:
    """Return where the table has the row's state, or has room for it."""
    mask = len(table.slots) - 1
    word = (columns.reasons[row] * HASH_FACTOR) ^ columns.warnings[row]
    word = ((word ^ (word >> HASH_SHIFT)) * HASH_FACTOR) ^ np.uint64(code)
    word *= HASH_FACTOR
    slot = np.int64(word >> HASH_SHIFT) & mask
    while table.slots[slot] >= 0:
        if _is_state(columns, table, table.slots[slot], row, code):
            return slot
        slot = (slot + 1) & mask
    return slot


def _count_pairs(group: Any, firsts: Any, state: Any, states: int, counts: Any) -> None:
    for each in range(len(firsts)):
        stop = firsts[each + 1] if each + 1 < len(firsts) else len(state)
        first = np.int64(group[each]) * states
        for row in range(firsts[each], stop):
            counts[first + state[row]] += 1


def _count_distinct(group: Any, number: Any, first: Any, counts: Any, others: Any) -> int:
    """Count each number in the group where it stands first; return how many `others` there are.

    `others` are the pairs of a number and another group, group x size + number, with repeats.
    """
    found, size = 0, len(first)
    for row in range(len(number)):
        each, where = number[row], group[row]
        if each < 0 or (row > 0 and each == number[row - 1] and where == group[row - 1]):
            continue
        if first[each] < 0:
            first[each] = where
            counts[where] += 1
        elif first[each] != where:
            others[found] = np.int64(where) * size + each
            found += 1
    return found
