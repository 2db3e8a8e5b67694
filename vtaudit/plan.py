"""What a run will do: inputs, mapping, types, resolved settings and identity."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import polars as pl

from vtaudit import mapping as mappings
from vtaudit.canonical import KEYS, LINEAGE, LOG_COLUMNS, SCORES, LogShape, unify_types
from vtaudit.carry import carry_types
from vtaudit.config import DEFAULT_GAMMA, Settings
from vtaudit.errors import InputError, SchemaError, SettingsError, name_choices
from vtaudit.kernels import resolve_backend
from vtaudit.records import InputFile
from vtaudit.sources import examine, list_inputs

PACKAGES = ("numba", "numpy", "polars", "pyarrow", "duckdb", "torch", "triton")
SCORE_COLUMNS = ("target_log_prob", "value", "bootstrap_value")
# read by nothing yet, so never decoded
UNREAD = ("collected_at", "received_at")


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that is known before a row is read.

    Attributes:
        settings: resolved settings; backend, device and step_from are concrete.
        files: the log's files in natural order, unreadable ones included.
        scores: the files of --scores.
        mapping: canonical column -> expression.
        shape: types of the canonical columns over all files, scores included.
        scored: canonical columns that come from the scores.
        carry: name -> type of the carried columns.
        notes: what the preset assumes of the log, and what could not be carried.
        run_id: hash of settings, inputs and version.
    """

    settings: Settings
    files: tuple[InputFile, ...]
    scores: tuple[InputFile, ...]
    mapping: mappings.Mapping
    shape: LogShape
    scored: tuple[str, ...]
    carry: dict[str, pl.DataType]
    notes: tuple[str, ...]
    run_id: str

    @property
    def readable(self) -> list[InputFile]:
        """The files whose footers could be read."""
        return [file for file in self.files if file.error is None]


def make_plan(logs: Sequence[Path], settings: Settings) -> Plan:
    """Examine the inputs and resolve mapping, types and settings.

    Raises:
        SettingsError: settings that contradict each other or the log.
        SchemaError: a needed column is missing, or a type is not allowed.
        InputError: no readable input.
        EngineError: the backend or device asked for is not there.
    """
    backend, device = resolve_backend(settings.backend, settings.device)
    settings = replace(settings, threads=settings.threads or _count_processors())
    files = _examine_all(list_inputs(logs), settings.threads)
    readable = [file for file in files if file.error is None]
    if not readable:
        raise InputError(
            f"{files[0].name}: {files[0].error}; none of {len(files)} files is readable"
        )
    preset = mappings.load_preset(settings.preset)
    paths = {path for file in readable for path in mappings.column_paths(file.schema)}
    mapping = mappings.resolve_mapping(settings.columns, preset, list(LOG_COLUMNS), paths)
    mapping = mappings.Mapping({k: v for k, v in mapping.expressions.items() if k not in UNREAD})
    implied = preset.settings_for(mapping.expressions)
    unset: dict[str, Any] = {k: v for k, v in implied.items() if getattr(settings, k) is None}
    settings = replace(settings, backend=backend, device=device, **unset)
    settings = replace(settings, step_from=settings.step_from or "column")
    if settings.step_from == "order":
        mapping.expressions.pop("step", None)
    scores = _examine_scores(settings)
    scored = _scored_columns(scores)
    _check_columns(mapping, scored, settings, paths)
    shape = unify_types(_types_by_file(mapping, readable), settings.action_space)
    shape = _with_scores(shape, scores, scored)
    carry, left_out = carry_types(settings.carry, readable)
    return Plan(
        settings=settings,
        files=tuple(files),
        scores=tuple(scores),
        mapping=mapping,
        shape=shape,
        scored=scored,
        carry=carry,
        notes=(*left_out, *(f"preset {preset.name} assumes: {text}" for text in preset.assumes)),
        run_id=_run_id(settings, files, scores),
    )


