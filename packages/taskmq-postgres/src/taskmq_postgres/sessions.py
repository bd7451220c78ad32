"""What one process holds open: a pool, and a connection for housekeeping."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

import psycopg
from psycopg_pool import PoolTimeout

from taskmq_postgres.connection import Connection, Door, connect, open_pool
from taskmq_postgres.faults import Fault, judge

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from psycopg_pool import ConnectionPool

    from taskmq_postgres.settings import Settings

_SPARE = 2
"""How many connections are kept at hand beside the pool."""
_GROWTH = 0.25
"""How long to wait for the pool before asking it to grow once more, seconds."""


class Session:
    """The connections of one process.

    Args:
        settings: Where they lead.
        check: Run on the first connection of every pool: is everything there that we need?
    """

    def __init__(self, settings: Settings, check: Callable[[Connection], None]) -> None:
        self.prepared = True
        self._settings = settings
        self._check = check
        self._closed = False
        self._opening = threading.Lock()
        self._pool: ConnectionPool[Connection] | None = None
        self._door = Door()
        self._spare: list[Connection] = []
        self._takers = 0
        self._counting = threading.Lock()
        self._keeping = threading.Lock()
        self._kept: Connection | None = None

    def take(self, deadline: float) -> Connection:
        """One of the pool's connections, for statements until the deadline; `give` it back.

        Most calls find the connection that the last one has given back, and never meet the pool: its
        locks and its bookkeeping would cost as much as sending the statement.
        """
        connection = self._at_hand(deadline)
        if connection is not None:
            return connection
        with self._counting:
            self._takers += 1
        try:
            while True:
                connection = self._at_hand(deadline) or self._from_pool(deadline)
                if connection is not None:
                    return connection
        finally:
            with self._counting:
                self._takers -= 1

    def give(self, connection: Connection) -> None:
        """Take back what `take` gave, whatever has become of it."""
        pool = connection.home
        if pool is None:
            return
        if connection.closed or pool is not self._pool or len(self._spare) >= _SPARE:
            pool.putconn(connection)
            return
        self._spare.append(connection)
        # Looked at after the append: who did not find it there is seen here, and waits at the pool.
        if self._takers or pool is not self._pool:
            try:
                other = self._spare.pop()
            except IndexError:
                return
            if other.home is not None:
                other.home.putconn(other)

    def judge_loss(self, connection: Connection, error: psycopg.Error) -> None:
        """Drop the pool when this error of one of its connections means that the server is gone.

        Raises:
            psycopg.OperationalError: Something else was said, but the connection is closed.
        """
        if connection.home is not None and (
            connection.closed or judge(error) in (Fault.LOST, Fault.SLOW)
        ):
            # The others lead to the same server. Dropped first: then this one is just closed too.
            self._drop(connection.home)
        _tell_closed(connection, error)

    def ready(self, deadline: float) -> None:
        """Connect and check, unless that was done."""
        if self._pool is None:
            self._open(deadline)

    @contextlib.contextmanager
    def kept(self, deadline: float) -> Generator[Connection]:
        """The connection for housekeeping: never waits for one of the pool's to be free."""
        if not self._keeping.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise psycopg.OperationalError("the connection for housekeeping is busy")
        try:
            self._refuse_when_closed()
            if self._kept is None:
                self._kept = connect(self._settings, prepared=self.prepared, deadline=deadline)
            connection = self._kept
            connection.deadline = deadline
            try:
                yield connection
            except psycopg.Error as error:
                if connection.closed or judge(error) in (Fault.LOST, Fault.SLOW, Fault.UNPREPARED):
                    self._kept = None
                    connection.close()
                _tell_closed(connection, error)
                raise
        finally:
            self._keeping.release()

    def forget(self) -> None:
        """Connect and check anew at the next call."""
        pool = self._pool
        if pool is not None:
            self._drop(pool)

    def close(self) -> None:
        """Close all of them, and open none again."""
        self._closed = True
        self.forget()
        with self._keeping:
            kept, self._kept = self._kept, None
        if kept is not None:
            kept.close()

    def _open(self, deadline: float) -> ConnectionPool[Connection]:
        """One thread connects, and so finds out why that fails; the others wait for it."""
        if not self._opening.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise psycopg.OperationalError("no connection yet")
        try:
            self._refuse_when_closed()
            if self._pool is None:
                first = connect(self._settings, prepared=self.prepared, deadline=deadline)
                try:
                    self._check(first)
                except BaseException:
                    first.close()
                    raise
                self._door = Door(first)
                self._pool = open_pool(self._settings, prepared=self.prepared, door=self._door)
            return self._pool
        finally:
            self._opening.release()

    def _at_hand(self, deadline: float) -> Connection | None:
        try:
            connection = self._spare.pop()
        except IndexError:
            return None
        if connection.home is self._pool:
            connection.deadline = deadline
            return connection
        # Of a pool that was dropped in between.
        connection.close()
        return None

    def _from_pool(self, deadline: float) -> Connection | None:
        """A connection of the pool; None when it is time to look at hand again."""
        pool = self._pool or self._open(deadline)
        left = deadline - time.monotonic()
        try:
            connection = pool.getconn(timeout=min(_GROWTH, max(0.001, left)))
        except PoolTimeout:
            if left <= _GROWTH:
                raise psycopg.OperationalError(self._why_none()) from self._door.error
            return None
        connection.home = pool
        connection.deadline = deadline
        return connection

    def _why_none(self) -> str:
        busy = f"all {self._settings.connections} connections are busy (?connections= allows more)"
        return busy if self._door.error is None else f"no free connection; {self._door.error}"

    def _drop(self, pool: ConnectionPool[Connection]) -> None:
        idle: list[Connection] = []
        with self._opening:
            if self._pool is pool:
                self._pool = None
                # Neither what is at hand nor what nobody has taken through the door is known to it.
                for waiting in (self._spare, self._door.first):
                    with contextlib.suppress(IndexError):
                        while True:
                            idle.append(waiting.pop())
        pool.close(timeout=0.2)
        for connection in idle:
            connection.close()

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise psycopg.OperationalError("closed meanwhile")


def _tell_closed(connection: Connection, error: psycopg.Error) -> None:
    """Whatever it was that closed the connection: it is lost."""
    if connection.closed and judge(error) is Fault.NEVER:
        raise psycopg.OperationalError(str(error)) from error
