"""The separate result store, seen from the settler: results are put before their jobs settle.

While the store is away no job fails and none waits behind another: results of modest size settle with the job
record, larger ones wait here with their leases kept. One thread, which lives only during an outage, tries
the store again; then the large ones settle, and the store gets what went to the records meanwhile.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from taskmq.errors import TransportError, TransportUnavailable
from taskmq.transport.types import Ack, Payload, Settlement, SettleResult
from taskmq_worker.contact import Backoff, Contact

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskmq.transport.contract import ResultStore
    from taskmq_worker.reservation import Reservation

_log = logging.getLogger("taskmq.worker")

MAX_MOVED = 64 << 20
"""How many bytes of results are remembered for the store, besides their copies in the records."""
BATCH = 500


class Entry(NamedTuple):
    """A settlement on its way. `refusal` is the answer that its predecessor got."""

    settlement: Settlement
    reservation: Reservation
    on_result: Callable[[SettleResult], None] | None = None
    refusal: SettleResult | None = None


Row = tuple[str, str, Payload]


def _nobody(*_: object) -> None:
    """Nobody listens."""


class ResultShelf:
    """Puts results into the separate store, and stands in for it while it is away.

    Args:
        store: The store.
        ttl: How long it keeps a result, seconds.
        max_inline: The largest result that settles with its job's record during an outage.
        report: Told of an outage's errors, the first and some of the later ones.
    """

    def __init__(
        self,
        store: ResultStore,
        ttl: float,
        max_inline: int,
        report: Callable[[str, Exception], None] = _nobody,
    ) -> None:
        self._store = store
        self._ttl = ttl
        self._max_inline = max_inline
        self._contact = Contact(0.0, float("inf"), report, name="the result store")
        self._lock = threading.Lock()
        self._away = False
        self._large: deque[Entry] = deque()
        self._moving: deque[Row] = deque()
        self._moving_bytes = 0
        self._closed = threading.Event()
        self.on_return: Callable[[Entry], Any] = _nobody
        """Given each entry whose result could be put at last, from the thread of the outage."""
        self.on_refused: Callable[[Entry, str], Any] = _nobody
        """Given each entry whose result the store never takes, with the reason."""

    @property
    def waiting(self) -> bool:
        """Whether settlements wait for the store."""
        return bool(self._large)

    def put(self, batch: list[Entry]) -> list[Entry]:
        """Put the results of a batch; those that can settle now."""
        rows = [row for row in map(_row, batch) if row is not None]
        if not rows:
            return batch
        with self._lock:
            away = self._away
        if not away:
            try:
                self._store.put(rows, self._ttl)
            except TransportError as error:
                self._begin_outage(error)
            else:
                return [entry if _row(entry) is None else _stored(entry) for entry in batch]
        return [entry for entry in batch if not self._held_back(entry)]

    def settled(self, entry: Entry) -> None:
        """The transport has confirmed this: what is in the record only goes to the store later."""
        row = _row(entry)
        if row is None:
            return
        with self._lock:
            if not self._away:
                # It came back in between; one more outage of nothing moves this.
                self._start()
            self._moving.append(row)
            self._moving_bytes += len(row[2].data)
            while self._moving_bytes > MAX_MOVED:
                self._moving_bytes -= len(self._moving.popleft()[2].data)

    def close(self) -> list[Entry]:
        """End the outage's thread; the settlements that still wait."""
        self._closed.set()
        with self._lock:
            left = list(self._large)
            self._large.clear()
        return left

    def _held_back(self, entry: Entry) -> bool:
        row = _row(entry)
        if row is None or len(row[2].data) <= self._max_inline:
            return False
        with self._lock:
            if not self._away:
                self._start()
            self._large.append(entry)
        return True

    def _begin_outage(self, error: TransportError) -> None:
        self._contact.failed("storing results", error)
        with self._lock:
            self._start()

    def _start(self) -> None:
        if not self._away and not self._closed.is_set():
            self._away = True
            threading.Thread(target=self._outage, name="taskmq-shelf", daemon=True).start()

    def _outage(self) -> None:
        """The thread: until the store has taken all that waits for it."""
        backoff = Backoff()
        while not self._closed.wait(backoff.next()):
            with self._lock:
                large = list(self._large)[:BATCH]
                moving = [self._moving[i] for i in range(min(BATCH, len(self._moving)))]
                if not large and not moving and not self._contact.broken:
                    self._away = False
                    return
            rows = [row for row in map(_row, large) if row is not None] + moving
            try:
                refused = self._try(rows)
            except TransportError as error:
                self._contact.failed("storing results", error)
                continue
            backoff.reset()
            self._contact.worked()
            self._taken(large, moving, refused)

    def _try(self, rows: list[Row]) -> dict[str, str]:
        """Put what waits; why the store refuses some of it for good, by receipt."""
        try:
            # Without anything to put this asks whether it is back.
            self._store.put(rows, self._ttl) if rows else self._store.get([("-", "-")])
        except TransportUnavailable:
            raise
        except TransportError as error:
            if len(rows) < 2:
                return {row[1]: str(error) for row in rows}
            # One that it never takes must not stand before the others.
            middle = len(rows) // 2
            return self._try(rows[:middle]) | self._try(rows[middle:])
        return {}

    def _taken(self, large: list[Entry], moving: list[Row], refused: dict[str, str]) -> None:
        with self._lock:
            for row in moving:
                # The oldest may have been dropped meanwhile.
                if self._moving and self._moving[0] is row:
                    self._moving.popleft()
                    self._moving_bytes -= len(row[2].data)
            mine = [entry for entry in large if entry in self._large]
            for entry in mine:
                self._large.remove(entry)
        for entry in mine:
            reason = refused.get(entry.settlement.receipt)
            if reason is None:
                self.on_return(_stored(entry))
            else:
                self.on_refused(entry, reason)
        if refused:
            reason = next(iter(refused.values()))
            _log.error("the result store refuses %d results for good: %s", len(refused), reason)


def _row(entry: Entry) -> Row | None:
    """What of an entry belongs into the store: the result of a job that is no step of a run."""
    ack, job = entry.settlement, entry.reservation.delivery
    if not isinstance(ack, Ack) or ack.result is None or job.step is not None:
        return None
    return job.id, ack.receipt, ack.result


def _stored(entry: Entry) -> Entry:
    """The entry once its result is in the store."""
    changed: Any = replace(entry.settlement, result=None, result_stored=True)
    return entry._replace(settlement=changed)
