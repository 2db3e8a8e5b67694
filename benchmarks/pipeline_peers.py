"""What `vtaudit process` is measured against, each run as a process of its own.

    python benchmarks/pipeline_peers.py copy LOG OUT
    python benchmarks/pipeline_peers.py by_hand LOG OUT

`copy` reads and writes every column and does nothing else. `by_hand` is what a user would write:
duplicates dropped and rows ordered by a DuckDB window function, then V-trace in NumPy, a trajectory
at a time. It judges no conflict, no mask and no logits, and counts nothing.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pyarrow as pa

Floats = NDArray[np.float64]

GAMMA = 0.99
MEMORY_LIMIT = "2GB"
BATCH_ROWS = 1_000_000
FLOATS = ("reward", "behavior_log_prob", "target_log_prob", "value", "bootstrap_value")
KEYS = ("trajectory_id", "unroll_id", "step")
FIRST_COPIES = f"""
    SELECT {", ".join((*KEYS, "terminated", "truncated", *FLOATS))}
    FROM read_parquet(?, filename = true, file_row_number = true)
    QUALIFY row_number() OVER (
        PARTITION BY trajectory_id, step ORDER BY filename, file_row_number) = 1
    ORDER BY trajectory_id, step
"""


def copy(log: Path, out: Path, threads: int) -> None:
    """Copy the log into one file, zstd, with Polars' streaming engine."""
    os.environ["POLARS_MAX_THREADS"] = str(threads)
    import polars as pl  # reads the number of threads once, when it is imported

    pl.scan_parquet(log / "*.parquet").sink_parquet(out, compression="zstd")


def by_hand(log: Path, out: Path, threads: int) -> None:
    """Write value_target and advantage of every usable row, by key."""
    import duckdb
    import pyarrow.parquet as pq

    settings = {"threads": threads, "memory_limit": MEMORY_LIMIT}
    with duckdb.connect(config={**settings, "temp_directory": f"{out}.spill"}) as connection:
        ordered = connection.execute(FIRST_COPIES, [f"{log}/*.parquet"])
        writer = None
        for rows in whole_trajectories(ordered.to_arrow_reader(BATCH_ROWS)):
            targets = compute_targets(rows)
            writer = writer or pq.ParquetWriter(out, targets.schema, compression="zstd")
            writer.write_table(targets)
        if writer is not None:
            writer.close()


def whole_trajectories(reader: pa.RecordBatchReader) -> Iterator[pa.Table]:
    """Yield the rows of the reader in tables that end where a trajectory ends."""
    import pyarrow as pa

    rest = reader.schema.empty_table()
    for batch in reader:
        rows = pa.concat_tables([rest, pa.Table.from_batches([batch])])
        last = int(starts_of(rows["trajectory_id"])[-1])
        if last:
            yield rows[:last]
        rest = rows[last:]
    if len(rest):
        yield rest


def starts_of(ids: pa.ChunkedArray) -> NDArray[np.int64]:
    """Return the rows where another id begins, the first row with them."""
    import pyarrow.compute as pc

    changes = pc.not_equal(ids[1:], ids[:-1]).to_numpy()
    return np.concatenate([[0], np.flatnonzero(changes) + 1])


def compute_targets(rows: pa.Table) -> pa.Table:
    """Return keys, value_target and advantage of the usable rows of whole trajectories."""
    import pyarrow as pa

    columns = {name: rows[name].to_numpy() for name in ("step", "terminated", "truncated", *FLOATS)}
    columns["is_start"] = np.zeros(len(rows), np.bool_)
    columns["is_start"][starts_of(rows["unroll_id"])] = True
    bounds = [*starts_of(rows["trajectory_id"]).tolist(), len(rows)]
    with np.errstate(invalid="ignore"):
        found = [
            trace_trajectory({name: column[start:stop] for name, column in columns.items()})
            for start, stop in pairwise(bounds)
        ]
    kept, value_target, advantage = (np.concatenate(each) for each in zip(*found, strict=True))
    table = rows.select(KEYS)
    for name, column in (("value_target", value_target), ("advantage", advantage)):
        table = table.append_column(name, pa.array(column.astype(np.float32)))
    return table.filter(pa.array(kept))


def trace_trajectory(row: dict[str, NDArray[np.generic]]) -> tuple[NDArray[np.bool_], ...]:
    """Return which rows are usable, and value_target and advantage of each, of one trajectory."""
    value, bootstrap, reward = row["value"], row["bootstrap_value"], row["reward"]
    log_ratio = row["target_log_prob"] - row["behavior_log_prob"]
    follows = np.append(np.diff(row["step"]) == 1, False)
    successor = np.append(value[1:], np.nan)
    next_value = np.where(
        follows & np.isfinite(successor) & ~row["truncated"], successor, bootstrap
    )
    next_value[row["terminated"]] = 0.0
    kept = np.isfinite(log_ratio + reward + value + next_value)
    inside = follows & ~row["terminated"] & ~row["truncated"]
    inside &= np.append(kept[1:] & ~row["is_start"][1:], False)
    rho = np.exp(np.minimum(log_ratio, 0.0))
    delta = np.where(kept, rho * (reward + GAMMA * next_value - value), 0.0)
    decay = np.where(kept & inside, GAMMA * rho, 0.0)
    value_target = value + accumulate(delta, decay)
    next_target = np.where(inside, np.append(value_target[1:], 0.0), next_value)
    return kept, value_target, rho * (reward + GAMMA * next_target - value)


def accumulate(delta: Floats, decay: Floats) -> Floats:
    """Return Delta_t = delta_t + decay_t Delta_{t+1}, from the last row to the first."""
    sums, total = [], 0.0
    for step, factor in zip(delta[::-1].tolist(), decay[::-1].tolist(), strict=True):
        total = step + factor * total
        sums.append(total)
    return np.array(sums[::-1])


def main() -> None:
    """Read the command line and run one of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("peer", choices=("copy", "by_hand"))
    parser.add_argument("log", type=Path, metavar="LOG")
    parser.add_argument("out", type=Path, metavar="OUT", help="a Parquet file")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    {"copy": copy, "by_hand": by_hand}[options.peer](options.log, options.out, options.threads)


if __name__ == "__main__":
    main()
