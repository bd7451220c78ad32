"""What a worker does with jobs, on the memory transport."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from support.waiting import wait_until
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
from taskmq.events import CollectingSink
from taskmq.protocol.envelope import VERSION, Envelope, encode_envelope
from taskmq.transport.memory import MemoryTransport
from taskmq.transport.types import Message, QueueShare, QueueStats, ReserveReply, ReserveRequest
from taskmq_worker import NotIdle, Worker

if TYPE_CHECKING:
    from collections.abc import Sequence


def make_app(**config: Any) -> App:
    config.setdefault("concurrency", 4)
    return App(Config(events="null", **config))


def record(app: App, job: str) -> Any:
    found = app.transport.get_jobs([job])[0]
    assert found is not None
    return found


@pytest.mark.parametrize("pool", ["threads", "solo"])
def test_jobs_run_and_their_results_can_be_read(pool: str) -> None:
    app = make_app(pool=pool)

    @app.task
    def double(n: int) -> int:
        return 2 * n

    handles = double.map_async([(n,) for n in range(200)])
    with Worker(app) as worker:
        worker.run_until_idle(timeout=20)
    assert [handle.get(timeout=1) for handle in handles] == [2 * n for n in range(200)]


def test_solo_runs_jobs_on_the_thread_that_called() -> None:
    app = make_app(pool="solo")
    threads: set[int] = set()

    @app.task
    def where() -> None:
        threads.add(threading.get_ident())

    where.map_async([()] * 5)
    with Worker(app) as worker:
        worker.run_until_idle(timeout=10)
    assert threads == {threading.get_ident()}


def test_a_failing_job_is_retried_and_then_buried_with_its_traceback() -> None:
    app = make_app()
    attempts: list[int] = []

    @app.task(retry=Retry(max_attempts=3, base=0.01, jitter=False))
    def fail() -> None:
        attempts.append(current_task().attempt)
        raise ValueError("no luck")

    handle = fail.delay()
    with Worker(app) as worker:
        worker.run_until_idle(timeout=20)
    assert attempts == [1, 2, 3]
    with pytest.raises(RemoteError, match="no luck"):
        handle.get(timeout=1)
    letter = app.transport.get_dead(handle.id)
    assert letter is not None
    assert letter.attempt == 3


def test_request_state_never_mixes_between_jobs() -> None:
    app = make_app(concurrency=8)
    mixed: list[str] = []

    @app.task(bind=True)
    def check(self: Task, label: str) -> str:
        context = current_task()
        context.label = label
        for _ in range(3):
            time.sleep(0.0005)
            seen = current_task()
            if seen is not context or self.request is not context or seen.label != label:
                mixed.append(label)
        return context.id

    handles = check.map_async([(f"job-{n}",) for n in range(100)])
    with Worker(app) as worker:
        worker.run_until_idle(timeout=20)
    assert mixed == []
    assert all(handle.get(timeout=1) == handle.id for handle in handles)


def test_end_hooks_run_after_the_settlement_on_the_thread_of_the_job() -> None:
    app = make_app()
    log: list[tuple[str, JobState, int]] = []

    class Hooked(Task[[bool], str]):
        name = "hooked"

        def run(self, fail: bool) -> str:
            self.note("run", self.request)
            if fail:
                raise ValueError
            return "done"

        def note(self, what: str, ctx: TaskContext) -> None:
            log.append((what, record(app, ctx.id).state, threading.get_ident()))

        def before_start(self, ctx: TaskContext) -> None:
            self.note("before_start", ctx)

        def on_success(self, ctx: TaskContext, result: str, runtime: float) -> None:
            self.note("on_success", ctx)

        def on_failure(self, ctx: TaskContext, exc: BaseException) -> None:
            self.note("on_failure", ctx)

        def after_return(
            self, ctx: TaskContext, state: JobState, result: Any = None, exc: Any = None
        ) -> None:
            self.note("after_return", ctx)

    hooked = app.register(Hooked)
    with Worker(app) as worker:
        hooked.delay(False)
        worker.run_until_idle(timeout=10)
        hooked.delay(True)
        worker.run_until_idle(timeout=10)
    running, won, lost = JobState.RUNNING, JobState.SUCCEEDED, JobState.FAILED
    assert [entry[:2] for entry in log] == [
        ("before_start", running),
        ("run", running),
        ("on_success", won),
        ("after_return", won),
        ("before_start", running),
        ("run", running),
        ("on_failure", lost),
        ("after_return", lost),
    ]
    assert len({thread for *_, thread in log[:4]}) == 1
    assert all(thread != threading.get_ident() for *_, thread in log)


def test_acknowledged_on_receipt_means_confirmed_before_the_body_starts() -> None:
    app = make_app()
    seen: list[int] = []

    @app.task(ack="on_receipt", retry=Retry(max_attempts=5))
    def once() -> None:
        # What is acknowledged is never delivered again, so it can't be released either.
        seen.append(current_task().deliveries)
        raise ValueError("and it is not retried")

    handle = once.delay()
    with Worker(app) as worker:
        worker.run_until_idle(timeout=10)
    assert seen == [1]
    assert handle.state is JobState.FAILED


def test_an_expired_job_never_runs() -> None:
    app = make_app(concurrency=1, prefetch=4)
    gate, started = threading.Event(), list[str]()

    @app.task
    def work(label: str) -> None:
        started.append(label)
        assert gate.wait(10)

    work.delay("first")
    late = work.apply_async(("late",), expires=1.0)
    with Worker(app) as worker:
        wait_until(lambda: len(started) == 1 and len(worker.buffer) == 1)
        time.sleep(1.05)
        gate.set()
        worker.run_until_idle(timeout=10)
    assert started == ["first"]
    assert late.state is JobState.EXPIRED


def test_a_job_revoked_while_it_waits_in_the_buffer_never_starts() -> None:
    app = make_app(concurrency=1, prefetch=4)
    gate, started = threading.Event(), list[str]()

    @app.task
    def work(label: str) -> None:
        started.append(label)
        assert gate.wait(10)

    work.delay("first")
    second = work.delay("second")
    with Worker(app) as worker:
        wait_until(lambda: len(started) == 1 and len(worker.buffer) == 1)
        second.revoke()
        wait_until(lambda: second.state is JobState.REVOKED, what="ended while the slot is taken")
        gate.set()
        worker.run_until_idle(timeout=10)
    assert started == ["first"]


@pytest.mark.parametrize("times", [1, 2])
def test_a_running_job_that_is_revoked_hears_of_it_soon(times: int) -> None:
    app = make_app(concurrency=2)
    started, heard = threading.Event(), list[float]()

    @app.task
    def polite() -> None:
        started.set()
        while True:
            current_task().check_cancelled()
            time.sleep(0.005)

    @app.task
    def other() -> str:
        return "fine"

    job = polite.delay()
    with Worker(app) as worker:
        assert started.wait(10)
        at = time.monotonic()
        for _ in range(times):
            job.revoke()
        wait_until(lambda: job.state is JobState.REVOKED)
        heard.append(time.monotonic() - at)
        assert other.delay().get(timeout=5) == "fine"
        worker.run_until_idle(timeout=10)
    assert heard[0] < 5, "not with the next heartbeat, which is 20 s away"


def test_a_revoked_job_that_ignores_it_stays_cancelling_until_its_code_returns() -> None:
    app = make_app(concurrency=1)
    started, gate = threading.Event(), threading.Event()

    @app.task
    def stubborn() -> None:
        started.set()
        assert gate.wait(10)

    job = stubborn.delay()
    with Worker(app) as worker:
        assert started.wait(10)
        job.revoke()
        assert record(app, job.id).state is JobState.RUNNING
        assert record(app, job.id).cancel_requested
        wait_until(lambda: worker.buffer.running()[0].cancelled, what="its worker has heard of it")
        assert record(app, job.id).state is JobState.RUNNING
        gate.set()
        worker.run_until_idle(timeout=10)
    assert job.state is JobState.REVOKED


def raw(app: App, envelope: bytes, job: str) -> None:
    app.transport.enqueue([Message(id=job, task="?", queue="default", envelope=envelope)])


def test_garbage_becomes_a_dead_letter_with_its_bytes_and_good_jobs_run() -> None:
    app = make_app()

    @app.task
    def good() -> int:
        return 1

    bad = {
        "random": b"\xc1\xff\x00random",
        "empty": b"",
        "json": b'{"v": 1}',
        "version": encode_envelope(
            Envelope(v=VERSION + 1, id="version", task="t", queue="default")
        ),
        "deep": b"\x91" * 100_000,
    }
    for job, envelope in bad.items():
        raw(app, envelope, job)
    handles = good.map_async([()] * 50)
    with Worker(app) as worker:
        worker.run_until_idle(timeout=20)
    assert [handle.get(timeout=1) for handle in handles] == [1] * 50
    for job, envelope in bad.items():
        letter = app.transport.get_dead(job)
        assert letter is not None, job
        assert letter.envelope == envelope
        assert letter.reason == "undecodable"


def test_an_unknown_task_waits_for_another_worker_and_costs_nothing() -> None:
    app = make_app()
    job = app.send("not.here.yet")
    with Worker(app) as worker:
        wait_until(lambda: record(app, job.id).reason == "unknown task", what="it was deferred")
        worker.run_until_idle(timeout=0.1)
        held = record(app, job.id)
        assert held.state is JobState.QUEUED
        assert held.deliveries == 0
        assert held.attempt == 1

        @app.task(name="not.here.yet")
        def late() -> str:
            return "now"

        assert job.get(timeout=10) == "now"


def test_an_unknown_task_is_buried_once_its_time_is_over() -> None:
    app = make_app(unknown_task_ttl=0.3)
    job = app.send("not.here")
    with Worker(app) as worker:
        worker.run_until_idle(timeout=10)
    assert job.state is JobState.FAILED
    letter = app.transport.get_dead(job.id)
    assert letter is not None
    assert letter.reason == "unknown task"


def test_the_time_of_an_unknown_task_counts_from_the_first_look_not_from_its_submission() -> None:
    app = make_app(unknown_task_ttl=1.0)
    job = app.send("not.here", delay=1.2)

    def deferred() -> bool:
        held = record(app, job.id)
        return held.reason == "unknown task" and held.state is JobState.QUEUED

    with Worker(app) as worker:
        wait_until(deferred)
        worker.run_until_idle(timeout=30)
    assert job.state is JobState.FAILED


def test_run_until_idle_waits_for_what_is_due_within_its_time_only() -> None:
    app = make_app()

    @app.task
    def noop() -> None: ...

    soon, later = noop.apply_async(delay=0.2), noop.apply_async(delay=3600)
    with Worker(app) as worker:
        began = time.monotonic()
        worker.run_until_idle(timeout=30)
    assert soon.state is JobState.SUCCEEDED
    assert later.state is JobState.QUEUED
    assert time.monotonic() - began < 15, "it does not sit its time out"


def test_run_until_idle_names_what_is_left() -> None:
    app = make_app()
    started, gate = threading.Event(), threading.Event()

    @app.task
    def slow() -> None:
        started.set()
        assert gate.wait(10)

    slow.delay()
    with Worker(app) as worker:
        assert started.wait(10)
        with pytest.raises(NotIdle, match=r"slow \(\w+\) still runs here"):
            worker.run_until_idle(timeout=0.2)
        gate.set()


def test_run_once_drains_what_is_ready_and_leaves_the_rest() -> None:
    app = make_app()

    @app.task
    def noop() -> None: ...

    ready = noop.map_async([()] * 50)
    later = noop.apply_async(delay=5)
    assert Worker(app).run_once() == 0
    assert {handle.state for handle in ready} == {JobState.SUCCEEDED}
    assert later.state is JobState.QUEUED
    assert app.transport.list_workers() == []


class LateAnswer(MemoryTransport):
    """Answers its first reservation only after the worker has looked twice at what is left."""

    def __init__(self) -> None:
        super().__init__()
        self.reserved = False
        self.looks = threading.Semaphore(0)

    def reserve(self, request: ReserveRequest) -> ReserveReply:
        reply = super().reserve(request)
        if reply.deliveries and not self.reserved:
            self.reserved = True
            for _ in range(2):
                self.looks.acquire(timeout=2)
        return reply

    def stats(self, queues: Sequence[str] | None = None) -> list[QueueStats]:
        found = super().stats(queues)
        if self.reserved:
            self.looks.release()
        return found


def test_run_once_does_not_take_an_answer_on_its_way_for_nothing_to_do() -> None:
    app = make_app(transport=LateAnswer(), pool="solo")

    @app.task
    def noop() -> None: ...

    job = noop.delay()
    assert Worker(app).run_once() == 0
    assert job.state is JobState.SUCCEEDED


def test_a_rate_limited_task_holds_up_nobody_else() -> None:
    app = make_app(concurrency=2)
    starts: list[float] = []

    @app.task(rate_limit="20/s")
    def limited() -> None:
        starts.append(time.monotonic())

    @app.task
    def free() -> None: ...

    limited.map_async([()] * 30)
    others = free.map_async([()] * 100)
    begun = time.monotonic()
    with Worker(app) as worker:
        wait_until(lambda: all(h.state is JobState.SUCCEEDED for h in others), timeout=2)
        early = len(starts)
        worker.run_until_idle(timeout=30)
    assert len(starts) == 30
    assert early < 30, "nobody waited for the last of them"
    # Counted from one origin: a start may come late on a slow machine, but never early.
    assert all(at - begun >= number * 0.05 - 0.02 for number, at in enumerate(starts))


def test_a_rate_limited_job_is_deferred_once_and_keeps_its_deliveries() -> None:
    app = make_app()
    sink = CollectingSink()
    app.add_sink(sink)

    @app.task(rate_limit="10/s")
    def limited() -> int:
        return current_task().deliveries

    handles = limited.map_async([()] * 4)
    with Worker(app) as worker:
        worker.run_until_idle(timeout=10)
    assert [handle.get(timeout=1) for handle in handles] == [1] * 4
    app.events.flush(5)
    deferred = [event.job for event in sink.of("task.deferred")]
    # Three, unless the machine is so slow that a turn comes while the batch is looked at.
    assert 1 <= len(deferred) <= 3
    assert len(set(deferred)) == len(deferred)


def test_events_tell_a_job_s_way_when_somebody_listens() -> None:
    app = make_app()
    sink = CollectingSink()
    app.add_sink(sink)

    @app.task(retry=Retry(max_attempts=2, base=0.01))
    def flaky() -> None:
        if current_task().attempt == 1:
            raise ValueError

    job = flaky.delay()
    with Worker(app) as worker:
        worker.run_until_idle(timeout=10)
    app.events.flush(5)
    told = [event.type for event in sink.events if event.job == job.id]
    assert told == [
        "task.submitted",
        "task.started",
        "task.retrying",
        "task.started",
        "task.succeeded",
    ]
    assert [e.type for e in sink.events if e.type.startswith("worker.")] == [
        "worker.started",
        "worker.stopping",
        "worker.stopped",
    ]


def test_what_cannot_run_here_is_refused_before_anything_starts() -> None:
    app = make_app()
    with pytest.raises(ConfigError, match="greenlets"):
        Worker(app, pool="greenlets")
    with pytest.raises(ConfigError, match="concurrency"):
        Worker(app, concurrency=0)

    @app.task(name="coroutine")
    async def coroutine() -> None: ...

    with pytest.raises(ConfigError, match="coroutine.*async def"):
        Worker(app)


def test_a_hard_timeout_that_is_not_enforced_warns_at_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = make_app()

    @app.task(hard_timeout=5)
    def slow() -> None: ...

    with caplog.at_level("WARNING"):
        Worker(app)
    assert "hard_timeout" in caplog.text


def test_a_capability_that_is_missing_is_found_at_start() -> None:
    class NoLeases(MemoryTransport):
        supports_leases = False

    bare = App(Config(transport=NoLeases(), events="null"))
    bare.task(concurrency_key="one", name="keyed")(lambda: None)
    with pytest.raises(ConfigError, match="supports_leases"):
        Worker(bare)


def test_delayed_jobs_stay_with_the_transport() -> None:
    app = make_app()

    @app.task
    def noop() -> None: ...

    noop.map_async([()] * 2000, delay=86400)
    now = noop.map_async([()] * 50)
    with Worker(app) as worker:
        worker.run_until_idle(timeout=10)
        assert len(worker.holdings) == 0
    assert {handle.state for handle in now} == {JobState.SUCCEEDED}
    (stats,) = app.transport.stats(["default"])
    assert stats.delayed == 2000
    look = ReserveRequest(worker="x", queues=(QueueShare("default"),), limit=1)
    assert app.transport.reserve(look).deliveries == []
