"""A private PostgreSQL server for tests, and places in it: a schema each, emptied between tests."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

import msgspec
import psycopg

from support import services
from support.pg_servers import need
from taskmq.clock import FakeClock
from taskmq_postgres.database import Database
from taskmq_postgres.names import Names, quote
from taskmq_postgres.settings import Settings, read_url
from taskmq_postgres.transport import PostgresTransport

_TABLES = (
    "SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
    "WHERE n.nspname = %s AND c.relkind = 'r'"
)
_KEPT = ("migrations", "clock")


@contextlib.contextmanager
def server(name: str = "postgres") -> Generator[services.Service]:
    """A server of one's own, or one behind a pooler: "pgbouncer"."""
    need(name)
    with services.running(name) as service:
        yield service


class MovedClock(FakeClock):
    """A clock that a test moves, and by which the server judges: its function `now` reads it."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self._place = place
        self._tell()

    def advance(self, seconds: float) -> float:
        """Let time pass, here and on the server."""
        now = super().advance(seconds)
        self._tell()
        return now

    def _tell(self) -> None:
        self._place.run("UPDATE {clock} SET value = %s", self.time())


class MovedTransport(PostgresTransport):
    """The transport by such a clock."""

    clock: FakeClock


class Place:
    """One schema of a server, by the server's own clock or by one that tests move."""

    def __init__(
        self, url: str, *, schema: str = "public", prefix: str = "taskmq_", moved: bool = False
    ) -> None:
        self.url = url
        self.settings: Settings = msgspec.structs.replace(
            read_url(url), schema=schema, prefix=prefix
        )
        self.names = Names(schema, prefix)
        self.moved = moved
        # Without prepared statements: a pooler may give each statement to another session.
        self.connection = psycopg.connect(
            **self.settings.connect, autocommit=True, prepare_threshold=None
        )
        # What tests write need not survive a crash of the machine.
        self.connection.execute("ALTER ROLE CURRENT_USER SET synchronous_commit = off")
        self.connection.execute(f"CREATE SCHEMA IF NOT EXISTS {quote(schema)}")
        database = Database(self.settings)
        database.migrate()
        database.close()
        if moved:
            self.run("CREATE TABLE {clock} (value float8)")
            self.run("INSERT INTO {clock} VALUES (0)")
            self.run(
                "CREATE OR REPLACE FUNCTION {now}() RETURNS float8 LANGUAGE sql STABLE "
                "AS $$ SELECT value FROM {clock} $$"
            )
        found = self.connection.execute(_TABLES, [schema]).fetchall()
        names = {name.removeprefix(prefix) for (name,) in found if name.startswith(prefix)}
        self._tables = sorted(names.difference(_KEPT))

    def run(self, sql: str, *parameters: object) -> None:
        """Run a statement on a connection of one's own, names filled in."""
        self.connection.execute(self.names.statement(sql), parameters)

    def rows(self, sql: str, *parameters: object) -> list[tuple[object, ...]]:
        """The rows of a query on that connection."""
        return self.connection.execute(self.names.statement(sql), parameters).fetchall()

    def empty(self) -> None:
        """Remove what earlier tests have left."""
        for table in self._tables:
            self.run(f"DELETE FROM {{{table}}}")

    def transport(self) -> PostgresTransport:
        """A transport on empty storage."""
        self.empty()
        if not self.moved:
            return PostgresTransport(Database(self.settings))
        transport = MovedTransport(Database(self.settings))
        transport.clock = MovedClock(self)
        return transport

    def close(self) -> None:
        """Leave the server."""
        self.connection.close()
