"""Redis servers that tests stop, kill, freeze and restart on the same port and data."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from support.launching import Server, end, free_port, spawn
from support.waiting import wait_until

START_TIMEOUT = 30.0


class RedisProgram(Server):
    """Where the program is found."""

    package = "redis-server"
    programs: tuple[str, ...] = ("redis-server",)


class RedisServer:
    """One server whose life a test decides about.

    Args:
        folder: Its data, its output and its configuration.
        settings: Its configuration, by the server's names.
        port: A free one if None.
        login: The user name and the password of its administrator.
    """

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, str] = {},
        *,
        port: int | None = None,
        login: tuple[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.port = port or free_port()
        self.login = login
        self.settings = {
            "bind": "127.0.0.1",
            "save": '""',
            "appendonly": "no",
            "loglevel": "notice",
            # A fork to rewrite small files costs more than it saves.
            "auto-aof-rewrite-percentage": "0",
            **settings,
        }
        self.process: subprocess.Popen[bytes] | None = None
        folder.mkdir(exist_ok=True)

    @property
    def url(self) -> str:
        """For the transport, with the administrator's login."""
        login = ""
        if self.login is not None:
            login = f"{quote(self.login[0], safe='')}:{quote(self.login[1], safe='')}@"
        return f"redis://{login}127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        """Of its process, which must be there."""
        assert self.process is not None
        return self.process.pid

    def start(self) -> None:
        """Start it on what the earlier process left, until it has loaded that."""
        self.launch()
        self.wait_until_ready()

    def launch(self, *words: str) -> None:
        """Start it; `wait_until_ready` waits for it."""
        file = self.folder / "redis.conf"
        if not file.exists() or not words:
            port = {} if "port" in self.settings else {"port": str(self.port)}
            lines = {**port, **self.settings}
            file.write_text("".join(f"{name} {value}\n" for name, value in lines.items()))
        program = RedisProgram().program("redis-server")
        self.process = spawn([program, str(file), *words], self.folder)

    def wait_until_ready(self) -> None:
        """Until it answers, its data loaded."""
        wait_until(self.answers, START_TIMEOUT, 0.01, what=f"Redis on port {self.port}")

    def answers(self) -> bool:
        """Whether it takes commands."""
        assert self.process is not None
        if self.process.poll() is not None:
            output = (self.folder / "output").read_text(errors="replace")
            raise SystemExit(f"redis-server ended instead of starting:\n{output[-2000:]}")
        try:
            with self.admin() as client:
                return bool(client.ping())
        except redis.RedisError:
            return False

    def admin(self) -> Any:
        """A client with all rights and without repetitions, of which the library has half the types."""
        name, password = self.login or (None, None)
        make: Any = redis.Redis
        return make(
            port=self.port,
            host="127.0.0.1",
            username=name,
            password=password,
            socket_timeout=10,
            retry=Retry(NoBackoff(), 0),
            decode_responses=True,
            **self.tls(),
        )

    def tls(self) -> dict[str, Any]:
        """What the administrator needs to log in over TLS."""
        return {}

    def ask(self, *words: str | int) -> Any:
        """Run one command as its administrator."""
        with self.admin() as client:
            return client.execute_command(*words)

    def connections(self) -> list[dict[str, str]]:
        """The clients that it sees, without ourselves."""
        with self.admin() as client:
            own = str(client.client_id())
            found: list[dict[str, str]] = client.client_list()
            return [each for each in found if each["id"] != own and each["name"] != "admin"]

    def stop(self) -> None:
        """End it in order: what is to be saved is."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a crash of the process would."""
        self._end(signal.SIGKILL)

    def restart(self, *, kill: bool = False) -> None:
        """End it and start it again."""
        self.kill() if kill else self.stop()
        self.start()

    def freeze(self) -> None:
        """Stop it: connections stay, nothing is answered."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        os.kill(self.pid, signal.SIGCONT)

    def cut(self) -> None:
        """Close the connections of all its clients."""
        with self.admin() as client:
            client.execute_command("CLIENT", "KILL", "SKIPME", "yes", "TYPE", "normal")

    def _end(self, by: signal.Signals) -> None:
        process, self.process = self.process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGCONT)
            end(process.pid, by)


@contextlib.contextmanager
def redis_folder() -> Generator[Path]:
    """A folder for the data of servers, removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="taskmq-redis-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def redis_server(
    settings: Mapping[str, str] = {}, *, login: tuple[str, str] | None = None
) -> Generator[RedisServer]:
    """A running server of one's own."""
    with redis_folder() as folder:
        server = RedisServer(folder, settings, login=login)
        try:
            server.start()
            yield server
        finally:
            server.kill()


def free_cluster_port() -> int:
    """A free port whose neighbour for the cluster bus, 10,000 further, is free too."""
    while True:
        port = random.randrange(20_000, 32_000)
        if _is_free(port) and _is_free(port + 10_000):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
