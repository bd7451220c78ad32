"""The settler: one thread that tells the transport what became of deliveries, in gathered batches.

Slots put settlements on a `SimpleQueue` and go on. The thread takes whatever has gathered and sends
it as one call, at once when it was idle: under load batches grow by themselves. A call whose reply was
lost is repeated as it is; the transport answers `already` for what had arrived.
"""

from __future__ import annotations

import contextlib
import logging
from queue import Empty, SimpleQueue
from threading import Lock
from typing import TYPE_CHECKING

from msgspec.structs import replace

from taskmq.clock import SYSTEM_CLOCK
from taskmq.errors import TransportError, TransportUnavailable
from taskmq.states import JobState
from taskmq.transport.types import Ack, Bury, ErrorInfo, Settlement, SettleResult, Yield
from taskmq_worker.shelf import Entry

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from taskmq.transport.contract import Transport
    from taskmq.transport.types import Delivery, SettleReply
    from taskmq_worker.contact import Contact
    from taskmq_worker.reports import Reports
    from taskmq_worker.reservation import Holdings, Reservation
    from taskmq_worker.shelf import ResultShelf

_log = logging.getLogger("taskmq.worker")
_monotonic = SYSTEM_CLOCK.monotonic

MAX_BATCH = 500


class Confirmation:
    """Lets one thread wait for the answer to one settlement."""

    __slots__ = ("_lock", "_result")

    def __init__(self) -> None:
        self._lock = Lock()
        self._lock.acquire()
        self._result = SettleResult("lost", "the worker stopped before the transport answered")

    def __call__(self, result: SettleResult) -> None:
        """Let the waiting thread go on."""
        self._result = result
        self._lock.release()

    def wait(self) -> SettleResult:
        """Block until the transport has answered, or the settler has given up."""
        with self._lock:
            return self._result


