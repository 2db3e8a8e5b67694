"""Where the windows of a log lie in its files, and which of them must be brought together.

A run is a stretch of rows of one window in one file, its steps growing. A run whose keys no other
run can have, and whose window is nowhere else, is judged where it lies. The others are contested:
their rows are brought together by trajectory, as are those of a run that a contested one follows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from vtaudit.canonical import LINEAGE
from vtaudit.labels import concat_anew
from vtaudit.plan import Plan
from vtaudit.reading import Batch, Range, read_batchwise
from vtaudit.records import InputFile
from vtaudit.stretches import mark_changes, number_rows

# a log of shorter runs is brought together by trajectory as a whole
LEAST_ROWS_OF_A_RUN = 8
# a window of more than this many times the rows that fit in memory is cut into pieces
LONG = 2
# so many runs a file may have however short they are
FREE_RUNS = 1_000
SURVEYED = ("trajectory_id", "unroll_id", "step", "valid", "value", *LINEAGE)


@dataclass(frozen=True, slots=True)
class Runs:
    """The runs of a log, by file and first row; R runs.

    Attributes:
        file, start: where each one begins  # [R] int64
        is_moved: whether its rows are brought together by trajectory  # [R] bool
        edges: for each run that an uncontested one follows: `run`, `next`, the run that follows,
            and of its first row trajectory_id, step, value and the mapped lineage columns.
        trajectory_id: of each run  # [R]
        height: rows from the start of each run to that of the next one  # [R] int64
        chains: runs, in the order of their steps, of each window that is too long for memory and
            must not be moved; it is cut into pieces.
    """

    file: NDArray[np.int64]
    start: NDArray[np.int64]
    is_moved: NDArray[np.bool_]
    edges: pl.DataFrame
    trajectory_id: pl.Series
    height: NDArray[np.int64]
    chains: list[list[int]]


def survey_runs(plan: Plan, size: int, tick: Callable[[int], None]) -> Runs | None:
    """Return the runs of the log, None where they are too many to be worth a line each.

    Args:
        plan: of the run.
        size: how many rows fit in memory at once.
        tick: called with the number of rows after each file.

    Raises:
        UnreadableError: a file cannot be decoded.
    """
    places = [place for place, file in enumerate(plan.files) if file.error is None and file.rows]
    with ThreadPoolExecutor(plan.settings.threads) as pool:
        surveys = [pool.submit(_survey_file, plan, place) for place in places]
        found = []
        try:
            for place, survey in zip(places, surveys, strict=True):
                runs = survey.result()
                if runs is None:
                    return None
                found.append(runs)
                tick(plan.files[place].rows or 0)
        finally:
            pool.shutdown(cancel_futures=True)
    runs = concat_anew(found).with_row_index("run")
    runs = runs.with_columns(pl.Series("height", _heights(runs, plan.files)))
    return _settle(runs, size, stitched=plan.settings.windows == "stitched")


def _heights(runs: pl.DataFrame, files: Sequence[InputFile]) -> NDArray[np.int64]:
    """Return the rows from the start of each run to that of the next one of its file  # [R]."""
    place, start = runs["file"].to_numpy(), runs["start"].to_numpy()
    ends = np.array([file.rows or 0 for file in files], np.int64)[place]
    is_same = place[1:] == place[:-1]
    ends[:-1][is_same] = start[1:][is_same]
    return np.asarray(ends - start)


def _survey_file(plan: Plan, place: int) -> pl.DataFrame | None:
    """Return the runs of one file, None where they are too many."""
    names = [name for name in SURVEYED if name in plan.shape.dtypes]
    height = plan.files[place].rows or 0
    limit = FREE_RUNS + height // LEAST_ROWS_OF_A_RUN
    stitched = plan.settings.windows == "stitched"
    parts, count = [], 0
    for batch in read_batchwise(plan, Range(place, 0, height), names):
        parts.append(_find_runs(batch, place, stitched=stitched))
        count += parts[-1].height
        if count > limit:
            return None
    return _join_runs(concat_anew(parts))


def _find_runs(batch: Batch, place: int, *, stitched: bool) -> pl.DataFrame:
    """Return the runs of one batch of a file."""
    frame, trajectory = batch.frame, batch.told_apart("trajectory_id")
    step = frame["step"].fill_null(-1).to_numpy()
    is_kept = step >= 0
    if trajectory.null_count():
        is_kept &= trajectory.is_not_null().to_numpy()
    if "valid" in frame.columns:
        is_kept &= frame["valid"].ne_missing(0).to_numpy()
    rows = np.flatnonzero(is_kept)
    has_unrolls = not stitched and ("unroll_id" in batch.texts or "unroll_id" in frame.columns)
    window = [trajectory, *([batch.told_apart("unroll_id")] if has_unrolls else [])]
    if len(rows) < len(step):
        step, window = step[rows], [column.gather(rows) for column in window]
    is_head = np.ones(len(rows), np.bool_)
    is_head[1:] = step[1:] <= step[:-1]
    for column in window:
        is_head[1:] |= mark_changes(column)
    heads = np.flatnonzero(is_head)
    tails = np.append(heads[1:], len(rows))[: len(heads)] - 1
    runs = batch.take(rows[heads])
    if not has_unrolls:
        runs = runs.with_columns(pl.lit(0, dtype=pl.Int64).alias("unroll_id"))
    if "value" not in runs.columns:
        runs = runs.with_columns(pl.lit(None, dtype=pl.Float64).alias("value"))
    lineage = [name for name in LINEAGE if name in runs.columns]
    return runs.select(
        "trajectory_id",
        "unroll_id",
        pl.lit(place, dtype=pl.Int32).alias("file"),
        "value",
        *lineage,
        start="row",
        low="step",
        high=pl.Series(step[tails]),
    )


