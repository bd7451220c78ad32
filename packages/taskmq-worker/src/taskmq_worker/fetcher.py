"""The fetcher: reserves what the slots can start soon, in one round trip, and gives back the rest."""

from __future__ import annotations

import contextlib
import random
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from taskmq.clock import SYSTEM_CLOCK
from taskmq.errors import TransportError
from taskmq.priority import Priority
from taskmq.transport.types import Release, ReserveRequest, Yield
from taskmq_worker.contact import Backoff
from taskmq_worker.reservation import Reservation

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from taskmq.config import Config
    from taskmq.transport.contract import Transport
    from taskmq.transport.types import QueueShare, ReserveReply, SettleResult
    from taskmq_worker.buffer import Buffer
    from taskmq_worker.contact import Contact
    from taskmq_worker.keeper import Keeper
    from taskmq_worker.limits import Gate
    from taskmq_worker.reservation import Holdings
    from taskmq_worker.settler import Settler

_monotonic = SYSTEM_CLOCK.monotonic

STALE_AFTER = 0.1
"""An automatic reservation that has not started for this long goes back, seconds."""
LOOK_EVERY = 2.0
"""A hint about new messages may be lost; this is how long that goes unnoticed."""
QUIET = 0.25
"""With every slot taken, how often revocations are looked for at most."""


