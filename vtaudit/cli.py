"""The command line: parse, one library call, print; one place maps errors to exit codes."""

from __future__ import annotations

import itertools
import json
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import Field, asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vtaudit.config import Settings, load_settings, parse_value
from vtaudit.errors import InputError, LawError, SettingsError, VtauditError
from vtaudit.ranges import KINDS
from vtaudit.reasons import Reason, Warn

if TYPE_CHECKING:
    from vtaudit.pipeline import RunResult

FOUND_SOMETHING = 1
INTERRUPTED = 130
NEGATED = {"targets": "--targets/--no-targets"}


class Vtaudit(click.Group):
    """The command group; turns vtaudit's own errors into one line and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.Abort, click.exceptions.Exit):
            raise
        except KeyboardInterrupt:
            click.echo("vtaudit: interrupted", err=True)
            ctx.exit(INTERRUPTED)
        except BrokenPipeError:
            _drop_stdout()
        except Exception as error:
            ctx.exit(_report(error))


def _report(error: Exception) -> int:
    """Print an error in one line, or all of it where it is not one that vtaudit expects."""
    if isinstance(error, VtauditError):
        click.echo(f"vtaudit: {error}", err=True)
        return error.exit_code
    if isinstance(error, OSError):
        click.echo(f"vtaudit: {error}", err=True)
        return InputError.exit_code
    trace = "".join(traceback.format_exception(error))
    click.echo(f"{trace}vtaudit: this is a bug in vtaudit, not a finding about the data", err=True)
    return LawError.exit_code


def _drop_stdout() -> None:
    """Go on without a reader: what Python flushes at its end goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@click.group(cls=Vtaudit, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="vtaudit")
def main() -> None:
    """Audit logged trajectories and recompute V-trace targets before off-policy training."""


def setting_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add one option for each setting, with the setting's own type, choices and help."""
    for item in reversed(fields(Settings)):
        command = _option(item)(command)
    return command


