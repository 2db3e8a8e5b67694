"""Find a row in the log and in the run, or tell what is there instead."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

import polars as pl

from vtaudit.errors import InputError, SettingsError
from vtaudit.explanation.subject import Subject
from vtaudit.plan import Plan
from vtaudit.query import PARTS
from vtaudit.schemas import load_columns

NAMED = 3


def find_file(plan: Plan, name: str, row: int) -> int:
    """Return the place of a file in the plan, which has such a row.

    Raises:
        SettingsError: no file of the log is named so, or it has no such row.
        InputError: the file was unreadable.
    """
    names = [file.name for file in plan.files]
    if name not in names:
        raise SettingsError(f"--at {name}:{row}: no such file in the log{_tell_names(name, names)}")
    file = plan.files[names.index(name)]
    if file.error is not None:
        raise InputError(f"{name}: unreadable, so its rows are unknown: {file.error}")
    rows = file.rows or 0
    if not 0 <= row < rows:
        raise SettingsError(f"--at {name}:{row}: the file has {rows} rows, 0 to {rows - 1}")
    return names.index(name)


def _tell_names(name: str, names: list[str]) -> str:
    near = difflib.get_close_matches(name, names, n=NAMED, cutoff=0.6) or names[:NAMED]
    return f"; it has {len(names)}, as {', '.join(near)}" if near else ""


def parse_id(trajectory: object, plan: Plan) -> int | str:
    """Return a trajectory_id in the type that the log has.

    Raises:
        SettingsError: the log has integers, and this is none.
    """
    if plan.shape.dtypes["trajectory_id"] != pl.Int64:
        return str(trajectory)
    try:
        return int(str(trajectory))
    except ValueError:
        raise SettingsError(f"--row {trajectory}: the log has integers as trajectory_id") from None


def tell_missing_trajectory(trajectory: object, run: Path, plan: Plan) -> str:
    """Return that a trajectory is not there, and which are."""
    text = f"--row {trajectory}: no such trajectory in the log"
    try:
        columns = [_scan(run, part).select(pl.col("trajectory_id").unique()) for part in PARTS]
        ids = pl.concat(columns).unique().drop_nulls().sort("trajectory_id").collect()
    except (OSError, pl.exceptions.PolarsError):
        ids = pl.DataFrame({"trajectory_id": []})
    text += _tell_names(str(trajectory), [str(each) for each in ids["trajectory_id"]])
    bad = len(plan.files) - len(plan.readable)
    return f"{text}; {bad} files were unreadable" if bad else text


def tell_missing_step(rows: pl.DataFrame, step: int) -> str:
    """Return that a step of a trajectory is not there, and which are the nearest."""
    text = f"--row {rows['trajectory_id'][0]} {step}: the log has no such step of it"
    there = rows["step"].drop_nulls().unique().sort().to_list()
    if not there:
        return f"{text}, nor any other"
    near = sorted(there, key=lambda each: (abs(each - step), each))[:2]
    return (
        f"{text}; nearest: {' and '.join(str(each) for each in sorted(near))}, of {len(there)} "
        f"from {there[0]} to {there[-1]}"
    )


def read_mapped(subject: Subject) -> dict[str, dict[str, Any]]:
    """Return what each canonical column was read from, and its value on the row."""
    plan = subject.plan
    texts = {name: each.text for name, each in plan.mapping.expressions.items()}
    texts |= dict.fromkeys(plan.scored, "the scores")
    given = {"step": f"step_from {plan.settings.step_from}"}
    given |= dict.fromkeys(("terminated", "truncated"), "end_of_trajectory")
    return {
        name: {"from": texts.get(name, given.get(name, "")), "value": subject.cell(name)}
        for name in dict.fromkeys([*plan.shape.dtypes, *given])
        if name in subject.shard.rows.columns
    }


def _scan(run: Path, part: str) -> pl.LazyFrame:
    return pl.scan_parquet(sorted((run / part).iterdir()), glob=False)


def read_stored(run: Path, subject: Subject) -> tuple[dict[str, Any], list[str]]:
    """Return the row in the run's targets, empty where it is not there, and notes on what differs.

    A rejected row is held against the run's rejects.
    """
    here = (pl.col("source_file") == subject.cell("source_file")) & (
        pl.col("source_row") == subject.cell("row")
    )
    part = "rejects" if subject.reasons(subject.row) else "targets"
    names = [column.name for column in load_columns(part)]
    try:
        rows = _scan(run, part).filter(here).collect().to_dicts()
    except (OSError, pl.exceptions.PolarsError) as error:
        return {}, [f"{part} of the run cannot be read: {str(error).splitlines()[0]}"]
    if not rows:
        return {}, [f"{part} of the run do not hold this row; vtaudit verify tells more"]
    stored = {name: rows[0][name] for name in names if name in rows[0]}
    if part == "targets":
        return stored, []
    if stored["reasons"] == subject.reasons(subject.row):
        return {}, []
    return {}, [f"the run rejected it as {', '.join(stored['reasons'])}; vtaudit verify tells more"]
