"""Eager mode: every job runs at its call, in the caller's process, as a worker would run it.

The jobs go through a private memory transport: arguments are encoded and decoded, states, retries,
keys, held messages and follow-ups are the transport's. What would be due later is due at once: the
private clock skips the wait.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from taskmq.clock import SYSTEM_CLOCK, Clock
from taskmq.context import AttemptControl
from taskmq.execution import Attempt, Outcome, Unrunnable, finish, prepare, run, run_async
from taskmq.states import JobState
from taskmq.transport.memory import MemoryTransport
from taskmq.transport.types import (
    Ack,
    Bury,
    Delivery,
    Enqueued,
    ErrorInfo,
    Message,
    Park,
    QueueShare,
    ReserveRequest,
    Retry,
    Settlement,
    SettleResult,
)

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from taskmq.app import App

_WORKER = "eager"
_LEASE = 3_155_760_000.0


class SkippingClock(Clock):
    """The system's clock, moved forward by every wait that was skipped."""

    def __init__(self) -> None:
        self._skipped = 0.0
        self._lock = threading.Lock()

    def monotonic(self) -> float:
        """Seconds that never run backwards."""
        return SYSTEM_CLOCK.monotonic() + self._skipped

    def skip(self, seconds: float) -> None:
        """Behave as if this time had passed."""
        with self._lock:
            self._skipped += seconds

    def time(self) -> float:
        """UTC seconds since the epoch, plus what was skipped."""
        return SYSTEM_CLOCK.time() + self._skipped


