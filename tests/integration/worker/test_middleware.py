"""Middleware around the attempts that a worker runs: order, thread, what it may do, on each pool."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from taskmq import App, Config, JobState, Reject, Retry, Task, TaskContext
from taskmq_worker import Worker

POOLS = ("threads", "solo", "asyncio")


def run(app: App) -> None:
    with Worker(app) as worker:
        worker.run_until_idle(timeout=20)


class Tracing:
    """A middleware as an object."""

    def __init__(self, name: str, order: list[str], threads: set[int]) -> None:
        self.name = name
        self.order = order
        self.threads = threads

    def __call__(self, ctx: TaskContext, call_next: Callable[[], Any], /) -> Any:
        self.threads.add(threading.get_ident())
        self.order.append(f"{self.name} in {ctx.attempt} {ctx.args}")
        ctx.trail = [*getattr(ctx, "trail", []), self.name]
        try:
            return call_next()
        finally:
            self.order.append(f"{self.name} out {ctx.args}")


@pytest.mark.parametrize("pool", POOLS)
def test_the_first_added_is_outermost_and_end_hooks_run_outside(pool: str) -> None:
    app = App(Config(events="null", pool=pool, concurrency=1))
    order: list[str] = []
    seen: set[int] = set()

    class Traced(Task[..., Any]):
        def before_start(self, ctx: TaskContext) -> None:
            order.append("before_start")

        def run(self, n: int) -> int:
            seen.add(threading.get_ident())
            order.append(f"run {self.request.trail}")
            return n

        def on_success(self, ctx: TaskContext, result: Any, runtime: float) -> None:
            order.append(f"on_success {ctx.trail}")

        def after_return(
            self, ctx: TaskContext, state: JobState, result: Any = None, exc: Any = None
        ) -> None:
            order.append("after_return")

    task = app.register(Traced)
    app.add_middleware(Tracing("a", order, seen))
    app.add_middleware(Tracing("b", order, seen))
    task.delay(7)
    run(app)
    assert order == [
        "a in 1 ()",
        "b in 1 ()",
        "before_start",
        "run ['a', 'b']",
        "b out (7,)",
        "a out (7,)",
        "on_success ['a', 'b']",
        "after_return",
    ]
    assert len(seen) == 1


@pytest.mark.parametrize("pool", POOLS)
def test_it_runs_for_each_attempt_and_may_refuse_replace_and_skip(pool: str) -> None:
    app = App(Config(events="null", pool=pool, concurrency=1))
    ran: list[str] = []

    def judge(ctx: TaskContext, call_next: Callable[[], Any]) -> Any:
        ran.append(f"{ctx.headers.get('what')} {ctx.attempt}")
        if ctx.headers.get("what") == "refuse":
            raise Reject("not for you")
        if ctx.headers.get("what") == "skip":
            return "skipped"
        if ctx.headers.get("what") == "fail" and ctx.attempt == 1:
            raise ValueError("once")
        return f"<{call_next()}>"

    app.add_middleware(judge)
    bodies: list[str] = []

    @app.task(retry=Retry(max_attempts=2, base=0.0, jitter=False))
    def work(name: str) -> str:
        bodies.append(name)
        return name

    def send(what: str) -> Any:
        return work.apply_async((what,), headers={"what": what})

    refused, skipped, failing, plain = map(send, ("refuse", "skip", "fail", "plain"))
    revoked = send("revoked")
    revoked.revoke()
    run(app)
    assert refused.state is JobState.FAILED
    assert app.transport.get_dead(refused.id) is not None
    assert skipped.get(timeout=1) == "skipped"
    assert failing.get(timeout=1) == "<fail>"
    assert plain.get(timeout=1) == "<plain>"
    assert sorted(bodies) == ["fail", "plain"]
    assert sorted(ran) == ["fail 1", "fail 2", "plain 1", "refuse 1", "skip 1"]


def test_around_async_tasks_it_may_be_async_and_sees_the_end() -> None:
    app = App(Config(events="null", pool="asyncio", concurrency=4))
    order: list[str] = []

    async def watching(ctx: TaskContext, call_next: Callable[[], Any]) -> Any:
        order.append("in")
        try:
            return [await call_next()]
        finally:
            order.append("out")

    def passing(ctx: TaskContext, call_next: Callable[[], Any]) -> Any:
        return call_next()

    app.add_middleware(watching)
    app.add_middleware(passing)

    @app.task
    async def work() -> str:
        order.append("run")
        return "r"

    handle: Any = work.delay()
    run(app)
    assert handle.get(timeout=1) == ["r"]
    assert order == ["in", "run", "out"]
