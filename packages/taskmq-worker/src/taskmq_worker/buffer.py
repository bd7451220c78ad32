"""The buffer of unstarted reservations, and how far ahead it may reach.

The hand-over between fetcher and slots. A heap orders by priority, then by arrival, so that a later
and more urgent arrival overtakes. Slots block on tickets in a `SimpleQueue` (blocking, waking and
queueing in C): a slot that ends a job takes the next one without any wake-up, and a ticket whose
reservation was given back meanwhile finds nothing and costs one more `get`.

Slots take no lock here: a thread that is switched out while it holds one makes all others queue up
behind it, which tripled the cost of a job. Each step of theirs is one operation of a built-in
(`heappop`, `dict.pop`), and whoever pops a reservation from `_waiting` has it. Only what puts in
or takes out in bulk is locked against its like.
"""

from __future__ import annotations

import contextlib
import heapq
from queue import Empty, SimpleQueue
from threading import Lock
from typing import TYPE_CHECKING

from taskmq.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from taskmq_worker.reservation import Reservation

_monotonic = SYSTEM_CLOCK.monotonic

MOST_AHEAD = 400
"""An upper bound on automatic prefetching: what a crash costs in deliveries stays bounded."""


class Pace:
    """How many jobs start in a second: believes bad news at once and good news soon.

    It counts starts over time rather than the time of each job, because a thread that waits its turn
    for the interpreter makes single jobs look a hundred times slower than they are together.
    """

    def __init__(self, window: float) -> None:
        self._window = window
        self._rate = 0.0
        self._starts = 0
        self._since = _monotonic()

    def look(self, starts: int, *, busy: bool, now: float | None = None) -> None:
        """So many jobs have started by now; while not `busy`, slowness says nothing."""
        now = _monotonic() if now is None else now
        passed = now - self._since
        if passed < self._window / 2:
            return
        rate = (starts - self._starts) / passed
        if rate >= self._rate:
            self._rate = (self._rate + rate) / 2
        elif busy:
            self._rate = rate if rate * 4 < self._rate else (self._rate + rate) / 2
        self._starts, self._since = starts, now

    def ahead(self) -> int:
        """How many jobs will start within the window; none while that is unknown."""
        return min(MOST_AHEAD, int(self._rate * self._window))


