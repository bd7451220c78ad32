"""What failures lead to: modes, skips and their causes, edges taken on failure."""

from __future__ import annotations

from typing import Any

import pytest

from support.flows import Flows
from taskmq import RemoteError, Retry
from taskmq.workflow import WorkflowBuilder


def test_a_step_that_fails_once_is_retried_and_the_run_goes_on(flows: Flows) -> None:
    flows.fail["a"] = 2

    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> Any:
        return wf.step("b", flows.add, deps={"a": wf.step("a", flows.retried, args=(4,))})

    assert flows.run("w").get(timeout=5) == 5
    assert flows.calls == {"a": 3, "b": 1}


def test_fail_fails_the_run_and_skips_what_depends_on_it(flows: Flows) -> None:
    flows.fail["a"] = -1

    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> Any:
        a = wf.step("a", flows.give)
        b = wf.step("b", flows.give, deps={"value": a})
        c = wf.step("c", flows.give, deps={"value": b})
        wf.step("other", flows.give, args=(1,))
        return c

    run = flows.run("w")
    assert flows.states(run) == {
        "a": "FAILED", "b": "SKIPPED", "c": "SKIPPED", "other": "SUCCEEDED",
    }  # fmt: skip
    status = run.status()
    assert status.state == "FAILED"
    assert "'a'" in status.steps["c"].cause
    assert status.reason == "step 'a' ended FAILED"
    with pytest.raises(RemoteError, match="step 'a' ended FAILED: .*Boom: a failed") as caught:
        run.get(timeout=5)
    assert "Traceback" in caught.value.traceback
    assert flows.calls["b"] == flows.calls["c"] == 0


def test_continue_skips_its_dependants_and_the_run_succeeds(flows: Flows) -> None:
    flows.fail["a"] = -1

    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> Any:
        a = wf.step("a", flows.give, on_failure="continue")
        b = wf.step("b", flows.give, deps={"value": a})
        wf.join("c", flows.collect, deps=[b])
        return wf.step("sink", flows.give, args=(7,))

    run = flows.run("w")
    assert flows.states(run) == {
        "a": "FAILED", "b": "SKIPPED", "c": "SKIPPED", "sink": "SUCCEEDED",
    }  # fmt: skip
    assert run.status().state == "SUCCEEDED"
    assert run.get(timeout=5) == 7


@pytest.mark.parametrize("which", ["b", "c"])
def test_a_step_behind_continue_still_fails_the_run_by_itself(flows: Flows, which: str) -> None:
    flows.fail[which] = -1

    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> None:
        a = wf.step("a", flows.give, on_failure="continue")
        b = wf.step("b", flows.give, deps={"value": a})
        wf.step("c", flows.give, deps={"value": b})

    assert flows.run("w").status().state == "FAILED"


def test_a_sink_behind_continue_names_the_cause(flows: Flows) -> None:
    flows.fail["a"] = -1

    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> Any:
        a = wf.step("a", flows.give, on_failure="continue")
        return wf.step("b", flows.give, deps={"value": a})

    run = flows.run("w")
    assert run.status().state == "SUCCEEDED"
    with pytest.raises(RemoteError, match="its sink 'b' was skipped: step 'a' ended FAILED"):
        run.get(timeout=5)


def test_tolerate_runs_dependants_with_the_default(flows: Flows) -> None:
    flows.fail["a"] = -1

    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> Any:
        a = wf.step("a", flows.give, args=(1,), on_failure="tolerate", default=40)
        n = wf.step("n", flows.give, on_failure="tolerate")
        b = wf.step("b", flows.add, deps={"a": a})
        return wf.join("j", flows.collect, deps=[a, n, b])

    flows.fail["n"] = -1
    run = flows.run("w")
    assert run.get(timeout=5) == [40, None, 41]
    assert run.status().state == "SUCCEEDED"
    assert flows.states(run)["a"] == "FAILED"
    assert {each.id for each in flows.app.transport.list_dead().letters} == {
        f"{run.id}::a",
        f"{run.id}::n",
    }


def test_an_edge_taken_on_failure_is_taken_once(flows: Flows) -> None:
    flows.fail |= {"a": -1, "b": -1}

    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> Any:
        parts = [wf.step(name, flows.give) for name in "abc"]
        wf.join("body", flows.collect, deps=parts)
        wf.step("alert", flows.errors, after=parts, rule="any_failed", errors="errors")

    run = flows.run("w")
    assert flows.calls["alert"] == 1
    assert flows.calls["body"] == 0
    assert run.status().state == "FAILED"
    told = flows.app.handle(f"{run.id}::alert").get(timeout=5)
    assert {each["step"] for each in told} <= {"a", "b"}
    assert told[0]["message"] == f"{told[0]['step']} failed"


def test_an_edge_on_failure_is_not_taken_when_all_is_well(flows: Flows) -> None:
    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> Any:
        a = wf.step("a", flows.give, args=(3,))
        alert = wf.step("alert", flows.errors, after=a, rule="any_failed", errors="errors")
        wf.step("behind", flows.give, after=alert)
        return a

    run = flows.run("w")
    assert flows.states(run) == {"a": "SUCCEEDED", "alert": "SKIPPED", "behind": "SKIPPED"}
    assert run.status().state == "SUCCEEDED"
    assert run.get(timeout=5) == 3


def test_a_step_that_always_runs(flows: Flows) -> None:
    flows.fail["a"] = -1

    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> Any:
        a = wf.step("a", flows.give, on_failure="continue")
        return wf.step("end", flows.give, deps={"value": a}, rule="all_done")

    run = flows.run("w")
    assert run.get(timeout=5) is None
    assert flows.calls["end"] == 1


def test_deduplication_does_not_swallow_a_retried_step(flows: Flows) -> None:
    """The same task and arguments in many steps, each failing once."""
    flows.fail |= {f"s{i}": 1 for i in range(10)}

    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> Any:
        return wf.join(
            "j", flows.collect, [wf.step(f"s{i}", flows.retried, args=(1,)) for i in range(10)]
        )

    assert flows.run("w").get(timeout=5) == [1] * 10
    assert all(flows.calls[f"s{i}"] == 2 for i in range(10))


def test_a_retry_may_change_the_call(flows: Flows) -> None:
    @flows.app.task(name="moves", bind=True, retry=Retry(max_attempts=3))
    def moves(self: Any, place: str, rows: list[int]) -> str:
        if place != "three":
            follow = {"one": "two", "two": "three"}[place]
            raise self.retry(delay=0, args=(follow,))
        return f"{place}:{rows}"

    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> Any:
        rows = wf.step("rows", flows.give, args=([1, 2],))
        return wf.step("moves", moves, args=("one",), deps={"rows": rows})

    assert flows.run("w").get(timeout=5) == "three:[1, 2]"


def test_a_retry_may_look_at_the_exception_or_at_the_value(flows: Flows) -> None:
    seen: list[str] = []

    @flows.app.task(
        name="poll", retry=Retry(max_attempts=5, base=0.0, retry_result=lambda value: value is None)
    )
    def poll() -> Any:
        seen.append("poll")
        return "there" if seen.count("poll") == 3 else None

    @flows.app.task(
        name="picky", retry=Retry(max_attempts=5, base=0.0, retry_if=lambda e: "later" in str(e))
    )
    def picky() -> None:
        seen.append("picky")
        raise ValueError("later" if seen.count("picky") < 3 else "never")

    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> Any:
        wf.step("picky", picky, on_failure="continue")
        return wf.step("poll", poll)

    assert flows.run("w").get(timeout=5) == "there"
    assert (seen.count("poll"), seen.count("picky")) == (3, 3)
