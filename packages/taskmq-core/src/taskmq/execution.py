"""Running one delivery: from its envelope to the settlement, and the hooks around it.

Workers and eager mode both use this. The order is `prepare`, `run` (or `run_async`), the settlement
(the caller's), `finish`. Nothing here raises for what a task, hook or middleware does.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Union

import msgspec

from taskmq.clock import SYSTEM_CLOCK
from taskmq.context import AttemptControl, Become, TaskContext, current
from taskmq.decision import (
    Outcome,
    after_completion,
    after_defect,
    after_failure,
    after_return_value,
    revoked,
)
from taskmq.errors import ConfigError, EncodeError, ProtocolError, TaskError
from taskmq.failures import clean, drop_frames, message_of, type_name
from taskmq.middleware import wrap
from taskmq.protocol.envelope import Envelope, decode_envelope
from taskmq.states import JobState
from taskmq.transport.types import (
    Ack,
    Bury,
    Delivery,
    ErrorInfo,
    FollowUps,
    Settlement,
    SettleResult,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taskmq.app import App
    from taskmq.task import Task

_log = logging.getLogger("taskmq.execution")

__all__ = ["Attempt", "Outcome", "Unrunnable", "finish", "prepare", "run", "run_async"]


class Unrunnable(msgspec.Struct, frozen=True):
    """A delivery that can't be run here. `settlement` is what to say of it.

    For the reason "unknown task" a worker defers instead, and buries only after
    `Config.unknown_task_ttl`.
    """

    settlement: Settlement
    reason: str


class Attempt:
    """One delivery that is about to be run."""

    __slots__ = (
        "_runtime",
        "app",
        "call",
        "context",
        "control",
        "delivery",
        "envelope",
        "hooks_done",
        "started",
        "started_at",
        "task",
        "variables",
    )

    def __init__(
        self,
        app: App,
        delivery: Delivery,
        envelope: Envelope,
        task: Task[..., Any],
        context: TaskContext,
        control: AttemptControl,
    ) -> None:
        self.app = app
        self.delivery = delivery
        self.envelope = envelope
        self.task = task
        self.context = context
        self.control = control
        self.started_at: float | None = None
        """By the monotonic clock, once the attempt has begun."""
        self.started = False
        """Whether hooks or body were entered: only then hooks run at the end."""
        self.hooks_done = False
        self._runtime: float | None = None
        self.call: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        """The arguments of a step, once what it depends on has been filled in."""
        self.variables: contextvars.Context | None = None

    @property
    def ack(self) -> str:
        """The ack mode: of the envelope, or of the task when the producer left it open."""
        return self.envelope.ack or self.task.policy.ack

    @property
    def asks_first(self) -> bool:
        """Whether it is a step that takes something from others, or that an operator may have skipped."""
        if self.envelope.inputs is not None:
            return True
        return self.delivery.series > 1 and self.delivery.step is not None

    @property
    def hard_timeout(self) -> float | None:
        """Seconds after which the worker ends the attempt; None for no limit."""
        limit = self.envelope.hard_timeout
        return self.task.policy.hard_timeout if limit is None else limit

    @property
    def max_attempts(self) -> int:
        """How often the job is tried: what the envelope says, or the task when that left it open."""
        return self.envelope.max_attempts or self.task.policy.max_attempts

    @property
    def receipt_ack(self) -> Ack | None:
        """With `ack="on_receipt"`: the settlement that has to be confirmed before `run`."""
        if self.ack != "on_receipt" or self.delivery.outcome is not None:
            return None
        return Ack(receipt=self.delivery.receipt, state=JobState.RUNNING)

    @property
    def runtime(self) -> float:
        """Seconds that hooks and body took, or have taken so far."""
        if self._runtime is not None:
            return self._runtime
        began = self.started_at
        return 0.0 if began is None else max(0.0, SYSTEM_CLOCK.monotonic() - began)

    def filled_names(self, args: int, kwargs: Mapping[str, Any]) -> set[str | int]:
        """What of the call came from other steps, and will again: names and positions."""
        if self.call is None:
            return set()
        named = {name for name in self.call[1] if name not in kwargs}
        return {*named, *range(args, len(self.call[0]))}

    def stop_clock(self) -> None:
        """The body has ended; what follows does not count as its runtime."""
        self._runtime = self.runtime

    @property
    def timeout(self) -> float | None:
        """Seconds until `ctx.check_cancelled()` raises; None for no limit."""
        limit = self.envelope.timeout
        return self.task.policy.timeout if limit is None else limit


def prepare(
    app: App, delivery: Delivery, *, worker: str = "", control: AttemptControl
) -> Union[Attempt, Unrunnable]:
    """Find out what a delivery asks for."""
    try:
        envelope = decode_envelope(delivery.envelope)
    except ProtocolError as error:
        return _unrunnable(delivery, error, "undecodable")
    task = app.tasks.get(envelope.task) or app.own_task(envelope.task)
    if task is None:
        return _unrunnable(
            delivery,
            TaskError(f"no task {envelope.task!r:.200} is registered here"),
            "unknown task",
        )
    if delivery.cancel_requested:
        return Unrunnable(revoked(delivery).settlement, "revoked")
    context = TaskContext(app, task, delivery, envelope, control, worker)
    return Attempt(app, delivery, envelope, task, context, control)


def run(attempt: Attempt) -> Outcome:
    """Run an attempt on this thread, in a context of its own, and decide what follows."""
    attempt.variables = variables = contextvars.copy_context()
    return variables.run(_run, attempt)


async def run_async(attempt: Attempt) -> Outcome:
    """Run an attempt of an `async def` task on this event loop and decide what follows.

    The caller runs it in an `asyncio.Task` of its own, so that its context variables are its own.
    """
    token = current.set(attempt.context)
    try:
        if (early := _before(attempt)) is not None:
            return early
        if attempt.asks_first:
            import asyncio

            # It asks the backend, which must not hold up the loop.
            if (early := await asyncio.to_thread(_fill, attempt)) is not None:
                return early
        try:
            value = _wrapped(attempt)
            if _is_awaitable(value):
                value = await value
        # A task may raise anything; CancelledError too is how an attempt can end.
        except BaseException as exc:  # noqa: BLE001
            return _after(attempt, _cancellation(attempt, exc), None)
        return _after(attempt, None, value)
    finally:
        # Taken at the end, so that the hooks that follow see what the body has set.
        attempt.variables = contextvars.copy_context()
        current.reset(token)


def finish(attempt: Attempt, outcome: Outcome, status: SettleResult) -> None:
    """Run the hooks that follow a settlement, in the attempt's own context.

    `on_success`, `on_retry` or `on_failure` only when the settlement counted, `after_return` always.
    Needed only for tasks with `has_end_hooks`; harmless for others.
    """
    try:
        if attempt.started and not attempt.hooks_done and attempt.task.has_end_hooks:
            counted = status.status in ("ok", "already")
            variables = attempt.variables or contextvars.copy_context()
            variables.run(_end_hooks, attempt, outcome, counted=counted)
    finally:
        # Nobody will look at it any more, and its frames hold the arguments.
        drop_frames(outcome.exc)


# --- before, between, after -------------------------------------------------------------------


def _run(attempt: Attempt) -> Outcome:
    current.set(attempt.context)
    if (early := _before(attempt)) is not None:
        return early
    if attempt.asks_first and (early := _fill(attempt)) is not None:
        return early
    try:
        value = _wrapped(attempt)
    # A task may raise anything; SystemExit and KeyboardInterrupt too are failures of its attempt.
    except BaseException as exc:  # noqa: BLE001
        return _after(attempt, exc, None)
    outcome = _after(attempt, None, value)
    if attempt.timeout is not None and outcome.exc is None:
        _tell_overrun(attempt, attempt.timeout)
    return outcome


def _before(attempt: Attempt) -> Outcome | None:
    """Start the clocks; an outcome when there is nothing to run."""
    attempt.started_at = SYSTEM_CLOCK.monotonic()
    if attempt.delivery.outcome is not None:
        attempt.started = True
        return _complete(attempt, after_completion(attempt, attempt.delivery.outcome))
    if attempt.control.cancelled:
        return revoked(attempt.delivery)
    attempt.started = True
    attempt.context.start_timeout(attempt.timeout)
    return None


def _fill(attempt: Attempt) -> Outcome | None:
    """Fill in what a step's dependencies give; an outcome when it is not to be run."""
    from taskmq.workflow.attempts import begin

    try:
        early = begin(attempt)
    # What is wrong with the values of other steps is a failure of this one.
    except BaseException as exc:  # noqa: BLE001
        return _after(attempt, exc, None)
    if early is None:
        return None
    # Nothing of the task is run, its hooks neither.
    attempt.hooks_done = True
    return _after(attempt, None, early)


