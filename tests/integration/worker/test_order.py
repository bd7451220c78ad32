"""Priorities, prefetching and sharing, on the memory transport."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from support.waiting import wait_until
from taskmq import App, Config, JobState, QueueConfig, current_task
from taskmq_worker import Worker


def make_app(**config: Any) -> App:
    config.setdefault("concurrency", 4)
    return App(Config(events="null", **config))


def yields(app: App, job: str) -> int:
    record = app.transport.get_jobs([job])[0]
    assert record is not None
    return record.yields


def test_the_next_free_slot_runs_the_critical_job() -> None:
    app = make_app(concurrency=2)
    order: list[int] = []

    @app.task
    def work() -> None:
        order.append(current_task().priority)
        time.sleep(0.15)

    work.map_async([()] * 3000, priority=-5)
    with Worker(app) as worker:
        wait_until(lambda: len(order) >= 6)
        urgent = work.apply_async(priority=9)
        before = len(order)
        wait_until(lambda: urgent.state is JobState.SUCCEEDED)
        worker.stop(0)
    assert order.index(9) - before <= 2, "at most what the two slots had just taken"


@pytest.mark.parametrize("prefetch", [None, 16])
def test_order_follows_priority_whatever_is_buffered(prefetch: int | None) -> None:
    app = make_app(concurrency=2, prefetch=prefetch)
    order: list[int] = []

    @app.task
    def work() -> None:
        order.append(current_task().priority)
        time.sleep(0.06)

    work.map_async([()] * 40, priority=-1)
    with Worker(app) as worker:
        wait_until(lambda: len(order) >= 4)
        with_priorities = [5, 0, -9, 9]
        for priority in with_priorities:
            work.apply_async(priority=priority)
        before = len(order)
        worker.run_until_idle(timeout=60)
    after = [priority for priority in order if priority != -1]
    # Those that were submitted while a slot was free may start in the order of their submission.
    assert after[-1] == -9
    assert order[-1] == -9
    assert set(after[:3]) == {5, 0, 9}
    assert max(order.index(p) for p in (9, 5, 0)) - before <= 6


def test_unstarted_lower_jobs_are_yielded_to_a_more_urgent_one() -> None:
    app = make_app(concurrency=1, prefetch=4)
    gate, order = threading.Event(), list[str]()

    @app.task
    def work(label: str) -> None:
        order.append(label)
        assert gate.wait(10)

    low = work.map_async([(f"low-{n}",) for n in range(5)], priority=-5)
    with Worker(app) as worker:
        wait_until(lambda: len(worker.buffer) == 4)
        work.apply_async(("high",), priority=5)
        wait_until(lambda: any(yields(app, h.id) for h in low), what="one was yielded")
        assert worker.buffer.unstarted()[0].delivery.priority == 5
        assert len(worker.buffer) == 4
        gate.set()
        worker.run_until_idle(timeout=10)
    assert order[:2] == ["low-0", "high"]
    assert [yields(app, h.id) for h in low] == [0, 0, 0, 0, 1], "the lowest and last, once"
    assert [h.info.deliveries for h in low] == [1] * 5


def test_at_its_last_yield_a_job_is_kept_and_runs() -> None:
    app = make_app(concurrency=1, prefetch=1, max_yields=0)
    gate, order = threading.Event(), list[str]()

    @app.task
    def work(label: str) -> None:
        order.append(label)
        assert gate.wait(10)

    work.delay("first")
    low = work.apply_async(("low",), priority=-5)
    with Worker(app) as worker:
        wait_until(lambda: len(worker.buffer) == 1)
        work.apply_async(("high",), priority=5)
        wait_until(
            lambda: len(worker.buffer) == 2 and any(r.keep for r in worker.buffer.unstarted())
        )
        gate.set()
        worker.run_until_idle(timeout=10)
    assert order == ["first", "high", "low"]
    assert yields(app, low.id) == 0


def test_a_running_job_is_never_interrupted_for_priority() -> None:
    app = make_app(concurrency=1)
    gate, order = threading.Event(), list[str]()

    @app.task
    def work(label: str) -> None:
        order.append(f"start {label}")
        assert gate.wait(10)
        order.append(f"end {label}")

    low = work.apply_async(("low",), priority=-9)
    with Worker(app) as worker:
        wait_until(lambda: order == ["start low"])
        work.apply_async(("high",), priority=9)
        time.sleep(0.1)
        gate.set()
        worker.run_until_idle(timeout=10)
    assert order == ["start low", "end low", "start high", "end high"]
    assert low.info.deliveries == 1


def test_reserved_slots_are_kept_for_normal_work() -> None:
    app = make_app(concurrency=3, reserved_slots=1)
    gate, running = threading.Event(), list[int]()

    @app.task
    def work() -> None:
        running.append(current_task().priority)
        assert gate.wait(10)

    work.map_async([()] * 10, priority=9)
    with Worker(app) as worker:
        wait_until(lambda: len(running) == 2)
        work.delay()
        wait_until(lambda: len(running) == 3)
        assert sorted(running) == [0, 9, 9]
        gate.set()
        worker.run_until_idle(timeout=10)
    assert running.count(9) == 10


def test_queues_share_by_weight_inside_a_band() -> None:
    queues = {"big": QueueConfig(weight=3), "small": QueueConfig(weight=1)}
    app = make_app(concurrency=1, queues=queues)
    order: list[str] = []

    @app.task
    def work() -> None:
        order.append(current_task().queue)

    work.map_async([()] * 100, queue="big")
    work.map_async([()] * 100, queue="small")
    with Worker(app) as worker:
        worker.run_until_idle(timeout=10)
    assert order[:40].count("big") == 30


def test_an_idle_worker_gets_its_share_of_long_jobs() -> None:
    """C057 at a tenth of its size: two workers, none hoards."""
    app = make_app(concurrency=1)
    by: list[str] = []

    @app.task
    def work(seconds: float) -> None:
        by.append(current_task().worker[:1])
        time.sleep(seconds)

    # Two whole jobs late on either side is a slow machine; a hoarder would leave nothing at all.
    work.map_async([(0.0,)] * 20)
    with Worker(app, worker_id="a") as first:
        first.run_until_idle(timeout=10)
        by.clear()
        work.map_async([(0.4,)] * 8)
        wait_until(lambda: by)
        with Worker(app, worker_id="b") as second:
            second.run_until_idle(timeout=60)
    assert min(by.count("a"), by.count("b")) >= 2


def test_unstarted_automatic_reservations_go_back_in_their_place() -> None:
    app = make_app(concurrency=1)
    gate, order = threading.Event(), list[int]()

    @app.task
    def work(number: int) -> None:
        order.append(number)
        if number == 50:
            assert gate.wait(20)

    handles = work.map_async([(n,) for n in range(100)])
    with Worker(app) as worker:
        wait_until(lambda: order and order[-1] == 50)

        def given_back() -> bool:
            (stats,) = app.transport.stats(["default"])
            return (stats.pending, stats.in_flight) == (49, 1)

        wait_until(given_back, timeout=2, what="what can't start soon goes back")
        assert not len(worker.buffer)
        gate.set()
        worker.run_until_idle(timeout=10)
    assert order == list(range(100))
    assert {h.info.deliveries for h in handles} == {1}


def test_stopping_gives_the_buffer_back_in_order_and_uncounted() -> None:
    app = make_app(concurrency=1, prefetch=16)
    order: list[int] = []

    @app.task
    def work(number: int) -> None:
        order.append(number)
        time.sleep(0.02)

    handles = work.map_async([(n,) for n in range(60)])
    worker = Worker(app)
    worker.start()
    wait_until(lambda: len(order) > 5)
    worker.stop()
    done = len(order)
    assert done < 60
    assert {h.info.deliveries for h in handles[done:]} == {0}
    assert {h.state for h in handles[done:]} == {JobState.QUEUED}
    with Worker(app) as again:
        again.run_until_idle(timeout=10)
    assert order == list(range(60))
