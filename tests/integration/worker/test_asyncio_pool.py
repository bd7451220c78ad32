"""What is peculiar to the pool `asyncio`: one loop, watched from outside, with threads beside it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.waiting import wait_until
from taskmq import App, Config, JobState, RemoteError, Retry, current_task
from taskmq.errors import TaskmqError
from taskmq.events import CollectingSink
from taskmq_worker import Worker


def make_app(**config: Any) -> App:
    return App(Config(events="null", pool="asyncio", **config))


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Opened at the end in any case, so that no thread stays behind."""
    event = threading.Event()
    yield event
    event.set()


def deliveries(app: App, handles: list[Any]) -> set[int]:
    return {handle.info.deliveries for handle in handles}


def test_hundreds_of_coroutines_wait_at_once() -> None:
    app = make_app(concurrency=500)
    waiting = 0
    all_here = asyncio.Event()

    @app.task
    async def nap() -> None:
        nonlocal waiting
        waiting += 1
        if waiting == 500:
            all_here.set()
        await asyncio.wait_for(all_here.wait(), 30)

    handles = nap.map_async([()] * 500)
    with Worker(app) as worker:
        worker.run_until_idle(60)
    assert {handle.state for handle in handles} == {JobState.SUCCEEDED}


def test_c008_a_blocking_call_costs_no_lease_and_is_named(caplog: pytest.LogCaptureFixture) -> None:
    app = make_app(concurrency=20, lease=1.0, heartbeat_interval=0.3)
    sink = CollectingSink()
    app.add_sink(sink)
    starts: list[str] = []

    @app.task(name="sleeps")
    async def sleeps() -> None:
        starts.append(current_task().id)
        await asyncio.sleep(2.5)

    @app.task(name="blocks")
    async def blocks() -> None:
        starts.append(current_task().id)
        # What must not be done is what this test is about.
        time.sleep(2.5)  # noqa: ASYNC251

    handles = [sleeps.delay() for _ in range(19)]
    blocker = blocks.delay()
    with caplog.at_level(logging.WARNING), Worker(app) as worker:
        blocked = wait_until(lambda: worker.pool.health().blocked)
        assert blocked == f"job {blocker.id} (blocks) blocks the event loop"
        worker.run_until_idle(60)
        assert worker.pool.health().blocked is None
    assert len(starts) == len(set(starts)) == 20
    assert deliveries(app, [*handles, blocker]) == {1}
    assert {handle.state for handle in [*handles, blocker]} == {JobState.SUCCEEDED}
    warning = next(r.getMessage() for r in caplog.records if "blocks the event loop" in r.message)
    assert blocker.id in warning
    assert "time.sleep(2.5)" in warning
    app.events.flush(5)
    (event,) = sink.of("worker.loop_blocked")
    assert (event.job, event.task) == (blocker.id, "blocks")
    assert "time.sleep(2.5)" in event.data["stack"]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="a task's context is readable since 3.12")
def test_a_coroutine_started_by_a_job_blocks_in_the_name_of_that_job() -> None:
    app = make_app(concurrency=2)

    @app.task(name="parent")
    async def parent() -> None:
        await asyncio.gather(child(), asyncio.sleep(0))

    async def child() -> None:
        # As above.
        time.sleep(1.8)  # noqa: ASYNC251

    handle = parent.delay()
    with Worker(app) as worker:
        assert handle.id in (wait_until(lambda: worker.pool.health().blocked) or "")
        worker.run_until_idle(20)


def test_c055_all_jobs_attempts_and_hooks_share_one_loop() -> None:
    app = make_app(concurrency=20)
    loops: set[int] = set()
    parts: dict[str, Any] = {}

    def here() -> None:
        loops.add(id(asyncio.get_running_loop()))

    @app.on_worker_start
    async def open_pool() -> None:
        here()
        parts["limit"] = asyncio.Semaphore(5)
        parts["keeper"] = asyncio.create_task(asyncio.Event().wait())

    @app.on_worker_stop
    async def close_pool() -> None:
        here()
        parts["keeper"].cancel()
        with pytest.raises(asyncio.CancelledError):
            await parts["keeper"]

    @app.task(retry=Retry(max_attempts=2, base=0.01), on_success=lambda *_: here())
    async def query() -> None:
        here()
        async with parts["limit"]:
            await asyncio.sleep(0.001)
        if current_task().attempt == 1:
            raise ValueError("again")

    handles = query.map_async([()] * 100)
    with Worker(app) as worker:
        worker.run_until_idle(20)
    assert {handle.state for handle in handles} == {JobState.SUCCEEDED}
    assert len(loops) == 1