def _wrapped(attempt: Attempt) -> Any:
    middleware = attempt.app.middleware
    if not middleware:
        return _body(attempt)
    return wrap(middleware, attempt.context, partial(_body, attempt))


def _body(attempt: Attempt) -> Any:
    """Convert the arguments, run `before_start`, run the body."""
    task, context, envelope = attempt.task, attempt.context, attempt.envelope
    args, kwargs = attempt.call or attempt.app.codecs.decode_call(
        envelope.body, envelope.content_type
    )
    args, kwargs = task.signature.convert(args, kwargs, types=attempt.app.codecs.types)
    context.args, context.kwargs = args, kwargs
    if task.starts_with_hook:
        task.before_start(context)
        if (inline := task.inline_hooks.get("before_start")) is not None:
            inline(context)
    return task.run(*args, **kwargs)


def _after(attempt: Attempt, exc: BaseException | None, value: Any) -> Outcome:
    """Decide, run the hooks if they may still change the decision, and complete the settlement."""
    attempt.stop_clock()
    try:
        return _decided(attempt, exc, value)
    # What a task raises or returns runs code of its own when it is looked at, and that code too may
    # raise anything: it costs this job, never the worker.
    except BaseException as error:  # noqa: BLE001
        return _complete(attempt, after_defect(attempt, error))


