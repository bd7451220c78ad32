"""Connections to the file: opening, waiting for the writer's turn, errors put into words, forks.

The only module that knows the driver's exceptions.
"""

from __future__ import annotations

import os
import random
import sqlite3
import threading
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskmq.errors import ConfigError, TransportError, TransportUnavailable
from taskmq.transport.sqlite.schema import APPLICATION_ID, MIGRATIONS, VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Row = tuple[Any, ...]

_RETRY_MIN = 0.0002
_RETRY_MAX = 0.003
_LOOK_EVERY = 1.0
"""How often to look whether the file is still the one that is open, seconds."""
_MINIMUM = (3, 35, 0)


class Database:
    """One writer and one reader connection to a file, each used by one thread at a time."""

    def __init__(self, path: str, *, synchronous: str = "normal", timeout: float = 5.0) -> None:
        self.path = path
        self.synchronous = synchronous
        self.timeout = timeout
        self._closed = False
        self._done: list[str] = []
        self.on_statement: Callable[[str], None] | None = None
        """Called before each statement, for tests that stop or count there."""
        self._fresh()
        _databases.add(self)

    def _fresh(self) -> None:
        self._write_lock = threading.Lock()
        self._read_lock = threading.Lock()
        self._writer: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        self._look_at = 0.0

    def begin(self) -> sqlite3.Connection:
        """Wait for the writer's turn in this process and among all, and start a transaction.

        Every successful call must be followed by `commit` or `rollback` on the same thread.

        Raises:
            TransportUnavailable: The turn did not come within the timeout.
        """
        deadline = time.monotonic() + self.timeout
        if not self._write_lock.acquire(timeout=max(0.0, self.timeout)):
            raise self._busy()
        try:
            if time.monotonic() >= self._look_at:
                self._check_file()
            connection = self._writer
            if connection is None:
                connection = self._writer = self._open(deadline)
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                self._retry(lambda: connection.execute("BEGIN IMMEDIATE"), deadline)
        except sqlite3.Error as error:
            self._write_lock.release()
            raise self._explain(error) from error
        except BaseException:
            self._write_lock.release()
            raise
        return connection

    def restart(self) -> None:
        """Undo the transaction that `begin` started, and start another."""
        connection = self._writer
        if connection is None:
            raise self._gone()
        connection.execute("ROLLBACK")
        deadline = time.monotonic() + self.timeout
        self._retry(lambda: connection.execute("BEGIN IMMEDIATE"), deadline)

    def commit(self) -> None:
        """End the transaction that `begin` started; rolled back when that fails."""
        connection = self._writer
        if connection is None:
            raise self._gone()
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise self._explain(error) from error
        finally:
            self._write_lock.release()

    def rollback(self) -> None:
        """Undo the transaction that `begin` started."""
        try:
            # A full disk or an interrupt may have rolled back already.
            if self._writer is not None and self._writer.in_transaction:
                with suppress(sqlite3.Error):
                    self._writer.execute("ROLLBACK")
        finally:
            self._write_lock.release()

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Run one reading statement beside the writer and return all its rows."""
        now = time.monotonic()
        if now >= self._look_at and self._write_lock.acquire(blocking=False):
            # Else a writer is at work, and looks itself.
            try:
                self._check_file()
            finally:
                self._write_lock.release()
        deadline = now + self.timeout
        if not self._read_lock.acquire(timeout=max(0.0, self.timeout)):
            raise self._busy()
        try:
            connection = self._reader
            if connection is None:
                connection = self._reader = self._open(deadline)
            rows: list[Row] = self._retry(
                lambda: connection.execute(sql, parameters).fetchall(), deadline
            )
            return rows
        except sqlite3.Error as error:
            raise self._explain(error) from error
        finally:
            self._read_lock.release()

    def migrate(self) -> list[str]:
        """Open the file, which brings its schema up to date; what this handle did to it."""
        self.begin()
        self.rollback()
        done, self._done = self._done, []
        return done

    def close(self) -> None:
        """Close both connections when their present users are done; later calls are refused."""
        self._closed = True
        with self._write_lock, self._read_lock:
            self._close_connections()

    def pause(self) -> bool:
        """Wait for the calls under way and close the connections, so that the process can fork.

        SQLite keeps the locks of a process in its memory: a child that inherits them believes to
        hold what only its parent holds, and may wait for ever or lose the write-ahead log.
        """
        held: list[threading.Lock] = []
        for lock in (self._write_lock, self._read_lock):
            if not lock.acquire(timeout=self.timeout + 1.0):
                break
            held.append(lock)
        if len(held) < 2:
            for lock in held:
                lock.release()
            return False
        self._close_connections()
        return True

    def resume(self) -> None:
        """Go on after `pause`, in the parent; connections are opened when they are needed."""
        self._write_lock.release()
        self._read_lock.release()

    def abandon(self) -> None:
        """Start anew in a forked child; connections that could not be closed are never touched."""
        _abandoned.extend(c for c in (self._writer, self._reader) if c is not None)
        self._fresh()

    def _close_connections(self) -> None:
        for connection in (self._writer, self._reader):
            if connection is not None:
                with suppress(sqlite3.Error):
                    connection.close()
        self._writer = self._reader = None

    def _check_file(self) -> None:
        """Notice now and then that the file under this path is another: held by the writer's lock.

        Connections go on with a deleted file as if nothing had happened, and would serve jobs that
        nobody else can see while those in the new file wait for ever.
        """
        self._look_at = time.monotonic() + _LOOK_EVERY
        if not (self._writer or self._reader) or self._identity() == self._file:
            return
        with self._read_lock:
            # SQLite leaves the log of a file alone that is not the one it has open.
            self._close_connections()
        raise TransportUnavailable(
            f"{self.path} was deleted or replaced while it was in use: it is opened anew, and jobs "
            f"of the old file are gone with it; stop all workers before you move or restore it"
        )

    def _identity(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self.path)
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def raise_explained(self, error: BaseException) -> None:
        """Raise the driver's errors as a user should read them; others are left to the caller."""
        if isinstance(error, sqlite3.Error):
            raise self._explain(error) from error

    def _open(self, deadline: float) -> sqlite3.Connection:
        if self._closed:
            raise self._gone()
        if sqlite3.sqlite_version_info < _MINIMUM:
            raise ConfigError(
                f"sqlite:// needs SQLite 3.35 or newer, this Python has {sqlite3.sqlite_version}"
            )
        try:
            self._check_place()
        except ConfigError as error:
            if self._file is None:
                raise
            # It was there before: a disk that is away, not a slip in the configuration.
            raise TransportUnavailable(str(error)) from error
        connection = sqlite3.connect(
            self.path,
            timeout=0,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=256,
        )
        connection.set_trace_callback(self.on_statement)
        try:
            self._retry(lambda: self._prepare(connection), deadline)
        except BaseException:
            connection.close()
            raise
        self._file = self._identity()
        return connection

    def _check_place(self) -> None:
        place = Path(self.path)
        if place.is_dir():
            raise ConfigError(f"{self.path} is a folder; name a file in it, like {place / 'q.db'}")
        if not place.parent.is_dir():
            raise ConfigError(
                f"the folder {place.parent} does not exist: create it, or name another file"
            )
        if place.exists() and not os.access(place, os.R_OK | os.W_OK):
            raise ConfigError(f"no permission to read and write {self.path}")
        if not os.access(place.parent, os.W_OK):
            raise ConfigError(
                f"no permission to write in the folder {place.parent}: "
                f"SQLite keeps its log beside the file"
            )

    def _prepare(self, connection: sqlite3.Connection) -> None:
        self._check_owner(connection)
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise TransportError(
                f"{self.path} can't use a write-ahead log (journal mode {mode}); "
                f"is it on a network file system? Put it on a local disk"
            )
        for pragma in (
            f"synchronous = {self.synchronous}",
            "secure_delete = OFF",
            "cache_size = -16000",
            "temp_store = MEMORY",
            "wal_autocheckpoint = 2000",
            "journal_size_limit = 67108864",
        ):
            connection.execute(f"PRAGMA {pragma}").fetchall()
        self._upgrade(connection)

    def _check_owner(self, connection: sqlite3.Connection) -> None:
        # The tables first: whoever makes them marks the file in the same transaction.
        tables: int = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        owner: int = connection.execute("PRAGMA application_id").fetchone()[0]
        version: int = connection.execute("PRAGMA user_version").fetchone()[0]
        if tables and owner != APPLICATION_ID:
            raise TransportError(
                f"{self.path} is a database of another application: name another file"
            )
        if version > VERSION:
            raise TransportError(
                f"{self.path} has schema version {version}, this taskmq knows up to {VERSION}: "
                f"upgrade taskmq-core here, or name another file"
            )

    def _upgrade(self, connection: sqlite3.Connection) -> None:
        if connection.execute("PRAGMA user_version").fetchone()[0] == VERSION:
            return
        connection.execute("BEGIN IMMEDIATE")
        try:
            # Somebody else may have done it between the look and the lock.
            version: int = connection.execute("PRAGMA user_version").fetchone()[0]
            for statements in MIGRATIONS[version:]:
                for statement in statements:
                    connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {VERSION}")
            connection.execute("COMMIT")
            if version < VERSION:
                what = f"from version {version}" if version else "new"
                self._done.append(f"{self.path}: schema version {VERSION} ({what})")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def _retry(self, work: Callable[[], Any], deadline: float) -> Any:
        while True:
            try:
                return work()
            except sqlite3.OperationalError as error:
                if not _is_busy(error):
                    raise
                if time.monotonic() >= deadline:
                    raise self._busy() from error
            # SQLite's own handler sleeps ever longer and starves beside a steady writer.
            time.sleep(random.uniform(_RETRY_MIN, _RETRY_MAX))

    def _busy(self) -> TransportUnavailable:
        return TransportUnavailable(
            f"{self.path} stayed in use by other writers for {self.timeout:g} s: try again, "
            f"or look for a process that holds a transaction open"
        )

    def _gone(self) -> TransportError:
        return TransportError("this sqlite transport is closed; open another one")

    def _explain(self, error: sqlite3.Error) -> TransportError:
        text = str(error)
        for part, kind, words in _EXPLANATIONS:
            if part in text:
                # Once it has worked: it may again, and what workers hold must not be given up.
                passing = part in _MAY_PASS and self._file is not None
                return (TransportUnavailable if passing else kind)(words.format(path=self.path))
        if _is_busy(error):
            return self._busy()
        return TransportError(f"{self.path}: {text}")


