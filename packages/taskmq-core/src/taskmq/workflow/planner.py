"""From a plan to what the transport is told, and from the states of steps to what should follow. Pure.

`nodes` gives each step its hold and its successors. `evaluate` says, for given states, which steps
should be queued, which skipped, and how the run stands; it serves display, repair and reconciliation. In
normal running the transport advances the graph and nobody reads the plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from taskmq.states import JobState
from taskmq.transport.types import Edge, Hold, HoldRule
from taskmq.workflow.names import step_id, twin_id

if TYPE_CHECKING:
    from collections.abc import Iterable

    from taskmq.workflow.plan import PlanStep, WorkflowPlan

_RULES: Mapping[str, HoldRule] = {
    "all_ok": HoldRule.ALL_OK,
    "all_done": HoldRule.ALL_DONE,
    "any_failed": HoldRule.ANY_FAILED,
}


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """One record of a run: of a step, or of its twin (`step` is its name all the same)."""

    id: str
    step: str
    twin: bool = False
    hold: Hold | None = None
    successors: tuple[Edge, ...] = ()


class Graph(msgspec.Struct, frozen=True, kw_only=True):
    """All records of a run, and the hold of the run's own."""

    hold: Hold
    nodes: tuple[Node, ...]


class PlanEvaluation(msgspec.Struct, frozen=True, kw_only=True):
    """What follows from the states of a run's steps.

    `causes` names, for each step that is or should be skipped by a failure, the step that failed.
    """

    state: JobState
    ready: tuple[str, ...] = ()
    """Held steps whose rule is met: they should be queued."""
    skipped: tuple[str, ...] = ()
    """Held steps whose rule can't be met any more: they should be skipped."""
    failed: tuple[str, ...] = ()
    """Steps whose failure fails the run."""
    causes: Mapping[str, str] = {}


def job_ids(plan: WorkflowPlan, run: str) -> dict[str, str]:
    """The job id of each step."""
    return {step.name: step.id or step_id(run, step.name) for step in plan.steps}


def nodes(plan: WorkflowPlan, run: str) -> Graph:
    """The records of a run: what each is held on, and where it arrives."""
    ids = job_ids(plan, run)
    soft = soft_steps(plan)
    by_name = {step.name: step for step in plan.steps}
    successors: dict[str, list[Edge]] = {step.name: [] for step in plan.steps}
    twins: list[Node] = []
    for step in plan.steps:
        for source in step.sources:
            edge = _tolerates(by_name[source], step)
            successors[source].append(Edge(ids[step.name], edge))
        if step.name in soft:
            twin = twin_id(ids[step.name])
            for source in step.sources:
                successors[source].append(Edge(twin, _tolerates(by_name[source], step)))
            twins.append(
                Node(
                    id=twin,
                    step=step.name,
                    twin=True,
                    hold=_twin_hold(step),
                    successors=(Edge(run),),
                )
            )
    made = [
        Node(
            id=ids[step.name],
            step=step.name,
            hold=_hold(step),
            successors=(*successors[step.name], Edge(run, not _fails_run(step))),
        )
        for step in plan.steps
    ]
    hold = Hold(
        arrivals=len(made) + len(twins),
        rule=HoldRule.TOLERATE,
        tolerate=len(twins),
        finish=True,
        otherwise=JobState.FAILED,
    )
    return Graph(hold=hold, nodes=(*made, *twins))


def soft_steps(plan: WorkflowPlan) -> frozenset[str]:
    """The steps with `fail` that can be skipped though nothing has failed that fails the run."""
    skippable: set[str] = set()
    by_name = {step.name: step for step in plan.steps}
    for step in plan.steps:
        if step.rule == "any_failed":
            skippable.add(step.name)
        elif step.rule == "all_ok":
            for source in step.sources:
                origin = by_name[source]
                if _tolerates(origin, step):
                    continue
                if origin.on_failure == "continue" or source in skippable:
                    skippable.add(step.name)
    return frozenset(name for name in skippable if _fails_run(by_name[name]))


def evaluate(plan: WorkflowPlan, states: Mapping[str, JobState]) -> PlanEvaluation:
    """What follows from the states of the steps; one that is missing is held.

    A step that was skipped by a condition or an operator counts as SUCCEEDED here: its record says so.
    """
    by_name = {step.name: step for step in plan.steps}
    now: dict[str, JobState] = {}
    causes: dict[str, str] = {}
    ready: list[str] = []
    skipped: list[str] = []
    for step in plan.steps:
        state = states.get(step.name, JobState.PENDING)
        verdict, culprit = _verdict(step, now, by_name)
        if state is JobState.PENDING and verdict == "release":
            ready.append(step.name)
            state = JobState.QUEUED
        elif state is JobState.PENDING and verdict == "skip":
            skipped.append(step.name)
            state = JobState.SKIPPED
        if state is JobState.SKIPPED and culprit:
            causes[step.name] = causes.get(culprit, culprit)
        now[step.name] = state
    failed = tuple(name for name, state in now.items() if _counts(by_name[name], state))
    return PlanEvaluation(
        state=_run_state(now.values(), bool(failed)),
        ready=tuple(ready),
        skipped=tuple(skipped),
        failed=failed,
        causes=causes,
    )


def _run_state(states: Iterable[JobState], failed: bool) -> JobState:
    if not all(state.is_final for state in states):
        return JobState.RUNNING
    return JobState.FAILED if failed else JobState.SUCCEEDED


def _counts(step: PlanStep, state: JobState) -> bool:
    """Whether a step's end fails its run."""
    bad = state.is_final and state not in (JobState.SUCCEEDED, JobState.SKIPPED)
    return bad and _fails_run(step)


def _verdict(
    step: PlanStep, states: Mapping[str, JobState], by_name: Mapping[str, PlanStep]
) -> tuple[str, str]:
    """What the rule says ("wait", "release" or "skip"), and which source decided."""
    arrived = 0
    bad = ""
    for source in step.sources:
        state = states[source]
        if not state.is_final:
            continue
        arrived += 1
        is_ok = state is JobState.SUCCEEDED or _tolerates(by_name[source], step)
        bad = bad or ("" if is_ok else source)
    complete = arrived == len(step.sources)
    if step.rule == "all_ok":
        return ("skip", bad) if bad else ("release" if complete else "wait", "")
    if step.rule == "any_failed" and step.sources:
        return ("release", "") if bad else ("skip" if complete else "wait", "")
    return "release" if complete else "wait", ""


def _tolerates(source: PlanStep, target: PlanStep) -> bool:
    """Whether the edge lets a failure pass; what asks for failures must see them."""
    return source.on_failure == "tolerate" and target.rule == "all_ok"


def _fails_run(step: PlanStep) -> bool:
    # A collecting node does nothing that could fail; its sources count themselves.
    return step.on_failure == "fail" and step.kind != "gather"


def _hold(step: PlanStep) -> Hold | None:
    if not step.sources:
        return None
    finish = step.kind == "gather"
    return Hold(arrivals=len(step.sources), rule=_RULES[step.rule], finish=finish)


def _twin_hold(step: PlanStep) -> Hold:
    """The opposite of a step's rule: it ends well where the step is skipped."""
    opposite = HoldRule.ALL_OK if step.rule == "any_failed" else HoldRule.ANY_FAILED
    return Hold(arrivals=len(step.sources), rule=opposite, finish=True, otherwise=JobState.FAILED)
