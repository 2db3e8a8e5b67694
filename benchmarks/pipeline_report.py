"""Costs of several rounds, as Markdown: medians, and ratios within a round with their spread."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Cost:
    """What one process took: wall seconds, CPU seconds of all its threads, peak memory in bytes."""

    wall: float
    cpu: float
    memory: int


@dataclass(frozen=True, slots=True)
class Job:
    """Something to time: a candidate on a log."""

    log: str
    candidate: str


Round = dict[Job, Cost]

COPY, PROCESS, BY_HAND = "Polars copy", "vtaudit process", "DuckDB window + NumPy loop"
HEADER = """\
| log | what | wall s | x copy | CPU s | x copy's CPU | million rows/s | peak GiB |
|---|---|---|---|---|---|---|---|"""


def spread(ratios: Iterable[float]) -> str:
    """Return the median, and least and greatest, as 2.10 (2.05-2.31)."""
    found = sorted(ratios)
    return f"{median(found):.2f} ({found[0]:.2f}-{found[-1]:.2f})"


def cost_table(rounds: Sequence[Round], rows: dict[str, int]) -> str:
    """Return a line for each job; `rows` are those of each log."""
    lines = [HEADER]
    for job in sorted(rounds[0], key=lambda job: list(rows).index(job.log)):
        copy = Job(job.log, COPY)
        costs = [each[job] for each in rounds]
        wall = median(cost.wall for cost in costs)
        cells = (
            job.log,
            job.candidate,
            f"{wall:.2f}",
            spread(each[job].wall / each[copy].wall for each in rounds),
            f"{median(cost.cpu for cost in costs):.2f}",
            spread(each[job].cpu / each[copy].cpu for each in rounds),
            f"{rows[job.log] / wall / 1e6:.2f}",
            f"{median(cost.memory for cost in costs) / GIB:.2f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def stage_table(seconds: Sequence[dict[str, float]]) -> str:
    """Return a line for each stage of the runs, whose seconds by stage are given, dearest first."""
    stages = {name: median(each.get(name, 0.0) for each in seconds) for name in seconds[0]}
    total = sum(stages.values())
    lines = ["| stage | s, summed over threads | share |", "|---|---|---|"]
    for name, taken in sorted(stages.items(), key=lambda item: -item[1]):
        lines.append(f"| {name} | {taken:.2f} | {100 * taken / total:.0f} % |")
    return "\n".join(lines)


def growth_line(rounds: Sequence[Round], small: str, large: str) -> str:
    """Return how much more `process` takes for the larger log."""
    pairs = [(each[Job(small, PROCESS)], each[Job(large, PROCESS)]) for each in rounds]
    time = spread(more.wall / less.wall for less, more in pairs)
    memory = spread(more.memory / less.memory for less, more in pairs)
    return f"From {small} to {large}: time {time}-fold, peak memory {memory}-fold."


def extra_line(rounds: Sequence[Round], plain: str, wide: str) -> str:
    """Return what the further columns cost `process`, in copies of their own size."""

    def extra(each: Round, candidate: str) -> float:
        return each[Job(wide, candidate)].wall - each[Job(plain, candidate)].wall

    process = [extra(each, PROCESS) for each in rounds]
    copy = [extra(each, COPY) for each in rounds]
    more = f"{median(process):.2f} s more in process, {median(copy):.2f} s more in the copy"
    if min(copy) <= 0:
        return f"Masks and logits: {more}: too few rows for a ratio."
    ratio = spread(ours / theirs for ours, theirs in zip(process, copy, strict=True))
    return f"Masks and logits: {more}: {ratio} copies of their own size."
