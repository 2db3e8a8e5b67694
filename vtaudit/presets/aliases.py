"""What canonical columns are called elsewhere, and which names are ambiguous; see aliases.toml."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib import resources
from typing import Any


@dataclass(frozen=True, slots=True)
class Alias:
    """Names of one canonical column, and the expression that turns such a column into it."""

    canonical: str
    names: tuple[str, ...]
    expression: str = "{column}"
    what: str = ""


@dataclass(frozen=True, slots=True)
class Ambiguity:
    """Names that can mean several things.

    Attributes:
        names: the names.
        about: the canonical columns that it may be.
        why: end of a sentence that begins with the column.
        choose: what to map it to in which case.
        assume: canonical column -> expression that a suggestion may take for granted.
        beside: a canonical column that must have been found, if any.
    """

    names: tuple[str, ...]
    about: tuple[str, ...]
    why: str
    choose: str
    assume: dict[str, str]
    beside: str | None


@functools.cache
def _read() -> dict[str, Any]:
    text = resources.files("vtaudit.presets").joinpath("aliases.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@functools.cache
def load_aliases() -> tuple[Alias, ...]:
    """Return the aliases, plain names before those that need a transform."""
    table = _read()
    plain = [Alias(canonical, tuple(names)) for canonical, names in table["columns"].items()]
    return (
        *plain,
        *(
            Alias(entry["column"], tuple(entry["names"]), entry["expression"], entry["what"])
            for entry in table["transformed"]
        ),
    )


@functools.cache
def load_ambiguities() -> tuple[Ambiguity, ...]:
    """Return the names that can mean several things."""
    return tuple(
        Ambiguity(
            names=tuple(entry["names"]),
            about=tuple(entry["about"]),
            why=entry["why"],
            choose=entry["choose"],
            assume=dict(entry.get("assume", {})),
            beside=entry.get("beside"),
        )
        for entry in _read()["ambiguous"]
    )


def load_stream_names() -> tuple[str, ...]:
    """Return the names of columns that can make an id unique over actors."""
    return tuple(_read()["streams"]["names"])


def find_names(known: Sequence[str], columns: Iterable[str]) -> list[str]:
    """Return the columns that bear one of the known names, in the order of the known names."""
    plain = {column: _plain(column) for column in columns}
    found = [
        column
        for name in known
        for column, text in plain.items()
        if fnmatchcase(text, _plain(name))
    ]
    return list(dict.fromkeys(found))


def find_ambiguous(canonical: str, columns: Iterable[str]) -> list[tuple[str, str]]:
    """Return the columns that may or may not be a canonical one, each with what to choose."""
    known = list(columns)
    found = {
        column: ambiguity.choose.format(column=column)
        for ambiguity in reversed(load_ambiguities())
        if canonical in ambiguity.about and ambiguity.beside is None
        for column in find_names(ambiguity.names, known)
    }
    return list(found.items())


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9*]", "", name.casefold())
