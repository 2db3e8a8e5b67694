"""What the rows of a log look like: streams, windows, episodes, behavior log-probs; no verdicts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from vtaudit.canonical import LogShape, cast_frame, unify_types
from vtaudit.errors import InputError, SchemaError
from vtaudit.mapping import Mapping, available, expression_type, map_table, needed_columns
from vtaudit.records import InputFile
from vtaudit.sources import read_batches

MAX_ROWS = 5_000_000
SURVEYED = (
    "trajectory_id",
    "step",
    "unroll_id",
    "terminated",
    "truncated",
    "behavior_log_prob",
    "discount",
    "action",
    "valid",
)
HELD = ("trajectory_id", "unroll_id", "step", "terminated", "truncated")


@dataclass(frozen=True, slots=True)
class Numbers:
    """Counts and range of the behavior log-probs, as the proposed expression gives them.

    The range is that of the finite ones, None where there are none.
    """

    rows: int = 0
    null: int = 0
    nan: int = 0
    infinite: int = 0
    zero: int = 0
    positive: int = 0
    least: float | None = None
    greatest: float | None = None

    @property
    def finite(self) -> int:
        """The rows whose log-prob is a finite number."""
        return self.rows - self.null - self.nan - self.infinite


@dataclass(frozen=True, slots=True)
class Sample:
    """The rows that were looked at.

    Attributes:
        rows, files: how many, of `rows_total` and `files_total`.
        unreadable: file -> error of those whose pages could not be decoded.
        padding: rows whose valid is false, which are left out of everything else.
        actions_missing: rows whose action is null.
        has_discounts: whether a discount other than 0 and 1 was seen.
        behavior: of the behavior log-probs, None where there is no such column.
    """

    rows: int
    files: int
    rows_total: int
    files_total: int
    unreadable: dict[str, str]
    padding: int
    actions_missing: int
    has_discounts: bool
    behavior: Numbers | None

    @property
    def is_partial(self) -> bool:
        """Whether rows of readable files were left out."""
        return self.rows + self.padding < self.rows_total


def survey_rows(files: Sequence[InputFile], mapping: Mapping) -> tuple[pl.DataFrame, Sample]:
    """Decode keys, flags and behavior log-probs of at most MAX_ROWS rows.

    Of a larger log every n-th file is read, and of each of them no more than its share.

    Args:
        files: readable files in natural order, no copies among them.
        mapping: canonical columns, of which only SURVEYED are read.

    Returns:
        The rows with `file` (Int32), `row` (Int64), those of HELD that are mapped, `zero` (whether
        the discount is 0) and `no_action` (both Boolean), in the order of the files; and what was
        counted on the way.
    """
    chosen, most = _choose(files)
    mapping = Mapping({k: v for k, v in mapping.expressions.items() if k in SURVEYED})
    shape = _shape(chosen, mapping)
    frames, unreadable, tally = [_empty(shape)], {}, _Tally("behavior_log_prob" in shape.dtypes)
    for place, file in enumerate(chosen):
        try:
            seen, frame = _survey_file(file, place, mapping, shape, most)
        except (InputError, SchemaError) as error:
            unreadable[file.name] = str(error)
            continue
        frames.append(frame)
        tally.add(seen)
    rows = pl.concat(frames)
    sample = Sample(
        rows=rows.height,
        files=len(chosen) - len(unreadable),
        rows_total=sum(file.rows or 0 for file in files if file.name not in unreadable),
        files_total=len(files) - len(unreadable),
        unreadable=unreadable,
        padding=tally.padding,
        actions_missing=int(rows["no_action"].sum()),
        has_discounts=tally.has_discounts,
        behavior=tally.behavior,
    )
    return rows, sample


def _choose(files: Sequence[InputFile]) -> tuple[list[InputFile], int]:
    """Return the files to read, and the most rows to read of each."""
    total = sum(file.rows or 0 for file in files)
    if total <= MAX_ROWS:
        return list(files), MAX_ROWS
    chosen = list(files[:: math.ceil(total / MAX_ROWS)])
    return chosen, MAX_ROWS // len(chosen)


def _shape(files: Sequence[InputFile], mapping: Mapping) -> LogShape:
    found = {
        file.name: {
            name: expression_type(expression, file.schema)
            for name, expression in mapping.expressions.items()
            if available(expression, file.schema)
        }
        for file in files
    }
    return unify_types(found, "auto")


@dataclass(slots=True)
class _Seen:
    """What was counted in one file."""

    padding: int = 0
    has_discounts: bool = False
    behavior: Numbers = Numbers()


@dataclass(slots=True)
class _Tally:
    """What was counted in all files so far."""

    has_behavior: bool
    padding: int = 0
    has_discounts: bool = False
    behavior: Numbers | None = None

    def add(self, seen: _Seen) -> None:
        """Add one file."""
        self.padding += seen.padding
        self.has_discounts |= seen.has_discounts
        if self.has_behavior:
            self.behavior = _join(self.behavior or Numbers(), seen.behavior)


def _survey_file(
    file: InputFile, place: int, mapping: Mapping, shape: LogShape, most: int
) -> tuple[_Seen, pl.DataFrame]:
    seen, frames, start = _Seen(), [_empty(shape)], 0
    for batch in read_batches(file, needed_columns(mapping, file.schema)):
        batch = batch.slice(0, most - start)
        rows = cast_frame(
            map_table(batch, mapping), shape, np.arange(start, start + batch.num_rows)
        )
        start += batch.num_rows
        if "valid" in rows.columns:
            received = rows.filter(~pl.col("valid").eq_missing(0))
            seen.padding += rows.height - received.height
            rows = received
        if "behavior_log_prob" in rows.columns:
            seen.behavior = _join(seen.behavior, _count(rows["behavior_log_prob"]))
        if "discount" in rows.columns:
            discount = rows["discount"]
            seen.has_discounts |= bool(((discount > 0) & (discount < 1)).any())
        frames.append(rows.select(_kept(shape, place)))
        if start >= most:
            break
    return seen, pl.concat(frames)


def _kept(shape: LogShape, place: int) -> list[pl.Expr]:
    has_action = "action" in shape.dtypes
    return [
        pl.lit(place, dtype=pl.Int32).alias("file"),
        pl.col("row"),
        *(pl.col(name) for name in HELD if name in shape.dtypes),
        (pl.col("discount").eq_missing(0) if "discount" in shape.dtypes else pl.lit(False)).alias(
            "zero"
        ),
        (pl.col("action").is_null() if has_action else pl.lit(False)).alias("no_action"),
    ]


def _empty(shape: LogShape) -> pl.DataFrame:
    columns = {"row": pl.Int64(), **shape.dtypes}
    return pl.DataFrame(schema=columns).select(_kept(shape, 0))


def _count(values: pl.Series) -> Numbers:
    known = values.drop_nulls()
    finite = known.filter(known.is_finite())
    nan = int(known.is_nan().sum())
    return Numbers(
        rows=values.len(),
        null=values.null_count(),
        nan=nan,
        infinite=known.len() - finite.len() - nan,
        zero=int((finite == 0).sum()),
        positive=int((finite > 0).sum()),
        least=finite.min(),  # type: ignore[arg-type]
        greatest=finite.max(),  # type: ignore[arg-type]
    )


def _join(one: Numbers, other: Numbers) -> Numbers:
    return replace(
        one,
        rows=one.rows + other.rows,
        null=one.null + other.null,
        nan=one.nan + other.nan,
        infinite=one.infinite + other.infinite,
        zero=one.zero + other.zero,
        positive=one.positive + other.positive,
        least=min((n.least for n in (one, other) if n.least is not None), default=None),
        greatest=max((n.greatest for n in (one, other) if n.greatest is not None), default=None),
    )
