"""The one connection that listens: it names who is called, and knows whether anything can be heard."""

from __future__ import annotations

import os
import select
import threading
import time
import uuid
from typing import TYPE_CHECKING, Final

import psycopg

from taskmq.errors import TaskmqError
from taskmq_postgres.connection import connect_listening
from taskmq_postgres.names import quote

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskmq_postgres.connection import Connection
    from taskmq_postgres.database import Database

TEST_EVERY: Final = 10.0
"""How often the listener makes sure that it still hears, seconds."""
TEST_TIMEOUT: Final = 2.0
"""How long a notification of its own may take, seconds."""
_RETRY = (0.1, 5.0)
_TEST = "-"
"""The payload of a self-test; no waiter is named so."""


class Listener:
    """Listens on a channel of its own, on a thread that is started by the first who waits.

    It reconnects, and sends itself a notification over the ordinary connections: through a pooler, after
    a failover or behind a dead network nothing would come, and nobody would say so.

    Args:
        database: Where notifications come from.
        call: Told the name in each notification; runs on the listener's thread.
    """

    def __init__(self, database: Database, call: Callable[[str], None]) -> None:
        self.channel = f"taskmq_{uuid.uuid4().hex}"
        self._database = database
        self._call = call
        self._is_hearing = threading.Event()
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._wake_out, self._wake_in = os.pipe()
        self.error = ""

    @property
    def hears(self) -> bool:
        """Whether notifications arrive, as far as is known now."""
        return self._is_hearing.is_set()

    def start(self, patience: float = 0.0) -> bool:
        """Begin to listen, if that is possible; whether notifications arrive already."""
        if self._database.settings.listen is None or self._closed.is_set():
            return False
        if self._thread is None:
            self._begin()
        if patience and not self.error:
            return self._is_hearing.wait(patience)
        return self._is_hearing.is_set()

    def _begin(self) -> None:
        with self._lock:
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(
                    target=self._run, name="taskmq-postgres-listener", daemon=True
                )
                self._thread.start()

    def close(self) -> None:
        """End the thread and its connection."""
        with self._lock:
            if self._closed.is_set():
                return
            self._closed.set()
            thread = self._thread
        os.write(self._wake_in, b"x")
        if thread is not None and thread is not threading.current_thread():
            thread.join(2.0)
        if thread is None or not thread.is_alive():
            os.close(self._wake_in)
            os.close(self._wake_out)

    def _run(self) -> None:
        pause = _RETRY[0]
        while not self._closed.is_set():
            began = time.monotonic()
            try:
                self._listen()
            except (psycopg.Error, TaskmqError, OSError) as error:
                self.error = str(error).partition("\n")[0]
            self._is_hearing.clear()
            if time.monotonic() - began > TEST_EVERY:
                pause = _RETRY[0]
            self._sleep(pause)
            pause = min(_RETRY[1], pause * 2)

    def _listen(self) -> None:
        settings = self._database.settings
        if settings.listen is None:
            return
        with connect_listening(settings.listen) as connection:
            connection.deadline = time.monotonic() + settings.timeout
            connection.execute(f"LISTEN {quote(self.channel)}")
            self._hear(connection)

    def _hear(self, connection: Connection) -> None:
        """Read notifications until the connection is lost, or a self-test is."""
        poll = select.poll()
        poll.register(connection.fileno(), select.POLLIN)
        poll.register(self._wake_out, select.POLLIN)
        test_at = 0.0
        lost_at: float | None = None
        while not self._closed.is_set():
            now = time.monotonic()
            if lost_at is not None and now >= lost_at:
                self.error = "notifications do not arrive: is there a pooler or another database?"
                return
            if lost_at is None and now >= test_at:
                self._database.query(
                    "SELECT pg_notify(%s, %s)", [self.channel, _TEST], housekeeping=True
                )
                test_at, lost_at = now + TEST_EVERY, now + TEST_TIMEOUT
            until = test_at if lost_at is None else lost_at
            poll.poll(max(0.0, until - now) * 1000)
            connection.pgconn.consume_input()
            while (notification := connection.pgconn.notifies()) is not None:
                if notification.extra == _TEST.encode():
                    lost_at = None
                    self.error = ""
                    self._is_hearing.set()
                else:
                    self._call(notification.extra.decode())

    def _sleep(self, seconds: float) -> None:
        # Not select(): it fails once a process has a thousand files open.
        poll = select.poll()
        poll.register(self._wake_out, select.POLLIN)
        poll.poll(seconds * 1000)