def test_sync_tasks_run_on_threads_beside_the_loop(gate: threading.Event) -> None:
    app = make_app(concurrency=60)
    threads: set[str] = set()

    @app.task
    def sync(n: int) -> int:
        threads.add(threading.current_thread().name)
        gate.wait(60)
        return n

    @app.task
    async def coro(n: int) -> int:
        threads.add(threading.current_thread().name)
        return n

    blocked = [sync.delay(n) for n in range(8)]
    quick = [coro.delay(n) for n in range(200)]
    with Worker(app) as worker:
        assert [handle.get(10) for handle in quick] == list(range(200))
        assert worker.pool.health().blocked is None
        wait_until(lambda: len(threads) == 9, what="a thread for each sync job, and the loop's")
        gate.set()
        assert [handle.get(10) for handle in blocked] == list(range(8))
    assert "taskmq-loop" in threads
    assert len(threads) == 9


def test_a_slot_is_a_slot_whatever_runs_on_it(gate: threading.Event) -> None:
    app = make_app(concurrency=4)
    running = 0
    most = 0
    lock = threading.Lock()

    def enter(step: int) -> None:
        nonlocal running, most
        with lock:
            running += step
            most = max(most, running)
            if most == 4:
                gate.set()  # until here nobody leaves: however slow, all four slots fill

    @app.task
    def sync() -> None:
        enter(1)
        assert gate.wait(30)
        time.sleep(0.01)
        enter(-1)

    @app.task
    async def coro() -> None:
        enter(1)
        assert await asyncio.to_thread(gate.wait, 30)
        await asyncio.sleep(0.01)
        enter(-1)

    for _ in range(40):
        sync.delay()
        coro.delay()
    with Worker(app) as worker:
        worker.run_until_idle(20)
    assert most == 4


def test_acknowledged_on_receipt_coroutines_do_not_wait_for_one_another() -> None:
    app = make_app(concurrency=50)
    waiting = 0
    all_here = asyncio.Event()

    @app.task(ack="on_receipt")
    async def nap() -> None:
        nonlocal waiting
        waiting += 1
        if waiting == 50:
            all_here.set()
        await asyncio.wait_for(all_here.wait(), 30)

    handles = nap.map_async([()] * 50)
    with Worker(app) as worker:
        worker.run_until_idle(60)
    assert {handle.state for handle in handles} == {JobState.SUCCEEDED}