def _decided(attempt: Attempt, exc: BaseException | None, value: Any) -> Outcome:
    if exc is None and _is_awaitable(value):
        exc, value = _unawaited(attempt, value), None
    if isinstance(value, Become):
        from taskmq.workflow.attempts import become

        try:
            value = become(attempt, value)
        # A graph that can't be built fails the attempt, as an exception of the body does.
        except Exception as error:  # noqa: BLE001
            exc, value = error, None
    outcome = after_return_value(attempt, value) if exc is None else after_failure(attempt, exc)
    if attempt.app.config.hook_errors_fatal and attempt.task.has_end_hooks:
        outcome = _fatal_hooks(attempt, outcome)
    return _complete(attempt, outcome)


def _tell_overrun(attempt: Attempt, limit: float) -> None:
    """Warn of a body that never asked whether its time was over: the timeout did nothing."""
    if attempt.runtime > limit:
        _log.warning(
            "job %s (%s) took %.3g s and succeeded, its timeout is %g s: the body has to ask by "
            "ctx.check_cancelled(), or give it a hard_timeout",
            attempt.delivery.id,
            attempt.task.name,
            attempt.runtime,
            limit,
        )


def _complete(attempt: Attempt, outcome: Outcome) -> Outcome:
    """Add what rides on the settlement: meta, runtime, published jobs."""
    context = attempt.context
    changes: dict[str, Any] = {}
    if attempt.started_at is not None:
        changes["started_ago"] = SYSTEM_CLOCK.monotonic() - attempt.started_at
    # A value that was changed after `update_meta` may be none that travels any more.
    with contextlib.suppress(EncodeError):
        if (meta := context.unsaved_meta()) is not None:
            changes["meta"] = meta
    published = context.published
    if published and outcome.state in (JobState.SUCCEEDED, JobState.WAITING):
        changes["follow_ups"] = _with_published(outcome.settlement.follow_ups, context)
    if attempt.delivery.step is not None:
        from taskmq.workflow.attempts import after_attempt

        changes |= after_attempt(attempt, outcome)
    for name, value in changes.items():
        msgspec.structs.force_setattr(outcome.settlement, name, value)
    if outcome.exc is not None and not attempt.task.has_end_hooks:
        # Nobody will look at it any more, and its frames hold the arguments.
        drop_frames(outcome.exc)
    return outcome


def _with_published(known: FollowUps | None, context: TaskContext) -> FollowUps:
    published, joined = tuple(context.published), tuple(context.joined)
    if known is None:
        return FollowUps(enqueue=published, expect=joined)
    return msgspec.structs.replace(
        known, enqueue=known.enqueue + published, expect=known.expect + joined
    )


