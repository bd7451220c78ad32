"""Cancelling is a state of the job: it outlives workers, ends what it can, and hits nothing else."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.backends import DURABLE, Backends
from support.waiting import wait_until
from support.workers import Fleet, fleet
from taskmq import App, Config, JobState, RemoteError, TaskHandle, current_task
from taskmq.transport.types import QueueShare, ReserveRequest, Retry
from taskmq_worker import Worker

EACH = 100


@pytest.fixture(params=DURABLE)
def workers(request: pytest.FixtureRequest, tmp_path: Path, backends: Backends) -> Iterator[Fleet]:
    url = backends.url(request.param, tmp_path)
    with fleet(tmp_path, url, lease=5, heartbeat_interval=0.5, shutdown_timeout=5) as started:
        yield started


@pytest.fixture
def app(workers: Fleet) -> Iterator[App]:
    with App(Config(transport=workers.url, events="null")) as made:
        yield made


def put_into_retry(app: App, count: int) -> list[TaskHandle[object]]:
    """Jobs whose first attempt has failed, and whose next is due soon."""
    handles = [app.send("work", (f"retrying-{n}",), queue="again") for n in range(count)]
    request = ReserveRequest(worker="w", queues=(QueueShare("again"),), limit=count)
    taken = app.transport.reserve(request).deliveries
    assert len(taken) == count
    app.transport.settle("w", [Retry(receipt=each.receipt, delay=1.0) for each in taken])
    found = app.transport.get_jobs([handle.id for handle in handles])
    assert {record.state for record in found if record is not None} == {JobState.RETRYING}
    return handles


def test_a_revoked_job_never_runs_whoever_is_up_or_starts_later(
    app: App, workers: Fleet, tmp_path: Path
) -> None:
    gate = tmp_path / "open"
    blocker = app.send("gate", ("blocker", str(gate)), queue="held")
    first = workers.start(concurrency=1, prefetch=2 * EACH, queues=["held"])
    workers.wait_started(1)
    reserved = [app.send("work", (f"reserved-{n}",), queue="held") for n in range(EACH)]
    wait_until(lambda: {h.state for h in reserved} == {JobState.RUNNING}, timeout=20)
    queued = [app.send("work", (f"queued-{n}",)) for n in range(EACH)]
    delayed = [app.send("work", (f"delayed-{n}",), delay=1.0) for n in range(EACH)]
    retrying = put_into_retry(app, EACH)

    for handle in queued + delayed + retrying:
        assert handle.revoke()
        assert handle.state is JobState.REVOKED
    for handle in reserved:
        assert handle.revoke()
    wait_until(lambda: {h.state for h in reserved} == {JobState.REVOKED}, timeout=10)
    assert not blocker.state.is_final

    first.kill()
    gate.touch()
    workers.start(concurrency=4, queues=["default", "again", "held"])
    last = app.send("work", ("last",), delay=1.5)
    assert last.get(timeout=30) == "last"
    assert blocker.get(timeout=30) == "blocker"
    assert set(workers.effects.counts("start")) == {"blocker", "last"}
    stats = app.transport.stats()
    assert all(s.pending == s.delayed == s.in_flight == 0 for s in stats)


def test_a_job_that_is_revoked_while_its_holder_dies_does_not_run_again(
    app: App, workers: Fleet, tmp_path: Path
) -> None:
    job = app.send("gate", ("job", str(tmp_path / "never")))
    holder = workers.start(concurrency=1, config={"lease": 1.0})
    workers.wait_started(1)
    assert job.revoke(terminate=True)
    assert job.info.cancelling
    holder.kill()
    workers.start(concurrency=1)
    wait_until(lambda: job.state is JobState.REVOKED, timeout=30)
    assert len(workers.effects.all("start")) == 1


def test_a_cooperative_job_ends_soon_and_does_nothing_afterwards(app: App, workers: Fleet) -> None:
    job = app.send("polite", ("job",))
    worker = workers.start(concurrency=2)
    wait_until(lambda: workers.effects.counts("tick")["job"] > 2, timeout=20)
    revoked_at = time.monotonic()
    assert job.revoke(terminate=True)
    wait_until(lambda: job.state is JobState.REVOKED, timeout=10)
    assert time.monotonic() - revoked_at < 5
    ticks = workers.effects.counts("tick")["job"]
    assert app.send("work", ("next", 0.1)).get(timeout=20) == "next"
    assert workers.effects.counts("tick")["job"] == ticks
    assert worker.alive


@pytest.mark.parametrize("pool", ["threads", "solo"])
def test_a_body_that_cannot_be_ended_shows_cancelling_until_it_returns(
    pool: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = App(Config(events="null", pool=pool, concurrency=1, heartbeat_interval=0.5))
    running, go_on = threading.Event(), threading.Event()
    lines: list[str] = []

    @app.task
    def deaf() -> str:
        running.set()
        assert go_on.wait(20)
        lines.append("still at work")
        return "too late"

    @app.task
    def following() -> str:
        return "untouched"

    job, after = deaf.delay(), following.delay()
    worker = Worker(app)
    serving = threading.Thread(target=worker.run, daemon=True)
    with caplog.at_level(logging.WARNING, logger="taskmq.worker"):
        serving.start()
        assert running.wait(10)
        assert job.revoke(terminate=True)
        wait_until(lambda: "can't end its body" in caplog.text, timeout=10)
        assert job.revoke(terminate=True)
        info = job.info
        assert (info.state, info.cancelling, lines) == (JobState.RUNNING, True, [])
        go_on.set()
        wait_until(lambda: job.state.is_final, timeout=10)
    assert (job.state, job.info.cancelling) == (JobState.REVOKED, False)
    assert lines == ["still at work"]
    with pytest.raises(RemoteError, match="REVOKED"):
        job.get(timeout=1)
    # The cancel belongs to the job, not to the slot on which it ran.
    assert after.get(timeout=10) == "untouched"
    assert caplog.text.count("can't end its body") == 1
    worker.stop()
    serving.join(10)
    assert not serving.is_alive()


def test_cancelling_while_a_job_ends_harms_neither_worker_nor_other_jobs() -> None:
    app = App(Config(events="null", concurrency=4, max_finished_jobs=10_000))

    @app.task
    def quick(n: int) -> int:
        return n

    @app.task
    def steady() -> str:
        while not current_task().headers.get("never"):
            time.sleep(0.002)
            if stop.is_set():
                return "not cancelled"
        return ""

    stop = threading.Event()
    lasting = steady.delay()
    with Worker(app) as worker:
        wait_until(lambda: lasting.state is JobState.RUNNING, timeout=10)
        handles: list[TaskHandle[int]] = []
        for n in range(1000):
            handle = quick.delay(n)
            handles.append(handle)
            handle.revoke(terminate=n % 2 == 0)
            if n % 3 == 0:
                handle.revoke(terminate=True)
        wait_until(lambda: all(handle.state.is_final for handle in handles), timeout=30)
        states = {handle.state for handle in handles}
        assert states <= {JobState.SUCCEEDED, JobState.REVOKED}
        assert not handles[0].revoke(terminate=True)
        stop.set()
        assert lasting.get(timeout=10) == "not cancelled"
        assert quick.delay(7).get(timeout=10) == 7
        assert worker.state == "running"
