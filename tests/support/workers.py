"""Real worker processes for tests: started, killed, frozen, and always gone at the end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.effects import ENV, EffectLog
from support.waiting import PATIENCE, wait_until

TESTS = Path(__file__).resolve().parent.parent

_CODE = """
import importlib, json, sys
from taskmq_worker import Worker
options = {"app_path": sys.argv[2] + ":app", **json.loads(sys.argv[1])}
Worker(importlib.import_module(sys.argv[2]).app, **options).run()
"""


class WorkerProcess:
    """One worker in a process (and process group) of its own."""

    def __init__(
        self, env: dict[str, str], log: Path, options: dict[str, object], module: str
    ) -> None:
        self.log = log
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _CODE, json.dumps(options), module],
                env=env,
                cwd=TESTS,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.pid = self.process.pid

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self.process.poll() is None

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        self.send(signal.SIGKILL)
        self.wait()

    def send(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.alive:
            os.kill(self.pid, number)

    def terminate(self, timeout: float = 20) -> int:
        """SIGTERM, and the exit code."""
        self.send(signal.SIGTERM)
        return self.wait(timeout)

    def wait(self, timeout: float = 20) -> int:
        """The exit code once the process has ended."""
        return self.process.wait(timeout * PATIENCE)

    def output(self) -> str:
        """What the worker wrote so far."""
        return self.log.read_text(errors="replace")


class Fleet:
    """A transport URL, an effect log, and the worker processes that a test starts on them.

    `module` is where their app is.
    """

    def __init__(
        self, folder: Path, url: str, module: str = "support.effect_app", **config: object
    ) -> None:
        self.folder = folder
        self.module = module
        self.url = url
        self.effects = EffectLog(folder / "effects.log")
        self.workers: list[WorkerProcess] = []
        self._config = {"transport": url, "events": "log", **config}

    def environment(self, **extra: object) -> dict[str, str]:
        """The environment of a child: configuration, effect log, and the way to the test modules."""
        settings = {
            f"TASKMQ_{name.upper()}": str(value)
            for name, value in {**self._config, **extra}.items()
        }
        path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
        return {**os.environ, **settings, ENV: str(self.effects.path), "PYTHONPATH": path}

    def start(self, *, config: dict[str, object] | None = None, **options: object) -> WorkerProcess:
        """Start a worker with these options of `Worker` and settings of `Config`."""
        log = self.folder / f"worker-{len(self.workers)}.log"
        worker = WorkerProcess(self.environment(**(config or {})), log, options, self.module)
        self.workers.append(worker)
        return worker

    def wait_started(self, count: int, timeout: float = 20) -> None:
        """Until this many starts stand in the effect log."""
        wait_until(lambda: len(self.effects.all("start")) >= count, timeout=timeout)

    def close(self) -> None:
        """End every worker, frozen ones too."""
        for worker in self.workers:
            if worker.alive:
                os.killpg(worker.pid, signal.SIGKILL)
                worker.wait()


@contextmanager
def fleet(
    folder: Path, url: str, module: str = "support.effect_app", **config: object
) -> Iterator[Fleet]:
    """A fleet whose processes are gone afterwards, whatever happens."""
    workers = Fleet(folder, url, module, **config)
    try:
        yield workers
    finally:
        workers.close()
