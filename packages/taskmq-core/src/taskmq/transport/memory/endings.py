"""Beginnings and ends of jobs, and what follows from an end in the same step.

Every function is called with the store's lock held, so whatever one call does is one atomic step.
"""

from __future__ import annotations

from heapq import heappush
from typing import TYPE_CHECKING

from taskmq.errors import LeaseLost
from taskmq.states import JobState
from taskmq.transport.arrivals import (
    Tally,
    cause_of,
    counts_as_failed,
    decide,
    is_closed,
    verdict_of,
)
from taskmq.transport.memory.records import SUCCEEDED, Record, Where
from taskmq.transport.memory.sessions import KeyHold
from taskmq.transport.types import Ended, Enqueued, ErrorInfo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskmq.transport.memory.store import Store
    from taskmq.transport.types import Arrival, Completion, Expect, Fence, Message, Payload, Verdict

REVOKED = ErrorInfo(reason="revoked")


def check_fence(store: Store, fence: Fence, now: float) -> None:
    """Refuse a token that isn't the named lease's present one.

    Raises:
        LeaseLost: Somebody else has or may have the lease.
    """
    lease = store.named_leases.get(fence.lease)
    if lease is None or lease.token != fence.token or lease.until <= now:
        raise LeaseLost(
            f"token {fence.token} of the lease {fence.lease!r} is outdated, nothing was enqueued; "
            f"acquire the lease again"
        )


def admit(store: Store, messages: Sequence[Message], now: float) -> list[Enqueued]:
    """Store messages, all in one step; holds without arrivals are decided once all are stored."""
    answers: list[Enqueued] = []
    unheld: list[Record] = []
    records = store.records
    counter = store.counter
    for message in messages:
        job_id = message.id
        if job_id in records:
            answers.append(Enqueued(job_id, "exists"))
            continue
        key = message.key
        if key is not None:
            owner = key_owner(store, key, now)
            if owner is not None:
                answers.append(Enqueued(owner, "duplicate"))
                continue
            store.keys[key] = KeyHold(job_id, now + message.key_ttl, message.key_scope)
        record = Record(
            message, job_id, message.queue, message.priority, next(counter), now, message.envelope
        )
        records[job_id] = record
        if message.expires is not None:
            record.expires_at = now + message.expires
            store.index_expiry(record)
        if message.hold is not None:
            record.needed = message.hold.arrivals
            record.members = {}
            store.put_held(record)
            if record.needed <= 0:
                unheld.append(record)
        else:
            store.put_due(record, _due_at(message, now), now)
        answers.append(Enqueued(job_id, "created"))
    for record in unheld:
        _judge(store, record, "", "ok", now)
    return answers


def key_owner(store: Store, key: str, now: float) -> str | None:
    """The id of the job that an idempotency key belongs to; None when it is free."""
    hold = store.keys.get(key)
    if hold is None:
        return None
    record = store.records.get(hold.job_id)
    is_alive = record is not None and record.where != Where.ENDED
    # A bad end has freed the key already, so a job that isn't alive ended well.
    if is_alive or now < hold.until:
        return hold.job_id
    del store.keys[key]
    return None


def free_key(store: Store, record: Record) -> None:
    """Free the idempotency key of a record, if it is still its own."""
    key = record.message.key
    if key is None:
        return
    hold = store.keys.get(key)
    if hold is not None and hold.job_id == record.id:
        del store.keys[key]


def end(
    store: Store,
    record: Record,
    state: JobState,
    now: float,
    *,
    result: Payload | None = None,
    error: ErrorInfo | None = None,
    is_dead: bool = False,
    is_winner: bool = False,
) -> None:
    """End a job, wherever it is, with everything that follows from it.

    Args:
        store: The store.
        record: The job; it hasn't ended.
        state: Its final state.
        now: The time of the step.
        result: Its result.
        error: Why it ended so.
        is_dead: Whether it becomes a dead letter.
        is_winner: Whether its present receipt has decided the end and stays known for repeated calls.
    """
    if record.where != Where.IN_HAND or record.promised:
        store.take_out(record)
    if record.has_slot:
        store.free_slot(record)
    record.where = Where.ENDED
    record.state = state
    record.finished_at = now
    record.due_at = None
    record.result = result
    record.late = record.acked = False
    record.outcome = record.kept = None
    if error is not None:
        record.error = error
        record.reason = error.reason
    elif state is not JobState.FAILED:
        # Without an error of its own a failure keeps the last attempt's; every other end has none.
        record.error = None
        record.reason = "" if state is SUCCEEDED else state.lower()
    if not is_winner and record.receipt is not None:
        forget_receipt(store, record)
    if record.expiry_indexed:
        store.expiring_stale += 1
    message = record.message
    if message.key is not None:
        _end_key(store, record, message.key, now)
    if is_dead:
        store.add_dead(record)
    else:
        store.retain(record)
    if store.kept_for_run and record.id in store.kept_for_run:
        store.run_ended(record.id)
    if store.bedroom.by_job:
        store.bedroom.job_ended(record.id)
    if store.ended_log is not None:
        store.ended_log.append(
            Ended(
                id=record.id,
                task=message.task,
                queue=record.queue,
                state=state,
                reason=record.reason,
            )
        )
    if message.successors:
        for edge in message.successors:
            store.arrivals.append((edge.to, record.id, record.series, verdict_of(state, edge)))
        propagate(store, now)


