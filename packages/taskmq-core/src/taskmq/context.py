"""The context of one attempt: what a task can know of its job and ask of its worker."""

from __future__ import annotations

import logging
import socket
from contextlib import suppress
from contextvars import ContextVar
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from taskmq._internal import checks
from taskmq.clock import SYSTEM_CLOCK
from taskmq.errors import Cancelled, EncodeError, TaskError, TransportError, TransportUnavailable
from taskmq.meta import add_hook_error, decode_meta, encode_meta
from taskmq.policy import positive_seconds
from taskmq.retry import RetryRequest
from taskmq.states import JobState
from taskmq.transport.contract import completion_token
from taskmq.transport.types import Ack, ErrorInfo, Expect, Payload, Settlement

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from taskmq.app import App
    from taskmq.handle import TaskHandle
    from taskmq.protocol.envelope import Envelope
    from taskmq.task import Task
    from taskmq.transport.types import Delivery, Message


class AttemptControl:
    """What a worker and an attempt say to each other while it runs; a worker's pools subclass it.

    The worker sets the flags, from any thread; the attempt reads them.
    """

    cancelled: bool = False
    """The job was revoked."""
    lost: bool = False
    """The lease was lost: nothing that this attempt still says counts."""
    stopping: bool = False
    """The worker stops, and hands back what does not end in time."""
    timed_out: bool = False
    """The worker found that its time is over, though its own clock may not say so yet."""
    waits_block_a_slot: bool = True
    """Whether waiting for another job in the attempt can keep that job from ever running."""

    def heartbeat(self) -> None:
        """Prolong the lease now. The keeper does so by itself; nothing to do here."""

    def publish_now(self, messages: Sequence[Message]) -> None:
        """Enqueue messages at once, whatever becomes of this attempt."""
        raise TaskError("this run has no worker: publish without now=True")


class Parked(msgspec.Struct, frozen=True):
    """Returned by a task that goes on outside; made by `ctx.park()`."""

    timeout: float | None = None


class Directive(msgspec.Struct, frozen=True):
    """Returned by taskmq's own tasks: what to say of the delivery instead of a result."""

    settlement: Settlement
    state: JobState

    @classmethod
    def succeeded(cls, context: TaskContext, result: Payload | None) -> Directive:
        """End with a result that is encoded already."""
        return cls(Ack(receipt=context.receipt, result=result), JobState.SUCCEEDED)

    @classmethod
    def revoked(cls, context: TaskContext) -> Directive:
        """End as cancelled."""
        error = ErrorInfo(reason="revoked")
        ack = Ack(receipt=context.receipt, state=JobState.REVOKED, error=error)
        return cls(ack, JobState.REVOKED)


class Become(msgspec.Struct, frozen=True):
    """Returned by a task that turns into a run of a workflow; made by `ctx.become()`."""

    workflow: str
    params: dict[str, Any]


