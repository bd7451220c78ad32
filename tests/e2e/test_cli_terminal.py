"""What a person sees at a real terminal: questions, progress, a screen that renews itself."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.backlog import Backlog
from support.cli import APP, command, environment, run
from support.waiting import wait_until
from taskmq.transport.sqlite import SqliteTransport

if TYPE_CHECKING:
    from collections.abc import Iterator


class Terminal:
    """`taskmq` behind a pseudo terminal of 80 columns."""

    def __init__(self, folder: Path, *args: str) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        kept = {name: text for name, text in environment().items() if name != "COLUMNS"}
        self.process = subprocess.Popen(
            command(*args),
            cwd=folder,
            env={**kept, "TERM": "xterm-256color"},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self.seen = ""

    def until(self, text: str, timeout: float = 20) -> str:
        """Read until this text was shown, or until the end."""
        end = time.monotonic() + timeout
        while text not in self.seen and time.monotonic() < end:
            ready, _, _ = select.select([self.master], [], [], 0.1)
            if ready:
                try:
                    self.seen += os.read(self.master, 65536).decode(errors="replace")
                except OSError:
                    break
        assert text in self.seen, self.seen
        return self.seen

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def wait_for_input(self) -> None:
        """Until the process sleeps: Python misses a signal just before a read, people don't hit that."""
        stat = Path(f"/proc/{self.process.pid}/stat")
        if not stat.exists():
            pytest.skip("needs /proc to see that the process reads")
        asleep: list[bool] = []

        def is_reading() -> bool:
            asleep.append(stat.read_text().rpartition(")")[2].split()[0] == "S")
            return len(asleep) > 40 and all(asleep[-40:])

        wait_until(is_reading, timeout=20)

    def close(self) -> int:
        """The exit code; the process is gone afterwards."""
        try:
            return self.process.wait(20)
        finally:
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait(20)
            os.close(self.master)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/jobs.db"


@pytest.fixture
def backlog(url: str) -> Iterator[Backlog]:
    transport = SqliteTransport.from_url(url)
    yield Backlog(transport)
    transport.close()


def test_a_replay_of_all_asks_and_shows_its_progress(
    tmp_path: Path, url: str, backlog: Backlog
) -> None:
    for _ in range(3):
        backlog.dead(1000)
    terminal = Terminal(tmp_path, "dlq", "replay", "--all", "--transport", url)
    terminal.until("Replay 3,000 dead letters of all queues?")
    terminal.type("y\n")
    terminal.until("replayed 3,000 of 3,000 dead letters")
    assert "replaying" in terminal.seen
    assert terminal.close() == 0


def test_a_refused_question_changes_nothing(tmp_path: Path, url: str, backlog: Backlog) -> None:
    backlog.dead(2)
    lines: list[tuple[str, ...]] = [("dlq", "replay", "--all"), ("dlq", "purge")]
    for line in (*lines, ("purge", "-Q", "email")):
        if line[0] == "purge":
            backlog.queued(2)
        terminal = Terminal(tmp_path, *line, "--transport", url)
        terminal.until("[y/N]")
        terminal.type("n\n")
        terminal.until("nothing was changed")
        assert terminal.close() == 1
    (stats,) = backlog.transport.stats(["email"])
    assert (stats.dead, stats.pending) == (2, 2)


def test_ctrl_c_at_a_question_ends_with_130(tmp_path: Path, url: str, backlog: Backlog) -> None:
    backlog.dead(2)
    terminal = Terminal(tmp_path, "dlq", "purge", "--transport", url)
    terminal.until("[y/N]")
    terminal.wait_for_input()
    os.killpg(terminal.process.pid, signal.SIGINT)
    assert terminal.close() == 130


def test_a_watched_status_renews_itself_on_the_screen(
    tmp_path: Path, url: str, backlog: Backlog
) -> None:
    backlog.queued(3, "first-queue")
    options = ("--watch", "--interval", "0.1", "--by-priority", "--transport", url)
    terminal = Terminal(tmp_path, "status", *options)
    terminal.until("first-queue")
    backlog.queued(1, "second-queue")
    terminal.until("second-queue")
    os.killpg(terminal.process.pid, signal.SIGINT)
    assert terminal.close() == 130


@pytest.mark.parametrize("said", [False, True])
def test_a_worker_on_a_terminal_writes_for_people_unless_told_otherwise(
    tmp_path: Path, said: bool
) -> None:
    text = APP.replace(', events="null"', "")
    (tmp_path / "shop.py").write_text(text, encoding="utf-8")
    sent = run(tmp_path, "submit", "send", "--args", '["a"]', "--app", "shop:app")
    job = sent.stdout.strip()
    terminal = Terminal(
        tmp_path, "worker", "--once", "--app", "shop:app", *["--log-format=json"] * said
    )
    seen = terminal.until("worker.stopped")
    assert terminal.close() == 0
    (line,) = [each for each in seen.splitlines() if "task.succeeded" in each]
    assert line.startswith("{") is said
    assert job in line
    if not said:
        assert len(line) <= 80
