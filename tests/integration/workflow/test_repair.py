"""What operators do: retry, rerun, skip, resume; what the history keeps."""

from __future__ import annotations

from typing import Any

import pytest

from support.flows import Flows
from taskmq import ConfigError, TransportError
from taskmq.transport.types import Arrival
from taskmq.workflow import WorkflowBuilder, WorkflowHandle


def diamond(flows: Flows) -> WorkflowHandle[Any]:
    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> Any:
        a = wf.step("a", flows.give, args=(1,))
        b = wf.step("b", flows.add, deps={"a": a})
        c = wf.step("c", flows.add, deps={"a": a}, default=70)
        return wf.join("d", flows.collect, deps=[b, c])

    return flows.run("w")


def test_retry_failed_runs_failed_and_skipped_steps_only(flows: Flows) -> None:
    flows.fail["c"] = 1
    run = diamond(flows)
    assert run.status().state == "FAILED"
    assert set(run.retry_failed()) == {"c", "d"}
    assert run.status().state == "RUNNING"
    flows.drain()
    assert run.get(timeout=5) == [2, 2]
    assert flows.calls == {"a": 1, "b": 1, "c": 2, "d": 1}
    assert run.retry_failed() == ()


def test_retry_failed_of_a_map_runs_failed_items_only(flows: Flows) -> None:
    flows.fail |= {"parts[1]": 1, "parts[4]": 1}

    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> Any:
        split = wf.step("split", flows.give, args=(list(range(6)),))
        return wf.step(
            "end", flows.collect, deps={"values": wf.map("parts", flows.add, over=split, arg="a")}
        )

    run = flows.run("w")
    assert flows.states(run)["parts"] == "FAILED"
    run.retry_failed()
    flows.drain()
    assert run.get(timeout=5) == [1, 2, 3, 4, 5, 6]
    assert [flows.calls[f"parts[{i}]"] for i in range(6)] == [1, 2, 1, 1, 2, 1]
    assert flows.calls["split"] == 1


def test_retry_failed_goes_into_child_runs(flows: Flows) -> None:
    flows.fail["deep[0]"] = 1

    @flows.app.workflow("inner")
    def _inner(wf: WorkflowBuilder) -> Any:
        first = wf.step("first", flows.give, args=([1, 2],))
        return wf.map("deep", flows.add, over=first, arg="a")

    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> Any:
        films = wf.map("films", workflow="inner", over=[{}], arg="ignored")
        return wf.join("end", flows.collect, [wf.run("inner"), films])

    @flows.app.workflow("v")
    def _v(wf: WorkflowBuilder) -> Any:
        return wf.join("end", flows.collect, [wf.run("inner")])

    run = flows.run("v")
    assert flows.states(run) == {"inner": "FAILED", "end": "SKIPPED"}
    run.retry_failed()
    flows.drain()
    assert run.get(timeout=5) == [[2, 3]]
    assert flows.calls["first"] == 1
    assert flows.calls["deep[1]"] == 1


def test_rerun_runs_a_step_and_all_that_depends_on_it(flows: Flows) -> None:
    run = diamond(flows)
    assert set(run.rerun("b")) == {"b", "d"}
    flows.drain()
    assert run.get(timeout=5) == [2, 2]
    assert flows.calls == {"a": 1, "b": 2, "c": 1, "d": 2}
    with pytest.raises(ConfigError, match="has no step 'x'"):
        run.rerun("x")


def test_rerun_of_what_gives_a_list_makes_new_items(flows: Flows) -> None:
    lists = [[1, 2, 3], [10, 20]]

    @flows.app.task(name="split")
    def split() -> list[int]:
        return lists[min(flows.calls["split"], 1)] if not flows.note(None) else []

    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> Any:
        parts = wf.map("parts", flows.add, over=wf.step("split", split), arg="a")
        return wf.step("end", flows.collect, deps={"values": parts})

    flows.calls["split"] = -1
    run = flows.run("w")
    assert run.get(timeout=5) == [2, 3, 4]
    run.rerun("split")
    flows.drain()
    assert run.get(timeout=5) == [11, 21]
    assert run.status().steps["parts"].items == {"SUCCEEDED": 2}


