"""The little language of `--map canonical=expression` and of the presets.

expression = column | log(x) | neg(x) | not(x) | notnull(x) | lit(value) | pick(list,index)
           | key(x,...)
column     = name, or "quoted name" ("" is one quote); a dot reaches into a struct, except
             that an unquoted a.b is first the top-level column of that very name
value      = number | true | false | null | text | "quoted text"
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vtaudit.errors import SettingsError, name_choices

_PART = r'(?:"(?:[^"]|"")*"|[^(),".]*)'
_REFERENCE = re.compile(rf"{_PART}(?:\.{_PART})*")
_PLAIN = re.compile(r'[^\s(),".](?:[^(),".]*[^\s(),".])?')
_PARTS = re.compile(rf"(?:^|\.)({_PART})")
_LITERAL = re.compile(r'("(?:[^"]|"")*")|[^(),"]*')
_INTEGER = re.compile(r"[+-]?\d+")
_FLOAT = re.compile(r"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|inf|nan)")
_WORDS: dict[str, bool | None] = {"true": True, "false": False, "null": None}
SIGNATURES = {
    "log": "log(x)",
    "neg": "neg(x)",
    "not": "not(x)",
    "notnull": "notnull(x)",
    "lit": "lit(value)",
    "pick": "pick(list,index)",
    "key": "key(x,...)",
}
MAX_DEPTH = 50


@dataclass(frozen=True, slots=True)
class Column:
    """A source column as written, and the paths it may stand for: the first that exists wins."""

    text: str
    paths: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant."""

    text: str
    value: bool | int | float | str | None


@dataclass(frozen=True, slots=True)
class Call:
    """A function of other nodes; `function` is a key of SIGNATURES, never "lit"."""

    text: str
    function: str
    arguments: tuple[Node, ...]


Node = Column | Literal | Call


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed expression."""

    text: str
    root: Node

    def columns(self) -> tuple[str, ...]:
        """Return the source columns it refers to, as written, each once."""
        return tuple(dict.fromkeys(column.text for column in self.references()))

    def references(self) -> tuple[Column, ...]:
        """Return the column nodes, from left to right."""
        return tuple(_references(self.root))


def parse_expression(text: str) -> Expression:
    """Return the expression that `text` states.

    Raises:
        SettingsError: `text` is not one; the message names the position and what was expected.
    """
    root, end = _parse_node(text, 0, 0)
    end = _skip_spaces(text, end)
    if end < len(text):
        raise _syntax_error(text, end, "the end")
    return Expression(text.strip(), root)


def parse_assignment(text: str) -> tuple[str, str]:
    """Return the canonical name and the expression text of `canonical=expression`.

    Raises:
        SettingsError: one of the two is missing. Neither is looked at any further.
    """
    canonical, _, expression = (part.strip() for part in text.partition("="))
    if not canonical or not expression:
        raise SettingsError(
            f"--map {text}: expected canonical=expression, for example --map reward=rewards"
        )
    return canonical, expression


def path_text(path: Sequence[str]) -> str:
    """Return the way to write a column, or a field within structs, in an expression."""
    return ".".join(
        part if _PLAIN.fullmatch(part) else '"' + part.replace('"', '""') + '"' for part in path
    )


def _references(node: Node) -> Iterator[Column]:
    if isinstance(node, Column):
        yield node
    elif isinstance(node, Call):
        for argument in node.arguments:
            yield from _references(argument)


def _syntax_error(text: str, at: int, expected: str) -> SettingsError:
    found = repr(text[at]) if at < len(text) else "the end"
    return SettingsError(
        f"expression {text!r}, character {at + 1}: expected {expected}, found {found}; "
        'a column name that holds any of ( ) , " is written in double quotes'
    )


def _skip_spaces(text: str, at: int) -> int:
    return len(text) - len(text[at:].lstrip())


def _unquote(text: str) -> str:
    return text[1:-1].replace('""', '"') if text.startswith('"') else text


def _parse_node(text: str, at: int, depth: int) -> tuple[Node, int]:
    start = _skip_spaces(text, at)
    match = _REFERENCE.match(text, start)
    raw, end = (match.group().strip(), match.end()) if match else ("", start)
    if raw and '"' not in raw and text[end : end + 1] == "(":
        return _parse_call(text, start, raw, depth)
    if not raw:
        unclosed = text[end : end + 1] == '"'
        raise _syntax_error(text, end, "a closing quote" if unclosed else "a column or a function")
    parts = tuple(_unquote(part) for part in _PARTS.findall(raw))
    literal_first = '"' not in raw and len(parts) > 1
    return Column(raw, ((raw,), parts) if literal_first else (parts,)), end


def _parse_call(text: str, start: int, name: str, depth: int) -> tuple[Node, int]:
    if name not in SIGNATURES:
        raise SettingsError(
            f"expression {text!r}, character {start + 1}: expected a function, found {name!r}"
            f"{name_choices(name, SIGNATURES)}; a column name that holds brackets is written in "
            "double quotes"
        )
    if depth == MAX_DEPTH:
        raise _syntax_error(text, start, f"at most {MAX_DEPTH} nested functions")
    bracket = text.index("(", start)
    if name == "lit":
        return _parse_literal(text, start, bracket + 1)
    arguments: list[Node] = []
    at = bracket
    while at == bracket or text[at : at + 1] == ",":
        node, at = _parse_node(text, at + 1, depth + 1)
        arguments.append(node)
        at = _skip_spaces(text, at)
    if text[at : at + 1] != ")":
        raise _syntax_error(text, at, '"," or ")"')
    if name != "key" and len(arguments) != SIGNATURES[name].count(",") + 1:
        raise _syntax_error(
            text, at, f"the arguments of {SIGNATURES[name]}, not {len(arguments)} of them"
        )
    return Call(text[start : at + 1], name, tuple(arguments)), at + 1


def _parse_literal(text: str, start: int, at: int) -> tuple[Node, int]:
    at = _skip_spaces(text, at)
    match = _LITERAL.match(text, at)
    raw = match.group().strip() if match else ""
    if not raw:
        raise _syntax_error(text, at, "a number, true, false, null or text")
    end = _skip_spaces(text, match.end() if match else at)
    if text[end : end + 1] != ")":
        raise _syntax_error(text, end, '")"')
    value = _unquote(raw) if raw.startswith('"') else _read_word(raw)
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise _syntax_error(text, at, "an integer of 64 bits")
    return Literal(text[start : end + 1], value), end + 1


def _read_word(word: str) -> bool | int | float | str | None:
    if word in _WORDS:
        return _WORDS[word]
    if _INTEGER.fullmatch(word):
        return int(word)
    return float(word) if _FLOAT.fullmatch(word) else word
