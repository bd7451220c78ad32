"""What tests of the pool `processes` share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.effects import ENV, EffectLog
from support.process_app import APP, make_app
from taskmq import App, Config
from taskmq_worker import Worker


class Bench:
    """An app on a transport of its own, its effect log, and workers with children."""

    def __init__(self, app: App, effects: EffectLog) -> None:
        self.app = app
        self.effects = effects

    @contextmanager
    def worker(self, concurrency: int = 1, **options: Any) -> Iterator[Worker]:
        """A running worker with so many children."""
        given: dict[str, Any] = {
            "pool": "processes",
            "app_path": APP,
            "shutdown_timeout": 5,
            **options,
        }
        with Worker(self.app, concurrency=concurrency, **given) as worker:
            yield worker

    def task(self, name: str) -> Any:
        """A task of the app."""
        return self.app.tasks[name]


@contextmanager
def bench(
    monkeypatch: pytest.MonkeyPatch, folder: Path, url: str, **config: Any
) -> Iterator[Bench]:
    """A bench whose children see the same configuration."""
    settings = {"transport": url, "events": "null", **config}
    for name, value in settings.items():
        monkeypatch.setenv(f"TASKMQ_{name.upper()}", str(value))
    monkeypatch.setenv(ENV, str(folder / "effects.log"))
    with make_app(Config()) as app:
        yield Bench(app, EffectLog(folder / "effects.log"))


def is_alive(pid: int) -> bool:
    """Whether a process runs: not gone, and no zombie either."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"


def children_of(pid: int | None = None) -> list[int]:
    """The pids of a process's children that are pool children."""
    listing = Path(f"/proc/{pid or os.getpid()}/task")
    found: list[int] = []
    for each in listing.glob("*/children"):
        for child in map(int, each.read_text().split()):
            try:
                command = Path(f"/proc/{child}/cmdline").read_bytes()
            except OSError:
                continue
            if b"taskmq_worker.children" in command and is_alive(child):
                found.append(child)
    return sorted(found)
