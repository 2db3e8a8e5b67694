"""What a person sees: progress on stderr, tables on stdout."""

from __future__ import annotations

import csv
import itertools
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from vtaudit.console import make_console
from vtaudit.plain import to_plain
from vtaudit.reasons import Reason, Warn

if TYPE_CHECKING:
    from vtaudit.presets import Preset
    from vtaudit.reports import RunResult

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
SHOWN_ROWS = 1000
ANY_WIDTH = 1_000_000
# what a terminal might obey
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
NUMBER = re.compile(r"|-?[0-9.]+(e[+-]?[0-9]+)?|nan|-?inf")


@contextmanager
def show_progress(*, enabled: bool) -> Iterator[Callable[[str, int, int], None] | None]:
    """Give a function that draws how far each stage is; None where nothing shall be drawn."""
    if not enabled:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, TimeElapsedColumn(), console=make_console(stderr=True), transient=True
    ) as bar:
        tasks: dict[str, Any] = {}

        def tell(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage, total=total)
            bar.update(tasks[stage], completed=done)

        yield tell


def print_audit(result: RunResult) -> None:
    """Print the audit as a table: every fraction with its numerator and denominator."""
    table = Table(title=f"run {result.run_id}", title_justify="left", box=None, pad_edge=False)
    table.add_column("measure")
    table.add_column("count", justify="right")
    table.add_column("of", justify="right")
    table.add_column("denominator")
    table.add_column("share", justify="right")
    for measure, rows in itertools.groupby(result.audit, key=lambda row: str(row["measure"])):
        _add_measure(table, measure, list(rows))
    make_console().print(table)


def _add_measure(table: Table, measure: str, rows: list[dict[str, Any]]) -> None:
    """Add a measure, its kinds below it; counts of 0 are left out where they go without saying."""
    unknown = {row["null_reason"] for row in rows if row["count"] is None}
    if rows[0]["kind"] is None:
        if rows[0]["count"] or measure not in HIDDEN_WHEN_ZERO:
            table.add_row(*_cells(rows[0]))
        return
    if len(unknown) == 1 and all(row["count"] is None for row in rows):
        table.add_row(f"[bold]{GROUPS[measure]}[/]", "unknown", "", unknown.pop())
        return
    shown = [row for row in rows if row["count"] != 0]
    if shown:
        table.add_row(f"[bold]{GROUPS[measure]}[/]")
    for row in shown:
        table.add_row(*_cells(row))


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    label = f"  {row['kind']}" if row["kind"] is not None else f"[bold]{row['measure']}[/]"
    if row["count"] is None:
        return label, "unknown", "", row["null_reason"], ""
    if row["denominator"] is None:
        return label, f"{row['count']:,}", "", "", ""
    over = row["denominator_measure"].replace("_", " ")
    share = "" if row["fraction"] is None else f"{100 * row['fraction']:.2f} %"
    return label, f"{row['count']:,}", f"{row['denominator']:,}", over, share


def print_next_steps(result: RunResult) -> None:
    """Print the notes on stderr, and on stdout where the results are and how to go on."""
    notes = make_console(stderr=True)
    for note in result.notes:
        notes.print(f"note: {escape(note)}")
    out = make_console()
    run = escape(str(result.path))
    out.print()
    parts = f"{run}/batch-*" if result.settings.append else run
    if result.settings.targets:
        out.print(f"targets  {parts}/targets/*.parquet   one row per accepted row")
    out.print(f"rejects  {parts}/rejects/*.parquet   one row per rejected row, with its reasons")
    out.print(f"audit    {run}/audit.duckdb        the tables above; also {run}/audit/*.parquet")
    if result.settings.targets and not result.settings.carry:
        out.print("")
        out.print("To train on them, carry observations and actions along: --carry COLUMN,...|all")


def write_answer(
    columns: list[str], batches: Iterable[list[tuple[Any, ...]]], form: str | None
) -> None:
    """Write the rows of a query to stdout: as JSON, as CSV, or as a table for people."""
    rows = (row for batch in batches for row in batch)
    if form == "json":
        _write_json(columns, rows)
    elif form == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)
    else:
        _print_rows(columns, rows)


