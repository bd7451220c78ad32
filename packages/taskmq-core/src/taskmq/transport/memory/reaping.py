"""Maintenance of the memory transport: leases, expiry, parked jobs, retention."""

from __future__ import annotations

from heapq import heapify, heappop
from typing import TYPE_CHECKING

from taskmq.states import JobState
from taskmq.transport.contract import MessageRole
from taskmq.transport.memory import endings
from taskmq.transport.memory.messages import EXPIRED
from taskmq.transport.memory.records import SWEEP_FROM, Record, Where
from taskmq.transport.memory.settling import WORKER_LOST
from taskmq.transport.types import Completion, Ended, ErrorInfo, ReapReport

if TYPE_CHECKING:
    from taskmq.transport.memory.store import Store
    from taskmq.transport.types import ReapRequest, Retention

_UNREAD = frozenset({Where.READY, Where.DELAYED, Where.BLOCKED, Where.HELD, Where.EXTERNAL})


class MemoryReaping(MessageRole):
    """The part of the message role about maintenance."""

    _store: Store

    def reap(self, request: ReapRequest) -> ReapReport:
        """Do one bounded pass of maintenance."""
        store = self._store
        with store.lock:
            now = store.clock.time()
            work = _Pass(store, request.limit, now)
            store.ended_log = work.ended
            try:
                requeued = work.take_back() if request.recover else 0
                work.expire()
                timed_out = work.time_out()
                pruned = work.prune(request.retention)
            finally:
                store.ended_log = None
            return ReapReport(
                requeued=requeued,
                timed_out=timed_out,
                pruned=pruned,
                ended=tuple(work.ended),
                next_in=_next_in(store, now, recover=request.recover),
                more=work.left <= 0,
            )


