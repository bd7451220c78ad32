"""Whether a worker lives, can work, and gets on: what probes ask, judged without touching the app."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

import msgspec

from taskmq.clock import SYSTEM_CLOCK
from taskmq_worker.pools.base import PoolHealth

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskmq_worker.buffer import Buffer
    from taskmq_worker.contact import Contact
    from taskmq_worker.pools.base import Pool

_monotonic = SYSTEM_CLOCK.monotonic

DEAF_AFTER = 20.0
"""How long the fetcher may go without an answer from the transport; it asks every 2.5 s at least."""
STUCK_AFTER = 10.0
"""How long a free slot may leave reserved jobs alone, and a loop may leave its work alone, seconds."""
BLOCKED_AFTER = 60.0
"""How long a pool may say that it is blocked until only a restart is thought to help, seconds."""


class HealthReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a probe is told.

    Attributes:
        alive: False when only a restart helps (liveness). An unreachable transport is no reason for one.
        ready: Whether it takes jobs now (readiness).
        deaf: The fetcher has had no answer from the transport for a while.
        stuck: There is work and a free slot, or a body past its end, and nothing moves.
        reasons: What is wrong, in words.
        contact_age: Seconds since the transport last answered the fetcher; None before the first time.
        at: When this was judged, on the machine's monotonic clock.
    """

    worker: str
    pid: int
    state: str
    alive: bool
    ready: bool
    deaf: bool
    stuck: bool
    reasons: tuple[str, ...] = ()
    slots: int = 0
    busy: int = 0
    unstarted: int = 0
    abandoned: int = 0
    contact_age: float | None = None
    at: float = 0.0


class Loop(Protocol):
    """A loop of the worker: when it last turned."""

    turned_at: float


class Fetching(Loop, Protocol):
    """The fetcher: also when it was last answered."""

    answered_at: float | None


class Settling(Loop, Protocol):
    """The settler: also whether something waits for it."""

    @property
    def waiting(self) -> bool:
        """Whether settlements are on their queue."""
        ...


class Health:
    """Judges a worker from what its loops leave behind as they turn; asking costs them nothing.

    Args:
        state: The worker's state.
        failure: Why one of its threads has failed, None while none has.
        most_abandoned: Beyond how many stuck threads it calls itself stuck.
        patience: Scales all time limits; tests are impatient.
    """

    def __init__(
        self,
        worker: str,
        *,
        state: Callable[[], str],
        failure: Callable[[], BaseException | None],
        buffer: Buffer,
        pool: Pool,
        contact: Contact,
        fetcher: Fetching,
        keeper: Loop,
        settler: Settling,
        interval: float,
        most_abandoned: int,
        patience: float = 1.0,
    ) -> None:
        self._worker = worker
        self._state = state
        self._failure = failure
        self._buffer = buffer
        self._pool = pool
        self._contact = contact
        self._fetcher = fetcher
        self._keeper = keeper
        self._settler = settler
        self._deaf_after = DEAF_AFTER * patience
        self._stuck_after = STUCK_AFTER * patience
        self._keeper_after = (DEAF_AFTER + interval) * patience
        self._blocked_after = BLOCKED_AFTER * patience
        self._most_abandoned = most_abandoned
        self._blocked_since: float | None = None
        self._born_at = _monotonic()

    def report(self) -> HealthReport:
        """Judge now."""
        now = _monotonic()
        state = self._state()
        # Before it has started, a pool can't tell.
        pool = self._pool.health() if state in ("running", "stopping") else PoolHealth(alive=0)
        away = self._contact.broken
        # While it stops the loops end one after the other; that is no standstill.
        works = state == "running"
        deaf = works and now - (self._fetcher.answered_at or self._born_at) > self._deaf_after
        standstill = self._standstill(now) if works else []
        if pool.abandoned > self._most_abandoned:
            standstill.append(
                f"{pool.abandoned} threads are stuck in bodies whose time is over "
                f"(max_abandoned_threads={self._most_abandoned})"
            )
        blocked_for = self._blocked_for(now, blocked=pool.blocked is not None)
        if pool.blocked is not None and blocked_for > self._blocked_after:
            standstill.append(f"blocked for {blocked_for:.0f} s: {pool.blocked}")
        failure = self._failure()
        reasons = list(standstill)
        if failure is not None:
            reasons.append(f"a thread of the worker failed: {failure!r}")
        if away:
            reasons.append("the transport is out of reach")
        elif deaf:
            reasons.append("the transport has not answered for a while, and no error was seen")
        if pool.blocked is not None and blocked_for <= self._blocked_after:
            reasons.append(pool.blocked)
        alive = failure is None and not standstill and not (deaf and not away)
        answered_at = self._fetcher.answered_at
        return HealthReport(
            worker=self._worker,
            pid=os.getpid(),
            state=state,
            alive=alive,
            ready=alive and works and not away and answered_at is not None and not pool.blocked,
            deaf=deaf,
            stuck=bool(standstill),
            reasons=tuple(reasons),
            slots=self._pool.slots,
            busy=self._buffer.busy,
            unstarted=len(self._buffer),
            abandoned=pool.abandoned,
            contact_age=None if answered_at is None else round(now - answered_at, 3),
            at=now,
        )

    def _standstill(self, now: float) -> list[str]:
        """What should move and does not."""
        found: list[str] = []
        unstarted = self._buffer.unstarted()
        if unstarted and self._buffer.busy < self._buffer.slots:
            age = now - min(reservation.received_at for reservation in unstarted)
            if age > self._stuck_after:
                found.append(f"a slot is free, but a reserved job was not started for {age:.0f} s")
        if now - self._keeper.turned_at > self._keeper_after and self._keeper.turned_at:
            found.append("the thread that keeps leases stands still")
        idle_for = now - self._settler.turned_at
        if self._settler.waiting and not self._contact.broken and idle_for > self._deaf_after:
            found.append("the thread that settles stands still")
        return found

    def _blocked_for(self, now: float, *, blocked: bool) -> float:
        if not blocked:
            self._blocked_since = None
            return 0.0
        if self._blocked_since is None:
            self._blocked_since = now
        return now - self._blocked_since
