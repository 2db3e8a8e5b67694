"""What `vtaudit explain` shows to a person."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from vtaudit.console import make_console
from vtaudit.explanation import Explanation
from vtaudit.explanation.derivation import show
from vtaudit.explanation.ruling import Ruling

PLAIN_WIDTH = 120
SHOWN_ELEMENTS = 16
SHOWN_TEXT = 200
STORED_DIGITS = 9


def print_explanation(found: Explanation) -> None:
    """Print the row as logged, its copies, the rules, its segment, and the terms."""
    console = make_console(plain_width=PLAIN_WIDTH)
    key = "" if found.step is None else f"{found.trajectory_id} step {found.step}, "
    console.print(f"[bold]{escape(key + found.place)}: {found.verdict}[/]")
    for note in [*found.notes, *found.warnings]:
        console.print(f"  {escape(note)}")
    for ruling in (each for each in found.rulings if each.state == "broken"):
        _print_broken(console, ruling)
    _print_row(console, found)
    _print_copies(console, found)
    _print_rules(console, found.rulings)
    _print_cut(console, found)


def _heading(console: Console, text: str) -> None:
    console.print(f"\n[bold]{escape(text)}[/]")


def _table(console: Console, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    table = Table(box=None, pad_edge=False, show_header=any(columns))
    for name in columns:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    console.print(Padding(table, (0, 0, 0, 2), expand=False))


def _text(cell: Any) -> str:
    """Return a cell in full, but for the tail of a long list or text."""
    if cell is None:
        return "null"
    if isinstance(cell, bool):
        return str(cell).lower()
    if isinstance(cell, float):
        return repr(cell)
    if isinstance(cell, dict):
        return "; ".join(f"{name} {_text(item)}" for name, item in cell.items())
    if isinstance(cell, list):
        shown = ", ".join(_text(item) for item in cell[:SHOWN_ELEMENTS])
        more = len(cell) - SHOWN_ELEMENTS
        return f"[{shown}{f', and {more} more' if more > 0 else ''}]"
    text = str(cell)
    return text if len(text) <= SHOWN_TEXT else f"{text[:SHOWN_TEXT]}..."


def _print_broken(console: Console, ruling: Ruling) -> None:
    _heading(console, f"rejected: {ruling.reason}")
    console.print(f"  {escape(ruling.when)}")
    rows = [(name, _text(cell)) for name, cell in ruling.found.items()]
    _table(console, ("", ""), [*rows, ("accepted", ruling.accepted or "")])


def _print_row(console: Console, found: Explanation) -> None:
    _heading(console, f"as logged, {found.place}")
    _table(console, ("", ""), [(name, _text(cell)) for name, cell in found.logged.items()])
    other = [
        (name, _text(entry["value"]), entry["from"])
        for name, entry in found.mapped.items()
        if entry["from"] != name
    ]
    if other:
        _heading(console, "read as")
        _table(console, ("", "", ""), other)


def _print_copies(console: Console, found: Explanation) -> None:
    if len(found.copies) > 1:
        _heading(console, f"{len(found.copies)} copies of the key")
        rows = [(copy.place, ", ".join(copy.reasons) or "accepted") for copy in found.copies]
        _table(console, ("", ""), rows)
    elif found.copies:
        console.print("\nthe only copy of its key" if found.step is not None else "")


def _print_rules(console: Console, rulings: Sequence[Ruling]) -> None:
    if not rulings:
        return
    _heading(console, "rules")
    rows = [(each.reason, each.state, each.why or "") for each in rulings]
    _table(console, ("", "", ""), rows)


def _print_cut(console: Console, found: Explanation) -> None:
    cut = found.cut
    if cut is None:
        return
    window = "" if cut.window is None else f" of window {cut.window}"
    _heading(console, "segment")
    console.print(
        escape(
            f"  steps {cut.first_step} to {cut.last_step}, {cut.rows} rows{window}, ends in "
            f"{cut.end}"
        )
    )
    console.print(escape(f"  this row: {cut.boundary}; V(s_{{t+1}}) is {cut.origin}"))
    _heading(console, "terms, in float64")
    rows = []
    for term in found.terms:
        stored = "" if term.stored is None else f"{term.stored:.{STORED_DIGITS}g}"
        rows.append((term.name, show(term.value), f"= {term.formula}", stored))
        if term.filled:
            rows.append(("", "", f"= {term.filled}", ""))
    _table(console, ("", "value", "", "stored"), rows)
