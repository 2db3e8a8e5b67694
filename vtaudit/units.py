"""The log in units that fit in memory: chunks of its files, and buckets of trajectories."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from vtaudit.actions import note_lists
from vtaudit.chunks import cut_chunks, find_cut, place_rows
from vtaudit.joining import load_scores, spill_scores
from vtaudit.labels import concat_coded, decode_text
from vtaudit.layout import Runs, survey_runs
from vtaudit.memory import rows_at_once
from vtaudit.plan import Plan
from vtaudit.reading import Range, has_own_discounts, note_files, read_apart
from vtaudit.shards import Spill, bucket_of, count_buckets

WINDOWS, BUCKETS = "windows", "buckets"


@dataclass(frozen=True, slots=True)
class Chunk:
    """What was read of a chunk.

    Attributes:
        rows: received rows to judge there.
        padding: rows whose valid is false.
        has_discounts: whether a discount of a row, moved or not, is neither 0 nor 1.
        spilled: files of moved rows, not yet flushed to the disk.
    """

    rows: pl.DataFrame
    padding: pl.DataFrame
    has_discounts: bool
    spilled: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class Log:
    """A log in units: first its chunks, then its buckets.

    Attributes:
        plan: of the run.
        layout: "windows" where rows are judged in their chunk unless their window is contested,
            "buckets" where all rows are brought together by trajectory.
        why: the reason for it.
        chunks: ranges of the files; each is read once, and its moved rows go to the spill.
        chains: chunks that are the pieces of a long window, in the order of their steps.
        moved: starts of runs, and whether their rows are moved, by file; None where all are.
        edges: what follows the runs of a unit elsewhere, by the number of the unit.
        spill, scores: rows and scores that wait in buckets.
    """

    plan: Plan
    layout: str
    why: str
    chunks: tuple[tuple[Range, ...], ...]
    chains: tuple[tuple[int, ...], ...]
    moved: dict[int, tuple[NDArray[np.int64], NDArray[np.bool_]]] | None
    edges: dict[int, pl.DataFrame]
    spill: Spill
    scores: Spill

    @property
    def buckets(self) -> range:
        """The numbers of the units that are buckets."""
        first = len(self.chunks)
        return range(first, first + self.spill.buckets)

    @property
    def tasks(self) -> list[tuple[int, ...]]:
        """The numbers of the chunks, those of one chain together; each number once."""
        chained = {number for chain in self.chains for number in chain}
        alone = [(number,) for number in range(len(self.chunks)) if number not in chained]
        return [*self.chains, *alone]

    @property
    def parts(self) -> range:
        """The numbers of the units that have rows to judge, each of them one part of the run."""
        first = len(self.chunks) if self.layout == BUCKETS else 0
        return range(first, len(self.chunks) + self.spill.buckets)

    def read_chunk(self, number: int) -> Chunk:
        """Return the rows of a chunk; those that are moved go to the spill.

        Raises:
            UnreadableError: a file cannot be decoded, or changed while it was read.
            InputError: the disk failed.
        """
        ranges = self.chunks[number]
        rows, moved = read_apart(self.plan, ranges, [self._find_bounds(each) for each in ranges])
        has_discounts = has_own_discounts(rows) or has_own_discounts(moved)
        rows, padding = _part_padding(rows)
        moved, other = _part_padding(moved)
        padding = concat_coded([padding, other])
        spilled = self.spill.add(number, moved) if self.spill.buckets else []
        rows = note_files(self.plan, rows)
        if self.plan.shape.is_discrete and rows.height:
            rows = note_lists(rows, self.plan.settings)
        return Chunk(rows, note_files(self.plan, padding), has_discounts, tuple(spilled))

    def _find_bounds(self, rows: Range) -> NDArray[np.int64]:
        """Return the ends of stretches of a range; every second stretch is moved."""
        if self.moved is None:
            return np.array([rows.start, rows.start, rows.stop])
        starts, is_moved = self.moved[rows.place]
        low, high = np.searchsorted(starts, (rows.start, rows.stop))
        before = is_moved[low - 1] if low else False
        place = np.concatenate(([rows.start], starts[low:high]))
        changes = np.diff(np.concatenate(([False, before], is_moved[low:high])))
        return np.concatenate(([rows.start], place[changes], [rows.stop]))

    def read_bucket(self, number: int) -> pl.DataFrame:
        """Return the rows of a bucket, once all chunks were read."""
        return note_files(self.plan, self.spill.load(number - len(self.chunks)))

    def read_scores(self, number: int) -> pl.DataFrame | None:
        """Return the scores of a bucket, each key once; None where none were given.

        Raises:
            InputError: a key stands twice with different values.
        """
        if not self.plan.scores:
            return None
        return load_scores(self.plan, self.scores, number - len(self.chunks))


def open_log(
    plan: Plan, folder: Path, tick: Callable[[int], None], only_buckets: int | None = None
) -> Log:
    """Return the log in units, its windows surveyed where that can spare moving them.

    Args:
        plan: of the run.
        folder: where rows wait on disk.
        tick: called with the number of rows that were surveyed.
        only_buckets: bring all rows together, on disk, in so many buckets.

    Raises:
        UnreadableError: a file cannot be decoded.
    """
    rows = sum(file.rows or 0 for file in plan.readable)
    row_bytes = plan.row_bytes
    why = _why_not_surveyed(plan, count_buckets(rows, int(rows * row_bytes)))
    why = "a store has buckets" if only_buckets else why
    size = rows_at_once(row_bytes)
    runs = None if why else survey_runs(plan, size, tick)
    chunks, chains = cut_chunks(plan, runs, size)
    moved, edges, buckets = None, {}, count_buckets(rows, int(rows * row_bytes))
    if runs is not None:
        runs = replace(runs, is_moved=runs.is_moved | find_cut(runs, chunks))
        count = int(runs.height[runs.is_moved].sum())
        buckets = count_buckets(count, int(count * row_bytes)) if count else 0
        moved = _by_file(plan, runs)
        edges = _edges_by_unit(runs, chunks, buckets)
    buckets = only_buckets or buckets
    on_disk = runs is not None or buckets > 1
    scores = Spill(folder / "scores", buckets, on_disk)
    spill_scores(plan, scores)
    return Log(
        plan=plan,
        layout=BUCKETS if runs is None else WINDOWS,
        why=why or ("runs are short or interleaved" if runs is None else "windows lie together"),
        chunks=chunks,
        chains=chains,
        moved=moved,
        edges=edges,
        spill=Spill(folder / "rows", buckets, on_disk, is_compressed=runs is None),
        scores=scores,
    )


def _why_not_surveyed(plan: Plan, wanted: int) -> str:
    settings = plan.settings
    if plan.scores:
        return "scores are joined by trajectory"
    if settings.step_from == "order" or settings.end_of_trajectory:
        return "steps or ends depend on whole trajectories"
    return "the log fits in one shard" if wanted == 1 else ""


def _part_padding(rows: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the received rows, and those whose valid is false."""
    if "valid" in rows.columns:
        is_padding = rows["valid"].eq_missing(0)
        if is_padding.any():
            return rows.filter(~is_padding), rows.filter(is_padding)
    return rows, rows.clear()


