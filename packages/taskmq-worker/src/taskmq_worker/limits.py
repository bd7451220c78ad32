"""Rate limits: a job over its limit is deferred once, to the time its turn comes."""

from __future__ import annotations

import contextlib
import logging
from collections import OrderedDict
from threading import Lock
from typing import TYPE_CHECKING, Any

import msgspec

from taskmq.clock import SYSTEM_CLOCK
from taskmq.meta import decode_meta, encode_meta
from taskmq.transport.types import Defer, RateWish

if TYPE_CHECKING:
    from collections.abc import Collection

    from taskmq.task import Task
    from taskmq.transport.contract import Transport
    from taskmq.transport.types import Delivery
    from taskmq_worker.reservation import Reservation

_log = logging.getLogger("taskmq.worker")
_monotonic = SYSTEM_CLOCK.monotonic

_MOST_PROMISES = 100_000
_TURN = "rate_turn"
_Turn = tuple[float, int, int, int]
GRANT_HOLDS = 1.0
"""A start that was granted at the reservation must come within this time, else it asks again, seconds."""


class Limits:
    """Hands out turns: each task's next free moment, and the turns promised to deferred jobs."""

    def __init__(self, tasks: Collection[Task[..., Any]]) -> None:
        self._lock = Lock()
        self._intervals = {
            task.name: task.policy.rate_limit.interval
            for task in tasks
            if task.policy.rate_limit is not None and task.policy.rate_scope == "worker"
        }
        self._free_at: dict[str, float] = {}
        self._promised: OrderedDict[str, float] = OrderedDict()
        self._warned: set[str] = set()
        self.gate = Gate(tasks)
        self.active = bool(self._intervals)
        """Whether any task has a limit in this worker: without one a job pays nothing."""

    def delay_for(self, task: Task[..., Any], job_id: str) -> float:
        """Seconds until this job may start; 0 takes the turn now."""
        interval = self._intervals.get(task.name)
        if interval is None:
            return 0.0
        now = _monotonic()
        with self._lock:
            promised = self._promised.pop(job_id, None)
            if promised is not None:
                # Its turn was counted when it was deferred; timers are not exact to the millisecond.
                if now >= promised - 0.005:
                    return 0.0
                self._promised[job_id] = promised
                return promised - now
            turn = max(now, self._free_at.get(task.name, now))
            self._free_at[task.name] = turn + interval
            if turn <= now:
                return 0.0
            self._promised[job_id] = turn
            if len(self._promised) > _MOST_PROMISES:
                self._promised.popitem(last=False)
            return turn - now

    def warn_unknown(self, task: str) -> None:
        """Say once that this worker does not know a task."""
        if task not in self._warned and len(self._warned) < 1000:
            self._warned.add(task)
            _log.warning(
                "the task %r is unknown here; its jobs are deferred for other workers", task
            )


class Gate:
    """Limits across the cluster: whole batches ask the transport before they enter the buffer.

    What must wait never takes a place there, so it holds nothing else up. The turn that it was promised
    travels in its meta, bound to this delivery: a later attempt, or a delivery after a lost lease, asks
    anew. Whether turns are kept is counted by the transport, where no worker's death leaks anything.
    """

    def __init__(self, tasks: Collection[Task[..., Any]]) -> None:
        self._intervals = {
            task.name: task.policy.rate_limit.interval
            for task in tasks
            if task.policy.rate_limit is not None and task.policy.rate_scope == "cluster"
        }
        self.active = bool(self._intervals)

    def ask(
        self, transport: Transport, reservations: Collection[Reservation]
    ) -> list[tuple[Reservation, Defer]]:
        """Take tokens for those that need one, in one call; those that must wait, and until when.

        Raises:
            TransportError: The transport gave no answer.
        """
        asking = [each for each in reservations if self._needs_token(each.delivery)]
        if not asking:
            return []
        now = _monotonic()
        delays = transport.take_tokens([self._wish(each.delivery) for each in asking])
        waiting: list[tuple[Reservation, Defer]] = []
        for reservation, delay in zip(asking, delays, strict=True):
            if delay <= 0:
                reservation.granted_at = now
            else:
                waiting.append((reservation, _deferred(reservation.delivery, delay)))
        return waiting

    def is_stale(self, reservation: Reservation, now: float) -> bool:
        """Whether a granted start waited in the buffer for too long to count as this moment's."""
        granted_at = reservation.granted_at
        return granted_at is not None and now - granted_at > GRANT_HOLDS

    def _needs_token(self, delivery: Delivery) -> bool:
        if delivery.task not in self._intervals or delivery.outcome is not None:
            return False
        return not delivery.cancel_requested

    def _wish(self, delivery: Delivery) -> RateWish:
        interval = self._intervals[delivery.task]
        due = 0.0
        # A task may write into its meta what it likes: only what has our form is a turn.
        with contextlib.suppress(msgspec.ValidationError):
            at, *bound = msgspec.convert(decode_meta(delivery.meta).get(_TURN), _Turn)
            due = at if bound == _bound_to(delivery) else 0.0
        return RateWish(name=delivery.task, interval=interval, due=due)


def _bound_to(delivery: Delivery) -> list[int]:
    return [delivery.series, delivery.attempt, delivery.deliveries]


def _deferred(delivery: Delivery, delay: float) -> Defer:
    meta = decode_meta(delivery.meta)
    # A little early, for it was reserved before it asked: a turn is known by its instant only roughly.
    meta[_TURN] = [delivery.reserved_at + delay, *_bound_to(delivery)]
    return Defer(receipt=delivery.receipt, delay=delay, reason="rate limit", meta=encode_meta(meta))
