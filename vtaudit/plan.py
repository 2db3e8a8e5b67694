"""What a run will do: inputs, mapping, types, resolved settings and identity."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import version
from typing import Any

import polars as pl

from vtaudit import mapping as mappings
from vtaudit.canonical import LINEAGE, LOG_COLUMNS, LogShape, unify_types
from vtaudit.carry import carry_types
from vtaudit.config import DEFAULT_GAMMA, Settings
from vtaudit.errors import InputError, SchemaError
from vtaudit.kernels import resolve_backend
from vtaudit.memory import bytes_per_row, limit_threads
from vtaudit.needs import check_columns
from vtaudit.records import Earlier, InputFile
from vtaudit.scores import examine_scores, note_scores, scored_columns, with_scores
from vtaudit.sources import examine_all, list_inputs
from vtaudit.storage import Place

PACKAGES = ("numba", "numpy", "polars", "pyarrow", "duckdb", "torch", "triton")
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
        row_bytes: decoded bytes of the needed columns of a row, of the widest file.
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
    row_bytes: float
    run_id: str

    @property
    def readable(self) -> list[InputFile]:
        """The files whose footers could be read."""
        return [file for file in self.files if file.error is None]

    def without(self, unreadable: Mapping[int, str]) -> Plan:
        """Return the plan with some files, by place, marked by their errors."""
        files = tuple(
            replace(file, error=file.error or unreadable.get(place))
            for place, file in enumerate(self.files)
        )
        return replace(self, files=files)


def make_plan(logs: Sequence[Place], settings: Settings, earlier: Earlier | None = None) -> Plan:
    """Examine the inputs and resolve mapping, types and settings.

    Args:
        logs: directories or files of Parquet.
        settings: of the run.
        earlier: what a store knows of the log already: its files are left out, its columns and
            types count as those of one more file.

    Raises:
        SettingsError: settings that contradict each other or the log.
        SchemaError: a needed column is missing, or a type is not allowed.
        InputError: no readable input.
        EngineError: the backend or device asked for is not there.
    """
    backend, device = resolve_backend(settings.backend, settings.device)
    settings = replace(settings, threads=settings.threads or _count_processors())
    earlier = earlier or Earlier()
    files = examine_all(earlier.leave_taken(list_inputs, logs), settings.threads)
    readable = [file for file in files if file.error is None]
    if not readable and not earlier.paths:
        raise InputError(
            f"{files[0].name}: {files[0].error}; none of {len(files)} files is readable"
        )
    preset = mappings.load_preset(settings.preset)
    paths = {path for file in readable for path in mappings.column_paths(file.schema)}
    paths |= earlier.paths
    mapping = mappings.resolve_mapping(settings.columns, preset, list(LOG_COLUMNS), paths)
    mapping = mappings.Mapping({k: v for k, v in mapping.expressions.items() if k not in UNREAD})
    implied = preset.settings_for(mapping.expressions)
    unset: dict[str, Any] = {k: v for k, v in implied.items() if getattr(settings, k) is None}
    settings = replace(settings, backend=backend, device=device, **unset)
    settings = replace(settings, step_from=settings.step_from or "column")
    if settings.step_from == "order":
        mapping.expressions.pop("step", None)
    scores = [] if settings.scores is None else examine_scores(settings)
    scored = scored_columns(scores)
    doubts = check_columns({*mapping.expressions, *scored}, settings, paths)
    types = types_by_file(mapping, readable)
    types = {**earlier.types, **types} if earlier.paths else types
    shape = unify_types(types, settings.action_space)
    shape = with_scores(shape, scores, scored)
    carry, left_out = carry_types(settings.carry, [*earlier.carried, *readable])
    needed = [{*mappings.needed_columns(mapping, file.schema), *carry} for file in readable]
    row_bytes = bytes_per_row(readable, needed)
    return Plan(
        settings=limit_threads(settings, row_bytes),
        files=tuple(files),
        scores=tuple(scores),
        mapping=mapping,
        shape=shape,
        scored=scored,
        carry=carry,
        notes=(
            *left_out,
            *doubts,
            *note_scores(scores, scored),
            *(f"preset {preset.name} assumes: {text}" for text in preset.assumes),
        ),
        row_bytes=row_bytes,
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


def types_by_file(
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


def lineage_columns(shape: LogShape) -> list[str]:
    """Return the mapped lineage columns."""
    return [name for name in LINEAGE if name in shape.dtypes]
