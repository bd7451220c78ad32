"""What a scenario works with: a fresh transport, a way to let time pass, and short words for calls."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from taskmq.testing.conformance.scenario import Broken, check, equal
from taskmq.transport.types import (
    Ack,
    Delivery,
    Enqueued,
    ErrorInfo,
    JobRecord,
    Message,
    QueueShare,
    QueueStats,
    ReapReport,
    ReapRequest,
    ReserveReply,
    ReserveRequest,
    Retention,
    Settlement,
    SettleResult,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from taskmq.states import JobState
    from taskmq.transport.contract import Transport

R = TypeVar("R")

JOIN_TIMEOUT = 20.0
OUTBOX_TIMEOUT = 5.0
KEEP_ALL = Retention(dead_letter_ttl=None, dead_letter_max=None, worker_ttl=1e9)


@runtime_checkable
class MovableClock(Protocol):
    """A clock that a test moves, as `taskmq.testing.FakeClock`."""

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        ...


class Rig:
    """A transport under test. Every duration in a scenario is a multiple of `moment`.

    With a movable clock on `transport.clock` a moment is long and costs nothing; otherwise it is short
    and is slept. `long` is a time that never passes during a scenario.
    """

    def __init__(self, transport: Transport, *, atomic: bool) -> None:
        self.transport = transport
        self.atomic = atomic
        self._handles: list[Transport] = []
        self._ids = 0
        clock = getattr(transport, "clock", None)
        self._clock = clock if isinstance(clock, MovableClock) else None
        self.moment = 10.0 if self._clock else 0.25
        self.long = 3_000.0 if self._clock else 120.0
        self.skips_time = self._clock is not None
        """Whether letting time pass costs nothing."""
        self.slack = 0.001 if self._clock else 1.0
        """How far an instant may lie from the expected one."""

    def elapse(self, seconds: float) -> None:
        """Let the transport's time pass."""
        if self._clock is not None:
            self._clock.advance(seconds)
        else:
            time.sleep(seconds + 0.02)

    def duplicate(self) -> Transport:
        """An independent handle on the same storage, closed with the rig."""
        handle = self.transport.duplicate()
        self._handles.append(handle)
        return handle

    def close(self) -> None:
        """Close the transport and every handle on it."""
        for handle in [*self._handles, self.transport]:
            handle.close()

    # -- producing

    def message(self, id: str | None = None, **fields: Any) -> Message:
        """A message with a new id, in queue "q", whose envelope is no envelope at all."""
        self._ids += 1
        fields.setdefault("task", "app.task")
        fields.setdefault("queue", "q")
        fields.setdefault("envelope", b"\xc1 opaque \x00 " + str(self._ids).encode())
        return Message(id=id or f"job-{self._ids:05d}", **fields)

    def enqueue(self, *messages: Message) -> list[str]:
        """Enqueue in one call; every message must be created."""
        replies = self.transport.enqueue(messages)
        expected = [Enqueued(message.id, "created") for message in messages]
        equal(replies, expected, "enqueue of new messages")
        return [message.id for message in messages]

    def put(self, id: str | None = None, **fields: Any) -> str:
        """Enqueue one message and return its id."""
        return self.enqueue(self.message(id, **fields))[0]

    def put_many(self, count: int, **fields: Any) -> list[str]:
        """Enqueue several alike messages in one call."""
        return self.enqueue(*(self.message(**fields) for _ in range(count)))

    # -- consuming

    def reserve(
        self,
        worker: str = "w1",
        *queues: str | QueueShare,
        limit: int = 10,
        lease: float | None = None,
        via: Transport | None = None,
        **fields: Any,
    ) -> ReserveReply:
        """Reserve from the queues named (by default "q")."""
        shares = tuple(q if isinstance(q, QueueShare) else QueueShare(q) for q in queues or ("q",))
        return (via or self.transport).reserve(
            ReserveRequest(
                worker=worker,
                queues=shares,
                limit=limit,
                lease=self.long if lease is None else lease,
                **fields,
            )
        )

    def take(self, worker: str = "w1", *queues: str | QueueShare, **fields: Any) -> list[Delivery]:
        """The deliveries of one `reserve`."""
        return self.reserve(worker, *queues, **fields).deliveries

    def take_one(self, worker: str = "w1", *queues: str | QueueShare, **fields: Any) -> Delivery:
        """Reserve up to ten and insist on exactly one delivery."""
        deliveries = self.take(worker, *queues, **fields)
        equal(len(deliveries), 1, f"number of deliveries to {worker}")
        return deliveries[0]

    def take_ids(self, worker: str = "w1", *queues: str | QueueShare, **fields: Any) -> list[str]:
        """The job ids of one `reserve`, in the order delivered."""
        return [delivery.id for delivery in self.take(worker, *queues, **fields)]

    def drain(self, worker: str = "w1", *queues: str | QueueShare, **fields: Any) -> list[Delivery]:
        """Reserve until nothing more comes."""
        found: list[Delivery] = []
        for _ in range(10_000):
            reply = self.reserve(worker, *queues, **fields)
            found += reply.deliveries
            if not reply.deliveries and not reply.more:
                return found
        raise Broken("reserve went on giving deliveries or `more` without end")

    def settle(
        self, *settlements: Settlement, worker: str = "w1", via: Transport | None = None
    ) -> list[SettleResult]:
        """Settle in one call; as many results as settlements."""
        results = (via or self.transport).settle(worker, settlements).results
        equal(len(results), len(settlements), "number of settle results")
        return results

    def confirm(self, *settlements: Settlement, worker: str = "w1") -> None:
        """Settle and insist that every settlement was applied now."""
        for settlement, result in zip(
            settlements, self.settle(*settlements, worker=worker), strict=True
        ):
            equal(result.status, "ok", f"status of {type(settlement).__name__}")

    def answers(self, expected: str, *settlements: Settlement, worker: str = "w1") -> None:
        """Settle and insist on this status for every settlement."""
        for settlement, result in zip(
            settlements, self.settle(*settlements, worker=worker), strict=True
        ):
            equal(result.status, expected, f"status of {type(settlement).__name__}")

    def finish(self, job_id: str | None = None, worker: str = "w1", **fields: Any) -> None:
        """Reserve one message and end it with an Ack of these fields."""
        delivery = self.take_one(worker, limit=1)
        if job_id is not None:
            equal(delivery.id, job_id, "the job delivered")
        self.confirm(Ack(receipt=delivery.receipt, **fields), worker=worker)

    def lose(
        self,
        job_id: str | None = None,
        worker: str = "w1",
        limit: int = 1,
        queues: Sequence[str] = ("q",),
    ) -> list[Delivery]:
        """Let a worker reserve and die: its lease passes and a reaper takes it back."""
        taken = self.take(worker, *queues, limit=limit, lease=self.moment)
        if job_id is not None:
            equal([delivery.id for delivery in taken], [job_id], "the job delivered")
        self.elapse(self.moment * 1.5)
        self.reap()
        return taken

    # -- maintenance and looking

    def reap(
        self,
        *,
        recover: bool = True,
        limit: int = 500,
        retention: Retention = KEEP_ALL,
        via: Transport | None = None,
    ) -> list[ReapReport]:
        """Passes of maintenance until none is needed at once."""
        reports: list[ReapReport] = []
        request = ReapRequest(recover=recover, limit=limit, retention=retention)
        for _ in range(1_000):
            reports.append((via or self.transport).reap(request))
            if not reports[-1].more:
                return reports
        raise Broken("reap asked for more passes without end")

    def job(self, job_id: str) -> JobRecord:
        """The record of a job that must be there."""
        record = self.transport.get_jobs([job_id])[0]
        if record is None:
            raise Broken(f"job {job_id} has no record")
        return record

    def state(self, job_id: str) -> JobState:
        """The state of a job that must be there."""
        return self.job(job_id).state

    def expect_state(self, job_id: str, state: JobState) -> JobRecord:
        """Insist on a job's state, which an outbox may deliver a little later."""
        self.until(lambda: self.state(job_id) is state, f"state {state} of {job_id}")
        record = self.job(job_id)
        equal(record.state, state, f"state of {job_id}")
        return record

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Insist on the condition: now where settlements are atomic, else once the outbox is empty."""
        if condition():
            return
        end = time.monotonic() + (0.0 if self.atomic else OUTBOX_TIMEOUT)
        self.reap(recover=False)
        while not condition():
            if time.monotonic() >= end:
                raise Broken(f"expected {what}")
            time.sleep(0.02)
            self.reap(recover=False)

    def stats(self, queue: str = "q") -> QueueStats:
        """What is counted for a queue; all zero when the transport does not list it."""
        for entry in self.transport.stats([queue]):
            if entry.queue == queue:
                return entry
        return QueueStats(queue=queue)

    def dead_ids(self, queue: str | None = None) -> list[str]:
        """Ids of the dead letters, oldest first."""
        return [letter.id for letter in self.transport.list_dead(queue).letters]

    # -- threads

    def together(self, *functions: Callable[[], R]) -> list[R]:
        """Run functions on threads of their own, started at the same moment; their results in order."""
        barrier = threading.Barrier(len(functions))
        results: dict[int, R] = {}
        errors: list[BaseException] = []

        def call(index: int, function: Callable[[], R]) -> None:
            try:
                barrier.wait(JOIN_TIMEOUT)
                results[index] = function()
            # Whatever a thread met is raised again on the scenario's own thread.
            except BaseException as error:  # noqa: BLE001
                errors.append(error)

        threads = [
            threading.Thread(target=call, args=(index, function), daemon=True)
            for index, function in enumerate(functions)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(JOIN_TIMEOUT)
        if errors:
            raise errors[0]
        check(len(results) == len(functions), f"concurrent calls did not end in {JOIN_TIMEOUT} s")
        return [results[index] for index in range(len(functions))]


def boom(reason: str = "exception", message: str = "boom") -> ErrorInfo:
    """An error to settle with."""
    return ErrorInfo(type="ValueError", message=message, traceback="Traceback …", reason=reason)


def ids_of(records: Sequence[JobRecord | Delivery]) -> list[str]:
    """The ids of records or deliveries, in their order."""
    return [record.id for record in records]
