"""Time `vtaudit process` against a copy of the log, and against what a user would write instead.

    python benchmarks/pipeline.py --rows 5000000

Everything timed runs as a process of its own, in rounds whose order turns, with the log in the
page cache; a ratio is to the Polars copy of the same round. The results of each round are checked
before anything is printed. `benchmarks/README.md` explains the lines.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, replace
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

from make_log import LogSpec, add_log_options, write_log
from pipeline_jobs import Bench, BenchmarkError, run_job
from pipeline_report import (
    BY_HAND,
    COPY,
    PROCESS,
    Job,
    Round,
    cost_table,
    extra_line,
    growth_line,
    stage_table,
)

Result = TypeVar("Result")

BY_HAND_MAX_ROWS = 10_000_000
WARM_UP_ROWS = 10_000
GROWTH = 5


def apart(function: Callable[..., Result], *arguments: object) -> Result:
    """Return what the function returns in another process.

    The peak of a process is never below that of its parent when it was started, so this one
    stays small.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def check_round(bench: Bench, jobs: list[Job]) -> tuple[dict[str, float], int]:
    """Return seconds by stage of `process` on the plain log, and the rows compared."""
    from pipeline_checks import check_copy, check_run, compare_targets  # DuckDB

    stages, compared = {}, 0
    for job in jobs:
        rows, out = bench.logs[job.log].rows, bench.out(job)
        if job.candidate == COPY:
            check_copy(rows, out)
        elif job.candidate == PROCESS:
            stages[job.log] = check_run(rows, out)
        else:
            compared = compare_targets(bench.out(Job(job.log, PROCESS)), out)
    return stages[jobs[0].log], compared


def run_rounds(
    bench: Bench, jobs: list[Job], repeats: int
) -> tuple[list[Round], list[dict[str, float]], int]:
    """Return the costs of each round, the seconds by stage of each, and the rows compared."""
    rounds, stages, compared = [], [], 0
    for number in range(repeats):
        first = number % len(jobs)
        rounds.append({job: run_job(bench, job) for job in jobs[first:] + jobs[:first]})
        seconds, compared = apart(check_round, bench, jobs)
        stages.append(seconds)
    return rounds, stages, compared


def plan_jobs(options: argparse.Namespace) -> tuple[dict[str, LogSpec], list[Job]]:
    """Return the logs by name, the plain one first, and what is timed on them."""
    plain = LogSpec(**{item.name: getattr(options, item.name) for item in fields(LogSpec)})
    plain, actions = replace(plain, actions=0), plain.actions
    logs = {name_log(plain): plain}
    jobs = [Job(name_log(plain), BY_HAND)] if has_by_hand(options) else []
    if options.growth:
        large = replace(plain, rows=GROWTH * plain.rows, files=GROWTH * plain.files)
        logs[name_log(large)] = large
    if actions:
        wide = replace(plain, actions=actions)
        logs[name_log(wide)] = wide
    return logs, [Job(log, candidate) for log in logs for candidate in (COPY, PROCESS)] + jobs


def has_by_hand(options: argparse.Namespace) -> bool:
    return not options.skip_user_code and options.rows <= BY_HAND_MAX_ROWS


def name_log(spec: LogSpec) -> str:
    actions = f", {spec.actions} actions" if spec.actions else ""
    return f"{spec.rows / 1e6:g} M rows{actions}"


def warm_up(bench: Bench, jobs: list[Job]) -> None:
    """Run every job on a small log, so that no figure holds the compiling of Python or numba."""
    small = {name: replace(spec, rows=WARM_UP_ROWS, files=1) for name, spec in bench.logs.items()}
    with tempfile.TemporaryDirectory(dir=bench.home) as home:
        trial = replace(bench, home=Path(home), logs=small)
        write_logs(trial, jobs)
        for job in jobs:
            run_job(trial, job)


def write_logs(bench: Bench, jobs: list[Job]) -> None:
    for job in jobs:
        if not bench.log(job).exists():
            apart(write_log, bench.log(job), bench.logs[job.log])


def describe(bench: Bench, jobs: list[Job], repeats: int) -> str:
    """Return what was measured where, in a sentence each."""
    size = sum(path.stat().st_size for path in bench.log(jobs[0]).iterdir())
    packages = ", ".join(f"{name} {version(name)}" for name in ("polars", "duckdb", "pyarrow"))
    given = "".join(f" {option}" for option in (*bench.shared, *bench.more))
    return (
        f"`{bench.logs[jobs[0].log]}`, {size / 1e6:.0f} MB; rounds: {repeats}; "
        f"processors: {os.cpu_count()}; {packages}; options:{given or ' none'}."
    )


def report(bench: Bench, jobs: list[Job], options: argparse.Namespace) -> str:
    """Run everything and return the Markdown."""
    rounds, stages, compared = run_rounds(bench, jobs, options.repeats)
    plain, *_ = bench.logs
    parts = [describe(bench, jobs, options.repeats)]
    parts.append(cost_table(rounds, {name: spec.rows for name, spec in bench.logs.items()}))
    if compared:
        parts.append(f"Targets are those of the {BY_HAND} in {compared:,} rows compared.")
    else:
        why = "--skip-user-code" if options.skip_user_code else f"over {BY_HAND_MAX_ROWS:,} rows"
        parts.append(f"{BY_HAND}: left out ({why}).")
    for name, spec in bench.logs.items():
        if spec.rows > bench.logs[plain].rows:
            parts.append(growth_line(rounds, plain, name))
        if spec.actions:
            parts.append(extra_line(rounds, plain, name))
    return "\n\n".join([*parts, f"Stages of `vtaudit process`, {plain}:", stage_table(stages)])


def options_given(options: argparse.Namespace, name: str) -> tuple[str, ...]:
    """Return the option as an argument for another command, where it was given."""
    value = getattr(options, name)
    return () if value is None else (f"--{name.replace('_', '-')}={value}",)


def read_options() -> argparse.Namespace:
    """Return the command line, parsed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add_log_options(parser)
    parser.set_defaults(rows=5_000_000, conflicts=0.004)
    parser.add_argument("--repeats", type=int, default=3, help="rounds")
    parser.add_argument("--threads", type=int, help="of every candidate")
    parser.add_argument("--memory-limit", metavar="SIZE", help="of vtaudit process")
    parser.add_argument("--growth", action="store_true", help=f"a log of {GROWTH} x rows too")
    parser.add_argument("--skip-user-code", action="store_true", help="leave out the slow one")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave logs and results there")
    options = parser.parse_args()
    if options.repeats < 1:
        parser.error(f"--repeats {options.repeats}: expected 1 or more")
    if options.keep is not None and options.keep.exists():
        parser.error(f"--keep {options.keep}: exists; name a new directory, or remove this one")
    return options


def main() -> None:
    """Make the logs, time everything, check it, print."""
    options = read_options()
    logs, jobs = plan_jobs(options)
    home: AbstractContextManager[str | Path] = tempfile.TemporaryDirectory()
    if options.keep is not None:
        options.keep.mkdir(parents=True)
        home = nullcontext(options.keep)
    with home as path:
        shared, more = options_given(options, "threads"), options_given(options, "memory_limit")
        bench = Bench(Path(path), logs, shared, more)
        try:
            warm_up(bench, jobs)
            write_logs(bench, jobs)
            print(report(bench, jobs, options))
        except BenchmarkError as error:
            raise SystemExit(f"nothing is reported: {error}") from None


if __name__ == "__main__":
    main()
