"""The learner's scores, joined to the rows of the log by key."""

from __future__ import annotations

import itertools

import polars as pl

from vtaudit.canonical import KEYS
from vtaudit.errors import InputError, SchemaError
from vtaudit.labels import code_text, unify_text
from vtaudit.mapping import read_column
from vtaudit.plan import Plan
from vtaudit.records import InputFile
from vtaudit.shards import Spill
from vtaudit.sources import read_batches


def spill_scores(plan: Plan, spill: Spill) -> int:
    """Spread the scores over the buckets of `spill`; return the number of its parts.

    Raises:
        InputError: a file of scores or the disk failed.
        SchemaError: a key is null or does not fit its type.
    """
    numbers = itertools.count()
    if plan.scores:  # so that there is a part, whatever the files hold
        empty = pl.DataFrame(schema=_score_types(plan))
        spill.add(next(numbers), _check_scores(plan, plan.scores[0], empty))
    for file in plan.scores:
        for batch in read_batches(file, list(_score_types(plan))):
            columns = [read_column(batch.column(name), (), name) for name in _score_types(plan)]
            spill.add(next(numbers), _check_scores(plan, file, pl.DataFrame(columns)))
    return next(numbers)


def _score_types(plan: Plan) -> dict[str, pl.DataType]:
    types = {name: plan.shape.dtypes.get(name, pl.Int64()) for name in KEYS}
    return types | dict.fromkeys(plan.scored, pl.Float64())


def _check_scores(plan: Plan, file: InputFile, frame: pl.DataFrame) -> pl.DataFrame:
    """Return the scores of one batch in their types, -0.0 being 0.0."""
    try:
        frame = frame.cast(pl.Schema(_score_types(plan)))
    except pl.exceptions.InvalidOperationError:
        raise SchemaError(
            f"{plan.settings.scores}, {file.name}: a key or a score does not fit its type; "
            "keys are int64 or text, scores are numbers"
        ) from None
    frame = frame.with_columns(pl.col(pl.Float64) + 0.0)
    if frame.select(pl.any_horizontal(pl.col(*KEYS).is_null().any())).item():
        raise SchemaError(
            f"{plan.settings.scores}, {file.name}: a key is null; every score needs a "
            "trajectory_id and a step"
        )
    if frame.schema["trajectory_id"] == pl.String:
        frame = frame.with_columns(code_text(frame["trajectory_id"]))
    return frame


def load_scores(plan: Plan, spill: Spill, bucket: int) -> pl.DataFrame:
    """Return the scores of one bucket, each key once.

    Raises:
        InputError: a key stands twice with different values.
    """
    scores = spill.load(bucket).unique()
    twice = scores.filter(pl.struct(KEYS).is_duplicated())
    if twice.height:
        first = twice.sort(KEYS).row(0, named=True)
        raise InputError(
            f"{plan.settings.scores}: trajectory_id {first['trajectory_id']}, step "
            f"{first['step']} has scores that differ; expected one score of each key"
        )
    return scores


def join_scores(rows: pl.DataFrame, scores: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the rows with their scores, and the keys of scores that no row has.

    A score replaces the logged column; a logged bootstrap_value stands where no score has
    a finite one.
    `scored` says which rows found a score.
    """
    rows, scores = unify_text([rows, scores])
    names = [name for name in scores.columns if name not in KEYS]
    marked = scores.rename({name: f"scored:{name}" for name in names}).with_columns(
        pl.lit(True).alias("scored")
    )
    joined = rows.join(marked, on=list(KEYS), how="left", maintain_order="left")
    columns = [
        _first_finite(f"scored:{name}", name)
        if name == "bootstrap_value" and name in rows.columns
        else pl.col(f"scored:{name}")
        for name in names
    ]
    joined = joined.with_columns(
        pl.col("scored").fill_null(False),
        *(column.alias(name) for column, name in zip(columns, names, strict=True)),
    ).drop(f"scored:{name}" for name in names)
    unused = scores.join(rows, on=list(KEYS), how="anti").select(KEYS).sort(KEYS)
    return joined, unused


def _first_finite(one: str, other: str) -> pl.Expr:
    return pl.when(pl.col(one).is_finite()).then(pl.col(one)).otherwise(pl.col(other))