def _option(item: Field[Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    metadata, kind = item.metadata, item.metadata["kind"]
    name = "--" + (metadata["option"] or item.name).rstrip("_").replace("_", "-")
    metavar = metadata["metavar"] or KINDS[kind].metavar
    text, shown = metadata["help"], _shown_default(item)
    if shown:
        text += f"  [default: {shown}]"
    if kind in ("flag", "switch"):
        declared = NEGATED.get(item.name, name)
        return click.option(declared, item.name, is_flag=True, default=None, help=text)
    if kind in ("map", "expect"):
        return click.option(name, item.name, multiple=True, metavar=metavar, help=text)
    types: dict[str, Any] = {"int": click.INT, "count": click.INT, "path": click.Path()}
    type_ = click.Choice(metadata["choices"]) if kind == "choice" else types.get(kind, click.STRING)
    return click.option(name, item.name, type=type_, default=None, metavar=metavar, help=text)


def _shown_default(item: Field[Any]) -> str:
    is_plain = isinstance(item.default, str | float) and not isinstance(item.default, bool)
    return str(item.default) if is_plain else ""


@main.command()
@click.argument("logs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--out",
    required=True,
    metavar="RUN",
    type=click.Path(path_type=Path),
    help="where the run goes; it appears whole, when it is done",
)
@click.option(
    "--config",
    metavar="FILE.toml",
    type=click.Path(path_type=Path),
    help="settings; the command line wins",
)
@click.option("--json", "as_json", is_flag=True, help="print the result as JSON")
@click.option("--quiet", is_flag=True, help="print nothing but errors")
@setting_options
def process(
    logs: tuple[Path, ...],
    out: Path,
    config: Path | None,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Audit LOGS, recompute their V-trace targets, and write the run directory RUN.

    LOGS are directories or files of Parquet. The audit goes to stdout, everything else to stderr.
    Exit codes: 0 done; 1 done, but a limit was passed or a file is unreadable; 2 wrong usage or
    settings; 3 input, schema, backend or disk failed; 70 a bug in vtaudit.
    """
    settings = load_settings(config, _given(options))
    from vtaudit.pipeline import process as run

    with _progress(show=not quiet) as tell:
        result = run(logs, out, settings, progress=tell)
    try:
        if as_json:
            click.echo(json.dumps(_as_json(result), indent=2))
        elif not quiet:
            _print_result(result)
    except BrokenPipeError:
        _drop_stdout()
    for finding in result.findings:
        click.echo(f"vtaudit: {finding}", err=True)
    if result.findings:
        sys.exit(FOUND_SOMETHING)


def _given(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that stood on the command line, in the form that settings take."""
    kinds = {item.name: item.metadata["kind"] for item in fields(Settings)}
    given: dict[str, Any] = {}
    for name, value in options.items():
        if value is None or value == ():
            continue
        if kinds[name] in ("map", "expect"):
            value = dict(_pair(name, text) for text in value)
        given[name] = parse_value(name, value)
    return given


def _pair(name: str, text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        option = {"columns": "map", "tags": "tag"}.get(name, name)
        raise SettingsError(f"--{option} {text}: found no NAME=VALUE")
    return key.strip(), value.strip()


def _progress(*, show: bool) -> AbstractContextManager[Callable[[str, int, int], None] | None]:
    from vtaudit.terminal import show_progress

    return show_progress(enabled=show and sys.stderr.isatty())


def _as_json(result: RunResult) -> dict[str, Any]:
    return {
        "run": str(result.path),
        "run_id": result.run_id,
        "summary": result.summary,
        "audit": result.audit,
        "findings": list(result.findings),
        "notes": list(result.notes),
    }


def _print_result(result: RunResult) -> None:
    from vtaudit.terminal import print_audit, print_next_steps

    print_audit(result)
    print_next_steps(result)


@main.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("sql", required=False)
@click.option("--json", "form", flag_value="json", help="print a JSON array of objects")
@click.option("--csv", "form", flag_value="csv", help="print CSV with a header")
def query(run: Path, sql: str | None, form: str | None) -> None:
    """Answer SQL over the tables of RUN; without SQL, print the tables and their columns.

    Tables: targets, rejects, summary, audit, audit_by, files, runs.
    """
    from vtaudit.query import ask, describe_tables, open_run
    from vtaudit.terminal import write_answer

    with open_run(run) as connection:
        if sql is None:
            columns = ["table", "column", "type", "meaning"]
            write_answer(columns, [describe_tables(connection)], form)
        else:
            answer = ask(connection, sql)
            write_answer(answer.columns, answer.batches, form)


@main.command()
@click.argument("logs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--preset", metavar="TEXT", help="column names of a known ecosystem, not guessed")
@click.option(
    "--map", "maps", multiple=True, metavar="COLUMN=EXPRESSION", help="a column that you know"
)
@click.option("--json", "as_json", is_flag=True, help="print everything as JSON")
def inspect(
    logs: tuple[Path, ...], preset: str | None, maps: tuple[str, ...], as_json: bool
) -> None:
    """Look at LOGS before a run: schema, a proposed mapping, doubts, a command to start from.

    Writes nothing and applies nothing. Exits 1 where a file is unreadable.
    """
    from vtaudit.inspection import inspect_log

    known = dict(_pair("columns", text) for text in maps)
    found = inspect_log(logs, preset=preset, maps=known, out=_free_name("run"))
    if as_json:
        click.echo(json.dumps(asdict(found), indent=2))
    else:
        from vtaudit.inspection_report import print_inspection

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
    type=click.Path(path_type=Path),
    help="where the logs are now, each LOGS of the run in turn",
)
SCORES_OPTION = click.option(
    "--scores", metavar="DIR", type=click.Path(path_type=Path), help="where the scores are now"
)
JSON_OPTION = click.option("--json", "as_json", is_flag=True, help="print everything as JSON")


@main.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--row", nargs=2, type=(str, int), metavar="TRAJECTORY STEP", help="by its key")
@click.option("--at", metavar="FILE:ROW", help="by its place; rows count from 0")
@LOGS_OPTION
@SCORES_OPTION
@JSON_OPTION
def explain(
    run: Path,
    row: tuple[str, int] | None,
    at: str | None,
    logs: tuple[Path, ...],
    scores: Path | None,
    as_json: bool,
) -> None:
    """Explain one row of RUN's logs: copies, every rule, segment, bootstrap, every term."""
    from vtaudit.explanation import explain as explain_row

    place = None if at is None else _parse_place(at)
    found = explain_row(run, row=row, at=place, logs=logs, scores=scores)
    if as_json:
        _echo_json(found)
        return
    from vtaudit.explanation_report import print_explanation

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
@click.argument("run", type=click.Path(path_type=Path))
@LOGS_OPTION
@SCORES_OPTION
@click.option("--sample", type=click.IntRange(min=1), metavar="N", help="recompute N segments only")
@click.option("--seed", type=click.IntRange(min=0), default=0, help="of the sample  [default: 0]")
@JSON_OPTION
def verify(
    run: Path,
    logs: tuple[Path, ...],
    scores: Path | None,
    sample: int | None,
    seed: int,
    as_json: bool,
) -> None:
    """Hold RUN against its fingerprints, its laws, and its logs, recomputed in float64.

    Exit codes: 0 what was compared holds; 3 files of the run are damaged, missing or strange, or
    the logs are not the run's; 70 a law is broken or rows differ.
    """
    from vtaudit.verify import verify as verify_run

    found = verify_run(run, logs, scores=scores, sample=sample, seed=seed)
    if as_json:
        _echo_json(found)
    else:
        from vtaudit.verification_report import print_verification

        print_verification(run, found)
    if found.damaged or found.broken:
        told = f"{len(found.damaged)} damaged, {len(found.broken)} broken"
        click.echo(f"vtaudit: {run} does not hold: {told}", err=True)
        sys.exit(InputError.exit_code if found.damaged else LawError.exit_code)
