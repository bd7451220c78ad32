"""What tests for every pool share: one app, one effect log, workers of one kind."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from support.effects import ENV, EffectLog
from support.pool_app import APP, LIFE, make_app, make_async_app
from support.waiting import wait_until
from taskmq import App, Config, TaskHandle
from taskmq_worker import Worker

KINDS = ("solo", "threads", "asyncio", "asyncio-sync", "processes")
"""The pools; `asyncio` with coroutines, `asyncio-sync` with the sync tasks beside them."""


class Step(NamedTuple):
    """One effect of a job: what, its values, and in which process and thread."""

    what: str
    values: dict[str, Any]
    place: tuple[int, int]
    attempt: int


class Site:
    """An app and workers of one kind of pool."""

    def __init__(self, kind: str, app: App, effects: EffectLog) -> None:
        self.kind = kind
        self.pool = kind.partition("-")[0]
        self.app = app
        self.effects = effects

    @contextmanager
    def worker(self, concurrency: int = 2, **options: Any) -> Iterator[Worker]:
        """A running worker; in `solo` its jobs run on a thread that this starts."""
        given: dict[str, Any] = {
            "pool": self.pool,
            "app_path": APP,
            "shutdown_timeout": 5,
            **options,
        }
        worker = Worker(self.app, concurrency=concurrency, **given)
        if self.pool != "solo":
            with worker:
                yield worker
            return
        runner = threading.Thread(target=worker.run, name="taskmq-test-runner")
        runner.start()
        try:
            wait_until(lambda: worker.state == "running")
            yield worker
        finally:
            worker.stop()
            runner.join(20)
            assert not runner.is_alive()

    def task(self, name: str) -> Any:
        """The task of this name that fits the kind."""
        return self.app.tasks[f"a_{name}" if self.kind == "asyncio" else name]

    def steps(self, handle: TaskHandle[Any]) -> list[Step]:
        """What a job did so far."""
        found: list[Step] = []
        for effect in self.effects.all():
            if effect.job == handle.id:
                values = json.loads(effect.label)
                place = (effect.pid, values.pop("thread"))
                found.append(Step(effect.what, values, place, effect.attempt))
        return found

    def names(self, handle: TaskHandle[Any]) -> list[str]:
        """The names of what a job did so far."""
        return [step.what for step in self.steps(handle)]

    def order(self) -> list[str]:
        """Which labels started and ended so far, of all jobs."""
        return [
            f"{e.what} {json.loads(e.label)['label']}" for e in self.effects.all() if e.job != LIFE
        ]

    def wait_for(self, handle: TaskHandle[Any], what: str, times: int = 1) -> None:
        """Until a job has done this."""
        wait_until(lambda: self.names(handle).count(what) >= times, timeout=20, what=what)


@contextmanager
def pool_site(
    kind: str, monkeypatch: pytest.MonkeyPatch, folder: Path, url: str = "memory://", **config: Any
) -> Iterator[Site]:
    """A site whose child processes see the same configuration."""
    for name, value in {"transport": url, "events": "null", **config}.items():
        monkeypatch.setenv(f"TASKMQ_{name.upper()}", str(value))
    monkeypatch.setenv(ENV, str(folder / "effects.log"))
    make = make_async_app if kind.startswith("asyncio") else make_app
    with make(Config()) as app:
        yield Site(kind, app, EffectLog(folder / "effects.log"))
