"""What `vtaudit inspect` shows to a person."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from vtaudit.console import make_console
from vtaudit.inspection import Inspection
from vtaudit.inspection.proposal import Proposal
from vtaudit.inspection.streams import Bin, Streams, Windows

SHOWN_COLUMNS = 40
TYPE_WIDTH = 40
BAR_WIDTH = 30
HOW = {
    "own": "its own name",
    "stated": "as stated",
    "alias": "by its name: confirm",
    "assumed": "assumed: confirm",
    "unusable": "unusable",
    "left_out": "left out, as stated",
    "missing": "not found",
}
IN_PLACE = {
    "step": ": the order of the rows",
    "terminated": ": how do trajectories end?",
    "truncated": ": how do trajectories end?",
}


def print_inspection(found: Inspection) -> None:
    """Print an inspection: files, columns, mapping, rows, findings, the suggested command."""
    console = make_console()
    _print_files(console, found)
    _print_schema(console, found)
    _print_mapping(console, found)
    _print_rows(console, found)
    if found.streams is not None:
        _print_lengths(console, found.streams)
    _print_findings(console, found)
    _print_suggestion(console, found)


def _heading(console: Console, text: str) -> None:
    console.print(f"\n[bold]{escape(text)}[/]")


def _table(console: Console, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    table = Table(box=None, pad_edge=False)
    for name in columns:
        is_number = name in ("episodes", "shortest", "longest", "at longest")
        table.add_column(name, overflow="fold", justify="right" if is_number else "left")
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    console.print(Padding(table, (0, 0, 0, 2)))


def _print_files(console: Console, found: Inspection) -> None:
    console.print(
        f"[bold]{escape(', '.join(found.logs))}[/]: {_number(found.files, 'file')}, "
        f"{_number(found.rows, 'row')}, {found.bytes:,} bytes"
    )
    if found.unreadable:
        console.print(f"  unreadable: {_number(len(found.unreadable), 'file')}, named below")
    if found.skipped:
        told = ", ".join(f"{count:,} {kind}" for kind, count in found.skipped.items())
        console.print(escape(f"  left out: {told}"))


def _number(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _print_schema(console: Console, found: Inspection) -> None:
    _heading(console, "columns, over all files")
    rows = []
    for column in found.schema[:SHOWN_COLUMNS]:
        types = [
            _short(kind.type) + (f" ({len(kind.files):,})" if len(column.types) > 1 else "")
            for kind in column.types
        ]
        lacking = f"absent from {_number(len(column.lacking), 'file')}" if column.lacking else ""
        rows.append((column.name, " | ".join(types), lacking))
    _table(console, ("column", "type", "drift"), rows)
    more = len(found.schema) - SHOWN_COLUMNS
    if more > 0:
        console.print(f"  and {more:,} more; --json has all")


def _short(text: str) -> str:
    return text if len(text) <= TYPE_WIDTH else text[: TYPE_WIDTH - 3] + "..."


def _print_mapping(console: Console, found: Inspection) -> None:
    _heading(console, f"proposed mapping, preset {found.preset}; nothing is applied")
    shown = [each for each in found.columns if each.needed or each.status != "missing"]
    _table(
        console,
        ("canonical", "read from", "how"),
        [(each.canonical, each.expression or "-", _how(each, found.preset)) for each in shown],
    )
    absent = [each.canonical for each in found.columns if each not in shown]
    if absent:
        console.print(f"  not found, not needed as such: {', '.join(absent)}")


def _how(proposal: Proposal, preset: str) -> str:
    text = f"preset {preset}" if proposal.status == "preset" else HOW[proposal.status]
    if proposal.status == "missing":
        text += IN_PLACE.get(proposal.canonical, "")
    if proposal.near:
        text += f"; perhaps {', '.join(proposal.near)}?"
    if proposal.note and proposal.status != "unusable":
        text += f"; {proposal.note}"
    return text


def _print_rows(console: Console, found: Inspection) -> None:
    _heading(console, "rows")
    sample, streams = found.sample, found.streams
    padding = f"; {sample.padding:,} of padding beside them" if sample.padding else ""
    console.print(f"  {sample.rows:,} rows looked at{padding}")
    numbers = sample.behavior
    if numbers is not None and numbers.least is not None:
        console.print(
            f"  behavior_log_prob from {numbers.least:.6g} to {numbers.greatest:.6g}; null "
            f"{numbers.null:,}, NaN {numbers.nan:,}, infinite {numbers.infinite:,}, zero "
            f"{numbers.zero:,}"
        )
    if streams is None:
        console.print("  no trajectory_id: streams, windows and episodes are unknown")
        return
    console.print(
        f"  {streams.trajectories:,} trajectories, {streams.in_several_files:,} of them in several "
        "files"
    )
    if streams.repeated is None:
        console.print("  no step: rows count in the order of the files")
    else:
        console.print(
            f"  steps: {streams.holes:,} missing inside {streams.with_holes:,} trajectories; "
            f"{streams.repeated:,} rows repeat one"
        )
    console.print(f"  {_windows(streams.windows)}")


def _windows(windows: Windows) -> str:
    text = f"{windows.contiguous:,} of {windows.count:,} windows are contiguous"
    reasons = {
        "in several files": windows.in_several_files,
        "interleaved with others": windows.interleaved,
        "out of order or with holes": windows.out_of_order,
    }
    told = [f"{count:,} {reason}" for reason, count in reasons.items() if count]
    return text + (f"; {', '.join(told)}" if told else "")


def _print_lengths(console: Console, streams: Streams) -> None:
    _heading(console, "episodes, by how they end; lengths in steps")
    rows = [
        (
            end.kind,
            f"{end.episodes:,}",
            f"{end.shortest:,}",
            f"{end.longest:,}",
            f"{end.at_longest:,}",
        )
        for end in streams.ends
    ]
    _table(console, ("end", "episodes", "shortest", "longest", "at longest"), rows)
    most = max((one.episodes for one in streams.lengths), default=0)
    _table(
        console,
        ("length", "episodes", ""),
        [(_span(one), f"{one.episodes:,}", _bar(one, most)) for one in streams.lengths],
    )


def _span(one: Bin) -> str:
    return f"{one.low:,}" if one.low == one.high else f"{one.low:,} to {one.high:,}"


def _bar(one: Bin, most: int) -> str:
    # an episode that is there is seen, however many the others are
    return "#" * -(-one.episodes * BAR_WIDTH // most) if most else ""


def _print_findings(console: Console, found: Inspection) -> None:
    if not found.findings:
        return
    _heading(console, "look at")
    for finding in found.findings:
        console.print(escape(f"  {finding.kind}: {finding.text}"))
        if finding.advice:
            console.print(escape(f"      {finding.advice}"))


def _print_suggestion(console: Console, found: Inspection) -> None:
    suggestion = found.suggestion
    is_open = not suggestion.is_complete
    _heading(console, "to start from" + (", once each COLUMN is named" if is_open else ""))
    console.print(escape(f"  {suggestion.command}"))
    for title, lines in (
        ("it assumes, for you to confirm:", suggestion.assumptions),
        ("the log cannot tell:", suggestion.choices),
    ):
        if lines:
            console.print(f"  {title}")
        for line in lines:
            console.print(escape(f"    - {line}"))
