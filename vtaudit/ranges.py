"""The kinds of settings: what each kind may hold, in code and in words."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Kind:
    """What a kind of setting may hold."""

    holds: Callable[[Any], bool]
    expected: str
    metavar: str | None = None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def is_text(value: Any) -> bool:
    """Return whether the value is text that UTF-8 can hold."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_list(value: Any) -> bool:
    return isinstance(value, tuple) and all(is_text(item) for item in value)


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) and all(is_text(x) for pair in value.items() for x in pair)


def _is_table_of_lists(value: Any) -> bool:
    return isinstance(value, dict) and all(_is_list(item) for item in value.values())


AGE = re.compile(r"(?P<count>[0-9]+)(?P<unit>[smhdw])|policy_version:(?P<versions>[0-9]+)")


def _is_age(value: Any) -> bool:
    return isinstance(value, str) and AGE.fullmatch(value) is not None


SIZE = re.compile(r"(?P<count>[0-9]+(\.[0-9]+)?) ?(?P<unit>[kMGT]i?)?B?")
UNITS = {"k": 1, "M": 2, "G": 3, "T": 4}


def parse_size(text: str) -> int:
    """Return the bytes that a size such as 800MB or 1.5GiB stands for.

    Raises:
        ValueError: it is no size.
    """
    found = SIZE.fullmatch(text)
    if found is None:
        raise ValueError(text)
    unit = found["unit"] or ""
    base = 1024 if unit.endswith("i") else 1000
    return int(float(found["count"]) * base ** UNITS.get(unit[:1], 0))


def _is_size(value: Any) -> bool:
    return isinstance(value, str) and SIZE.fullmatch(value) is not None and parse_size(value) > 0


KINDS = {
    "unit": Kind(
        lambda value: _is_number(value) and 0 <= value <= 1, "a number from 0 to 1", "NUMBER"
    ),
    "clip": Kind(
        lambda value: _is_number(value) and value > 0, "a number above 0, or none", "NUMBER|none"
    ),
    "nonnegative": Kind(
        lambda value: _is_number(value) and 0 <= value < math.inf, "a number, 0 or above", "NUMBER"
    ),
    "count": Kind(lambda value: _is_whole(value) and value >= 1, "a whole number, 1 or above"),
    "int": Kind(_is_whole, "a whole number"),
    "flag": Kind(_is_flag, "true or false"),
    "switch": Kind(_is_flag, "true or false"),
    "size": Kind(_is_size, "a size as 800MB or 1.5GiB", "SIZE"),
    "map": Kind(_is_table, "a table of names and text", "COLUMN=EXPRESSION"),
    "expect": Kind(_is_table_of_lists, "a table of columns and lists of values"),
    "list": Kind(_is_list, "a list of names"),
    "choice": Kind(is_text, "text"),
    "text": Kind(is_text, "text"),
    "path": Kind(is_text, "a path"),
    "age": Kind(
        _is_age,
        "a time as 30d, 12h or 90m, or policy_version:N",
        "AGE|policy_version:N",
    ),
}
