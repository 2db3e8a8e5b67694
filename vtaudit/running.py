"""Take every unit of a log from its rows to its parts and counts, several at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vtaudit.checkpoints import load_shard, save_shard
from vtaudit.clock import Clock
from vtaudit.errors import InputError, SettingsError
from vtaudit.outputs import ShardResult, add_up, count_chunk, count_unit, write_shard
from vtaudit.pieces import Junction
from vtaudit.plan import Plan
from vtaudit.reports import Progress
from vtaudit.shard import Received, judge_shard
from vtaudit.store import sync
from vtaudit.tuning import give_back
from vtaudit.units import Log

# so many results are added up at once, so that few wait in memory
MANY_RESULTS = 32


def run_units(plan: Plan, log: Log, work: Path, clock: Clock, tell: Progress) -> list[ShardResult]:
    """Run the chunks, then the buckets, which wait for the rows of all chunks.

    Args:
        plan: of the run, its gamma resolved.
        log: in units.
        work: where parts and what is done are kept.
        clock: of the run.
        tell: called with the number of units that are done.

    Raises:
        UnreadableError: a file of the log cannot be decoded.
        InputError: the disk failed.
        SettingsError: the log has discounts of its own and gamma was not given.
    """
    results: list[ShardResult] = []
    total, done = len(log.chunks) + len(log.buckets), 0
    with ThreadPoolExecutor(1) as flusher, ThreadPoolExecutor(plan.settings.threads) as pool:
        runner = _Runner(plan, log, work, clock, flusher)

        def run_all(run: Callable[[Any], list[ShardResult]], tasks: Sequence[Any]) -> None:
            nonlocal done
            give_back()
            futures = deque(pool.submit(run, task) for task in tasks)
            while futures:
                found = futures.popleft().result()
                results.extend(found)
                done += len(found)
                tell("computing shards", done, total)
                if len(results) >= MANY_RESULTS:
                    results[:] = [add_up(results)]
            for kept in runner.kept:
                kept.result()

        try:
            run_all(runner.run_chunks, log.tasks)
            _check_discounts(log, results)
            run_all(runner.run_bucket, log.buckets)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    give_back()
    return results


def _check_discounts(log: Log, results: Sequence[ShardResult]) -> None:
    if log.plan.settings.gamma is None and any(each.has_discounts for each in results):
        raise SettingsError(
            "gamma: the log has discounts other than 0 and 1, so gamma must be given; say "
            "--gamma 1 if they are full discounts"
        )


@dataclass(frozen=True, slots=True)
class _Runner:
    """What every unit needs; what is done is flushed and noted by a thread of its own."""

    plan: Plan
    log: Log
    work: Path
    clock: Clock
    flusher: ThreadPoolExecutor
    kept: list[Future[None]] = field(default_factory=list)

    def run_chunks(self, numbers: Sequence[int]) -> list[ShardResult]:
        """Run one chunk, or the pieces of a long window, of which the last comes first."""
        results: list[ShardResult] = []
        is_piece = numbers in self.log.chains
        for number in reversed(numbers):
            done = load_shard(self.work, number)
            if done is None:
                after = results[-1].junction if results else None
                done = self._run_chunk(number, after, is_piece=is_piece)
            results.append(done)
        return results

    def _run_chunk(self, number: int, after: Junction | None, *, is_piece: bool) -> ShardResult:
        with self.clock.stage("read"):
            chunk = self.log.read_chunk(number)
        result, written = count_chunk(self.plan, chunk), list(chunk.spilled)
        if number in self.log.parts:
            edges = self.log.edges.get(number)
            received = Received(chunk.rows, None, edges, is_piece, after)
            judged, parts = self._run_shard(number, received)
            result = replace(add_up([judged, result]), junction=judged.junction)
            written += parts
        if self.log.spill.is_on_disk:
            self._keep(number, result, written)
        return result

    def run_bucket(self, number: int) -> list[ShardResult]:
        """Run one bucket, the rows of all chunks being there."""
        done = load_shard(self.work, number)
        if done is not None:
            return [done]
        with self.clock.stage("read"):
            rows, scores = self.log.read_bucket(number), self.log.read_scores(number)
            received = Received(rows, scores, self.log.edges.get(number))
            del rows, scores
        result, written = self._run_shard(number, received)
        self._keep(number, result, written)
        return [result]

    def _run_shard(self, number: int, received: Received) -> tuple[ShardResult, list[Path]]:
        shard = judge_shard(self.plan, received, self.clock)
        with self.clock.stage("write"):
            part = number - self.log.parts.start
            written = write_shard(self.plan, shard, self.work, part, flush=False)
        with self.clock.stage("count"):
            return count_unit(self.plan, shard, received), written

    def _keep(self, number: int, result: ShardResult, written: Sequence[Path]) -> None:
        """Note that a unit is done once its files are on the disk, without waiting for it."""

        def keep() -> None:
            for path in written:
                try:
                    sync(path)
                except OSError as error:
                    raise InputError(f"{path}: cannot be written: {error}") from None
            save_shard(self.work, number, result)

        self.kept.append(self.flusher.submit(keep))
