"""Driving the command line: in this process for unit tests, as real processes for e2e tests."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from click.testing import CliRunner, Result

from taskmq_cli.main import cli

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

_names = itertools.count()

APP = """
from taskmq import App, Config, Retry

app = App(Config(transport="sqlite:///jobs.db", events="null", heartbeat_interval=1.0))


@app.task(queue="email")
def send(to: str, subject: str = "hi") -> str:
    return f"sent:{to}:{subject}"


@app.task(queue="reports")
def broken(text: str) -> None:
    raise ValueError(text)
"""


class Cli:
    """`taskmq` in this process, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"sqlite:///{folder}/jobs.db"

    def __call__(self, *args: str, input: str | None = None, **env: str) -> Result:
        return CliRunner().invoke(cli, list(args), input=input, env=env)

    def json(self, *args: str, code: int = 0, **env: str) -> Any:
        """The one document that a command wrote to stdout."""
        result = self(*args, "--json", **env)
        assert result.exit_code == code, result.output
        return json.loads(result.stdout)

    def module(self, text: str = APP, name: str = "") -> str:
        """Write an app module under a name that no other test imports; its name."""
        name = name or f"cliapp{os.getpid()}_{next(_names)}"
        (self.folder / f"{name}.py").write_text(text, encoding="utf-8")
        return name


def command(*args: str) -> list[str]:
    """The command line of a real `taskmq` process."""
    return [sys.executable, "-m", "taskmq_cli", *args]


def environment(**extra: str) -> dict[str, str]:
    """The environment of a child: this one's without settings of taskmq, plus these."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TASKMQ_")}
    return {**kept, "COLUMNS": "80", "PYTHONUNBUFFERED": "1", **extra}


def run(folder: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run `taskmq` to its end."""
    return subprocess.run(
        command(*args),
        cwd=folder,
        env=environment(**env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


@contextmanager
def started(folder: Path, *args: str, **env: str) -> Generator[subprocess.Popen[str], None, None]:
    """Start `taskmq`, and make sure that it is gone afterwards."""
    process = subprocess.Popen(
        command(*args),
        cwd=folder,
        env=environment(**env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)
