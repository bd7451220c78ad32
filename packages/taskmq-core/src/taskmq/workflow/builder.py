"""Declaring a graph: what a workflow's function is given as `wf`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from taskmq._internal import checks
from taskmq.errors import ConfigError
from taskmq.names import check_name
from taskmq.policy import positive_seconds
from taskmq.workflow.names import check_step_name
from taskmq.workflow.parts import StepParts, headers, many, timeout
from taskmq.workflow.plan import PlanCondition, PlanEdge, PlanStep
from taskmq.workflow.steps import Branch, Field, Ref, Step

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Mapping, Sequence

    from typing_extensions import Unpack

    from taskmq.app import App
    from taskmq.task import Runs, Task
    from taskmq.workflow.plan import OnFailure
    from taskmq.workflow.steps import JoinOptions, NodeOptions, SleepOptions, StepOptions

T = TypeVar("T")

_KEYS = frozenset({"after", "default", "id", "on_failure", "priority", "queue", "when"})
_STEP_KEYS = _KEYS | {"args", "deps", "errors", "headers", "kwargs", "rule", "timeout"}


class WorkflowBuilder(StepParts):
    """Gathers the steps of one graph. Nothing is sent before the whole of it has been checked.

    Args:
        app: The app whose tasks it uses.
        name: The workflow's name.
        queue: The queue of steps whose task names none.
        priority: The priority of steps whose task names none.
    """

    def __init__(
        self, app: App, name: str = "", *, queue: str | None = None, priority: int | None = None
    ) -> None:
        self.app = app
        self.name = name
        self.queue = queue
        self.priority = priority
        self.steps: dict[str, PlanStep] = {}
        """What has been declared, in order."""

    # --- steps ---

    @overload
    def step(
        self, name: str, task: Runs[..., Coroutine[Any, Any, T]], **options: Unpack[StepOptions]
    ) -> Step[T]: ...
    @overload
    def step(self, name: str, task: Runs[..., T], **options: Unpack[StepOptions]) -> Step[T]: ...
    @overload
    def step(self, name: str, task: str, **options: Unpack[StepOptions]) -> Step[Any]: ...
    def step(self, name: str, task: Any, **options: Any) -> Step[Any]:
        """A job of `task`, released when what it depends on has ended as its rule wants.

        Args:
            name: Unique in the graph.
            task: A task, or the name of one.
            options: See `StepOptions`.
        """
        self._refuse_options(name, options, _STEP_KEYS)
        return self._task_step(name, task, options, [])

    @overload
    def join(
        self,
        name: str,
        task: Runs[..., Coroutine[Any, Any, T]],
        deps: Iterable[Ref] = (),
        collect: str | None = None,
        *,
        open: bool = False,
        **options: Unpack[JoinOptions],
    ) -> Step[T]: ...
    @overload
    def join(
        self,
        name: str,
        task: Runs[..., T],
        deps: Iterable[Ref] = (),
        collect: str | None = None,
        *,
        open: bool = False,
        **options: Unpack[JoinOptions],
    ) -> Step[T]: ...
    @overload
    def join(
        self,
        name: str,
        task: str,
        deps: Iterable[Ref] = (),
        collect: str | None = None,
        *,
        open: bool = False,
        **options: Unpack[JoinOptions],
    ) -> Step[Any]: ...
    def join(
        self,
        name: str,
        task: Any,
        deps: Iterable[Ref] = (),
        collect: str | None = None,
        *,
        open: bool = False,
        **options: Any,
    ) -> Step[Any]:
        """A step that gets the results of many in one list, in the order in which they are named.

        Args:
            name: Unique in the graph.
            task: A task, or the name of one.
            deps: What it waits for; may be empty.
            collect: The parameter that gets the list; the first one when left out.
            open: Steps that run before it may add to what it waits for (`ctx.add_to_join`).
            options: See `JoinOptions`.
        """
        self._refuse_options(name, options, _STEP_KEYS - {"deps"})
        given: tuple[Any, ...] = tuple(options.pop("args", ()))
        into: str | int = len(given) if collect is None else collect
        edges = [
            PlanEdge(source=source, into=into, path=path, collect=True)
            for source, path in (self._source(name, each) for each in many(name, deps))
        ]
        if not edges:
            if isinstance(into, int):
                given = (*given, [])
            else:
                options["kwargs"] = {**(options.get("kwargs") or {}), into: []}
        return self._task_step(name, task, {**options, "args": given}, edges, is_open=open)

    def gather(
        self, name: str, deps: Iterable[Ref], **options: Unpack[NodeOptions]
    ) -> Step[list[Any]]:
        """A node without a task, whose value is the list of its dependencies' values.

        With N producers and M consumers it costs N+M edges, where direct ones cost N·M.
        """
        given = cast("dict[str, Any]", options)
        self._refuse_options(name, given, _KEYS - {"id", "queue", "priority", "when"})
        edges = [
            PlanEdge(source=source, into=0, path=path, collect=True)
            for source, path in (self._source(name, each) for each in many(name, deps))
        ]
        if not edges:
            raise ConfigError(f"step {name!r} gathers nothing: name at least one step in deps")
        return self._add(name, "gather", given, edges, queue=self._queue(None, None), priority=0)

    @overload
    def map(
        self,
        name: str,
        task: Runs[..., Coroutine[Any, Any, T]],
        *,
        over: Ref | Iterable[Any],
        arg: str | None = None,
        max_concurrency: int | None = None,
        tolerate: int = 0,
        **options: Unpack[StepOptions],
    ) -> Step[list[T]]: ...
    @overload
    def map(
        self,
        name: str,
        task: Runs[..., T],
        *,
        over: Ref | Iterable[Any],
        arg: str | None = None,
        max_concurrency: int | None = None,
        tolerate: int = 0,
        **options: Unpack[StepOptions],
    ) -> Step[list[T]]: ...
    @overload
    def map(
        self,
        name: str,
        task: str | None = None,
        *,
        over: Ref | Iterable[Any],
        arg: str | None = None,
        workflow: str | None = None,
        max_concurrency: int | None = None,
        tolerate: int = 0,
        **options: Unpack[StepOptions],
    ) -> Step[list[Any]]: ...
    def map(
        self,
        name: str,
        task: Any = None,
        *,
        over: Any,
        arg: str | None = None,
        workflow: str | None = None,
        max_concurrency: int | None = None,
        tolerate: int = 0,
        **options: Any,
    ) -> Step[list[Any]]:
        """One job of `task`, or one run of `workflow`, for each item of a list; results in item order.

        Args:
            name: Unique in the graph.
            task: A task, or the name of one.
            over: A step or a field whose value is the list, or a list.
            arg: The parameter that gets the item; the first free one when left out.
            workflow: The name of a workflow, instead of a task.
            max_concurrency: At most so many of its items run at once.
            tolerate: So many items may fail; `default` takes their place in the list.
            options: See `StepOptions`; `args`, `kwargs` and `deps` are the same for all items.
        """
        self._refuse_options(name, options, _STEP_KEYS - {"errors"})
        if (task is None) == (workflow is None):
            raise ConfigError(f"map {name!r} takes a task or workflow=, one of the two")
        checks.whole(f"tolerate of map {name!r}", tolerate, 0)
        if max_concurrency is not None:
            checks.whole(f"max_concurrency of map {name!r}", max_concurrency, 1)
        items, edges = self._items(name, over)
        target = None if task is None else self._task_of(name, task)
        deps = self._deps(name, options.get("deps", {}), 0)
        if any(isinstance(edge.into, int) for edge in deps):
            raise ConfigError(f"deps of map {name!r} go to parameters by name: {{param: step}}")
        arg = self._item_parameter(name, target, arg, options, deps)
        content_type, body = self._encode(
            name,
            target,
            tuple(options.get("args", ())),
            options.get("kwargs") or {},
            {arg, *(edge.into for edge in deps)},
        )
        if workflow is not None and options.get("args"):
            raise ConfigError(f"a workflow takes its parameters by name: kwargs= of map {name!r}")
        return self._add(
            name,
            "map",
            options,
            [*edges, *deps],
            task=self._name_of(target) if task is not None else "",
            workflow=workflow or "",
            queue=self._queue(options.get("queue"), target),
            priority=self._priority(name, options.get("priority"), target),
            content_type=content_type,
            body=body,
            arg=arg,
            items=items,
            max_concurrency=max_concurrency or 0,
            tolerate=tolerate,
            rule=self._rule(name, options),
            headers=headers(options),
            timeout=timeout(name, options),
        )

    def run(
        self,
        workflow: str,
        params: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        **options: Unpack[NodeOptions],
    ) -> Step[Any]:
        """A run of another workflow as a step; its value is what the other's `get()` gives.

        Args:
            workflow: The other's name.
            params: Its parameters: values, steps, or fields of their results.
            name: Unique in the graph; the other's name when left out.
            options: See `NodeOptions`.
        """
        name = workflow if name is None else name
        given = cast("dict[str, Any]", options)
        self._refuse_options(name, given, _KEYS)
        static = {
            key: value
            for key, value in (params or {}).items()
            if not isinstance(value, (Step, Field))
        }
        edges = self._deps(name, {k: v for k, v in (params or {}).items() if k not in static}, 0)
        content_type, body = self._encode(name, None, (), static, set())
        return self._add(
            name,
            "run",
            given,
            edges,
            workflow=check_name("workflow name", workflow),
            queue=self._queue(given.get("queue"), None),
            priority=self._priority(name, given.get("priority"), None),
            content_type=content_type,
            body=body,
        )

    def sleep(
        self,
        name: str,
        seconds: float,
        after: Iterable[Ref] | Ref = (),
        **options: Unpack[SleepOptions],
    ) -> Step[None]:
        """A step that ends so many seconds after what it comes after; no slot is held meanwhile."""
        given = cast("dict[str, Any]", options)
        self._refuse_options(name, given, _KEYS)
        return self._add(
            name,
            "sleep",
            {**given, "after": after},
            [],
            seconds=positive_seconds(f"sleep {name!r}", seconds),
            queue=self._queue(given.get("queue"), None),
            priority=self._priority(name, given.get("priority"), None),
        )

    def when(
        self,
        step: Ref,
        field: str | int | Sequence[str | int] | None = None,
        *,
        task: Task[..., Any] | str | None = None,
        name: str | None = None,
        negate: bool = False,
    ) -> Branch:
        """A condition for `when=`: that a step's result, or a field of it, is true.

        Args:
            step: The step, or a field of its result.
            field: A key, or a path of keys.
            task: A predicate: a task that gets the value and says whether it holds. It becomes a step.
            name: The name of that step.
            negate: The condition is that it does not hold.
        """
        source, path = self._source("when", step)
        if field is not None:
            path = (*path, *((field,) if isinstance(field, (str, int)) else field))
        if task is None:
            return Branch(PlanCondition(source=source, path=path, negate=negate))
        name = name or f"{source}?{len(self.steps)}"
        target = self._task_of(name, task)
        edge = PlanEdge(source=source, into=0, path=path)
        made = self._task_step(name, target, {}, [edge])
        return Branch(PlanCondition(source=made.name, negate=negate))

    # --- parts ---

    def _task_step(
        self,
        name: str,
        task: Any,
        options: Mapping[str, Any],
        edges: list[PlanEdge],
        *,
        is_open: bool = False,
    ) -> Step[Any]:
        target = self._task_of(name, task)
        args = tuple(options.get("args", ()))
        edges = [*edges, *self._deps(name, options.get("deps", {}), len(args))]
        rule = self._rule(name, options)
        filled: set[str | int | None] = {edge.into for edge in edges if not edge.at}
        if (errors := options.get("errors")) is not None:
            filled.add(errors)
            sources = dict.fromkeys(edge.source for edge in edges)
            sources.update(dict.fromkeys(s for s, _ in self._after(name, options)))
            edges += [PlanEdge(source=source, into=errors, errors=True) for source in sources]
        content_type, body = self._encode(name, target, args, options.get("kwargs") or {}, filled)
        return self._add(
            name,
            "step",
            options,
            edges,
            task=self._name_of(target),
            queue=self._queue(options.get("queue"), target),
            priority=self._priority(name, options.get("priority"), target),
            content_type=content_type,
            body=body,
            rule=rule,
            open=is_open,
            headers=headers(options),
            timeout=timeout(name, options),
        )

    def _add(
        self, name: str, kind: Any, options: Mapping[str, Any], edges: list[PlanEdge], **fields: Any
    ) -> Step[Any]:
        check_step_name(name)
        if name in self.steps:
            raise ConfigError(f"two steps have the name {name!r}: names are unique in a graph")
        on_failure = cast(
            "OnFailure",
            checks.one_of(
                f"on_failure of step {name!r}",
                options.get("on_failure", "fail"),
                ("fail", "continue", "tolerate"),
            ),
        )
        edges = [*edges, *(PlanEdge(source=source) for source, _ in self._after(name, options))]
        default = options.get("default")
        branches = options.get("when", ())
        branches = (branches,) if isinstance(branches, Branch) else tuple(branches)
        for branch in branches:
            if not isinstance(branch, Branch):
                raise ConfigError(f"when= of step {name!r} takes what wf.when gives")
        own_id = options.get("id", "")
        if own_id:
            check_name(f"id of step {name!r}", own_id)
        self.steps[name] = PlanStep(
            name=name,
            id=own_id,
            kind=kind,
            edges=tuple(edges),
            conditions=tuple(branch.condition for branch in branches),
            on_failure=on_failure,
            default=None
            if default is None
            else self._payload(f"default of step {name!r}", default),
            **fields,
        )
        return Step(name, self)