class Buffer:
    """Unstarted reservations in the order in which they start, and the slots' running ones.

    Args:
        slots: How many jobs run at once.
        prefetch: How many unstarted reservations beyond free slots may be held; None: by pace.
        window: The time within which a reservation taken ahead should start, seconds.
    """

    def __init__(self, slots: int, prefetch: int | None, window: float) -> None:
        self.slots = slots
        self.pace = Pace(window)
        self._prefetch = prefetch
        self._bulk = Lock()
        self._heap: list[tuple[int, int, Reservation]] = []
        self._waiting: dict[int, Reservation] = {}
        self._pushed = 0
        self._removed = 0
        self._running: dict[int, Reservation] = {}
        self._tickets: SimpleQueue[bool] = SimpleQueue()
        self._low_mark = 0
        self.on_low: Callable[[], None] = _nothing
        """Called on a slot's thread when a job ended and little is left in the buffer."""

    # --- the slots' side ---

    def take(self, timeout: float | None = None) -> Reservation | None:
        """Wait for the next reservation and start counting its slot as taken.

        None when the time is over, or for a stale ticket or a `poke`: look around and ask again.
        """
        try:
            self._tickets.get(timeout=timeout)
        except Empty:
            return None
        try:
            while True:
                entry = heapq.heappop(self._heap)
                reservation = self._waiting.get(entry[1])
                if reservation is not None:
                    # Running before it stops waiting: at no moment is it in neither.
                    self._running[entry[1]] = reservation
                    if self._waiting.pop(entry[1], None) is not None:
                        reservation.buffered = False
                        return reservation
                    del self._running[entry[1]]
        except IndexError:
            return None

    def take_some(self, limit: int, wanted: Callable[[Reservation], bool]) -> list[Reservation]:
        """Take the next ones now, without waiting, as long as they are wanted."""
        taken: list[Reservation] = []
        while len(taken) < limit and self._waiting:
            try:
                entry = heapq.heappop(self._heap)
            except IndexError:
                break
            place, reservation = entry[1], entry[2]
            if place not in self._waiting:
                continue
            if not wanted(reservation):
                with self._bulk:
                    # Not while `remove` puts a copy of the heap without it in the heap's place.
                    heapq.heappush(self._heap, entry)
                # A slot may have looked in between and found nothing.
                self._tickets.put(True)
                break
            self._running[place] = reservation
            if self._waiting.pop(place, None) is None:
                del self._running[place]
                continue
            taken.append(reservation)
        with contextlib.suppress(Empty):
            for _ in taken:
                self._tickets.get_nowait()
        return taken

    def put_back(self, reservations: Iterable[Reservation]) -> None:
        """What was taken has not started: it waits in its old place again."""
        with self._bulk:
            for reservation in reservations:
                place = reservation.place
                self._waiting[place] = reservation
                self._running.pop(place, None)
                heapq.heappush(self._heap, (-reservation.delivery.priority, place, reservation))
                self._tickets.put(True)

    def resize(self, change: int) -> None:
        """So many slots more, or fewer, can take jobs."""
        with self._bulk:
            self.slots += change
        if change > 0:
            self.on_low()

    def done(self, reservation: Reservation) -> None:
        """The slot of this reservation is free again."""
        self._running.pop(reservation.place, None)
        if len(self._waiting) <= self._low_mark:
            self.on_low()

    def poke(self, times: int = 1) -> None:
        """Make this many `take` calls return."""
        for _ in range(times):
            self._tickets.put(False)

    # --- the fetcher's side ---

    def push(self, reservations: Iterable[Reservation]) -> None:
        """Add reservations in their order; free slots start at once."""
        with self._bulk:
            for reservation in reservations:
                self._pushed += 1
                place = reservation.place = self._pushed
                reservation.buffered = True
                self._waiting[place] = reservation
                heapq.heappush(self._heap, (-reservation.delivery.priority, place, reservation))
                self._tickets.put(True)

    def remove(self, reservations: Iterable[Reservation]) -> list[Reservation]:
        """Take these out unless a slot was faster; those that were still here."""
        with self._bulk:
            removed = [r for r in reservations if self._waiting.pop(r.place, None) is not None]
            for reservation in removed:
                reservation.buffered = False
            self._removed += len(removed)
            if len(self._heap) > 2 * len(self._waiting) + 64:
                # A sorted list is a heap. What a slot takes meanwhile comes back as a stale entry.
                entries = self._heap.copy()
                self._heap[:] = sorted(e for e in entries if e[1] in self._waiting)
        return removed

    def unstarted(self) -> list[Reservation]:
        """What has not started, in the order in which it would."""
        # A copy first: the key is Python code, and slots take from the dict meanwhile.
        waiting = list(self._waiting.values())
        waiting.sort(key=lambda r: (-r.delivery.priority, r.place))
        return waiting

    def running(self) -> list[Reservation]:
        """What slots are busy with."""
        return list(self._running.values())

    @property
    def busy(self) -> int:
        """How many slots are taken."""
        return len(self._running)

    def __len__(self) -> int:
        return len(self._waiting)

    def lowest(self) -> int | None:
        """The lowest priority among what could be yielded."""
        return min(
            (r.delivery.priority for r in list(self._waiting.values()) if not r.keep),
            default=None,
        )

    def ahead(self) -> int:
        """How many unstarted reservations beyond the free slots are welcome now."""
        ahead = self._prefetch
        if ahead is None:
            unstarted = len(self._waiting)
            busy = unstarted > 0 or self.busy >= self.slots
            self.pace.look(self._pushed - self._removed - unstarted, busy=busy)
            ahead = self.pace.ahead()
        self._low_mark = ahead // 2
        return ahead

    def room(self) -> int:
        """How many more to reserve now; 0 while half of what is welcome is still here."""
        ahead = self.ahead()
        free = self.slots - self.busy
        unstarted = len(self._waiting)
        if unstarted > max(self._low_mark, free - 1):
            return 0
        return max(0, free + ahead - unstarted)

    def excess(self) -> int:
        """How many unstarted reservations there are beyond what is welcome."""
        ahead = self.ahead()
        return len(self._waiting) - (self.slots - self.busy) - ahead

    def stale(self, age: float) -> list[Reservation]:
        """Reservations unstarted for this long while every slot is taken."""
        if not self._waiting or self.busy < self.slots:
            return []
        edge = _monotonic() - age
        return [r for r in self.unstarted() if r.received_at < edge and not r.keep]


def _nothing() -> None:
    return None