def test_an_exit_in_a_coroutine_of_its_own_leaves_the_loop_running(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = make_app(concurrency=2)

    @app.task
    async def leaves() -> str:
        background = asyncio.ensure_future(stop())
        await asyncio.sleep(0.05)
        return str(background.done())

    async def stop() -> None:
        sys.exit(3)

    @app.task
    async def fine() -> int:
        return 1

    with Worker(app) as worker:
        assert leaves.delay().get(10) == "True"
        assert fine.delay().get(10) == 1
        worker.run_until_idle(10)
    assert "came out of the event loop" in caplog.text


def test_clean_up_after_a_cancellation_is_not_interrupted_by_the_timeout() -> None:
    app = make_app(concurrency=2)
    steps: list[str] = []

    @app.task(timeout=2.0)
    async def careful() -> None:
        steps.append("start")
        over = asyncio.get_running_loop().time() + 2.3
        try:
            await asyncio.sleep(30)
        finally:
            steps.append("cancelled")
            await asyncio.sleep(over - asyncio.get_running_loop().time())
            steps.append("cleaned up")

    handle = careful.delay()
    with Worker(app) as worker:
        wait_until(lambda: steps)
        handle.revoke()
        worker.run_until_idle(10)
    assert steps == ["start", "cancelled", "cleaned up"]
    assert handle.state is JobState.REVOKED


def test_a_coroutine_that_ignores_its_hard_timeout_makes_the_worker_unhealthy() -> None:
    app = make_app(concurrency=1)
    free = threading.Event()

    @app.task(hard_timeout=0.2)
    async def deaf() -> None:
        while not free.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    @app.task
    async def fine() -> int:
        return 1

    handle = deaf.delay()
    with Worker(app) as worker:
        wait_until(lambda: worker.pool.health().abandoned == 1)
        assert "ignore that they were cancelled" in (worker.pool.health().blocked or "")
        assert fine.delay().get(10) == 1
        with pytest.raises(RemoteError) as raised:
            handle.get(10)
        assert raised.value.reason == "timed out"
        free.set()
        wait_until(lambda: worker.pool.health().blocked is None)
    assert handle.info.deliveries == 1


@pytest.mark.parametrize("how", ["blocks", "swallows"])
def test_what_a_coroutine_brings_after_its_hard_timeout_does_not_count(how: str) -> None:
    app = make_app(concurrency=1)
    ended: list[str] = []

    @app.task(name="late", hard_timeout=0.2, on_failure=lambda ctx, exc: ended.append(str(exc)))
    async def late() -> str:
        if how == "blocks":
            # The loop can't even hear that time is over.
            time.sleep(0.4)  # noqa: ASYNC251
        else:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(30)
        return "too late"

    handle = late.delay()
    with Worker(app) as worker:
        worker.run_until_idle(10)
    with pytest.raises(RemoteError) as raised:
        handle.get(1)
    assert raised.value.reason == "timed out"
    assert ended == ["its hard timeout of 0.2 s was over"]


def test_a_lost_lease_cancels_the_coroutine() -> None:
    app = make_app(concurrency=1)
    seen: list[str] = []

    @app.task
    async def long() -> None:
        seen.append("start")
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    handle = long.delay()
    with Worker(app) as worker:
        wait_until(lambda: seen)
        worker._keeper._lose(worker.holdings.receipts())
        wait_until(lambda: "cancelled" in seen)
        handle.revoke()
        assert handle.wait(10)
    assert seen[:2] == ["start", "cancelled"]


def test_a_thread_that_a_coroutine_left_behind_does_not_hold_up_the_stop(
    gate: threading.Event,
) -> None:
    app = make_app(concurrency=1, shutdown_timeout=0.2)
    entered = threading.Event()

    def stuck() -> None:
        entered.set()
        gate.wait(30)

    @app.task
    async def waits() -> None:
        await asyncio.to_thread(stuck)

    handle = waits.delay()
    with Worker(app):
        assert entered.wait(10)
        began = time.monotonic()
    assert time.monotonic() - began < 5
    assert handle.state is JobState.QUEUED
    leftover = [t for t in threading.enumerate() if t.name.startswith("taskmq-to-thread")]
    assert all(t.daemon for t in leftover)  # the interpreter would not wait for them
    gate.set()


def test_a_loop_that_is_blocked_does_not_hold_up_the_stop(gate: threading.Event) -> None:
    app = make_app(concurrency=2, shutdown_timeout=0.2)
    entered = threading.Event()

    @app.task
    async def blocks() -> None:
        entered.set()
        gate.wait(30)

    handle = blocks.delay()
    with Worker(app) as worker:
        assert entered.wait(10)
        began = time.monotonic()
        worker.stop()
        assert time.monotonic() - began < 15
        assert handle.state is JobState.QUEUED
        gate.set()


# --- the hooks around a worker's life ---


@pytest.mark.parametrize("pool", ["solo", "threads", "asyncio"])
def test_start_and_stop_hooks_run_around_all_jobs_sync_and_async(pool: str) -> None:
    app = App(Config(events="null", pool=pool))
    order: list[str] = []

    @app.on_worker_start
    def first() -> None:
        order.append("start 1")

    @app.on_worker_start
    async def second() -> None:
        await asyncio.sleep(0)
        order.append("start 2")

    @app.on_worker_stop
    async def one() -> None:
        await asyncio.sleep(0)
        order.append("stop 1")

    @app.on_worker_stop
    def two() -> None:
        order.append("stop 2")
        raise ValueError("logged")

    @app.task
    def work() -> None:
        order.append("job")

    work.delay()
    with Worker(app) as worker:
        worker.run_until_idle(10)
    assert order == ["start 1", "start 2", "job", "stop 2", "stop 1"]
    assert first.__name__ == "first"  # the decorator gives the function back


@pytest.mark.parametrize("pool", ["solo", "threads", "asyncio"])
def test_a_start_hook_that_fails_keeps_the_worker_from_starting(pool: str) -> None:
    app = App(Config(events="null", pool=pool))

    @app.on_worker_start
    async def connect() -> None:
        raise OSError("no route")

    @app.task
    def work() -> None: ...

    handle = work.delay()
    with pytest.raises(TaskmqError, match=r"connect failed.*OSError: no route"):
        Worker(app).start()
    assert handle.state is JobState.QUEUED


def test_a_hook_is_a_function() -> None:
    app = make_app()
    wrong: Callable[[], Any] = "x"  # type: ignore[assignment]
    with pytest.raises(TaskmqError, match="on_worker_start decorates a function"):
        app.on_worker_start(wrong)
