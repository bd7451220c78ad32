"""Workflows for tests: an app with simple tasks on any backend, and a worker that runs until all is done."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

from taskmq import App, Config, Retry, current_task
from taskmq.testing import run_until_idle
from taskmq.workflow import WorkflowHandle

BACKENDS = ("memory", "sqlite")
"""Where every test of workflows runs."""


class Boom(Exception):
    """What failing steps raise."""


class Flows:
    """An app, its tasks, and what they did."""

    def __init__(self, url: str, **config: Any) -> None:
        settings: dict[str, Any] = {"transport": url, "concurrency": 4, "events": "null", **config}
        self.app = app = App(Config(**settings), name="flows")
        self.calls: Counter[str] = Counter()
        self.order: list[str] = []
        self.fail: dict[str, int] = {}
        """How often the step of this name still fails; -1 for ever."""
        self._lock = threading.Lock()

        def note(result: Any) -> Any:
            name = current_task().step or current_task().id
            with self._lock:
                self.calls[name] += 1
                self.order.append(name)
                left = self.fail.get(name, 0)
                if left > 0:
                    self.fail[name] = left - 1
            if left:
                raise Boom(f"{name} failed")
            return result

        @app.task(name="give")
        def give(value: Any = None) -> Any:
            return note(value)

        @app.task(name="add")
        def add(a: int, b: int = 1) -> int:
            return int(note(a + b))

        @app.task(name="gather")
        def collect(values: list[Any]) -> Any:
            return note(values)

        @app.task(name="retried", retry=Retry(max_attempts=3, base=0.01))
        def retried(value: Any = None) -> Any:
            return note(value)

        @app.task(name="errors")
        def errors(errors: list[Any]) -> Any:
            return note(errors)

        self.note = note
        self.give, self.add, self.collect = give, add, collect
        self.retried, self.errors = retried, errors

    def drain(self, timeout: float = 30) -> None:
        """Run a worker until nothing is left to run."""
        run_until_idle(self.app, timeout=timeout)

    def run(self, name: str, timeout: float = 30, **params: Any) -> WorkflowHandle[Any]:
        """Submit a run and work until nothing is left to do."""
        run = self.app.submit_workflow(name, params)
        self.drain(timeout)
        return run

    def states(self, run: WorkflowHandle[Any]) -> dict[str, str]:
        """The states of a run's steps."""
        return {name: step.state.value for name, step in run.status().steps.items()}

    def close(self) -> None:
        self.app.close()
