"""What a person sees: progress on stderr, tables on stdout."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from vtaudit.reasons import Reason, Warn

if TYPE_CHECKING:
    from vtaudit.pipeline import RunResult

GROUPS = {
    "rejected_any": "rejected, any reason",
    "rejected_primary": "rejected, first reason",
    "warning": "warnings",
    "clipped": "clipped, accepted rows",
    "clipped_received": "clipped, received rows",
    "boundary": "boundaries",
    "bootstrap": "bootstrap source",
}
HIDDEN_WHEN_ZERO = ("padding", "pending", "applied")
PLAIN_WIDTH = 100


@contextmanager
def show_progress(*, enabled: bool) -> Iterator[Callable[[str, int, int], None] | None]:
    """Give a function that draws how far each stage is; None where nothing shall be drawn."""
    if not enabled:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True
    ) as bar:
        tasks: dict[str, Any] = {}

        def tell(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage, total=total)
            bar.update(tasks[stage], completed=done)

        yield tell


def _console(*, stderr: bool = False) -> Console:
    console = Console(stderr=stderr, highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    return console


def print_audit(result: RunResult) -> None:
    """Print the audit as a table: every fraction with its numerator and denominator."""
    table = Table(title=f"run {result.run_id}", title_justify="left", box=None, pad_edge=False)
    table.add_column("measure")
    table.add_column("count", justify="right")
    table.add_column("of", justify="right")
    table.add_column("denominator")
    table.add_column("share", justify="right")
    group = ""
    for row in result.audit:
        measure, kind, count = row["measure"], row["kind"], row["count"]
        if not count and (kind is not None or measure in HIDDEN_WHEN_ZERO) and count is not None:
            continue
        if count is None and (measure in HIDDEN_WHEN_ZERO or kind is None):
            continue
        if kind is not None and measure != group:
            table.add_row(f"[bold]{GROUPS[measure]}[/]")
        group = measure
        table.add_row(*_cells(row))
    _console().print(table)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    label = f"  {row['kind']}" if row["kind"] is not None else f"[bold]{row['measure']}[/]"
    if row["count"] is None:
        return label, row["null_reason"], "", "", ""
    if row["denominator"] is None:
        return label, f"{row['count']:,}", "", "", ""
    over = row["denominator_measure"].replace("_", " ")
    share = "" if row["fraction"] is None else f"{100 * row['fraction']:.2f} %"
    return label, f"{row['count']:,}", f"{row['denominator']:,}", over, share


def print_next_steps(result: RunResult) -> None:
    """Print the notes on stderr, and on stdout where the results are and how to go on."""
    notes = _console(stderr=True)
    for note in result.notes:
        notes.print(f"note: {escape(note)}")
    out = _console()
    run = escape(str(result.path))
    out.print()
    out.print(f"targets  {run}/targets/*.parquet   one row per accepted row")
    out.print(f"rejects  {run}/rejects/*.parquet   one row per rejected row, with its reasons")
    out.print(f"audit    {run}/audit.duckdb        the tables above; also {run}/audit/*.parquet")
    out.print("")
    out.print("To train on them, carry observations and actions along: --carry COLUMN,... or all")


def print_reasons() -> None:
    """Print the registry of reasons and warnings."""
    console = _console()
    for title, width, rows in (
        ("reasons", 32, [(r.code, f"{r.text}. To do: {r.advice}.") for r in Reason]),
        ("warnings", 32, [(w.code, f"{w.text}.") for w in Warn]),
    ):
        table = Table(
            title=title, title_justify="left", box=None, pad_edge=False, show_header=False
        )
        table.add_column(min_width=width, no_wrap=True)
        table.add_column()
        for code, text in rows:
            table.add_row(code, escape(text))
        console.print(table)
