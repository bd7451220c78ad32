"""The app: configuration, tasks and transport of one program, put together."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, TypeVar

from taskmq.config import Config
from taskmq.declaring import TaskDeclarations
from taskmq.errors import ConfigError, MessageTooLarge, TransportError
from taskmq.events import EventBus, EventSink, make_sink
from taskmq.failures import describe
from taskmq.handle import TaskHandle
from taskmq.names import check_name
from taskmq.plugins import load_plugins
from taskmq.runs import WorkflowDeclarations
from taskmq.transport.contract import parse_completion_token
from taskmq.transport.open import open_result_store, open_transport
from taskmq.transport.types import Completion, ErrorInfo, QueueShare

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from typing_extensions import Self

    from taskmq.context import TaskContext
    from taskmq.eager import EagerRunner
    from taskmq.middleware import Middleware
    from taskmq.policy import TaskPolicy
    from taskmq.protocol.custom import Decode, Encode
    from taskmq.sending import SendHub
    from taskmq.task import Task
    from taskmq.transport.contract import ResultStore, Transport
    from taskmq.transport.types import CompleteResult, Enqueued, JobRecord, Message, Payload
    from taskmq.waiting import WaitHub
    from taskmq.workflow.telling import RunTeller

HookT = TypeVar("HookT", bound="Callable[[], Any]")


class App(TaskDeclarations, WorkflowDeclarations):
    """What tasks are registered with and jobs are submitted through.

    ```python
    app = App(Config(transport="sqlite:///jobs.db"))

    @app.task(queue="email")
    def send_email(to: str, subject: str) -> str: ...
    ```

    Building one, and importing modules with tasks, opens no connection. Safe to share between threads.
    """

    def __init__(self, config: Config | None = None, *, name: str | None = None) -> None:
        chosen = config if config is not None else Config()
        _check_config(chosen)
        TaskDeclarations.__init__(self, chosen, name)
        WorkflowDeclarations.__init__(self)
        self.middleware: tuple[Middleware, ...] = ()
        self.step_hooks: list[Callable[[dict[str, Any], str, str], Any]] = []
        """What `on_step_message` has gathered."""
        self.worker_start_hooks: list[Callable[[], Any]] = []
        """What `on_worker_start` has gathered, in order."""
        self.worker_stop_hooks: list[Callable[[], Any]] = []
        """What `on_worker_stop` has gathered, in order; they run the last one first."""
        self._sends: SendHub | None = None
        self._waits: WaitHub | None = None
        self._transport: Transport | None = None
        self._results: ResultStore | None = None
        self._events: EventBus | None = None
        self._sinks: list[EventSink] = []
        self._silent_sink = False
        self._eager: EagerRunner | None = None
        self._run_teller: RunTeller | None = None
        self._loaded = False

    # --- parts ---

    @property
    def config(self) -> Config:
        """The settings. A new one takes effect for calls and workers that follow."""
        return self._config

    @config.setter
    def config(self, config: Config) -> None:
        _check_config(config)
        with self._lock:
            self._config = config
            self._unknown.clear()
            for task in (*self.tasks.values(), *self._own_tasks.values()):
                self._apply_policy(task)

    @property
    def eager(self) -> EagerRunner:
        """What runs the jobs of an app with `Config(eager=True)`, at the call."""
        if self._eager is None:
            with self._lock:
                if self._eager is None:
                    from taskmq.eager import EagerRunner

                    self._eager = EagerRunner(self)
        return self._eager

    @property
    def events(self) -> EventBus:
        """Where events go: the sink of `Config.events` and those of `add_sink`."""
        if self._events is None:
            with self._lock:
                if self._events is None:
                    self._events = self._make_bus()
        return self._events

    @property
    def results(self) -> ResultStore | None:
        """The separate result store, None when results live with their job records."""
        if self._results is None and self.config.result is not None:
            with self._lock:
                if self._results is None:
                    config = self.config
                    self._results = open_result_store(
                        self.config.result, self.plugins, config.enqueue_timeout
                    )
        return self._results

    @property
    def transport(self) -> Transport:
        """The backend, opened at first use.

        Raises:
            ConfigError: No plugin brings the scheme of `Config.transport`.
        """
        if self._transport is None:
            with self._lock:
                if self._transport is None:
                    self._transport = self._open_transport()
        return self._transport

    @property
    def sends(self) -> SendHub:
        """What submits jobs on behalf of event loops."""
        if self._sends is None:
            with self._lock:
                if self._sends is None:
                    # With asyncio a large part of what `import taskmq` would cost.
                    from taskmq.sending import SendHub

                    self._sends = SendHub(self.enqueue)
        return self._sends

    @property
    def waits(self) -> WaitHub:
        """What waits for jobs on behalf of event loops."""
        if self._waits is None:
            with self._lock:
                if self._waits is None:
                    # With asyncio a large part of what `import taskmq` would cost.
                    from taskmq.waiting import WaitHub

                    self._waits = WaitHub(lambda: self.transport)
        return self._waits

    def add_middleware(self, middleware: Middleware) -> None:
        """Wrap every attempt of every task: `middleware(ctx, call_next)`; the first added is outermost."""
        if not callable(middleware):
            raise ConfigError(f"middleware is a callable m(ctx, call_next), not {middleware!r:.80}")
        self.middleware = (*self.middleware, middleware)

    def add_sink(self, sink: EventSink) -> None:
        """Send events there too, from now on, in producers and workers."""
        with self._lock:
            if self._events is not None:
                self._events.add(sink)
            self._sinks.append(sink)

    def load(self) -> None:
        """Import the plugins and the task modules that the configuration names, once.

        Workers and commands do so at their start. Raises what the import of a module raises.
        """
        with self._lock:
            if self._loaded:
                return
            self._loaded = True
        try:
            load_plugins(self.config.plugins)
            for module in self.config.include:
                importlib.import_module(module)
        except BaseException:
            self._loaded = False
            raise

    def load_plugins(self, names: Iterable[str]) -> None:
        """Import modules that register plugins; of `module:function` the function is called too."""
        load_plugins(names)

    def register_type(self, type_: type[Any], *, encode: Encode, decode: Decode) -> None:
        """Teach the codecs a type.

        Args:
            type_: The class of the values.
            encode: Makes something plain of a value: a str, a number, a dict …
            decode: Makes the value of it again.
        """
        self.codecs.register_type(type_, encode=encode, decode=decode)

    def on_step_message(
        self, hook: Callable[[dict[str, Any], str, str], Any]
    ) -> Callable[[dict[str, Any], str, str], Any]:
        """Call this wherever the message of a step is made: a decorator.

        `hook(headers, run, step)` may add headers, for tracing and the like. It runs in the producer at
        submit, and in a worker for items of maps and child runs.
        """
        self.step_hooks.append(_checked_hook("on_step_message", hook))
        return hook

    def on_worker_start(self, hook: HookT) -> HookT:
        """Have a worker call this before its first job: a decorator, for plain and async functions.

        It runs once in each process that runs jobs: in the pool `asyncio` on the event loop of the
        tasks, in `processes` in each child. What it raises keeps the worker from starting.
        """
        self.worker_start_hooks.append(_checked_hook("on_worker_start", hook))
        return hook

    def on_worker_stop(self, hook: HookT) -> HookT:
        """Have a worker call this after its last job: a decorator, for plain and async functions.

        Such hooks run in the reverse order, where `on_worker_start`'s ran. What one raises is logged. A
        process that is killed runs none.
        """
        self.worker_stop_hooks.append(_checked_hook("on_worker_stop", hook))
        return hook

    def report_as_worker(self) -> None:
        """Let the sink of `Config.events` take part though it is silent in producers (`stdout`)."""
        bus = self.events
        with self._lock:
            if not self._silent_sink:
                return
            self._silent_sink = False
        sink = make_sink(self.config, self.plugins)
        if sink is not None:
            bus.add(sink)

    def report_to(self, sink: EventSink | None, transport: Transport | None = None) -> None:
        """Send events to this sink only, and use this transport: a process that serves a worker."""
        bus = EventBus() if sink is None else EventBus([sink])
        with self._lock:
            self._events = bus
            self._silent_sink = False
            if transport is not None:
                self._transport = transport

    def close(self) -> None:
        """Free connections and threads. May be called twice; a later call opens the transport anew.

        A transport that was given as an instance stays open: it belongs to whoever made it.
        """
        with self._lock:
            transport, self._transport = self._transport, None
            results, self._results = self._results, None
            events, self._events = self._events, None
            eager, self._eager = self._eager, None
        if transport is not None and self._waits is not None:
            self._waits.close(transport)
        if eager is not None:
            eager.close()
        if events is not None:
            events.close()
        if results is not None and results is not self.config.result:
            results.close()
        if transport is not None and transport is not self.config.transport:
            transport.close()

    # --- jobs ---

    def handle(self, job_id: str) -> TaskHandle[Any]:
        """The handle of any job, by its id."""
        return TaskHandle(self, check_name("job id", job_id))

    def send(
        self,
        task: str,
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> TaskHandle[Any]:
        """Submit a job by the task's name; its code need not be here.

        A task that is registered here is called with its policy. For another the worker's own policy
        decides about attempts, timeouts and ack mode; queue and priority are those of `options` or
        `Config`.

        Args:
            task: The task's name.
            args: Its positional arguments.
            kwargs: Its keyword arguments.
            options: Those of `Task.apply_async`.
        """
        return self.caller_of(task).call(args, kwargs or {}, options)

    def complete(self, token: str, result: Any = None) -> CompleteResult:
        """End a parked job with this result; `token` is its `ctx.completion_token`.

        Raises:
            EncodeError: The result can't travel.
            TransportError: The token is none, or the job has had another outcome already.
        """
        payload = None if result is None else self._encode_outside(result)
        return self._complete(token, Completion(state="SUCCEEDED", result=payload))

    def fail(
        self, token: str, error: BaseException | str, *, retryable: bool = False
    ) -> CompleteResult:
        """End a parked job as failed; with `retryable` a worker decides about another attempt.

        Raises:
            TransportError: The token is none, or the job has had another outcome already.
        """
        info = ErrorInfo(message=error) if isinstance(error, str) else describe(error)
        return self._complete(token, Completion(state="FAILED", error=info, retryable=retryable))

    def queue_shares(self, names: Sequence[str] | None = None) -> tuple[QueueShare, ...]:
        """The queues of these names with their weights; None: all that the app knows of."""
        if names is None:
            known = {self.config.default_queue, *self.config.queues}
            known |= {task.policy.queue for task in self.tasks.values()}
            known |= {each.queue for each in self.workflows.values() if each.queue is not None}
            names = sorted(known)
        _refuse_text(names)
        queues = self.config.queues
        return tuple(
            QueueShare(check_name("queue", name), queues[name].weight if name in queues else 1)
            for name in dict.fromkeys(names)
        )

    # --- for the other parts of taskmq ---

    @property
    def run_teller(self) -> RunTeller:
        """What tells sinks of runs; ask `events.enabled` first."""
        if self._run_teller is None:
            from taskmq.workflow.telling import RunTeller

            self._run_teller = RunTeller(self)
        return self._run_teller

    def child_message(
        self,
        parent: TaskContext,
        task: Task[..., Any] | str,
        args: tuple[Any, ...],
        mixed: Mapping[str, Any],
    ) -> tuple[Message, TaskHandle[Any]]:
        """A message that an attempt publishes, and its handle."""
        caller = self.caller_of(task)
        kwargs, options = caller.split(mixed)
        message = caller.message(args, kwargs, options, parent)
        return message, caller.handle(message.id)

    def enqueue_in(self, connection: object, messages: Sequence[Message]) -> list[Enqueued]:
        """Store messages in the caller's transaction; nobody hears of them before it commits.

        Raises:
            ConfigError: The transport has no transactions to share.
        """
        if self.config.eager:
            # Nothing is stored where that connection leads: its jobs run at the call, as all do.
            return self.enqueue(messages)
        return self._sharing_transport().enqueue_in(connection, messages)

    async def aenqueue_in(self, connection: object, messages: Sequence[Message]) -> list[Enqueued]:
        """Like `enqueue_in`, also by an asynchronous connection."""
        return await self._sharing_transport().aenqueue_in(connection, messages)

    def enqueue(self, messages: Sequence[Message]) -> list[Enqueued]:
        """Hand messages to the transport; an eager app runs them before it returns."""
        stored = self.transport.enqueue(messages)
        events = self.events
        if events.enabled:
            for message, each in zip(messages, stored, strict=True):
                if each.status == "created":
                    events.emit(
                        "task.submitted",
                        job=message.id,
                        task=message.task,
                        queue=message.queue,
                        priority=message.priority,
                    )
        if self.config.eager:
            self.eager.run_jobs(messages, stored)
        return stored

    def read_result(self, record: JobRecord) -> Payload | None:
        """A result from the separate store.

        Raises:
            TransportError: This app has no result store, or the store has it no longer.
        """
        store = self.results
        if store is None:
            raise TransportError(
                f"the result of job {record.id} is in a separate store, and this app has none: "
                f"set Config(result=…) as its worker does"
            )
        payload = store.get([(record.id, record.receipt or "")])[0]
        if payload is None:
            raise TransportError(
                f"the result of job {record.id} is no longer in the result store (result_ttl)"
            )
        return payload

    def resolve_priority(self, call: int | None, policy: TaskPolicy | None, queue: str) -> int:
        """The first that is set: call, task, queue, configuration."""
        if call is not None:
            return call
        if policy is not None and policy.priority is not None:
            return policy.priority
        configured = self.config.queues.get(queue)
        if configured is not None and configured.priority is not None:
            return configured.priority
        return self.config.default_priority

    def _complete(self, token: str, completion: Completion) -> CompleteResult:
        _check_token(token)
        result = self.transport.complete(token, completion)
        if result.status == "refused":
            raise TransportError(f"the completion was refused: {result.reason or 'not waiting'}")
        if self.events.enabled:
            self.run_teller.completed(parse_completion_token(token)[0], "")
        if self.config.eager:
            self.eager.run_until_idle()
        return result

    def _encode_outside(self, result: Any) -> Payload:
        payload = self.codecs.encode_value(result, self.config.serializer)
        if len(payload.data) > self.config.max_message_bytes:
            raise MessageTooLarge(len(payload.data), self.config.max_message_bytes, what="result")
        return payload

    def _make_bus(self) -> EventBus:
        bus = EventBus()
        sink = make_sink(self.config, self.plugins, producer=True)
        self._silent_sink = sink is None
        for each in ([] if sink is None else [sink]) + self._sinks:
            bus.add(each)
        return bus

    def _sharing_transport(self) -> Transport:
        transport = self.transport
        if not transport.supports_connections:
            raise ConfigError(
                f"connection= needs a transport that can write in your transaction (postgresql://), and "
                f"{transport.describe()['url']} can't: leave it out, and call after your commit"
            )
        return transport

    def _open_transport(self) -> Transport:
        if self.config.eager:
            return self.eager.transport
        return open_transport(self.config.transport, self.plugins, self.config.enqueue_timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<App {self.name or ''} tasks={len(self.tasks)} {self.config!r}>"


def _checked_hook(what: str, hook: object) -> Any:
    if not callable(hook):
        raise ConfigError(f"{what} decorates a function without parameters, not {hook!r:.80}")
    return hook


def _check_config(config: object) -> None:
    if not isinstance(config, Config):
        raise ConfigError(f"App takes a Config: App(Config(transport=…)), not {config!r:.80}")


def _check_token(token: object) -> None:
    if not isinstance(token, str):
        raise TransportError(
            f"a completion token is a text that begins with 'tmq1.', not {token!r:.80}"
        )


def _refuse_text(names: object) -> None:
    if isinstance(names, str):
        raise ConfigError(f"queues is a list of names: queues=[{names!r}]")
