"""What the worker tells event sinks. Callers ask `enabled` first, so that silence costs nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taskmq.states import JobState
from taskmq.transport.types import Ack, Bury, Defer, Park, Retry, Yield

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskmq.events import EventBus
    from taskmq.transport.types import Delivery, Ended, Settlement
    from taskmq.workflow.telling import RunTeller
    from taskmq_worker.reservation import Reservation

RUN_TASK = "taskmq.workflow"
"""What the record of a run has as its task."""
_ENDS = {
    JobState.SUCCEEDED: "task.succeeded",
    JobState.FAILED: "task.failed",
    JobState.REVOKED: "task.revoked",
    JobState.EXPIRED: "task.dropped",
}


class Reports:
    """Builds the worker's events."""

    def __init__(
        self, events: EventBus, worker: str, runs: Callable[[], RunTeller] | None = None
    ) -> None:
        self._events = events
        self._worker = worker
        self._runs = runs

    @property
    def enabled(self) -> bool:
        """Whether anybody listens."""
        return self._events.enabled

    def started(self, delivery: Delivery) -> None:
        """The body is about to run."""
        self._tell("task.started", delivery, deliveries=delivery.deliveries)

    def settled(self, reservation: Reservation, settlement: Settlement) -> None:
        """The transport has confirmed what became of a delivery."""
        delivery = reservation.delivery
        data: dict[str, Any] = {}
        if reservation.duration is not None:
            data["duration"] = reservation.duration
        if isinstance(settlement, Ack):
            kind = _ENDS.get(settlement.state)
            if kind is None:
                return
            if settlement.error is not None:
                data |= _error(settlement.error)
        elif isinstance(settlement, Bury):
            kind = "task.failed"
            data |= _error(settlement.error)
        elif isinstance(settlement, Retry):
            kind = "task.retrying"
            data["delay"] = settlement.delay
            if settlement.error is not None:
                data |= _error(settlement.error)
        elif isinstance(settlement, Defer):
            kind = "task.deferred"
            data |= {"delay": settlement.delay, "reason": settlement.reason}
        elif isinstance(settlement, Yield):
            kind = "task.yielded"
            data["delay"] = settlement.delay
        elif isinstance(settlement, Park):
            kind = "task.parked"
        else:
            kind = "task.released"
            data["counted"] = settlement.counted
        self._tell(kind, delivery, **data)
        if delivery.step is not None and self._runs is not None:
            if isinstance(settlement, Bury):
                self._runs().settled(delivery, JobState.FAILED, self._worker)
            elif isinstance(settlement, Ack) and settlement.state.is_final:
                self._runs().settled(delivery, settlement.state, self._worker)

    def ended(self, job: Ended) -> None:
        """Maintenance has ended a job that no worker settled."""
        if job.task == RUN_TASK and self._runs is not None:
            self._runs().ended(job, self._worker)
            return
        kind = _ENDS.get(job.state, "task.failed")
        self._events.emit(
            kind, job=job.id, task=job.task, queue=job.queue, worker=self._worker, reason=job.reason
        )

    def transport_error(self, what: str, error: Exception) -> None:
        """A call to the transport failed."""
        self._events.emit("transport.error", worker=self._worker, call=what, error=str(error))

    def worker(self, what: str, **data: Any) -> None:
        """Something about the worker itself."""
        self._events.emit(f"worker.{what}", worker=self._worker, **data)

    def _tell(self, kind: str, delivery: Delivery, **data: Any) -> None:
        self._events.emit(
            kind,
            job=delivery.id,
            task=delivery.task,
            queue=delivery.queue,
            attempt=delivery.attempt,
            worker=self._worker,
            **data,
        )


def _error(error: Any) -> dict[str, Any]:
    return {"error": error.type, "message": error.message[:500], "reason": error.reason}
