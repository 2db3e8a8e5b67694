"""An S3 server on this machine: moto's, behind a door that counts, refuses and interferes."""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from moto.server import DomainDispatcherApplication, create_backend_app
from s3fs import S3FileSystem
from werkzeug.serving import WSGIRequestHandler, make_server

KEY_ID = "AKIATESTONLY00000000"
SECRET = "oPenSesame+0123456789/AbCdEfGhIjKlMnOpQr"
DENIED = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"


class QuietHandler(WSGIRequestHandler):
    """Answers without a line on stderr for each request."""

    def log_request(self, *arguments: Any) -> None:
        """Say nothing."""


class Server:
    """moto's S3 server.

    Attributes:
        url: where it listens.
        denied: paths that are answered with 403.
        reads: path -> how often its content was asked for.
        sent: path -> bytes of content that were sent.
        before_read: path and the number of the read, from 1 -> what to do before it is answered.
    """

    def __init__(self) -> None:
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._server = make_server(
            "127.0.0.1", 0, self._answer, threaded=True, request_handler=QuietHandler
        )
        self.url = f"http://127.0.0.1:{self._server.port}"
        self.denied: set[str] = set()
        self.reads: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self.before_read: dict[tuple[str, int], Callable[[], object]] = {}
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def _answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        path = environ["PATH_INFO"].encode("latin-1").decode()
        if path in self.denied:
            start("403 Forbidden", [("Content-Type", "application/xml")])
            return [] if environ["REQUEST_METHOD"] == "HEAD" else [DENIED]
        is_read = environ["REQUEST_METHOD"] == "GET" and path.count("/") > 1
        if is_read:
            self.reads[path] += 1
            self.before_read.pop((path, self.reads[path]), lambda: None)()
        body = list(self._moto(environ, start))
        if is_read:
            self.sent[path] += sum(map(len, body))
        return body

    def close(self) -> None:
        """Stop to listen."""
        self._server.shutdown()
        self._server.server_close()


class Bucket:
    """A new bucket of a server, and the environment that leads to it."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.name = f"bucket-{uuid.uuid4().hex[:12]}"
        self.url = f"s3://{self.name}"
        self.env = {
            "AWS_ENDPOINT_URL": server.url,
            "AWS_ACCESS_KEY_ID": KEY_ID,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        self._client = S3FileSystem(
            key=KEY_ID, secret=SECRET, endpoint_url=server.url, use_listings_cache=False
        )
        self._client.mkdir(self.name)

    def put(self, name: str, content: bytes) -> None:
        """Write an object."""
        self._client.pipe_file(f"{self.name}/{name}", content)

    def upload(self, folder: Path, prefix: str) -> str:
        """Write every file below a folder; return the URL of the prefix."""
        for path in folder.rglob("*"):
            if path.is_file():
                self.put(f"{prefix}/{path.relative_to(folder).as_posix()}", path.read_bytes())
        return f"{self.url}/{prefix}"

    def remove(self, name: str) -> None:
        """Remove an object or everything below a prefix."""
        self._client.rm(f"{self.name}/{name}", recursive=True)

    def path(self, name: str) -> str:
        """Return the path of an object within the server."""
        return f"/{self.name}/{name}"


@contextmanager
def serve() -> Iterator[Server]:
    """Give a server that listens."""
    server = Server()
    try:
        yield server
    finally:
        server.close()
