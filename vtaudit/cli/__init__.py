"""The command line: parse, one library call, print."""

from __future__ import annotations

from vtaudit.cli import commands, process
from vtaudit.cli.group import main

__all__ = ["commands", "main", "process"]
