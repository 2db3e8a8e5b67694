"""Trajectories, windows and episodes of the surveyed rows, counted and measured."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

MAX_BINS = 10
FLAGS = ("terminated", "truncated")


@dataclass(frozen=True, slots=True)
class Windows:
    """How the rows of windows lie in the files.

    Attributes:
        count: windows; the whole trajectories where the log has no unroll_id.
        contiguous: those whose rows stand one after the other in one file, in steps of 1.
        in_several_files, interleaved, out_of_order: why the others are not (not exclusive).
    """

    count: int
    contiguous: int
    in_several_files: int
    interleaved: int
    out_of_order: int


@dataclass(frozen=True, slots=True)
class EndKind:
    """Episodes that end in one way, and the least, greatest and most frequent of their lengths."""

    kind: str
    episodes: int
    shortest: int
    longest: int
    at_longest: int


@dataclass(frozen=True, slots=True)
class Bin:
    """Episodes of low to high steps, both included."""

    low: int
    high: int
    episodes: int


@dataclass(frozen=True, slots=True)
class Streams:
    """The streams of the log.

    Attributes:
        trajectories: distinct ids.
        in_several_files: trajectories whose rows stand in more than one file.
        keyless: rows without an id or a step; they are left out of the rest.
        repeated: rows whose (trajectory_id, step) stood before; None without a step column.
        holes: steps that are missing inside trajectories; None without a step column.
        with_holes: trajectories that miss a step; None without a step column.
        windows: how windows lie in the files.
        ends: episodes by the way they end; an open one has no end in the log.
        lengths: histogram of the episodes that end, of all where none does.
        actionless_ends: rows without an action that have no key or are the last of their
            trajectory.
    """

    trajectories: int
    in_several_files: int
    keyless: int
    repeated: int | None
    holes: int | None
    with_holes: int | None
    windows: Windows
    ends: tuple[EndKind, ...]
    lengths: tuple[Bin, ...]
    actionless_ends: int


def measure_streams(rows: pl.DataFrame) -> Streams | None:
    """Return the streams of surveyed rows, None where there is no trajectory_id."""
    if "trajectory_id" not in rows.columns:
        return None
    has_step = "step" in rows.columns
    keyed = rows.drop_nulls(["trajectory_id", "step"] if has_step else ["trajectory_id"])
    files = keyed.group_by("trajectory_id").agg(pl.col("file").n_unique())
    order = ["trajectory_id", "step"] if has_step else ["trajectory_id"]
    ordered = keyed.sort(order, maintain_order=True)
    unique = ordered.filter(_changed("trajectory_id") | _changed("step")) if has_step else ordered
    missing = _missing_steps(unique) if has_step else None
    episodes = _episodes(unique, has_step=has_step)
    last = unique["trajectory_id"].ne_missing(unique["trajectory_id"].shift(-1))
    return Streams(
        trajectories=files.height,
        in_several_files=files.filter(pl.col("file") > 1).height,
        keyless=rows.height - keyed.height,
        repeated=keyed.height - unique.height if has_step else None,
        holes=int(missing.sum()) if missing is not None else None,
        with_holes=int((missing > 0).sum()) if missing is not None else None,
        windows=_measure_windows(keyed, has_step=has_step),
        ends=_count_ends(episodes),
        lengths=_bin_lengths(episodes),
        actionless_ends=int(rows["no_action"].sum()) - int((unique["no_action"] & ~last).sum()),
    )


def _changed(name: str) -> pl.Expr:
    return pl.col(name).ne_missing(pl.col(name).shift(1)) | (pl.int_range(pl.len()) == 0)


def _missing_steps(unique: pl.DataFrame) -> pl.Series:
    step = pl.col("step")
    return unique.group_by("trajectory_id").agg(
        (step.max() - step.min() + 1 - step.len().cast(pl.Int64)).alias("missing")
    )["missing"]


def _measure_windows(keyed: pl.DataFrame, *, has_step: bool) -> Windows:
    window = ["trajectory_id", *(["unroll_id"] if "unroll_id" in keyed.columns else [])]
    starts = pl.any_horizontal(_changed(name) for name in (*window, "file"))
    leap = (pl.col("step") != pl.col("step").shift(1) + 1) if has_step else pl.lit(False)
    marked = keyed.select(*window, "file", starts.alias("starts"), leap.alias("leap"))
    found = marked.group_by(window).agg(
        (pl.col("file").n_unique() > 1).alias("split"),
        (pl.col("starts").sum() > pl.col("file").n_unique()).alias("interleaved"),
        (pl.col("leap") & ~pl.col("starts")).any().alias("leaps"),
    )
    sound = ~(pl.col("split") | pl.col("interleaved") | pl.col("leaps").fill_null(False))
    return Windows(
        count=found.height,
        contiguous=found.filter(sound).height,
        in_several_files=int(found["split"].sum()),
        interleaved=int(found["interleaved"].sum()),
        out_of_order=int(found["leaps"].sum()),
    )


def _episodes(unique: pl.DataFrame, *, has_step: bool) -> pl.DataFrame:
    """Return `kind` and `length` of each episode; of whole trajectories without any flag.

    The length counts steps from the first to the last, lost rows included.
    """
    flags = [name for name in FLAGS if name in unique.columns]
    is_end = pl.any_horizontal([pl.col(name).eq_missing(1) for name in flags] or [pl.lit(False)])
    is_end = is_end | pl.col("zero")
    starts = _changed("trajectory_id") | is_end.shift(1, fill_value=False)
    ends = [pl.col(name).last().eq_missing(1).alias(name) for name in flags]
    span = pl.col("step").last() - pl.col("step").first() + 1 if has_step else pl.len()
    episodes = (
        unique.with_columns(starts.cum_sum().alias("episode"))
        .group_by("episode")
        .agg(*ends, pl.col("zero").last(), span.cast(pl.Int64).alias("length"))
    )
    if not flags:
        unmarked = (
            pl.when(pl.col("zero")).then(pl.lit("zero_discount")).otherwise(pl.lit("unmarked"))
        )
        return episodes.select(unmarked.alias("kind"), "length")
    terminated, truncated = (pl.col(name) if name in flags else pl.lit(False) for name in FLAGS)
    kind = (
        pl.when(terminated & truncated)
        .then(pl.lit("both"))
        .when(terminated)
        .then(pl.lit("terminated"))
        .when(truncated)
        .then(pl.lit("truncated"))
        .when(pl.col("zero"))
        .then(pl.lit("zero_discount"))
        .otherwise(pl.lit("open"))
    )
    return episodes.select(kind.alias("kind"), "length")


def _count_ends(episodes: pl.DataFrame) -> tuple[EndKind, ...]:
    length = pl.col("length")
    table = episodes.group_by("kind").agg(
        pl.len().alias("episodes"),
        length.min().alias("shortest"),
        length.max().alias("longest"),
        (length == length.max()).sum().alias("at_longest"),
    )
    return tuple(EndKind(**row) for row in table.sort("kind").to_dicts())


def _bin_lengths(episodes: pl.DataFrame) -> tuple[Bin, ...]:
    ended = episodes.filter(pl.col("kind") != "open")
    lengths = (ended if ended.height else episodes)["length"]
    if not lengths.len():
        return ()
    low: int = lengths.min()  # type: ignore[assignment]
    high: int = lengths.max()  # type: ignore[assignment]
    width = -(-(high - low + 1) // MAX_BINS)
    counts = dict(((lengths - low) // width).value_counts().iter_rows())
    return tuple(
        Bin(low + k * width, min(low + (k + 1) * width - 1, high), counts.get(k, 0))
        for k in range((high - low) // width + 1)
    )
