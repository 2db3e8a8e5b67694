"""Read the log and the scores into shards, file by file."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import polars as pl
import pyarrow as pa

from vtaudit import mapping as mappings
from vtaudit.canonical import CARRIED, KEYS, PRESENT, TOLD_APART, cast_frame
from vtaudit.counts import SCOPES, count_padding, merge_counts
from vtaudit.errors import InputError, SchemaError, SettingsError, UnreadableError
from vtaudit.plan import Plan
from vtaudit.records import InputFile
from vtaudit.shards import Spill, count_shards
from vtaudit.sources import read_batches

SPILL_ROWS = 262_144


@dataclass(slots=True)
class LogRows:
    """The rows of the log, spread over shards.

    Attributes:
        rows, scores: what waits in the shards.
        files: the plan's files, those that failed while they were read marked so.
        padding: counts of the rows whose valid is false.
        has_discounts: whether a discount other than 0 and 1 was seen.
    """

    rows: Spill
    scores: Spill
    files: list[InputFile]
    padding: pl.DataFrame
    has_discounts: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def failed(self) -> set[int]:
        """The places of files that could not be read."""
        return {place for place, file in enumerate(self.files) if file.error is not None}


def read_log(
    plan: Plan,
    directory: Path,
    tick: Callable[[int], None],
    only: pl.Expr | None = None,
    buckets: int | None = None,
) -> LogRows:
    """Decode the needed columns of every file and spread the rows over shards.

    A file that fails on the way is marked unreadable, and its rows are left out when shards are
    loaded.

    Args:
        plan: of the run.
        directory: where shards wait on disk.
        tick: called with the number of rows after each file.
        only: which rows to keep, in one shard; all by default.
        buckets: how many shards there shall be; by default as many as the log's size asks for.

    Raises:
        SettingsError: the log has discounts of its own and gamma was not given.
        InputError: the scores could not be read.
    """
    rows = sum(file.rows or 0 for file in plan.readable)
    shards = count_shards(rows, sum(file.decoded_bytes for file in plan.readable))
    shards = (buckets or shards) if only is None else 1
    log = LogRows(
        rows=Spill(directory, "rows", shards),
        scores=Spill(directory, "scores", shards),
        files=list(plan.files),
        padding=count_padding(pl.DataFrame(schema=dict.fromkeys(scope_names(plan), pl.String()))),
    )
    with ThreadPoolExecutor(plan.settings.threads) as pool:
        reads = [
            pool.submit(_read_file, plan, log, place, only)
            for place, file in enumerate(plan.files)
            if file.error is None
        ]
        for read in reads:
            tick(read.result())
        list(pool.map(lambda file: _read_scores(plan, log, file), plan.scores))
    if log.files and all(file.error is not None for file in log.files):
        raise InputError(f"{log.files[0].name}: {log.files[0].error}; no file is readable")
    if log.has_discounts and plan.settings.gamma is None:
        raise SettingsError(
            "gamma: the log has discounts other than 0 and 1, so gamma must be given; say "
            "--gamma 1 if they are full discounts"
        )
    return log


def scope_names(plan: Plan) -> list[str]:
    """Return the mapped scopes of the audit."""
    return ["source_file", *(name for name in SCOPES if name in plan.shape.dtypes)]


def _read_file(plan: Plan, log: LogRows, place: int, only: pl.Expr | None) -> int:
    """Read one file into the shards; return its rows."""
    file = plan.files[place]
    needed = mappings.needed_columns(plan.mapping, file.schema)
    carried = [name for name in plan.carry if name in file.schema.names]
    has_discounts = False
    waiting: list[pl.DataFrame] = []
    padding: list[pl.DataFrame] = []
    start = 0
    try:
        for batch in read_batches(file, list(dict.fromkeys([*needed, *carried]))):
            frame = _frame(plan, batch, start).with_columns(
                pl.lit(place, dtype=pl.Int32).alias("file")
            )
            frame, skipped = _split_padding(plan, frame, file.name)
            padding += skipped
            frame = frame if only is None else frame.filter(only)
            waiting.append(frame)
            start += batch.num_rows
            if sum(part.height for part in waiting) >= SPILL_ROWS:
                has_discounts |= _spill(log, waiting)
        has_discounts |= _spill(log, waiting)
    except UnreadableError as error:
        log.files[place] = replace(file, error=str(error))
        return file.rows or 0
    with log.lock:
        log.has_discounts |= has_discounts
        log.padding = merge_counts([log.padding, *padding])
    return start


def _spill(log: LogRows, waiting: list[pl.DataFrame]) -> bool:
    """Spread waiting rows over the shards; return whether one has a discount of its own."""
    if not waiting:
        return False
    frame = pl.concat(waiting)
    waiting.clear()
    log.rows.add(frame)
    if "discount" not in frame.columns:
        return False
    is_own = (pl.col("discount") > 0) & (pl.col("discount") < 1)
    return bool(frame.select(is_own.any()).item())


def _frame(plan: Plan, batch: pa.RecordBatch, start: int) -> pl.DataFrame:
    mapped = mappings.map_table(batch, plan.mapping)
    frame = cast_frame(mapped, plan.shape, start, batch.num_rows)
    columns = []
    for name, dtype in plan.carry.items():
        if name in batch.schema.names:
            column = mappings.read_column(batch.column(name), (), name).cast(dtype)
        else:
            column = pl.Series(name, [None], dtype=dtype).new_from_index(0, batch.num_rows)
        columns.append(column.alias(CARRIED + name))
    return frame.with_columns(columns)


def _split_padding(
    plan: Plan, frame: pl.DataFrame, name: str
) -> tuple[pl.DataFrame, list[pl.DataFrame]]:
    """Return the received rows, and the counts of the padding rows if there are any."""
    if "valid" not in frame.columns:
        return frame, []
    is_padding = frame["valid"].eq_missing(0)
    if not is_padding.any():
        return frame, []
    skipped = frame.filter(is_padding).with_columns(pl.lit(name).alias("source_file"))
    return frame.filter(~is_padding), [count_padding(skipped.select(scope_names(plan)))]


def _score_types(plan: Plan) -> dict[str, pl.DataType]:
    types = {name: plan.shape.dtypes.get(name, pl.Int64()) for name in KEYS}
    return types | dict.fromkeys(plan.scored, pl.Float64())


def _read_scores(plan: Plan, log: LogRows, file: InputFile) -> None:
    types = _score_types(plan)
    for batch in read_batches(file, list(types)):
        columns = [mappings.read_column(batch.column(name), (), name) for name in types]
        try:
            frame = pl.DataFrame(columns).cast(pl.Schema(types))
        except pl.exceptions.InvalidOperationError:
            raise SchemaError(
                f"{plan.settings.scores}, {file.name}: a key or a score does not fit its type; "
                "keys are int64 or text, scores are numbers"
            ) from None
        frame = frame.with_columns(pl.col(pl.Float64) + 0.0)  # -0.0 is 0.0
        if frame.select(pl.any_horizontal(pl.col(*KEYS).is_null().any())).item():
            raise SchemaError(
                f"{plan.settings.scores}, {file.name}: a key is null; every score needs a "
                "trajectory_id and a step"
            )
        log.scores.add(frame)


def load_scores(log: LogRows, plan: Plan, shard: int) -> pl.DataFrame | None:
    """Return the scores of one shard, each key once; None where none were given.

    Raises:
        InputError: a key stands twice with different values.
    """
    if not plan.scores:
        return None
    empty = pl.DataFrame(schema=_score_types(plan))
    scores = pl.concat([empty, *log.scores.load(shard)]).unique()
    twice = scores.filter(pl.struct(KEYS).is_duplicated())
    if twice.height:
        first = twice.sort(KEYS).row(0, named=True)
        raise InputError(
            f"{plan.settings.scores}: trajectory_id {first['trajectory_id']}, step "
            f"{first['step']} has scores that differ; expected one score of each key"
        )
    return scores


def load_rows(log: LogRows, plan: Plan, shard: int) -> pl.DataFrame:
    """Return the received rows of one shard in any order, with source_file and PRESENT columns."""
    frames = log.rows.load(shard, log.failed)
    schema: dict[str, pl.DataType] = {
        "row": pl.Int64(),
        **plan.shape.dtypes,
        **{CARRIED + name: dtype for name, dtype in plan.carry.items()},
        "file": pl.Int32(),
    }
    empty = pl.DataFrame(schema=schema)
    rows = pl.concat([empty, *(frame.select(empty.columns) for frame in frames)])
    names = pl.Series("source_file", [file.name for file in log.files], dtype=pl.String)
    present = []
    for name in TOLD_APART:
        if name in plan.shape.dtypes:
            has = pl.Series([file.name in plan.shape.present[name] for file in log.files])
            present.append(has.gather(rows["file"]).alias(PRESENT + name))
    return rows.with_columns(names.gather(rows["file"]), *present)