class EagerRunner:
    """Takes the place of transport and worker in an app with `Config(eager=True)`."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._queues: set[str] = set()
        self._loop = _Loop()
        self.clock = SkippingClock()
        self.transport = MemoryTransport(clock=self.clock)

    def close(self) -> None:
        """End the event loop of `async def` tasks, if there was any."""
        self._loop.close()

    def run_jobs(self, messages: Sequence[Message], stored: Sequence[Enqueued]) -> None:
        """Run until these jobs have ended, or wait for something outside."""
        self._queues.update(message.queue for message in messages)
        for each in stored:
            while not self._rests(each.id) and self._step():
                pass

    def run_until_idle(self) -> None:
        """Run everything that can run, what is due later included."""
        while self._step():
            pass

    def unfinished(self) -> list[str]:
        """The ids of jobs that have not ended."""
        page = self.transport.list_jobs(limit=1_000_000)
        return [job.id for job in page.jobs if not job.state.is_final]

    def _rests(self, job_id: str) -> bool:
        record = self.transport.get_jobs([job_id])[0]
        return record is None or record.state.is_final or record.state is JobState.WAITING

    def _step(self) -> bool:
        """Run one job; False when there is none."""
        queues = tuple(QueueShare(name) for name in sorted(self._queues))
        reply = self.transport.reserve(
            ReserveRequest(worker=_WORKER, queues=queues, limit=1, lease=_LEASE)
        )
        for delivery in reply.deliveries:
            self._run(delivery)
        if reply.deliveries or reply.more:
            return True
        if reply.next_due_in is None:
            return False
        self.clock.skip(max(reply.next_due_in, 0.0) + 0.001)
        return True

    def _run(self, delivery: Delivery) -> None:
        control = _EagerControl(self._app, self.transport, delivery)
        attempt = prepare(self._app, delivery, worker=_WORKER, control=control)
        if isinstance(attempt, Unrunnable):
            self._settle(delivery, attempt.settlement)
            return
        self._tell("task.started", delivery, deliveries=delivery.deliveries)
        if (early := attempt.receipt_ack) is not None:
            self._settle(delivery, early)
        outcome = self._loop.run(run_async(attempt)) if attempt.task.is_async else run(attempt)
        result = self._settle(delivery, self._shelve(attempt, outcome))
        if outcome.settlement.follow_ups is not None:
            self._queues.update(each.queue for each in outcome.settlement.follow_ups.enqueue)
        finish(attempt, outcome, result)

    def _settle(self, delivery: Delivery, settlement: Settlement) -> SettleResult:
        result = self.transport.settle(_WORKER, [settlement]).results[0]
        if result.status in ("ok", "already"):
            self._report(delivery, settlement)
        elif result.status == "refused":
            error = ErrorInfo(type="NotStorable", message=result.reason, reason="not storable")
            self.transport.settle(_WORKER, [Bury(receipt=settlement.receipt, error=error)])
        return result

    def _shelve(self, attempt: Attempt, outcome: Outcome) -> Settlement:
        """Put the result into the separate store, as a worker does."""
        settlement, store = outcome.settlement, self._app.results
        if store is None or not isinstance(settlement, Ack) or settlement.result is None:
            return settlement
        delivery = attempt.delivery
        ttl = self._app.config.result_ttl or 0.0
        store.put([(delivery.id, delivery.receipt, settlement.result)], ttl)
        return replace(settlement, result=None, result_stored=True)

    def _report(self, delivery: Delivery, settlement: Settlement) -> None:
        """The same events as a worker's."""
        data: dict[str, Any] = {}
        error: ErrorInfo | None = None
        if isinstance(settlement, Ack):
            kind = _ENDS.get(settlement.state, "")
            error = settlement.error
        elif isinstance(settlement, Bury):
            kind, error = "task.failed", settlement.error
        elif isinstance(settlement, Retry):
            kind, error, data["delay"] = "task.retrying", settlement.error, settlement.delay
        else:
            kind = "task.parked" if isinstance(settlement, Park) else "task.released"
        if error is not None:
            data |= {"error": error.type, "message": error.message[:500], "reason": error.reason}
        if kind:
            self._tell(kind, delivery, **data)
            if delivery.step is not None and isinstance(settlement, (Ack, Bury)):
                state = JobState.FAILED if isinstance(settlement, Bury) else settlement.state
                if self._app.events.enabled and state.is_final:
                    self._app.run_teller.settled(delivery, state, _WORKER)

    def _tell(self, kind: str, delivery: Delivery, **data: Any) -> None:
        events = self._app.events
        if events.enabled:
            events.emit(
                kind,
                job=delivery.id,
                task=delivery.task,
                queue=delivery.queue,
                attempt=delivery.attempt,
                worker=_WORKER,
                **data,
            )


_ENDS = {
    JobState.SUCCEEDED: "task.succeeded",
    JobState.FAILED: "task.failed",
    JobState.REVOKED: "task.revoked",
    JobState.EXPIRED: "task.dropped",
}


class _EagerControl(AttemptControl):
    waits_block_a_slot = False

    def __init__(self, app: App, transport: MemoryTransport, delivery: Delivery) -> None:
        self._app = app
        self._transport = transport
        self._id = delivery.id

    @property
    # A look at the store takes the place of the flag that a worker's keeper would set.
    def cancelled(self) -> bool:  # type: ignore[override]
        record = self._transport.get_jobs([self._id])[0]
        return record is not None and record.cancel_requested

    def publish_now(self, messages: Sequence[Message]) -> None:
        self._app.enqueue(messages)


class _Loop:
    """One event loop for all `async def` tasks, on a thread of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def close(self) -> None:
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(timeout=5)

    def run(self, coroutine: Coroutine[Any, Any, Outcome]) -> Outcome:
        """Run it to its end.

        An async task that calls `delay` of another blocks the loop until that has run, so the other
        gets a loop of its own.
        """
        loop = self._start()
        if threading.current_thread() is self._thread:
            inner = _Loop()
            try:
                return inner.run(coroutine)
            finally:
                inner.close()
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result()

    def _start(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_run_loop, args=(self._loop,), name="taskmq-eager", daemon=True
                )
                self._thread.start()
            return self._loop


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
