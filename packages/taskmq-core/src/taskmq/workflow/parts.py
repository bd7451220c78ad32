"""What a builder does with the options of a step: references, queues, priorities, encoded arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeGuard, cast

from taskmq._internal import checks
from taskmq._internal.guards import is_iterable, is_mapping
from taskmq.errors import ConfigError, EncodeError, TaskmqError
from taskmq.names import check_name
from taskmq.policy import check_priority, positive_seconds
from taskmq.task import Task
from taskmq.workflow.plan import PlanEdge
from taskmq.workflow.steps import Branch, Field, Step

if TYPE_CHECKING:
    from taskmq.app import App
    from taskmq.workflow.plan import Rule


class StepParts:
    """The part of a builder that looks at options. Every refusal names the step."""

    app: App
    queue: str | None
    priority: int | None

    def _after(self, name: str, options: Mapping[str, Any]) -> list[tuple[str, Any]]:
        after: Any = options.get("after", ())
        listed: list[Any] = [after] if isinstance(after, (Step, Field, str)) else list(after)
        return [self._source(name, each) for each in listed]

    def _deps(self, name: str, deps: Any, offset: int) -> list[PlanEdge]:
        if isinstance(deps, (Step, Field, str)):
            raise ConfigError(f"deps of step {name!r} is {{parameter: step}}, or a list of steps")
        if is_mapping(deps):
            pairs: list[tuple[Any, Any]] = list(deps.items())
        else:
            pairs = [(offset + index, each) for index, each in enumerate(deps)]
        edges: list[PlanEdge] = []
        for into, ref in pairs:
            source, path = self._source(name, ref)
            place, at = target(into)
            edges.append(PlanEdge(source=source, into=place, path=path, at=at))
        return edges

    def _source(self, name: str, ref: Any) -> tuple[str, tuple[str | int, ...]]:
        if isinstance(ref, Field):
            return self._source(name, ref.step)[0], ref.path
        if isinstance(ref, Branch):
            raise ConfigError(f"step {name!r} depends on a condition: pass it as when=")
        if isinstance(ref, str):
            return ref, ()
        if not is_step(ref):
            raise ConfigError(
                f"step {name!r} depends on {ref!r:.80}, which is no step: pass values in args or kwargs"
            )
        if ref.builder is not None and ref.builder is not self:
            raise ConfigError(f"step {name!r} depends on {ref.name!r}, which is of another graph")
        return ref.name, ()

    def _items(self, name: str, over: Any) -> tuple[Any, list[PlanEdge]]:
        if isinstance(over, (Step, Field)):
            source, path = self._source(name, over)
            return None, [PlanEdge(source=source, into="items", path=path, at=("over",))]
        if isinstance(over, (str, bytes, Mapping)) or not is_iterable(over):
            raise ConfigError(f"over= of map {name!r} is a step or a list, not {over!r:.80}")
        listed: list[Any] = list(over)
        return self._payload(f"over= of map {name!r}", listed), []

    def _item_parameter(
        self,
        name: str,
        task: Task[..., Any] | str | None,
        arg: str | None,
        options: Mapping[str, Any],
        deps: list[PlanEdge],
    ) -> str:
        if arg is not None:
            return arg
        taken: set[Any] = {*(options.get("kwargs") or {}), *(edge.into for edge in deps)}
        if isinstance(task, Task):
            names = list(task.signature.signature.parameters)[len(tuple(options.get("args", ()))) :]
            free = [each for each in names if each not in taken]
            if free:
                return free[0]
        raise ConfigError(f"map {name!r} needs arg=, the parameter that gets the item")

    def _task_of(self, name: str, task: Any) -> Task[..., Any] | str:
        if isinstance(task, str):
            return self.app.tasks.get(task) or check_name("task name", task)
        if not isinstance(task, Task):
            raise ConfigError(
                f"step {name!r} needs a task of the app, or a task's name, not {task!r:.80}: "
                f"decorate the function with @app.task"
            )
        return cast("Task[..., Any]", task)

    def _name_of(self, task: Any) -> str:
        return task.name if isinstance(task, Task) else cast("str", task or "")

    def _queue(self, own: str | None, task: Task[..., Any] | str | None) -> str:
        declared = task.queue if isinstance(task, Task) else None
        queue = own or declared or self.queue or self.app.config.default_queue
        return check_name("queue", queue)

    def _priority(self, name: str, own: int | None, task: Task[..., Any] | str | None) -> int:
        given = check_priority(own, f"priority of step {name!r}")
        if given is None and isinstance(task, Task):
            given = task.policy.priority
        if given is None:
            given = self.priority
        queue = self._queue(None, task)
        return self.app.resolve_priority(given, None, queue)

    def _rule(self, name: str, options: Mapping[str, Any]) -> Rule:
        rule = options.get("rule", "all_ok")
        allowed = ("all_ok", "all_done", "any_failed")
        return cast("Rule", checks.one_of(f"rule of step {name!r}", rule, allowed))

    def _encode(
        self,
        name: str,
        task: Task[..., Any] | str | None,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        filled: set[Any],
    ) -> tuple[str, bytes]:
        """Encode the static arguments, and refuse what will not fit with what comes from steps."""
        clash = filled & kwargs.keys()
        if clash:
            raise ConfigError(
                f"step {name!r}: {sorted(map(str, clash))[0]!r} is given both as an argument and by a "
                f"dependency: leave one out"
            )
        codecs = self.app.codecs
        try:
            if task is not None:
                return self.app.caller_of(task).encode_step(args, kwargs, filled)
            # The parameters of a workflow, which may not be registered here.
            codec = codecs.get(self.app.config.serializer)
            return codec.content_type, codecs.encode_call(args, kwargs, codec)
        except (TypeError, TaskmqError) as error:
            if isinstance(error, (ConfigError,)):
                raise
            kind = EncodeError if isinstance(error, EncodeError) else ConfigError
            raise kind(f"step {name!r}: {error}") from error

    def _payload(self, what: str, value: Any) -> Any:
        try:
            return self.app.codecs.encode_value(value, self.app.config.serializer)
        except EncodeError as error:
            raise EncodeError(f"{what}: {error}") from error

    def _refuse_options(
        self, name: str, options: Mapping[str, Any], allowed: frozenset[str] | set[str]
    ) -> None:
        for option in options:
            if option not in allowed:
                raise ConfigError(
                    f"step {name!r} has no option {option!r}{checks.did_you_mean(option, allowed)} "
                    f"(it has: {', '.join(sorted(allowed))})"
                )


def is_step(value: object) -> TypeGuard[Step[Any]]:
    """Whether this is a step."""
    return isinstance(value, Step)


def many(name: str, deps: Any) -> list[Any]:
    """The listed dependencies."""
    if isinstance(deps, (Step, Field, str, Mapping)):
        raise ConfigError(f"deps of {name!r} is a list of steps: deps=[a, b]")
    return list(deps)


def target(into: Any) -> tuple[str | int, tuple[str | int, ...]]:
    """`"config.db.url"` is a place inside the parameter `config`."""
    if isinstance(into, str) and "." in into:
        first, *rest = into.split(".")
        return first, tuple(rest)
    return into, ()


def headers(options: Mapping[str, Any]) -> dict[str, Any] | None:
    """The headers given to a step."""
    headers = options.get("headers")
    return None if headers is None else dict(headers)


def timeout(name: str, options: Mapping[str, Any]) -> float | None:
    """The timeout given to a step."""
    timeout = options.get("timeout")
    return None if timeout is None else positive_seconds(f"timeout of step {name!r}", timeout)
