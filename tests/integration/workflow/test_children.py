"""Conditions, sub-workflows, timers, joins that grow."""

from __future__ import annotations

from typing import Any

import pytest

from support.flows import Flows
from taskmq import RemoteError, current_task
from taskmq.workflow import WorkflowBuilder


@pytest.mark.parametrize("ok", [True, False])
def test_a_field_decides_which_branch_runs(flows: Flows, ok: bool) -> None:
    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> Any:
        check = wf.step("check", flows.give, args=({"ok": ok},))
        branch = wf.when(check, field="ok")
        yes = wf.step("yes", flows.give, args=("yes",), when=branch)
        no = wf.step("no", flows.give, args=("no",), when=~branch, default="left out")
        return wf.join("join", flows.collect, deps=[yes, no])

    run = flows.run("w")
    assert run.get(timeout=5) == (["yes", "left out"] if ok else [None, "no"])
    assert flows.states(run)["no" if ok else "yes"] == "SKIPPED"
    assert "condition" in run.status().steps["no" if ok else "yes"].cause
    assert run.status().state == "SUCCEEDED"
    assert flows.calls["no" if ok else "yes"] == 0


def test_a_predicate_decides(flows: Flows) -> None:
    @flows.app.task(name="is big")
    def is_big(n: int) -> bool:
        return n > 10

    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder, n: int) -> Any:
        number = wf.step("number", flows.give, args=(n,))
        branch = wf.when(number, task=is_big)
        wf.step("big", flows.give, args=("big",), when=branch)
        wf.step("small", flows.give, args=("small",), when=~branch)

    assert flows.run("w", n=11).get(timeout=5) == {"big": "big", "small": None}
    assert flows.run("w", n=1).get(timeout=5) == {"big": None, "small": "small"}


def test_a_failed_condition_skips_as_a_failure_does(flows: Flows) -> None:
    flows.fail["check"] = -1

    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> Any:
        branch = wf.when(wf.step("check", flows.give), field="ok")
        a = wf.step("a", flows.give, when=branch)
        return wf.step("b", flows.give, after=a)

    assert flows.states(flows.run("w")) == {"check": "FAILED", "a": "SKIPPED", "b": "SKIPPED"}


def test_a_skipped_sink_raises_with_its_cause(flows: Flows) -> None:
    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> Any:
        branch = wf.when(wf.step("check", flows.give, args=(0,)))
        return wf.step("sink", flows.give, when=branch)

    with pytest.raises(
        RemoteError, match="its sink 'sink' was skipped: the condition on step 'check'"
    ):
        flows.run("w").get(timeout=5)


def test_a_workflow_as_a_step(flows: Flows) -> None:
    @flows.app.workflow("inner")
    def _inner(wf: WorkflowBuilder, p: int, q: int = 5) -> Any:
        return wf.step("sum", flows.add, args=(p,), kwargs={"b": q})

    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> Any:
        a = wf.step("a", flows.give, args=({"n": 30},))
        other = wf.run("inner", {"p": a["n"], "q": 7})
        return wf.step("b", flows.add, deps={"a": other})

    run = flows.run("w")
    assert run.get(timeout=5) == 38
    assert flows.states(run) == {"a": "SUCCEEDED", "inner": "SUCCEEDED", "b": "SUCCEEDED"}


def test_a_workflow_as_a_step_fails_as_its_steps_do(flows: Flows) -> None:
    flows.fail["sum"] = -1

    @flows.app.workflow("inner")
    def _inner(wf: WorkflowBuilder) -> Any:
        return wf.step("sum", flows.give)

    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> Any:
        return wf.step("b", flows.give, deps={"value": wf.run("inner")})

    run = flows.run("w")
    with pytest.raises(
        RemoteError, match="step 'inner' ended FAILED.*step 'sum' ended FAILED.*Boom"
    ):
        run.get(timeout=5)


def test_a_step_turns_into_a_run_while_it_waits(flows: Flows) -> None:
    @flows.app.workflow("inner")
    def _inner(wf: WorkflowBuilder, n: int) -> Any:
        return wf.map("parts", flows.add, over=list(range(n)), arg="a")

    @flows.app.task(name="turns")
    def turns(n: int) -> Any:
        flows.calls["turns"] += 1
        return current_task().become("inner", {"n": n})

    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> Any:
        return wf.join("end", flows.collect, [wf.step("t", turns, args=(3,))])

    assert flows.run("w").get(timeout=5) == [[1, 2, 3]]
    job = turns.delay(2)
    flows.drain()
    assert job.get(timeout=5) == [1, 2]
    assert flows.calls["turns"] == 2


def test_a_task_that_turns_into_what_there_is_not_fails(flows: Flows) -> None:
    @flows.app.task(name="turns")
    def turns() -> Any:
        return current_task().become("nothing")

    job = turns.delay()
    flows.drain()
    with pytest.raises(RemoteError, match="no workflow 'nothing'"):
        job.get(timeout=5)


def test_a_sleep_takes_its_time_and_no_slot(flows: Flows) -> None:
    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> Any:
        a = wf.step("a", flows.give, args=(1,))
        cool = wf.sleep("cool", 0.3, after=a)
        return wf.step("b", flows.give, args=(2,), after=cool)

    run = flows.run("w")
    assert run.get(timeout=5) == 2
    steps = run.status().steps
    began, ended = steps["a"].finished_at, steps["b"].started_at
    assert began is not None
    assert ended is not None
    assert ended - began >= 0.29


def test_a_join_gains_a_dependency_before_it_starts(flows: Flows) -> None:
    @flows.app.task(name="grows")
    def grows(count: int) -> str:
        for number in range(count):
            current_task().add_to_join("join", flows.give, f"added {number}")
        return "grown"

    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> Any:
        a = wf.step("a", grows, args=(3,))
        b = wf.step("b", flows.give, args=("b",))
        return wf.join("join", flows.collect, deps=[a, b], open=True)

    assert flows.run("w").get(timeout=5) == ["grown", "b", "added 0", "added 1", "added 2"]


def test_only_open_joins_behind_it_can_be_added_to(flows: Flows) -> None:
    @flows.app.task(name="grows")
    def grows(to: str) -> None:
        current_task().add_to_join(to, flows.give)

    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder, to: str) -> None:
        a = wf.step("a", grows, args=(to,))
        wf.join("closed", flows.collect, deps=[a])
        wf.join("elsewhere", flows.collect, deps=[], open=True)

    with pytest.raises(RemoteError, match="no join 'closed' that was declared with open=True"):
        flows.run("w", to="closed").get(timeout=5)
    with pytest.raises(RemoteError, match="'elsewhere' does not depend on step 'a'"):
        flows.run("w", to="elsewhere").get(timeout=5)
