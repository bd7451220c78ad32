"""What a builder hands out while a graph is declared: steps, fields of their results, branches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar, Union

from taskmq.workflow.plan import PlanCondition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from taskmq.workflow.builder import WorkflowBuilder
    from taskmq.workflow.plan import OnFailure, Path, Rule

T_co = TypeVar("T_co", covariant=True)


class Step(Generic[T_co]):
    """A step of a graph that is being declared; `step["url"]` is a field of its result."""

    __slots__ = ("builder", "name")

    def __init__(self, name: str, builder: WorkflowBuilder | None = None) -> None:
        self.name = name
        self.builder = builder

    def __getitem__(self, key: str | int) -> Field:
        return Field(self, (key,))

    def __iter__(self) -> Any:
        raise TypeError(
            f"the result of step {self.name!r} is not known while the graph is declared: use wf.map"
        )

    def __bool__(self) -> bool:
        raise TypeError(
            f"the result of step {self.name!r} is not known while the graph is declared: use wf.when"
        )

    def __repr__(self) -> str:
        return f"<Step {self.name}>"


class Field:
    """A part of a step's result."""

    __slots__ = ("path", "step")

    def __init__(self, step: Step[Any], path: Path) -> None:
        self.step = step
        self.path = path

    def __getitem__(self, key: str | int) -> Field:
        return Field(self.step, (*self.path, key))

    def __iter__(self) -> Any:
        return iter(self.step)

    def __bool__(self) -> bool:
        return bool(self.step)

    def __repr__(self) -> str:
        return f"<Field {self.step.name}{list(self.path)}>"


class Branch:
    """A condition for steps, made by `wf.when`; `~branch` is its opposite."""

    __slots__ = ("condition",)

    def __init__(self, condition: PlanCondition) -> None:
        self.condition = condition

    def __invert__(self) -> Branch:
        made = self.condition
        return Branch(PlanCondition(source=made.source, path=made.path, negate=not made.negate))

    def __bool__(self) -> bool:
        raise TypeError("a branch is decided when the run gets there: pass it as when=branch")


Ref = Union[Step[Any], Field, str]
"""A step, a field of its result, or a step's name."""


class SleepOptions(TypedDict, total=False):
    """What every kind of step may be given."""

    on_failure: OnFailure
    """"fail" (the run fails), "continue" (it does not, dependants are skipped) or "tolerate"
    (dependants run with `default`)."""
    default: Any
    """Stands in for its result when it was tolerated or skipped."""
    when: Branch | Sequence[Branch]
    """Run it only if these conditions hold."""
    queue: str | None
    priority: int | None
    id: str
    """A job id of the caller's own."""


class NodeOptions(SleepOptions, total=False):
    """What a step may be given that is no sleep."""

    after: Iterable[Ref] | Ref
    """Steps that come before it and give it nothing."""


class JoinOptions(NodeOptions, total=False):
    """What a join may be given."""

    args: Iterable[Any]
    kwargs: Mapping[str, Any] | None
    rule: Rule
    """"all_ok", "all_done" (also after failures), or "any_failed" (only after one)."""
    errors: str | None
    """A parameter that gets the list of why dependencies failed."""
    headers: Mapping[str, Any] | None
    timeout: float | None


class StepOptions(JoinOptions, total=False):
    """What a step with a task may be given."""

    deps: Mapping[str, Ref] | Mapping[int, Ref] | Sequence[Ref]
    """By parameter, or as a sequence: positional arguments after `args`."""
