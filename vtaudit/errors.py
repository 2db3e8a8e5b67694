"""The exceptions that vtaudit raises, and the exit code of each.

VtauditError
├── SettingsError   2   wrong usage or settings
├── SchemaError     3   a file or table does not have the promised columns or types
├── InputError      3   an input or the disk failed
│   └── UnreadableError     one file of the log cannot be read
├── EngineError     3   a backend or device is not there or failed
└── LawError       70   counts that must add up do not: a bug in vtaudit
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class VtauditError(Exception):
    """Base of all errors meant for users; the message says where, found, expected, what to do."""

    exit_code = 3


class SettingsError(VtauditError):
    """Wrong usage or settings."""

    exit_code = 2


class SchemaError(VtauditError):
    """A file or table does not have the columns or types that a schema promises."""


class InputError(VtauditError):
    """An input could not be found or read, or the disk failed."""


class UnreadableError(InputError):
    """One file of the log cannot be read; the run goes on without it and counts it.

    Attributes:
        place: of the file in the plan, once it is known.
    """

    place: int | None = None


class EngineError(VtauditError):
    """A backend or a device is missing or failed."""


class LawError(VtauditError):
    """Counts that must add up do not: a bug in vtaudit, never a finding about the data."""

    exit_code = 70


def name_choices(found: str, valid: Iterable[str]) -> str:
    """Return the end of an error message: near matches of `found`, then every valid name."""
    names = sorted(valid)
    near = difflib.get_close_matches(found, names, n=3, cutoff=0.6)
    hint = f" (did you mean {' or '.join(near)}?)" if near else ""
    return f"{hint}; valid: {', '.join(names)}"
