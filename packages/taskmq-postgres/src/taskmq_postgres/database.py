"""The database as the roles see it: statements and transactions that outlive lost connections.

One `Database` serves all threads of a process. Nothing connects before the first call; a forked child
starts anew and never touches what its parent has opened. Every call ends within `timeout`.
"""

from __future__ import annotations

import math
import os
import random
import time
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg

from taskmq.errors import TransportError
from taskmq_postgres import faults
from taskmq_postgres.connection import LONG
from taskmq_postgres.faults import Fault, judge
from taskmq_postgres.migrate import Migrations
from taskmq_postgres.names import Names
from taskmq_postgres.sessions import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from typing_extensions import LiteralString

    from taskmq_postgres.connection import Connection, Row
    from taskmq_postgres.settings import Settings

T = TypeVar("T")

# A client that is frozen in the middle must not hold its locks for ever, also behind a pooler.
_BEGIN = (
    "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL idle_in_transaction_session_timeout = '15s'"
)
_LONGEST_REST = 0.5
_ABANDONED: list[Session] = []
"""What forked children took over: never used, closed or collected, since it is their parents'."""


class Database:
    """A PostgreSQL database with our tables in it.

    Args:
        settings: Where it is, and how it is used.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.names = Names(settings.schema, settings.prefix)
        self.timeout = settings.timeout
        self.migrations = Migrations(settings, self.names)
        self._explicit = False
        self._closed = False
        self._migrated_at = -math.inf
        self._sessions: dict[int, Session] = {}

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def query(
        self,
        sql: LiteralString,
        params: Sequence[Any] = (),
        *,
        repeat: bool = True,
        housekeeping: bool = False,
        long: bool = False,
    ) -> list[Row]:
        """Run one statement as a transaction of its own; its rows.

        Args:
            sql: The statement, names filled in, with `%s` for parameters.
            params: Their values.
            repeat: Whether it may run twice, as it does when the first reply was lost.
            housekeeping: Use the connection that never waits for one of the pool's.
            long: It has much to do: once a connection is had it may take a minute.

        Raises:
            TransportUnavailable: The server could not be reached, or did not answer, in time.
            TransportError: It refused for good; `Unstorable` when that is because of a value.
        """

        def work(connection: Connection) -> list[Row]:
            if self._explicit:
                return self._in_transaction(connection, lambda hand: _rows(hand, sql, params))
            return _rows(connection.hand, sql, params)

        return self._call(work, repeat=repeat, housekeeping=housekeeping, long=long)

    def transaction(
        self,
        work: Callable[[psycopg.Cursor[Row]], T],
        *,
        repeat: bool = True,
        long: bool = False,
    ) -> T:
        """Run `work` in one READ COMMITTED transaction, anew after a deadlock or a lost connection.

        Raises as `query` does.
        """

        def run(connection: Connection) -> T:
            return self._in_transaction(connection, work)

        return self._call(run, repeat=repeat, long=long)

    def housekeeping(self) -> AbstractContextManager[Connection]:
        """The connection for housekeeping, nobody else's for the time of the block; its errors are raw."""
        return self._session().kept(time.monotonic() + self.timeout)

    def migrate(self) -> list[str]:
        """Apply what is missing; what was done, line by line."""
        # Not on a pool's connection: opening a pool applies what is missing, and tells nobody.
        return self._call(self.migrations.apply, housekeeping=True, ready=False)

    def close(self) -> None:
        """Close every connection; may be called twice."""
        self._closed = True
        session = self._sessions.get(os.getpid())
        if session is not None:
            session.close()

    def _call(
        self,
        work: Callable[[Connection], T],
        *,
        repeat: bool = True,
        housekeeping: bool = False,
        ready: bool = True,
        long: bool = False,
    ) -> T:
        deadline = time.monotonic() + self.timeout
        tries = 0
        while True:
            if self._closed:
                raise TransportError(f"{self.settings.url} is closed here; open another transport")
            begun = False
            session = self._session()
            try:
                if housekeeping:
                    if ready:
                        session.ready(deadline)
                    with session.kept(deadline) as one:
                        begun = True
                        return work(one)
                one = session.take(deadline)
                if long:
                    one.deadline = time.monotonic() + max(LONG, self.timeout)
                begun = True
                try:
                    return work(one)
                except psycopg.Error as error:
                    session.judge_loss(one, error)
                    raise
                finally:
                    session.give(one)
            except psycopg.Error as error:
                tries += 1
                # The call that made the tables has its time anew: that takes longer than any other.
                deadline = max(deadline, self._migrated_at + self.timeout)
                self._bear(error, tries, deadline, final=begun and not repeat)
            _rest(tries, deadline)

    def _bear(self, error: psycopg.Error, tries: int, deadline: float, *, final: bool) -> None:
        """Return when another try is worth it, else raise what the caller is told."""
        fault = judge(error)
        if fault is Fault.VALUE:
            raise faults.unstorable(self.settings, error) from error
        if fault is Fault.SLOW:
            raise faults.slow(self.settings) from error
        if fault is Fault.NEVER:
            raise faults.refused(self.settings, error) from error
        if fault is Fault.UNPREPARED:
            self._session().prepared = False
            self._session().forget()
        elif fault is Fault.UNREADY:
            if tries > 1:
                raise faults.unready(self.settings, faults.first_line(error)) from error
            self._session().forget()
        if time.monotonic() >= deadline or (final and fault is Fault.LOST):
            raise faults.unavailable(self.settings, error) from error

    def _in_transaction(
        self, connection: Connection, work: Callable[[psycopg.Cursor[Row]], T]
    ) -> T:
        connection.execute(_BEGIN)
        try:
            value = work(connection.hand)
            done = connection.execute("COMMIT")
        except BaseException:
            if not connection.closed:
                connection.execute("ROLLBACK")
            raise
        if done.statusmessage != "COMMIT":
            raise TransportError(f"{self.settings.url}: a transaction was rolled back unasked")
        return value

    def _session(self) -> Session:
        session = self._sessions.get(os.getpid())
        if session is None:
            _ABANDONED.extend(self._sessions.values())
            session = self._sessions.setdefault(os.getpid(), Session(self.settings, self._check))
        return session

    def _check(self, connection: Connection) -> None:
        """What every new pool's first connection looks at."""
        if self.migrations.ensure(connection):
            self._migrated_at = time.monotonic()
        isolation = connection.execute("SHOW default_transaction_isolation").fetchall()[0][0]
        self._explicit = isolation != "read committed"


def _rows(hand: psycopg.Cursor[Row], sql: LiteralString, params: Sequence[Any]) -> list[Row]:
    hand.execute(sql, params)
    return hand.fetchall() if hand.description is not None else []


def _rest(tries: int, deadline: float) -> None:
    """Wait a random moment, longer with each try, so that those who were in each other's way part."""
    pause = random.uniform(0.1, 1.0) * min(_LONGEST_REST, 0.01 * 2 ** min(tries, 10))
    time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
