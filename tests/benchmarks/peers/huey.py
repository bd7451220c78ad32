"""Huey on Redis, PostgreSQL and SQLite: 10 threads; it takes a job off the queue before it runs.

On SQLite as our transport is set up: WAL, the same `synchronous`, results kept. Elsewhere none are.
"""

from __future__ import annotations

import os
import sqlite3
from typing import Any

from huey import PostgresHuey, RedisHuey, SqliteHuey
from huey.storage import SqliteStorage
from peers import common


class AlikeStorage(SqliteStorage):
    """SqliteStorage with a chosen `synchronous`; it offers only OFF and FULL by itself."""

    def _create_connection(self) -> sqlite3.Connection:
        connection: sqlite3.Connection = super()._create_connection()
        connection.execute(f"PRAGMA synchronous = {os.environ.get('BENCH_SYNCHRONOUS', 'NORMAL')}")
        return connection


def make() -> Any:
    if common.URL.startswith("redis"):
        return RedisHuey("bench", url=common.URL, results=False)
    if common.URL.startswith("postgres"):
        return PostgresHuey("bench", dsn=common.URL, results=False)
    file = str(common.FOLDER / "huey.db")
    return SqliteHuey("bench", filename=file, storage_class=AlikeStorage, results=True)


huey = make()


@huey.task()
def noop(number: int) -> int:
    common.ran()
    return number


@huey.task()
def stamp(sent: float) -> None:
    common.stamp(sent)


def enqueue(jobs: int) -> Any:
    noop(0)
    return common.rate(lambda: [noop(number) for number in range(1, jobs)], jobs - 1), None


def serve() -> None:
    huey.create_consumer(workers=10, periodic=False, check_worker_health=False).run()


if __name__ == "__main__":
    common.main(enqueue=enqueue, serve=serve, ask=lambda count: common.ask(stamp, count))
