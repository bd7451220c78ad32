"""Random calls against memory and sqlite, compared with a simple model after each of them."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from support import liars
from support.transport_model import QUEUED, RETRYING, RUNNING, WAITING, Job, Model
from taskmq.clock import FakeClock
from taskmq.states import JobState
from taskmq.transport import Transport, completion_token
from taskmq.transport.memory import MemoryTransport
from taskmq.transport.sqlite import SqliteTransport
from taskmq.transport.types import (
    Ack,
    Bury,
    Completion,
    Defer,
    Edge,
    ErrorInfo,
    Extension,
    FollowUps,
    Hold,
    HoldRule,
    Message,
    Park,
    QueueShare,
    QueueStats,
    ReapRequest,
    Release,
    ReserveRequest,
    Retention,
    Retry,
    Settlement,
    Yield,
)

QUEUES = ["q0", "q1"]
WORKERS = ["w0", "w1", "w2"]
KEEP_ALL = Retention(dead_letter_ttl=None, dead_letter_max=None, worker_ttl=1e9)
BOOM = ErrorInfo(type="ValueError", message="boom")
LEASE = 10.0

queues = st.sampled_from(QUEUES)
workers = st.sampled_from(WORKERS)
priorities = st.sampled_from([-9, 0, 0, 0, 5])
delays = st.sampled_from([None, None, None, 7.0])
picks = st.integers(min_value=0, max_value=10**6)


class TransportMachine(RuleBasedStateMachine):
    """Each rule makes one call, tells the model, and compares the answers."""

    transport: Transport

    def make(self, clock: FakeClock) -> Transport:
        raise NotImplementedError

    @initialize()
    def start(self) -> None:
        self.clock = FakeClock()
        self.transport = self.make(self.clock)
        self.model = Model()
        self.model.now = self.clock.time()
        self.numbers = 0
        self.last: tuple[str, Settlement] | None = None

    def teardown(self) -> None:
        if hasattr(self, "model"):
            self.transport.close()

    # -- enqueue

    @rule(
        queue=queues,
        priority=priorities,
        delay=delays,
        expires=st.sampled_from([None, None, 23.0]),
        max_deliveries=st.sampled_from([1, 2, 2, 5]),
        count=st.integers(1, 3),
    )
    def enqueue(
        self,
        queue: str,
        priority: int,
        delay: float | None,
        expires: float | None,
        max_deliveries: int,
        count: int,
    ) -> None:
        self._enqueue(
            [
                self._message(
                    queue=queue,
                    priority=priority,
                    delay=delay,
                    expires=expires,
                    max_deliveries=max_deliveries,
                )
                for _ in range(count)
            ]
        )

    @rule(
        key=st.sampled_from(["k0", "k1"]),
        scope=st.sampled_from(["window", "until_start", "until_end"]),
        queue=queues,
    )
    def enqueue_with_key(self, key: str, scope: Any, queue: str) -> None:
        self._enqueue([self._message(queue=queue, key=key, key_scope=scope)])

    @rule(key=st.sampled_from(["c0", "c1"]), delay=delays, count=st.integers(1, 3))
    def enqueue_with_concurrency_key(self, key: str, delay: float | None, count: int) -> None:
        # Which waiter of several queues or bands is the first is the transport's choice.
        limit = {"c0": 1, "c1": 2}[key]
        fields: dict[str, Any] = {"concurrency_key": key, "concurrency_limit": limit}
        many = [
            self._message(queue="q1", delay=delay, max_deliveries=50, **fields)
            for _ in range(count)
        ]
        self._enqueue(many)

    @rule(
        roots=st.integers(1, 3),
        rule=st.sampled_from(list(HoldRule)),
        tolerate=st.integers(0, 1),
        edge=st.booleans(),
        finish=st.booleans(),
        otherwise=st.sampled_from([JobState.SKIPPED, JobState.FAILED]),
    )
    def enqueue_graph(
        self,
        roots: int,
        rule: HoldRule,
        tolerate: int,
        edge: bool,
        finish: bool,
        otherwise: JobState,
    ) -> None:
        tail = self._message(hold=Hold(arrivals=1))
        hold = Hold(
            arrivals=roots, rule=rule, tolerate=tolerate, finish=finish, otherwise=otherwise
        )
        join = self._message(hold=hold, successors=(Edge(tail.id),))
        successors = (Edge(join.id, edge),)
        self._enqueue([*(self._message(successors=successors) for _ in range(roots)), join, tail])

    @precondition(lambda self: self.model.jobs)
    @rule(pick=picks)
    def enqueue_again(self, pick: int) -> None:
        self._enqueue([self._pick(list(self.model.jobs.values()), pick).message])

    # -- reserve and settle

    @rule(
        worker=workers,
        names=st.sampled_from([["q0"], ["q1"], QUEUES]),
        limit=st.integers(0, 4),
        lease=st.sampled_from([LEASE, LEASE, 3.0]),
    )
    def reserve(self, worker: str, names: list[str], limit: int, lease: float) -> None:
        shares = tuple(QueueShare(name) for name in names)
        request = ReserveRequest(worker=worker, queues=shares, limit=limit, lease=lease)
        reply = self.transport.reserve(request)
        held = [j for j in self.model.jobs.values() if j.state is RUNNING and j.worker == worker]
        before = {job.receipt for job in held if job.cancel}
        for delivery in reply.deliveries:
            assert delivery.receipt not in self._receipts(), "a receipt was given out twice"
        if reply.more:
            limit = len(reply.deliveries)
        self.model.reserve(worker, names, limit, lease, reply.deliveries)
        assert before <= reply.cancelled

    @precondition(lambda self: self._settleable())
    @rule(
        pick=picks, kind=st.integers(0, 9), delay=st.sampled_from([0.0, 7.0]), child=st.booleans()
    )
    def settle(self, pick: int, kind: int, delay: float, child: bool) -> None:
        job = self._pick(self._settleable(), pick)
        receipt = job.receipt or ""
        children = (self._message(),) if child else ()
        follow_ups = FollowUps(enqueue=children) if child else None
        makers: list[Settlement] = [
            Ack(receipt=receipt, follow_ups=follow_ups),
            Ack(receipt=receipt, state=JobState.FAILED, error=BOOM, follow_ups=follow_ups),
            Ack(receipt=receipt, state=JobState.REVOKED),
            Retry(receipt=receipt, delay=delay, error=BOOM, follow_ups=follow_ups),
            Defer(receipt=receipt, delay=delay),
            Yield(receipt=receipt, delay=delay),
            Release(receipt=receipt),
            Release(receipt=receipt, counted=True),
            Bury(receipt=receipt, error=BOOM),
            Park(receipt=receipt) if self._may_park(job) else Ack(receipt=receipt),
        ]
        settlement = makers[kind]
        if job.acked and not isinstance(settlement, Ack | Bury):
            # What was acknowledged before the work can only end.
            settlement = makers[0]
        self._settle(job.worker, settlement)

    @precondition(lambda self: self._held())
    @rule(pick=picks)
    def acknowledge_before_the_work(self, pick: int) -> None:
        job = self._pick(self._held(), pick)
        if not job.acked and not job.message.concurrency_key:
            self._settle(job.worker, Ack(receipt=job.receipt or "", state=JobState.RUNNING))

    @precondition(lambda self: self.last)
    @rule()
    def settle_again(self) -> None:
        assert self.last is not None
        worker, settlement = self.last
        reply = self.transport.settle(worker, [settlement])
        assert reply.results[0].status == "already"

    @precondition(lambda self: self._stale())
    @rule(pick=picks, kind=st.integers(0, 4))
    def settle_stale(self, pick: int, kind: int) -> None:
        receipt = self._pick(self._stale(), pick)
        settlements: list[Settlement] = [
            Ack(receipt=receipt, follow_ups=FollowUps(enqueue=(self._message(),))),
            Retry(receipt=receipt, delay=0.0, meta=b"\x80"),
            Release(receipt=receipt, counted=True),
            Bury(receipt=receipt, error=BOOM),
            Park(receipt=receipt),
        ]
        reply = self.transport.settle("w9", [settlements[kind]])
        assert reply.results[0].status in {"lost", "already"}

    @precondition(lambda self: self._receipts())
    @rule(pick=picks)
    def extend(self, pick: int) -> None:
        receipt = self._pick(self._receipts(), pick)
        job = self.model.holder_of(receipt)
        if job is not None and job.is_late:
            if job.message.concurrency_key or job.cancel or self.model.is_expired(job):
                return
        elif job is None and any(
            j.receipt == receipt and j.state is WAITING for j in self.model.jobs.values()
        ):
            return
        reply = self.transport.extend(job.worker if job else "w0", [Extension(receipt, LEASE)])
        held = self.model.extend(receipt, LEASE)
        assert (receipt not in reply.lost) == held
        if job is not None and held:
            assert (receipt in reply.cancelled) == job.cancel
            assert (receipt in reply.expired) == self.model.is_expired(job)
            self.last = None

    @rule(worker=workers, pick=picks)
    def reclaim(self, worker: str, pick: int) -> None:
        held = [job for job in self._held() if job.worker == worker]
        known = [j.receipt or "" for n, j in enumerate(held) if j.acked or (pick >> n) & 1]
        assert self.transport.reclaim(worker, known) == self.model.reclaim(worker, known)
        self.last = None

    # -- from outside

    @precondition(lambda self: self._settleable() or self._parked())
    @rule(pick=picks, state=st.sampled_from(["SUCCEEDED", "FAILED"]))
    def complete(self, pick: int, state: Any) -> None:
        job = self._pick([*self._held(), *self._parked()] or self._settleable(), pick)
        if job.is_late or job.kept or job.acked:
            return
        completion = Completion(state=state, error=BOOM if state == "FAILED" else None)
        token = completion_token(job.id, job.receipt or "")
        expected = self.model.complete(job, completion)
        assert self.transport.complete(token, completion).status == expected
        if expected == "ok":
            assert self.transport.complete(token, completion).status == "already"
        self.last = None

    @precondition(lambda self: self.model.jobs)
    @rule(pick=picks)
    def revoke(self, pick: int) -> None:
        job = self._pick(list(self.model.jobs.values()), pick)
        status = self.transport.revoke([job.id])[0].status
        # What is past its expiry may have been ended by this very call.
        self.model.follow(self._peek)
        assert status == self.model.revoke(job.id)

    @rule(queue=queues)
    def purge(self, queue: str) -> None:
        doubtful = any(self.model.is_expired(job) for job in self.model.jobs.values())
        reply = self.transport.purge(queue)
        if doubtful:
            self.model.follow(self._peek)
        removed = self.model.purge(queue, self._peek)
        assert reply.removed == removed or doubtful
        assert not reply.more

    @precondition(lambda self: self._ended())
    @rule(pick=picks, skipped=st.booleans(), stale=st.booleans())
    def reopen(self, pick: int, skipped: bool, stale: bool) -> None:
        job = self._pick(self._ended(), pick)
        again = self._reopenable(job, skipped=skipped)
        if again is None:
            return
        kind: Any = "skipped" if skipped else "all"
        if stale:
            expect = {job.id: job.series + 1}
            reply = self.transport.reopen([job.id], expect=expect, descendants=kind)
            assert reply.status == "refused"
            return
        reply = self.transport.reopen([job.id], expect={job.id: job.series}, descendants=kind)
        reopened = self.model.reopen([job.id], again)
        assert reply.status == ("ok" if reopened else "refused"), reply
        if reopened:
            assert set(reply.reopened) == {job.id, *(other.id for other in again)}
            self._forget_expiry(job)
        self.last = None

    @precondition(lambda self: self._dead())
    @rule(pick=picks)
    def replay_dead(self, pick: int) -> None:
        job = self._pick(self._dead(), pick)
        again = self._reopenable(job, skipped=True)
        if again is None:
            return
        reopened = self.model.reopen([job.id], again)
        assert self.transport.replay_dead([job.id]) == reopened
        if reopened:
            assert self.transport.replay_dead([job.id]) == 0
            job.expires_at = None
        self.last = None

    @precondition(lambda self: self._dead())
    @rule(pick=picks)
    def purge_dead(self, pick: int) -> None:
        job = self._pick(self._dead(), pick)
        assert self.transport.purge_dead([job.id]) == 1
        job.dead = False

    # -- time and maintenance

    @rule(seconds=st.sampled_from([1.37, 5.11, 13.73]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.model.now = self.clock.time()

    @rule()
    def reap(self) -> None:
        requeued = 0
        for _ in range(20):
            report = self.transport.reap(ReapRequest(retention=KEEP_ALL))
            requeued += report.requeued
            if not report.more:
                break
        cancelled = [j for j in self._held() if j.cancel or self.model.is_expired(j)]
        expected = self.model.reap(self._peek)
        assert requeued == expected or cancelled
        self.model.follow(self._peek)
        unread = [
            job.id
            for job in self.model.jobs.values()
            if job.state in (QUEUED, RETRYING) and self.model.is_expired(job) and not job.receipt
        ]
        assert not unread, f"{unread} are past their expiry and were left by reap"

    # -- what must hold after each call

    @invariant()
    def transport_and_model_agree(self) -> None:
        if not hasattr(self, "model"):
            return
        self.model.follow(self._peek)
        records = self.transport.get_jobs(list(self.model.jobs))
        for job, record in zip(self.model.jobs.values(), records, strict=True):
            self.model.compare(job, record)
        listed = {stats.queue: stats for stats in self.transport.stats()}
        for queue in QUEUES:
            self.model.compare_stats(queue, listed.get(queue, QueueStats(queue=queue)))
        dead = {letter.id for letter in self.transport.list_dead().letters}
        assert dead == {job.id for job in self._dead()}

    # -- helpers

    def _message(self, **fields: Any) -> Message:
        self.numbers += 1
        name = f"j{self.numbers:04d}"
        fields.setdefault("queue", QUEUES[0])
        fields.setdefault("max_deliveries", 3)
        return Message(
            id=name,
            task="t",
            envelope=name.encode(),
            max_yields=2,
            job_ttl=1e9,
            key_ttl=1e9,
            **fields,
        )

    def _enqueue(self, messages: list[Message]) -> None:
        answers = self.transport.enqueue(messages)
        expected = [self.model.enqueue(message) for message in messages]
        assert [(answer.id, answer.status) for answer in answers] == expected

    def _settle(self, worker: str, settlement: Settlement) -> None:
        result = self.transport.settle(worker, [settlement]).results[0]
        expected = self.model.settle(settlement)
        assert result.status == expected, (settlement, result)
        early = isinstance(settlement, Ack) and settlement.state is JobState.RUNNING
        self.last = (worker, settlement) if expected == "ok" and not early else None

    def _reopenable(self, job: Job, *, skipped: bool) -> list[Job] | None:
        if job.message.key or job.message.hold:
            return None
        return self.model.descendants([job.id], skipped=skipped)

    def _forget_expiry(self, job: Job) -> None:
        record = self.transport.get_jobs([job.id])[0]
        assert record is not None
        job.expires_at = record.expires_at

    def _may_park(self, job: Job) -> bool:
        last = job.deliveries == job.message.max_deliveries
        return not (job.expires_at or job.is_late or last)

    def _peek(self, job_id: str) -> JobState | None:
        record = self.transport.get_jobs([job_id])[0]
        return record.state if record else None

    def _pick(self, choice: list[Any], pick: int) -> Any:
        return choice[pick % len(choice)]

    def _held(self) -> list[Job]:
        return [job for job in self.model.jobs.values() if job.state is RUNNING]

    def _settleable(self) -> list[Job]:
        return [j for j in self.model.jobs.values() if j.state is RUNNING or j.is_late]

    def _parked(self) -> list[Job]:
        return [job for job in self.model.jobs.values() if job.state is WAITING]

    def _ended(self) -> list[Job]:
        return [job for job in self.model.jobs.values() if job.state.is_final]

    def _dead(self) -> list[Job]:
        return [job for job in self.model.jobs.values() if job.dead]

    def _stale(self) -> list[str]:
        return [r for job in self.model.jobs.values() for r in job.stale if r != job.receipt]

    def _receipts(self) -> list[str]:
        jobs = self.model.jobs.values()
        # In the order of the jobs: receipts are random, and a run must be repeatable.
        return [r for job in jobs for r in (*job.stale, job.receipt) if r]


class MemoryMachine(TransportMachine):
    def make(self, clock: FakeClock) -> Transport:
        return MemoryTransport(clock=clock)


class SqliteMachine(TransportMachine):
    def make(self, clock: FakeClock) -> Transport:
        self.folder = tempfile.TemporaryDirectory()
        return SqliteTransport(os.path.join(self.folder.name, "jobs.db"), clock=clock)

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "folder"):
            self.folder.cleanup()


BOUNDED = settings(
    deadline=None,
    stateful_step_count=40,
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    print_blob=True,
)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("machine", "examples"), [(MemoryMachine, 500), (SqliteMachine, 250)], ids=["memory", "sqlite"]
)
def test_transport_agrees_with_the_model(machine: type[TransportMachine], examples: int) -> None:
    run_state_machine_as_test(machine, settings=settings(BOUNDED, max_examples=examples))


@pytest.mark.parametrize(
    "liar", [liars.LosesArrivals, liars.HandsOutBackwards, liars.CountsReleases, liars.IgnoresKeys]
)
def test_the_model_finds_a_transport_that_lies(liar: type[liars.Honest]) -> None:
    class LyingMachine(TransportMachine):
        def make(self, clock: FakeClock) -> Transport:
            return liar(clock)

    # The same search each time: whether the machine can find a lie is the question, not its luck today.
    quick = settings(
        BOUNDED,
        max_examples=2000,
        phases=(Phase.generate,),
        report_multiple_bugs=False,
        derandomize=True,
    )
    with pytest.raises(AssertionError):
        run_state_machine_as_test(LyingMachine, settings=quick)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("machine", [MemoryMachine, SqliteMachine], ids=["memory", "sqlite"])
def test_transport_agrees_with_the_model_for_long(machine: type[TransportMachine]) -> None:
    long = settings(BOUNDED, max_examples=2_000, stateful_step_count=200)
    run_state_machine_as_test(machine, settings=long)