def _count_processors() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@cache
def versions() -> dict[str, str]:
    """Return the versions of vtaudit, Python and the packages that results depend on."""
    found = {"vtaudit": version("vtaudit"), "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except ImportError:
            found[package] = "not installed"
    return found


def _run_id(settings: Settings, files: Sequence[InputFile], scores: Sequence[InputFile]) -> str:
    inputs = [
        [[file.name, file.size, file.sha256, file.error is None] for file in group]
        for group in (files, scores)
    ]
    gamma = DEFAULT_GAMMA if settings.gamma is None else settings.gamma
    settings = replace(settings, gamma=gamma)
    body = json.dumps([settings.fingerprint(), inputs, version("vtaudit")])
    return hashlib.sha256(body.encode()).hexdigest()[:16]


def _examine_all(files: Sequence[InputFile], threads: int | None) -> list[InputFile]:
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(examine, files))


def _types_by_file(
    mapping: mappings.Mapping, files: Sequence[InputFile]
) -> dict[str, dict[str, object]]:
    """Return the types of the canonical columns of each file; equal schemas are asked once."""
    known: dict[Any, dict[str, object]] = {}
    for file in files:
        if file.schema not in known:
            known[file.schema] = _types(mapping, file)
    return {file.name: known[file.schema] for file in files}


def _types(mapping: mappings.Mapping, file: InputFile) -> dict[str, object]:
    try:
        return {
            name: mappings.expression_type(expression, file.schema)
            for name, expression in mapping.expressions.items()
            if mappings.available(expression, file.schema)
        }
    except SchemaError as error:
        raise SchemaError(f"{file.name}: {error}") from None


def _check_columns(
    mapping: mappings.Mapping, scored: Sequence[str], settings: Settings, paths: set[str]
) -> None:
    """Refuse a log that lacks a needed column, or has flags where the settings give them."""
    have = {*mapping.expressions, *scored}
    needed = ["trajectory_id", "reward", "behavior_log_prob"]
    needed += ["step"] if settings.step_from == "column" else []
    needed += ["target_log_prob", "value"] if settings.targets else []
    flags = [name for name in ("terminated", "truncated") if name in have]
    if settings.end_of_trajectory and flags:
        raise SettingsError(
            f"end_of_trajectory: the log has {flags[0]}; it is for logs without end flags only"
        )
    needed += [] if settings.end_of_trajectory else ["terminated", "truncated"]
    for name in needed:
        if name not in have:
            raise SchemaError(_missing_text(name, paths))
    for name in settings.expect:
        if name not in have:
            raise SchemaError(_missing_text(name, paths))
    if settings.learner_version is not None and "policy_version" not in have:
        raise SchemaError(_missing_text("policy_version", paths))


def _missing_text(name: str, paths: set[str]) -> str:
    advice = {
        "step": "or say --step-from order if the rows stand in order",
        "terminated": "or say --end-of-trajectory if the log has no end flags",
        "truncated": "or say --map truncated=lit(false) if nothing is ever cut off by a limit",
        "target_log_prob": "or give --scores DIR, or --no-targets to audit alone",
        "value": "or give --scores DIR, or --no-targets to audit alone",
    }.get(name, "")
    text = f"column {name}: no file has it; map it with --map {name}=COLUMN"
    return f"{text}{', ' + advice if advice else ''}{name_choices(name, paths)}"


def _examine_scores(settings: Settings) -> list[InputFile]:
    if settings.scores is None:
        return []
    files = _examine_all(list_inputs([Path(settings.scores)]), settings.threads)
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


def _scored_columns(scores: Sequence[InputFile]) -> tuple[str, ...]:
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


def _with_scores(shape: LogShape, scores: Sequence[InputFile], scored: Sequence[str]) -> LogShape:
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


def lineage_columns(shape: LogShape) -> list[str]:
    """Return the mapped lineage columns."""
    return [name for name in LINEAGE if name in shape.dtypes]
