"""What workers say of their deliveries: settle and extend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskmq.states import JobState
from taskmq.transport.contract import MessageRole
from taskmq.transport.memory import endings
from taskmq.transport.memory.records import RUNNING, SUCCEEDED, Record, Where
from taskmq.transport.types import (
    Ack,
    Bury,
    Defer,
    ErrorInfo,
    ExtendReply,
    Park,
    Release,
    Retry,
    SettleReply,
    SettleResult,
    Yield,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskmq.transport.memory.store import Store
    from taskmq.transport.types import Extension, FollowUps, Settlement

OK = SettleResult("ok")
ALREADY = SettleResult("already")
LOST = SettleResult("lost")
NONE: frozenset[str] = frozenset()
WORKER_LOST = ErrorInfo(
    reason="worker lost", message="the worker was lost on the last delivery that was allowed"
)
_ACK_STATES = frozenset(
    {
        JobState.SUCCEEDED,
        JobState.FAILED,
        JobState.REVOKED,
        JobState.EXPIRED,
        JobState.RUNNING,
    }
)
# How many settled receipts a record remembers; a call is repeated at once or not at all.
_REMEMBERED = 8


class MemorySettling(MessageRole):
    """The part of the message role that holders use."""

    _store: Store

    def settle(self, worker: str, settlements: Sequence[Settlement]) -> SettleReply:
        """Apply settlements, each with its follow-ups."""
        store = self._store
        with store.lock:
            now = store.clock.time()
            results = [_settle(store, worker, settlement, now) for settlement in settlements]
            session = store.sessions.get(worker)
            if session is None:
                return SettleReply(results=results, now=now)
            return SettleReply(
                results=results,
                now=now,
                head=session.head(),
                cancelled=frozenset(session.cancelled) if session.cancelled else NONE,
                terminate=frozenset(session.terminate) if session.terminate else NONE,
            )

    def extend(self, worker: str, extensions: Sequence[Extension]) -> ExtendReply:
        """Prolong leases, and hold again what nobody else has taken."""
        store = self._store
        lost: set[str] = set()
        cancelled: set[str] = set()
        expired: set[str] = set()
        with store.lock:
            now = store.clock.time()
            for extension in extensions:
                record = _holding(store, extension.receipt)
                if record is None:
                    lost.add(extension.receipt)
                    continue
                if record.where == Where.LEASED:
                    _prolong(store, record, now + extension.lease)
                else:
                    _hold_again(store, worker, record, extension.lease, now)
                if extension.started_ago is not None:
                    record.started_at = now - extension.started_ago
                if record.cancel_requested:
                    cancelled.add(extension.receipt)
                is_past = record.expires_at is not None and record.expires_at <= now
                if is_past and record.started_at is None:
                    expired.add(extension.receipt)
            session = store.sessions.get(worker)
            terminate = NONE if session is None else frozenset(cancelled & session.terminate)
            return ExtendReply(
                now=now,
                lost=frozenset(lost),
                cancelled=frozenset(cancelled),
                terminate=terminate,
                expired=frozenset(expired),
                head=None if session is None else session.head(),
            )


def _holding(store: Store, receipt: str) -> Record | None:
    """The record that this receipt holds, or may still settle because nobody took it since."""
    record = store.by_receipt.get(receipt)
    if record is None or record.receipt != receipt:
        return None
    return record if record.where == Where.LEASED or record.late else None


def _prolong(store: Store, record: Record, lease_at: float) -> None:
    if lease_at < record.lease_at:
        record.stamp = next(store.counter)
        store.leased.drop()
        record.lease_at = lease_at
        store.leased.push(lease_at, record)
    else:
        # The entry in the heap comes up early and is put back then: no write now.
        record.lease_at = lease_at


def _hold_again(store: Store, worker: str, record: Record, lease: float, now: float) -> None:
    store.take_out(record)
    store.retake_slot(record)
    store.put_leased(record, store.session(worker, now), lease, now)


def _settle(store: Store, worker: str, settlement: Settlement, now: float) -> SettleResult:
    receipt = settlement.receipt
    record = store.by_receipt.get(receipt)
    if record is None:
        return LOST
    if receipt in record.settled:
        return ALREADY
    if record.receipt != receipt or not (record.where == Where.LEASED or record.late):
        return LOST
    is_early_ack = isinstance(settlement, Ack) and settlement.state is RUNNING
    if is_early_ack and record.acked:
        return ALREADY
    refusal = _refusal(record, settlement)
    if refusal:
        return SettleResult("refused", refusal)
    if settlement.started_ago is not None:
        record.started_at = now - settlement.started_ago
    if settlement.meta is not None:
        record.meta = settlement.meta
    if is_early_ack:
        if record.late:
            lease = record.lease_at - (record.reserved_at or now)
            _hold_again(store, worker, record, lease, now)
        record.acked = True
        if settlement.follow_ups is not None:
            _follow(store, settlement.follow_ups, now)
        return OK
    store.take_out(record)
    record.late = False
    _remember(store, record, receipt)
    if settlement.follow_ups is not None:
        _follow(store, settlement.follow_ups, now)
    if isinstance(settlement, Ack):
        record.result_stored = settlement.result_stored
        endings.end(
            store,
            record,
            settlement.state,
            now,
            result=settlement.result,
            error=settlement.error,
            is_winner=True,
        )
    else:
        _apply(store, record, settlement, now)
    return OK


def _refusal(record: Record, settlement: Settlement) -> str:
    """Why a settlement can't be applied, "" when it can."""
    if isinstance(settlement, Ack):
        if settlement.state is SUCCEEDED or settlement.state in _ACK_STATES:
            return ""
        return f"a job can't be acknowledged as {settlement.state}"
    if isinstance(settlement, (Retry, Defer, Yield, Release)) and record.acked:
        return "acknowledged before the work, so it is never delivered again"
    if isinstance(settlement, Yield) and record.yields >= record.message.max_yields:
        return "max yields"
    return ""


