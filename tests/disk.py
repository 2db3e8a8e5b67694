"""A disk that fails once, at a chosen operation."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

OPERATIONS: list[tuple[Any, str]] = [
    (os, "fsync"),
    (Path, "rename"),
    (Path, "write_text"),
    (Path, "mkdir"),
    (pq, "write_table"),
    (pyarrow.ipc, "new_file"),
]


class FailingOnce:
    """Makes the k-th of some operations of the system fail as a full disk does."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        fails: int,
        operations: Sequence[tuple[Any, str]] = OPERATIONS,
    ) -> None:
        self.fails = fails
        self.done = 0
        for owner, name in operations:
            monkeypatch.setattr(owner, name, self.wrap(getattr(owner, name)))

    def wrap(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        def fail_or_do(*arguments: Any, **options: Any) -> Any:
            self.done += 1
            if self.done == self.fails:
                raise OSError(errno.ENOSPC, "No space left on device")
            return operation(*arguments, **options)

        return fail_or_do
