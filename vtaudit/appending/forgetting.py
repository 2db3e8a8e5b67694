"""--forget-after: from its text to the lines that go, and to what the store says of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from vtaudit.appending.lines import Forget
from vtaudit.errors import SettingsError
from vtaudit.ranges import AGE

SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def read_forget(
    text: str | None, batches: Sequence[Mapping[str, Any]], newest_version: int | None
) -> Forget | None:
    """Return which lines to drop; None where nothing is.

    Ages are those of batches, from when they were taken. A version is held against the newest that
    the store has accepted so far.

    Raises:
        SettingsError: the setting is none of its kinds.
    """
    if text is None or not batches:
        return None
    found = AGE.fullmatch(text)
    if found is None:
        raise SettingsError(f"forget_after: found {text!r}, expected as 30d or policy_version:N")
    if found["versions"] is not None:
        is_known = newest_version is not None
        return Forget(version=(newest_version or 0) - int(found["versions"])) if is_known else None
    age = timedelta(seconds=int(found["count"]) * SECONDS[found["unit"]])
    oldest = now() - age
    young = [
        entry["batch"] for entry in batches if datetime.fromisoformat(entry["taken_at"]) >= oldest
    ]
    return Forget(batch=min(young, default=batches[-1]["batch"] + 1))


def now() -> datetime:
    """Return the time, to the second."""
    return datetime.now(UTC).replace(microsecond=0)


def describe_forgotten(
    forget: Forget | None, keys: int, batches: Sequence[Mapping[str, Any]]
) -> str | None:
    """Return from when duplicates can no longer be seen; None where nothing was forgotten."""
    if forget is None or not keys:
        return None
    if forget.version is not None:
        since = f"of policy_version below {forget.version}"
    else:
        last = batches[forget.batch - 2]
        since = f"of batches up to {last['batch']}, taken until {last['taken_at']},"
    return f"{keys} keys forgotten: later copies of rows {since} are no longer seen as duplicates"
