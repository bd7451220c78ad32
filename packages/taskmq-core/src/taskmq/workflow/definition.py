"""Workflows as they are declared: a function that builds a graph, and what its runs have in common."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from taskmq._internal import checks
from taskmq.errors import ConfigError
from taskmq.names import check_name
from taskmq.policy import check_priority, positive_seconds
from taskmq.protocol.convert import SignatureModel
from taskmq.workflow.builder import WorkflowBuilder
from taskmq.workflow.checks import make_plan
from taskmq.workflow.handle import WorkflowHandle
from taskmq.workflow.messages import RunPlace, run_messages
from taskmq.workflow.names import PREFIX, RUN_TASK, new_run_id
from taskmq.workflow.plan import Budget

if sys.version_info >= (3, 11):
    from typing import ParamSpec
else:
    from typing_extensions import ParamSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from taskmq.app import App
    from taskmq.workflow.plan import WorkflowPlan

P = ParamSpec("P")
R = TypeVar("R")


_OPTIONS = frozenset({"budget", "deadline", "priority", "queue", "run_id"})


class Workflow(Generic[P, R]):
    """A registered workflow; made by `@app.workflow`.

    Args:
        app: Its app.
        name: Its name.
        function: Builds the graph: `function(wf, **params)`.
        queue: Where steps go whose task names no queue.
        priority: What steps get whose task names none.
        deadline: Seconds that a run may take.
        budget: What a run may use up.
    """

    def __init__(
        self,
        app: App,
        name: str,
        function: Callable[..., Any],
        *,
        queue: str | None = None,
        priority: int | None = None,
        deadline: float | None = None,
        budget: Budget | None = None,
    ) -> None:
        self.app = app
        self.name = check_name("workflow name", name)
        self.function = function
        self.queue = None if queue is None else check_name("queue", queue)
        self.priority = check_priority(priority, f"priority of workflow {name!r}")
        self.deadline = _deadline(name, deadline)
        self.budget = _budget(name, budget)
        self.__doc__ = function.__doc__
        try:
            self.signature = SignatureModel.of(function, True, types=app.codecs.types)
        except TypeError as error:
            raise ConfigError(
                f"workflow {name!r}: {error}; its function takes the builder first: def {name}(wf, …)"
            ) from error

    def plan(
        self,
        params: Mapping[str, Any],
        *,
        queue: str | None = None,
        priority: int | None = None,
        deadline: float | None = None,
        budget: Budget | None = None,
    ) -> WorkflowPlan:
        """Build and check the graph for these parameters, without sending anything.

        Raises:
            TypeError: The parameters don't fit the function.
            ConfigError: The graph has a fault; the message names the step.
        """
        given: Any = params
        if not hasattr(given, "keys"):
            raise ConfigError(
                f"the parameters of workflow {self.name!r} are a dict, not {params!r:.80}"
            )
        _, kwargs = self.signature.convert((), params, types=self.app.codecs.types)
        builder = WorkflowBuilder(
            self.app,
            self.name,
            queue=self.queue if queue is None else queue,
            priority=self.priority if priority is None else priority,
        )
        returned = self.function(builder, **kwargs)
        if returned is builder:
            returned = None
        return make_plan(
            builder,
            returned,
            budget=self.budget if budget is None else budget,
            deadline=self.deadline if deadline is None else deadline,
            submitted=f"{dict(params)!r:.500}",
        )

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> WorkflowHandle[R]:
        """Start a run with these parameters."""
        bound = self.signature.bound(args, kwargs)
        for name, parameter in self.signature.signature.parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                bound.update(bound.pop(name, {}))
        return self.start(bound)

    def start(self, params: Mapping[str, Any], **options: Any) -> WorkflowHandle[R]:
        """Start a run; `options` are those of `App.submit_workflow`."""
        for option in options:
            if option not in _OPTIONS:
                raise ConfigError(
                    f"submit_workflow has no option {option!r}"
                    f"{checks.did_you_mean(option, _OPTIONS)} (it has: {', '.join(sorted(_OPTIONS))})"
                )
        run_id = options.pop("run_id", None)
        if run_id is not None:
            check_name("run_id", run_id, limit=120)
            if not run_id.startswith(PREFIX):
                raise ConfigError(
                    f"a run_id begins with {PREFIX!r}, as 'wf-order-42', not {run_id!r}"
                )
        self._check_params(params)
        options["priority"] = check_priority(options.get("priority"))
        options["deadline"] = _deadline(self.name, options.get("deadline"))
        options["budget"] = _budget(self.name, options.get("budget"))
        plan = self.plan(params, **options)
        return cast(
            "WorkflowHandle[R]",
            start_run(
                self.app,
                plan,
                run_id=run_id,
                queue=options.get("queue") or self.queue,
                priority=options["priority"] if options["priority"] is not None else self.priority,
            ),
        )

    def _check_params(self, params: Mapping[str, Any]) -> None:
        try:
            self.signature.bind((), params)
        except TypeError as error:
            raise TypeError(f"workflow {self.name!r}: {error}") from None

    def __repr__(self) -> str:
        return f"<Workflow {self.name}>"


def start_run(
    app: App,
    plan: WorkflowPlan,
    *,
    run_id: str | None = None,
    queue: str | None = None,
    priority: int | None = None,
) -> WorkflowHandle[Any]:
    """Submit a run of a checked plan, in one call: all of it, or nothing."""
    run = run_id or new_run_id()
    place = RunPlace(
        run=run,
        root=run,
        queue=queue or app.config.default_queue,
        priority=priority or 0,
        expires=plan.deadline,
        budget=plan.budget is not None,
    )
    stored = app.enqueue(run_messages(app, plan, place))
    if stored[0].status == "created" and app.events.enabled:
        app.events.emit(
            "workflow.started",
            job=run,
            task=RUN_TASK,
            queue=place.queue,
            workflow=plan.workflow,
            steps=len(plan.steps),
        )
    return WorkflowHandle(app, run)


def _budget(name: str, budget: object) -> Budget | None:
    if budget is None:
        return None
    if not isinstance(budget, Budget):
        raise ConfigError(f"budget of workflow {name!r} is a Budget, not {budget!r:.80}")
    for field, minimum in (("max_attempts", 1), ("max_jobs", 1)):
        value = getattr(budget, field)
        if value is not None:
            checks.whole(f"Budget.{field}", value, minimum)
    if budget.max_cost is not None:
        checks.number("Budget.max_cost", budget.max_cost)
    return budget


def _deadline(name: str, deadline: object) -> float | None:
    return (
        None if deadline is None else positive_seconds(f"deadline of workflow {name!r}", deadline)
    )