def _cancellation(attempt: Attempt, exc: BaseException) -> BaseException:
    """What an `asyncio.CancelledError` means: the reason for which the worker cancelled."""
    import asyncio

    if not isinstance(exc, asyncio.CancelledError):
        return exc
    try:
        attempt.context.check_cancelled()
    except TaskError as reason:
        return reason
    return exc


def _is_awaitable(value: object) -> bool:
    # Of the type, as `await` does it: a proxy's __getattr__ answers anything, or raises.
    return hasattr(type(value), "__await__")


def _unawaited(attempt: Attempt, value: Any) -> BaseException:
    if hasattr(value, "close"):
        value.close()
    if attempt.task.is_async:
        return ConfigError(
            f"task {attempt.task.name!r} is async def: this pool can't run it, use pool='asyncio'"
        )
    return TaskError(
        f"task {attempt.task.name!r} or a middleware around it returned an awaitable: declare the task "
        f"async def, and let middleware be async only around such tasks"
    )


def _unrunnable(delivery: Delivery, error: Exception, reason: str) -> Unrunnable:
    info = ErrorInfo(type=type_name(error), message=message_of(error), reason=reason)
    return Unrunnable(Bury(receipt=delivery.receipt, error=info), reason)


# --- hooks ------------------------------------------------------------------------------------


def _end_hooks(attempt: Attempt, outcome: Outcome, *, counted: bool) -> None:
    """Call what follows a settlement."""
    attempt.hooks_done = True
    current.set(attempt.context)
    errors = _outcome_hook(attempt, outcome) if counted else []
    for error in errors + _after_return(attempt, outcome):
        drop_frames(error)


def _outcome_hook(attempt: Attempt, outcome: Outcome) -> list[BaseException]:
    """Call the hook of this outcome; the errors, which are recorded already."""
    context = attempt.context
    if outcome.state is JobState.SUCCEEDED:
        return _call(attempt, "on_success", context, outcome.value, attempt.runtime)
    if outcome.state is JobState.RETRYING and outcome.exc is not None:
        return _call(attempt, "on_retry", context, outcome.exc, outcome.delay or 0.0)
    if outcome.state is JobState.FAILED and outcome.exc is not None:
        return _call(attempt, "on_failure", context, outcome.exc)
    return []


def _after_return(attempt: Attempt, outcome: Outcome) -> list[BaseException]:
    return _call(
        attempt, "after_return", attempt.context, outcome.state, outcome.value, outcome.exc
    )


def _call(attempt: Attempt, hook: str, *args: Any) -> list[BaseException]:
    """Call a hook and the inline one of its name, each guarded."""
    task = attempt.task
    errors: list[BaseException] = []
    for function in (getattr(task, hook), task.inline_hooks.get(hook)):
        if function is None:
            continue
        try:
            function(*args)
        # A hook may raise anything, and must not change the job's fate.
        except BaseException as exc:  # noqa: BLE001
            _record_hook_error(attempt, hook, exc)
            errors.append(exc)
    return errors


def _fatal_hooks(attempt: Attempt, outcome: Outcome) -> Outcome:
    """With `hook_errors_fatal`: run the hooks now; an error after a success fails the attempt."""
    if outcome.state is JobState.WAITING:
        return outcome
    attempt.hooks_done = True
    errors = _outcome_hook(attempt, outcome)
    if errors and outcome.state is JobState.SUCCEEDED:
        outcome = after_failure(attempt, errors[0])
        _outcome_hook(attempt, outcome)
    errors = _after_return(attempt, outcome)
    return (
        after_failure(attempt, errors[0])
        if errors and outcome.state is JobState.SUCCEEDED
        else outcome
    )


def _record_hook_error(attempt: Attempt, hook: str, exc: BaseException) -> None:
    app, delivery = attempt.app, attempt.delivery
    kind, message = clean(type_name(exc)), message_of(exc)
    attempt.context.add_hook_error(hook, kind, message)
    first = message.partition("\n")[0]
    _log.warning("job %s: hook %s raised %s: %s", delivery.id, hook, kind, first[:500])
    _log.debug("the traceback of hook %s, job %s", hook, delivery.id, exc_info=exc)
    app.events.emit(
        "task.hook_error",
        job=delivery.id,
        task=attempt.task.name,
        queue=delivery.queue,
        attempt=delivery.attempt,
        worker=attempt.context.worker,
        hook=hook,
        error=kind,
        message=message,
    )