class _Pass:
    """One bounded pass."""

    def __init__(self, store: Store, limit: int, now: float) -> None:
        self.store = store
        self.now = now
        self.left = limit
        self.ended: list[Ended] = []

    def take_back(self) -> int:
        """Requeue or bury deliveries whose lease is over."""
        store = self.store
        requeued = 0
        while self.left > 0 and (first := store.leased.first()) is not None:
            at, _, record = first
            if at > self.now:
                break
            if record.lease_at > self.now:
                store.leased.rekey(record.lease_at)
                continue
            self.left -= 1
            requeued += self._requeue(record)
        return requeued

    def _requeue(self, record: Record) -> int:
        store = self.store
        if record.acked or record.deliveries >= record.message.max_deliveries:
            endings.bury(store, record, WORKER_LOST, self.now)
            return 0
        store.take_out(record)
        record.state = JobState.QUEUED
        # The receipt stays good until somebody else reserves the message.
        record.late = True
        endings.give_back(store, record, None, self.now)
        return record.where != Where.ENDED

    def expire(self) -> None:
        """End what is past its expiry and held by nobody."""
        store = self.store
        expiring = store.expiring
        while self.left > 0 and expiring and expiring[0][0] <= self.now:
            at, _, record = heappop(expiring)
            if record.where == Where.ENDED:
                store.expiring_stale -= 1
                continue
            if record.expires_at != at:
                continue
            # Indexed again when it is given back.
            record.expiry_indexed = False
            if record.where in _UNREAD and record.outcome is None:
                self.left -= 1
                endings.end(store, record, JobState.EXPIRED, self.now, error=EXPIRED)

    def time_out(self) -> int:
        """Hand parked jobs whose time is over to a worker, which decides about a retry."""
        store = self.store
        handed = 0
        while self.left > 0 and (first := store.parked.first()) is not None:
            at, _, record = first
            if at > self.now:
                break
            self.left -= 1
            handed += 1
            endings.complete(store, record, _TIMED_OUT, self.now)
        return handed

    def prune(self, retention: Retention) -> int:
        """Forget what is past its retention."""
        if retention.max_finished_jobs is not None:
            self.store.max_finished = retention.max_finished_jobs
        before = self.left
        self._prune_dead(retention)
        self._prune_finished()
        self._prune_keys()
        pruned = before - self.left
        self._prune_workers(retention.worker_ttl)
        self._prune_queues()
        self._sweep_expiring()
        return pruned

    def _prune_dead(self, retention: Retention) -> None:
        store = self.store
        ttl = retention.dead_letter_ttl
        limit = retention.dead_letter_max
        while self.left > 0 and store.dead:
            # In order of death: numbers rise, and a dict keeps the order of insertion.
            record = next(iter(store.dead.values()))
            is_old = ttl is not None and (record.finished_at or 0.0) + ttl <= self.now
            if not is_old and (limit is None or len(store.dead) <= limit):
                return
            store.drop_dead(record)
            store.retain(record)
            self.left -= 1

    def _prune_finished(self) -> None:
        store = self.store
        while self.left > 0 and len(store.finished) > store.max_finished:
            store.trim_finished(store.max_finished, steps=1)
            self.left -= 1
        while self.left > 0 and (first := store.finished_due.first()) is not None:
            if first[0] > self.now:
                return
            store.forget_or_keep(first[2])
            self.left -= 1

    def _prune_keys(self) -> None:
        store = self.store
        while self.left > 0 and store.key_ends and store.key_ends[0][0] <= self.now:
            _, key, job_id = heappop(store.key_ends)
            self.left -= 1
            hold = store.keys.get(key)
            record = store.records.get(job_id)
            is_alive = record is not None and record.where != Where.ENDED
            if hold is not None and hold.job_id == job_id and not is_alive:
                del store.keys[key]

    def _prune_workers(self, ttl: float) -> None:
        store = self.store
        for worker, info in list(store.workers.items()):
            if info.heartbeat_at + ttl <= self.now:
                del store.workers[worker]
        for worker, session in list(store.sessions.items()):
            is_idle = not session.held and session.used_at + ttl <= self.now
            if is_idle and worker not in store.bedroom.by_name and worker not in store.workers:
                del store.sessions[worker]
                store.bedroom.forget(worker)
        for name, lease in list(store.named_leases.items()):
            if lease.until <= self.now:
                del store.named_leases[name]
        for name, rate in list(store.rates.items()):
            if rate.is_over(self.now):
                del store.rates[name]
        used = {id(session.view) for session in store.sessions.values()}
        used |= {id(session.wait_view) for session in store.sessions.values()}
        for queues, view in list(store.views.items()):
            if id(view) not in used and not view.sleepers:
                view.detach()
                del store.views[queues]

    def _prune_queues(self) -> None:
        """Look at some of the queues in each pass."""
        store = self.store
        if not store.vacancy_check:
            store.vacancy_check = list(store.queues)
        for name in store.vacancy_check[-200:]:
            queue = store.queues.get(name)
            if queue is not None and not queue.links and queue.is_empty:
                del store.queues[name]
        del store.vacancy_check[-200:]

    def _sweep_expiring(self) -> None:
        store = self.store
        if store.expiring_stale > SWEEP_FROM and store.expiring_stale * 2 > len(store.expiring):
            store.expiring[:] = [
                entry
                for entry in store.expiring
                if entry[2].where != Where.ENDED and entry[2].expires_at == entry[0]
            ]
            heapify(store.expiring)
            store.expiring_stale = 0


_TIMED_OUT = Completion(
    state="FAILED",
    error=ErrorInfo(reason="timed out", message="nobody completed the job in time"),
    retryable=True,
)


def _next_in(store: Store, now: float, *, recover: bool) -> float | None:
    times: list[float] = []
    if store.expiring:
        times.append(store.expiring[0][0])
    heaps = (store.leased, store.parked, store.finished_due)
    for heap in heaps if recover else heaps[1:]:
        first = heap.first()
        if first is not None:
            times.append(first[0])
    return max(0.0, min(times) - now) if times else None
