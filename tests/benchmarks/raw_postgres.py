"""The raw limit of PostgreSQL: psycopg in binary, each batch one statement and one commit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

SCHEMA = """
CREATE TABLE message (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, id text NOT NULL, queue text NOT NULL,
    priority smallint NOT NULL, envelope bytea NOT NULL, worker text, lease_until timestamptz);
CREATE INDEX ready ON message (priority DESC, seq) WHERE lease_until IS NULL;
CREATE TABLE job (id text PRIMARY KEY, state text NOT NULL, result bytea, finished_at timestamptz);
"""
INSERT = """
WITH sent AS (INSERT INTO message (id, queue, priority, envelope) VALUES (%b, 'bench', 0, %b))
INSERT INTO job (id, state) VALUES (%b, 'QUEUED')
"""
CLAIM = """
UPDATE message SET worker = %b, lease_until = now() + interval '60 s' WHERE seq = ANY (ARRAY(
    SELECT seq FROM message WHERE lease_until IS NULL ORDER BY priority DESC, seq LIMIT %b
    FOR UPDATE SKIP LOCKED))
RETURNING seq, id, envelope
"""
FINISH = """
WITH gone AS (DELETE FROM message WHERE seq = ANY (%b))
UPDATE job SET state = 'SUCCEEDED', result = given.result, finished_at = now()
FROM unnest(%b::text[], %b::bytea[]) AS given (id, result) WHERE job.id = given.id
"""


class RawPostgres:
    """A table of messages and a table of jobs."""

    def __init__(self, url: str) -> None:
        self.connection = psycopg.connect(url, autocommit=True)
        self.connection.execute(SCHEMA)
        self.cursor = self.connection.cursor(binary=True)

    def enqueue_one(self, job: tuple[str, bytes]) -> None:
        self.cursor.execute(INSERT, [job[0], job[1], job[0]])

    def enqueue(self, jobs: Sequence[tuple[str, bytes]]) -> None:
        with self.connection.transaction():
            with self.cursor.copy(
                "COPY message (id, queue, priority, envelope) FROM STDIN"
            ) as copy:
                for name, envelope in jobs:
                    copy.write_row((name, "bench", 0, envelope))
            with self.cursor.copy("COPY job (id, state) FROM STDIN") as copy:
                for name, _ in jobs:
                    copy.write_row((name, "QUEUED"))

    def claim(self, limit: int) -> Sequence[Any]:
        return self.cursor.execute(CLAIM, ["w", limit]).fetchall()

    def finish(self, claimed: Sequence[Any], result: bytes) -> None:
        numbers = [row[0] for row in claimed]
        names = [row[1] for row in claimed]
        self.cursor.execute(FINISH, [numbers, names, [result] * len(names)])

    def close(self) -> None:
        self.connection.close()
