"""The part of `App` that declares workflows and hands out their runs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast, overload

from taskmq._internal.checks import did_you_mean
from taskmq.errors import ConfigError
from taskmq.names import check_name

if sys.version_info >= (3, 11):
    from typing import Concatenate, ParamSpec
else:
    from typing import Concatenate

    from typing_extensions import ParamSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from taskmq.app import App
    from taskmq.workflow.builder import WorkflowBuilder
    from taskmq.workflow.definition import Workflow
    from taskmq.workflow.handle import WorkflowHandle
    from taskmq.workflow.plan import Budget
    from taskmq.workflow.planner import PlanEvaluation
    from taskmq.workflow.steps import Step

P = ParamSpec("P")
R = TypeVar("R")


class _Declares(Protocol):
    """What `App.workflow` returns: a run gives what the steps give that the function returns."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[WorkflowBuilder, P], Step[R]], /
    ) -> Workflow[P, R]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[WorkflowBuilder, P], Sequence[Step[R]]], /
    ) -> Workflow[P, list[R]]: ...
    # Nothing: the results of the leaves by their names.
    @overload
    def __call__(
        self, function: Callable[Concatenate[WorkflowBuilder, P], None], /
    ) -> Workflow[P, dict[str, Any]]: ...


class WorkflowDeclarations:
    """The workflows of an app, and its runs."""

    def __init__(self) -> None:
        self.workflows: dict[str, Workflow[..., Any]] = {}
        """The registered workflows by name."""

    @property
    def _app(self) -> App:
        """What this is the part of."""
        return cast("App", self)

    def workflow(
        self,
        name: str | None = None,
        *,
        queue: str | None = None,
        priority: int | None = None,
        deadline: float | None = None,
        budget: Budget | None = None,
    ) -> _Declares:
        """Declare a workflow: `@app.workflow("etl") def etl(wf, source): …`.

        The function gets a builder and the run's parameters, and returns the step whose result is the
        run's, a list of steps, or nothing (`{leaf: result}`).

        Args:
            name: Its name; the function's when left out.
            queue: Where steps go whose task names no queue.
            priority: What steps get whose task names none.
            deadline: Seconds that a run may take.
            budget: What a run may use up.

        Raises:
            ConfigError: A value is not allowed, or another workflow has the name.
        """
        from taskmq.workflow.definition import Workflow

        if callable(name):
            raise ConfigError("write @app.workflow() or @app.workflow('name'), with parentheses")

        def decorate(function: Callable[..., Any]) -> Workflow[..., Any]:
            own_name: str = getattr(function, "__name__", "workflow")
            made: Workflow[..., Any] = Workflow(
                self._app,
                own_name if name is None else name,
                function,
                queue=queue,
                priority=priority,
                deadline=deadline,
                budget=budget,
            )
            # One step, so that two threads can't both be first.
            if self.workflows.setdefault(made.name, made) is not made:
                raise ConfigError(f"two workflows have the name {made.name!r}")
            return made

        return cast("_Declares", decorate)

    def find_workflow(self, name: str) -> Workflow[..., Any]:
        """The workflow of this name.

        Raises:
            ConfigError: None is registered here.
        """
        found = self.workflows.get(name)
        if found is None:
            raise ConfigError(
                f"no workflow {name!r} is registered here{did_you_mean(name, self.workflows)} "
                f"(there are: {', '.join(map(repr, sorted(self.workflows))) or 'none'})"
            )
        return found

    def submit_workflow(
        self, name: str, params: Mapping[str, Any] | None = None, **options: Any
    ) -> WorkflowHandle[Any]:
        """Start a run.

        Args:
            name: The workflow's name.
            params: Its parameters.
            options: `queue`, `priority`, `deadline` and `budget` instead of the workflow's own; `run_id`,
                an id of your own that begins with "wf-": a repeated call with it changes nothing.

        Raises:
            TypeError: The parameters don't fit.
            ConfigError: The graph has a fault; the message names the step.
        """
        return self.find_workflow(name).start({} if params is None else params, **options)

    def handle_workflow(self, run_id: str) -> WorkflowHandle[Any]:
        """The handle of any run, by its id."""
        from taskmq.workflow.handle import WorkflowHandle

        return WorkflowHandle(self._app, check_name("run id", run_id))

    def advance_workflow(self, run_id: str) -> PlanEvaluation:
        """Do what should follow from the states of a run's steps; what they say now."""
        from taskmq.workflow.repair import advance

        self.handle_workflow(run_id).resume()
        return advance(self._app, run_id)

    def resume_workflow(self, run_id: str) -> WorkflowHandle[Any]:
        """Repair a run that does not go on; harmless for one that does."""
        handle = self.handle_workflow(run_id)
        handle.resume()
        return handle

    def pending_workflows(self, *, limit: int = 1000) -> list[WorkflowHandle[Any]]:
        """The runs that have not ended, oldest first; child runs are part of theirs."""
        from taskmq.workflow.repair import pending_runs

        return [self.handle_workflow(run_id) for run_id in pending_runs(self._app, limit)]
