"""Tasks: a callable with its policy and hooks, one instance for each app and process."""

from __future__ import annotations

import inspect
import sys
import warnings
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast, overload

from taskmq.context import AttemptControl, TaskContext, current
from taskmq.errors import ConfigError, TaskError, TaskmqWarning
from taskmq.protocol.envelope import VERSION, Envelope
from taskmq.transport.types import Delivery

if sys.version_info >= (3, 13):
    from typing import ParamSpec
    from typing import TypeVar as DefaultTypeVar
else:
    from typing_extensions import ParamSpec
    from typing_extensions import TypeVar as DefaultTypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
    from datetime import datetime, timedelta

    from taskmq.app import App
    from taskmq.handle import TaskHandle
    from taskmq.policy import Ack, Completion, RateScope, TaskPolicy
    from taskmq.protocol.convert import SignatureModel
    from taskmq.retry import Retry, RetryRequest
    from taskmq.states import JobState
    from taskmq.submit import Caller
    from taskmq.transport.types import KeyScope

P = ParamSpec("P", default=...)
R = DefaultTypeVar("R", default=Any)
CallP = ParamSpec("CallP")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_HOOK_TAKES = {
    "before_start": ("ctx",),
    "on_success": ("ctx", "result", "runtime"),
    "on_retry": ("ctx", "exc", "delay"),
    "on_failure": ("ctx", "exc"),
    "after_return": ("ctx", "state", "result", "exc"),
}
HOOKS = tuple(_HOOK_TAKES)
"""The hooks of a task, in the order in which they run."""


class Runs(Protocol[CallP, T_co]):
    """Anything whose `run` takes these arguments: how checkers see through a task to its types."""

    def run(self, *args: CallP.args, **kwargs: CallP.kwargs) -> T_co:
        """Do the work."""
        ...


