"""PostgreSQL servers that tests stop, kill, restart on the same port and data, and promote."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Generator
from pathlib import Path

import psycopg
import pytest

from support import services
from support.waiting import wait_until

_POSTGRES = services.Postgres()


def need(name: str) -> None:
    """Skip at a desk without this server; in CI it must be there."""
    missing = services.SERVERS[name].missing()
    if not missing:
        return
    message = f"{', '.join(missing)} not found: hatch run services up {name} installs it"
    if os.environ.get("CI") == "true":
        pytest.fail(message)
    pytest.skip(message)


class PgServer:
    """A server whose life a test decides about."""

    def __init__(self, folder: Path, port: int | None = None) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.port = port or services.free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self._settings: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def make(self) -> None:
        """Make an empty cluster that a standby can follow."""
        self.data.mkdir(mode=0o700)
        _POSTGRES.own(self.data)
        words = [
            _POSTGRES.program("initdb"),
            "-D",
            str(self.data),
            "-U",
            "postgres",
            "--auth=trust",
        ]
        self._run([*words, "--no-sync", "-E", "UTF8", "--locale=C.UTF-8"])

    def copy(self, primary: PgServer) -> None:
        """Become a standby of that server, whatever was here before."""
        shutil.rmtree(self.data, ignore_errors=True)
        self.data.mkdir(mode=0o700)
        _POSTGRES.own(self.data)
        words = [_POSTGRES.program("pg_basebackup"), "-D", str(self.data), "-R", "-X", "stream"]
        words += ["-h", "127.0.0.1", "-p", str(primary.port), "-U", "postgres", "-c", "fast"]
        self._run([*words, "--no-sync"])

    def start(self, *settings: str) -> None:
        """Start it, or start it again on the same port and data, with the same settings if none are given."""
        self._settings = settings or self._settings
        chosen = [
            f"port={self.port}",
            "listen_addresses=127.0.0.1",
            f"unix_socket_directories={self.data}",
            *self._settings,
        ]
        options = [word for setting in chosen for word in ("-c", setting)]
        words = _POSTGRES.command(_POSTGRES.program("postgres"), "-D", str(self.data), *options)
        self.process = services.spawn(words, self.folder)
        services.wait_for_port(self.port, self.process)
        _POSTGRES.wait_until_ready(self.port)

    def stop(self, by: signal.Signals = signal.SIGINT) -> None:
        """SIGINT ends it in order, without waiting for clients; SIGQUIT is a crash."""
        process, self.process = self.process, None
        if process is not None:
            services.end(process.pid, by)

    def restart(self, by: signal.Signals = signal.SIGINT) -> None:
        self.stop(by)
        self.start()

    def freeze(self, frozen: bool) -> None:
        """Stop every process of it in its tracks, or let them go on."""
        assert self.process is not None
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        for pid in (self.process.pid, *map(int, children.split())):
            os.kill(pid, signal.SIGSTOP if frozen else signal.SIGCONT)

    def follow(self, primary: PgServer) -> None:
        """Copy a primary, start, and go on until it streams to us."""
        self.copy(primary)
        self.start()
        streams = "SELECT 1 FROM pg_stat_replication WHERE state = 'streaming'"
        wait_until(lambda: bool(primary.rows(streams)), 30, what="the standby to follow")

    def confirm_by_standby(self, wanted: bool) -> None:
        """Whether a commit returns only when a standby has it, too."""
        names = "'*'" if wanted else "''"
        self.run(f"ALTER SYSTEM SET synchronous_standby_names = {names}")
        self.run("SELECT pg_reload_conf()")
        shown = [("*" if wanted else "",)]
        wait_until(lambda: self.rows("SHOW synchronous_standby_names") == shown, 30)

    def promote(self) -> None:
        self.run("SELECT pg_promote(true, 30)")
        wait_until(lambda: self.rows("SELECT pg_is_in_recovery()") == [(False,)], 30)

    def run(self, sql: str) -> None:
        self.rows(sql)

    def rows(self, sql: str) -> list[tuple[object, ...]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    def terminate(self, condition: str = "true") -> int:
        """End the sessions of clients other than ours that meet a condition; how many."""
        return len(
            self.rows(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = "
                f"'client backend' AND pid <> pg_backend_pid() AND ({condition})"
            )
        )

    def _run(self, words: list[str]) -> None:
        services.run(_POSTGRES.command(*words), self.folder)


@contextlib.contextmanager
def pg_server(*settings: str) -> Generator[PgServer]:
    """A running server of one's own."""
    need("postgres")
    with _folder() as folder:
        server = PgServer(folder)
        server.make()
        try:
            server.start(*settings)
            yield server
        finally:
            server.stop()


@contextlib.contextmanager
def pooler_before(server: PgServer) -> Generator[str]:
    """pgbouncer in transaction mode before a server; its URL."""
    need("pgbouncer")
    with _folder() as folder:
        pids: list[int] = []
        try:
            yield services.PgBouncer().start_before(server.port, folder, pids)
        finally:
            for pid in pids:
                services.end(pid, signal.SIGINT)


@contextlib.contextmanager
def pg_pair() -> Generator[tuple[PgServer, PgServer]]:
    """A primary and a standby that follows it."""
    with pg_server() as primary, _folder() as folder:
        standby = PgServer(folder)
        try:
            standby.follow(primary)
            yield primary, standby
        finally:
            standby.stop()


@contextlib.contextmanager
def _folder() -> Generator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="taskmq-pg-"))
    # The server's own account must reach its data through it.
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
