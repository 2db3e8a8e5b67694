"""The settings: one frozen tree with defaults, types and one-line help; TOML; the fingerprint."""

from __future__ import annotations

import hashlib
import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import Field, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from vtaudit.errors import SettingsError, name_choices
from vtaudit.ranges import KINDS
from vtaudit.reasons import Reason
from vtaudit.schemas import load_columns
from vtaudit.storage import parse_place

DEFAULT_GAMMA = 0.99
LINEAGE = tuple(column.name for column in load_columns("trajectory_log") if column.lineage)
REASON_CODES = tuple(reason.code for reason in Reason)


def _setting(
    default: Any,
    kind: str,
    text: str,
    *,
    choices: tuple[str, ...] = (),
    metavar: str = "",
    option: str = "",
    result: bool = True,
) -> Any:
    """Declare a setting: `kind` is its type word, `result` whether results depend on it."""
    metadata = {
        "kind": kind,
        "help": text,
        "choices": choices,
        "metavar": metavar,
        "option": option,
        "result": result,
    }
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that `process` can be told, apart from LOGS and RUN.

    Raises:
        SettingsError: a value is out of its range, or two settings exclude each other.
    """

    gamma: float | None = _setting(
        None, "unit", "discount factor; 0.99 where the log has no discounts of its own"
    )
    rho_bar: float = _setting(1.0, "clip", "clip of the ratio in the TD error, or none")
    c_bar: float = _setting(1.0, "clip", "clip of the ratio in the trace, or none")
    pg_rho_bar: float = _setting(1.0, "clip", "clip of the ratio in the advantage, or none")
    lambda_: float = _setting(1.0, "unit", "factor on c alone (Espeholt et al. 2018, remark 2)")
    columns: dict[str, str] = _setting(
        {}, "map", "a canonical column and the expression it is read from", option="map"
    )
    preset: str = _setting("vtaudit", "text", "column names of a known ecosystem")
    scores: str | None = _setting(
        None,
        "path",
        "Parquet with the learner's target_log_prob, value, bootstrap_value by key",
        result=False,
    )
    targets: bool = _setting(True, "switch", "recompute targets, or audit alone")
    windows: str = _setting(
        "delivered",
        "choice",
        "what a window is: an unroll_id, or the whole trajectory stitched together",
        choices=("delivered", "stitched"),
    )
    step_from: str | None = _setting(
        None,
        "choice",
        "where step comes from: its column, or the order of the rows; default: as the preset says",
        choices=("column", "order"),
    )
    end_of_trajectory: str | None = _setting(
        None,
        "choice",
        "how the last row of each trajectory ended, where the log has no flags",
        choices=("terminated", "truncated"),
    )
    action_space: str = _setting(
        "auto",
        "choice",
        "discrete or continuous; auto: by the type of the action column",
        choices=("auto", "discrete", "continuous"),
    )
    mask_policy: str = _setting(
        "equal",
        "choice",
        "what the target mask may allow: just the behavior mask, or a subset of it",
        choices=("equal", "subset"),
    )
    strict_flags: bool = _setting(False, "flag", "reject rows that are terminated and truncated")
    log_prob_tolerance: float = _setting(
        1e-3, "nonnegative", "how far above 0 a discrete log-prob may be, nats"
    )
    reconcile_tolerance: float = _setting(
        1e-3, "nonnegative", "how far a log-prob may be from the one rebuilt from logits, nats"
    )
    expect: dict[str, tuple[str, ...]] = _setting(
        {}, "expect", "the only values a lineage column may hold", metavar="COLUMN=VALUE,..."
    )
    learner_version: int | None = _setting(None, "int", "version of the policy being trained")
    max_policy_lag: int | None = _setting(None, "int", "greatest lag a row may have, versions")
    carry: tuple[str, ...] = _setting(
        (), "list", "log columns to copy into the targets, or all", metavar="COLUMN,...|all"
    )
    weights: bool = _setting(False, "flag", "write rho, c and pg_rho too")
    backend: str = _setting(
        "auto",
        "choice",
        "what computes the targets; auto: triton with a GPU, else numba",
        choices=("auto", "reference", "numba", "triton"),
    )
    device: str | None = _setting(None, "text", "cpu, cuda or cuda:N; default: as the backend")
    dtype: str = _setting(
        "float32", "choice", "type of the results", choices=("float32", "float64")
    )
    threads: int | None = _setting(
        None, "count", "threads to work with; default: one per processor", result=False
    )
    memory_limit: str | None = _setting(
        None,
        "size",
        "memory that may be used, as 2GiB; fewer threads work at once where it is short",
        result=False,
    )
    max_reject_fraction: float | None = _setting(
        None, "unit", "exit 1 where a greater share of the rows is rejected", result=False
    )
    fail_on: tuple[str, ...] = _setting(
        (),
        "list",
        "exit 1 where a row has one of these reasons",
        metavar="REASON,...",
        result=False,
    )
    allow_unreadable: bool = _setting(
        False, "flag", "do not exit 1 for unreadable files", result=False
    )
    overwrite: bool = _setting(False, "flag", "replace RUN if it is a vtaudit run", result=False)
    resume: bool = _setting(
        False, "flag", "go on with a run that ended early, if it is the same one", result=False
    )
    append: bool = _setting(
        False, "flag", "RUN is a store that grows: take the files not yet taken", result=False
    )
    close: bool = _setting(
        False, "flag", "with --append: judge the segments that are still open", result=False
    )
    forget_after: str | None = _setting(
        None,
        "age",
        "with --append: forget keys taken so long ago (30d, 12h), or of versions so far behind",
        result=False,
    )
    tags: dict[str, str] = _setting(
        {}, "map", "a note kept with the run", option="tag", metavar="KEY=VALUE", result=False
    )

    def __post_init__(self) -> None:
        if isinstance(self.scores, str):
            parse_place(self.scores)
        for item in fields(self):
            _check(item, getattr(self, item.name))
        _check_names("expect", self.expect, LINEAGE)
        _check_names("fail_on", self.fail_on, REASON_CODES)
        if self.max_policy_lag is not None and self.learner_version is None:
            raise SettingsError("max_policy_lag: needs learner_version too; add --learner-version")
        _check_append(self)

    def thresholds(self) -> dict[str, float]:
        """Return the clips by kind: rho, c, pg_rho."""
        return {"rho": self.rho_bar, "c": self.c_bar, "pg_rho": self.pg_rho_bar}

    def as_json(self) -> dict[str, Any]:
        """Return the settings as JSON values, infinity as "none"."""
        return {key.rstrip("_"): _plain(value) for key, value in asdict(self).items()}

    def fingerprint(self) -> str:
        """Return a hash of the settings that results depend on."""
        kept = {f.name.rstrip("_") for f in fields(self) if f.metadata["result"]}
        body = {key: value for key, value in self.as_json().items() if key in kept}
        return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, float) and math.isinf(value):
        return "none"
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _check(item: Field[Any], value: Any) -> None:
    """Check one value against its choices or the range of its kind."""
    choices, kind = item.metadata["choices"], KINDS[item.metadata["kind"]]
    expected = "one of " + ", ".join(choices) if choices else kind.expected
    if value is None and item.default is None:
        return
    if not kind.holds(value) or (choices and value not in choices):
        found = "nothing" if value is None else repr(value)
        raise SettingsError(f"{item.name.rstrip('_')}: found {found}, expected {expected}")


def _check_append(settings: Settings) -> None:
    for name in ("close", "forget_after"):
        if getattr(settings, name) and not settings.append:
            raise SettingsError(f"{name}: is for a store that grows; add --append")
    for name in ("overwrite", "resume"):
        if getattr(settings, name) and settings.append:
            raise SettingsError(
                f"{name}: not with append; a batch is in the store whole or not at all, and the "
                "same command with --append alone goes on"
            )


def _check_names(setting: str, names: Any, valid: tuple[str, ...]) -> None:
    for name in names:
        if name not in valid:
            raise SettingsError(f"{setting}: unknown {name}{name_choices(name, valid)}")


def parse_value(name: str, value: Any) -> Any:
    """Bring a value from TOML or the command line into the form that `Settings` holds."""
    kind = {f.name: f.metadata["kind"] for f in fields(Settings)}[name]
    if kind == "clip":
        return math.inf if value == "none" else _number(name, value)
    if kind in ("unit", "nonnegative"):
        return _number(name, value)
    if kind == "list" and isinstance(value, str | list | tuple):
        return _texts(value)
    if kind == "expect" and isinstance(value, dict):
        return {key: _texts(item) for key, item in value.items()}
    if kind == "map" and isinstance(value, dict):
        return {key: _text(item) for key, item in value.items()}
    return value


def _number(name: str, value: Any) -> Any:
    """Return a number for text that is one; anything else is left for the range check."""
    if not isinstance(value, str):
        return value
    try:
        return float(value)
    except ValueError:
        return value


def _texts(value: Any) -> tuple[Any, ...]:
    """Return the items of a list, or of text that separates them with commas."""
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    return tuple(_text(item) for item in (value if isinstance(value, list | tuple) else [value]))


def _text(value: Any) -> Any:
    """Return a number as text; anything else is left for the range check."""
    return str(value) if isinstance(value, int | float) else value


def load_settings(
    config: Path | None = None, overrides: Mapping[str, Any] | None = None
) -> Settings:
    """Return the settings of a TOML file with `overrides` on top; tables are merged by key.

    Args:
        config: TOML whose keys are the settings' names.
        overrides: values by field name of `Settings`.

    Raises:
        SettingsError: the file is not there or not TOML, a setting is unknown or out of range.
    """
    values = _read_toml(config) if config else {}
    valid = {f.name.rstrip("_"): f.name for f in fields(Settings)}
    for name in values:
        if name not in valid:
            raise SettingsError(f"{config}: unknown setting {name}{name_choices(name, valid)}")
    values = {valid[name]: value for name, value in values.items()}
    for name, value in (overrides or {}).items():
        old = values.get(name)
        values[name] = {**old, **value} if isinstance(old, dict) else value
    return Settings(**{name: parse_value(name, value) for name, value in values.items()})


def settings_from_json(values: Mapping[str, Any]) -> Settings:
    """Return the settings that `as_json` wrote."""
    names = {f.name.rstrip("_"): f.name for f in fields(Settings)}
    given = {names[name]: value for name, value in values.items() if value is not None}
    return Settings(**{name: parse_value(name, value) for name, value in given.items()})


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as stream:
            found = tomllib.load(stream)
    except FileNotFoundError:
        raise SettingsError(f"{path}: no such config file") from None
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path}: cannot be read as TOML: {error}") from None
    return found
