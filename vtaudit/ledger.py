"""Who was delivered: keys, duplicates, conflicts, windows and deliveries of one shard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from vtaudit.stretches import mark_changes, number_rows

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
NO_KEY = -1


@dataclass(frozen=True, slots=True)
class Keys:
    """The rows of a shard by key; rows of one key stand together.

    Attributes:
        key: number of the row's (trajectory_id, step), ascending; NO_KEY without one  # [N]
        starts: first row of each key  # [K]
        counts: rows of each key  # [K]
        trajectory: number of each key's trajectory  # [K]
        step: step of each key  # [K]
    """

    key: Ints
    starts: Ints
    counts: Ints
    trajectory: Ints
    step: Ints


def number_keys(frame: pl.DataFrame, key_missing: Bools) -> Keys:
    """Return the keys of rows that stand by (trajectory_id, step, file, row)."""
    from vtaudit import ledger_pass

    is_first = np.ones(frame.height, np.bool_)
    is_first[1:] = mark_changes(frame["trajectory_id"])
    step = frame["step"].fill_null(0).to_numpy()
    return Keys(*ledger_pass.number_keys(is_first, step, key_missing))


def find_conflicts(frame: pl.DataFrame, keys: Keys, payload: list[str]) -> Bools:
    """Return the rows whose key another row has with a different payload  # [N].

    Equal means NaN = NaN, -0.0 = 0.0 and null = null; every copy of such a key is a conflict.
    """
    conflict = np.zeros(frame.height, np.bool_)
    if (keys.counts == 1).all():
        return conflict
    rows = np.flatnonzero((keys.key != NO_KEY) & (keys.counts[keys.key] > 1))
    copies = frame[payload][rows]
    firsts = frame[payload][keys.starts[keys.key[rows]]]
    differs = np.zeros(len(rows), np.bool_)
    for name in payload:
        differs |= ~copies[name].eq_missing(firsts[name]).to_numpy()
    torn = np.zeros(len(keys.counts), np.bool_)
    torn[keys.key[rows[differs]]] = True
    conflict[rows] = torn[keys.key[rows]]
    return conflict


def find_duplicates(keys: Keys, conflict: Bools, has_reason: Bools) -> Bools:
    """Return every copy of a key but the kept one  # [N].

    Kept is the first copy without another reason, else the first; conflicting copies are no
    duplicates.
    """
    duplicate = np.zeros(len(conflict), np.bool_)
    rows = np.flatnonzero((keys.key != NO_KEY) & ~conflict)
    if not len(rows) or (keys.counts == 1).all():
        return duplicate
    duplicate[rows] = True
    duplicate[keys.starts[keys.key[rows]]] = False
    sound = rows[~has_reason[rows]]
    first_sound = np.full(len(keys.counts), -1, np.int64)
    first_sound[keys.key[sound[::-1]]] = sound[::-1]
    moved = first_sound[first_sound >= 0]
    duplicate[keys.starts[keys.key[moved]]] = True
    duplicate[moved] = False
    return duplicate & ~conflict


def number_windows(frame: pl.DataFrame, keys: Keys, *, stitched: bool) -> Ints:
    """Return the number of each row's window; NO_KEY for rows without a key  # [N].

    A window is (trajectory_id, unroll_id), a null unroll_id being one of them; stitched windows
    are whole trajectories.
    """
    names = ["trajectory_id"]
    if not stitched and "unroll_id" in frame.columns:
        names.append("unroll_id")
    window = number_rows([frame[name] for name in names], frame.height)
    window[keys.key == NO_KEY] = NO_KEY
    return window


def number_deliveries(keys: Keys, window: Ints, file: Ints, received: Ints | None) -> Ints:
    """Return the number of each row's delivery; NO_KEY for rows without a key  # [N].

    The k-th copy of a key within a window of a file belongs to that window's k-th delivery there.

    Args:
        keys: the rows by key.
        window: the number of the row's window  # [N]
        file: of the row  # [N]
        received: the rows as they were received, where those of a delivery lie together; None
            where they stand so  # [N]
    """
    if received is None:
        place = number_rows([window, file], len(window))
    else:
        place = np.empty(len(window), np.int64)
        place[received] = number_rows([window[received], file[received]], len(window))
    is_again = (keys.key[1:] == keys.key[:-1]) & (place[1:] == place[:-1])
    many = keys.counts > 2
    many[keys.key[1:][is_again & (keys.key[1:] != NO_KEY)]] = True
    if many.any():
        again = np.flatnonzero((keys.key != NO_KEY) & many[keys.key])
        order = again[np.lexsort((again, place[again], keys.key[again]))]
        key, where = keys.key[order], place[order]
        is_first = np.ones(len(order), np.bool_)
        is_first[1:] = (key[1:] != key[:-1]) | (where[1:] != where[:-1])
        begin = np.maximum.accumulate(np.where(is_first, np.arange(len(order)), 0))
        copy = np.zeros(len(window), np.int64)
        copy[order] = np.arange(len(order)) - begin
        place = number_rows([place, copy], len(window))
    place[keys.key == NO_KEY] = NO_KEY
    return place


def find_outside(
    frame: pl.DataFrame, keys: Keys, edges: pl.DataFrame | None, lineage: Sequence[str]
) -> NDArray[np.float64]:
    """Return the value of each row's successor where that is in another shard, else NaN  # [N].

    Args:
        frame: the rows of the shard.
        keys: the rows by key.
        edges: trajectory_id, step, lineage and value of rows in other shards.
        lineage: the mapped lineage columns, in which a row and its successor are equal.
    """
    outside = np.full(frame.height, np.nan)
    if edges is None or not edges.height or not len(keys.step):
        return outside
    is_last = np.ones(len(keys.step), np.bool_)
    is_last[:-1] = (keys.trajectory[1:] != keys.trajectory[:-1]) | (
        keys.step[1:] != keys.step[:-1] + 1
    )
    last = np.flatnonzero(is_last)
    last = last[np.isin(keys.step[last] + 1, edges["step"].to_numpy())]
    counts = keys.counts[last]
    # the copies of a key stand together
    rows = np.repeat(keys.starts[last] - np.cumsum(counts) + counts, counts)
    rows += np.arange(len(rows))
    labels = ["trajectory_id", *lineage]
    followed = edges.select(*labels, pl.col("step") - 1).rows()
    values = dict(zip(followed, edges["value"].fill_null(np.nan), strict=True))
    outside[rows] = [values.get(key, np.nan) for key in frame[[*labels, "step"]][rows].rows()]
    return outside
