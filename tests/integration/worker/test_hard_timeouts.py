"""Hard timeouts where bodies can't be ended: the slot is replaced, the thread counted."""

from __future__ import annotations

import contextlib
import logging
import random
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.waiting import wait_until
from taskmq import App, Config, JobState, RemoteError, Retry, Task, TaskContext, current_task
from taskmq.errors import ConfigError
from taskmq.events import CollectingSink
from taskmq_worker import Worker

POOLS = ["threads", "asyncio"]


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def make_app(pool: str = "threads", **config: Any) -> App:
    return App(Config(events="null", pool=pool, **config))


def slot_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("taskmq-slot")]


@pytest.mark.parametrize("pool", POOLS)
def test_c044_threads_stuck_in_a_system_call_do_not_eat_the_pool_up(
    pool: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app(pool, concurrency=4, max_abandoned_threads=3)
    sink = CollectingSink()
    app.add_sink(sink)
    pairs = [socket.socketpair() for _ in range(4)]
    entered: list[int] = []

    @app.task(name="reads", hard_timeout=0.5)
    def reads(number: int) -> None:
        entered.append(number)
        pairs[number][0].recv(1)

    @app.task
    def normal(n: int) -> int:
        return n

    stuck = [reads.delay(n) for n in range(4)]
    with contextlib.ExitStack() as stack:
        for pair in pairs:
            for end in pair:
                stack.enter_context(end)
        with Worker(app) as worker:
            wait_until(lambda: len(entered) == 4)
            others = [normal.delay(n) for n in range(20)]
            assert [handle.get(10) for handle in others] == list(range(20))
            for handle in stuck:
                with pytest.raises(RemoteError, match="hard timeout of 0.5 s") as raised:
                    handle.get(5)
                assert raised.value.reason == "timed out"
            health = worker.pool.health()
            assert health.abandoned == 4
            assert "4 threads are stuck" in (health.blocked or "")
            assert "max_abandoned_threads=3" in (health.blocked or "")
            for _, end in pairs:
                end.send(b"x")
            wait_until(lambda: worker.pool.health().abandoned == 0)
            assert worker.pool.health().blocked is None
        assert {handle.info.deliveries for handle in stuck} == {1}
        assert {handle.state for handle in stuck} == {JobState.FAILED}
    assert "this worker is unhealthy" in caplog.text
    app.events.flush(5)
    assert {event.job for event in sink.of("worker.thread_abandoned")} == {h.id for h in stuck}


@pytest.mark.parametrize("pool", POOLS)
def test_a_late_return_changes_nothing_and_end_hooks_run_with_the_timeout(
    pool: str, gate: threading.Event
) -> None:
    app = make_app(pool, concurrency=1)
    seen: list[tuple[str, str, int]] = []
    body: list[int] = []

    class Late(Task):
        name = "late"
        hard_timeout = 0.2

        def run(self) -> str:
            body.append(threading.get_ident())
            gate.wait(20)
            current_task().publish("late")
            return "too late"

        def on_success(self, ctx: TaskContext, result: Any, runtime: float) -> None:
            seen.append(("on_success", "", 0))

        def on_failure(self, ctx: TaskContext, exc: BaseException) -> None:
            seen.append(("on_failure", str(exc), threading.get_ident()))

    handle = app.register(Late).delay()
    with Worker(app) as worker:
        with pytest.raises(RemoteError):
            handle.get(10)
        gate.set()
        wait_until(lambda: seen)
        worker.run_until_idle(10)
    assert seen == [("on_failure", "its hard timeout of 0.2 s was over", body[0])]
    assert handle.state is JobState.FAILED
    assert len(body) == 1


@pytest.mark.parametrize("pool", POOLS)
def test_a_job_that_may_be_retried_keeps_key_and_lease_until_its_thread_returns(
    pool: str, gate: threading.Event
) -> None:
    app = make_app(pool, concurrency=2, lease=1.0, heartbeat_interval=0.2)
    starts: list[str] = []

    @app.task(name="keyed", hard_timeout=0.2, concurrency_key="k", retry=Retry(base=0.01))
    def keyed(label: str) -> str:
        starts.append(label)
        if label == "first" and current_task().attempt == 1:
            gate.wait(20)
        return label

    first = keyed.delay("first")
    with Worker(app) as worker:
        wait_until(lambda: worker.pool.health().abandoned == 1)
        second = keyed.delay("second")
        assert not second.wait(2.2)  # two leases long
        assert starts == ["first"]
        assert first.info.deliveries == 1
        gate.set()
        assert second.get(10) == "second"
        assert first.get(10) == "first"
    assert first.info.attempt == 2
    assert sorted(starts) == ["first", "first", "second"]


def test_at_the_stop_an_attempt_whose_thread_is_stuck_ends_as_timed_out(
    gate: threading.Event,
) -> None:
    app = make_app(concurrency=1)

    @app.task(hard_timeout=0.2, retry=Retry(base=30))
    def stuck() -> None:
        gate.wait(30)

    handle = stuck.delay()
    with Worker(app) as worker:
        wait_until(lambda: worker.pool.health().abandoned == 1)
        assert handle.info.state is JobState.RUNNING
        began = time.monotonic()
    assert time.monotonic() - began < 15, "half of what the thread takes"
    info = handle.info
    assert info.state is JobState.RETRYING
    assert info.error is not None
    assert info.error.reason == "timed out"
    gate.set()


def test_a_revoked_job_past_its_hard_timeout_ends_when_its_code_has_returned(
    gate: threading.Event,
) -> None:
    app = make_app(concurrency=1)

    started = threading.Event()

    @app.task(hard_timeout=1.5)
    def stuck() -> None:
        started.set()
        gate.wait(60)

    handle = stuck.delay()
    with Worker(app) as worker:
        assert started.wait(30)
        handle.revoke()
        wait_until(lambda: worker.pool.health().abandoned == 1)
        assert handle.info.cancelling
        gate.set()
        assert handle.wait(10)
    assert handle.state is JobState.REVOKED


def test_an_end_hook_that_hangs_loses_its_slot_and_the_job_keeps_its_state(
    gate: threading.Event,
) -> None:
    app = make_app(concurrency=1)

    @app.task(hard_timeout=0.3, on_success=lambda *_: gate.wait(30))
    def work() -> int:
        return 1

    @app.task
    def other() -> int:
        return 2

    handle = work.delay()
    with Worker(app) as worker:
        assert handle.get(10) == 1
        assert other.delay().get(10) == 2
        assert worker.pool.health().abandoned == 1
        gate.set()
        wait_until(lambda: not worker.pool.health().abandoned)
    assert handle.state is JobState.SUCCEEDED


@pytest.mark.scaled
@pytest.mark.parametrize("pool", POOLS)
def test_c045_timeouts_around_the_end_of_bodies_charge_nobody_else(
    pool: str, seed: int, soak: bool
) -> None:
    count = 20_000 if soak else 1_500
    limit = 0.02
    app = make_app(pool, concurrency=8, max_abandoned_threads=1000, max_finished_jobs=100_000)
    rng = random.Random(seed)
    returned: set[str] = set()

    @app.task(name="near", hard_timeout=limit)
    def near(seconds: float) -> str:
        time.sleep(seconds)
        returned.add(current_task().id)
        return current_task().id

    @app.task(name="quick")
    def quick() -> str:
        return current_task().id

    # One in twenty is well before its limit, and one well after: on every machine both ends are there.
    spread = [limit / 4, 3 * limit, *[0.0] * 18]
    handles = [
        near.delay(spread[n % 20] or limit + rng.uniform(-0.002, 0.002)) for n in range(count)
    ]
    neighbours = [quick.delay() for _ in range(count // 10)]
    with Worker(app) as worker:
        worker.run_until_idle(count / 10)
        wait_until(lambda: worker.pool.health().abandoned == 0)
        if pool == "threads":
            wait_until(lambda: len(slot_threads()) == 8)
        assert [handle.get(1) for handle in neighbours] == [handle.id for handle in neighbours]
        ends = {"ok": 0, "timed out": 0}
        for handle in handles:
            try:
                assert handle.get(1) == handle.id
                ends["ok"] += 1
            except RemoteError as error:
                assert error.reason == "timed out"
                ends["timed out"] += 1
    assert returned == {handle.id for handle in handles}
    assert sum(ends.values()) == count
    assert min(ends.values()) > 0, ends


@pytest.mark.parametrize(
    ("pool", "word"), [("solo", "nothing"), ("threads", "abandoned"), ("asyncio", "cancelled")]
)
def test_c043_what_can_not_be_enforced_warns_at_the_start(
    pool: str, word: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app(pool)

    @app.task(name="limited", hard_timeout=1)
    def limited() -> None: ...

    with caplog.at_level(logging.WARNING), Worker(app):
        pass
    assert f"can't be enforced in the pool {pool!r}" in caplog.text
    assert word in caplog.text


def test_c042_a_timeout_after_the_hard_one_is_refused() -> None:
    app = make_app()
    with pytest.raises(ConfigError, match="must not be more than its hard_timeout"):
        app.task(name="a", timeout=2, hard_timeout=1)(lambda: None)
    for wrong in ({"timeout": 0}, {"timeout": -1}, {"hard_timeout": 0}, {"hard_timeout": -1}):
        with pytest.raises(ConfigError):
            app.task(name="b", **wrong)(lambda: None)  # type: ignore[call-overload]

    @app.task(name="c", hard_timeout=1)
    def limited() -> None: ...

    with pytest.raises(ConfigError, match="hard_timeout"):
        limited.apply_async(timeout=5)


def test_jobs_without_a_hard_timeout_start_no_watching_thread(tmp_path: Path) -> None:
    app = make_app()

    @app.task
    def plain() -> int:
        return 1

    with Worker(app) as worker:
        assert plain.delay().get(10) == 1
        names = {t.name for t in threading.enumerate()}
        worker.run_until_idle(10)
    assert "taskmq-hard-timeouts" not in names
