"""Dead letters of the memory transport."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from taskmq.errors import TransportError
from taskmq.transport.contract import MessageRole
from taskmq.transport.memory import reopening
from taskmq.transport.types import DeadLetter, DeadPage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskmq.transport.memory.records import Record
    from taskmq.transport.memory.store import Store


class MemoryDeadLetters(MessageRole):
    """The part of the message role about dead letters."""

    _store: Store

    def list_dead(
        self, queue: str | None = None, *, limit: int = 100, cursor: str | None = None
    ) -> DeadPage:
        """List dead letters, oldest first."""
        store = self._store
        with store.lock:
            order = store.dead_order
            start = 0 if cursor is None else bisect_right(order, _number_of(cursor))
            letters: list[DeadLetter] = []
            last = 0
            for index in range(start, len(order)):
                record = store.dead.get(order[index])
                if record is None or (queue is not None and record.queue != queue):
                    continue
                if len(letters) == limit:
                    return DeadPage(letters=letters, cursor=str(last))
                letters.append(_letter_of(record))
                last = order[index]
            return DeadPage(letters=letters)

    def get_dead(self, job_id: str) -> DeadLetter | None:
        """Read one dead letter."""
        store = self._store
        with store.lock:
            record = store.records.get(job_id)
            return _letter_of(record) if record is not None and record.dead_number else None

    def replay_dead(
        self, ids: Sequence[str], *, queue: str | None = None, priority: int | None = None
    ) -> int:
        """Reopen dead jobs."""
        store = self._store
        replayed = 0
        with store.lock:
            now = store.clock.time()
            for job_id in ids:
                record = store.records.get(job_id)
                if record is None or not record.dead_number:
                    continue
                result = reopening.reopen(
                    store,
                    [job_id],
                    now,
                    expect={},
                    descendants="skipped",
                    queue=queue,
                    priority=priority,
                )
                replayed += result.status == "ok"
        return replayed

    def purge_dead(self, ids: Sequence[str] | None = None, *, queue: str | None = None) -> int:
        """Drop dead letters; their jobs stay for their time."""
        store = self._store
        with store.lock:
            if ids is None:
                found = list(store.dead.values())
            else:
                named = (store.records.get(job_id) for job_id in dict.fromkeys(ids))
                found = [record for record in named if record is not None and record.dead_number]
            if queue is not None:
                found = [record for record in found if record.queue == queue]
            for record in found:
                store.drop_dead(record)
                store.retain(record)
            return len(found)


def _number_of(cursor: str) -> int:
    if not cursor.isdecimal():
        raise TransportError(f"{cursor!r} is no cursor of this list; start without one")
    return int(cursor)


def _letter_of(record: Record) -> DeadLetter:
    return DeadLetter(
        id=record.id,
        task=record.message.task,
        queue=record.queue,
        priority=record.priority,
        reason=record.reason,
        died_at=record.finished_at or 0.0,
        attempt=record.attempt,
        deliveries=record.deliveries,
        error=record.error,
        envelope=record.envelope,
    )
