"""What the memory transport keeps of a job, and its heaps with lazy deletion."""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import msgspec

from taskmq.states import JobState
from taskmq.transport.types import Completion, ErrorInfo, Message, Payload, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator


class Where:
    """The one place in the store where a job is; its state follows from it, not the reverse.

    No Enum: reading a member of one costs 160 ns on Python 3.11, and a job's way reads a dozen.
    """

    IN_HAND: Final = "in hand"
    """Taken out of one place and not yet in the next; only inside a call."""
    READY: Final = "ready"
    DELAYED: Final = "delayed"
    BLOCKED: Final = "blocked"
    HELD: Final = "held"
    LEASED: Final = "leased"
    PARKED: Final = "parked"
    EXTERNAL: Final = "external"
    ENDED: Final = "ended"


class Record(msgspec.Struct, gc=False, eq=False):
    """A job: its message as enqueued, and everything that changes.

    `stamp` names the job's only valid entry in any line or heap: an entry with another stamp is
    stale and skipped, so nothing is ever searched for. It refers to nothing that could refer
    back, so the garbage collector needn't look at it.
    """

    message: Message
    id: str
    queue: str
    priority: int
    place: int
    enqueued_at: float
    envelope: bytes
    stamp: int = 0
    where: str = Where.IN_HAND
    state: JobState = JobState.QUEUED
    attempt: int = 1
    deliveries: int = 0
    yields: int = 0
    series: int = 1
    due_at: float | None = None
    expires_at: float | None = None
    expiry_indexed: bool = False
    reserved_at: float | None = None
    started_at: float | None = None
    finished_at: float | None = None
    lease_at: float = 0.0
    worker: str | None = None
    receipt: str | None = None
    late: bool = False
    """The lease was taken back, but the receipt still counts."""
    settled: tuple[str, ...] = ()
    """Receipts that have settled, so that a repeated call is told `already`."""
    acked: bool = False
    cancel_requested: bool = False
    has_slot: bool = False
    promised: bool = False
    """Put back from its key's line for a slot that was freed, and not yet reserved."""
    outcome: Completion | None = None
    kept: Completion | None = None
    completed: tuple[str, Completion] | None = None
    """The receipt that was completed from outside, and how."""
    result: Payload | None = None
    result_stored: bool = False
    error: ErrorInfo | None = None
    reason: str = ""
    meta: bytes | None = None
    needed: int = 0
    failed: int = 0
    members: dict[str, Verdict] | None = None
    dead_number: int = 0

    @property
    def is_last_chance(self) -> bool:
        """Whether the next delivery is the last one allowed, after an earlier one was lost."""
        return 0 < self.deliveries >= self.message.max_deliveries - 1


SWEEP_FROM = 64
"""Fewer stale entries than this aren't worth a sweep."""

RUNNING: Final = JobState.RUNNING
SUCCEEDED: Final = JobState.SUCCEEDED
"""Read for every job, so named once."""

KeyT = TypeVar("KeyT", int, float, "tuple[int, int]")


class LazyHeap(Generic[KeyT]):
    """A heap of (key, stamp, record) whose stale entries are skipped, and swept when they prevail."""

    __slots__ = ("entries", "stale")

    def __init__(self) -> None:
        self.entries: list[tuple[KeyT, int, Record]] = []
        self.stale = 0

    def push(self, key: KeyT, record: Record) -> None:
        """Add the record under its present stamp."""
        heappush(self.entries, (key, record.stamp, record))

    def first(self) -> tuple[KeyT, int, Record] | None:
        """The valid entry with the least key, left where it is."""
        entries = self.entries
        while entries:
            entry = entries[0]
            if entry[2].stamp == entry[1]:
                return entry
            heappop(entries)
            self.stale -= 1
        return None

    def pop(self) -> None:
        """Remove what `first` has just returned."""
        heappop(self.entries)

    def rekey(self, key: KeyT) -> None:
        """Give what `first` has just returned another key."""
        _, stamp, record = self.entries[0]
        heapreplace(self.entries, (key, stamp, record))

    def drop(self) -> None:
        """Note that an entry went stale; amortised O(1)."""
        self.stale += 1
        if self.stale > SWEEP_FROM and self.stale * 2 > len(self.entries):
            self.sweep()

    def sweep(self) -> None:
        """Remove all stale entries."""
        self.entries[:] = [entry for entry in self.entries if entry[2].stamp == entry[1]]
        heapify(self.entries)
        self.stale = 0

    def __iter__(self) -> Iterator[Record]:
        return (record for _, stamp, record in self.entries if record.stamp == stamp)
