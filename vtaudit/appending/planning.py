"""The plan of a batch, held against the store: same settings, version, columns and types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from vtaudit.appending.committing import Store
from vtaudit.appending.lines import read_state
from vtaudit.appending.taking import describe_earlier
from vtaudit.config import DEFAULT_GAMMA, Settings
from vtaudit.errors import SchemaError, SettingsError
from vtaudit.plan import Plan, make_plan, versions
from vtaudit.records import InputFile
from vtaudit.storage import Place


def plan_batch(
    logs: Sequence[Place],
    settings: Settings,
    store: Store,
    files: Sequence[InputFile] | None = None,
) -> Plan:
    """Return the plan for the files that the store has not taken, or for just those of `files`.

    Raises:
        SettingsError: the settings, scores or version are not the store's, or do not go with a log
            that grows.
        SchemaError: a column is read from elsewhere, or its type has changed.
        InputError: a taken file was changed, or nothing can be read.
    """
    columns = None if store.state is None else read_state(store.state / "columns.parquet")
    earlier = describe_earlier(store.manifest, columns)
    if files is not None:
        chosen = list(files)
        earlier = replace(earlier, leave_taken=lambda list_inputs, logs: chosen)
    plan = make_plan(logs, settings, earlier)
    if plan.settings.step_from == "order":
        raise SettingsError(
            "step_from order: not with append, for a step would be a row's place among rows that "
            "are still to come; log a step column, or process the whole log without --append"
        )
    if plan.settings.end_of_trajectory:
        raise SettingsError(
            "end_of_trajectory: not with append, for the last row of a trajectory may still come; "
            "log terminated and truncated, or process the whole log without --append"
        )
    if store.manifest is not None:
        _check_same(plan, store.manifest)
    return plan


def _check_same(plan: Plan, manifest: dict[str, Any]) -> None:
    ours, theirs = versions()["vtaudit"], manifest["versions"]["vtaudit"]
    if ours != theirs:
        raise SettingsError(
            f"vtaudit {theirs} made the store, this is {ours}; use that one, or make a new store"
        )
    gamma = DEFAULT_GAMMA if plan.settings.gamma is None else plan.settings.gamma
    found = replace(plan.settings, gamma=gamma).as_json()
    names = [item.name.rstrip("_") for item in fields(Settings) if item.metadata["result"]]
    for name in names:
        if found[name] != manifest["settings"].get(name):
            raise SettingsError(
                f"{name}: found {found[name]}, the store was made with "
                f"{manifest['settings'].get(name)}; give the same settings, or make a new store"
            )
    if list(plan.scored) != manifest["scored"]:
        raise SettingsError(
            f"scores: found {', '.join(plan.scored) or 'none'}, the store's batches have "
            f"{', '.join(manifest['scored']) or 'none'}; give each batch the same scores"
        )
    _check_columns(plan, manifest)


def _check_columns(plan: Plan, manifest: dict[str, Any]) -> None:
    for name, text in manifest["columns"].items():
        found = plan.mapping.expressions.get(name)
        if found is None or found.text != text:
            now = "nothing" if found is None else found.text
            raise SchemaError(
                f"column {name}: would be read from {now}, earlier batches read it from {text}; "
                f"say --map {name}=... as then, or make a new store"
            )
    if manifest["is_discrete"] != plan.shape.is_discrete:
        raise SchemaError(
            "column action: found floats, earlier batches were judged as discrete; re-export the "
            "actions as integers, or make a new store"
        )
