"""The new rows of a batch, spread over the buckets of the store."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from vtaudit.appending.lines import BUCKETS
from vtaudit.canonical import CARRIED, PRESENT, TOLD_APART
from vtaudit.config import DEFAULT_GAMMA
from vtaudit.counts import merge_counts
from vtaudit.errors import InputError, SettingsError, UnreadableError
from vtaudit.labels import code_text
from vtaudit.outputs import count_chunk
from vtaudit.plan import Plan
from vtaudit.reading import find_unreadable
from vtaudit.reports import Progress
from vtaudit.units import Log, open_log


@dataclass(frozen=True, slots=True)
class Rows:
    """What a batch has read.

    Attributes:
        log: the rows in buckets; None for a batch without files.
        padding: counts of the rows whose valid is false.
        empty: a frame of no rows, as buckets have.
    """

    log: Log | None
    padding: pl.DataFrame
    empty: pl.DataFrame

    def load(self, bucket: int) -> tuple[pl.DataFrame, pl.DataFrame | None]:
        """Return the rows and the scores of one bucket, None for no scores.

        Raises:
            InputError: the disk failed, or a key has scores that differ.
        """
        if self.log is None:
            return self.empty, None
        number = len(self.log.chunks) + bucket
        return self.log.read_bucket(number), self.log.read_scores(number)


def read_batch(plan: Plan, folder: Path, tell: Progress) -> tuple[Rows, Plan]:
    """Return the rows of the plan's files in buckets, and the plan without those that failed.

    Raises:
        SettingsError: the log has discounts of its own and gamma was not given.
        InputError: no file is readable, or the disk failed.
    """
    gamma = DEFAULT_GAMMA if plan.settings.gamma is None else plan.settings.gamma
    judged = replace(plan, settings=replace(plan.settings, gamma=gamma))
    if not plan.readable:
        return Rows(None, merge_counts([]), _empty(plan)), judged
    unreadable: dict[int, str] = {}
    while True:
        plan = plan.without(unreadable)
        if not plan.readable:
            first = plan.files[0]
            raise InputError(f"{first.name}: {first.error}; no file is readable")
        try:
            rows = _read_chunks(plan, folder, tell)
            return rows, replace(plan, settings=judged.settings)
        except UnreadableError as error:
            if error.place is None:
                raise
            unreadable = {**find_unreadable(plan), error.place: str(error)}
            shutil.rmtree(folder, ignore_errors=True)


def _read_chunks(plan: Plan, folder: Path, tell: Progress) -> Rows:
    log = open_log(plan, folder, lambda rows: None, only_buckets=BUCKETS)
    total = len(log.chunks)

    def read(number: int) -> tuple[pl.DataFrame, bool]:
        chunk = log.read_chunk(number)
        return count_chunk(plan, chunk).counts.spell(), chunk.has_discounts

    padding, has_discounts = [], False
    with ThreadPoolExecutor(plan.settings.threads) as pool:
        for done, (counts, is_own) in enumerate(pool.map(read, range(total)), 1):
            padding.append(counts)
            has_discounts |= is_own
            tell("reading rows", done, total)
    if has_discounts and plan.settings.gamma is None:
        raise SettingsError(
            "gamma: the log has discounts other than 0 and 1, so gamma must be given; say "
            "--gamma 1 if they are full discounts"
        )
    return Rows(log, merge_counts(padding), _empty(plan))


def _empty(plan: Plan) -> pl.DataFrame:
    schema: dict[str, pl.DataType] = {"file": pl.Int32(), "row": pl.Int64(), **plan.shape.dtypes}
    schema |= {CARRIED + name: dtype for name, dtype in plan.carry.items()}
    schema["source_file"] = pl.String()
    schema |= {PRESENT + n: pl.Boolean() for n in TOLD_APART if n in plan.shape.dtypes}
    frame = pl.DataFrame(schema=schema)
    return frame.with_columns(
        code_text(frame[name])
        for name in frame.columns
        if frame.schema[name] == pl.String and not name.startswith(CARRIED)
    )
