"""The keeper: extends leases, sends heartbeats, and tells running attempts what the transport says."""

from __future__ import annotations

import logging
from threading import Event
from typing import TYPE_CHECKING

from taskmq.clock import SYSTEM_CLOCK
from taskmq.decision import revoked
from taskmq.errors import LeaseLost, TransportError
from taskmq.transport.types import Extension
from taskmq_worker.settler import expired

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Protocol

    from taskmq.transport.contract import Transport
    from taskmq.transport.types import Delivery, ExtendReply, Message, Settlement, WorkerInfo
    from taskmq_worker.buffer import Buffer
    from taskmq_worker.contact import Contact
    from taskmq_worker.reservation import Holdings, Reservation
    from taskmq_worker.settler import Settler

    class Cancel(Protocol):
        """`Pool.cancel`."""

        def __call__(self, reservation: Reservation, /, *, terminate: bool) -> bool:
            """Tell a running job; whether its body is being ended without its cooperation."""
            ...


_log = logging.getLogger("taskmq.worker")
_monotonic = SYSTEM_CLOCK.monotonic

EXTEND_AT = 0.4
"""The share of a lease after which it is extended: long before a third is left."""


class Keeper:
    """Keeps what the worker holds, and its place in the registry.

    Args:
        describe: Makes the worker's current entry in the registry; None without a registry.
        on_elected: Told with each heartbeat whether this worker does the fleet's maintenance.
    """

    def __init__(
        self,
        transport: Transport,
        worker: str,
        holdings: Holdings,
        buffer: Buffer,
        settler: Settler,
        contact: Contact,
        *,
        interval: float,
        describe: Callable[[], WorkerInfo] | None,
        on_elected: Callable[[bool], None],
    ) -> None:
        self._transport = transport
        self._worker = worker
        self._holdings = holdings
        self._buffer = buffer
        self._settler = settler
        self._contact = contact
        self._interval = interval
        self._describe = describe
        self._on_elected = on_elected
        self._stopped = False
        self._ended = Event()
        self._nudged = Event()
        self._has_news = False
        self._wake_at = 0.0
        self.turned_at = 0.0
        """When its loop last turned, 0 before it runs."""
        self.on_cancel: Cancel | None = None
        """`Pool.cancel`: told, on any thread of the worker, of running jobs that were revoked."""

    def run(self) -> None:
        """The thread: until `close`."""
        backoff = self._contact.backoff()
        beat_at, steps_seen = 0.0, 0
        while not self._stopped:
            self.turned_at = now = _monotonic()
            try:
                if now >= beat_at or self._has_news:
                    self._has_news = False
                    # Before the heartbeat, whose answer may let this worker take leases back.
                    self._contact.look_at_clock(self._transport)
                    if self._describe is not None:
                        self._beat(self._describe())
                    beat_at = now + self._interval
                steps = self._contact.clock_steps
                if steps != steps_seen and (held := self._held()):
                    self._extend(held)
                steps_seen = steps
                self._extend_due(now)
            except TransportError as error:
                self._contact.failed("keeping leases", error)
                self._sleep(_monotonic() + max(0.01, backoff.next()))
                continue
            backoff.reset()
            self._sleep(min([beat_at, *map(_due_at, self._held())]))

    def close(self) -> None:
        """End the thread."""
        self._stopped = True
        self._ended.set()
        self._nudged.set()

    def report(self) -> None:
        """The worker's state has changed: tell the registry now, not at the next heartbeat."""
        self._has_news = True
        self._nudged.set()

    def hurry(self) -> None:
        """The transport is back: extend what can still be kept."""
        self._nudged.set()

    def watch(self, reservations: Iterable[Reservation]) -> None:
        """These are held now: wake earlier when one of their leases asks for it."""
        if any(_due_at(reservation) < self._wake_at for reservation in reservations):
            self._nudged.set()

    def heed(self, cancelled: Iterable[str], terminate: frozenset[str] = frozenset()) -> None:
        """Deliveries whose job was revoked: what has not started ends now, the pool tells the rest.

        Every answer of the transport names all of them, so the pool hears only of what is new.
        """
        unstarted: list[Reservation] = []
        for receipt in cancelled:
            reservation = self._holdings.get(receipt)
            if reservation is None:
                continue
            by_force = receipt in terminate
            is_news = not reservation.cancelled or (by_force and not reservation.terminate)
            reservation.cancelled = True
            reservation.terminate = reservation.terminate or by_force
            unstarted.append(reservation)
            if is_news and not reservation.buffered:
                self._tell(reservation, by_force=by_force)
        self._end(unstarted, lambda delivery: revoked(delivery).settlement)

    def _tell(self, reservation: Reservation, *, by_force: bool) -> None:
        ends = self.on_cancel is not None and self.on_cancel(reservation, terminate=by_force)
        if by_force and not ends and reservation.started_at is not None:
            _log.warning(
                "job %s (%s) was revoked with terminate=True, but this pool can't end its body: "
                "it stays 'cancelling' until the body returns or calls ctx.check_cancelled()",
                reservation.delivery.id,
                reservation.delivery.task,
            )

    def extend_now(self, reservation: Reservation) -> None:
        """Extend one lease and wait for the answer, on the caller's thread."""
        self._extend([reservation])

    def confirm(self, reservation: Reservation) -> int | None:
        """Extend a lease before the start; `head`, and the flags of the reservation, decide."""
        reply = self._extend([reservation])
        reservation.expired = reservation.delivery.receipt in reply.expired
        return reply.head

    def pause(self, seconds: float) -> bool:
        """Wait on behalf of a slot; False once the keeper has ended."""
        return not self._ended.wait(seconds)

    def publish(self, reservation: Reservation, messages: Sequence[Message]) -> None:
        """Enqueue for a running attempt, unless its delivery is lost.

        Raises:
            LeaseLost: Another worker has the job; nothing was enqueued.
        """
        self.extend_now(reservation)
        if reservation.lost:
            raise LeaseLost(
                f"job {reservation.delivery.id} belongs to another worker now; nothing was published"
            )
        self._transport.enqueue(messages)

    def _beat(self, info: WorkerInfo) -> None:
        reply = self._transport.heartbeat(info)
        self._answered()
        self._on_elected(reply.maintain)

    def _held(self) -> list[Reservation]:
        return [r for r in self._holdings.all() if not r.lost and not r.given_up]

    def _extend_due(self, now: float) -> None:
        # What falls due within the next tenth of its lease goes along: one call instead of several.
        due = [r for r in self._held() if now >= _due_at(r) - 0.1 * r.delivery.lease]
        if any(now >= _due_at(r) for r in due):
            self._extend(due)

    def _extend(self, reservations: list[Reservation]) -> ExtendReply:
        now = _monotonic()
        reply = self._transport.extend(
            self._worker,
            [
                Extension(r.delivery.receipt, r.delivery.lease, r.started_ago(now))
                for r in reservations
            ],
        )
        self._answered()
        for reservation in reservations:
            reservation.confirmed_at = now
        self._lose(reply.lost)
        self.heed(reply.cancelled, reply.terminate)
        self._end(filter(None, map(self._holdings.get, reply.expired)), expired)
        if self._settler.on_reply is not None:
            self._settler.on_reply(reply.head, frozenset(), frozenset())
        return reply

    def _lose(self, receipts: Iterable[str]) -> None:
        for receipt in receipts:
            reservation = self._holdings.get(receipt)
            if reservation is None or reservation.lost:
                continue
            reservation.lost = True
            if self._buffer.remove([reservation]):
                self._holdings.remove(receipt)
            else:
                self._tell(reservation, by_force=False)
            _log.warning(
                "job %s (%s): its lease was lost to another worker",
                reservation.delivery.id,
                reservation.delivery.task,
            )

    def _end(
        self, reservations: Iterable[Reservation], settlement: Callable[[Delivery], Settlement]
    ) -> None:
        """End what has not started; what has goes on."""
        for reservation in self._buffer.remove(reservations):
            self._settler.submit(settlement(reservation.delivery), reservation)

    def _answered(self) -> None:
        if self._contact.broken:
            self._contact.worked()

    def _sleep(self, until: float) -> None:
        self._wake_at = until
        nudged = self._nudged.wait(max(0.0, until - _monotonic()))
        self._nudged.clear()
        if not nudged:
            self._contact.woke(until)


def _due_at(reservation: Reservation) -> float:
    return reservation.confirmed_at + EXTEND_AT * reservation.delivery.lease
