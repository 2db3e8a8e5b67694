"""`vtaudit process`: parse, one library call, print."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vtaudit.cli.group import FOUND_SOMETHING, drop_stdout, main
from vtaudit.cli.options import read_options, setting_options
from vtaudit.config import load_settings
from vtaudit.tuning import tune_process

if TYPE_CHECKING:
    from vtaudit.reports import RunResult


@main.command()
@click.argument("logs", nargs=-1, required=True, type=click.Path())
@click.option(
    "--out",
    required=True,
    metavar="RUN",
    type=click.Path(),
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
    logs: tuple[str, ...],
    out: str,
    config: Path | None,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Audit LOGS, recompute their V-trace targets, and write the run directory RUN.

    LOGS are directories or files of Parquet, here or in a store: s3://bucket/logs, gs://..., any
    URL that fsspec knows. The audit goes to stdout, everything else to stderr.
    Exit codes: 0 done; 1 done, but a limit was passed or a file is unreadable; 2 wrong usage or
    settings; 3 input, schema, backend or disk failed; 70 a bug in vtaudit.
    """
    settings = load_settings(config, read_options(options))
    tune_process(settings.threads)
    from vtaudit.pipeline import process as run

    with _progress(show=not quiet) as tell:
        result = run(logs, out, settings, progress=tell)
    try:
        if as_json:
            click.echo(json.dumps(_as_json(result), indent=2))
        elif not quiet:
            _print_result(result)
    except BrokenPipeError:
        drop_stdout()
    for finding in result.findings:
        click.echo(f"vtaudit: {finding}", err=True)
    if result.findings:
        sys.exit(FOUND_SOMETHING)


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
