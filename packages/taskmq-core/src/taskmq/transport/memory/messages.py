"""Messages of the memory transport: enqueue, reserve, reclaim, purge, stats."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskmq.states import JobState
from taskmq.transport.contract import MessageRole
from taskmq.transport.memory import endings
from taskmq.transport.memory.records import Record, Where
from taskmq.transport.memory.views import levels_up_to
from taskmq.transport.types import (
    BandStats,
    Delivery,
    ErrorInfo,
    PurgeReply,
    QueueStats,
    ReserveReply,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from taskmq.transport.memory.lines import Band, Queue
    from taskmq.transport.memory.sessions import Session
    from taskmq.transport.memory.store import Store
    from taskmq.transport.memory.views import Seat, View
    from taskmq.transport.types import Enqueued, Fence, Message, ReserveRequest

NONE: frozenset[str] = frozenset()
EXPIRED = ErrorInfo(reason="expired")
PURGED = ErrorInfo(reason="purged")
# How many messages one reserve may move aside (expired, or their concurrency key full).
_WORK_BOUND = 1_000


class MemoryMessages(MessageRole):
    """The first half of the message role."""

    _store: Store

    def enqueue(self, messages: Sequence[Message], *, fence: Fence | None = None) -> list[Enqueued]:
        """Store messages and their records in one step."""
        store = self._store
        with store.lock:
            now = store.clock.time()
            if fence is not None:
                endings.check_fence(store, fence, now)
            return endings.admit(store, messages, now)

    def reserve(self, request: ReserveRequest) -> ReserveReply:
        """Lease the best messages to a worker."""
        store = self._store
        with store.lock:
            now = store.clock.time()
            session = store.session(request.worker, now)
            view = store.view_for(session, request.queues)
            if view.due:
                store.promote(view, now)
            deliveries: list[Delivery] = []
            more = request.limit > 0 and _fill(store, session, view, request, deliveries, now)
            session.seen = view.version
            due_at = view.next_due() if view.due else None
            return ReserveReply(
                deliveries=deliveries,
                now=now,
                head=session.head() if view.mask else None,
                next_due_in=None if due_at is None else max(0.0, due_at - now),
                more=more,
                cancelled=frozenset(session.cancelled) if session.cancelled else NONE,
                terminate=frozenset(session.terminate) if session.terminate else NONE,
            )

    def reclaim(self, worker: str, keep: Sequence[str]) -> int:
        """Give back what the worker holds without knowing it."""
        store = self._store
        with store.lock:
            session = store.sessions.get(worker)
            if session is None:
                return 0
            known = frozenset(keep)
            unknown = [
                record
                for receipt, record in session.held.items()
                # What was acknowledged before the work is known to its holder.
                if receipt not in known and not record.acked
            ]
            now = store.clock.time()
            for record in unknown:
                store.take_out(record)
                endings.forget_receipt(store, record)
                record.deliveries -= 1
                record.state = JobState.QUEUED
                record.kept = None
                endings.give_back(store, record, None, now)
            return len(unknown)

    def purge(self, queue: str, *, limit: int = 500) -> PurgeReply:
        """End a queue's jobs that nobody holds."""
        store = self._store
        with store.lock:
            now = store.clock.time()
            removed = 0
            found = store.queues.get(queue)
            if found is None:
                return PurgeReply(removed=0)
            while removed < limit and (record := _any_unheld(found)) is not None:
                endings.end(store, record, JobState.REVOKED, now, error=PURGED)
                removed += 1
            return PurgeReply(removed=removed, more=_any_unheld(found) is not None)

    def stats(self, queues: Sequence[str] | None = None) -> list[QueueStats]:
        """Count what each queue holds, in O(queues)."""
        store = self._store
        with store.lock:
            now = store.clock.time()
            if queues is None:
                names = sorted(name for name, queue in store.queues.items() if not queue.is_empty)
            else:
                names = sorted(set(queues))
            answers: list[QueueStats] = []
            for name in names:
                queue = store.queues.get(name)
                if queue is None:
                    answers.append(QueueStats(queue=name))
                    continue
                store.promote_queue(queue, now)
                answers.append(_stats_of(queue, now))
            return answers


