"""Where jobs queue up: the bands of a queue, and the waiting lines of concurrency keys."""

from __future__ import annotations

from collections import deque
from heapq import heappop
from typing import TYPE_CHECKING

from taskmq.transport.memory.records import SWEEP_FROM, LazyHeap, Record

if TYPE_CHECKING:
    from taskmq.transport.memory.views import Link


class Band:
    """The messages of one queue and priority.

    Ready ones stand in order of `place`: new ones in a deque, those put back at their old place in
    a heap, and those at their last chance in a heap of their own, because a worker that holds one
    of these must find the others without walking over them.
    """

    __slots__ = (
        "back",
        "blocked",
        "delayed",
        "external",
        "fresh",
        "last",
        "last_ready",
        "leased",
        "priority",
        "ready",
        "stale",
    )

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.fresh: deque[tuple[int, int, Record]] = deque()
        self.stale = 0
        self.back: LazyHeap[int] = LazyHeap()
        self.last: LazyHeap[int] = LazyHeap()
        self.ready = 0
        self.last_ready = 0
        self.delayed = 0
        self.blocked = 0
        self.leased = 0
        self.external = 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing of any kind is here."""
        return not (
            self.ready
            or self.last_ready
            or self.delayed
            or self.blocked
            or self.leased
            or self.external
        )

    def push(self, record: Record) -> bool:
        """Add a record at its place; True when there was none of its kind before."""
        if record.is_last_chance:
            self.last.push(record.place, record)
            self.last_ready += 1
            return self.last_ready == 1
        fresh = self.fresh
        if not fresh or record.place > fresh[-1][0]:
            fresh.append((record.place, record.stamp, record))
        else:
            self.back.push(record.place, record)
        self.ready += 1
        return self.ready == 1

    def first(self, *, with_last: bool = True) -> Record | None:
        """The first ready record, left where it is."""
        entries = [self._first_fresh(), self.back.first(), self.last.first() if with_last else None]
        found = [entry for entry in entries if entry is not None]
        return min(found)[2] if found else None

    def pop(self, *, with_last: bool) -> Record:
        """Take the first ready record; there must be one."""
        entry = self._first_fresh()
        if self.back.entries:
            back = self.back.first()
            if back is not None and (entry is None or back < entry):
                entry = back
        if with_last and self.last_ready:
            last = self.last.first()
            if last is not None and (entry is None or last < entry):
                self.last.pop()
                self.last_ready -= 1
                return last[2]
        if entry is None:
            raise LookupError("the band has nothing ready")
        if self.fresh and self.fresh[0] is entry:
            self.fresh.popleft()
        else:
            heappop(self.back.entries)
        self.ready -= 1
        return entry[2]

    def remove(self, record: Record) -> None:
        """Note that a ready record, whose stamp is already cleared, left out of turn."""
        if record.is_last_chance:
            self.last_ready -= 1
            self.last.drop()
            return
        self.ready -= 1
        # Which of the two holds the stale entry isn't known, so both are swept by one count.
        self.stale += 1
        if self.stale > SWEEP_FROM and self.stale > self.ready:
            self.fresh = deque(entry for entry in self.fresh if entry[2].stamp == entry[1])
            self.back.sweep()
            self.stale = 0

    def _first_fresh(self) -> tuple[int, int, Record] | None:
        fresh = self.fresh
        while fresh:
            entry = fresh[0]
            if entry[2].stamp == entry[1]:
                return entry
            fresh.popleft()
        return None


class Queue:
    """One queue: its bands, its delayed messages by due time, and what else names it."""

    __slots__ = (
        "bands",
        "blocked",
        "dead",
        "delayed",
        "external",
        "held",
        "links",
        "name",
        "waiting",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.bands: dict[int, Band] = {}
        self.delayed: LazyHeap[float] = LazyHeap()
        self.blocked: dict[str, Record] = {}
        self.external: dict[str, Record] = {}
        self.held = 0
        self.waiting = 0
        self.dead = 0
        self.links: list[Link] = []

    def band(self, priority: int) -> Band:
        """The band of this priority, made when missing."""
        band = self.bands.get(priority)
        if band is None:
            band = self.bands[priority] = Band(priority)
        return band

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to count, though a worker may serve the queue."""
        if self.held or self.waiting or self.dead:
            return False
        return all(band.is_empty for band in self.bands.values())


class KeyLine:
    """One concurrency key: slots taken, and the waiting jobs of each queue in their order."""

    __slots__ = ("taken", "waiting")

    def __init__(self) -> None:
        self.taken = 0
        self.waiting: dict[str, LazyHeap[tuple[int, int]]] = {}

    def line(self, queue: str) -> LazyHeap[tuple[int, int]]:
        """The waiting line in this queue, made when missing."""
        line = self.waiting.get(queue)
        if line is None:
            line = self.waiting[queue] = LazyHeap()
        return line
