"""Reopening ended jobs: a new series for them, and held again what depends on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from taskmq.states import JobState
from taskmq.transport.arrivals import counts_as_failed
from taskmq.transport.memory import endings
from taskmq.transport.memory.records import Record, Where
from taskmq.transport.memory.sessions import KeyHold
from taskmq.transport.types import ReopenResult

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from taskmq.transport.memory.store import Store


class _Refused(Exception):
    """Why nothing is reopened."""


def reopen(
    store: Store,
    ids: Sequence[str],
    now: float,
    *,
    expect: Mapping[str, int],
    descendants: Literal["all", "skipped"],
    queue: str | None = None,
    priority: int | None = None,
) -> ReopenResult:
    """Reopen the named records, all or none; see the contract."""
    try:
        named = _named(store, ids, expect)
        dependants = _dependants(store, named, descendants)
    except _Refused as refusal:
        return ReopenResult(status="refused", reason=str(refusal))
    roots = [record for record in named if record.id not in dependants and not _is_taskless(record)]
    # A run named by itself has nothing to be queued: it is held and judged anew.
    held = dependants | {record.id: record for record in named if _is_taskless(record)}
    reopened = {record.id for record in roots} | held.keys()
    order = [record.id for record in roots]
    order += [record.id for record in held.values() if record.where == Where.ENDED]
    for record in held.values():
        _hold_again(store, record, reopened, now)
    for record in roots:
        _clear(store, record, now)
        record.queue = record.queue if queue is None else queue
        record.priority = record.priority if priority is None else priority
    for record in roots:
        _queue_anew(store, record, now)
    for record in held.values():
        endings.judge_again(store, record, now)
    return ReopenResult(status="ok", reopened=tuple(order))


def _is_taskless(record: Record) -> bool:
    hold = record.message.hold
    return hold is not None and hold.finish


def _named(store: Store, ids: Sequence[str], expect: Mapping[str, int]) -> list[Record]:
    named: list[Record] = []
    for job_id in dict.fromkeys(ids):
        record = store.records.get(job_id)
        if record is None:
            raise _Refused(f"there is no job {job_id}")
        if record.where != Where.ENDED:
            raise _Refused(f"job {job_id} has not ended, it is {record.state}")
        named.append(record)
    for job_id, series in expect.items():
        record = store.records.get(job_id)
        if record is None or record.series != series:
            found = "missing" if record is None else f"in series {record.series}"
            raise _Refused(f"job {job_id} is {found}, not in series {series}")
    return named


def _dependants(
    store: Store, named: list[Record], descendants: Literal["all", "skipped"]
) -> dict[str, Record]:
    """What is to be held again, found along the edges."""
    found: dict[str, Record] = {}
    names = {record.id for record in named}
    pending = list(named)
    while pending:
        for edge in pending.pop().message.successors:
            record = store.records.get(edge.to)
            if record is None or record.members is None or record.id in found:
                continue
            is_wanted = (
                descendants == "all"
                or record.state is JobState.SKIPPED
                # What still waits has counted an arrival that is withdrawn now.
                or record.where == Where.HELD
                or record.id in names
                or _is_taskless(record)
            )
            if not is_wanted:
                continue
            if record.where not in {Where.ENDED, Where.HELD}:
                raise _Refused(f"job {record.id}, which depends on it, is {record.state}")
            found[record.id] = record
            pending.append(record)
    return found


def _hold_again(store: Store, record: Record, reopened: set[str], now: float) -> None:
    """Hold a dependant again without the arrivals of what is reopened."""
    members = record.members or {}
    record.members = {
        source: verdict for source, verdict in members.items() if source not in reopened
    }
    record.failed = sum(counts_as_failed(verdict) for verdict in record.members.values())
    if record.where == Where.ENDED:
        _clear(store, record, now)
        store.put_held(record)


def _clear(store: Store, record: Record, now: float) -> None:
    """Begin a new series of an ended record; it is in hand then."""
    store.take_out(record)
    if record.receipt is not None:
        store.by_receipt.pop(record.receipt, None)
    for receipt in record.settled:
        store.by_receipt.pop(receipt, None)
    record.receipt = record.worker = None
    record.settled = ()
    record.series += 1
    record.attempt = 1
    record.deliveries = record.yields = 0
    record.due_at = record.expires_at = None
    record.expiry_indexed = False
    record.reserved_at = record.started_at = record.finished_at = None
    record.cancel_requested = record.result_stored = False
    record.completed = None
    record.result = record.error = record.meta = None
    record.reason = ""
    key = record.message.key
    if key is not None and endings.key_owner(store, key, now) is None:
        store.keys[key] = KeyHold(record.id, now + record.message.key_ttl, record.message.key_scope)


def _queue_anew(store: Store, record: Record, now: float) -> None:
    record.state = JobState.QUEUED
    record.enqueued_at = now
    record.place = next(store.counter)
    store.put_ready(record)
