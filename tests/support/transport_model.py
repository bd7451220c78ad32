"""A simple model of the transport contract: dictionaries and loops, no index, no batch, no lock.

Where the contract leaves a choice (an expired job may be ended by the next reserve or the next reap,
a cancelled one may end REVOKED when it is given back or be handed out with the request standing), the
model follows what the transport did, and refuses everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from taskmq.states import JobState
from taskmq.transport.types import (
    Ack,
    Bury,
    Completion,
    Defer,
    Delivery,
    HoldRule,
    JobRecord,
    Message,
    Park,
    QueueStats,
    Release,
    Retry,
    Settlement,
    Yield,
)

QUEUED, RUNNING, RETRYING = JobState.QUEUED, JobState.RUNNING, JobState.RETRYING
PENDING, WAITING, REVOKED = JobState.PENDING, JobState.WAITING, JobState.REVOKED
SUCCEEDED, FAILED, SKIPPED = JobState.SUCCEEDED, JobState.FAILED, JobState.SKIPPED
EXPIRED = JobState.EXPIRED

Peek = Callable[[str], "JobState | None"]


@dataclass
class Job:
    """One job, as the contract describes it."""

    message: Message
    state: JobState
    place: int | None
    """Where it stands in its band; None where the contract promises no place."""
    due_at: float
    expires_at: float | None
    attempt: int = 1
    deliveries: int = 0
    yields: int = 0
    series: int = 1
    cancel: bool = False
    dead: bool = False
    acked: bool = False
    worker: str = ""
    receipt: str | None = None
    lease_until: float = 0.0
    stale: list[str] = field(default_factory=list)
    arrivals: dict[str, str] = field(default_factory=dict)
    kept: Completion | None = None

    @property
    def id(self) -> str:
        return self.message.id

    @property
    def is_late(self) -> bool:
        """Its lease was taken back, but its last holder's word still counts."""
        return self.receipt is not None and self.state in (QUEUED, RETRYING)