def _remember(store: Store, record: Record, receipt: str) -> None:
    if not record.settled:
        record.settled = (receipt,)
        return
    settled = (*record.settled, receipt)
    for old in settled[:-_REMEMBERED]:
        store.by_receipt.pop(old, None)
    record.settled = settled[-_REMEMBERED:]


def _follow(store: Store, follow_ups: FollowUps, now: float) -> None:
    if follow_ups.enqueue:
        endings.admit(store, follow_ups.enqueue, now)
    for more in follow_ups.expect:
        endings.expect(store, more)
    for arrival in follow_ups.arrive:
        endings.arrive(store, arrival, now)
    for finish in follow_ups.finish:
        target = store.records.get(finish.id)
        if target is not None and target.where == Where.HELD:
            endings.end(store, target, finish.state, now, result=finish.result, error=finish.error)


def _apply(store: Store, record: Record, settlement: Settlement, now: float) -> None:
    """Apply a settlement that isn't an ack to a record in hand."""
    if isinstance(settlement, Bury):
        endings.bury(store, record, settlement.error, now, is_winner=True)
        return
    if isinstance(settlement, Park):
        _park(store, record, settlement.timeout, now)
        return
    record.receipt = None
    record.kept = None
    record.state = JobState.QUEUED
    if isinstance(settlement, Release):
        if settlement.counted:
            if record.deliveries >= record.message.max_deliveries:
                endings.bury(store, record, WORKER_LOST, now)
                return
        else:
            record.deliveries -= 1
        endings.give_back(store, record, None, now)
    elif isinstance(settlement, Retry):
        record.state = JobState.RETRYING
        record.attempt += 1
        record.deliveries = 0
        record.outcome = None
        record.error = settlement.error
        record.reason = "" if settlement.error is None else settlement.error.reason
        if settlement.envelope is not None:
            record.envelope = settlement.envelope
        endings.give_back(store, record, now + settlement.delay, now)
    elif isinstance(settlement, Defer):
        record.deliveries -= 1
        record.reason = settlement.reason
        endings.give_back(store, record, now + settlement.delay, now)
    elif isinstance(settlement, Yield):
        record.deliveries -= 1
        record.yields += 1
        endings.give_back(store, record, now + settlement.delay, now)


def _park(store: Store, record: Record, timeout: float | None, now: float) -> None:
    if record.kept is not None:
        endings.complete(store, record, record.kept, now)
    elif record.cancel_requested:
        endings.end(store, record, JobState.REVOKED, now, error=endings.REVOKED, is_winner=True)
    else:
        # The outside goes on with the work, so its slot stays taken, or is taken again by one late.
        store.retake_slot(record)
        store.put_parked(record, None if timeout is None else now + timeout)
