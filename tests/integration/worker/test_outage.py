"""Transports that are away, replies that are lost, holders that are late."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from support.faulty import FaultyTransport
from support.waiting import wait_until
from taskmq import App, Config, JobState, Retry, Task, TransportError, current_task
from taskmq.clock import Clock, FakeClock
from taskmq.errors import TaskmqError
from taskmq.events import CollectingSink
from taskmq.transport.types import QueueShare, ReapRequest, ReserveRequest
from taskmq_worker import Worker


def make_app(transport: FaultyTransport, **config: Any) -> App:
    config.setdefault("concurrency", 2)
    return App(Config(transport=transport, events="null", **config))


def test_a_lost_reply_of_reserve_costs_no_delivery() -> None:
    transport = FaultyTransport()
    app = make_app(transport)

    @app.task
    def work() -> int:
        return current_task().deliveries

    transport.lose_replies("reserve", 2)
    handles = work.map_async([()] * 20)
    with Worker(app) as worker:
        worker.run_until_idle(timeout=10)
    assert {handle.get(timeout=1) for handle in handles} == {1}
    assert transport.calls["reclaim"] >= 1


def test_reclaim_keeps_what_runs_and_what_waits_to_be_settled() -> None:
    transport = FaultyTransport()
    app = make_app(transport)
    gate, starts = threading.Event(), list[str]()

    @app.task
    def work(label: str) -> None:
        starts.append(label)
        if label == "slow":
            assert gate.wait(10)

    slow = work.delay("slow")
    with Worker(app) as worker:
        wait_until(lambda: starts == ["slow"])
        transport.lose_replies("reserve")
        work.delay("other")
        wait_until(lambda: transport.calls["reclaim"] >= 1)
        wait_until(lambda: starts.count("other") == 1)
        assert slow.state is JobState.RUNNING
        gate.set()
        worker.run_until_idle(timeout=10)
    assert sorted(starts) == ["other", "slow"]
    assert slow.info.deliveries == 1


def test_two_workers_of_one_name_leave_each_other_what_they_run() -> None:
    transport = FaultyTransport()
    app = make_app(transport)
    gate, starts = threading.Event(), list[str]()

    @app.task
    def work(label: str) -> None:
        starts.append(label)
        if label == "slow":
            assert gate.wait(10)

    slow = work.delay("slow")
    with Worker(app, worker_id="pod-0", concurrency=1):
        wait_until(lambda: starts == ["slow"])
        transport.lose_replies("reserve")
        with Worker(app, worker_id="pod-0", concurrency=2) as second:
            work.delay("other")
            wait_until(lambda: transport.calls["reclaim"] >= 1 and "other" in starts)
            states = [slow.state]
            gate.set()
            second.run_until_idle(timeout=10)
    assert sorted(starts) == ["other", "slow"]
    assert [*states, slow.state] == [JobState.RUNNING, JobState.SUCCEEDED]


@pytest.mark.parametrize("method", ["settle", "extend", "heartbeat", "reap"])
def test_any_lost_reply_changes_nothing_more(method: str) -> None:
    transport = FaultyTransport()
    app = make_app(transport, lease=0.6, heartbeat_interval=0.1)
    starts: list[int] = []

    @app.task
    def work(number: int) -> int:
        starts.append(number)
        time.sleep(0.3)
        return number

    transport.lose_replies(method)
    handles = work.map_async([(n,) for n in range(4)])
    with Worker(app) as worker:
        worker.run_until_idle(timeout=20)
        wait_until(lambda: transport.calls[method] > 1)
    assert sorted(starts) == [0, 1, 2, 3]
    assert [handle.get(timeout=1) for handle in handles] == [0, 1, 2, 3]


def test_an_outage_longer_than_the_lease_makes_nothing_run_twice() -> None:
    transport = FaultyTransport()
    app = make_app(transport, lease=0.5, heartbeat_interval=0.2, concurrency=4)
    sink = CollectingSink()
    app.add_sink(sink)
    starts: list[int] = []

    @app.task
    def work(number: int) -> int:
        starts.append(number)
        time.sleep(0.1 if number % 2 else 1.6)
        return number

    handles = work.map_async([(n,) for n in range(8)])
    # Two workers: the holder, and one that could take everything away from it.
    with Worker(app, worker_id="a") as first, Worker(app, worker_id="b"):
        wait_until(lambda: len(starts) >= 4)
        transport.down = True
        time.sleep(1.2)
        transport.down = False
        first.run_until_idle(timeout=20)
    assert sorted(starts) == list(range(8))
    assert [handle.get(timeout=1) for handle in handles] == list(range(8))
    assert sink.of("transport.error")


def test_a_clock_put_forward_makes_nothing_run_twice() -> None:
    """As after NTP has corrected it, or when a virtual machine goes on: every lease looks over."""

    class Steppable(Clock):
        ahead = 0.0

        def time(self) -> float:
            return super().time() + self.ahead

    clock = Steppable()
    transport = FaultyTransport(clock=clock)
    app = make_app(transport, lease=3, heartbeat_interval=0.3)
    gate, starts = threading.Event(), list[int]()

    @app.task
    def work() -> None:
        starts.append(current_task().deliveries)
        assert gate.wait(20)

    job = work.delay()
    with Worker(app) as first, Worker(app):
        wait_until(lambda: starts and transport.calls["heartbeat"] >= 2 and transport.reaps)
        clock.ahead = 3600.0
        passes = len(transport.reaps)
        # The first pass that may take back again, well after the holder could extend.
        wait_until(lambda: any(each.recover for each in transport.reaps[passes + 1 :]))
        wait_until(lambda: len(transport.reaps) >= passes + 3)
        gate.set()
        first.run_until_idle(timeout=10)
    assert starts == [1]
    assert job.info.deliveries == 1


def test_a_gap_keeps_maintenance_from_taking_leases_back() -> None:
    transport = FaultyTransport()
    app = make_app(transport, lease=1.5, heartbeat_interval=0.5)
    with Worker(app):
        wait_until(lambda: transport.reaps and transport.reaps[-1].recover)
        transport.down = True
        wait_until(lambda: transport.calls["heartbeat"] >= 2)
        down_at = len(transport.reaps)
        wait_until(lambda: transport.calls["reserve"] >= 2)
        transport.down = False
        up_at = time.monotonic()
        wait_until(lambda: transport.reaps[-1].recover and len(transport.reaps) > down_at)
        assert time.monotonic() - up_at >= 0.7, "two heartbeat intervals of grace"
        assert any(not reap.recover for reap in transport.reaps[down_at:])


def test_the_worker_waits_for_a_transport_that_is_away_at_its_start() -> None:
    transport = FaultyTransport()
    app = make_app(transport)

    @app.task
    def work() -> str:
        return "done"

    job = work.delay()
    transport.down = True
    with Worker(app) as worker:
        wait_until(lambda: transport.calls["reclaim"] >= 1)
        transport.down = False
        worker.run_until_idle(timeout=10)
    assert job.get(timeout=1) == "done"


def test_back_off_keeps_an_outage_cheap() -> None:
    transport = FaultyTransport()
    transport.down = True
    with Worker(make_app(transport)):
        time.sleep(1.0)
        assert transport.calls.total() < 120


def take_over(transport: FaultyTransport, clock: FakeClock, lease: float) -> str:
    """Let the lease run out and another worker reserve the job; its receipt."""
    clock.advance(lease + 1)
    transport.reap(ReapRequest())
    request = ReserveRequest(worker="thief", queues=(QueueShare("default"),), limit=1, lease=600)
    (delivery,) = transport.reserve(request).deliveries
    assert delivery.deliveries == 2
    return delivery.receipt


@pytest.mark.parametrize("ends_by", ["success", "retry", "failure"])
def test_a_holder_that_lost_its_lease_changes_nothing_and_works_on(
    ends_by: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    transport = FaultyTransport(clock=clock)
    app = make_app(transport, concurrency=1, lease=60, heartbeat_interval=3600)
    gate, ends = threading.Event(), list[str]()

    @app.task
    def child() -> None: ...

    class Work(Task[..., str]):
        name = "work"
        retry_policy = Retry(max_attempts=2 if ends_by == "retry" else 1, base=0.01)

        def run(self) -> str:
            current_task().publish(child)
            assert gate.wait(10)
            if ends_by != "success":
                raise ValueError
            return "stale"

        def on_success(self, ctx: Any, result: Any, runtime: float) -> None:
            ends.append("on_success")

        def on_failure(self, ctx: Any, exc: Any) -> None:
            ends.append("on_failure")

        def on_retry(self, ctx: Any, exc: Any, delay: float) -> None:
            ends.append("on_retry")

        def after_return(self, ctx: Any, state: Any, result: Any = None, exc: Any = None) -> None:
            ends.append("after_return")

    app.register(Work)
    job = app.tasks["work"].delay()
    with Worker(app) as worker:
        wait_until(lambda: worker.buffer.busy == 1)
        receipt = take_over(transport, clock, 60)
        with caplog.at_level("WARNING"):
            gate.set()
            wait_until(lambda: ends == ["after_return"])
        record = transport.get_jobs([job.id])[0]
        assert record is not None
        assert (record.state, record.receipt, record.attempt) == (JobState.RUNNING, receipt, 1)
        assert caplog.text.count(job.id) == 1, "told once"
        assert child.delay().get(timeout=5) is None, "the worker goes on"
    assert len(transport.list_jobs(task=child.name).jobs) == 1


def test_a_loop_that_fails_ends_the_worker_with_an_error(caplog: pytest.LogCaptureFixture) -> None:
    transport = FaultyTransport()
    transport.fail_next("reserve", RuntimeError("a defect"))
    worker = Worker(make_app(transport))
    with caplog.at_level("CRITICAL"):
        assert worker.run() == 1
    assert "fetcher" in caplog.text
    assert "a defect" in caplog.text

    transport.fail_next("reserve", RuntimeError("a defect"))
    app = make_app(transport)
    app.send("anything")
    with pytest.raises(TaskmqError, match="a defect"), Worker(app) as worker:
        worker.run_until_idle(timeout=10)


def test_an_error_that_repeating_cannot_mend_is_told_and_survived() -> None:
    transport = FaultyTransport()
    transport.fail_next("reserve", TransportError("disk full"))
    app = make_app(transport)
    sink = CollectingSink()
    app.add_sink(sink)

    @app.task
    def work() -> int:
        return 1

    job = work.delay()
    with Worker(app) as worker:
        worker.run_until_idle(timeout=10)
    assert job.get(timeout=1) == 1
    assert [event.data["error"] for event in sink.of("transport.error")] == ["disk full"]


def test_a_late_start_is_confirmed_and_a_lost_one_never_starts() -> None:
    """A lease that was taken over while the job stood in the buffer: the extend's answer decides."""
    clock = FakeClock()
    transport = FaultyTransport(clock=clock)
    app = make_app(transport, concurrency=1, prefetch=1, lease=60, heartbeat_interval=3600)
    gate, starts = threading.Event(), list[str]()

    @app.task
    def work(label: str) -> None:
        starts.append(label)
        assert gate.wait(10)

    first = work.delay("first")
    second = work.delay("second")
    with Worker(app) as worker:
        wait_until(lambda: len(worker.buffer) == 1)
        buffered = worker.buffer.unstarted()[0]
        buffered.confirmed_at -= 30
        # Only the buffered one is taken over; the running one is held on to.
        running = worker.buffer.running()[0]
        clock.advance(61)
        transport.reap(ReapRequest())
        request = ReserveRequest(
            worker="thief", queues=(QueueShare("default"),), limit=2, lease=600
        )
        taken = {d.id for d in transport.reserve(request).deliveries}
        assert second.id in taken
        gate.set()
        wait_until(lambda: not len(worker.holdings))
        assert running.delivery.id == first.id
    assert starts == ["first"]
