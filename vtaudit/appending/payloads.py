"""A hash of each row's payload that no version of any package changes.

Two rows have one hash where their payloads are equal as the contract says: numbers as float64,
NaN = NaN, -0.0 = 0.0, null = null, absent = null. 128 bits: two lanes of 64, mixed column by
column; text is digested by BLAKE2b, lists element by element.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from vtaudit.canonical import LOG_COLUMNS, PAYLOAD

Words = NDArray[np.uint64]
NULL = np.uint64(0x9E3779B97F4A7C15)
NAN = np.uint64(0x7FF8000000000000)
# odd multipliers and starts of the two lanes (the constants of SplitMix64 and of MurmurHash3)
LANES = (
    (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB), np.uint64(0x243F6A8885A308D3)),
    (np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53), np.uint64(0x13198A2E03707344)),
)
SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))


def hash_payload(rows: pl.DataFrame) -> tuple[Words, Words]:
    """Return the two halves of each row's hash  # [N] uint64 each."""
    columns = []
    for number, name in enumerate(PAYLOAD, 1):
        if name in rows.columns and rows[name].null_count() < rows.height:
            columns.append((np.uint64(number), rows[name], LOG_COLUMNS[name].type))
    halves = []
    for lane in range(2):
        state = np.full(rows.height, LANES[lane][2])
        for place, column, kind in columns:
            word = _hash_column(column, kind, lane)
            # null is what an absent column is, so it leaves the state alone
            state = np.where(word == NULL, state, _mix(state ^ _mix(word + place, lane), lane))
        halves.append(state)
    return halves[0], halves[1]


def _mix(word: Words, lane: int) -> Words:
    """Return the words with every bit spread over all 64."""
    first, second, _ = LANES[lane]
    with np.errstate(over="ignore"):
        word = (word ^ (word >> SHIFTS[0])) * first
        word = (word ^ (word >> SHIFTS[1])) * second
        return word ^ (word >> SHIFTS[2])


def _hash_column(column: pl.Series, kind: str, lane: int) -> Words:
    """Return a word a row; NULL for null and for nothing else that is likely."""
    if isinstance(column.dtype, pl.List):
        return _hash_lists(column, lane)
    if kind == "label":
        return _hash_text(column.cast(pl.String), lane)
    return _hash_numbers(column, lane)


def _hash_numbers(column: pl.Series, lane: int) -> Words:
    values = column.cast(pl.Float64).fill_null(0.0).to_numpy() + 0.0
    words = np.where(np.isnan(values), NAN, values.view(np.uint64))
    return np.where(column.is_null().to_numpy(), NULL, _mix(words, lane))


def _hash_text(column: pl.Series, lane: int) -> Words:
    coded = column.rechunk().to_arrow().dictionary_encode()
    digests = _digest(coded.dictionary.to_pylist(), lane)
    codes = np.asarray(coded.indices.fill_null(-1), dtype=np.int64)
    return np.append(digests, NULL)[codes]


def _digest(texts: Sequence[str], lane: int) -> Words:
    person = b"vtaudit-%d" % lane
    found = [hashlib.blake2b(t.encode(), digest_size=8, person=person).digest() for t in texts]
    return np.frombuffer(b"".join(found), dtype="<u8").astype(np.uint64)


def _hash_lists(column: pl.Series, lane: int) -> Words:
    """Hash the elements with their places, add them up, and mix in the length."""
    lengths = column.list.len().fill_null(0).to_numpy().astype(np.int64)
    elements = column.filter(column.list.len() > 0).explode()
    words = _hash_numbers(elements, lane)
    starts = np.cumsum(lengths) - lengths
    place = np.arange(len(words)) - np.repeat(starts, lengths)
    words = _mix(words ^ _mix(place.astype(np.uint64), lane), lane)
    sums = np.concatenate((np.zeros(1, np.uint64), np.cumsum(words, dtype=np.uint64)))
    with np.errstate(over="ignore"):
        total = sums[starts + lengths] - sums[starts] + lengths.astype(np.uint64)
    return np.where(column.is_null().to_numpy(), NULL, _mix(total, lane))
