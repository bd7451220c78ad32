"""Stopping: in order, within its time, and leaving nothing behind."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import pytest

from support.waiting import wait_until
from taskmq import App, Config, JobState, current_task
from taskmq.errors import TaskmqError
from taskmq.transport.types import JobRecord
from taskmq_worker import Worker


def make_app(**config: Any) -> App:
    config.setdefault("concurrency", 2)
    return App(Config(events="null", **config))


def record(app: App, job: str) -> JobRecord:
    found = app.transport.get_jobs([job])[0]
    assert found is not None
    return found


def threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("taskmq-")]


def test_a_worker_leaves_no_thread_no_handler_and_no_row_behind() -> None:
    app = make_app()
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with Worker(app) as worker:
        wait_until(app.transport.list_workers)
        worker.run_until_idle(timeout=5)
        assert "taskmq-fetcher" in threads()
    assert threads() == []
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    assert app.transport.list_workers() == []


def test_the_registry_hears_of_each_state_at_once() -> None:
    app = App(Config(heartbeat_interval=60, lease=300, events="null"))
    gate = threading.Event()
    app.task(name="wait")(lambda: gate.wait(20))

    def states() -> set[str]:
        return {each.state for each in app.transport.list_workers()}

    with Worker(app) as worker:
        wait_until(lambda: states() == {"running"}, 5)
        handle = app.send("wait")
        wait_until(lambda: handle.state is JobState.RUNNING)
        stopping = threading.Thread(target=worker.stop)
        stopping.start()
        wait_until(lambda: states() == {"stopping"}, 5)
        gate.set()
        stopping.join(20)
    assert states() == set()
    app.close()


@pytest.mark.parametrize("pool", ["threads", "solo"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_running_jobs_finish_and_gives_back_the_rest(
    pool: str, number: signal.Signals
) -> None:
    app = make_app(pool=pool, concurrency=1, prefetch=4)
    before = signal.getsignal(number)

    @app.task
    def work(label: str) -> str:
        if label == "first":
            os.kill(os.getpid(), number)
            time.sleep(0.2)
        return label

    first, second = work.delay("first"), work.delay("second")
    assert Worker(app).run() == 0
    assert first.get(timeout=1) == "first"
    assert (second.state, second.info.deliveries) == (JobState.QUEUED, 0)
    assert signal.getsignal(number) is before
    assert threads() == []


@pytest.mark.parametrize("pool", ["threads", "solo"])
def test_what_does_not_end_in_time_is_handed_back_counted(pool: str) -> None:
    app = make_app(pool=pool, shutdown_timeout=0.2)
    gate, started = threading.Event(), threading.Event()

    @app.task
    def stuck() -> None:
        started.set()
        gate.wait(20)

    job = stuck.delay()
    worker = Worker(app)

    def interrupt() -> None:
        assert started.wait(10)
        os.kill(os.getpid(), signal.SIGTERM)

    helper = threading.Thread(target=interrupt)
    helper.start()
    began = time.monotonic()
    assert worker.run() == 0
    assert time.monotonic() - began < 10, "half of what the body takes"
    held = record(app, job.id)
    assert (held.state, held.deliveries) == (JobState.QUEUED, 1)
    gate.set()
    helper.join()
    wait_until(lambda: not threads())
    assert record(app, job.id).state is JobState.QUEUED, "the late end changes nothing"


def test_a_body_that_listens_is_told_that_the_worker_stops() -> None:
    app = make_app(shutdown_timeout=0.1)
    reasons: list[str] = []
    started = threading.Event()

    @app.task
    def polite() -> None:
        started.set()
        while True:
            try:
                current_task().check_cancelled()
            except TaskmqError as error:
                reasons.append(str(error))
                raise
            time.sleep(0.005)

    job = polite.delay()
    with Worker(app):
        # Reserved is not started yet, and what has not started is given back.
        assert started.wait(20)
    assert len(reasons) == 1
    held = record(app, job.id)
    assert (held.state, held.deliveries) == (JobState.QUEUED, 1)


def test_the_second_signal_does_not_wait() -> None:
    app = make_app(shutdown_timeout=60)
    gate, started = threading.Event(), threading.Event()

    @app.task
    def stuck() -> None:
        started.set()
        gate.wait(20)

    job = stuck.delay()
    worker = Worker(app)

    def interrupt() -> None:
        assert started.wait(10)
        os.kill(os.getpid(), signal.SIGTERM)
        wait_until(lambda: worker.state == "stopping")
        os.kill(os.getpid(), signal.SIGINT)

    helper = threading.Thread(target=interrupt)
    helper.start()
    began = time.monotonic()
    assert worker.run() == 0
    assert time.monotonic() - began < 15, "neither the body's time nor the shutdown timeout"
    assert record(app, job.id).deliveries == 1
    gate.set()
    helper.join()
    wait_until(lambda: not threads())


def test_stop_from_another_thread_ends_run() -> None:
    app = make_app()
    worker = Worker(app)
    codes: list[int] = []
    runner = threading.Thread(target=lambda: codes.append(worker.run()))
    runner.start()
    wait_until(lambda: worker.state == "running")
    worker.stop()
    runner.join(20)
    assert codes == [0]
    assert threads() == []


def test_leases_are_renewed_while_running_jobs_finish() -> None:
    app = make_app(lease=0.4, heartbeat_interval=0.1)
    starts: list[int] = []

    @app.task
    def slow() -> str:
        starts.append(current_task().deliveries)
        time.sleep(1.2)
        return "done"

    job = slow.delay()
    with Worker(app, worker_id="other") as other:
        # Whoever of the two has it: the one that stops keeps it to the end.
        with Worker(app, worker_id="stops"):
            wait_until(lambda: starts)
        other.run_until_idle(timeout=10)
    assert starts == [1]
    assert job.get(timeout=1) == "done"


def test_a_worker_is_started_once() -> None:
    worker = Worker(make_app())
    with worker:
        pass
    with pytest.raises(TaskmqError, match="another Worker"):
        worker.start()


def test_a_stop_while_the_transport_is_away_ends_all_the_same() -> None:
    from support.faulty import FaultyTransport

    transport = FaultyTransport()
    app = App(Config(transport=transport, events="null", concurrency=1))
    gate = threading.Event()

    @app.task
    def work() -> None:
        assert gate.wait(10)

    work.delay()
    worker = Worker(app)
    worker.start()
    wait_until(lambda: worker.buffer.busy)
    transport.down = True
    gate.set()
    began = time.monotonic()
    worker.stop(1)
    assert time.monotonic() - began < 30
    assert threads() == []