def _write_json(columns: list[str], rows: Iterable[tuple[Any, ...]]) -> None:
    """Write an array of objects, one a line; NaN and infinities are text, as JSON has none."""
    start = "["
    columns = [
        f"{name}_{place}" if name in columns[:place] else name for place, name in enumerate(columns)
    ]
    for row in rows:
        named = {name: to_plain(cell) for name, cell in zip(columns, row, strict=True)}
        sys.stdout.write(start + json.dumps(named, allow_nan=False, default=str))
        start = ",\n "
    sys.stdout.write(("[" if start == "[" else "") + "]\n")


def _print_rows(columns: list[str], rows: Iterable[tuple[Any, ...]]) -> None:
    """Print rows as a table; a record a row, column by column, where they are too wide for one."""
    console = make_console()
    rows = iter(rows)
    shown = [[_show(cell) for cell in row] for row in itertools.islice(rows, SHOWN_ROWS)]
    table = Table(box=None, pad_edge=False)
    for place, name in enumerate(columns):
        numeric = all(NUMBER.fullmatch(row[place]) for row in shown)
        table.add_column(escape(name), justify="right" if numeric else "left", no_wrap=True)
    for row in shown:
        table.add_row(*map(Text, row))
    width = Measurement.get(console, console.options.update(max_width=ANY_WIDTH), table).maximum
    if console.is_terminal and width > console.width:
        _print_records(console, columns, shown)
    else:
        console.print(table, width=width)
    if next(rows, None) is not None:
        make_console(stderr=True).print(
            f"only the first {SHOWN_ROWS} rows; --csv or --json has all"
        )


def print_tables(described: Iterable[tuple[str, str, str, str]]) -> None:
    """Print table, column, type and meaning of everything that can be queried."""
    for name, rows in itertools.groupby(described, key=lambda row: row[0]):
        table = Table(title=name, title_justify="left", box=None, pad_edge=False, show_header=False)
        table.add_column(no_wrap=True, min_width=26)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for _, column, kind, meaning in rows:
            table.add_row(escape(column), escape(kind), escape(meaning))
        make_console().print(table)


def _print_records(console: Console, columns: list[str], rows: list[list[str]]) -> None:
    width = max(map(len, columns), default=0)
    for number, row in enumerate(rows, 1):
        console.print(f"[bold]row {number}[/]")
        for name, cell in zip(columns, row, strict=True):
            console.print(Text(f"  {name:<{width}}  {cell}"))


def _show(cell: Any) -> str:
    if cell is None:
        return ""
    text = f"{cell:.6g}" if isinstance(cell, float) else str(cell)
    return CONTROL.sub(lambda found: f"\\x{ord(found.group()):02x}", text)


def print_reasons() -> None:
    """Print the registry of reasons and warnings."""
    console = make_console()
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


def print_presets(presets: Iterable[Preset]) -> None:
    """Print what each preset maps, sets and assumes."""
    console = make_console()
    for preset in presets:
        table = Table(
            title=f"{preset.name}: {escape(preset.description)}",
            title_justify="left",
            box=None,
            pad_edge=False,
            show_header=False,
        )
        table.add_column(min_width=20, no_wrap=True)
        table.add_column()
        for canonical, texts in preset.columns.items():
            table.add_row(f"  {canonical}", escape(", or ".join(texts)))
        for setting, where in _preset_settings(preset):
            table.add_row(f"  {setting}", where)
        for sentence in preset.assumes:
            table.add_row("  assumes", escape(sentence))
        console.print(table)
        console.print("")


def _preset_settings(preset: Preset) -> Iterator[tuple[str, str]]:
    for name, value in preset.settings.items():
        yield f"--{name.replace('_', '-')}", str(value)
    for canonical, settings in preset.settings_without.items():
        for name, value in settings.items():
            yield f"--{name.replace('_', '-')}", f"{value}, where {canonical} is not mapped"
