"""What is refused at submit: each fault names the step and says what to do. Pure."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from taskmq._internal.checks import did_you_mean
from taskmq.errors import ConfigError
from taskmq.workflow.plan import WorkflowPlan
from taskmq.workflow.steps import Field, Step
from taskmq.workflow.types import fits, item_of, name_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Literal

    from taskmq.workflow.builder import WorkflowBuilder
    from taskmq.workflow.plan import Budget, PlanStep


def make_plan(
    builder: WorkflowBuilder,
    returned: Any = None,
    *,
    budget: Budget | None = None,
    deadline: float | None = None,
    submitted: str = "",
) -> WorkflowPlan:
    """The checked plan of what a builder has gathered.

    Args:
        builder: The builder, after the workflow's function has run.
        returned: What the function returned: a step, a list of steps, or nothing.
        budget: The run's budget.
        deadline: Seconds that the run may take.
        submitted: The parameters, for people.

    Raises:
        ConfigError: The graph is empty, has a cycle, an unknown name or sink, or can't fit the budget.
    """
    name = builder.name
    if not builder.steps:
        raise ConfigError(f"workflow {name!r} has no steps: declare one with wf.step")
    check_sources(builder.steps)
    ordered = in_order(builder.steps)
    for step in ordered:
        _check_types(builder, step)
    sinks, shape = _sinks(builder, returned)
    if budget is not None and budget.max_jobs is not None and len(ordered) > budget.max_jobs:
        raise ConfigError(
            f"workflow {name!r} has {len(ordered)} steps, its budget allows {budget.max_jobs} jobs"
        )
    return WorkflowPlan(
        workflow=name,
        steps=tuple(ordered),
        sinks=sinks,
        shape=shape,
        budget=budget,
        deadline=deadline,
        submitted=submitted,
    )


def check_sources(steps: Mapping[str, PlanStep]) -> None:
    """Refuse dependencies on what there is not, and job ids given twice."""
    taken: dict[str, str] = {}
    for step in steps.values():
        for source in step.sources:
            if source == step.name:
                raise ConfigError(f"step {step.name!r} depends on itself")
            if source not in steps:
                raise ConfigError(
                    f"step {step.name!r} depends on {source!r}, which is no step of this graph"
                    f"{did_you_mean(source, steps)}"
                )
        if step.rule != "all_ok" and not step.sources:
            raise ConfigError(
                f"step {step.name!r} has the rule {step.rule!r} and depends on nothing: name what it "
                f"comes after, in deps or after"
            )
        if step.id and (other := taken.setdefault(step.id, step.name)) != step.name:
            raise ConfigError(f"steps {other!r} and {step.name!r} have the same id {step.id!r}")


def in_order(steps: Mapping[str, PlanStep]) -> list[PlanStep]:
    """The steps, each after what it depends on, otherwise as declared.

    Raises:
        ConfigError: There is a cycle; the message has it.
    """
    done: dict[str, bool] = {}
    ordered: list[PlanStep] = []
    for root in steps:
        # Without recursion: a chain may have thousands of steps.
        stack = [(root, iter(steps[root].sources))] if root not in done else []
        if stack:
            done[root] = False
        while stack:
            name, sources = stack[-1]
            source = next(sources, None)
            if source is None:
                stack.pop()
                done[name] = True
                ordered.append(steps[name])
            elif source not in done:
                done[source] = False
                stack.append((source, iter(steps[source].sources)))
            elif not done[source]:
                names = [each for each, _ in stack]
                cycle = [*names[names.index(source) :], source]
                raise ConfigError(
                    f"the steps depend on each other in a circle: {' -> '.join(reversed(cycle))}; "
                    f"take one dependency out"
                )
    return ordered


def leaves(steps: Iterable[PlanStep]) -> tuple[str, ...]:
    """The steps that nothing depends on, in order."""
    listed = list(steps)
    used = {source for step in listed for source in step.sources}
    return tuple(step.name for step in listed if step.name not in used)


def _check_types(builder: WorkflowBuilder, step: PlanStep) -> None:
    """Refuse a value that can never be what the parameter takes, where both are annotated."""
    task = builder.app.tasks.get(step.task)
    for edge in step.edges:
        source = builder.steps[edge.source]
        gives = _gives(builder, source)
        if edge.path or edge.at == ("over",):
            gives = Any if edge.path else gives
        if edge.at == ("over",):
            _check_list(step, source, gives)
            if task is not None:
                _check_fit(step, source, item_of(gives), task.signature.annotation_of(step.arg))
            continue
        if edge.into is None or edge.at or edge.errors or task is None:
            continue
        takes = task.signature.annotation_of(edge.into)
        _check_fit(step, source, gives, item_of(takes) if edge.collect else takes)
        if edge.collect and not fits(list, takes):
            raise ConfigError(
                f"step {step.name!r}: its parameter {edge.into!r} collects results in a list, and is "
                f"annotated {name_of(takes)}"
            )


def _check_list(step: PlanStep, source: PlanStep, gives: Any) -> None:
    if not fits(gives, list):
        raise ConfigError(
            f"map {step.name!r} needs a list, step {source.name!r} gives {name_of(gives)}"
        )


def _check_fit(step: PlanStep, source: PlanStep, gives: Any, takes: Any) -> None:
    if not fits(gives, takes):
        raise ConfigError(
            f"step {source.name!r} gives {name_of(gives)}, step {step.name!r} takes {name_of(takes)}: "
            f"change an annotation, or pick a field of the result"
        )


def _gives(builder: WorkflowBuilder, step: PlanStep) -> Any:
    """The annotation of a step's value; Any where it is not known."""
    if step.kind == "gather":
        return list[Any]
    task = builder.app.tasks.get(step.task)
    if step.kind == "sleep" or task is None or step.on_failure == "tolerate" or step.conditions:
        return list[Any] if step.kind == "map" and step.on_failure != "tolerate" else Any
    returns: Any = task.signature.returns
    if task.policy.completion == "external":
        # Its value comes from outside, whatever the body is annotated with.
        return Any
    # `list[…]` of an annotation that is known only here is made as the interpreter makes it.
    return types.GenericAlias(list, (returns,)) if step.kind == "map" else returns


def _sinks(
    builder: WorkflowBuilder, returned: Any
) -> tuple[tuple[str, ...], Literal["one", "list", "leaves"]]:
    if returned is None:
        return leaves(builder.steps.values()), "leaves"
    if isinstance(returned, (list, tuple)):
        found: list[Any] = [*returned]
        return tuple(_sink(builder, each) for each in found), "list"
    return (_sink(builder, returned),), "one"


def _sink(builder: WorkflowBuilder, returned: Any) -> str:
    if isinstance(returned, Field):
        raise ConfigError(
            f"workflow {builder.name!r} returns a field of step {returned.step.name!r}: return the step"
        )
    if not isinstance(returned, Step):
        raise ConfigError(
            f"workflow {builder.name!r} returns {returned!r:.80}: return a step, a list of steps, or "
            f"nothing"
        )
    name: str = returned.name
    if name not in builder.steps or returned.builder is not builder:
        raise ConfigError(
            f"workflow {builder.name!r} returns step {name!r}, which is not in its graph"
        )
    return name
