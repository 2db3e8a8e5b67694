"""The command group: one place maps errors to exit codes."""

from __future__ import annotations

import io
import os
import sys
import traceback
from typing import Any

import click

from vtaudit.errors import InputError, LawError, VtauditError

FOUND_SOMETHING = 1
INTERRUPTED = 130


class Vtaudit(click.Group):
    """The command group; turns vtaudit's own errors into one line and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        for name in ("stdout", "stderr"):
            if getattr(sys, name) is None:  # closed by whoever started us
                setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.Abort, click.exceptions.Exit):
            raise
        except KeyboardInterrupt:
            click.echo("vtaudit: interrupted", err=True)
            ctx.exit(INTERRUPTED)
        except BrokenPipeError:
            drop_stdout()
        except Exception as error:
            ctx.exit(_report(error))


def _report(error: Exception) -> int:
    """Print an error in one line, or all of it where it is not one that vtaudit expects."""
    if isinstance(error, VtauditError):
        click.echo(f"vtaudit: {error}", err=True)
        for note in getattr(error, "__notes__", ()):
            click.echo(f"vtaudit: {note}", err=True)
        return error.exit_code
    if isinstance(error, OSError):
        click.echo(f"vtaudit: {error}", err=True)
        return InputError.exit_code
    trace = "".join(traceback.format_exception(error))
    click.echo(f"{trace}vtaudit: this is a bug in vtaudit, not a finding about the data", err=True)
    return LawError.exit_code


def drop_stdout() -> None:
    """Go on without a reader: what Python flushes at its end goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@click.group(cls=Vtaudit, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="vtaudit")
def main() -> None:
    """Audit logged trajectories and recompute V-trace targets before off-policy training."""