_MAY_PASS = ("readonly", "unable to open")

_EXPLANATIONS: tuple[tuple[str, type[TransportError], str], ...] = (
    (
        "file is not a database",
        TransportError,
        "{path} is not a SQLite database: name another file, or move this one away",
    ),
    (
        "malformed",
        TransportError,
        "{path} is damaged: stop all workers, then restore a backup or use sqlite3's .recover",
    ),
    (
        "is full",
        TransportUnavailable,
        "no room left to write {path}: free some space; nothing was changed",
    ),
    (
        "readonly",
        TransportError,
        "{path} can't be written: check the permissions of the file, its folder and its -wal file",
    ),
    (
        "unable to open",
        TransportError,
        "{path} can't be opened: check that the folder exists and its permissions",
    ),
    (
        "disk I/O error",
        TransportUnavailable,
        "the disk failed while {path} was in use; nothing was changed",
    ),
    ("closed database", TransportError, "this sqlite transport is closed; open another one"),
)


def _is_busy(error: sqlite3.Error) -> bool:
    return "locked" in str(error)


_databases: weakref.WeakSet[Database] = weakref.WeakSet()
_abandoned: list[sqlite3.Connection] = []
_paused: list[Database] = []


def _before_fork() -> None:
    _paused.extend(database for database in list(_databases) if database.pause())


def _after_fork_in_parent() -> None:
    while _paused:
        _paused.pop().resume()


def _after_fork_in_child() -> None:
    _paused.clear()
    for database in list(_databases):
        database.abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )
