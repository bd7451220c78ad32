"""How private servers are found, started and ended: what all kinds of them share."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from support.waiting import wait_until

START_TIMEOUT = 60.0


@dataclass(frozen=True)
class Service:
    """A server that is up."""

    name: str
    url: str
    pids: tuple[int, ...]
    folder: str


class Server:
    """How one kind of server is found and started."""

    package: str
    programs: tuple[str, ...]
    user: str | None = None
    """The account it insists on when started by root."""

    def find(self, program: str) -> str | None:
        """The path of one of its programs, also where packages put them outside PATH."""
        return shutil.which(program)

    def missing(self) -> list[str]:
        return [program for program in self.programs if self.find(program) is None]

    def start(self, folder: Path, pids: list[int]) -> str:
        """Start it with its data in `folder`; its URL. `pids` gathers what `stop` must end."""
        raise NotImplementedError

    def program(self, name: str) -> str:
        path = self.find(name)
        if path is None:
            raise SystemExit(f"{name} is not installed: apt-get install {self.package}")
        return path

    def command(self, *words: str) -> list[str]:
        """The command line, run as the account that the server wants."""
        if self.user is None or os.geteuid() != 0:
            return list(words)
        switch = [f"--reuid={self.user}", f"--regid={self.user}", "--init-groups"]
        return ["setpriv", *switch, *words]

    def own(self, folder: Path) -> None:
        """Give the folder to that account."""
        if self.user is not None and os.geteuid() == 0:
            entry = pwd.getpwnam(self.user)
            os.chown(folder, entry.pw_uid, entry.pw_gid)


_own: dict[int, subprocess.Popen[bytes]] = {}
"""The processes that this one started, by pid."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def spawn(
    words: Sequence[str], folder: Path, environment: dict[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a process that outlives us; its output goes to `folder/output`."""
    with (folder / "output").open("ab") as output:
        process = subprocess.Popen(
            words,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    _own[process.pid] = process
    return process


def run(words: Sequence[str], folder: Path) -> None:
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{words[0]} failed:\n{done.stdout}{done.stderr}")


def wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    def listening() -> bool:
        if process.poll() is not None:
            raise SystemExit(
                f"{process.args!r} ended with {process.returncode} instead of starting"
            )
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", port)) == 0

    wait_until(listening, START_TIMEOUT, 0.05, what=f"port {port}")


def end(pid: int, by: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, by)
    try:
        wait_until(lambda: gone(pid), 20, 0.02, what=f"the end of process {pid}")
    except AssertionError:
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: gone(pid), 10, 0.02, what=f"the end of killed process {pid}")


def gone(pid: int) -> bool:
    process = _own.get(pid)
    if process is not None and process.poll() is not None:
        # Polling collects our own child, which would stay a zombie else.
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False