class Fetcher:
    """Keeps the buffer filled with the most urgent work there is, and no fuller than it should be.

    It sleeps in one of two ways: in `transport.wait` while it has room (or unstarted reservations that
    something more urgent should overtake), else on its own signal. `nudge` ends both.
    """

    def __init__(
        self,
        transport: Transport,
        worker: str,
        queues: tuple[QueueShare, ...],
        buffer: Buffer,
        holdings: Holdings,
        settler: Settler,
        keeper: Keeper,
        contact: Contact,
        config: Config,
        *,
        automatic: bool,
        reserved_slots: int = 0,
        gate: Gate | None = None,
    ) -> None:
        self._transport = transport
        self._worker = worker
        self._queues = queues
        self._names = tuple(share.name for share in queues)
        self._buffer = buffer
        self._holdings = holdings
        self._settler = settler
        self._keeper = keeper
        self._contact = contact
        self._config = config
        self._automatic = automatic
        self._reserved_slots = reserved_slots
        self._gate = gate
        self._credits: Mapping[str, float] = {}
        self._signal: SimpleQueue[None] = SimpleQueue()
        self._stopped = False
        self._asleep = False
        self._listening = False
        self._head_hint: int | None = None
        self._unsure = False
        self._next_due_in: float | None = None
        self._backoff = Backoff()
        self.answered_at: float | None = None
        """When the transport last answered a reserve, None before the first time."""
        self.turned_at = 0.0
        self.on_drained: Callable[[], None] | None = None
        """Called when a reserve found nothing more and the worker holds nothing."""
        self.asking = False
        """Whether deliveries may be on their way: reserved, but in nobody's hands yet."""

    # --- from other threads ---

    def nudge(self) -> None:
        """There may be room: wake up if asleep for the want of it."""
        if self._asleep:
            self._asleep = False
            self._wake()

    def heed(self, head: int | None, cancelled: frozenset[str], terminate: frozenset[str]) -> None:
        """What the reply to another thread's call said about the queues."""
        if cancelled:
            self._keeper.heed(cancelled, terminate)
        if head is not None and len(self._buffer) and self._outranked(head):
            self._head_hint = head
            self._wake()

    def close(self) -> None:
        """Reserve nothing more and end the thread."""
        self._stopped = True
        self._signal.put(None)
        self._transport.wake(self._worker)

    # --- the thread ---

    def run(self) -> None:
        """The thread: until `close`."""
        while not self._stopped:
            self.turned_at = _monotonic()
            try:
                self._step()
            except TransportError as error:
                # A reserve whose reply is lost may have leased what nobody here knows of.
                self._unsure = True
                self._contact.failed("reserve", error)
                self._rest(self._backoff.next())

    def _step(self) -> None:
        if self._unsure:
            self._transport.reclaim(self._worker, self._holdings.receipts())
            self._unsure = False
        self._give_back_stale()
        hint, self._head_hint = self._head_hint, None
        if hint is not None and self._outranked(hint):
            self._make_way(hint)
        room = self._buffer.room()
        if room > 0:
            self._fill(room)
        else:
            self._wait_for_room()

    def _fill(self, room: int) -> None:
        reply, wanted, got = self._reserve_for(room)
        if reply.head is not None and self._outranked(reply.head):
            self._make_way(reply.head)
        if got >= wanted or reply.more:
            return
        if not got and not len(self._holdings) and self.on_drained is not None:
            self.on_drained()
        if reply.head is None:
            due_in = LOOK_EVERY if reply.next_due_in is None else reply.next_due_in
            ahead = self._automatic and len(self._buffer)
            self._listen(min(due_in, STALE_AFTER) if ahead else due_in)
        else:
            # Visible, but not given to us: it may be once something of ours has ended.
            self._listen(QUIET if len(self._holdings) else STALE_AFTER, nudgeable=True)

    def _wait_for_room(self) -> None:
        """Every slot is taken, and the buffer is as full as it should be."""
        unstarted = len(self._buffer)
        if self._pause(self._config.prefetch_window if unstarted else QUIET):
            return
        # Still full: hear of more urgent arrivals and of revocations, but look no more often than this.
        self._listen(STALE_AFTER if unstarted and self._automatic else LOOK_EVERY, nudgeable=True)
        if not self._stopped and self._buffer.room() <= 0 and len(self._holdings):
            reply = self._reserve(0)
            if reply.head is not None and self._outranked(reply.head):
                self._make_way(reply.head)

    def _reserve_for(self, room: int) -> tuple[ReserveReply, int, int]:
        """Reserve for this much room; the last reply, what was asked for, what came."""
        if not self._reserved_slots:
            reply = self._reserve(room)
            return reply, room, len(reply.deliveries)
        urgent = sum(
            r.delivery.priority > Priority.NORMAL
            for r in [*self._buffer.running(), *self._buffer.unstarted()]
        )
        free = min(room, self._buffer.slots - self._reserved_slots - urgent)
        if free <= 0:
            reply = self._reserve(room, max_priority=Priority.NORMAL)
            return reply, room, len(reply.deliveries)
        reply = self._reserve(free)
        return reply, free, len(reply.deliveries)

    def _reserve(self, limit: int, *, max_priority: int | None = None) -> ReserveReply:
        self.asking = True
        try:
            return self._ask(limit, max_priority)
        finally:
            self.asking = False

    def _ask(self, limit: int, max_priority: int | None) -> ReserveReply:
        asked_at = _monotonic()
        reply = self._transport.reserve(
            ReserveRequest(
                worker=self._worker,
                queues=self._queues,
                limit=limit,
                lease=self._config.lease,
                credits=self._credits,
                max_priority=max_priority,
            )
        )
        self._backoff.reset()
        self.answered_at = _monotonic()
        if self._contact.broken:
            self._contact.worked()
        self._credits = reply.credits
        if reply.deliveries:
            self._take_in([Reservation(d, self._keeper, asked_at) for d in reply.deliveries])
        if reply.cancelled:
            self._keeper.heed(reply.cancelled, reply.terminate)
        return reply

    def _take_in(self, reservations: list[Reservation]) -> None:
        if self._gate is not None and self._gate.active:
            # Without an answer they stand in no one's hands, and the next step reclaims them.
            waiting = self._gate.ask(self._transport, reservations)
            if waiting:
                self._holdings.add([reservation for reservation, _ in waiting])
                for reservation, deferral in waiting:
                    self._settler.submit(deferral, reservation)
                held_up = {id(reservation) for reservation, _ in waiting}
                reservations = [each for each in reservations if id(each) not in held_up]
        self._holdings.add(reservations)
        self._keeper.watch(reservations)
        self._buffer.push(reservations)

    # --- giving back ---

    def _outranked(self, head: int) -> bool:
        lowest = self._buffer.lowest()
        return lowest is not None and head >= lowest + self._config.yield_min_delta

    def _make_way(self, head: int) -> None:
        """Fetch what is more urgent than the lowest unstarted reservations, and yield as many [G2]."""
        ask = 1
        wanted: int | None = head
        while wanted is not None and self._outranked(wanted) and not self._stopped:
            if self._reserved_slots and wanted > Priority.NORMAL:
                return
            reply = self._reserve(ask)
            self._yield_excess()
            if not reply.deliveries:
                return
            ask = min(2 * ask, max(1, len(self._buffer)))
            wanted = reply.head

    def _yield_excess(self) -> None:
        excess = self._buffer.excess()
        if excess <= 0:
            return
        waiting = [r for r in self._buffer.unstarted() if not r.keep]
        if not waiting:
            return
        bar = waiting[0].delivery.priority - self._config.yield_min_delta
        lowest = [r for r in waiting if r.delivery.priority <= bar][-excess:]
        for reservation in self._buffer.remove(lowest):
            delay = self._config.yield_delay * random.uniform(0.5, 1.5)
            self._settler.submit(
                Yield(receipt=reservation.delivery.receipt, delay=delay),
                reservation,
                _Kept(self._buffer, reservation),
            )

    def _give_back_stale(self) -> None:
        if self._automatic:
            self.give_back(self._buffer.stale(STALE_AFTER))

    def give_back(self, reservations: list[Reservation]) -> None:
        """Release, uncounted and in place, what no slot has taken."""
        for reservation in self._buffer.remove(reservations):
            self._settler.submit(Release(receipt=reservation.delivery.receipt), reservation)

    # --- sleeping ---

    def _listen(self, timeout: float, *, nudgeable: bool = False) -> None:
        """Wait in the transport. The order of the flags matters: a wake-up in between must count."""
        self._listening = True
        self._asleep = nudgeable
        if not (self._stopped or self._head_hint is not None):
            self._transport.wait(self._worker, self._names, min(timeout, LOOK_EVERY))
        self._asleep = False
        self._listening = False

    def _pause(self, timeout: float) -> bool:
        """Wait for a nudge; whether one came, or none is needed any more."""
        self._asleep = True
        if self._stopped or self._head_hint is not None or self._buffer.room() > 0:
            self._asleep = False
            return True
        try:
            self._signal.get(timeout=timeout)
        except Empty:
            return self._buffer.room() > 0
        finally:
            self._asleep = False
        return True

    def _rest(self, seconds: float) -> None:
        """Back off; only `close` cuts it short."""
        until = _monotonic() + seconds
        while not self._stopped and (left := until - _monotonic()) > 0:
            with contextlib.suppress(Empty):
                self._signal.get(timeout=left)

    def _wake(self) -> None:
        if self._listening:
            self._transport.wake(self._worker)
        else:
            self._signal.put(None)


class _Kept:
    """Puts a reservation back that could not be yielded any more."""

    __slots__ = ("_buffer", "_reservation")

    def __init__(self, buffer: Buffer, reservation: Reservation) -> None:
        self._buffer = buffer
        self._reservation = reservation

    def __call__(self, result: SettleResult) -> None:
        if result.status == "refused":
            self._reservation.keep = True
            self._buffer.push([self._reservation])
