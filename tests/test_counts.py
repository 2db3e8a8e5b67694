"""Counts of a shard against one row after the other, in Python."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vtaudit import count_pass
from vtaudit.counts import count_verdicts
from vtaudit.laws import targets_laws
from vtaudit.reasons import BOOTSTRAP_SOURCES, BOUNDARIES, Reason, Warn
from vtaudit.records import Verdicts

CLIPS = {"rho": 1.0, "c": 2.0, "pg_rho": 1.0}


def make_verdicts(rows: int, seed: int, *, chance: float) -> Verdicts:
    """Rows whose reasons and warnings each occur with a chance; a window has many keys."""
    draw = np.random.default_rng(seed)

    def flags(members: list[int]) -> np.ndarray:
        drawn = draw.random((len(members), rows)) < chance
        return (drawn * np.array(members, np.uint64)[:, None]).sum(axis=0, dtype=np.uint64)

    reasons = flags([reason.bit for reason in Reason])
    is_accepted = reasons == 0
    key = np.sort(draw.integers(-1, rows, rows))
    window = np.where(key < 0, -1, key // 5)
    return Verdicts(
        reasons=reasons,
        warnings=flags([warning.bit for warning in Warn]),
        boundary=np.where(is_accepted, draw.integers(0, 6, rows), 255).astype(np.uint8),
        source=np.where(is_accepted, draw.integers(0, 4, rows), 255).astype(np.uint8),
        log_ratio=draw.choice(np.array([-1, 0, 0.5, 1, np.nan], np.float32), rows),
        key=key,
        window=window,
        delivery=np.where(key < 0, -1, 2 * window + draw.integers(0, 2, rows)),
    )


def count_one_by_one(verdicts: Verdicts, scopes: dict[str, list[Any]]) -> Counter[Any]:
    found: Counter[Any] = Counter()
    distinct = set()
    fresh = {
        delivery
        for delivery, reasons in zip(verdicts.delivery, verdicts.reasons, strict=True)
        if not int(reasons) & Reason.DUPLICATE.bit
    }
    for row in range(len(verdicts.key)):
        delivery = verdicts.delivery[row]
        things = [("unique", verdicts.key[row]), ("windows", verdicts.window[row])]
        things.append(("deliveries", delivery))
        things.append(("deliveries_duplicate", -1 if delivery in fresh else delivery))
        for scope, values in scopes.items():
            for measure in measures_of(verdicts, row):
                found[scope, values[row], *measure] += 1
            distinct |= {(scope, values[row], *thing) for thing in things if thing[1] >= 0}
    for scope, value, measure, _ in distinct:
        found[scope, value, measure, None] += 1
    return found


def measures_of(verdicts: Verdicts, row: int) -> list[tuple[str, str | None]]:
    reasons, warnings = int(verdicts.reasons[row]), int(verdicts.warnings[row])
    log_ratio = float(verdicts.log_ratio[row])
    given = [reason.code for reason in Reason if reasons & reason.bit]
    found: list[tuple[str, str | None]] = [("received", None)]
    found += [("rejected_any", code) for code in given]
    found += [("rejected_primary", code) for code in given[:1]]
    found += [("warning", warning.code) for warning in Warn if warnings & warning.bit]
    found += [] if math.isnan(log_ratio) else [("received_with_ratio", None)]
    above = [kind for kind, bar in CLIPS.items() if log_ratio > math.log(bar)]
    found += [("clipped_received", kind) for kind in above]
    if given:
        return [*found, ("rejected", None)]
    found += [("clipped", kind) for kind in above]
    found.append(("boundary", BOUNDARIES[verdicts.boundary[row]]))
    found.append(("bootstrap", BOOTSTRAP_SOURCES[verdicts.source[row]]))
    return [*found, ("accepted", None)]


@pytest.mark.parametrize(
    ("rows", "chance"), [(0, 0.1), (1, 0.1), (700, 0), (700, 0.01), (900, 0.3)]
)
def test_counts_are_those_of_one_row_after_the_other(rows: int, chance: float) -> None:
    verdicts = make_verdicts(rows, seed=rows, chance=chance)
    draw = np.random.default_rng(1)
    scopes = {
        "source_file": [f"file {row // 100}" for row in range(rows)],
        "policy_version": [str(draw.integers(0, 3)) for _ in range(rows)],
        "actor_id": [str(draw.integers(0, 400)) for _ in range(rows)],
    }
    frame = pl.DataFrame(scopes, schema=dict.fromkeys(scopes, pl.String))
    table = count_verdicts(verdicts, frame, CLIPS, targets=True).spell()
    found = {row[:4]: row[4] for row in table.rows()}
    assert len(found) == table.height
    assert found == count_one_by_one(verdicts, {"run": ["run"] * rows, **scopes})


def test_table_of_states_grows() -> None:
    verdicts = make_verdicts(900, seed=900, chance=0.3)
    states = set(zip(verdicts.reasons.tolist(), verdicts.warnings.tolist(), strict=True))
    assert len(states) > count_pass.FIRST_SLOTS // 2


def test_rows_of_a_part_are_counted_over_all_of_its_row_groups(tmp_path: Path) -> None:
    boundaries = ["interior", "gap", "interior", "window_edge", "gap"]
    table = pa.table(
        {
            "boundary": boundaries,
            "bootstrap_source": ["none", "logged", "none", "logged", "next_row"],
            "log_ratio": pa.array([-1.0, 0.5, 0.0, 2.0, 0.25], pa.float32()),
        }
    )
    pq.write_table(table, tmp_path / "part-00000.parquet", row_group_size=2)
    laws = targets_laws([tmp_path / "part-00000.parquet"], {}, CLIPS)
    found = {name: count for name, _, count in laws if count}
    assert found == {
        "accepted = rows of targets": 5,
        "boundary interior": 2,
        "boundary gap": 2,
        "boundary window_edge": 1,
        "bootstrap none": 2,
        "bootstrap logged": 2,
        "bootstrap next_row": 1,
        "clipped rho": 3,
        "clipped c": 1,
        "clipped pg_rho": 3,
    }
