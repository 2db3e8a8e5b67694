"""The commands before and after a run, and the registries."""

from __future__ import annotations

import itertools
import json
import sys
from dataclasses import asdict
from pathlib import Path

import click

from vtaudit.cli.group import FOUND_SOMETHING, main
from vtaudit.cli.options import split_pair
from vtaudit.errors import InputError, LawError, SettingsError
from vtaudit.reasons import Reason, Warn
from vtaudit.storage import parse_run

RUN_ARGUMENT = click.argument(
    "run", type=click.Path(), callback=lambda context, argument, run: parse_run(run)
)


@main.command()
@RUN_ARGUMENT
@click.argument("sql", required=False)
@click.option("--json", "form", flag_value="json", help="print a JSON array of objects")
@click.option("--csv", "form", flag_value="csv", help="print CSV with a header")
def query(run: Path, sql: str | None, form: str | None) -> None:
    """Answer SQL over the tables of RUN; without SQL, print the tables and their columns.

    Tables: targets, rejects, summary, audit, audit_by, files, runs.
    """
    from vtaudit.query import ask, describe_tables, open_run
    from vtaudit.terminal import print_tables, write_answer

    with open_run(run) as connection:
        if sql is not None:
            answer = ask(connection, sql)
            write_answer(answer.columns, answer.batches, form)
        elif form is None:
            print_tables(describe_tables(connection, brief=True))
        else:
            columns = ["table", "column", "type", "meaning"]
            write_answer(columns, [describe_tables(connection, brief=False)], form)


@main.command()
@click.argument("logs", nargs=-1, required=True, type=click.Path())
@click.option("--preset", metavar="TEXT", help="column names of a known ecosystem, not guessed")
@click.option(
    "--map", "maps", multiple=True, metavar="COLUMN=EXPRESSION", help="a column that you know"
)
@click.option("--json", "as_json", is_flag=True, help="print everything as JSON")
def inspect(
    logs: tuple[str, ...], preset: str | None, maps: tuple[str, ...], as_json: bool
) -> None:
    """Look at LOGS before a run: schema, a proposed mapping, doubts, a command to start from.

    Writes nothing and applies nothing. Exits 1 where a file is unreadable.
    """
    from vtaudit.inspection import inspect_log

    known = dict(split_pair("columns", text) for text in maps)
    found = inspect_log(logs, preset=preset, maps=known, out=_free_name("run"))
    if as_json:
        click.echo(json.dumps(asdict(found), indent=2))
    else:
        from vtaudit.inspection.report import print_inspection

        print_inspection(found)
    if found.unreadable:
        sys.exit(FOUND_SOMETHING)


def _free_name(name: str) -> str:
    """Return the name, with a number where something in the working directory bears it."""
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(each for each in names if not Path(each).exists())


@main.command()
@click.option("--json", "as_json", is_flag=True, help="print the registry as JSON")
def reasons(as_json: bool) -> None:
    """Print every reason why a row is rejected, and every warning."""
    if as_json:
        rows = [
            {"reason": reason.code, "when": reason.text, "stage": reason.stage, "do": reason.advice}
            for reason in Reason
        ]
        warnings = [{"warning": warning.code, "when": warning.text} for warning in Warn]
        click.echo(json.dumps({"reasons": rows, "warnings": warnings}, indent=2))
        return
    from vtaudit.terminal import print_reasons

    print_reasons()


@main.command()
@click.option("--json", "as_json", is_flag=True, help="print the presets as JSON")
def presets(as_json: bool) -> None:
    """Print every preset: the columns it maps, the settings it implies, what it assumes."""
    from vtaudit.presets import list_presets, load_preset

    found = [load_preset(name) for name in list_presets()]
    if as_json:
        click.echo(json.dumps([asdict(each) for each in found], indent=2))
        return
    from vtaudit.terminal import print_presets

    print_presets(found)


LOGS_OPTION = click.option(
    "--logs",
    multiple=True,
    metavar="DIR",
    type=click.Path(),
    help="where the logs are now, each LOGS of the run in turn",
)
SCORES_OPTION = click.option(
    "--scores", metavar="DIR", type=click.Path(), help="where the scores are now"
)
JSON_OPTION = click.option("--json", "as_json", is_flag=True, help="print everything as JSON")


@main.command()
@RUN_ARGUMENT
@click.option("--row", nargs=2, type=(str, int), metavar="TRAJECTORY STEP", help="by its key")
@click.option("--at", metavar="FILE:ROW", help="by its place; rows count from 0")
@LOGS_OPTION
@SCORES_OPTION
@JSON_OPTION
def explain(
    run: Path,
    row: tuple[str, int] | None,
    at: str | None,
    logs: tuple[str, ...],
    scores: str | None,
    as_json: bool,
) -> None:
    """Explain one row of RUN's logs: copies, every rule, segment, bootstrap, every term."""
    from vtaudit.explanation import explain as explain_row

    place = None if at is None else _parse_place(at)
    found = explain_row(run, row=row, at=place, logs=logs, scores=scores)
    if as_json:
        _echo_json(found)
        return
    from vtaudit.explanation.report import print_explanation

    print_explanation(found)


def _parse_place(text: str) -> tuple[str, int]:
    file, _, row = text.rpartition(":")
    if not file or not row.isdecimal():
        raise SettingsError(f"--at {text}: expected FILE:ROW, as part-0.parquet:17")
    return file, int(row)


def _echo_json(found: object) -> None:
    from vtaudit.plain import to_plain

    click.echo(json.dumps(to_plain(found), indent=2, allow_nan=False, default=str))


@main.command()
@RUN_ARGUMENT
@LOGS_OPTION
@SCORES_OPTION
@click.option("--sample", type=click.IntRange(min=1), metavar="N", help="recompute N segments only")
@click.option("--seed", type=click.IntRange(min=0), default=0, help="of the sample  [default: 0]")
@JSON_OPTION
def verify(
    run: Path,
    logs: tuple[str, ...],
    scores: str | None,
    sample: int | None,
    seed: int,
    as_json: bool,
) -> None:
    """Hold RUN against its fingerprints, its laws, and its logs, recomputed in float64.

    Exit codes: 0 what was compared holds; 3 files of the run are damaged, missing or strange, or
    the logs are not the run's; 70 a law is broken or rows differ.
    """
    from vtaudit.verification import verify as verify_run

    found = verify_run(run, logs, scores=scores, sample=sample, seed=seed)
    if as_json:
        _echo_json(found)
    else:
        from vtaudit.verification.report import print_verification

        print_verification(run, found)
    if found.damaged or found.broken:
        told = f"{len(found.damaged)} damaged, {len(found.broken)} broken"
        click.echo(f"vtaudit: {run} does not hold: {told}", err=True)
        sys.exit(InputError.exit_code if found.damaged else LawError.exit_code)