def _join_runs(runs: pl.DataFrame) -> pl.DataFrame:
    """Return the runs of a file, those joined that only the end of a batch had parted."""
    goes_on = pl.col("low") > pl.col("high").shift()
    for name in ("trajectory_id", "unroll_id"):
        goes_on &= pl.col(name).eq_missing(pl.col(name).shift())
    number = runs.select((~goes_on.fill_null(False)).cum_sum().alias("number"))["number"]
    if not runs.height or number[-1] == runs.height:
        return runs
    ends = runs.group_by(number, maintain_order=True).agg(pl.col("high").last())
    return runs.filter(number.diff().fill_null(1) == 1).with_columns(ends["high"])


def _settle(runs: pl.DataFrame, size: int, *, stitched: bool) -> Runs:
    """Say of each run whether its rows are moved, and what follows it."""
    by_step = runs.sort("trajectory_id", "low", "run")
    order = by_step["run"].to_numpy()
    groups = _group(by_step)
    torn, leads_to_torn, chains = _tell_contested(by_step, groups, size, stitched=stitched)
    is_moved = np.empty(len(order), np.bool_)
    is_moved[order] = torn[groups.number] | leads_to_torn
    leads = np.flatnonzero(groups.follows[:-1] & ~torn[1:])
    edges = by_step[groups.firsts[leads + 1]].rename({"run": "next"})
    edges = edges.with_columns(pl.Series("run", order[groups.firsts[leads]]))
    lineage = [name for name in LINEAGE if name in runs.columns]
    return Runs(
        file=runs["file"].cast(pl.Int64).to_numpy(),
        start=runs["start"].to_numpy(),
        is_moved=is_moved,
        edges=edges.filter(pl.col("value").is_finite()).select(
            "run", "trajectory_id", "value", *lineage, next="next", step="low"
        ),
        trajectory_id=runs["trajectory_id"],
        height=runs["height"].to_numpy(),
        chains=chains,
    )


def _tell_contested(
    by_step: pl.DataFrame, groups: _Groups, size: int, *, stitched: bool
) -> tuple[NDArray[np.bool_], NDArray[np.bool_], list[list[int]]]:
    """Return which groups are contested  # [G + 1], which runs one of them follows  # [R], chains.

    A long window is a chain unless its runs overlap others or a contested group follows one.
    """
    window = ["trajectory_id"] if stitched else ["trajectory_id", "unroll_id"]
    overlaps = np.bincount(groups.number, minlength=1)[groups.number] > 1
    number = number_rows([by_step[name] for name in window], by_step.height)
    count = np.bincount(number, minlength=1)[number]
    # sums of rows are exact in float64
    height = np.bincount(number, by_step["height"].to_numpy(), minlength=1)[number]
    is_long = (height > LONG * size) & (count <= 1 + height // (size // LONG + 1))
    is_long &= np.bincount(number, overlaps, minlength=1)[number] == 0
    while True:
        torn = np.zeros(len(groups.firsts) + 1, np.bool_)
        torn[groups.number[overlaps | ((count > 1) & ~is_long)]] = True
        leads_to_torn = groups.follows[groups.number] & torn[groups.number + 1]
        broken = np.unique(number[is_long & leads_to_torn])
        if not len(broken):
            break
        is_long &= ~np.isin(number, broken)
    chains: dict[int, list[int]] = {}
    for place in np.flatnonzero(is_long):
        chains.setdefault(int(number[place]), []).append(int(by_step["run"][int(place)]))
    return torn, leads_to_torn, list(chains.values())


@dataclass(frozen=True, slots=True)
class _Groups:
    """Runs of one trajectory whose steps overlap, by the order of their steps; G groups.

    Attributes:
        number: of each run's group  # [R]
        firsts: the first run of each group  # [G]
        follows: whether the next group begins at the step after this one, then False  # [G + 1]
    """

    number: NDArray[np.int64]
    firsts: NDArray[np.int64]
    follows: NDArray[np.bool_]


def _group(by_step: pl.DataFrame) -> _Groups:
    fresh = by_step["trajectory_id"].rle_id().diff().fill_null(1).to_numpy() != 0
    low = by_step["low"].to_numpy()
    reach = by_step.select(pl.col("high").cum_max().over("trajectory_id"))["high"].to_numpy()
    is_first = fresh.copy()
    is_first[1:] |= low[1:] > reach[:-1]
    firsts = np.flatnonzero(is_first)
    follows = np.zeros(len(firsts) + 1, np.bool_)
    follows[:-2] = ~fresh[firsts[1:]] & (low[firsts[1:]] == reach[firsts[1:] - 1] + 1)
    return _Groups(np.cumsum(is_first) - 1, firsts, follows)
