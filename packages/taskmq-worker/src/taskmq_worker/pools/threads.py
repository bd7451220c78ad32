"""The pool `threads`: each slot is a thread of this process."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, ClassVar

from taskmq_worker.pools.base import Pool, PoolHealth
from taskmq_worker.pools.overdue import Overdue

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskmq_worker.buffer import Buffer
    from taskmq_worker.reservation import Reservation


class ThreadsPool(Pool):
    """Daemon threads: one stuck in a task can't keep the process from ending."""

    name: ClassVar[str] = "threads"
    at_hard_timeout: ClassVar[str] = (
        "there the job's thread is abandoned, it can't be ended: only pool='processes' does that"
    )

    def start(
        self,
        buffer: Buffer,
        work: Callable[[Reservation], None],
        spawn: Callable[[str, Callable[[], None]], None],
    ) -> None:
        """Start one thread a slot."""
        self.buffer = buffer
        self.work = work
        self._spawn = spawn
        self._numbers = itertools.count()
        self._overdue = Overdue(self.around, self._replace, spawn)
        for _ in range(self.slots):
            self._add_thread()

    def health(self) -> PoolHealth:
        """How many threads are stuck."""
        overdue = self._overdue
        return PoolHealth(self.slots, overdue.abandoned, overdue.complaint)

    def close(self) -> None:
        """Take nothing more; what runs goes on, and abandoned bodies end as timed out."""
        super().close()
        self._overdue.close()

    def _add_thread(self) -> None:
        self._spawn(f"slot-{next(self._numbers)}", self._serve)

    def _replace(self, reservation: Reservation) -> None:
        self._add_thread()
        self.buffer.done(reservation)

    def _serve(self) -> None:
        take, done, slot = self.buffer.take, self.buffer.done, self.around.slot
        while not self.closing:
            reservation = take()
            if reservation is None:
                continue
            attempt = slot.admit(reservation)
            if attempt is not None:
                limit = attempt.hard_timeout
                if limit is None:
                    slot.conclude(reservation, attempt, slot.run(reservation, attempt))
                elif not self._overdue.run(reservation, attempt, limit):
                    return
            done(reservation)