def test_rerun_of_a_map_runs_its_items_again(flows: Flows) -> None:
    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> Any:
        parts = wf.map("parts", flows.add, over=[1, 2], arg="a")
        return wf.step("end", flows.collect, deps={"values": parts})

    run = flows.run("w")
    run.rerun("parts")
    flows.drain()
    assert run.get(timeout=5) == [2, 3]
    assert (flows.calls["parts[0]"], flows.calls["parts[1]"], flows.calls["end"]) == (2, 2, 2)


def test_skip_of_a_failed_step_lets_the_run_go_on(flows: Flows) -> None:
    flows.fail["c"] = -1
    run = diamond(flows)
    run.skip("c")
    flows.drain()
    assert run.get(timeout=5) == [2, 70]
    assert flows.states(run)["c"] == "SKIPPED"
    assert run.status().steps["c"].cause == "skipped by an operator"
    assert flows.calls["c"] == 1
    run.skip("c")


def test_skip_of_a_held_step(flows: Flows) -> None:
    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> Any:
        a = wf.step("a", flows.give, args=(1,))
        b = wf.step("b", flows.add, deps={"a": a}, default=5)
        return wf.join("c", flows.collect, deps=[b])

    run = flows.app.submit_workflow("w")
    run.skip("b")
    flows.drain()
    assert run.get(timeout=5) == [5]
    assert flows.calls == {"a": 1, "c": 1}
    with pytest.raises(TransportError, match="has succeeded"):
        run.skip("a")


def test_skip_of_a_queued_step(flows: Flows) -> None:
    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> Any:
        a = wf.step("a", flows.give, args=(1,))
        return wf.join("b", flows.collect, deps=[a])

    run = flows.app.submit_workflow("w")
    run.skip("a")
    flows.drain()
    assert run.get(timeout=5) == [None]
    assert flows.calls == {"b": 1}


def test_skip_behind_continue_keeps_the_count_right(flows: Flows) -> None:
    """The twin of a held step that is skipped must not hide another failure."""
    flows.fail |= {"a": -1, "bad": -1}

    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> None:
        a = wf.step("a", flows.give, on_failure="continue")
        wf.step("b", flows.give, after=a)
        wf.step("bad", flows.give, after=a, rule="all_done")

    run = flows.app.submit_workflow("w")
    run.skip("b")
    flows.drain()
    assert run.status().state == "FAILED"


def test_a_cancelled_run_can_be_retried(flows: Flows) -> None:
    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> Any:
        a = wf.step("a", flows.give, args=(1,))
        return wf.step("b", flows.add, deps={"a": a})

    run = flows.app.submit_workflow("w")
    run.cancel()
    flows.drain()
    assert flows.calls == {}
    run.retry_failed()
    flows.drain()
    assert run.get(timeout=5) == 2


def test_replay_of_a_steps_dead_letter_lets_the_run_go_on(flows: Flows) -> None:
    flows.fail["c"] = 1
    run = diamond(flows)
    assert flows.app.transport.replay_dead([f"{run.id}::c"]) == 1
    flows.drain()
    assert run.get(timeout=5) == [2, 2]


def test_the_history_keeps_attempts_over_retries_and_reopening(flows: Flows) -> None:
    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> Any:
        return wf.step("a", flows.retried, args=(1,))

    flows.fail["a"] = 4
    run = flows.run("w")
    run.retry_failed()
    flows.drain()
    assert run.get(timeout=5) == 1
    told = [(each.series, each.attempt, each.outcome) for each in run.history() if each.step == "a"]
    assert told == [
        (1, 1, "RETRYING"),
        (1, 2, "RETRYING"),
        (1, 3, "FAILED"),
        (2, 1, "RETRYING"),
        (2, 2, "SUCCEEDED"),
    ]
    assert all(each.worker for each in run.history())
    assert "a failed" in run.history()[0].error