class TaskContext:
    """One attempt of one job, as its task sees it: `self.request`, `current_task()`, hooks' `ctx`.

    Set attributes of your own freely; they live as long as the attempt.
    """

    if TYPE_CHECKING:
        # Attributes of users' own: `ctx.tenant = …`.
        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: Any) -> None: ...

    def __init__(
        self,
        app: App,
        task: Task[..., Any],
        delivery: Delivery,
        envelope: Envelope,
        control: AttemptControl,
        worker: str = "",
    ) -> None:
        self.app = app
        self.task = task
        self.worker = worker
        self.args: tuple[Any, ...] = ()
        """The positional arguments, converted to the annotated types once the attempt has started."""
        self.kwargs: dict[str, Any] = {}
        """The keyword arguments, likewise."""
        self.deadline: float | None = None
        """When the timeout is over, in epoch seconds by this machine's clock; None without one."""
        self._delivery = delivery
        self._envelope = envelope
        self._control = control
        self._deadline_at: float | None = None
        self._meta: dict[str, Any] | None = None
        self._meta_unsaved = False
        self._published: list[Message] = []
        self._joined: list[Expect] = []
        self.generation = 1
        """Of a step: rises when one of its dependencies has run again."""

    if TYPE_CHECKING:
        # Attributes of the user's own, of any type.
        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: Any) -> None: ...

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self._delivery.attempt

    @property
    def completion_token(self) -> str:
        """What `app.complete` and `app.fail` need to end this job from outside."""
        return completion_token(self._delivery.id, self._delivery.receipt)

    @property
    def deliveries(self) -> int:
        """How often this attempt has been delivered, this time included."""
        return self._delivery.deliveries

    @property
    def headers(self) -> Mapping[str, Any]:
        """The headers given at the call."""
        return self._envelope.headers or {}

    @property
    def holds_a_slot(self) -> bool:
        """Whether waiting for another job here could keep that job from running."""
        return self._control.waits_block_a_slot

    @property
    def hostname(self) -> str:
        """The name of the machine that runs the attempt."""
        return _hostname()

    @property
    def id(self) -> str:
        """The job's id."""
        return self._delivery.id

    @property
    def log(self) -> TaskLogger:
        """A logger that adds the job's id, task and attempt: `ctx.log.info("sent", to=address)`."""
        return TaskLogger(self)

    @property
    def meta(self) -> Mapping[str, Any]:
        """What `update_meta` has stored so far, by earlier attempts too."""
        return self._load_meta()

    @property
    def priority(self) -> int:
        """The job's priority."""
        return self._delivery.priority

    @property
    def queue(self) -> str:
        """The queue that the job came from."""
        return self._delivery.queue

    @property
    def receipt(self) -> str:
        """The receipt of this delivery."""
        return self._delivery.receipt

    @property
    def reserved_at(self) -> float:
        """When this delivery was handed over, by the transport's clock."""
        return self._delivery.reserved_at

    @property
    def run(self) -> str | None:
        """The id of the run that the job is a step of; None outside a run."""
        return self._delivery.run

    @property
    def series(self) -> int:
        """How often the job was begun anew (replay, rerun), from 1."""
        return self._delivery.series

    @property
    def step(self) -> str | None:
        """The name of the step; None outside a run."""
        return self._delivery.step

    @property
    def retries(self) -> int:
        """How many attempts have failed before this one."""
        return self._delivery.attempt - 1

    def add_to_join(
        self, join: str, task: Task[..., Any] | str, /, *args: Any, **kwargs: Any
    ) -> TaskHandle[Any]:
        """Let a join wait for one more job, whose result comes after those it was declared with.

        The join has to be declared with `open=True`, and must depend on this step, so that it can't have
        started. The job is sent with the settlement of this attempt, as with `publish`.

        Args:
            join: The name of the join's step.
            task: A task, or the name of one.
            args: Arguments of the task.
            kwargs: Arguments of the task, and options of `apply_async`.
        """
        from taskmq.workflow.joining import joined

        message, handle = self.app.child_message(self, task, args, kwargs)
        message, expect = joined(self, self._envelope, join, message, len(self._joined))
        self._published.append(message)
        self._joined.append(expect)
        return self.app.handle(message.id) if handle.id != message.id else handle

    def become(self, workflow: str, params: Mapping[str, Any] | None = None) -> Become:
        """Turn this job into a run of a workflow: `return ctx.become("other", {"p": 1})`.

        The job is WAITING while that goes on, holds no slot, and ends as the run does.
        """
        self.app.find_workflow(workflow)
        return Become(workflow, dict(params or {}))

    def check_cancelled(self) -> None:
        """Return at once unless the attempt should end.

        Raises:
            Cancelled: The job was revoked, the worker stops, the lease was lost, or time is over.
        """
        control = self._control
        if control.lost:
            raise Cancelled("lost")
        if control.cancelled:
            raise Cancelled("revoked")
        if control.stopping:
            raise Cancelled("stopping")
        deadline = self._deadline_at
        if control.timed_out or (deadline is not None and SYSTEM_CLOCK.monotonic() >= deadline):
            raise Cancelled("timed out")

    def heartbeat(self) -> None:
        """Prolong the lease now; workers do so by themselves as long as they live."""
        self._control.heartbeat()

    def park(self, timeout: float | None = None) -> Parked:
        """End the attempt and leave the job WAITING for `app.complete`: `return ctx.park(600)`."""
        return Parked(None if timeout is None else positive_seconds("park timeout", timeout))

    def publish(
        self, task: Task[..., Any] | str, /, *args: Any, now: bool = False, **kwargs: Any
    ) -> TaskHandle[Any]:
        """Submit a job together with this attempt's outcome.

        It is sent with the settlement in one atomic step: a lost, failed or retried attempt submits
        nothing, and only a success or a park does. Options of `apply_async` may stand among the
        keyword arguments, as in `Task.submit`; without `priority=` it gets this job's.

        Args:
            task: A task, or the name of one.
            args: Arguments of the task.
            now: Submit at once instead, whatever becomes of this attempt.
            kwargs: Arguments of the task, and options of `apply_async`.
        """
        message, handle = self.app.child_message(self, task, args, kwargs)
        if now:
            self._control.publish_now([message])
        else:
            self._published.append(message)
        return handle

    def remaining(self) -> float | None:
        """Seconds until the timeout, never negative; None without one."""
        if self._deadline_at is None:
            return None
        return max(0.0, self._deadline_at - SYSTEM_CLOCK.monotonic())

    def retry(
        self,
        *,
        delay: float | None = None,
        countdown: float | None = None,
        exc: BaseException | None = None,
        reason: str = "",
        max_retries: int | None = None,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> RetryRequest:
        """Make the exception that asks for another attempt: `raise ctx.retry(delay=30)`.

        Args:
            delay: Seconds until then, neither jittered nor capped; None takes the policy's delay.
            countdown: Another name for `delay`.
            exc: What the job fails with when no attempt is left.
            reason: Why, for people.
            max_retries: At most this many attempts after the first, instead of the policy's limit.
            args: Other positional arguments for the next attempt; None keeps them.
            kwargs: Other keyword arguments, likewise. What a step gets from others is filled in anew.
        """
        if delay is not None and countdown is not None:
            raise TaskError("retry takes delay or countdown, which mean the same, not both")
        return RetryRequest(
            delay=countdown if delay is None else delay,
            exc=exc,
            reason=reason,
            max_retries=max_retries,
            args=args,
            kwargs=kwargs,
        )

    def spend(self, amount: float, **labels: Any) -> None:
        """Note a cost against the run's `Budget(max_cost=)`; labels are kept in its history.

        Outside a run with a budget nothing happens.

        Raises:
            BudgetExceeded: The budget is used up; the amount counts all the same, and the run fails.
        """
        amount = checks.number("amount", amount)
        if self._envelope.inputs is None:
            return
        from taskmq.workflow.ledger import spend

        spend(self, self._envelope.inputs, amount, labels)

    def update_meta(self, **values: Any) -> None:
        """Store progress where `handle.info.meta` shows it at once; later values replace earlier.

        While the backend is away the values are kept and go with the settlement.

        Raises:
            EncodeError: A value is none that MessagePack carries.
        """
        meta = self._load_meta()
        data = encode_meta({**meta, **values})
        meta.update(values)
        self._meta_unsaved = True
        if not self._delivery.receipt:
            return
        try:
            held = self.app.transport.update_meta(self._delivery.receipt, data)
        except TransportUnavailable:
            return
        if held:
            self._meta_unsaved = False

    def _load_meta(self) -> dict[str, Any]:
        if self._meta is None:
            self._meta = decode_meta(self._delivery.meta)
        return self._meta

    @property
    def joined(self) -> Sequence[Expect]:
        """By how much joins wait for more, to go with the settlement."""
        return self._joined

    @property
    def published(self) -> Sequence[Message]:
        """What `publish` has gathered to go with the settlement."""
        return self._published

    def add_hook_error(self, hook: str, type: str, message: str) -> None:
        """Note in the job's meta that a hook raised, as far as the record can still be reached."""
        meta = self._load_meta()
        add_hook_error(meta, hook=hook, type=type, message=message)
        self._meta_unsaved = True
        with suppress(TransportError, EncodeError):
            if self.app.transport.update_meta(self._delivery.receipt, encode_meta(meta)):
                self._meta_unsaved = False

    def unsaved_meta(self) -> bytes | None:
        """The meta that has to go with the settlement, or None when all is stored."""
        return encode_meta(self._load_meta()) if self._meta_unsaved else None

    def start_timeout(self, seconds: float | None) -> None:
        """Let the timeout run from now."""
        if seconds is not None:
            self.deadline = SYSTEM_CLOCK.time() + seconds
            self._deadline_at = SYSTEM_CLOCK.monotonic() + seconds

    def nested(
        self, task: Task[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> TaskContext:
        """The context of another task that this one calls plainly: the same job, other arguments."""
        inner = TaskContext(
            self.app, task, self._delivery, self._envelope, self._control, self.worker
        )
        inner.args, inner.kwargs = args, kwargs
        inner.deadline, inner._deadline_at = self.deadline, self._deadline_at
        inner._meta, inner._published = self._load_meta(), self._published
        inner._joined, inner.generation = self._joined, self.generation
        return inner

    def __repr__(self) -> str:
        return f"<TaskContext {self.task.name} {self.id} attempt {self.attempt}>"


class TaskLogger:
    """Logs to `taskmq.task`, with keyword arguments as fields of the record (`record.taskmq`)."""

    def __init__(self, context: TaskContext) -> None:
        self._context = context

    def critical(self, message: str, *args: object, **fields: Any) -> None:
        """Log at CRITICAL."""
        self._log(logging.CRITICAL, message, args, fields)

    def debug(self, message: str, *args: object, **fields: Any) -> None:
        """Log at DEBUG."""
        self._log(logging.DEBUG, message, args, fields)

    def error(self, message: str, *args: object, **fields: Any) -> None:
        """Log at ERROR."""
        self._log(logging.ERROR, message, args, fields)

    def exception(self, message: str, *args: object, **fields: Any) -> None:
        """Log at ERROR with the exception that is being handled."""
        self._log(logging.ERROR, message, args, {"exc_info": True, **fields})

    def info(self, message: str, *args: object, **fields: Any) -> None:
        """Log at INFO."""
        self._log(logging.INFO, message, args, fields)

    def warning(self, message: str, *args: object, **fields: Any) -> None:
        """Log at WARNING."""
        self._log(logging.WARNING, message, args, fields)

    def _log(
        self, level: int, message: str, args: tuple[object, ...], fields: dict[str, Any]
    ) -> None:
        if not _logger.isEnabledFor(level):
            return
        exc_info = fields.pop("exc_info", None)
        context = self._context
        known = {"job": context.id, "task": context.task.name, "attempt": context.attempt}
        # A % in a value must not be read as a place for an argument.
        shown = " ".join(f"{name}={value!r}" for name, value in {**fields, **known}.items())
        text = message % args if args else message
        _logger.log(
            level,
            "%s %s",
            text,
            shown,
            exc_info=exc_info,
            extra={"taskmq": {**known, **fields}},
            stacklevel=3,
        )


def current_task() -> TaskContext:
    """The context of the attempt that runs here, anywhere in its call stack.

    Raises:
        TaskError: No task runs here.
    """
    context = current.get()
    if context is None:
        raise TaskError("no task runs here: current_task() works during a run and its hooks only")
    return context


def option_seconds(name: str, value: object) -> float:
    """A duration given at a call: seconds or a timedelta, zero allowed."""
    seconds: object = getattr(value, "total_seconds", None)
    return float(checks.number(name, seconds() if callable(seconds) else value))


@lru_cache(maxsize=1)
def _hostname() -> str:
    return socket.gethostname()


_logger = logging.getLogger("taskmq.task")

current: ContextVar[TaskContext | None] = ContextVar("taskmq_current_task", default=None)
"""The context of the attempt that runs in this thread or coroutine."""
