"""Text columns as codes: Polars Enums whose categories stand in the order of their bytes.

A text column of a log has few values on many rows. As an Enum it sorts, compares and is written by
number, and its order is that of the text.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from vtaudit.errors import UnreadableError


def code_dictionary(column: pa.ChunkedArray, name: str) -> pl.Series:
    """Return a text column, which mostly is dictionary-encoded, as an Enum.

    Raises:
        UnreadableError: text that is no UTF-8.
    """
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    unified = column.unify_dictionaries()
    texts = pa.array([], pa.string())
    if unified.num_chunks:
        texts = unified.chunk(0).dictionary.cast(pa.string())
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid as error:
        raise UnreadableError(f"column {name}: {error}") from error
    encoded = texts.dictionary_encode()
    order = pc.sort_indices(encoded.dictionary)
    rank = np.empty(len(order), np.uint32)
    rank[order] = np.arange(len(order))
    # a word may stand twice in a dictionary, and null be one of its words
    new_code = pa.array(rank).take(encoded.indices)
    codes = [new_code.take(each.indices) for each in unified.chunks]
    words = pl.Series(name, encoded.dictionary.take(order))
    # the codes of each word once, then by place: to make codes of all rows is slower
    each = pl.int_range(len(words), dtype=pl.UInt32, eager=True).cat.to(pl.Enum(words))
    return each[pl.Series(pa.chunked_array(codes, new_code.type))].alias(name)


def code_text(column: pl.Series) -> pl.Series:
    """Return a text column as an Enum."""
    return column.cast(_enum_of(column))


def code_texts(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the frame with its text columns as Enums."""
    names = [name for name, dtype in frame.schema.items() if dtype == pl.String]
    return frame.with_columns(code_text(frame[name]) for name in names) if names else frame


def _enum_of(column: pl.Series) -> pl.Enum:
    return pl.Enum(column.drop_nulls().unique().sort())


def unify_text(frames: Sequence[pl.DataFrame]) -> list[pl.DataFrame]:
    """Return the frames with one Enum in each text column that several of them have."""
    casts = []
    for name in dict.fromkeys(name for frame in frames for name in frame.columns):
        found = {frame.schema[name]: None for frame in frames if name in frame.columns}
        if len(found) > 1 and all(isinstance(dtype, pl.Enum) for dtype in found):
            words = pl.concat([each.categories for each in found if isinstance(each, pl.Enum)])
            casts.append((name, _enum_of(words)))
    return [
        frame.with_columns(pl.col(name).cast(enum) for name, enum in casts if name in frame.columns)
        for frame in frames
    ]


def concat_coded(frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Return the rows of frames of the same columns, whose Enums may have other categories."""
    filled = [frame for frame in frames if frame.height] or frames[:1]
    return pl.concat(unify_text(filled) if len(filled) > 1 else filled, rechunk=True)


def concat_anew(frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Return what `concat_coded` does, in less time where there are about as many words as rows."""
    return code_texts(pl.concat([decode_text(frame) for frame in frames], rechunk=True))


def decode_text(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the frame with its Enums as text."""
    names = [name for name, dtype in frame.schema.items() if isinstance(dtype, pl.Enum)]
    return frame.with_columns(pl.col(names).cast(pl.String)) if names else frame


def code_values(column: pl.Series) -> NDArray[np.int32]:
    """Return a number for each distinct value, null being 0  # [N].

    The words of an Enum, which may be those of a whole log, are not looked at.
    """
    if not isinstance(column.dtype, pl.Enum):
        return number_values(column)[0]
    physical = column.to_physical()
    if physical.null_count():
        physical = physical.cast(pl.Int32).fill_null(-1)
    return physical.to_numpy().astype(np.int32) + 1


def number_values(column: pl.Series) -> tuple[NDArray[np.int32], pl.Series]:
    """Return a number for each distinct value  # [N], and the values as text; null is the first."""
    null = pl.Series([None], dtype=pl.String)
    if isinstance(column.dtype, pl.Enum):
        return code_values(column), pl.concat([null, column.dtype.categories])
    coded = column.rechunk().to_arrow().dictionary_encode()
    codes = np.asarray(coded.indices.fill_null(-1)) + np.int32(1)
    return codes, pl.concat([null, pl.Series(coded.dictionary).cast(pl.String)])
