"""The plan of a run: a plain, versioned data structure, stored with the run.

Everything that makes plans (the builder, a loader of declarations) makes these structs; everything that
reads them (the planner, handles, pictures) needs nothing else. Steps stand in an order in which each
comes after what it depends on.
"""

from __future__ import annotations

from typing import Any, Literal, Union

import msgspec

from taskmq.errors import ProtocolError
from taskmq.transport.types import Payload

PLAN_VERSION = 1

Kind = Literal["step", "map", "run", "sleep", "gather"]
OnFailure = Literal["fail", "continue", "tolerate"]
Rule = Literal["all_ok", "all_done", "any_failed"]
Path = tuple[Union[str, int], ...]


class PlanEdge(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a step takes from another one.

    `into` is a parameter's name, a position among the positional arguments, or None for an edge that
    only orders. With `collect` the value is appended to the list in that parameter. `path` picks a part of
    the source's value, `at` a place inside the parameter's. With `errors` the value is why the source
    failed.
    """

    source: str
    into: Union[str, int, None] = None
    path: Path = ()
    at: Path = ()
    collect: bool = False
    errors: bool = False


class PlanCondition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The step runs only if this part of the source's value is true (`negate`: is not)."""

    source: str
    path: Path = ()
    negate: bool = False


class PlanStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One node of the graph."""

    name: str
    id: str = ""
    """Its job id, where the caller chose one; else `{run}::{name}`."""
    kind: Kind = "step"
    task: str = ""
    """The task's full name; of a map over a workflow, or of a child run, empty."""
    workflow: str = ""
    queue: str = ""
    priority: int = 0
    edges: tuple[PlanEdge, ...] = ()
    conditions: tuple[PlanCondition, ...] = ()
    rule: Rule = "all_ok"
    on_failure: OnFailure = "fail"
    default: Union[Payload, None] = None
    """What stands in for its value when it failed and is tolerated, or was skipped; None is None."""
    content_type: str = ""
    headers: Union[dict[str, Any], None] = None
    timeout: Union[float, None] = None
    body: bytes = b""
    """The encoded static arguments. Left out of the stored plan: the steps' own messages have them."""
    arg: str = ""
    """Of a map: the parameter that gets the item."""
    items: Union[Payload, None] = None
    """Of a map: the list, when it was known at submit."""
    max_concurrency: int = 0
    tolerate: int = 0
    seconds: float = 0.0
    """Of a sleep."""
    open: bool = False
    """Whether steps that run before it may add to what it waits for."""

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of the steps it depends on, each once, in order."""
        names = [edge.source for edge in self.edges]
        names += [condition.source for condition in self.conditions]
        return tuple(dict.fromkeys(names))


class WorkflowPlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The graph of one run.

    `sinks` are the steps whose results the run gives: one step (`shape="one"`), a list of them
    (`"list"`), or all leaves by name (`"leaves"`).
    """

    v: int = PLAN_VERSION
    workflow: str = ""
    steps: tuple[PlanStep, ...] = ()
    sinks: tuple[str, ...] = ()
    shape: Literal["one", "list", "leaves"] = "leaves"
    budget: Union[Budget, None] = None
    deadline: Union[float, None] = None
    submitted: str = ""
    """The parameters it was built from, as text, for people."""

    def step(self, name: str) -> PlanStep:
        """The step of this name.

        Raises:
            KeyError: There is none.
        """
        for each in self.steps:
            if each.name == name:
                return each
        raise KeyError(name)

    def stored(self) -> WorkflowPlan:
        """The plan without the static arguments, as it is kept with the run."""
        slim = tuple(
            msgspec.structs.replace(step, body=b"", content_type="", items=None)
            if step.body or step.items is not None
            else step
            for step in self.steps
        )
        return msgspec.structs.replace(self, steps=slim)


class Budget(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a run may use up; None is no limit.

    A run that would exceed it starts no further step and fails with that reason.
    """

    max_attempts: Union[int, None] = None
    """Attempts of all its steps together, items of maps and steps of child runs included."""
    max_jobs: Union[int, None] = None
    """Jobs: its steps, items of maps, steps of child runs."""
    max_cost: Union[float, None] = None
    """What `ctx.spend` may add up to."""


def decode_plan(data: bytes) -> WorkflowPlan:
    """Read a stored plan.

    Raises:
        ProtocolError: It is none, or of a version that is not known here.
    """
    try:
        plan = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"undecodable plan: {error}") from error
    if plan.v != PLAN_VERSION:
        raise ProtocolError(
            f"plan of version {plan.v}: this taskmq reads version {PLAN_VERSION}, upgrade it"
        )
    return plan


def encode_plan(plan: WorkflowPlan) -> bytes:
    """Encode a plan for its run's record."""
    return _encoder.encode(plan)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(WorkflowPlan)
