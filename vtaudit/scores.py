"""The learner's scores: which files and columns they are, and what in them is not read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from vtaudit.canonical import KEYS, LOG_COLUMNS, SCORES, LogShape, unify_types
from vtaudit.config import Settings
from vtaudit.errors import InputError, SchemaError, name_choices
from vtaudit.records import InputFile
from vtaudit.sources import examine_all, list_inputs
from vtaudit.storage import parse_place

SCORE_COLUMNS = ("target_log_prob", "value", "bootstrap_value")


def examine_scores(settings: Settings) -> list[InputFile]:
    """Return the files of --scores with their footers.

    Raises:
        InputError: a file cannot be read; scores must be whole.
        SchemaError: a file lacks a key.
    """
    files = examine_all(list_inputs([parse_place(settings.scores or "")]), settings.threads)
    for file in files:
        if file.error is not None:
            raise InputError(f"{settings.scores}, {file.name}: {file.error}; scores must be whole")
        for key in KEYS:
            if key not in file.schema.names:
                raise SchemaError(
                    f"{settings.scores}, {file.name}: no column {key}; scores are joined by "
                    f"{' and '.join(KEYS)}{name_choices(key, file.schema.names)}"
                )
    return files


def scored_columns(scores: Sequence[InputFile]) -> tuple[str, ...]:
    """Return the canonical columns that the scores give.

    Raises:
        SchemaError: they give none, or not the same ones in every file.
    """
    if not scores:
        return ()
    found = [n for n in SCORE_COLUMNS if all(n in file.schema.names for file in scores)]
    some = [n for n in SCORE_COLUMNS if any(n in file.schema.names for file in scores)]
    if not found or found != some:
        raise SchemaError(
            f"scores: found {', '.join(some) or 'none'} of {', '.join(SCORE_COLUMNS)} in some "
            "files, expected at least one, and the same ones in every file"
        )
    return tuple(found)


def with_scores(shape: LogShape, scores: Sequence[InputFile], scored: Sequence[str]) -> LogShape:
    """Return the shape with the scored columns, whose types must be those of the log."""
    if not scores:
        return shape
    found = {
        SCORES + file.name: {name: file.schema.field(name).type for name in (*KEYS, *scored)}
        for file in scores
    }
    given = unify_types(found, "auto").dtypes
    if given["trajectory_id"] != shape.dtypes["trajectory_id"]:
        raise SchemaError(
            f"scores, column trajectory_id: found {given['trajectory_id']}, the log has "
            f"{shape.dtypes['trajectory_id']}; write the scores with the log's own ids"
        )
    dtypes = {**shape.dtypes, **{name: pl.Float64() for name in scored}}
    return replace(shape, dtypes={name: dtypes[name] for name in LOG_COLUMNS if name in dtypes})


def note_scores(scores: Sequence[InputFile], scored: Sequence[str]) -> list[str]:
    """Return what the scores give, and which of their columns are not read."""
    if not scores:
        return []
    names = {name for file in scores for name in file.schema.names}
    unread = sorted(names - {*KEYS, *scored})
    notes = [f"--scores gives {', '.join(scored)}"]
    if unread:
        notes.append(
            f"--scores has columns that are not read: {', '.join(unread)}; scores are named "
            f"{', '.join(SCORE_COLUMNS)}"
        )
    return notes
