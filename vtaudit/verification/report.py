"""What `vtaudit verify` shows to a person."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from vtaudit.console import make_console
from vtaudit.verification.comparison import Verification

SHOWN = 20


def print_verification(run: Path, found: Verification) -> None:
    """Print what was compared, the largest differences, what was skipped, and what is wrong."""
    console = make_console()
    for title, lines in (
        ("compared", found.compared),
        ("not compared", found.skipped),
        ("damaged", found.damaged),
        ("broken", found.broken),
    ):
        _print_lines(console, title, lines)
        if title == "compared" and found.largest:
            _print_largest(console, found)
    count = len(found.damaged) + len(found.broken)
    checked = "what was compared" if found.skipped else "everything"
    verdict = f"{count} findings" if count else f"{checked} holds"
    console.print(f"[bold]{escape(str(run))}[/]: {verdict}")


def _print_lines(console: Console, title: str, lines: list[str]) -> None:
    if not lines:
        return
    console.print(f"[bold]{title}[/]")
    for line in lines[:SHOWN]:
        console.print(f"  {escape(line)}")
    if len(lines) > SHOWN:
        console.print(f"  and {len(lines) - SHOWN:,} more; --json has all")


def _print_largest(console: Console, found: Verification) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("  column")
    table.add_column("largest difference", justify="right")
    table.add_column("at")
    for name, each in found.largest.items():
        place = f"{each.trajectory_id} step {each.step}" if each.difference else ""
        table.add_row(f"  {name}", f"{each.difference:.3g}", escape(place))
    console.print(table)
