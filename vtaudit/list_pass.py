"""One compiled pass over rows: masks, logits and the action, and the rebuilt log-prob."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba import types
from numpy.typing import NDArray

from vtaudit.compiled import compile_pass, compile_step, lay_out
from vtaudit.kernels.numba_scan import exp
from vtaudit.lists import Beside, Lists

# bits of one row's findings
MASK_MALFORMED = 1
MASK_MISMATCH = 2
ACTION_OUT_OF_RANGE = 4
ACTION_MASKED = 8
LOGITS_MALFORMED = 16
UNRECONCILED = 32
NOT_REBUILT = 64

MAX_INDEX = 2.0**31
BARRED = -1
# a sum of exponentials between them is exact to its last bits; none of its terms is infinite, so
# that what is not allowed, times 0, is 0
LEAST = 1e-290
GREATEST = np.finfo(np.float64).max


def run_pass(
    masks: tuple[Lists, Lists],
    logits: tuple[Lists, Lists],
    beside: Beside,
    tolerance: float,
    *,
    is_subset: bool,
) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """Return each row's findings as bits, and log mu(a) rebuilt from behavior_logits.

    mu(a) = (1 - epsilon) softmax(logits / temperature over L)[a] + epsilon / |L| for a in L, where
    L holds the actions that the mask allows and whose logit is above -inf; mu(a) = 0 elsewhere.

    Args:
        masks: of behavior and target, of N rows.
        logits: of behavior and target, of N rows.
        beside: the other columns.
        tolerance: how far the recorded log-prob may be from the rebuilt one, nats.
        is_subset: whether the target may forbid what the behavior allows.

    Returns:
        the bits # [N] uint8, and log mu in nats, -inf where mu is 0, NaN where it is not judged
        # [N] float64
    """
    bits = np.zeros(len(beside.action), np.uint8)
    rebuilt = np.full(len(beside.action), np.nan)
    index = np.empty(len(bits), np.int64)
    work = np.empty(max(logits[0].lengths.max(initial=0), 0))
    taken = (_lay_out(masks), _lay_out(logits), _lay_out_beside(beside))
    arguments = (*taken, float(tolerance), is_subset, index, work, bits, rebuilt)
    _compile_pass(*map(numba.typeof, arguments))(*arguments)
    return bits, rebuilt


def _lay_out(columns: tuple[Lists, Lists]) -> tuple[Lists, ...]:
    return tuple(
        Lists(
            lay_out(each.starts, "int64"),
            lay_out(each.lengths, "int64"),
            lay_out(each.values, each.values.dtype),
        )
        for each in columns
    )


def _lay_out_beside(beside: Beside) -> Beside:
    dtypes = ("float64",) * 4 + ("bool",) * 2
    return Beside(*(lay_out(*each) for each in zip(beside, dtypes, strict=True)))


@functools.cache
def _compile_pass(*arguments: Any) -> Callable[..., None]:
    return compile_pass(_judge_rows, types.void(*arguments))


def _judge_rows(
    masks: Any,
    logits: Any,
    beside: Beside,
    tolerance: float,
    is_subset: bool,
    index: Any,
    work: Any,
    bits: Any,
    rebuilt: Any,
) -> None:
    """Rule by rule: what the loops over rows take out of tuples costs them a count each time."""
    lengths = (masks[0].lengths, masks[1].lengths, logits[0].lengths, logits[1].lengths)
    _judge_mask(masks[0], lengths, bits)
    _judge_mask(masks[1], lengths, bits)
    _compare_masks(masks[0], masks[1], beside, is_subset, bits)
    _judge_actions(masks[0], masks[1], lengths, beside.action, index, bits)
    _judge_logits(masks[0], logits, index, beside, tolerance, work, bits, rebuilt)


@compile_step
def _is_other(length: int, other: int) -> bool:
    return other not in (-1, length)


@compile_step
def _judge_mask(mask: Lists, lengths: Any, bits: Any) -> None:
    """Empty, all false, holding a null, or of another length than another list given."""
    starts, values, of_mask = mask.starts, mask.values, mask.lengths
    first, second, third, fourth = lengths
    for row in range(len(bits)):
        length = of_mask[row]
        if length < 0:
            continue
        is_bad = _is_other(length, first[row]) or _is_other(length, second[row])
        is_bad = is_bad or _is_other(length, third[row]) or _is_other(length, fourth[row])
        # of 0, 1 and NULL_ELEMENT, a bit of its own, the union is 1 where all is well
        any_of = 0
        for place in range(starts[row], starts[row] + length):
            any_of |= values[place]
        if is_bad or any_of != 1:
            bits[row] |= MASK_MALFORMED


@compile_step
def _compare_masks(
    behavior: Lists, target: Lists, beside: Beside, is_subset: bool, bits: Any
) -> None:
    of_behavior, of_target = behavior.lengths, target.lengths
    b_starts, b_values = behavior.starts, behavior.values
    t_starts, t_values = target.starts, target.values
    has_behavior, has_target = beside.has_behavior_mask, beside.has_target_mask
    for row in range(len(bits)):
        b_length, t_length = of_behavior[row], of_target[row]
        start, shift = b_starts[row], t_starts[row] - b_starts[row]
        is_off = False
        if b_length >= 0 and t_length == b_length:
            for place in range(start, start + b_length):
                b, t = b_values[place], t_values[place + shift]
                is_off |= (b == 0) & (t == 1) if is_subset else b != t
        elif b_length >= 0 and t_length < 0 and has_target[row]:
            is_off = not is_subset
            for place in range(start, start + b_length):
                is_off |= b_values[place] == 0
        elif t_length >= 0 and b_length < 0:
            is_off = has_behavior[row] and not is_subset
        if is_off:
            bits[row] |= MASK_MISMATCH


@compile_step
def _judge_actions(
    behavior: Lists, target: Lists, lengths: Any, actions: Any, indices: Any, bits: Any
) -> None:
    """Write each row's action as an index; BARRED where log mu is not to be rebuilt for it."""
    b_starts, b_values = behavior.starts, behavior.values
    t_starts, t_values = target.starts, target.values
    first, second, third, fourth = lengths
    for row in range(len(bits)):
        a, b, c, d = first[row], second[row], third[row], fourth[row]
        index = _index(actions[row])
        is_forbidden = 0 <= index < a and b_values[b_starts[row] + index] == 0
        if is_forbidden or (0 <= index < b and t_values[t_starts[row] + index] == 0):
            bits[row] |= ACTION_MASKED
        is_out = index < 0 or 0 <= a <= index or 0 <= b <= index
        is_out = is_out or 0 <= c <= index or 0 <= d <= index
        if is_out and max(a, b, c) >= 0:
            bits[row] |= ACTION_OUT_OF_RANGE
        is_barred = is_out or is_forbidden or bits[row] & MASK_MALFORMED != 0
        indices[row] = BARRED if is_barred else index


