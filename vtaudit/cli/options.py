"""Options made from the settings: one for each, with its own type, choices and help."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field, fields
from typing import Any

import click

from vtaudit.config import Settings, parse_value
from vtaudit.errors import SettingsError
from vtaudit.ranges import KINDS

NEGATED = {"targets": "--targets/--no-targets"}


def setting_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add one option for each setting, with the setting's own type, choices and help."""
    for item in reversed(fields(Settings)):
        command = _option(item)(command)
    return command


def _option(item: Field[Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    metadata, kind = item.metadata, item.metadata["kind"]
    name = "--" + (metadata["option"] or item.name).rstrip("_").replace("_", "-")
    metavar = metadata["metavar"] or KINDS[kind].metavar
    text, shown = metadata["help"], _shown_default(item)
    if shown:
        text += f"  [default: {shown}]"
    if kind in ("flag", "switch"):
        declared = NEGATED.get(item.name, name)
        return click.option(declared, item.name, is_flag=True, default=None, help=text)
    if kind in ("map", "expect"):
        return click.option(name, item.name, multiple=True, metavar=metavar, help=text)
    types: dict[str, Any] = {"int": click.INT, "count": click.INT, "path": click.Path()}
    type_ = click.Choice(metadata["choices"]) if kind == "choice" else types.get(kind, click.STRING)
    return click.option(name, item.name, type=type_, default=None, metavar=metavar, help=text)


def _shown_default(item: Field[Any]) -> str:
    is_plain = isinstance(item.default, str | float) and not isinstance(item.default, bool)
    return str(item.default) if is_plain else ""


def read_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that stood on the command line, in the form that settings take."""
    kinds = {item.name: item.metadata["kind"] for item in fields(Settings)}
    given: dict[str, Any] = {}
    for name, value in options.items():
        if value is None or value == ():
            continue
        if kinds[name] in ("map", "expect"):
            value = dict(split_pair(name, text) for text in value)
        given[name] = parse_value(name, value)
    return given


def split_pair(name: str, text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        option = {"columns": "map", "tags": "tag"}.get(name, name)
        raise SettingsError(f"--{option} {text}: found no NAME=VALUE")
    return key.strip(), value.strip()
