"""Logs in a store that fsspec reaches: list them, open and watch single objects.

Credentials are what fsspec's implementations find by themselves: environment, profiles, roles. None
may stand in a URL, and what a store raises is told without those that it may name.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any
from urllib.parse import unquote

from vtaudit.errors import InputError, SettingsError

URL = re.compile(r"([A-Za-z][A-Za-z0-9+.:-]*)://(.*)", re.DOTALL)
CHAIN = re.compile(r"::[A-Za-z0-9+.-]+://|^[^/]*::")
# a URL within a text: what stands before its host, what may be shown, and its query
SECRETS = re.compile(r"(?<=://)(?:[^\s'\"]*@)?([^\s'\"?]*)(?:\?[^\s'\"]*)?")
EXTRA = "vtaudit[remote]"
EXTRA_SCHEMES = ("s3", "s3a", "gs", "gcs")
LOCAL_SCHEMES = ("file", "local")
# where the implementations say when an object was written, and which content it has
TIMES = ("LastModified", "mtime", "last_modified", "modified", "updated", "created")
VERSIONS = ("ETag", "etag", "generation", "md5Hash", "content_md5", "Last-Modified")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class RemotePath:
    """A log, or a file of one, in a store.

    Attributes:
        url: where it is; no credentials stand in it.
        key: its name within the store; by default what the URL says.
    """

    url: str
    key: str = ""

    def __str__(self) -> str:
        return self.url

    @property
    def name(self) -> str:
        """The last component of the URL."""
        return self.url.rpartition("/")[2]


def is_url(text: str) -> bool:
    """Return whether the text names a place in a store."""
    return URL.match(text) is not None


def parse_url(text: str) -> RemotePath:
    """Return the place that a URL names.

    Raises:
        SettingsError: the URL holds credentials or may hold some; the message holds none of it.
    """
    found = URL.match(text)
    assert found is not None
    scheme, rest = found[1].lower(), found[2]
    host = re.split(r"[/?#]", unquote(rest))[0]
    if (":" in host and "@" in unquote(rest)) or "?" in rest:
        raise SettingsError(
            f"{scheme}://...: holds a password or a query, where credentials may stand; name the "
            "place alone and leave credentials to the environment, a profile or a role"
        )
    if CHAIN.search(text):
        raise SettingsError(
            f"{scheme}://...: is a chain of URLs; expected one, as s3://bucket/logs"
        )
    if scheme in LOCAL_SCHEMES:
        raise SettingsError(f"{text}: is a local file; give its path, without {scheme}://")
    return RemotePath(f"{scheme}://{rest.rstrip('/')}")


def list_objects(log: RemotePath) -> list[tuple[RemotePath, str]]:
    """Return every object at or below `log` with its name relative to it.

    Raises:
        InputError: nothing is there, or the store cannot be asked.
    """
    store, base = _reach(log)
    try:
        with _asking():
            store.invalidate_cache()
            if store.info(base)["type"] != "directory":
                return [(log, log.name)]
            found = store.find(base, detail=True)
            store.invalidate_cache()
    except FileNotFoundError:
        raise InputError(
            f"{log}: no such object or prefix; expected Parquet files or a prefix of them"
        ) from None
    except OSError as error:
        raise InputError(f"{log}: cannot be listed: {error}") from None
    prefix = base.rstrip("/") + "/" if base else ""
    return [
        (RemotePath(store.unstrip_protocol(key), key), key.removeprefix(prefix))
        for key, info in found.items()
        if info["type"] != "directory" and not key.endswith("/")
    ]


def exists(place: RemotePath) -> bool:
    """Return whether something is there.

    Raises:
        InputError: the store cannot be asked.
    """
    store, key = _reach(place)
    try:
        with _asking():
            store.invalidate_cache()
            store.info(key)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise InputError(f"{place}: cannot be reached: {error}") from None
    return True


def read_status(place: RemotePath) -> tuple[int | None, int | None, str | None]:
    """Return size, time of writing in ns, and the store's mark of the content, as far as known.

    Raises:
        OSError: it is not there, or the store cannot be asked.
    """
    store, key = _reach(place)
    with _asking():
        store.invalidate_cache(key)
        info = store.info(key)
    written = next((info[name] for name in TIMES if info.get(name)), None)
    version = next((str(info[name]) for name in VERSIONS if info.get(name)), None)
    return info.get("size"), _nanoseconds(written), version


def _nanoseconds(time: Any) -> int | None:
    if isinstance(time, datetime):
        aware = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
        return (aware - EPOCH) // timedelta(microseconds=1) * 1000
    return int(time * 1e9) if isinstance(time, int | float) else None


class RemoteFile(io.RawIOBase):
    """Reads an object by ranges, as asked; an OSError without credentials where that fails."""

    def __init__(self, place: RemotePath) -> None:
        super().__init__()
        store, key = _reach(place)
        with _asking():
            store.invalidate_cache(key)
            self._file = store.open(key, "rb", cache_type="none")

    def read(self, size: int = -1, /) -> bytes:
        """Return up to `size` bytes, all that is left by default."""
        with _asking():
            found: bytes = self._file.read(size)
        return found

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Go to a place; return it."""
        with _asking():
            return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        """Return the place."""
        return int(self._file.tell())

    def readable(self) -> bool:
        """Return that it can be read."""
        return True

    def seekable(self) -> bool:
        """Return whether ranges can be read."""
        return bool(self._file.seekable())

    def close(self) -> None:
        """Let the object go."""
        if not self.closed:
            self._file.close()
        super().close()


def _reach(place: RemotePath) -> tuple[Any, str]:
    """Return the store of a place, and its key there."""
    scheme, _, rest = place.url.partition("://")
    store = _connect(f"{scheme}://{rest.partition('/')[0]}", os.getpid())
    return store, place.key or str(store._strip_protocol(place.url))


@cache
def _connect(root: str, process: int) -> Any:
    """Return fsspec's filesystem; none is shared with a forked process."""
    scheme = root.partition(":")[0]
    try:
        from fsspec.core import url_to_fs
        from fsspec.registry import known_implementations, registry

        if scheme not in {*known_implementations, *registry}:
            raise SettingsError(f"{root}: no kind of store is named {scheme}://")
        with _asking():
            store, _ = url_to_fs(root)
    except ImportError as error:
        needed = f"pip install '{EXTRA}'" if scheme in EXTRA_SCHEMES else str(error)
        raise InputError(
            f"{root}: {scheme}:// needs packages that are not there: {needed}"
        ) from None
    except OSError as error:
        raise InputError(f"{root}: cannot be reached: {error}") from None
    return store


@contextmanager
def _asking() -> Iterator[None]:
    """Turn what a store raises into an OSError without credentials; ImportError stays.

    Each implementation has exceptions of its own, of no common base.
    """
    try:
        yield
    except (ImportError, MemoryError):
        raise
    except FileNotFoundError:
        raise FileNotFoundError("no such object") from None
    except Exception as error:
        text = " ".join(str(error).split()) or type(error).__name__
        raise OSError(SECRETS.sub(r"\1", text)) from None
