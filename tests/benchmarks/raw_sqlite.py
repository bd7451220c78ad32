"""The raw limit of SQLite: bare sqlite3 with the same pragmas, each batch one transaction."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence

SCHEMA = """
CREATE TABLE message (
    seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, queue TEXT NOT NULL, priority INTEGER NOT NULL,
    envelope BLOB NOT NULL, worker TEXT, lease_until REAL);
CREATE INDEX ready ON message (priority DESC, seq) WHERE lease_until IS NULL;
CREATE TABLE job (id TEXT PRIMARY KEY, state TEXT NOT NULL, result BLOB, finished_at REAL) WITHOUT ROWID;
"""
CLAIM = """
UPDATE message SET worker = ?, lease_until = ? WHERE seq IN (
    SELECT seq FROM message WHERE lease_until IS NULL ORDER BY priority DESC, seq LIMIT ?)
RETURNING id, envelope
"""


class RawSqlite:
    """A table of messages and a table of jobs."""

    def __init__(self, path: str, synchronous: str = "NORMAL") -> None:
        self.connection = sqlite3.connect(path, isolation_level=None)
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.execute(f"PRAGMA synchronous = {synchronous}")
        self.connection.executescript(SCHEMA)

    def enqueue_one(self, job: tuple[str, bytes]) -> None:
        self.enqueue([job])

    def enqueue(self, jobs: Sequence[tuple[str, bytes]]) -> None:
        run = self.connection
        run.execute("BEGIN IMMEDIATE")
        run.executemany(
            "INSERT INTO message (id, queue, priority, envelope) VALUES (?, 'bench', 0, ?)", jobs
        )
        run.executemany("INSERT INTO job VALUES (?, 'QUEUED', NULL, NULL)", [(j[0],) for j in jobs])
        run.execute("COMMIT")

    def claim(self, limit: int) -> list[tuple[str, bytes]]:
        run = self.connection
        run.execute("BEGIN IMMEDIATE")
        rows = run.execute(CLAIM, ("w", time.monotonic() + 60, limit)).fetchall()
        run.execute("COMMIT")
        return rows

    def finish(self, claimed: Sequence[tuple[str, bytes]], result: bytes) -> None:
        run, now = self.connection, time.monotonic()
        run.execute("BEGIN IMMEDIATE")
        run.executemany("DELETE FROM message WHERE id = ?", [(job[0],) for job in claimed])
        run.executemany(
            "UPDATE job SET state = 'SUCCEEDED', result = ?, finished_at = ? WHERE id = ?",
            [(result, now, job[0]) for job in claimed],
        )
        run.execute("COMMIT")

    def close(self) -> None:
        self.connection.close()
