"""The console that every report prints on."""

from __future__ import annotations

from rich.console import Console

# columns where the output is no terminal
PLAIN_WIDTH = 100


class QuietConsole(Console):
    """A console that tells its caller, and does not end the program, when its reader has gone."""

    def on_broken_pipe(self) -> None:
        """Let the error through.

        Raises:
            BrokenPipeError: always.
        """
        raise BrokenPipeError


def make_console(*, stderr: bool = False, plain_width: int = PLAIN_WIDTH) -> Console:
    """Return a console for stdout or stderr, of a fixed width where it is no terminal."""
    console = QuietConsole(stderr=stderr, highlight=False, soft_wrap=True, emoji=False)
    if not console.is_terminal:
        console.width = plain_width
    return console