def forget_receipt(store: Store, record: Record) -> None:
    """Make the present receipt of a record worthless, unless it is known as settled."""
    receipt = record.receipt
    if receipt is not None and receipt not in record.settled:
        store.by_receipt.pop(receipt, None)
    record.receipt = None


def _end_key(store: Store, record: Record, key: str, now: float) -> None:
    hold = store.keys.get(key)
    if hold is None or hold.job_id != record.id:
        return
    if record.state is not SUCCEEDED or hold.scope == "until_end" or hold.until <= now:
        del store.keys[key]
    else:
        heappush(store.key_ends, (hold.until, key, record.id))


def propagate(store: Store, now: float) -> None:
    """Apply the arrivals that have gathered, and those that they cause in turn, without recursion."""
    if store.is_propagating:
        return
    store.is_propagating = True
    try:
        while store.arrivals:
            to, source, series, verdict = store.arrivals.popleft()
            _arrive(store, to, source, series, verdict, now)
    finally:
        store.is_propagating = False


def arrive(store: Store, arrival: Arrival, now: float) -> None:
    """Apply an explicit arrival."""
    store.arrivals.append((arrival.to, arrival.source, arrival.series, arrival.verdict))
    propagate(store, now)


def expect(store: Store, more: Expect) -> None:
    """Raise the number of arrivals that a held message waits for."""
    record = store.records.get(more.to)
    if record is not None and record.where == Where.HELD:
        record.needed += more.more


def _arrive(store: Store, to: str, source: str, series: int, verdict: Verdict, now: float) -> None:
    record = store.records.get(to)
    if record is None or record.members is None:
        return
    # Also after the decision: a reopened message must know who had arrived.
    origin = store.records.get(source)
    if source in record.members or (origin is not None and origin.series > series):
        return
    record.members[source] = verdict
    record.failed += counts_as_failed(verdict)
    if record.where == Where.HELD:
        _judge(store, record, source, verdict, now)


def judge_again(store: Store, record: Record, now: float) -> None:
    """Decide a message that was held again: what has arrived before may suffice."""
    _judge(store, record, "", "ok", now)


def _judge(store: Store, record: Record, source: str, verdict: Verdict, now: float) -> None:
    hold = record.message.hold
    members = record.members
    if hold is None or members is None or record.where != Where.HELD:
        return
    tally = Tally(need=record.needed, arrived=len(members), failed=record.failed)
    decision = decide(hold, tally)
    if decision == "wait":
        return
    if decision == "give_up":
        end(store, record, hold.otherwise, now, error=cause_of(hold, source, verdict))
        return
    guard = record.message.guard
    guarding = None if guard is None else store.records.get(guard)
    if guarding is not None and is_closed(
        guarding.state, cancel_requested=guarding.cancel_requested
    ):
        end(store, record, JobState.REVOKED, now, error=REVOKED)
    elif hold.finish:
        end(store, record, JobState.SUCCEEDED, now)
    else:
        store.take_out(record)
        record.state = JobState.QUEUED
        store.put_due(record, _due_at(record.message, now), now)


def _due_at(message: Message, now: float) -> float | None:
    return message.eta if message.delay is None else now + message.delay


def give_back(store: Store, record: Record, due_at: float | None, now: float) -> None:
    """Put a delivery that its holder gave up back at its place; a cancelled one ends instead."""
    if record.has_slot:
        store.free_slot(record)
    if record.cancel_requested:
        end(store, record, JobState.REVOKED, now, error=REVOKED)
        return
    record.worker = None
    store.index_expiry(record)
    store.put_due(record, due_at, now)


def bury(
    store: Store, record: Record, error: ErrorInfo, now: float, *, is_winner: bool = False
) -> None:
    """End a job FAILED and make it a dead letter."""
    end(store, record, JobState.FAILED, now, error=error, is_dead=True, is_winner=is_winner)


def complete(store: Store, record: Record, completion: Completion, now: float) -> bool:
    """Apply an outcome from outside to a parked job; False when a worker has to decide about it."""
    if record.receipt is not None:
        record.completed = (record.receipt, completion)
    if record.where != Where.IN_HAND:
        store.take_out(record)
    if completion.state == "SUCCEEDED":
        end(store, record, JobState.SUCCEEDED, now, result=completion.result, is_winner=True)
    elif completion.retryable and not record.acked:
        _hand(store, record, completion)
        return False
    else:
        error = completion.error or ErrorInfo(message="failed by its completion")
        bury(store, record, error, now, is_winner=True)
    return True


def _hand(store: Store, record: Record, completion: Completion) -> None:
    record.outcome = completion
    record.kept = None
    record.state = JobState.QUEUED
    # The delivery that parked did its work; the one that decides takes its number.
    record.deliveries -= 1
    record.due_at = None
    store.put_ready(record)