class Task(Generic[P, R]):
    """A unit of work that can be called here or submitted as a job.

    Subclass it and hand the class to `app.register`, or decorate a function with `@app.task`. The
    class attributes are its policy; None leaves the decision to the queue or to `Config`.
    """

    name: str = ""
    """Its name in the app; "" takes "module.Class" or "module.function"."""
    queue: str | None = None
    """The queue of its jobs."""
    priority: int | None = None
    """Their priority, from -9 to 9; a higher one first."""
    retry_policy: Retry | str | None = None
    """When a failed attempt is followed by another, or a name in `Config.retries`. None: never."""
    timeout: float | None = None
    """How long an attempt may take until `ctx.check_cancelled()` raises (cooperative)."""
    hard_timeout: float | None = None
    """How long it may take until its worker ends it, as far as the pool can."""
    lease: float | None = None
    """How long a job stays with a worker that gives no sign of life."""
    ack: Ack = "on_success"
    """`on_success`, `on_receipt` (never run again), or `on_completion` (never retried)."""
    expires: float | None = None
    """How long a job may wait for its start before it ends EXPIRED."""
    max_deliveries: int | None = None
    """How often one attempt is delivered before its job is buried."""
    rate_limit: str | None = None
    """The most starts in a time for each worker process, as "10/s", "100/m" or "1000/h"."""
    rate_scope: RateScope = "worker"
    """Where the rate limit counts: in each worker process, or over all of them ("cluster")."""
    concurrency_key: str | None = None
    """Limits how many jobs with this key run at once; "user:{user}" is filled from the arguments."""
    concurrency_limit: int = 1
    """How many of them may."""
    serializer: str | None = None
    """The codec of its arguments and results."""
    store_result: bool = True
    """Whether results are kept."""
    completion: Completion = "return"
    """`external`: the job waits for `app.complete(token, result)` after the body has returned."""
    completion_timeout: float | None = None
    """How long it waits for that."""

    # Set by the app when the task is registered.
    policy: TaskPolicy
    """The checked policy."""
    signature: SignatureModel
    """What `run` takes and returns."""
    is_async: bool = False
    """Whether `run` is `async def`."""
    has_end_hooks: bool = False
    """Whether anything is to be called after an attempt's settlement."""
    starts_with_hook: bool = False
    """Whether `before_start` does anything."""
    inline_hooks: Mapping[str, Callable[..., Any]] = {}
    """Hooks given to the decorator; each runs after the method of its name."""
    caller: Caller
    """Makes its jobs."""

    def __init__(self, app: App) -> None:
        self.app = app

    def run(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Do the work; every task has its own."""
        raise NotImplementedError(f"{type(self).__name__} has no run")

    @property
    def request(self) -> TaskContext:
        """The context of the attempt that runs here.

        Raises:
            TaskError: This task does not run here.
        """
        context = current.get()
        if context is None or context.task is not self:
            raise TaskError(
                f"task {self.name!r} does not run here: request works during its run only"
            )
        return context

    # --- calling ---

    def __call__(self: Runs[CallP, T], *args: CallP.args, **kwargs: CallP.kwargs) -> T:
        """Run it here and now, without a job: no hooks, no retries, exceptions come through."""
        result: T = call_here(self, args, kwargs)
        return result

    @overload
    def delay(
        self: Runs[CallP, Coroutine[Any, Any, T]], *args: CallP.args, **kwargs: CallP.kwargs
    ) -> TaskHandle[T]: ...
    @overload
    def delay(self: Runs[CallP, T], *args: CallP.args, **kwargs: CallP.kwargs) -> TaskHandle[T]: ...
    def delay(self: Any, *args: Any, **kwargs: Any) -> TaskHandle[Any]:
        """Submit a job with these arguments of the task.

        Raises:
            TypeError: The arguments don't fit the task's signature.
            EncodeError: An argument can't travel.
            MessageTooLarge: The encoded call is over `Config.max_message_bytes`.
            TransportUnavailable: The backend could not be reached within `Config.enqueue_timeout`.
        """
        return _caller(self).call(args, kwargs)

    @overload
    async def adelay(
        self: Runs[CallP, Coroutine[Any, Any, T]], *args: CallP.args, **kwargs: CallP.kwargs
    ) -> TaskHandle[T]: ...
    @overload
    async def adelay(
        self: Runs[CallP, T], *args: CallP.args, **kwargs: CallP.kwargs
    ) -> TaskHandle[T]: ...
    async def adelay(self: Any, *args: Any, **kwargs: Any) -> TaskHandle[Any]:
        """Like `delay`, without blocking the event loop."""
        return await _caller(self).acall(args, kwargs)

    @overload
    def apply_async(
        self: Runs[..., Coroutine[Any, Any, T]],
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        queue: str | None = None,
        priority: int | None = None,
        delay: float | timedelta | None = None,
        eta: float | datetime | None = None,
        expires: float | timedelta | None = None,
        key: str | None = None,
        key_scope: KeyScope = "window",
        timeout: float | None = None,
        hard_timeout: float | None = None,
        headers: Mapping[str, Any] | None = None,
        job_id: str | None = None,
        connection: object | None = None,
    ) -> TaskHandle[T]: ...
    @overload
    def apply_async(
        self: Runs[..., T],
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        queue: str | None = None,
        priority: int | None = None,
        delay: float | timedelta | None = None,
        eta: float | datetime | None = None,
        expires: float | timedelta | None = None,
        key: str | None = None,
        key_scope: KeyScope = "window",
        timeout: float | None = None,
        hard_timeout: float | None = None,
        headers: Mapping[str, Any] | None = None,
        job_id: str | None = None,
        connection: object | None = None,
    ) -> TaskHandle[T]: ...
    def apply_async(
        self: Any,
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> TaskHandle[Any]:
        """Submit a job, with options of this call.

        Args:
            args: Positional arguments of the task.
            kwargs: Keyword arguments of the task.
            queue: Another queue than the task's.
            priority: From -9 to 9; a higher one first.
            delay: Seconds until it is due.
            eta: When it is due: an aware datetime or epoch seconds.
            expires: Seconds until it ends EXPIRED if it has not started.
            key: An idempotency key: a second call with it returns the first's handle.
            key_scope: How long the key admits no other job: "window" (`Config.idempotency_ttl`),
                "until_start" or "until_end".
            timeout: Seconds an attempt may take, instead of the task's.
            hard_timeout: Seconds after which the worker ends an attempt, instead of the task's.
            headers: Values for `ctx.headers`.
            job_id: An id of your own; a repeated call with it changes nothing.
            connection: A connection of your own, on `postgresql://`: the job is written in its transaction,
                and exists if and only if that commits. Its id is known at once.
        """
        return _caller(self).call(args, kwargs or {}, options)

    @overload
    async def aapply_async(
        self: Runs[..., Coroutine[Any, Any, T]],
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> TaskHandle[T]: ...
    @overload
    async def aapply_async(
        self: Runs[..., T],
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> TaskHandle[T]: ...
    async def aapply_async(
        self: Any,
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> TaskHandle[Any]:
        """Like `apply_async`, without blocking the event loop."""
        return await _caller(self).acall(args, kwargs or {}, options)

    @overload
    def map_async(
        self: Runs[..., Coroutine[Any, Any, T]], calls: Iterable[Iterable[Any]], **options: Any
    ) -> list[TaskHandle[T]]: ...
    @overload
    def map_async(
        self: Runs[..., T], calls: Iterable[Iterable[Any]], **options: Any
    ) -> list[TaskHandle[T]]: ...
    def map_async(
        self: Any, calls: Iterable[Iterable[Any]], **options: Any
    ) -> list[TaskHandle[Any]]:
        """Submit many jobs in few round trips: `calls` has the positional arguments of each.

        Options are those of `apply_async` and hold for every job (`key` and `job_id` can't). All calls
        are checked and encoded before the first is sent; they are sent in batches of 1,000, each
        all or nothing.
        """
        return _caller(self).call_many(calls, options)

    @overload
    def submit(
        self: Runs[..., Coroutine[Any, Any, T]], *args: Any, **mixed: Any
    ) -> TaskHandle[T]: ...
    @overload
    def submit(self: Runs[..., T], *args: Any, **mixed: Any) -> TaskHandle[T]: ...
    def submit(self: Any, *args: Any, **mixed: Any) -> TaskHandle[Any]:
        """Submit a job with arguments of the task and options of `apply_async` side by side.

        A name that the task itself takes goes to the task.
        """
        caller = _caller(self)
        return caller.call(args, *caller.split(mixed))

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
        """Make the exception that asks for another attempt: `raise self.retry(countdown=30)`.

        Args:
            delay: Seconds until then, neither jittered nor capped; None takes the policy's delay.
            countdown: Another name for `delay`.
            exc: What the job fails with when no attempt is left.
            reason: Why, for people.
            max_retries: At most this many attempts after the first, instead of the policy's limit.
            args: Other positional arguments for the next attempt; None keeps them.
            kwargs: Other keyword arguments, likewise.
        """
        return self.request.retry(
            delay=delay,
            countdown=countdown,
            exc=exc,
            reason=reason,
            max_retries=max_retries,
            args=args,
            kwargs=kwargs,
        )

    # --- hooks ---

    def before_start(self, ctx: TaskContext) -> None:
        """Called before `run`; what it raises makes the attempt fail."""

    def on_success(self, ctx: TaskContext, result: Any, runtime: float) -> None:
        """Called once a success is confirmed; `runtime` is in seconds."""

    def on_retry(self, ctx: TaskContext, exc: BaseException, delay: float) -> None:
        """Called once another attempt is confirmed."""

    def on_failure(self, ctx: TaskContext, exc: BaseException) -> None:
        """Called once the final failure is confirmed."""

    def after_return(
        self,
        ctx: TaskContext,
        state: JobState,
        result: Any = None,
        exc: BaseException | None = None,
    ) -> None:
        """Called at the end of every attempt that was started, also when its lease was lost."""

    def __repr__(self) -> str:
        return f"<Task {self.name or type(self).__name__}>"


def _caller(task: Any) -> Caller:
    return cast("Caller", task.caller)


def call_here(task: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a task in a context of its own, or within the one of the attempt that calls it."""
    outer = current.get()
    if outer is None:
        context = TaskContext(task.app, task, _NO_DELIVERY, _NO_ENVELOPE, _LOCAL)
        context.args, context.kwargs = args, kwargs
    else:
        context = outer.nested(task, args, kwargs)
    if task.is_async:
        return _await_here(task, context)
    token = current.set(context)
    try:
        return task.run(*args, **kwargs)
    finally:
        current.reset(token)


async def _await_here(task: Any, context: TaskContext) -> Any:
    token = current.set(context)
    try:
        return await task.run(*context.args, **context.kwargs)
    finally:
        current.reset(token)


class _LocalControl(AttemptControl):
    waits_block_a_slot = False


_LOCAL = _LocalControl()
_NO_DELIVERY = Delivery(
    id="local", task="", queue="", priority=0, envelope=b"", receipt="", lease=0.0
)
_NO_ENVELOPE = Envelope(v=VERSION, id="local", task="", queue="")


def check_task_class(what: str, value: object) -> None:
    """Refuse what is no subclass of `Task`."""
    if not (isinstance(value, type) and issubclass(value, Task)):
        raise ConfigError(f"{what} takes a subclass of Task, not {value!r:.80}")


def check_hooks(task: Task[..., Any]) -> None:
    """Refuse hooks that can't be called with what hooks get.

    Raises:
        ConfigError: One takes other arguments.
    """
    for hook, takes in _HOOK_TAKES.items():
        own = getattr(task, hook) if getattr(type(task), hook) is not getattr(Task, hook) else None
        for function in (own, task.inline_hooks.get(hook)):
            if function is None:
                continue
            try:
                signature = inspect.signature(function)
            except (TypeError, ValueError):
                continue  # Something built in, which doesn't tell.
            try:
                signature.bind(*takes)
            except TypeError as error:
                raise ConfigError(
                    f"{hook} of task {task.name!r} is called with ({', '.join(takes)}), which "
                    f"{getattr(function, '__name__', function)}{signature} does not take: {error}"
                ) from error


def warn_of_slips(cls: type[Task[..., Any]], fields: Collection[str]) -> None:
    """Warn of attributes of a task class that look like a misspelt hook or policy field."""
    for owner in cls.__mro__[: cls.__mro__.index(Task)]:
        for name, value in vars(owner).items():
            if name.startswith("_") or hasattr(Task, name):
                continue
            near = get_close_matches(name, HOOKS if callable(value) else fields, n=1, cutoff=0.85)
            if near:
                warnings.warn(
                    f"{owner.__name__}.{name} is nothing that taskmq knows; did you mean {near[0]!r}?",
                    TaskmqWarning,
                    stacklevel=4,
                )


def task_class(
    function: object,
    *,
    base: object,
    bind: bool,
    policy: Mapping[str, Any],
    hooks: Mapping[str, object],
) -> type[Task[..., Any]]:
    """Make the class of a decorated function.

    Raises:
        ConfigError: It is no function, or `base` no task class.
    """
    if not callable(function) or inspect.isclass(function):
        raise ConfigError(
            f"@app.task decorates functions, not {function!r:.80}; classes: app.register"
        )
    check_task_class("base", base)
    for hook, inline in hooks.items():
        if not callable(inline):
            raise ConfigError(f"{hook} must be a function, not {inline!r:.80}")
    wrapped: Any = function
    bases: Any = base
    namespace: dict[str, Any] = {
        **policy,
        "run": wrapped if bind else staticmethod(wrapped),
        "inline_hooks": {**bases.inline_hooks, **hooks},
        "__module__": getattr(function, "__module__", "?"),
        "__doc__": wrapped.__doc__,
    }
    made: Any = type(getattr(function, "__name__", "task"), (bases,), namespace)
    return cast("type[Task[..., Any]]", made)
