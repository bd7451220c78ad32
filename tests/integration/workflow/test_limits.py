"""Deadlines and budgets, cancelling."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from support.flows import Flows
from support.waiting import wait_until
from taskmq import ConfigError, RemoteError, current_task
from taskmq.testing import worker_for
from taskmq.workflow import Budget, WorkflowBuilder


def test_a_deadline_ends_the_run_and_starts_nothing_more(flows: Flows) -> None:
    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> Any:
        cool = wf.sleep("cool", 30)
        return wf.step("never", flows.give, after=cool)

    run = flows.app.submit_workflow("w", deadline=0.3)
    with worker_for(flows.app) as worker:
        worker.start()
        assert run.wait(20)
    assert run.status().state == "FAILED"
    assert run.status().reason == "deadline"
    with pytest.raises(RemoteError, match="deadline is over"):
        run.get(timeout=5)
    assert flows.calls["never"] == 0


def test_a_deadline_ends_what_is_parked(flows: Flows) -> None:
    @flows.app.workflow("inner")
    def _inner(wf: WorkflowBuilder) -> Any:
        return wf.sleep("long", 60)

    @flows.app.workflow("w", deadline=0.5)
    def _w(wf: WorkflowBuilder) -> Any:
        return wf.run("inner")

    run = flows.app.submit_workflow("w")
    with worker_for(flows.app) as worker:
        worker.start()
        assert run.wait(20)

        def alive() -> list[str]:
            page = flows.app.transport.list_jobs(prefix=f"{run.id}::", limit=100)
            return [each.id for each in page.jobs if not each.state.is_final]

        wait_until(lambda: not alive(), timeout=20)


def test_max_attempts_of_a_run(flows: Flows) -> None:
    @flows.app.workflow("w", budget=Budget(max_attempts=3))
    def _w(wf: WorkflowBuilder, length: int) -> Any:
        step = wf.step("s0", flows.give, args=(0,))
        for number in range(1, length):
            step = wf.step(f"s{number}", flows.add, deps={"a": step})
        return step

    assert flows.run("w", length=3).get(timeout=5) == 2
    run = flows.run("w", length=6)
    with pytest.raises(RemoteError, match="may make 3 attempts, this would be the 4th"):
        run.get(timeout=5)
    assert flows.calls["s3"] == 0
    assert run.status().reason.startswith("budget: ")
    assert all(step.state.is_final for step in run.status().steps.values())


def test_max_jobs_counts_items_before_they_are_made(flows: Flows) -> None:
    @flows.app.workflow("w", budget=Budget(max_jobs=5))
    def _w(wf: WorkflowBuilder, count: int) -> Any:
        return wf.map("parts", flows.add, over=list(range(count)), arg="a")

    assert flows.run("w", count=4).get(timeout=5) == [1, 2, 3, 4]
    run = flows.run("w", count=5)
    with pytest.raises(RemoteError, match="may have 5 jobs, this would make 6"):
        run.get(timeout=5)
    with pytest.raises(ConfigError, match="has 2 steps, its budget allows 1 jobs"):

        @flows.app.workflow("two", budget=Budget(max_jobs=1))
        def _two(wf: WorkflowBuilder) -> None:
            wf.step("a", flows.give)
            wf.step("b", flows.give)

        flows.app.submit_workflow("two")


def test_max_cost_is_spent_by_steps_and_kept_with_labels(flows: Flows) -> None:
    @flows.app.task(name="pays")
    def pays(amount: float) -> None:
        current_task().spend(amount, model="large", tokens=7)

    @flows.app.workflow("w", budget=Budget(max_cost=10))
    def _w(wf: WorkflowBuilder, amounts: list[float]) -> None:
        last: Any = ()
        for number, amount in enumerate(amounts):
            last = wf.step(f"s{number}", pays, args=(amount,), after=last)

    assert flows.run("w", amounts=[4.0, 6.0]).status().state == "SUCCEEDED"
    run = flows.run("w", amounts=[4.0, 6.5, 1.0])
    with pytest.raises(RemoteError, match="may cost 10, it has cost 10.5"):
        run.get(timeout=5)
    spent = [each for each in run.history() if each.outcome == "spent"]
    assert [each.cost for each in spent] == [4.0, 6.5]
    assert spent[0].labels == {"model": "large", "tokens": 7}
    assert spent[0].step == "s0"


def test_spend_outside_a_budget_does_nothing(flows: Flows) -> None:
    @flows.app.task(name="pays")
    def pays() -> str:
        current_task().spend(5)
        return "paid"

    job = pays.delay()
    flows.drain()
    assert job.get(timeout=5) == "paid"


def test_cancel_ends_every_level(flows: Flows) -> None:
    started, release = threading.Event(), threading.Event()
    heard: list[str] = []

    @flows.app.task(name="long")
    def long() -> None:
        started.set()
        while not release.wait(0.01):
            try:
                current_task().check_cancelled()
            except BaseException as error:
                heard.append(str(error))
                raise

    @flows.app.workflow("inner")
    def _inner(wf: WorkflowBuilder) -> Any:
        return wf.step("deep after", flows.give, after=wf.step("deep", long))

    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> Any:
        parts = wf.map("parts", flows.add, over=[1, 2], arg="a")
        child = wf.run("inner", after=parts)
        return wf.step("end", flows.give, after=child)

    run = flows.app.submit_workflow("w")
    with worker_for(flows.app) as worker:
        worker.start()
        assert started.wait(20)
        assert run.cancel()
        assert run.status().state == "REVOKED"

        def alive() -> list[str]:
            page = flows.app.transport.list_jobs(prefix=f"{run.id}::", limit=100)
            return [each.id for each in page.jobs if not each.state.is_final]

        wait_until(lambda: not alive(), timeout=20)
    release.set()
    assert len(heard) == 1
    assert flows.calls["end"] == flows.calls["deep after"] == 0
    with pytest.raises(RemoteError, match="cancelled") as caught:
        run.get(timeout=5)
    assert caught.value.state == "REVOKED"
    assert not run.cancel(), "it has ended"


def test_waiting_for_a_run_inside_a_task_is_refused(flows: Flows) -> None:
    from taskmq import TaskError

    errors: list[BaseException] = []

    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> Any:
        return wf.sleep("s", 5)

    @flows.app.task(name="waits")
    def waits() -> None:
        try:
            flows.app.submit_workflow("w").get(timeout=1)
        except TaskError as error:
            errors.append(error)

    waits.delay()
    with worker_for(flows.app) as worker:
        worker.start()
        wait_until(lambda: errors, timeout=10)
    assert "holds a slot" in str(errors[0])