class Settler:
    """Sends settlements in batches and hands their answers on."""

    def __init__(
        self,
        transport: Transport,
        worker: str,
        holdings: Holdings,
        contact: Contact,
        reports: Reports,
        *,
        shelf: ResultShelf | None = None,
    ) -> None:
        self._transport = transport
        self._worker = worker
        self._holdings = holdings
        self._contact = contact
        self._reports = reports
        self._shelf = shelf
        self._queue: SimpleQueue[Entry | None] = SimpleQueue()
        if shelf is not None:
            shelf.on_return = self._queue.put
            shelf.on_refused = self._not_shelved
        self._pause: SimpleQueue[None] = SimpleQueue()
        self._again: list[Entry] = []
        self._closing = False
        self._ended = False
        self._resting = False
        self._give_up_at: float | None = None
        self.turned_at = 0.0
        """When its loop last turned."""
        self.on_reply: Callable[[int | None, frozenset[str], frozenset[str]], None] | None = None
        """Told `head`, `cancelled` and `terminate` of every answer."""
        self.on_idle: Callable[[], None] | None = None
        """Called when a batch is done and the worker holds nothing more."""

    def submit(
        self,
        settlement: Settlement,
        reservation: Reservation,
        on_result: Callable[[SettleResult], None] | None = None,
    ) -> None:
        """Send this with the next batch; `on_result` runs on the settler's thread."""
        entry = Entry(settlement, reservation, on_result)
        if self._ended:
            self._abandon(entry)
        else:
            self._queue.put(entry)

    def settle(self, settlement: Settlement, reservation: Reservation) -> SettleResult:
        """Send this with the next batch and wait for the answer."""
        confirmation = Confirmation()
        self.submit(settlement, reservation, confirmation)
        return confirmation.wait()

    def forget(self, reservation: Reservation) -> None:
        """The delivery is lost: there is nothing to say about it any more."""
        self._holdings.remove(reservation.delivery.receipt)
        # An empty round, so that whoever waits for an idle worker hears of it.
        self._queue.put(None)

    @property
    def waiting(self) -> bool:
        """Whether settlements are on their queue."""
        return not self._queue.empty()

    def hurry(self) -> None:
        """The transport is back: end a back-off early."""
        if self._resting:
            self._pause.put(None)

    def close(self, timeout: float) -> None:
        """Send what has gathered, for at most `timeout` seconds while the transport is away."""
        self._give_up_at = _monotonic() + timeout
        self._closing = True
        self._pause.put(None)
        self._queue.put(None)

    def run(self) -> None:
        """The thread: until `close`, and everything before it, is done."""
        while True:
            batch = self._gather()
            self.turned_at = _monotonic()
            if batch:
                self._commit(batch)
            if not len(self._holdings) and self.on_idle is not None:
                self.on_idle()
            if self._closing and self._queue.empty() and not self._again and self._is_through():
                self._ended = True
                return

    def _is_through(self) -> bool:
        """Whether nothing waits for the result store any more, or the time for it is over."""
        if self._shelf is None:
            return True
        if self._shelf.waiting and self._time_left():
            return False
        for entry in self._shelf.close():
            self._abandon(entry)
        return True

    def _time_left(self) -> float | None:
        """Seconds until it gives up; None when it has not been told to."""
        if self._give_up_at is None:
            return None
        return max(0.0, self._give_up_at - _monotonic())

    def _gather(self) -> list[Entry]:
        batch, self._again = self._again, []
        try:
            entry = self._queue.get(block=not batch, timeout=None if batch else self._time_left())
            while len(batch) < MAX_BATCH:
                if entry is not None:
                    batch.append(entry)
                entry = self._queue.get_nowait()
        except Empty:
            return batch
        if entry is not None:
            batch.append(entry)
        return batch

    def _commit(self, batch: list[Entry]) -> None:
        if self._shelf is not None:
            batch = self._shelf.put(batch)
            if not batch:
                return
        reply = self._send([entry.settlement for entry in batch])
        if reply is None:
            for entry in batch:
                self._abandon(entry)
            return
        for entry, result in zip(batch, reply.results, strict=True):
            self._answered(entry, result)
        if self.on_reply is not None and (reply.head is not None or reply.cancelled):
            self.on_reply(reply.head, reply.cancelled, reply.terminate)

    def _send(self, settlements: Sequence[Settlement]) -> SettleReply | None:
        """One settled batch; None when the worker ends before the transport is back."""
        backoff = self._contact.backoff()
        while True:
            try:
                reply = self._transport.settle(self._worker, settlements)
            except TransportUnavailable as error:
                self._contact.failed("settle", error)
            except TransportError as error:
                self._contact.failed("settle", error)
                return self._bisect(settlements, error)
            else:
                if self._contact.broken:
                    self._contact.worked()
                return reply
            if not self._rest(backoff.next()):
                return None

    def _bisect(
        self, settlements: Sequence[Settlement], error: TransportError
    ) -> SettleReply | None:
        """The backend refused the call as a whole: find the item, so that the others count."""
        from taskmq.transport.types import SettleReply

        if len(settlements) == 1:
            return SettleReply(results=[SettleResult("refused", str(error))], now=0.0)
        middle = len(settlements) // 2
        first, second = self._send(settlements[:middle]), self._send(settlements[middle:])
        if first is None or second is None:
            return None
        return replace(
            second,
            results=first.results + second.results,
            cancelled=first.cancelled | second.cancelled,
            terminate=first.terminate | second.terminate,
        )

    def _rest(self, seconds: float) -> bool:
        """Wait before the next try; False when the worker's time is over."""
        if self._time_left() == 0:
            return False
        self._resting = True
        with contextlib.suppress(Empty):
            self._pause.get(timeout=seconds)
        self._resting = False
        return True

    def _answered(self, entry: Entry, result: SettleResult) -> None:
        reservation, settlement = entry.reservation, entry.settlement
        if result.status == "refused":
            self._refused(entry, result)
            return
        if result.status == "lost":
            self._holdings.remove(settlement.receipt)
            if not reservation.lost:
                # Otherwise the keeper has heard of it first, and said so.
                reservation.lost = True
                _log.warning(
                    "job %s (%s): the delivery was lost to another worker or the job has ended; "
                    "what this worker says about it changes nothing",
                    reservation.delivery.id,
                    reservation.delivery.task,
                )
        elif not (isinstance(settlement, Ack) and settlement.state is JobState.RUNNING):
            self._holdings.remove(settlement.receipt)
            if self._reports.enabled:
                self._reports.settled(reservation, settlement)
            if self._shelf is not None:
                self._shelf.settled(entry)
        if entry.on_result is not None:
            entry.on_result(result if entry.refusal is None else entry.refusal)

    def _refused(self, entry: Entry, result: SettleResult) -> None:
        reservation, settlement = entry.reservation, entry.settlement
        job = reservation.delivery
        if isinstance(settlement, Yield):
            # Over max_yields: the delivery stays held, and is simply kept.
            if entry.on_result is not None:
                entry.on_result(result)
        elif entry.refusal is None:
            _log.error(
                "job %s (%s): the transport refuses its outcome: %s",
                job.id,
                job.task,
                result.reason,
            )
            self._again.append(
                Entry(
                    _plain_failure(settlement, result.reason), reservation, entry.on_result, result
                )
            )
        else:
            _log.error(
                "job %s (%s): refused even as a failure: %s", job.id, job.task, result.reason
            )
            self._abandon(entry)

    def _not_shelved(self, entry: Entry, reason: str) -> None:
        """The result store never takes this result: its job fails, and says so."""
        settlement = _plain_failure(entry.settlement, reason)
        refusal = SettleResult("refused", reason)
        self._queue.put(entry._replace(settlement=settlement, refusal=refusal))

    def _abandon(self, entry: Entry) -> None:
        """Leave the delivery to its lease."""
        self._holdings.remove(entry.settlement.receipt)
        if entry.on_result is not None:
            entry.on_result(SettleResult("lost", "the transport took no settlement"))


def clean_text(text: str, limit: int = 2000) -> str:
    """Text that any backend can store: no NUL, no lone surrogates, bounded."""
    return text.replace("\x00", "�").encode("utf-8", "replace").decode("utf-8")[:limit]


def _plain_failure(settlement: Settlement, reason: str) -> Bury:
    """The end of a job whose outcome can't be stored: nothing of it but the reason."""
    error = getattr(settlement, "error", None)
    message = f"the transport can't store the outcome: {reason}"
    if isinstance(error, ErrorInfo) and error.message:
        message += f" (it was a failure: {error.type}: {error.message[:500]})"
    return Bury(
        receipt=settlement.receipt,
        started_ago=settlement.started_ago,
        error=ErrorInfo(type="NotStorable", message=clean_text(message), reason="not storable"),
    )


def expired(delivery: Delivery) -> Ack:
    """The end of a job whose time to start is over."""
    error = ErrorInfo(reason="expired", message="it had not started when its time was over")
    return Ack(receipt=delivery.receipt, state=JobState.EXPIRED, error=error)