@compile_step
def _index(action: float) -> Any:
    """The action as an index, -1 where it is none: not whole, negative or NaN."""
    is_index = action >= 0 and action < MAX_INDEX and action == math.floor(action)
    return np.int64(action) if is_index else np.int64(-1)


@compile_step
def _judge_logits(
    mask: Lists,
    logits: Any,
    indices: Any,
    beside: Beside,
    tolerance: float,
    work: Any,
    bits: Any,
    rebuilt: Any,
) -> None:
    starts, lengths, values = logits[0].starts, logits[0].lengths, logits[0].values
    mask_starts, mask_lengths, mask_values = mask.starts, mask.lengths, mask.values
    recorded, of_target = beside.recorded, logits[1].lengths
    temperatures, epsilons = beside.temperature, beside.epsilon
    for row in range(len(bits)):
        length, temperature, epsilon = lengths[row], temperatures[row], epsilons[row]
        if length < 0:
            continue
        is_sound = 0 <= temperature < np.inf and 0 <= epsilon <= 1
        is_sound = is_sound and not _is_other(length, of_target[row])
        own = values[starts[row] : starts[row] + length]
        if not is_sound or not _has_sound_values(own):
            bits[row] |= LOGITS_MALFORMED
        elif math.isfinite(recorded[row]):
            if indices[row] == BARRED or temperature == 0:
                bits[row] |= NOT_REBUILT
                continue
            allowed = mask_values[mask_starts[row] : mask_starts[row] + max(mask_lengths[row], 0)]
            rebuilt[row] = _log_mu(own, allowed, indices[row], temperature, epsilon, work)
            if abs(recorded[row] - rebuilt[row]) > tolerance:
                bits[row] |= UNRECONCILED


@compile_step
def _has_sound_values(logits: Any) -> bool:
    """Whether no logit is null, NaN or +inf, and one is above -inf."""
    is_sound, has_finite = True, False
    for k in range(len(logits)):
        is_sound &= logits[k] < np.inf
        has_finite |= logits[k] > -np.inf
    return is_sound and has_finite


@compile_step
def _log_mu(
    logits: Any, allowed: Any, index: int, temperature: float, epsilon: float, work: Any
) -> Any:
    """Log mu of one row; without a mask `allowed` is empty, else it holds 0 and 1."""
    if logits[index] == -np.inf:
        return -np.inf
    origin = 0.0
    total = _sum_up(logits, allowed, origin, temperature, work)
    if not LEAST < total < GREATEST:
        origin = _find_peak(logits, allowed)
        total = _sum_up(logits, allowed, origin, temperature, work)
    log_softmax = (np.float64(logits[index]) - origin) / temperature - math.log(total)
    if epsilon == 0:
        return log_softmax
    size = 0
    for k in range(len(logits)):
        size += logits[k] > -np.inf and not (len(allowed) and allowed[k] == 0)
    mixed, share = math.log1p(-epsilon) + log_softmax, math.log(epsilon) - math.log(size)
    high, low = max(mixed, share), min(mixed, share)
    return high + math.log1p(math.exp(low - high))


@compile_step
def _sum_up(logits: Any, allowed: Any, origin: float, temperature: float, work: Any) -> float:
    """Sum exp((logit - origin) / temperature) over what is allowed, in loops without branches."""
    for k in range(len(logits)):
        work[k] = min(exp((np.float64(logits[k]) - origin) / temperature), GREATEST)
    total = 0.0
    if len(allowed):
        for k in range(len(logits)):
            total += work[k] * np.float64(allowed[k])
    else:
        for k in range(len(logits)):
            total += work[k]
    return total


@compile_step
def _find_peak(logits: Any, allowed: Any) -> float:
    """Return the greatest logit that is allowed."""
    peak = -np.inf
    for k in range(len(logits)):
        if not (len(allowed) and allowed[k] == 0):
            peak = max(peak, np.float64(logits[k]))
    return peak
