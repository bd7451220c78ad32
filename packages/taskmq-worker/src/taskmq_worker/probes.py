"""Where probes find a report: a file that is written anew all the time, or a small HTTP server."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from taskmq.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable
    from http.server import ThreadingHTTPServer

_log = logging.getLogger("taskmq.worker")

WRITE_EVERY = 1.0
"""How often the file is written; a reader takes one that is much older for a dead worker's, seconds."""
LOOPBACK = "127.0.0.1"


class Report(Protocol):
    """What both kinds need of a report; all of it goes out as JSON."""

    @property
    def alive(self) -> bool:
        """Whether no restart is needed."""
        ...

    @property
    def ready(self) -> bool:
        """Whether jobs are taken now."""
        ...


class HealthFile:
    """Writes the report to a file, whole each time, until it is closed; then the file is gone."""

    def __init__(self, path: str | os.PathLike[str], report: Callable[[], Report]) -> None:
        self._path = Path(path).absolute()
        self._report = report
        self._closed = threading.Event()
        self._changed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="taskmq-health", daemon=True)
        if not self._path.parent.is_dir():
            raise ConfigError(
                f"health file {self._path}: its folder does not exist; make it, or name another"
            )

    def start(self) -> None:
        """Write it now, and from now on."""
        self._write()
        self._thread.start()

    def close(self) -> None:
        """Write no more, and remove it."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join(5)
        with contextlib.suppress(OSError):
            self._path.unlink()

    def _run(self) -> None:
        while not self._closed.wait(WRITE_EVERY):
            self._write()

    def _write(self) -> None:
        try:
            handle, name = tempfile.mkstemp(prefix=f".{self._path.name}.", dir=self._path.parent)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(msgspec.json.encode(self._report()))
                os.chmod(name, 0o644)
                os.replace(name, self._path)
            except BaseException:
                os.unlink(name)
                raise
        except OSError as error:
            # A full disk must not stop the worker; the probe sees a file that grows old.
            _log.warning("the health file %s can't be written: %s", self._path, error)


class HealthServer:
    """Answers `GET /live`, `/ready` and `/` (both) with 200 or 503 and the report as JSON.

    Args:
        port: Where it listens; 0 takes a free one, see `address`.
        host: Loopback unless somebody else is to ask.
    """

    def __init__(self, port: int, report: Callable[[], Report], *, host: str = LOOPBACK) -> None:
        try:
            self._server = _server(host, port, report)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"health port {host}:{port} can't be opened: {error}; choose another"
            ) from error
        self.address: tuple[str, int] = (host, self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.5,), name="taskmq-health", daemon=True
        )

    def start(self) -> None:
        """Answer from now on."""
        self._thread.start()

    def close(self) -> None:
        """Answer no more."""
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()


def _server(host: str, port: int, report: Callable[[], Report]) -> ThreadingHTTPServer:
    # Imported here: most workers serve no probes.
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    class Handler(BaseHTTPRequestHandler):
        timeout = 5.0

        def do_GET(self) -> None:
            judged = report()
            verdicts = {
                "/": judged.alive and judged.ready,
                "/live": judged.alive,
                "/ready": judged.ready,
            }
            verdict = verdicts.get(self.path.partition("?")[0])
            if verdict is None:
                self.send_error(404, "ask for /, /live or /ready")
                return
            body = msgspec.json.encode(judged)
            self.send_response(200 if verdict else 503)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """A probe a second is no news."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False

        def handle_error(self, request: Any, client_address: Any) -> None:
            """A probe that hangs up is no news either."""

    return Server((host, port), Handler)


class Probes:
    """The file and the server that a worker was asked for; often neither.

    Raises:
        ConfigError: The file's folder is missing, or the port can't be opened.
    """

    def __init__(
        self,
        report: Callable[[], Report],
        *,
        file: str | os.PathLike[str] | None,
        port: int | None,
        host: str,
    ) -> None:
        self.places: list[HealthFile | HealthServer] = []
        if file is not None:
            self.places.append(HealthFile(file, report))
        if port is not None:
            self.places.append(HealthServer(port, report, host=host))

    def start(self) -> None:
        """Answer from now on."""
        for place in self.places:
            place.start()

    def close(self) -> None:
        """Answer no more."""
        for place in self.places:
            place.close()
