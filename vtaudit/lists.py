"""List columns as plain arrays, and what the pass over them reads of other columns."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

# a mask's elements are 0, 1 or this
NULL_ELEMENT = 2


class Lists(NamedTuple):
    """A list column of N rows with E elements.

    Attributes:
        starts: where each list begins in `values`  # [N] int64
        lengths: elements of each list, -1 for null  # [N] int64
        values: of masks 0, 1 or NULL_ELEMENT, of logits NaN for null
            # [E] uint8, float32 or float64
    """

    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    values: NDArray[np.uint8] | NDArray[np.floating]


class Beside(NamedTuple):
    """What the rules on lists read of other columns of N rows.

    Attributes:
        action: NaN for null  # [N] float64
        recorded: behavior_log_prob, NaN for null  # [N] float64
        temperature: of the behavior policy, 1 for null  # [N] float64
        epsilon: of the behavior policy, 0 for null  # [N] float64
        has_behavior_mask: whether the row's file has the column  # [N] bool
        has_target_mask: whether the row's file has the column  # [N] bool
    """

    action: NDArray[np.float64]
    recorded: NDArray[np.float64]
    temperature: NDArray[np.float64]
    epsilon: NDArray[np.float64]
    has_behavior_mask: NDArray[np.bool_]
    has_target_mask: NDArray[np.bool_]


def take_apart(frame: pl.DataFrame, name: str, dtype: type[np.generic]) -> Lists:
    """Return a list column as arrays, an absent one, of `dtype`, as null on every row.

    Logits without nulls are a view of the column's memory; masks are a byte an element.
    """
    if name not in frame.columns:
        nowhere = np.zeros(frame.height, np.int64)
        return Lists(nowhere, nowhere - 1, np.zeros(0, dtype))
    column = frame[name].rechunk()
    array = column.to_arrow()
    offsets = array.offsets.to_numpy()
    elements = array.values.slice(offsets[0], offsets[-1] - offsets[0])
    lengths = np.diff(offsets)
    if column.null_count():
        lengths[column.is_null().to_numpy()] = -1
    if dtype is np.uint8:
        values = _unpack(elements)
    else:
        values = pl.Series(elements).fill_null(np.nan).to_numpy()
    return Lists(offsets[:-1] - offsets[0], lengths, values)


def _unpack(bits: pa.BooleanArray) -> NDArray[np.uint8]:
    """Return the elements of masks, in a quarter of the time that a cast takes."""
    if not len(bits):
        return np.zeros(0, np.uint8)
    packed = np.frombuffer(bits.buffers()[1], np.uint8)
    values = np.unpackbits(packed, count=bits.offset + len(bits), bitorder="little")[bits.offset :]
    if bits.null_count:
        values[np.asarray(bits.is_null())] = NULL_ELEMENT
    return values


def read_beside(frame: pl.DataFrame, present: str) -> Beside:
    """Return the other columns; `present` is how the names of the last two begin in the frame."""
    floats = [
        _floats(frame, name, default)
        for name, default in (
            ("action", np.nan),
            ("behavior_log_prob", np.nan),
            ("behavior_temperature", 1.0),
            ("behavior_epsilon", 0.0),
        )
    ]
    flags = [
        _flags(frame, present + name) for name in ("behavior_action_mask", "target_action_mask")
    ]
    return Beside(*floats, *flags)


def _floats(frame: pl.DataFrame, name: str, default: float) -> NDArray[Any]:
    if name not in frame.columns:
        return np.full(frame.height, default)
    return frame[name].cast(pl.Float64).fill_null(default).to_numpy()


def _flags(frame: pl.DataFrame, name: str) -> NDArray[Any]:
    if name not in frame.columns:
        return np.zeros(frame.height, np.bool_)
    return frame[name].to_numpy()
