"""Look at a log before a run: schema, a proposed mapping, doubts, a command to start from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vtaudit.errors import InputError
from vtaudit.inspection.doubts import (
    Finding,
    doubt_behavior,
    doubt_ends,
    doubt_files,
    doubt_names,
    doubt_sample,
    doubt_streams,
    guess_transform,
)
from vtaudit.inspection.footers import (
    Footers,
    SchemaColumn,
    count_skipped,
    describe_schema,
    examine_all,
    find_copies,
    gather_footers,
)
from vtaudit.inspection.proposal import Proposal, choose_preset, propose_columns
from vtaudit.inspection.streams import Streams, measure_streams
from vtaudit.inspection.suggestion import Suggestion, suggest_command
from vtaudit.inspection.survey import Sample, survey_rows
from vtaudit.mapping import Mapping as Columns
from vtaudit.mapping.expressions import parse_expression
from vtaudit.presets import load_preset
from vtaudit.records import InputFile
from vtaudit.sources import list_inputs
from vtaudit.storage import Place, parse_places


@dataclass(frozen=True, slots=True)
class Inspection:
    """What was found; nothing of it was applied.

    Attributes:
        logs: the arguments.
        files, rows, bytes: of the readable files.
        unreadable: file -> error.
        copies: file -> the earlier file whose content it repeats.
        skipped: names of hidden files and kinds of other files -> how many were left out.
        schema: every column over all files.
        preset: the one that fits, or the one that was stated.
        columns: a proposal for each canonical column.
        sample: the rows that were looked at.
        streams: trajectories, windows and episodes; None without a trajectory_id.
        findings: what deserves a look.
        suggestion: a command to start from.
    """

    logs: tuple[str, ...]
    files: int
    rows: int
    bytes: int
    unreadable: dict[str, str]
    copies: dict[str, str]
    skipped: dict[str, int]
    schema: tuple[SchemaColumn, ...]
    preset: str
    columns: tuple[Proposal, ...]
    sample: Sample
    streams: Streams | None
    findings: tuple[Finding, ...]
    suggestion: Suggestion


def inspect_log(
    logs: Sequence[str | Path],
    *,
    preset: str | None = None,
    maps: Mapping[str, str] | None = None,
    out: str = "run",
) -> Inspection:
    """Look at a log and propose how to read it; nothing is written.

    Args:
        logs: directories or files, here or at URLs.
        preset: name of the preset; by default the one that fits.
        maps: canonical column -> expression, which goes before every proposal.
        out: the run directory to name in the suggested command.

    Raises:
        InputError: no such log, or none of its files is readable.
        SettingsError: no such preset, or a map that is not one.
        SchemaError: a map refers to a column that no file has.
    """
    places = parse_places(logs)
    files = _examine(places)
    readable = [file for file in files if file.error is None]
    footers = gather_footers(readable)
    chosen = load_preset(preset or choose_preset(footers))
    proposals, unclear = propose_columns(footers, chosen, maps or {})
    copies = find_copies(readable)
    originals = [file for file in readable if file.name not in copies]
    view = _survey(originals, footers, proposals)
    schema = describe_schema(footers)
    unreadable = {file.name: file.error for file in files if file.error is not None}
    unreadable.update(view.sample.unreadable)
    findings = [
        *doubt_files(unreadable, copies, schema),
        *doubt_names(view.proposals, unclear),
        *_doubt_rows(view, footers),
    ]
    has_discounts = view.sample.has_discounts
    return Inspection(
        logs=tuple(map(str, places)),
        files=len(readable),
        rows=sum(file.rows or 0 for file in readable),
        bytes=sum(file.size or 0 for file in readable),
        unreadable=unreadable,
        copies=copies,
        skipped=count_skipped(places),
        schema=schema,
        preset=chosen.name,
        columns=tuple(view.proposals),
        sample=view.sample,
        streams=view.streams,
        findings=tuple(findings),
        suggestion=suggest_command(
            [str(place) for place in places],
            out,
            chosen,
            view.proposals,
            has_discounts=has_discounts,
        ),
    )


def _examine(logs: Sequence[Place]) -> list[InputFile]:
    files = examine_all(list_inputs(logs))
    if all(file.error is not None for file in files):
        raise InputError(
            f"{files[0].name}: {files[0].error}; none of {len(files)} files is readable"
        )
    return files


@dataclass(frozen=True, slots=True)
class _View:
    """The proposals as the rows corrected them, and the rows as these read them.

    Attributes:
        first: what behavior_log_prob was read from before it was corrected.
        first_sample: the rows as they were read then.
    """

    proposals: list[Proposal]
    sample: Sample
    streams: Streams | None
    first: Proposal
    first_sample: Sample
    is_discrete: bool


def _survey(files: Sequence[InputFile], footers: Footers, proposals: list[Proposal]) -> _View:
    """Survey the rows; once more where what they hold corrects the proposals."""
    found = {each.canonical: each.expression for each in proposals if each.expression}
    is_discrete = footers.unify(found).is_discrete
    rows, sample = survey_rows(files, _columns(proposals))
    streams = measure_streams(rows)
    first = next(each for each in proposals if each.canonical == "behavior_log_prob")
    better = _correct(proposals, sample, streams, is_discrete=is_discrete)
    if better == proposals:
        return _View(proposals, sample, streams, first, sample, is_discrete)
    rows, again = survey_rows(files, _columns(better))
    return _View(better, again, measure_streams(rows), first, sample, is_discrete)


def _columns(proposals: Sequence[Proposal]) -> Columns:
    found = {each.canonical: each.expression for each in proposals}
    return Columns({name: parse_expression(text) for name, text in found.items() if text})


def _correct(
    proposals: list[Proposal], sample: Sample, streams: Streams | None, *, is_discrete: bool
) -> list[Proposal]:
    """Return the proposals with what the values show: probabilities, and rows without an action."""
    by_name = {each.canonical: each for each in proposals}
    behavior, action = by_name["behavior_log_prob"], by_name["action"]
    if sample.behavior is not None and behavior.expression and behavior.status != "stated":
        text = guess_transform(behavior.expression, sample.behavior, is_discrete=is_discrete)
        if text is not None:
            note = f"by the values of {behavior.expression}"
            by_name["behavior_log_prob"] = replace(
                behavior, status="assumed", expression=text, note=note
            )
    actionless = streams.actionless_ends if streams is not None else 0
    if (
        by_name["valid"].status == "missing"
        and 0 < actionless == sample.actions_missing < sample.rows
    ):
        note = f"{actionless:,} rows have no action and are the last of their trajectory or keyless"
        text = f"notnull({action.expression})"
        by_name["valid"] = Proposal("valid", "assumed", text, note=note)
    return list(by_name.values())


def _doubt_rows(view: _View, footers: Footers) -> Iterator[Finding]:
    yield from doubt_sample(view.sample, view.first_sample.actions_missing)
    is_corrected = view.first not in view.proposals
    numbers = (view.first_sample if is_corrected else view.sample).behavior
    yield from doubt_behavior(view.first.expression, numbers, is_discrete=view.is_discrete)
    if view.streams is not None:
        by_name = {each.canonical: each for each in view.proposals}
        yield from doubt_ends(view.streams, by_name)
        yield from doubt_streams(view.streams, footers.columns, partial=view.sample.is_partial)
