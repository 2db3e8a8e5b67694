"""The laws of a run: its counts against each other and against the rows that were written."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from vtaudit.errors import LawError
from vtaudit.reasons import BOOTSTRAP_SOURCES, BOUNDARIES, Reason

Counts = Mapping[tuple[str, str | None], int]
Found = Counter[tuple[str, str | None]]
# what must be equal, and the two numbers
Law = tuple[str, int, int]


def check_laws(
    folder: Path, run: str, counts: Counts, thresholds: Mapping[str, float], *, targets: bool
) -> None:
    """Hold the counts against each other and against the rows of targets and rejects.

    Args:
        folder: where the parts stand.
        run: what to call the run in an error.
        counts: by measure and kind; what is not there is 0.
        thresholds: clip by kind.
        targets: whether there are targets.

    Raises:
        LawError: two numbers that must be equal differ.
    """
    parts = {name: sorted((folder / name).iterdir()) for name in ("rejects", "targets")}
    laws = [*sum_laws(counts), *rejects_laws(parts["rejects"], counts)]
    laws += targets_laws(parts["targets"], counts, thresholds) if targets else []
    _hold(run, laws)


def check_sums(run: str, counts: Counts) -> None:
    """Hold the counts against each other.

    Raises:
        LawError: two numbers that must be equal differ.
    """
    _hold(run, sum_laws(counts))


def _hold(run: str, laws: Iterable[Law]) -> None:
    for name, one, other in laws:
        if one != other:
            raise LawError(f"{run}: {name}: {one} and {other}; this is a bug in vtaudit")


def sum_laws(counts: Counts) -> Iterator[Law]:
    """Yield the counts that add up to others."""
    states = ("accepted", "rejected", "pending")
    total = sum(counts.get((state, None), 0) for state in states)
    yield "received = accepted + rejected + pending", counts.get(("received", None), 0), total
    primary = sum(counts.get(("rejected_primary", reason.code), 0) for reason in Reason)
    yield "sum of rejected_primary = rejected", primary, counts.get(("rejected", None), 0)


def rejects_laws(parts: Sequence[Path], counts: Counts) -> Iterator[Law]:
    """Yield each count of rejected rows with the rows of rejects."""

    def count(part: Path) -> Found:
        rows = pq.read_table(part, columns=["primary_reason", "reasons"], use_threads=False)
        listed = pc.list_flatten(rows["reasons"])
        return _count_values("rejected_primary", rows["primary_reason"]) + _count_values(
            "rejected_any", listed
        )

    found = _sum_parts(parts, count)
    for measure in ("rejected_primary", "rejected_any"):
        for reason in Reason:
            key = (measure, reason.code)
            yield f"{measure} {reason.code}", counts.get(key, 0), found[key]


def targets_laws(
    parts: Sequence[Path], counts: Counts, thresholds: Mapping[str, float]
) -> Iterator[Law]:
    """Yield each count of accepted rows with the rows of targets."""
    columns = {"boundary": "boundary", "bootstrap": "bootstrap_source"}

    def count(part: Path) -> Found:
        texts = list(columns.values())
        with pq.ParquetFile(part, read_dictionary=texts) as parquet:
            rows = parquet.read(columns=[*texts, "log_ratio"], use_threads=False)
        found: Found = Counter({("accepted", None): rows.num_rows})
        for measure, column in columns.items():
            found += _count_coded(measure, rows[column])
        ratio = rows["log_ratio"].to_numpy()
        for kind, bar in thresholds.items():
            found["clipped", kind] += int(np.count_nonzero(ratio > np.float64(math.log(bar))))
        return found

    found = _sum_parts(parts, count)
    accepted: tuple[str, None] = ("accepted", None)
    yield "accepted = rows of targets", counts.get(accepted, 0), found[accepted]
    for measure, kinds in (
        ("clipped", thresholds),
        ("boundary", BOUNDARIES),
        ("bootstrap", BOOTSTRAP_SOURCES),
    ):
        for kind in kinds:
            yield f"{measure} {kind}", counts.get((measure, kind), 0), found[measure, kind]


def _count_coded(measure: str, column: pa.ChunkedArray) -> Found:
    """Return how often each word of a dictionary occurs, which takes no hash table."""
    found: Found = Counter()
    for chunk in column.chunks:
        counts = np.bincount(chunk.indices.drop_null(), minlength=len(chunk.dictionary))
        for kind, count in zip(chunk.dictionary.to_pylist(), counts.tolist(), strict=True):
            found[measure, kind] += count
    return found


def _count_values(measure: str, column: pa.ChunkedArray) -> Found:
    values, counts = pc.value_counts(column).flatten()
    kinds = values.to_pylist()
    return Counter({(measure, kind): n for kind, n in zip(kinds, counts.to_pylist(), strict=True)})


def _sum_parts(parts: Sequence[Path], count: Callable[[Path], Found]) -> Found:
    """Return the sum of what is counted in each part; few parts are in memory at once."""
    found: Found = Counter()
    with ThreadPoolExecutor(pl.thread_pool_size()) as pool:
        for each in pool.map(count, parts):
            found.update(each)
    return found