def test_resume_repeats_an_arrival_that_never_came(
    flows: Flows, monkeypatch: pytest.MonkeyPatch
) -> None:
    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> Any:
        a = wf.step("a", flows.give, args=(1,))
        b = wf.step("b", flows.add, deps={"a": a})
        return wf.step("c", flows.add, deps={"a": b})

    # A transport that forgets: the step is stored without its successors.
    from msgspec.structs import replace

    enqueue = flows.app.transport.enqueue

    def forgetful(messages: Any, **options: Any) -> Any:
        changed = [replace(each, successors=()) if each.step == "a" else each for each in messages]
        return enqueue(changed, **options)

    monkeypatch.setattr(flows.app.transport, "enqueue", forgetful)
    run = flows.run("w")
    monkeypatch.undo()
    assert flows.states(run)["b"] == "PENDING"
    assert [each.id for each in flows.app.pending_workflows()] == [run.id]
    assert run.resume() == 1
    flows.drain()
    assert flows.states(run) == {"a": "SUCCEEDED", "b": "SUCCEEDED", "c": "SUCCEEDED"}
    run.resume()
    assert run.get(timeout=5) == 3
    assert run.resume() == 0
    assert flows.app.pending_workflows() == []
    assert flows.app.advance_workflow(run.id).state == "SUCCEEDED"


def test_a_parked_step_whose_closer_was_purged_is_completed(flows: Flows) -> None:
    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> Any:
        return wf.map("parts", flows.add, over=[1, 2], arg="a")

    run = flows.app.submit_workflow("w")
    closer = f"{run.id}::parts::close"
    from taskmq.testing import worker_for

    settle = flows.app.transport.settle

    def revoking(worker: str, settlements: Any) -> Any:
        reply = settle(worker, settlements)
        flows.app.transport.revoke([closer])
        return reply

    flows.app.transport.settle = revoking  # type: ignore[method-assign]
    try:
        with worker_for(flows.app) as worker:
            worker.run_until_idle(timeout=20)
    finally:
        flows.app.transport.settle = settle  # type: ignore[method-assign]
    assert flows.states(run)["parts"] == "WAITING"
    assert flows.app.resume_workflow(run.id).id == run.id
    flows.drain()
    assert run.get(timeout=5) == [2, 3]


def test_explicit_arrivals_count_once_beside_real_ones(flows: Flows) -> None:
    from taskmq.transport.types import FollowUps
    from taskmq.workflow.repair import control

    run = diamond(flows)
    arrivals = tuple(
        Arrival(to=f"{run.id}::d", source=f"{run.id}::{name}", verdict="failed") for name in "bc"
    )
    control(flows.app, FollowUps(arrive=arrivals))
    assert run.get(timeout=5) == [2, 2]


def test_reconciliation_looks_at_old_runs_only_and_mends_them(
    flows: Flows, monkeypatch: pytest.MonkeyPatch
) -> None:
    from msgspec.structs import replace

    from taskmq.workflow import reconcile

    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> Any:
        return wf.step("b", flows.add, deps={"a": wf.step("a", flows.give, args=(1,))})

    enqueue = flows.app.transport.enqueue
    monkeypatch.setattr(
        flows.app.transport,
        "enqueue",
        lambda messages, **options: enqueue(
            [replace(each, successors=()) if each.step == "a" else each for each in messages],
            **options,
        ),
    )
    run = flows.run("w")
    monkeypatch.undo()
    reconciler = reconcile.Reconciler(flows.app)
    assert reconciler.run() == 0, "it is too young to be looked at"
    monkeypatch.setattr(reconcile, "QUIET", -1.0)
    assert reconciler.run() == 1
    flows.drain()
    assert flows.states(run)["b"] == "SUCCEEDED"


def test_a_run_cancelled_in_the_middle_of_a_map_can_be_retried(flows: Flows) -> None:
    from taskmq import current_task

    cancelled: list[str] = []

    @flows.app.task(name="cancels")
    def cancels(item: int) -> int:
        run_id = current_task().run or ""
        flows.calls[f"item {item}"] += 1
        if item == 1 and not cancelled:
            cancelled.append(run_id)
            flows.app.handle_workflow(run_id).cancel()
        return item

    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> Any:
        return wf.map("parts", cancels, over=list(range(5)), max_concurrency=1)

    run = flows.run("w")
    assert run.status().state == "REVOKED"
    assert all(step.state.is_final for step in run.status().steps.values())
    run.retry_failed()
    flows.drain()
    assert run.get(timeout=5) == [0, 1, 2, 3, 4]
    assert flows.calls["item 0"] == 1, "what had succeeded is not run again"