class Model:
    """What a transport must hold after the same calls."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.keys: dict[str, str] = {}
        self.now = 0.0
        self._places = 0

    # -- producing

    def enqueue(self, message: Message) -> tuple[str, str]:
        """The id and the status that the answer must have."""
        if message.id in self.jobs:
            return message.id, "exists"
        owner = self.keys.get(message.key) if message.key else None
        if owner is not None:
            return owner, "duplicate"
        if message.key:
            self.keys[message.key] = message.id
        self._places += 1
        held = message.hold is not None
        self.jobs[message.id] = Job(
            message=message,
            state=PENDING if held else QUEUED,
            place=None if held or message.delay else self._places,
            due_at=self.now + (message.delay or 0.0),
            expires_at=None if message.expires is None else self.now + message.expires,
        )
        return message.id, "created"

    # -- reserving

    def eligible(self, worker: str, queues: Iterable[str]) -> list[Job]:
        """What this worker may be given now."""
        has_last_chance = any(
            job.state is RUNNING and job.worker == worker and _is_last(job, job.deliveries)
            for job in self.jobs.values()
        )
        return [
            job
            for job in self.jobs.values()
            if job.state in (QUEUED, RETRYING)
            and job.message.queue in queues
            and job.due_at <= self.now
            and not self.is_expired(job)
            and not self._key_is_full(job)
            and not (has_last_chance and _is_last(job, job.deliveries + 1))
        ]

    def reserve(
        self, worker: str, queues: list[str], limit: int, lease: float, got: list[Delivery]
    ) -> None:
        """Check each delivery against what could be given at that moment, and record it."""
        assert len(got) <= limit
        for delivery in got:
            choice = self.eligible(worker, queues)
            job = self.jobs[delivery.id]
            assert job in choice, f"{delivery.id} could not be given to {worker}"
            best = max(other.message.priority for other in choice)
            assert job.message.priority == best, f"{delivery.id} came before priority {best}"
            self._check_fifo(job, choice)
            self._start(job, worker, lease, delivery)
        if len(got) < limit:
            left = [job.id for job in self.eligible(worker, queues)]
            assert not left, f"{left} were left though {worker} asked for {limit}"

    def _check_fifo(self, job: Job, choice: list[Job]) -> None:
        if job.place is None or job.message.concurrency_key:
            return
        earlier = [
            other.id
            for other in choice
            if other.message.queue == job.message.queue
            and other.message.priority == job.message.priority
            and not other.message.concurrency_key
            and other.place is not None
            and other.place < job.place
        ]
        assert not earlier, f"{job.id} came before {earlier}"

    def _start(self, job: Job, worker: str, lease: float, delivery: Delivery) -> None:
        if job.receipt is not None:
            job.stale.append(job.receipt)
        job.state, job.worker, job.receipt = RUNNING, worker, delivery.receipt
        job.deliveries += 1
        job.lease_until = self.now + lease
        if job.message.key_scope == "until_start":
            self._free_key(job)
        said = (delivery.attempt, delivery.deliveries, delivery.yields, delivery.series)
        assert said == (job.attempt, job.deliveries, job.yields, job.series), delivery.id
        assert delivery.cancel_requested == job.cancel, delivery.id

    def reclaim(self, worker: str, keep: list[str]) -> int:
        """Give back, uncounted, what the worker holds and does not keep."""
        given = [
            job
            for job in self.jobs.values()
            if job.state is RUNNING and job.worker == worker and job.receipt not in keep
        ]
        for job in given:
            job.deliveries -= 1
            self._give_back(job, QUEUED)
        return len(given)

    # -- settling

    def holder_of(self, receipt: str) -> Job | None:
        """The job that this receipt may settle."""
        for job in self.jobs.values():
            if job.receipt == receipt and (job.state is RUNNING or job.is_late):
                return job
        return None

    def settle(self, settlement: Settlement) -> str:
        """Apply a settlement; the status that the answer must have ("stale" is lost or already)."""
        job = self.holder_of(settlement.receipt)
        if job is None:
            return "stale"
        if isinstance(settlement, Yield) and job.yields >= job.message.max_yields:
            return "refused"
        for message in settlement.follow_ups.enqueue if settlement.follow_ups else ():
            self.enqueue(message)
        if isinstance(settlement, Ack):
            self._ack(job, settlement)
        elif isinstance(settlement, Bury):
            self.end(job, FAILED, dead=True)
        elif isinstance(settlement, Retry):
            job.attempt, job.deliveries = job.attempt + 1, 0
            job.place = None
            self._give_back(job, RETRYING, settlement.delay)
        elif isinstance(settlement, Defer | Yield):
            job.yields += isinstance(settlement, Yield)
            job.deliveries -= 1
            self._give_back(job, QUEUED, settlement.delay)
        elif isinstance(settlement, Release):
            self._release(job, counted=settlement.counted)
        else:
            self._park(job, settlement)
        return "ok"

    def _ack(self, job: Job, ack: Ack) -> None:
        if ack.state is not RUNNING:
            self.end(job, ack.state)
            return
        job.acked = True
        job.state = RUNNING

    def _release(self, job: Job, *, counted: bool) -> None:
        if counted and job.deliveries >= job.message.max_deliveries:
            self.end(job, FAILED, dead=True)
            return
        job.deliveries -= not counted
        self._give_back(job, QUEUED)

    def _park(self, job: Job, _park: Park) -> None:
        job.state = WAITING
        if job.kept is not None:
            self._finish_from_outside(job, job.kept)

    def _give_back(self, job: Job, state: JobState, delay: float = 0.0) -> None:
        if job.receipt is not None:
            job.stale.append(job.receipt)
        job.state, job.receipt, job.kept = state, None, None
        job.due_at = self.now + delay

    def extend(self, receipt: str, lease: float) -> bool:
        """Whether the receipt is held (again)."""
        job = self.holder_of(receipt)
        if job is None:
            return False
        job.state = RUNNING
        job.lease_until = self.now + lease
        return True

    # -- ends, and what follows

    def end(self, job: Job, state: JobState, *, dead: bool = False) -> None:
        """Make a job final; arrive at its successors."""
        assert not job.state.is_final
        if job.receipt is not None:
            job.stale.append(job.receipt)
        job.state, job.dead, job.kept = state, dead, None
        if state is not SUCCEEDED or job.message.key_scope == "until_end":
            self._free_key(job)
        for edge in job.message.successors:
            ok = state is SUCCEEDED or edge.tolerate
            self.arrive(edge.to, job.id, "ok" if ok else "bad")

    def arrive(self, to: str, source: str, verdict: str) -> None:
        """Count an arrival once, and see what the rule says."""
        job = self.jobs.get(to)
        if job is None or job.message.hold is None or source in job.arrivals:
            return
        job.arrivals[source] = verdict
        if job.state is PENDING:
            self._decide(job)

    def decision(self, job: Job) -> str:
        """What the rule of a held job says."""
        hold = job.message.hold
        assert hold is not None
        bad = sum(verdict == "bad" for verdict in job.arrivals.values())
        complete = len(job.arrivals) >= hold.arrivals
        if hold.rule is HoldRule.ALL_OK:
            return "give up" if bad else ("release" if complete else "wait")
        if hold.rule is HoldRule.ANY_FAILED:
            return "release" if bad else ("give up" if complete else "wait")
        if not complete:
            return "wait"
        too_many = hold.rule is HoldRule.TOLERATE and bad > hold.tolerate
        return "give up" if too_many else "release"

    def _decide(self, job: Job) -> None:
        hold, decision = job.message.hold, self.decision(job)
        assert hold is not None
        if decision == "give up":
            self.end(job, hold.otherwise)
        elif decision == "release" and hold.finish:
            self.end(job, SUCCEEDED)
        elif decision == "release":
            job.state, job.due_at, job.place = QUEUED, self.now, None

    def revoke(self, job_id: str) -> str:
        """The status that the answer must have."""
        job = self.jobs[job_id]
        if job.state.is_final:
            return "final"
        if job.state is RUNNING:
            job.cancel = True
            return "cancelling"
        self.end(job, REVOKED)
        return "revoked"

    def purge(self, queue: str, peek: Peek) -> int:
        """End what nobody holds, and what that released, if the transport did so; how many."""
        removed = 0
        must = {job.id for job in self._unheld(queue)}
        while True:
            ended = [job for job in self._unheld(queue) if peek(job.id) is REVOKED]
            if not ended:
                break
            for job in ended:
                self.end(job, REVOKED)
                removed += 1
        left = [job.id for job in self._unheld(queue) if job.id in must]
        assert not left, f"{left} were left by purge"
        return removed

    def _unheld(self, queue: str) -> list[Job]:
        return [
            job
            for job in self.jobs.values()
            if job.message.queue == queue and job.state in (QUEUED, RETRYING)
        ]

    def complete(self, job: Job, completion: Completion) -> str:
        """Complete the job's present delivery from outside; the status of the answer."""
        if job.state is WAITING:
            self._finish_from_outside(job, completion)
            return "ok"
        job.kept = completion
        return "kept"

    def _finish_from_outside(self, job: Job, completion: Completion) -> None:
        self.end(job, JobState(completion.state), dead=completion.state == "FAILED")

    def reap(self, peek: Peek) -> int:
        """Take back leases that are over; how many messages were queued again."""
        requeued = 0
        for job in list(self.jobs.values()):
            if job.state is not RUNNING or job.lease_until > self.now:
                continue
            if not job.acked and job.deliveries < job.message.max_deliveries:
                job.state, job.place, job.due_at, job.kept = QUEUED, None, self.now, None
                requeued += 1
                continue
            allowed = {FAILED}
            if job.cancel:
                allowed.add(REVOKED)
            if self.is_expired(job):
                allowed.add(EXPIRED)
            state = peek(job.id)
            assert state is not None
            assert state in allowed, f"{job.id} is {state} after its last lease"
            self.end(job, state, dead=state is FAILED)
        return requeued

    # -- reopening

    def descendants(self, ids: list[str], *, skipped: bool) -> list[Job] | None:
        """What a reopen of these holds again; None where the contract does not say what follows."""
        found: dict[str, Job] = {}
        todo = list(ids)
        while todo:
            for edge in self.jobs[todo.pop()].message.successors:
                job = self.jobs[edge.to]
                hold = job.message.hold
                assert hold is not None
                wanted = not skipped or job.state in (SKIPPED, PENDING) or hold.finish
                if job.id not in found and wanted:
                    found[job.id] = job
                    todo.append(job.id)
        sources = {*ids, *found}
        again = [job for job in found.values() if job.state is not PENDING]
        for job in again:
            left = {s: v for s, v in job.arrivals.items() if s not in sources}
            if job.id in ids or "bad" in left.values():
                return None
        return again

    def reopen(self, ids: list[str], again: list[Job]) -> bool:
        """Start a new series, unless something is still alive."""
        named = [self.jobs[job_id] for job_id in ids]
        if not all(job.state.is_final for job in [*named, *again]):
            return False
        sources = {job.id for job in [*named, *again]}
        for job in [*named, *again]:
            job.series += 1
            job.attempt, job.deliveries, job.yields = 1, 0, 0
            job.cancel = job.dead = job.acked = False
            job.receipt, job.place, job.due_at, job.kept = None, None, self.now, None
            for edge in job.message.successors:
                self.jobs[edge.to].arrivals.pop(job.id, None)
        for job in named:
            job.state = QUEUED
        for job in again:
            job.state = PENDING
            job.arrivals = {s: v for s, v in job.arrivals.items() if s not in sources}
        return True

    # -- comparing

    def is_expired(self, job: Job) -> bool:
        """Whether it may no longer start."""
        return job.expires_at is not None and job.expires_at <= self.now

    def follow(self, peek: Peek) -> None:
        """Follow the transport where the contract leaves it a choice."""
        changed = True
        while changed:
            changed = False
            for job in list(self.jobs.values()):
                if job.state not in (QUEUED, RETRYING, WAITING):
                    continue
                actual = peek(job.id)
                expired = actual is EXPIRED and self.is_expired(job)
                cancelled = actual is REVOKED and job.cancel
                if expired or cancelled:
                    self.end(job, EXPIRED if expired else REVOKED)
                    changed = True

    def compare(self, job: Job, record: JobRecord | None) -> None:
        """Insist that the record says what the model says."""
        assert record is not None, f"{job.id} has no record"
        assert record.state is job.state, f"{job.id} is {record.state}, not {job.state}"
        assert (record.series, record.dead) == (job.series, job.dead), job.id
        if job.state not in (REVOKED, EXPIRED):
            # What a settlement counted that ended a cancelled job is nobody's business any more.
            said = (record.attempt, record.deliveries, record.yields)
            expected = (job.attempt, job.deliveries, job.yields)
            assert said == expected, f"{job.id}: {said}, not {expected}"
        if job.state is RUNNING:
            assert (record.receipt, record.worker) == (job.receipt, job.worker), job.id
            assert record.cancel_requested == job.cancel, job.id
        if job.state is PENDING:
            assert record.arrived == len(job.arrivals), job.id

    def compare_stats(self, queue: str, stats: QueueStats) -> None:
        """Insist on the counts of a queue."""
        jobs = [job for job in self.jobs.values() if job.message.queue == queue]

        def count(*states: JobState) -> int:
            return sum(job.state in states for job in jobs)

        assert stats.pending + stats.delayed + stats.blocked == count(QUEUED, RETRYING), queue
        assert stats.in_flight == count(RUNNING), queue
        assert (stats.held, stats.waiting) == (count(PENDING), count(WAITING)), queue
        assert stats.dead == sum(job.dead for job in jobs), queue
        delayed = [job for job in jobs if job.state in (QUEUED, RETRYING) and job.due_at > self.now]
        assert stats.delayed == len(delayed), queue

    def _key_is_full(self, job: Job) -> bool:
        key = job.message.concurrency_key
        if key is None:
            return False
        holders = [
            other
            for other in self.jobs.values()
            if other.message.concurrency_key == key and other.state in (RUNNING, WAITING)
        ]
        return len(holders) >= job.message.concurrency_limit

    def _free_key(self, job: Job) -> None:
        key = job.message.key
        if key is not None and self.keys.get(key) == job.id:
            del self.keys[key]


def _is_last(job: Job, deliveries: int) -> bool:
    return 1 < deliveries == job.message.max_deliveries
