"""What `pipeline.py` times: a candidate on a log, in a process of its own."""

from __future__ import annotations

import os
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from make_log import LogSpec
from pipeline_report import COPY, PROCESS, Cost, Job

PEERS = Path(__file__).with_name("pipeline_peers.py")
VTAUDIT = "from vtaudit.cli import main; main(prog_name='vtaudit')"
READ_BYTES = 2**24


class BenchmarkError(Exception):
    """What was timed did not do its job."""


@dataclass(frozen=True, slots=True)
class Bench:
    """Where the logs and results lie, and what the processes are given.

    Attributes:
        home: directory of logs and results, each in a directory of its own name.
        logs: each log by its name, the plain one first.
        shared: further arguments of every candidate.
        more: further arguments of `vtaudit process`.
    """

    home: Path
    logs: dict[str, LogSpec]
    shared: tuple[str, ...]
    more: tuple[str, ...]

    def log(self, job: Job) -> Path:
        return self.home / "logs" / job.log.replace(" ", "_")

    def out(self, job: Job) -> Path:
        name = f"{job.candidate} {job.log}".replace(" ", "_")
        return self.home / (name if job.candidate == PROCESS else f"{name}.parquet")

    def command(self, job: Job) -> list[str]:
        """Return the arguments of Python."""
        log, out = str(self.log(job)), str(self.out(job))
        if job.candidate == PROCESS:
            options = ("--quiet", *self.shared, *self.more)
            return ["-c", VTAUDIT, "process", log, "--out", out, *options]
        return [str(PEERS), "copy" if job.candidate == COPY else "by_hand", log, out, *self.shared]


def run_job(bench: Bench, job: Job) -> Cost:
    """Return what the job took; its log is read before, and its last result removed.

    Raises:
        BenchmarkError: it did not end with 0.
    """
    out, messages = bench.out(job), bench.home / "messages"
    if out.is_dir():
        shutil.rmtree(out)
    out.unlink(missing_ok=True)
    warm_cache(bench.log(job))
    command = [sys.executable, *bench.command(job)]
    to_messages = (os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    redirections = [
        (os.POSIX_SPAWN_OPEN, 1, messages, *to_messages),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    start = time.perf_counter()
    pid = os.posix_spawn(command[0], command, os.environ, file_actions=redirections)
    _, status, usage = os.wait4(pid, 0)
    wall = time.perf_counter() - start
    if status:
        code = os.waitstatus_to_exitcode(status)
        said = messages.read_text()
        raise BenchmarkError(f"{job.candidate}, {job.log}: exit code {code}\n{said}")
    return Cost(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def warm_cache(log: Path) -> None:
    """Read every byte of the log, once what others wrote is on disk."""
    os.sync()
    for path in log.iterdir():
        with path.open("rb", buffering=0) as stream:
            while stream.read(READ_BYTES):
                pass
