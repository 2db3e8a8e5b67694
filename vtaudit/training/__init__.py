"""The targets of a run as batches of tensors, for a training loop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat
import torch
from numpy.typing import NDArray

from vtaudit.errors import EngineError, SchemaError, SettingsError, name_choices
from vtaudit.schemas import load_columns
from vtaudit.storage import parse_run
from vtaudit.training.epoch import Order, Targets, draw_batches, open_targets

DEFAULT_COLUMNS = ("value_target", "advantage")
# torch computes with few unsigned types
WIDER = {pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.uint64(): pa.int64()}


@dataclass(frozen=True, slots=True)
class Batch:
    """Some rows of the targets; `batch["advantage"]` is a tensor.

    Attributes:
        rows: how many, B.
        tensors: name -> numbers and booleans [B]; lists of them, all of one length k, [B, k].
        lists: name -> whatever else was asked for, as ids that are text, a list of B values.
        offsets: where each segment begins, and the end  # [S + 1]; None for unit="rows".
    """

    rows: int
    tensors: Mapping[str, torch.Tensor]
    lists: Mapping[str, list[Any]]
    offsets: torch.Tensor | None

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self.tensors:
            raise SettingsError(f"batch: no tensor {name}{name_choices(name, self.tensors)}")
        return self.tensors[name]

    def keys(self) -> Iterable[str]:
        """Return the names of the tensors, so that dict(batch) holds them."""
        return self.tensors.keys()


def read(
    run: str | Path,
    *,
    batch_size: int = 1024,
    columns: Sequence[str] | None = None,
    unit: str = "rows",
    shuffle: bool = False,
    seed: int = 0,
    device: str | torch.device | None = None,
) -> Iterator[Batch]:
    """Return the batches of one epoch: every accepted row of the run once.

    Unshuffled, the order is that of the files. Shuffled, it depends on the run and the seed alone:
    exactly uniform where the run fits into 262,144 rows and 1 GiB; beyond, parts and row groups
    come in random order and are mixed within a buffer of that size. Give each epoch its own seed.

    A segment is a run of rows of one trajectory with consecutive steps, up to and including the
    first whose boundary is not `interior`; a row that was rejected as target_not_finite splits it.
    Segments are never cut: a batch holds as many as fit into batch_size rows, and at least one.

    Args:
        run: a run directory with targets.
        batch_size: rows of a batch, B; the last one may hold fewer.
        columns: of the targets; by default value_target, advantage and what was carried.
        unit: rows, or segments.
        shuffle: whether to shuffle the rows, or the segments as wholes.
        seed: of the shuffle.
        device: where the tensors go; by default they stay on the CPU.

    Raises:
        InputError: no vtaudit run with targets stands there, or a part cannot be read.
        SettingsError: an argument is out of its range, or a column is not there.
        EngineError: the device is not there.
        SchemaError: while iterating: numbers with nulls, or lists that differ in length.
    """
    order = Order(batch_size, unit, shuffle, seed)
    targets = open_targets(parse_run(run))
    names = _choose_columns(targets, columns)
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise EngineError(f"device {device}: {error}") from None
    return _make_batches(targets, names, order, device)


def _choose_columns(targets: Targets, columns: Sequence[str] | None) -> list[str]:
    found = targets.schema.names
    if columns is None:
        known = {column.name for column in load_columns("targets")}
        return [*DEFAULT_COLUMNS, *(name for name in found if name not in known)]
    for name in columns:
        if name not in found:
            raise SettingsError(f"columns: the targets have no {name}{name_choices(name, found)}")
    return list(dict.fromkeys(columns))


def _make_batches(
    targets: Targets, names: list[str], order: Order, device: str | torch.device | None
) -> Iterator[Batch]:
    lengths_of: dict[str, int] = {}
    are_numbers = {name: _is_numeric(targets.schema.field(name).type) for name in names}
    for table, lengths in draw_batches(targets, names, order):
        tensors: dict[str, torch.Tensor] = {}
        lists: dict[str, list[Any]] = {}
        for name in names:
            if are_numbers[name]:
                values = _to_numpy(name, table[name].combine_chunks(), lengths_of)
                tensors[name] = torch.from_numpy(values).to(device)
            else:
                lists[name] = table[name].to_pylist()
        offsets = None
        if order.unit == "segments":
            offsets = torch.from_numpy(np.append(0, np.cumsum(lengths))).to(device)
        yield Batch(table.num_rows, MappingProxyType(tensors), MappingProxyType(lists), offsets)


def _is_list(found: pa.DataType) -> bool:
    return bool(pat.is_list(found) or pat.is_large_list(found) or pat.is_fixed_size_list(found))


def _is_numeric(found: pa.DataType) -> bool:
    if _is_list(found):
        return _is_numeric(found.value_type)
    return bool(pat.is_integer(found) or pat.is_floating(found) or pat.is_boolean(found))


def _to_numpy(
    name: str, array: pa.Array, lengths_of: dict[str, int], path: str = ""
) -> NDArray[np.generic]:
    """Return numbers [B] or lists of them [B, k]; `lengths_of` holds k for the whole epoch."""
    if array.null_count:
        raise SchemaError(
            f"targets, column {name}: found {array.null_count} nulls, and a tensor holds none; "
            "leave it out with columns=[...]"
        )
    if _is_list(array.type):
        path += f"{name}[]"
        length = lengths_of.setdefault(path, len(array[0]))
        counts = pc.list_value_length(array).to_numpy(zero_copy_only=False)
        other = counts[counts != length]
        if len(other):
            raise SchemaError(
                f"targets, column {name}: found lists of {length} and of {other[0]} items, "
                "expected one length; leave it out with columns=[...], or pad it in the log"
            )
        inner = _to_numpy(name, array.flatten(), lengths_of, path)
        return inner.reshape(len(array), length, *inner.shape[1:])
    if array.type in WIDER:
        array = _widen(name, array)
    # a copy: what Arrow holds is read-only, and torch tensors are not
    return np.array(array.to_numpy(zero_copy_only=False))


def _widen(name: str, array: pa.Array) -> pa.Array:
    try:
        return array.cast(WIDER[array.type])
    except pa.ArrowInvalid as error:
        raise SchemaError(f"targets, column {name}: {error}; torch holds int64 at most") from None
