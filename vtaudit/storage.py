"""Where logs stand: on this machine, or in a store that fsspec reaches."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from vtaudit import remote
from vtaudit.errors import InputError, SettingsError, UnreadableError
from vtaudit.remote import RemotePath

Place = Path | RemotePath


@dataclass(frozen=True, slots=True)
class Status:
    """What tells whether a file has changed; None where its store does not say."""

    size: int | None
    mtime_ns: int | None
    version: str | None = None


def parse_place(place: str | Place) -> Place:
    """Return where a path or a URL points.

    Raises:
        SettingsError: a URL that holds credentials, or is none of one place in a store.
    """
    if isinstance(place, str) and remote.is_url(place):
        return remote.parse_url(place)
    return Path(place) if isinstance(place, str) else place


def parse_places(places: Sequence[str | Place] | str | Place) -> list[Place]:
    """Return where one or several paths or URLs point.

    Raises:
        SettingsError: as `parse_place`.
    """
    several = [places] if isinstance(places, str | Path | RemotePath) else places
    return [parse_place(place) for place in several]


def parse_run(run: str | Path) -> Path:
    """Return the path of a run, which must be on this machine.

    Raises:
        SettingsError: it is a URL.
    """
    place = parse_place(run)
    if isinstance(place, RemotePath):
        raise SettingsError(f"{place}: a run must be a local directory; copy it where you want it")
    return place


def show_path(path: Path) -> str:
    """Return a path as text, bytes that are no UTF-8 escaped."""
    return os.fsencode(path.as_posix()).decode("utf-8", "backslashreplace")


def show_place(place: Place) -> str:
    """Return an absolute path, or a URL, as text."""
    return place.url if isinstance(place, RemotePath) else show_path(place.absolute())


def tell_lost(places: Sequence[Place]) -> str | None:
    """Return which of the places is not there or cannot be reached, None where all are there."""
    for place in places:
        try:
            is_there = remote.exists(place) if isinstance(place, RemotePath) else place.exists()
        except InputError as error:
            return str(error)
        if not is_there:
            return f"{place} is not there"
    return None


def last_name(place: Place) -> str:
    """Return the last component of a path or URL."""
    return place.name if isinstance(place, RemotePath) else place.resolve().name


def is_hidden(name: str) -> bool:
    """Return whether a name relative to its log is left out by a leading "." or "_"."""
    return any(part.startswith((".", "_")) for part in name.split("/"))


def list_parquet(log: Place) -> list[tuple[Place, str]]:
    """Return every *.parquet at or below `log` with its name relative to it, in any order.

    Raises:
        InputError: nothing is there, it cannot be listed, or no Parquet file stands below it.
    """
    if isinstance(log, RemotePath):
        objects = remote.list_objects(log)
        if [place for place, _ in objects] == [log]:
            return [*objects]
        found: list[tuple[Place, str]] = [
            (place, name)
            for place, name in objects
            if name.endswith(".parquet") and not is_hidden(name)
        ]
    elif not log.exists():
        raise InputError(
            f"{log}: no such file or directory; expected Parquet files or a directory of them"
        )
    elif log.is_dir():
        found = [(path, show_path(path.relative_to(log))) for path in _walk(log)]
    else:
        return [(log, show_path(Path(log.name)))]
    if not found:
        raise InputError(f"{log}: no *.parquet file in it; expected a directory of Parquet")
    return found


def _walk(directory: Path) -> Iterator[Path]:
    try:
        entries = list(os.scandir(directory))
    except OSError as error:
        raise InputError(f"{directory}: cannot be listed: {error.strerror}") from None
    for entry in entries:
        if entry.name.startswith((".", "_")):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path))
        elif entry.name.endswith(".parquet") and not Path(entry.path).is_dir():
            yield Path(entry.path)


def list_names(log: Place) -> Iterator[str]:
    """Yield the name of every file below a log, of whatever kind, relative to it."""
    if isinstance(log, RemotePath):
        yield from (name for place, name in remote.list_objects(log) if place != log)
        return
    for directory, _, names in os.walk(log):
        below = Path(directory).relative_to(log)
        yield from ((below / name).as_posix() for name in names)


def read_status(place: Place) -> Status:
    """Return size and times of a file.

    Raises:
        UnreadableError: it is not a regular file.
        OSError: it is not there, or cannot be reached.
    """
    if isinstance(place, RemotePath):
        return Status(*remote.read_status(place))
    found = place.stat()
    if not stat.S_ISREG(found.st_mode):
        raise UnreadableError("not a regular file")
    return Status(found.st_size, found.st_mtime_ns)


def open_binary(place: Place) -> IO[bytes]:
    """Open a file to be read as bytes; of a remote one, each read fetches just what it returns.

    Raises:
        OSError: it is not there, or cannot be reached.
    """
    if isinstance(place, RemotePath):
        return remote.RemoteFile(place)  # type: ignore[return-value]
    return place.open("rb")