def _fill(
    store: Store,
    session: Session,
    view: View,
    request: ReserveRequest,
    deliveries: list[Delivery],
    now: float,
) -> bool:
    """Lease what is best until the limit; True when it stopped at the work bound."""
    allowed = levels_up_to(request.max_priority)
    aside: list[tuple[int, int, Seat]] = []
    budget = _WORK_BOUND
    limit = request.limit
    while len(deliveries) < limit and budget:
        with_last = session.last_chances == 0
        seat = view.best(allowed, with_last, aside)
        if seat is None:
            break
        record = seat.band.pop(with_last=with_last)
        record.where = Where.IN_HAND
        record.stamp = 0
        if record.expires_at is not None and record.expires_at <= now and record.outcome is None:
            endings.end(store, record, JobState.EXPIRED, now, error=EXPIRED)
            budget -= 1
            continue
        key = record.message.concurrency_key
        if key is not None and not record.has_slot and not store.take_slot(record, key):
            budget -= 1
            continue
        view.charge(seat)
        deliveries.append(_lease(store, session, record, request.lease, now))
    if aside:
        view.restore(aside)
    return not budget


def _lease(
    store: Store, session: Session, record: Record, default_lease: float, now: float
) -> Delivery:
    message = record.message
    if record.receipt is not None:
        # From here on a late settlement of the last holder comes too late.
        endings.forget_receipt(store, record)
    record.receipt = receipt = store.new_receipt()
    store.by_receipt[receipt] = record
    record.deliveries += 1
    record.reserved_at = now
    record.started_at = None
    record.due_at = None
    record.promised = False
    record.kept = None
    lease = default_lease if message.lease is None else message.lease
    store.put_leased(record, session, lease, now)
    if message.key is not None and message.key_scope == "until_start":
        endings.free_key(store, record)
    if record.cancel_requested:
        session.cancelled.add(receipt)
    return Delivery(
        id=record.id,
        task=message.task,
        queue=record.queue,
        priority=record.priority,
        envelope=record.envelope,
        receipt=receipt,
        lease=lease,
        attempt=record.attempt,
        deliveries=record.deliveries,
        max_deliveries=message.max_deliveries,
        yields=record.yields,
        series=record.series,
        enqueued_at=record.enqueued_at,
        reserved_at=now,
        expires_at=record.expires_at,
        cancel_requested=record.cancel_requested,
        meta=record.meta,
        outcome=record.outcome,
        run=message.run,
        step=message.step,
    )


def _any_unheld(queue: Queue) -> Record | None:
    """Some message of a queue that nobody holds."""
    for priority in sorted(queue.bands, reverse=True):
        band = queue.bands[priority]
        if band.ready or band.last_ready:
            return band.first()
    delayed = queue.delayed.first()
    if delayed is not None:
        return delayed[2]
    for table in (queue.blocked, queue.external):
        for record in table.values():
            return record
    return None


def _stats_of(queue: Queue, now: float) -> QueueStats:
    bands = tuple(_bands_of(queue, now))
    ages = [band.oldest_age for band in bands if band.oldest_age is not None]
    return QueueStats(
        queue=queue.name,
        pending=sum(band.pending for band in bands),
        delayed=sum(band.delayed for band in bands),
        in_flight=sum(band.in_flight for band in bands),
        blocked=sum(band.blocked for band in bands),
        held=queue.held,
        waiting=queue.waiting,
        dead=queue.dead,
        oldest_age=max(ages) if ages else None,
        bands=bands,
    )


def _bands_of(queue: Queue, now: float) -> Iterator[BandStats]:
    for priority in sorted(queue.bands, reverse=True):
        band = queue.bands[priority]
        if not band.is_empty:
            yield BandStats(
                priority=priority,
                pending=band.ready + band.last_ready + band.external,
                delayed=band.delayed,
                in_flight=band.leased,
                blocked=band.blocked,
                oldest_age=_oldest_age(band, now),
            )


def _oldest_age(band: Band, now: float) -> float | None:
    first = band.first()
    if first is None:
        return None
    # What was delayed has waited since it fell due, not since it was enqueued.
    since = first.enqueued_at if first.due_at is None else max(first.due_at, first.enqueued_at)
    return max(0.0, now - since)