def _by_file(plan: Plan, runs: Runs) -> dict[int, tuple[NDArray[np.int64], NDArray[np.bool_]]]:
    bounds = np.searchsorted(runs.file, np.arange(len(plan.files) + 1))
    return {
        place: (runs.start[low:high], runs.is_moved[low:high])
        for place, (low, high) in enumerate(itertools.pairwise(bounds))
    }


def _edges_by_unit(
    runs: Runs, chunks: Sequence[Sequence[Range]], buckets: int
) -> dict[int, pl.DataFrame]:
    """Return what follows the runs of each unit in another one."""
    run, after = (runs.edges[name].to_numpy() for name in ("run", "next"))
    unit = _find_units(runs, chunks, buckets, run, runs.height[run] - 1)
    is_apart = unit != _find_units(runs, chunks, buckets, after, np.zeros(len(after), np.int64))
    # no text as Enums: a look at one takes time for all words of the log
    edges = decode_text(runs.edges.drop("run", "next").filter(is_apart))
    edges = edges.with_columns(pl.Series("unit", unit[is_apart]))
    parts = edges.partition_by("unit", as_dict=True, include_key=False)
    return {int(key[0]): part for key, part in parts.items()}


def _find_units(
    runs: Runs,
    chunks: Sequence[Sequence[Range]],
    buckets: int,
    run: NDArray[np.integer],
    row: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return the unit of a row of each of some runs; `row` counts from the run's first  # [E]."""
    ranges = sorted((each.place, each.start, k) for k, chunk in enumerate(chunks) for each in chunk)
    place, start, number = (np.array(column, np.int64) for column in zip(*ranges, strict=True))
    key = place_rows(runs.file[run], runs.start[run] + row)
    unit: NDArray[np.int64] = number[np.searchsorted(place_rows(place, start), key, "right") - 1]
    is_moved = runs.is_moved[run]
    if is_moved.any():
        bucket = bucket_of(runs.trajectory_id[run], buckets)
        unit = np.where(is_moved, len(chunks) + bucket, unit)
    return unit
