"""C153: eager mode and a worker tell the same story of the same jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.backends import ALL, Backends
from taskmq import App, Config, Reject, RemoteError, Retry
from taskmq.events import CollectingSink
from taskmq_worker import Worker


def story(app: App, *, eager: bool) -> tuple[list[Any], list[Any], list[str]]:
    sink = CollectingSink()
    app.add_sink(sink)
    hooks: list[str] = []

    def on_failure(ctx: Any, exc: BaseException) -> None:
        hooks.append(f"failure {type(exc).__name__}")

    @app.task(name="ok")
    def ok(pair: tuple[int, int]) -> list[int]:
        hooks.append(type(pair).__name__)
        return list(pair)

    @app.task(name="flaky", bind=True, retry=Retry(max_attempts=3, base=0.01, jitter=False))
    def flaky(self: Any) -> int:
        if self.request.attempt < 3:
            raise ValueError("again")
        return int(self.request.attempt)

    @app.task(
        name="bad", retry=Retry(max_attempts=2, base=0.01, jitter=False), on_failure=on_failure
    )
    def bad() -> None:
        raise KeyError("bad")

    @app.task(name="rejected", retry=Retry(max_attempts=5))
    def rejected() -> None:
        raise Reject("no thanks")

    @app.task(name="unstorable", retry=Retry(max_attempts=5))
    def unstorable() -> Any:
        return object()

    outcomes: list[Any] = []
    for task, args in ((ok, ((1, 2),)), (flaky, ()), (bad, ()), (rejected, ()), (unstorable, ())):
        handle = task.apply_async(args)
        if not eager:
            with Worker(app) as worker:
                worker.run_until_idle(timeout=20)
        try:
            outcomes.append((str(handle.state), handle.get(timeout=1)))
        except RemoteError as error:
            outcomes.append((str(handle.state), error.type, error.message, error.reason))
    app.events.flush(5)
    told = [
        (event.type, event.task, event.attempt)
        for event in sink.events
        if event.type.startswith("task.")
    ]
    return outcomes, told, hooks


@pytest.mark.parametrize("scheme", ALL)
def test_eager_and_worker_agree(scheme: str, tmp_path: Path, backends: Backends) -> None:
    transport = backends.url(scheme, tmp_path)
    with App(Config(transport=transport, events="null")) as app:
        real = story(app, eager=False)
    with App(Config(eager=True, events="null")) as app:
        pretended = story(app, eager=True)
    assert pretended[0] == real[0]
    # A retry that is due at once may start before the end of the attempt before has been told.
    assert sorted(pretended[1]) == sorted(real[1])
    assert pretended[2] == real[2]
