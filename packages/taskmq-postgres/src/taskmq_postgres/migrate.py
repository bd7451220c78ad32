"""The versions of our tables and functions: SQL files, each applied once, by whoever comes first.

A migration only adds: workers of the version before run on while it is applied and after it.
"""

from __future__ import annotations

import functools
import time
from importlib import resources
from typing import TYPE_CHECKING, Final

import msgspec
from psycopg import errors

from taskmq_postgres import faults

if TYPE_CHECKING:
    from taskmq_postgres.connection import Connection
    from taskmq_postgres.names import Names
    from taskmq_postgres.settings import Settings

MIGRATING: Final = 600.0
"""How long a migration may take, waiting for another process that applies it included, seconds."""

_VERSION = "SELECT coalesce(max(version), 0) FROM {migrations}"
_BEGIN = (
    "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL statement_timeout = '600s'; "
    "SET LOCAL client_min_messages = error"
)
_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))"
_SCHEMA = "SELECT 1 FROM pg_namespace WHERE nspname = %s"
_TABLE = """
CREATE TABLE IF NOT EXISTS {migrations} (
    version integer PRIMARY KEY,
    name text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT statement_timestamp()
)
"""
_APPLIED = "INSERT INTO {migrations} (version, name) VALUES (%s, %s)"
_MISSING = (errors.UndefinedTable, errors.InvalidSchemaName)


class Migration(msgspec.Struct, frozen=True):
    """One SQL file."""

    version: int
    name: str
    sql: str


@functools.cache
def known() -> tuple[Migration, ...]:
    """The migrations that this version of taskmq brings, in order."""
    folder = resources.files("taskmq_postgres") / "migrations"
    files = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    return tuple(
        Migration(int(name[:4]), name.removesuffix(".sql"), (folder / name).read_text("utf-8"))
        for name in files
    )


class Migrations:
    """Brings the tables under one schema and prefix up to date."""

    def __init__(self, settings: Settings, names: Names) -> None:
        self._settings = settings
        self._names = names

    def version(self, connection: Connection) -> int:
        """The version of what is stored; 0 when nothing is."""
        try:
            return int(connection.execute(self._names.fill(_VERSION)).fetchall()[0][0])
        except _MISSING:
            return 0

    def ensure(self, connection: Connection) -> bool:
        """Apply what is missing; whether anything was."""
        if self.version(connection) >= known()[-1].version:
            return False
        self.apply(connection)
        # What was to be done is still to be done, and that took time.
        connection.deadline = time.monotonic() + self._settings.timeout
        return True

    def apply(self, connection: Connection) -> list[str]:
        """Apply what is missing in one transaction, one process at a time; what was done.

        Raises:
            TransportError: The role may not create what is missing.
        """
        deadline, connection.deadline = connection.deadline, time.monotonic() + MIGRATING
        try:
            # Nobody waits for ever, but this one step may take longer than a call.
            connection.execute(_BEGIN)
            try:
                done = self._apply(connection)
                connection.execute("COMMIT")
            except BaseException:
                if not connection.closed:
                    connection.execute("ROLLBACK")
                raise
        except errors.InsufficientPrivilege as error:
            found = self.version(connection)
            what = f"schema version {found} of {known()[-1].version}" if found else "no tables yet"
            raise faults.unready(
                self._settings, f"{what}, and {faults.first_line(error)}"
            ) from error
        finally:
            connection.deadline = deadline
        return done

    def _apply(self, connection: Connection) -> list[str]:
        connection.execute(_LOCK, [self._names.qualified("migrations")])
        schema = self._settings.schema
        done: list[str] = []
        if not connection.execute(_SCHEMA, [schema]).fetchall():
            connection.execute(f"CREATE SCHEMA {self._names.quoted_schema}")
            done.append(f"created schema {schema}")
        connection.execute(self._names.fill(_TABLE))
        found = int(connection.execute(self._names.fill(_VERSION)).fetchall()[0][0])
        for migration in known():
            if migration.version > found:
                connection.execute(self._names.fill(migration.sql))
                connection.execute(
                    self._names.statement(_APPLIED), [migration.version, migration.name]
                )
                done.append(f"applied {migration.name}")
        return done
