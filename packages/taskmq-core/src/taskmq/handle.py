"""Handles: what a producer holds of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import msgspec

from taskmq._internal import checks
from taskmq.clock import SYSTEM_CLOCK
from taskmq.context import current
from taskmq.errors import JobNotFound, RemoteError, ResultTimeout, TaskError
from taskmq.meta import decode_meta
from taskmq.states import JobState
from taskmq.transport.types import ErrorInfo, JobRecord

if TYPE_CHECKING:
    from taskmq.app import App
    from taskmq.protocol.convert import SignatureModel

R_co = TypeVar("R_co", covariant=True)

_SLICE = 30.0
"""How long one call to the transport waits at most, in seconds."""


class JobInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a job, at one moment. Times are epoch seconds by the backend's clock."""

    id: str
    task: str
    queue: str
    state: JobState
    priority: int
    attempt: int
    """The current or last attempt, from 1."""
    deliveries: int
    """How often this attempt was handed to a worker."""
    enqueued_at: float
    due_at: float | None
    started_at: float | None
    finished_at: float | None
    worker: str | None
    cancelling: bool
    """It was revoked, and its worker has not ended it yet."""
    dead: bool
    """It is a dead letter: it can be replayed."""
    error: ErrorInfo | None
    """The last attempt's error."""
    reason: str
    meta: dict[str, Any]
    """What the task reported by `ctx.update_meta`, and `hook_error`."""
    key: str | None


class TaskHandle(Generic[R_co]):
    """A job: its id, its state, its result, and the way to revoke it."""

    __slots__ = ("_app", "_signature", "id")

    def __init__(self, app: App, id: str, signature: SignatureModel | None = None) -> None:
        self._app = app
        self._signature = signature
        self.id = id

    @property
    def info(self) -> JobInfo:
        """All that is known of the job now.

        Raises:
            JobNotFound: There is no record of it (any more).
        """
        return _info(self._record())

    @property
    def state(self) -> JobState:
        """The job's state now.

        Raises:
            JobNotFound: There is no record of it (any more).
        """
        return self._record().state

    async def aget(self, timeout: float | None = None) -> R_co:
        """Like `get`, without blocking the event loop."""
        record = await self._await_end(timeout)
        if record is None:
            raise self._timeout(timeout)
        # The separate result store may have to be asked, which can block.
        if record.result_stored:
            import asyncio

            return await asyncio.to_thread(self._outcome, record)
        return self._outcome(record)

    async def await_end(self, timeout: float | None = None) -> bool:
        """Like `wait`, without blocking the event loop."""
        return await self._await_end(timeout) is not None

    def get(self, timeout: float | None = None, *, inside_task: bool = False) -> R_co:
        """Wait for the result.

        Args:
            timeout: The longest wait, in seconds; None waits for ever.
            inside_task: Allow waiting inside a task. It holds a slot of the worker meanwhile: when all
                slots wait for jobs that need one, nothing moves. A workflow needs no such waiting.

        Raises:
            RemoteError: The job ended other than by success; it has the remote traceback as text.
            ResultTimeout: It has not ended in time.
            TaskError: Called inside a task without `inside_task=True`.
        """
        record = self._wait(timeout, inside_task=inside_task)
        if record is None:
            raise self._timeout(timeout)
        return self._outcome(record)

    def revoke(self, terminate: bool = False) -> bool:
        """Cancel the job: it never starts, or its attempt is asked to end; True unless it had ended.

        A running attempt hears of it at its next `ctx.check_cancelled()`, and in the pool `asyncio` its
        coroutine is cancelled. Until the body has returned, `info.cancelling` is True.

        Args:
            terminate: Also end a running body by force. The pool `processes` kills the child; a
                thread can't be killed: there the attempt is only asked, and the worker warns.

        Raises:
            JobNotFound: There is no record of it (any more).
        """
        status = self._app.transport.revoke([self.id], terminate)[0].status
        if status == "unknown":
            raise JobNotFound(self.id)
        return status in ("revoked", "cancelling")

    def wait(self, timeout: float | None = None, *, inside_task: bool = False) -> bool:
        """Wait for the job's end, however it ends; False when it has not come in time.

        Raises:
            TaskError: Called inside a task without `inside_task=True` (see `get`).
        """
        return self._wait(timeout, inside_task=inside_task) is not None

    async def _await_end(self, timeout: float | None) -> JobRecord | None:
        if timeout is not None:
            checks.number("timeout", timeout)
        record = await self._app.waits.wait(self.id, timeout)
        return self._known(record) if record is None or record.state.is_final else None

    def _known(self, record: JobRecord | None) -> JobRecord:
        if record is None:
            raise JobNotFound(self.id)
        return record

    def _outcome(self, record: JobRecord) -> R_co:
        if record.state is not JobState.SUCCEEDED:
            raise _remote_error(record)
        payload = record.result
        if record.result_stored:
            payload = self._app.read_result(record)
        if payload is None:
            return cast("R_co", None)
        annotation = self._signature.returns if self._signature else Any
        return cast("R_co", self._app.codecs.decode_value(payload, annotation))

    def _record(self) -> JobRecord:
        return self._known(self._app.transport.get_jobs([self.id])[0])

    def _timeout(self, timeout: float | None) -> ResultTimeout:
        return ResultTimeout(
            f"job {self.id} has not ended within {timeout} s; it goes on all the same"
        )

    def _wait(self, timeout: float | None, *, inside_task: bool) -> JobRecord | None:
        """The record once the job has ended, None when time was over."""
        if timeout is not None:
            checks.number("timeout", timeout)
        transport = self._app.transport
        record = self._record()
        if record.state.is_final:
            return record
        if not inside_task:
            self._refuse_inside_task()
        end = None if timeout is None else SYSTEM_CLOCK.monotonic() + timeout
        while True:
            left = _SLICE if end is None else min(end - SYSTEM_CLOCK.monotonic(), _SLICE)
            if left <= 0:
                return None
            record = self._known(transport.wait_jobs([self.id], left)[0])
            if record.state.is_final:
                return record

    def _refuse_inside_task(self) -> None:
        context = current.get()
        if context is not None and context.holds_a_slot:
            raise TaskError(
                f"task {context.task.name!r} waits for job {self.id} while it holds a slot of its "
                f"worker: when all slots wait, nothing moves. Submit a workflow, or pass "
                f"inside_task=True if a slot for the other job is certain"
            )

    def __repr__(self) -> str:
        return f"<TaskHandle {self.id}>"


def _info(record: JobRecord) -> JobInfo:
    return JobInfo(
        id=record.id,
        task=record.task,
        queue=record.queue,
        state=record.state,
        priority=record.priority,
        attempt=record.attempt,
        deliveries=record.deliveries,
        enqueued_at=record.enqueued_at,
        due_at=record.due_at,
        started_at=record.started_at,
        finished_at=record.finished_at,
        worker=record.worker,
        cancelling=record.cancel_requested and not record.state.is_final,
        dead=record.dead,
        error=record.error,
        reason=record.reason,
        meta=decode_meta(record.meta),
        key=record.key,
    )


def _remote_error(record: JobRecord) -> RemoteError:
    error = record.error
    if error is None:
        return RemoteError(record.id, state=record.state.value, reason=record.reason)
    return RemoteError(
        record.id,
        state=record.state.value,
        type=error.type,
        message=error.message,
        traceback=error.traceback,
        reason=error.reason,
    )
