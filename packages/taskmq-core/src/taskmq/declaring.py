"""How functions and classes become tasks: the part of `App` that declares them."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, overload

from taskmq._internal.checks import did_you_mean, flag
from taskmq.errors import ConfigError
from taskmq.names import check_name
from taskmq.plugins import PROCESS_PLUGINS, Plugins
from taskmq.policy import FIELDS, check_policy
from taskmq.protocol.codec import CodecSet
from taskmq.protocol.convert import SignatureModel
from taskmq.submit import Caller
from taskmq.task import HOOKS, Task, check_hooks, check_task_class, task_class, warn_of_slips

if sys.version_info >= (3, 11):
    from typing import Concatenate, ParamSpec
else:
    from typing import Concatenate

    from typing_extensions import ParamSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskmq.app import App
    from taskmq.config import Config
    from taskmq.policy import Ack, RateScope
    from taskmq.policy import Completion as CompletionMode
    from taskmq.retry import Retry

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T", bound="Task[..., Any]")


class TaskDeclarations:
    """The tasks of an app, and what is needed to declare and to call them."""

    def __init__(self, config: Config, name: str | None) -> None:
        self._config = config
        self.name = name
        self.tasks: dict[str, Task[..., Any]] = {}
        """The registered tasks by name."""
        self.plugins = Plugins(PROCESS_PLUGINS)
        self.codecs = CodecSet(self.plugins)
        self._lock = threading.RLock()
        self._unknown: dict[str, Caller] = {}
        self._own_tasks: dict[str, Task[..., Any]] = {}

    @property
    def _app(self) -> App:
        """What this is the part of."""
        return cast("App", self)

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(
        self,
        *,
        bind: Literal[True],
        base: type[Task[..., Any]] = ...,
        name: str | None = None,
        queue: str | None = None,
        priority: int | None = None,
        retry: Retry | str | None = None,
        timeout: float | None = None,
        hard_timeout: float | None = None,
        lease: float | None = None,
        ack: Ack | None = None,
        expires: float | None = None,
        max_deliveries: int | None = None,
        rate_limit: str | None = None,
        rate_scope: RateScope | None = None,
        concurrency_key: str | None = None,
        concurrency_limit: int | None = None,
        serializer: str | None = None,
        store_result: bool | None = None,
        completion: CompletionMode | None = None,
        completion_timeout: float | None = None,
        before_start: Callable[..., Any] | None = None,
        on_success: Callable[..., Any] | None = None,
        on_retry: Callable[..., Any] | None = None,
        on_failure: Callable[..., Any] | None = None,
        after_return: Callable[..., Any] | None = None,
    ) -> Callable[[Callable[Concatenate[Any, P], R]], Task[P, R]]: ...
    @overload
    def task(
        self,
        *,
        bind: Literal[False] = False,
        base: type[Task[..., Any]] = ...,
        name: str | None = None,
        queue: str | None = None,
        priority: int | None = None,
        retry: Retry | str | None = None,
        timeout: float | None = None,
        hard_timeout: float | None = None,
        lease: float | None = None,
        ack: Ack | None = None,
        expires: float | None = None,
        max_deliveries: int | None = None,
        rate_limit: str | None = None,
        rate_scope: RateScope | None = None,
        concurrency_key: str | None = None,
        concurrency_limit: int | None = None,
        serializer: str | None = None,
        store_result: bool | None = None,
        completion: CompletionMode | None = None,
        completion_timeout: float | None = None,
        before_start: Callable[..., Any] | None = None,
        on_success: Callable[..., Any] | None = None,
        on_retry: Callable[..., Any] | None = None,
        on_failure: Callable[..., Any] | None = None,
        after_return: Callable[..., Any] | None = None,
    ) -> Callable[[Callable[P, R]], Task[P, R]]: ...
    def task(
        self,
        function: Callable[..., Any] | None = None,
        **declared: Any,
    ) -> Any:
        """Make a task of a function: `@app.task`, or `@app.task(queue="email", retry=Retry())`.

        Args:
            function: The body.
            declared: `bind=True` passes the task itself as the first argument (`def send(self, to):
                self.request…`). `base` is a subclass of `Task` whose policy and hooks it has, unless
                given here. The policy (see the attributes of `Task`; `retry` is `retry_policy`), and hooks:
                functions that take the method's arguments without `self` and run after the base's.

        Raises:
            ConfigError: A value is not allowed, or another task has the name.
        """
        bind = flag("bind", declared.pop("bind", False))
        base = declared.pop("base", Task)
        unknown = sorted(declared.keys() - _DECLARABLE)
        if unknown:
            raise ConfigError(
                f"a task has no {unknown[0]!r}{did_you_mean(unknown[0], _DECLARABLE)} "
                f"(it has: {', '.join(sorted(_DECLARABLE))})"
            )

        def decorate(function: Callable[..., Any]) -> Task[..., Any]:
            policy = {name: value for name, value in declared.items() if value is not None}
            hooks = {name: policy.pop(name) for name in HOOKS if name in policy}
            if "retry" in policy:
                policy["retry_policy"] = policy.pop("retry")
            cls = task_class(function, base=base, bind=bind, policy=policy, hooks=hooks)
            name = policy.get("name") or self._name_of(function)
            return self._adopt(cls, name, function, skip_first=bind)

        return decorate if function is None else decorate(function)

    def register(self, cls: type[T]) -> T:
        """Register a task class and return its one instance in this process.

        Raises:
            ConfigError: It is no task class, a value is not allowed, or another task has the name.
        """
        check_task_class("register", cls)
        name = cls.name or self._name_of(cls)
        known = self.tasks.get(name)
        if known is not None and type(known) is cls:
            return known
        run: Any = cls.run
        if run is Task.run or not callable(run):
            raise ConfigError(f"task class {cls.__name__!r} needs a method run")
        return self._adopt(cls, name, run, skip_first=True)

    def _adopt(
        self,
        cls: type[T],
        name: str,
        function: Callable[..., Any],
        *,
        skip_first: bool,
        among: dict[str, Task[..., Any]] | None = None,
    ) -> T:
        """Make the instance, check its policy and let it in."""
        check_name("task name", name)
        tasks = self.tasks if among is None else among
        if name in tasks:
            raise ConfigError(
                f"two tasks have the name {name!r}: pass another name= to one of them"
            )
        task = cls(self._app)
        task.name = name
        static = isinstance(inspect.getattr_static(cls, "run"), (staticmethod, classmethod))
        skip = skip_first and not static
        try:
            task.signature = SignatureModel.of(function, skip, types=self.codecs.types)
        except TypeError as error:
            raise ConfigError(f"task {name!r}: {error}") from error
        for hook in HOOKS:
            if any(
                map(inspect.iscoroutinefunction, (getattr(cls, hook), task.inline_hooks.get(hook)))
            ):
                raise ConfigError(
                    f"{hook} of task {name!r} is async def: hooks are plain functions"
                )
        check_hooks(task)
        warn_of_slips(cls, (*FIELDS, "retry_policy"))
        task.is_async = inspect.iscoroutinefunction(function)
        task.starts_with_hook = (
            cls.before_start is not Task.before_start or "before_start" in task.inline_hooks
        )
        task.has_end_hooks = any(
            getattr(cls, hook) is not getattr(Task, hook) or hook in task.inline_hooks
            for hook in HOOKS[1:]
        )
        self._apply_policy(task)
        if not skip_first:
            functools.update_wrapper(task, function, updated=())
        with self._lock:
            if tasks.setdefault(name, task) is not task:
                raise ConfigError(f"two tasks have the name {name!r}")
        return task

    def _apply_policy(self, task: Task[..., Any]) -> None:
        """Check what a task declares against the configuration."""
        declared = {field: getattr(task, field) for field in FIELDS}
        task.policy = check_policy(task.name, declared, task.retry_policy, self._config)
        task.caller = Caller(self._app, task.name, task.policy, task.signature)

    def _name_of(self, code: Any) -> str:
        """Module and name; for a script the module's name under which a worker imports it."""
        module: str = getattr(code, "__module__", "?")
        if module == "__main__":
            main = sys.modules["__main__"]
            spec = getattr(main, "__spec__", None)
            path = getattr(main, "__file__", None)
            module = self.name or (spec.name if spec else Path(path).stem if path else module)
        return f"{module}.{getattr(code, '__name__', 'task')}"

    def caller_of(self, task: Task[..., Any] | str) -> Caller:
        """What makes jobs of this task."""
        if isinstance(task, Task):
            return task.caller
        if (registered := self.tasks.get(check_name("task name", task))) is not None:
            return registered.caller
        if task.startswith(_OWN) and (own := self.own_task(task)) is not None:
            return own.caller
        caller = self._unknown.get(task)
        if caller is None:
            caller = self._unknown[task] = Caller(self._app, task)
        return caller

    def own_task(self, name: str) -> Task[..., Any] | None:
        """A task that taskmq brings itself, None if there is none of this name."""
        found = self._own_tasks.get(name)
        if found is not None or not name.startswith(_OWN):
            return found
        from taskmq.workflow.tasks import TASKS

        cls = TASKS.get(name)
        if cls is None:
            return None
        with self._lock:
            if name not in self._own_tasks:
                made: Any = cls
                self._adopt(cls, name, made.run, skip_first=True, among=self._own_tasks)
        return self._own_tasks[name]


_OWN = "taskmq."
"""What the names of taskmq's own tasks begin with."""
_DECLARABLE = frozenset({*FIELDS, *HOOKS, "name", "retry"})
