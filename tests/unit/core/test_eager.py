"""Eager mode: the states, retries, hooks and events of a worker, at the call (C153)."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from taskmq import (
    App,
    Config,
    ConfigError,
    JobState,
    RemoteError,
    Retry,
    Task,
    TaskContext,
    current_task,
)
from taskmq.clock import SYSTEM_CLOCK
from taskmq.errors import EncodeError, TaskmqWarning
from taskmq.events import CollectingSink
from taskmq.testing import eager_app, run_until_idle


def test_a_job_has_run_when_the_call_returns() -> None:
    with eager_app() as app:
        handle = app.task(name="t")(lambda n: n * 2).delay(4)
        assert handle.state is JobState.SUCCEEDED
        assert handle.get() == 8


def test_no_transport_is_opened() -> None:
    with eager_app(transport="nowhere://host/1") as app:
        assert app.task(name="t")(lambda: 1).delay().get() == 1


def test_arguments_and_results_go_through_the_codec() -> None:
    with eager_app() as app:
        work = app.task(name="t")(lambda rows: rows)
        rows: list[Any] = [(1, 2)]
        result = work.delay(rows).get()
        assert result == [[1, 2]]
        assert result is not rows
        with pytest.raises(EncodeError):
            work.delay(threading.Lock())


def test_retries_come_one_after_the_other_without_sleeping() -> None:
    depths: list[int] = []

    with eager_app() as app:

        @app.task(retry=Retry(max_attempts=30, base=300, jitter=False))
        def flaky() -> int:
            import inspect

            depths.append(len(inspect.stack()))
            if current_task().attempt < 30:
                raise ValueError("again")
            return current_task().attempt

        began = SYSTEM_CLOCK.monotonic()
        assert flaky.delay().get() == 30
        assert SYSTEM_CLOCK.monotonic() - began < 10
        assert len(set(depths)) == 1


def test_a_failure_leaves_a_failed_handle() -> None:
    with eager_app() as app:

        @app.task
        def fail() -> None:
            raise ValueError("no")

        handle = fail.delay()
        assert handle.info.dead
        with pytest.raises(RemoteError, match="ValueError"):
            handle.get()


def test_what_is_due_later_runs_at_once() -> None:
    with eager_app() as app:
        assert app.task(name="t")(lambda: 1).apply_async(delay=86_400 * 300).get() == 1


def test_nested_calls_and_published_jobs_run() -> None:
    with eager_app() as app:
        order: list[str] = []

        @app.task
        def child(name: str) -> str:
            order.append(name)
            return name

        @app.task(bind=True)
        def parent(self: Task) -> str:
            self.request.publish(child, "published")
            result = child.delay("called").get(timeout=1)
            order.append("parent")
            return result

        assert parent.delay().get() == "called"
        run_until_idle(app)
        assert order == ["called", "parent", "published"]


def test_hooks_run_as_in_a_worker() -> None:
    calls: list[str] = []

    class Hooked(Task):
        retry_policy = Retry(max_attempts=2)

        def before_start(self, ctx: TaskContext) -> None:
            calls.append("before_start")

        def run(self) -> None:
            raise ValueError("no")

        def on_retry(self, ctx: TaskContext, exc: BaseException, delay: float) -> None:
            calls.append("on_retry")

        def on_failure(self, ctx: TaskContext, exc: BaseException) -> None:
            calls.append(f"on_failure {current_task().deliveries}")

    with eager_app() as app:
        app.register(Hooked).delay()
    assert calls == ["before_start", "on_retry", "before_start", "on_failure 1"]


def test_async_tasks_share_one_loop() -> None:
    with eager_app() as app:
        loops: set[int] = set()

        @app.task
        async def work(n: int) -> int:
            loops.add(id(asyncio.get_running_loop()))
            await asyncio.sleep(0)
            return n

        @app.task
        async def nested() -> int:
            handle = await work.adelay(5)
            return handle.get(timeout=1)

        assert work.delay(1).get() == 1
        assert nested.delay().get() == 5
        assert len(loops) == 1

        async def from_a_loop() -> int:
            handle = await work.adelay(3)
            return await handle.aget(timeout=5)

        assert asyncio.run(from_a_loop()) == 3


def test_keys_admit_one_job() -> None:
    with eager_app() as app:
        runs: list[int] = []
        work = app.task(name="t")(runs.append)
        first = work.apply_async((1,), key="k")
        assert work.apply_async((2,), key="k").id == first.id
        assert runs == [1]


def test_a_parked_job_is_completed() -> None:
    with eager_app() as app:
        tokens: list[str] = []

        @app.task(completion="external", retry=Retry(max_attempts=2))
        def start() -> None:
            tokens.append(current_task().completion_token)

        handle = start.delay()
        assert handle.state is JobState.WAITING
        app.fail(tokens[0], "try again", retryable=True)
        assert handle.state is JobState.WAITING
        app.complete(tokens[1], 5)
        assert handle.get() == 5


def test_jobs_that_have_not_ended_are_named_at_the_end() -> None:
    def leave_one() -> None:
        with eager_app() as app:
            app.task(name="t", completion="external")(lambda: None).delay()

    with pytest.warns(TaskmqWarning, match="have not ended"):
        leave_one()


def test_an_app_s_own_tasks_run_eagerly_inside_the_block() -> None:
    app = App(Config(events="null"))
    work = app.task(name="t")(lambda: 1)
    with eager_app(app):
        assert work.delay().get() == 1
    assert app.config.eager is False
    assert work.delay().state is JobState.QUEUED
    app.close()


@pytest.mark.parametrize("eager", [True, False])
def test_the_events_are_those_of_a_worker(eager: bool) -> None:
    with App(Config(eager=eager, events="null", concurrency=1)) as app:
        sink = CollectingSink()
        app.add_sink(sink)

        @app.task(name="flaky", retry=Retry(max_attempts=2, base=0))
        def flaky() -> str:
            if current_task().attempt == 1:
                raise ValueError("once")
            return "done"

        @app.task(name="broken")
        def broken() -> None:
            raise KeyError("gone")

        for task in (flaky, broken):
            task.delay()
            run_until_idle(app, timeout=20)
        told = [(e.type, e.task, e.attempt) for e in sink.events if e.type.startswith("task.")]
        assert told == [
            ("task.submitted", "flaky", None),
            ("task.started", "flaky", 1),
            ("task.retrying", "flaky", 1),
            ("task.started", "flaky", 2),
            ("task.succeeded", "flaky", 2),
            ("task.submitted", "broken", None),
            ("task.started", "broken", 1),
            ("task.failed", "broken", 1),
        ]
        failed = sink.of("task.failed")[0].data
        assert (failed["error"], failed["reason"]) == ("KeyError", "exception")


def test_without_a_worker_the_helper_names_the_distribution(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from taskmq import plugins

    monkeypatch.setattr(plugins, "_entry_points", lambda kind: ())
    app = App(Config(events="null"))
    with pytest.raises(ConfigError, match="taskmq-worker"):
        run_until_idle(app)


def test_a_job_that_can_t_be_run_ends_all_the_same() -> None:
    with eager_app() as app:
        handle = app.send("nobody.knows", (1,))
        with pytest.raises(RemoteError, match=r"nobody\.knows"):
            handle.get()


def test_on_receipt_is_acknowledged_before_the_work() -> None:
    with eager_app() as app:
        sink = CollectingSink()
        app.add_sink(sink)

        @app.task(ack="on_receipt", retry=Retry(max_attempts=5))
        def work() -> str:
            assert app.transport.stats()[0].in_flight >= 0
            raise ValueError("no")

        handle = work.delay()
        assert (handle.state, handle.info.attempt) == (JobState.FAILED, 1)
        assert len(sink.of("task.failed")) == 1


def test_results_go_to_the_separate_store() -> None:
    from taskmq.transport.contract import ResultStore

    class Shelf(ResultStore):
        kept: dict[Any, Any] = {}

        def put(self, batch: Any, ttl: float) -> None:
            self.kept.update({(job, receipt): payload for job, receipt, payload in batch})

        def get(self, ids: Any) -> list[Any]:
            return [self.kept.get(each) for each in ids]

        def delete(self, ids: Any) -> None: ...

        def close(self) -> None: ...

    shelf = Shelf()
    with eager_app(result=shelf, result_ttl=60) as app:
        handle = app.task(name="t")(lambda: [1]).delay()
        assert list(shelf.kept) == [(handle.id, app.transport.get_jobs([handle.id])[0].receipt)]  # type: ignore[union-attr]
        assert handle.get() == [1]


def test_an_async_task_may_call_another_without_awaiting() -> None:
    with eager_app() as app:

        @app.task
        async def child(n: int) -> int:
            await asyncio.sleep(0)
            return n

        @app.task
        async def parent() -> int:
            return child.delay(4).get(timeout=1)

        assert parent.delay().get() == 4
