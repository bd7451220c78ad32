"""Where a measurement happens: a backend, an empty place on it for each, and what its server counts."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from counters import Counters, NoCounters, PostgresCounters, RedisCounters
from servers import measured_server

HERE = Path(__file__).resolve().parent


class Failed(Exception):
    """A measured process ended with an error or did nothing for too long."""


class Place:
    """An empty backend for one measurement, and the environment that leads a process to it."""

    def __init__(self, url: str, folder: Path, counters: Counters) -> None:
        self.url = url
        self.folder = folder
        self.counters = counters
        self.environment = {
            **os.environ,
            "BENCH_URL": url,
            "BENCH_FOLDER": str(folder),
            "PYTHONPATH": str(HERE),
        }

    def run(self, *words: str, python: str = sys.executable) -> dict[str, float]:
        """Run a script to its end; what its last line says as JSON."""
        done = subprocess.run(
            [python, *words],
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        if done.returncode:
            raise Failed(f"{' '.join(words)} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
        lines = done.stdout.strip().splitlines()
        row: dict[str, float] = json.loads(lines[-1]) if lines else {}
        return row

    @contextmanager
    def worker(
        self, *words: str, python: str = sys.executable, **extra: str
    ) -> Generator[subprocess.Popen[bytes]]:
        """A process that works until the block is left; its output is in `worker.log`."""
        with (self.folder / "worker.log").open("wb") as log:
            process = subprocess.Popen(
                [python, *words],
                env={**self.environment, **extra},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            # What a master left behind is in its session, which is ours alone.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


class Backend:
    """A kind of backend at a URL. Each `place()` is empty."""

    name: str
    client = ""
    """The bare client that the raw limit is measured with."""

    def __init__(self, url: str) -> None:
        self.url = url

    @contextmanager
    def place(self) -> Generator[Place]:
        folder = Path(tempfile.mkdtemp(prefix="taskmq-bench-"))
        try:
            with self.emptied(folder) as (url, counters):
                yield Place(url, folder, counters)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def emptied(self, folder: Path) -> Generator[tuple[str, Counters]]:
        yield self.url, NoCounters()

    def settings(self) -> list[str]:
        return []


class Memory(Backend):
    name = "memory"


class Sqlite(Backend):
    name = "sqlite"
    client = "sqlite3"

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.synchronous = "FULL" if "synchronous=full" in url else "NORMAL"

    @contextmanager
    def emptied(self, folder: Path) -> Generator[tuple[str, Counters]]:
        query = urlsplit(self.url).query
        url = f"sqlite:///{folder}/queue.db" + (f"?{query}" if query else "")
        yield url, NoCounters()

    def settings(self) -> list[str]:
        import sqlite3

        return [
            f"sqlite {sqlite3.sqlite_version}, WAL, synchronous={self.synchronous}, bare sqlite3 too,",
            "Huey as stated. With FULL each enqueue waits for the disk; both alike:",
            "--transport 'sqlite://?synchronous=full'.",
        ]


class Redis(Backend):
    name = "redis"
    client = "redis-py"

    def __init__(self, url: str) -> None:
        import redis

        super().__init__(url)
        self._client: Any = redis.Redis.from_url(url)
        if self._client.dbsize():
            raise SystemExit(
                f"database {self._client.connection_pool.connection_kwargs.get('db', 0)} of that server "
                f"holds keys, and each measurement flushes it: name an empty one, redis://host:6379/15"
            )

    @contextmanager
    def emptied(self, folder: Path) -> Generator[tuple[str, Counters]]:
        self._client.flushdb()
        try:
            yield self.url, RedisCounters(self._client)
        finally:
            self._client.flushdb()

    def settings(self) -> list[str]:
        info = self._client.info("server") | self._client.info("persistence")
        kept = "on" if info["aof_enabled"] else "off"
        return [f"Redis {info['redis_version']}, appendonly {kept}."]


class Postgres(Backend):
    name = "postgres"
    client = "psycopg"

    def __init__(self, url: str, pids: tuple[int, ...] = ()) -> None:
        import psycopg

        super().__init__(url)
        self._pids = pids
        self._numbers = count(1)
        # Names of databases are put into its statements, which its types forbid.
        self._admin: Any = psycopg.connect(url, autocommit=True)

    @contextmanager
    def emptied(self, folder: Path) -> Generator[tuple[str, Counters]]:
        name = f"taskmq_bench_{os.getpid()}_{next(self._numbers)}"
        self._admin.execute(f'CREATE DATABASE "{name}"')
        try:
            yield (
                urlunsplit(urlsplit(self.url)._replace(path=f"/{name}")),
                PostgresCounters(self._admin, name, self._pids),
            )
        finally:
            self._admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')

    def settings(self) -> list[str]:
        row = self._admin.execute(
            "SELECT current_setting('server_version'), current_setting('synchronous_commit'),"
            " current_setting('fsync')"
        ).fetchone()
        assert row is not None
        return [f"PostgreSQL {row[0]}, synchronous_commit {row[1]}, fsync {row[2]}."]


KINDS: Mapping[str, type[Backend]] = {
    "memory": Memory,
    "sqlite": Sqlite,
    "redis": Redis,
    "rediss": Redis,
    "postgresql": Postgres,
    "postgres": Postgres,
}


@contextmanager
def backend_of(text: str) -> Generator[Backend]:
    """A backend by URL, or by the bare name of one whose server is then started and stopped here."""
    if text in {"redis", "postgres"}:
        with measured_server(text) as service:
            yield Redis(service.url) if text == "redis" else Postgres(service.url, service.pids)
        return
    scheme = urlsplit(text if ":" in text else f"{text}://").scheme
    if scheme not in KINDS:
        raise SystemExit(
            f"no benchmark for {text!r}; say memory, sqlite, redis, postgres, or a URL of one of them"
        )
    yield KINDS[scheme](text if ":" in text else f"{text}://")
