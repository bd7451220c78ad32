"""Enqueueing in a caller's own transaction: the job exists if and only if it commits.

The statement is the one that `enqueue` sends; it says only that the transaction is not ours, so that it
locks nobody out for as long as that takes. PostgreSQL itself holds notifications back until the commit.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import errors
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from taskmq.errors import ConfigError, TransportError, TransportUnavailable
from taskmq.transport.types import Enqueued
from taskmq_postgres import arrays, faults
from taskmq_postgres.enqueue import (
    ENQUEUE,
    ENQUEUE_ONE,
    enqueue_parameters,
    enqueued,
    is_rare,
    keys_of,
    one_parameters,
)
from taskmq_postgres.store import Store

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeGuard

    from typing_extensions import LiteralString

    from taskmq.transport.types import Message
    from taskmq_postgres.store import Row

# What a caller's own retries look for must reach them as it is.
_THEIRS = (errors.SerializationFailure, errors.DeadlockDetected)
_LIMIT = "SELECT current_setting('lock_timeout'), set_config('lock_timeout', %s, true)"
_RESTORE = "SELECT set_config('lock_timeout', %s, true)"


class Sharing(Store):
    """`enqueue_in` and `aenqueue_in`."""

    _is_seen: bool
    """Whether our tables have been looked at: a caller's transaction can't create them."""

    def enqueue_in(self, connection: object, messages: Sequence[Message]) -> list[Enqueued]:
        """See the contract."""
        if _is_async(connection):
            raise ConfigError(
                "an asynchronous connection needs an asynchronous call: await aapply_async(…)"
            )
        if not _is_sync(connection):
            raise _no_connection(connection)
        if not messages:
            return []
        self._look_once()
        sql, parameters, may_wait = self._statement_for(messages)
        # The caller's connection may make rows and cursors of its own kind.
        cursor = psycopg.Cursor[Any](connection, row_factory=tuple_row)
        arrays.register(cursor.adapters)
        try:
            limit = self._limit(connection) if may_wait else None
            before = cursor.execute(_LIMIT, [limit]).fetchall()[0][0] if limit else None
            rows = cursor.execute(sql, parameters, prepare=False, binary=True).fetchall()
            if before is not None:
                cursor.execute(_RESTORE, [before])
        except psycopg.Error as error:
            raise self._translated(error, messages) from error
        finally:
            cursor.close()
        return _answers(messages, rows)

    async def aenqueue_in(self, connection: object, messages: Sequence[Message]) -> list[Enqueued]:
        """See the contract."""
        if not _is_async(connection):
            return await asyncio.to_thread(self.enqueue_in, connection, messages)
        if not messages:
            return []
        if not self._is_seen:
            await asyncio.to_thread(self._look_once)
        sql, parameters, may_wait = self._statement_for(messages)
        cursor = psycopg.AsyncCursor[Any](connection, row_factory=tuple_row)
        arrays.register(cursor.adapters)
        try:
            limit = self._limit(connection) if may_wait else None
            before = None
            if limit:
                await cursor.execute(_LIMIT, [limit])
                before = (await cursor.fetchall())[0][0]
            await cursor.execute(sql, parameters, prepare=False, binary=True)
            rows = await cursor.fetchall()
            if before is not None:
                await cursor.execute(_RESTORE, [before])
        except psycopg.Error as error:
            raise self._translated(error, messages) from error
        finally:
            await cursor.close()
        return _answers(messages, rows)

    def _look_once(self) -> None:
        if not self._is_seen:
            self._ask("SELECT {now}()", [])
            self._is_seen = True

    def _statement_for(self, messages: Sequence[Message]) -> tuple[LiteralString, list[Any], bool]:
        """The statement, its parameters, and whether another open transaction may be in its way."""
        if len(messages) == 1 and not is_rare(messages[0]):
            return self._statement(ENQUEUE_ONE), one_parameters(messages[0], foreign=True), False
        keyed = any(message.key is not None for message in messages)
        return self._statement(ENQUEUE), enqueue_parameters(messages, foreign=True), keyed

    def _limit(self, connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> str:
        """How long to wait for another transaction with the same key; "" without a transaction."""
        if connection.autocommit and connection.info.transaction_status is TransactionStatus.IDLE:
            return ""
        return str(max(1, int(self._database.timeout * 1000)))

    def _translated(self, error: psycopg.Error, messages: Sequence[Message]) -> Exception:
        settings = self._database.settings
        if isinstance(error, _THEIRS):
            return error
        if isinstance(error, errors.LockNotAvailable):
            return faults.held_keys(settings, keys_of(messages), error)
        if isinstance(error, psycopg.OperationalError) and error.sqlstate is None:
            return TransportUnavailable(
                f"the connection given is lost, and its transaction with it: {faults.first_line(error)}"
            )
        if isinstance(error, (errors.UndefinedFunction, errors.InvalidSchemaName)):
            return faults.unready(
                settings, f"the connection given leads to a database without our tables: {error}"
            )
        return TransportError(
            f"the job could not be written in the transaction given: {faults.first_line(error)}"
        )


def _is_sync(connection: object) -> TypeGuard[psycopg.Connection[Any]]:
    return isinstance(connection, psycopg.Connection)


def _is_async(connection: object) -> TypeGuard[psycopg.AsyncConnection[Any]]:
    return isinstance(connection, psycopg.AsyncConnection)


def _answers(messages: Sequence[Message], rows: Sequence[Row]) -> list[Enqueued]:
    if len(messages) == 1 and not is_rare(messages[0]):
        return [Enqueued(messages[0].id, "created" if rows[0][0] else "exists")]
    return enqueued(messages, rows)


def _no_connection(given: object) -> ConfigError:
    kind = type(given)
    return ConfigError(
        f"connection must be a psycopg connection, not a {kind.__module__}.{kind.__qualname__}; "
        f"SQLAlchemy: session.connection().connection.driver_connection; Django: after "
        f"connection.ensure_connection(), connection.connection"
    )
