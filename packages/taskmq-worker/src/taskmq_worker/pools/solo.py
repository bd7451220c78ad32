"""The pool `solo`: one slot, the thread that called `run`."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from taskmq_worker.pools.base import Pool

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskmq_worker.buffer import Buffer
    from taskmq_worker.reservation import Reservation


class SoloPool(Pool):
    """Jobs run one after the other on the caller's thread: for debuggers and code bound to one thread."""

    name: ClassVar[str] = "solo"
    on_caller: ClassVar[bool] = True

    def __init__(self, slots: int) -> None:
        super().__init__(1)

    def start(
        self,
        buffer: Buffer,
        work: Callable[[Reservation], None],
        spawn: Callable[[str, Callable[[], None]], None],
    ) -> None:
        """Nothing to start: the caller serves."""
        self.buffer = buffer
        self.work = work

    def serve(self, timeout: float | None) -> None:
        """Wait for a reservation and run it here."""
        reservation = self.buffer.take(timeout)
        if reservation is not None:
            self.work(reservation)
            self.buffer.done(reservation)
