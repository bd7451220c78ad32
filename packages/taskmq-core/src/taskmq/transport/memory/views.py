"""How a worker sees its queues: the best non-empty band at once, however many queues there are.

A view belongs to a list of queues with weights and is shared by all workers with that list. Every
queue knows its views, so a band that gets its first message enters them in O(log n), and no call
ever walks over a list of queues.

Weighted round-robin is start-time fair queueing: in each priority a queue has a virtual time that
rises by 1/weight (here in whole numbers) with each message taken, and the least is next. One that
was empty enters at the present virtual time, so it can neither starve nor catch up.
"""

from __future__ import annotations

import math
from heapq import heappop, heappush, heapreplace
from typing import TYPE_CHECKING

from taskmq.priority import HIGHEST, LOWEST

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskmq.transport.memory.lines import Band, Queue
    from taskmq.transport.memory.waiting import Sleeper
    from taskmq.transport.types import QueueShare

_LEVELS = HIGHEST - LOWEST + 1
# Weights without a common multiple below this share a rounded one; the error is under 1e-18.
_SCALE_LIMIT = 1 << 80


class Seat:
    """A band's place in the round-robin of one view."""

    __slots__ = ("band", "index", "is_queued", "level", "passed", "stride")

    def __init__(self, band: Band, index: int, stride: int) -> None:
        self.band = band
        self.index = index
        self.stride = stride
        self.level = band.priority - LOWEST
        self.passed = 0
        self.is_queued = False


class Link:
    """A queue's tie to one view."""

    __slots__ = ("armed_at", "index", "queue", "seats", "stride", "view")

    def __init__(self, view: View, queue: Queue, index: int, stride: int) -> None:
        self.view = view
        self.queue = queue
        self.index = index
        self.stride = stride
        self.armed_at = math.inf
        self.seats: dict[int, Seat] = {}


class View:
    """The non-empty bands and the next due times of a list of queues."""

    __slots__ = ("due", "levels", "links", "mask", "queues", "sleepers", "version", "virtual")

    def __init__(self, queues: tuple[QueueShare, ...]) -> None:
        self.queues = queues
        self.links: dict[str, Link] = {}
        self.levels: list[list[tuple[int, int, Seat]]] = [[] for _ in range(_LEVELS)]
        self.virtual = [0] * _LEVELS
        self.mask = 0
        self.due: list[tuple[float, int, Link]] = []
        self.version = 0
        """Rises with everything new; a worker compares it with what it saw last."""
        self.sleepers: list[Sleeper] = []

    def attach(self, queues: Sequence[Queue]) -> None:
        """Tie the view to its queues (in the order of `self.queues`) and take in what they hold."""
        weights = {share.name: max(1, share.weight) for share in reversed(self.queues)}
        scale = min(math.lcm(*weights.values()), _SCALE_LIMIT)
        for queue in queues:
            if queue.name in self.links:
                continue
            link = Link(self, queue, len(self.links), scale // weights[queue.name])
            self.links[queue.name] = link
            queue.links.append(link)
            for band in queue.bands.values():
                if band.ready or band.last_ready:
                    self.enter(link, band)
            first = queue.delayed.first()
            if first is not None:
                self.arm(link, first[0])

    def detach(self) -> None:
        """Untie the view from its queues; it is not used any more."""
        for link in self.links.values():
            link.queue.links.remove(link)

    def enter(self, link: Link, band: Band) -> None:
        """Take in a band that has something new, and wake who waits."""
        seat = link.seats.get(band.priority)
        if seat is None or seat.band is not band:
            seat = link.seats[band.priority] = Seat(band, link.index, link.stride)
        if not seat.is_queued:
            seat.is_queued = True
            seat.passed = max(seat.passed, self.virtual[seat.level])
            heappush(self.levels[seat.level], (seat.passed, seat.index, seat))
            self.mask |= 1 << seat.level
        self.announce()

    def announce(self) -> None:
        """There is something new in one of the queues."""
        self.version += 1
        for sleeper in self.sleepers:
            sleeper.wake()

    def arm(self, link: Link, at: float) -> None:
        """Look at the delayed messages of a queue at this time, unless it is to be earlier."""
        if at < link.armed_at:
            link.armed_at = at
            heappush(self.due, (at, link.index, link))

    def best(
        self, allowed: int, with_last: bool, aside: list[tuple[int, int, Seat]]
    ) -> Seat | None:
        """The seat whose turn it is in the best non-empty priority within the mask `allowed`.

        Bands that hold only last chances the worker mustn't take go `aside`; `restore` them after.
        """
        mask = self.mask & allowed
        while mask:
            level = mask.bit_length() - 1
            heap = self.levels[level]
            while heap:
                seat = heap[0][2]
                band = seat.band
                if band.ready or (with_last and band.last_ready):
                    return seat
                entry = heappop(heap)
                if band.last_ready:
                    aside.append(entry)
                else:
                    seat.is_queued = False
            self.mask &= ~(1 << level)
            mask &= ~(1 << level)
        return None

    def restore(self, aside: list[tuple[int, int, Seat]]) -> None:
        """Put back what `best` has set aside."""
        for entry in aside:
            level = entry[2].level
            heappush(self.levels[level], entry)
            self.mask |= 1 << level

    def charge(self, seat: Seat) -> None:
        """Count one message against the seat that `best` has returned."""
        heap = self.levels[seat.level]
        self.virtual[seat.level] = seat.passed
        seat.passed += seat.stride
        heapreplace(heap, (seat.passed, seat.index, seat))

    def head(self, with_last: bool) -> int | None:
        """The highest priority of which the worker could get something."""
        aside: list[tuple[int, int, Seat]] = []
        seat = self.best(ALL_LEVELS, with_last, aside)
        if aside:
            self.restore(aside)
        return None if seat is None else seat.level + LOWEST

    def next_due(self) -> float | None:
        """When the next delayed message of these queues falls due."""
        due = self.due
        while due:
            at, _, link = due[0]
            first = link.queue.delayed.first() if link.armed_at == at else None
            if first is not None and first[0] == at:
                return at
            heappop(due)
            if link.armed_at == at:
                link.armed_at = math.inf
                if first is not None:
                    self.arm(link, first[0])
        return None


ALL_LEVELS = (1 << _LEVELS) - 1


def levels_up_to(priority: int | None) -> int:
    """The mask of all priorities up to this one."""
    return ALL_LEVELS if priority is None else (1 << (priority - LOWEST + 1)) - 1
