"""Static graphs: values along edges, order, results."""

from __future__ import annotations

from typing import Any

import pytest

from support.flows import Flows
from taskmq import RemoteError
from taskmq.workflow import WorkflowBuilder


def test_values_travel_by_name_by_position_and_by_field(flows: Flows) -> None:
    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> Any:
        first = wf.step("first", flows.give, args=({"n": 20, "deep": [1, {"x": 5}]},))
        by_name = wf.step("by name", flows.add, deps={"a": first["n"]})
        by_position = wf.step("by position", flows.add, deps=[by_name, first["deep"][1]["x"]])
        return wf.step("last", flows.add, args=(100,), deps={"b": by_position})

    run = flows.run("w")
    assert run.get(timeout=5) == 126
    assert run.status().state == "SUCCEEDED"


def test_an_edge_may_only_order(flows: Flows) -> None:
    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> Any:
        first = wf.step("first", flows.give, args=(1,))
        return wf.step("second", flows.give, args=(2,), after=first)

    assert flows.run("w").get(timeout=5) == 2
    assert flows.order == ["first", "second"]


def test_a_value_can_be_placed_inside_a_parameter(flows: Flows) -> None:
    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> Any:
        url = wf.step("url", flows.give, args=({"url": "x"},))
        return wf.step("use", flows.give, deps={"value.db.url": url["url"]})

    assert flows.run("w").get(timeout=5) == {"db": {"url": "x"}}


@pytest.mark.parametrize("width", [0, 1, 2, 9])
def test_a_join_gets_a_list_in_declared_order(flows: Flows, width: int) -> None:
    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> Any:
        parts = [wf.step(f"p{i}", flows.give, args=(i,)) for i in range(width)]
        return wf.join("join", flows.collect, deps=list(reversed(parts)), collect="values")

    assert flows.run("w").get(timeout=5) == list(reversed(range(width)))
    assert flows.calls["join"] == 1


def test_a_join_without_collect_fills_the_first_parameter(flows: Flows) -> None:
    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> Any:
        return wf.join("join", flows.collect, deps=[wf.step("a", flows.give, args=(1,))])

    assert flows.run("w").get(timeout=5) == [1]


def test_a_collecting_node_needs_no_job(flows: Flows) -> None:
    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> Any:
        parts = [wf.step(f"p{i}", flows.give, args=(i,)) for i in range(4)]
        all_ = wf.gather("all", parts)
        users = [wf.step(f"u{i}", flows.collect, deps={"values": all_}) for i in range(3)]
        return wf.join("end", flows.collect, deps=[*users, all_])

    run = flows.run("w")
    assert run.get(timeout=5) == [[0, 1, 2, 3]] * 4
    assert sum(flows.calls.values()) == 8
    record = flows.app.transport.get_jobs([f"{run.id}::p0"])[0]
    assert record is not None
    assert len(record.successors) == 2, "the node and the run, not each of the users"


def test_without_a_sink_the_leaves_are_the_result(flows: Flows) -> None:
    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> None:
        a = wf.step("a", flows.give, args=(1,))
        wf.step("b", flows.add, deps={"a": a})
        wf.step("c", flows.add, deps={"a": a}, kwargs={"b": 10})

    assert flows.run("w").get(timeout=5) == {"b": 2, "c": 11}


def test_a_list_of_sinks_gives_a_list(flows: Flows) -> None:
    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> list[Any]:
        a = wf.step("a", flows.give, args=(1,))
        return [wf.step("b", flows.add, deps={"a": a}), a]

    assert flows.run("w").get(timeout=5) == [2, 1]


def test_a_caller_may_choose_the_ids(flows: Flows) -> None:
    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> Any:
        a = wf.step("a", flows.give, args=(1,), id="mine-a")
        return wf.step("b", flows.add, deps={"a": a}, id="mine-b")

    run = flows.app.submit_workflow("w", {}, run_id="wf-order-42")
    again = flows.app.submit_workflow("w", {}, run_id="wf-order-42")
    flows.drain()
    assert (run.id, again.id) == ("wf-order-42", "wf-order-42")
    assert flows.app.handle("mine-b").get(timeout=5) == 2 == run.get(timeout=5)
    assert flows.calls["b"] == 1


def test_a_graph_is_one_call(flows: Flows, monkeypatch: pytest.MonkeyPatch) -> None:
    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> Any:
        step = wf.step("s0", flows.give, args=(0,))
        for number in range(1, 300):
            step = wf.step(f"s{number}", flows.add, deps={"a": step})
        return step

    calls: list[int] = []
    enqueue = flows.app.transport.enqueue

    def counting(messages: Any, **options: Any) -> Any:
        calls.append(len(messages))
        return enqueue(messages, **options)

    monkeypatch.setattr(flows.app.transport, "enqueue", counting)
    run = flows.app.submit_workflow("w")
    assert calls == [301]
    flows.drain()
    assert run.get(timeout=5) == 299


def test_a_join_over_so_many_steps_that_their_names_fill_an_envelope(flows: Flows) -> None:
    width = 700

    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> Any:
        parts = [wf.step(f"{'part ' * 20}{i}", flows.give, args=(i,)) for i in range(width)]
        return wf.join("join", flows.collect, deps=parts)

    assert flows.run("w", timeout=60).get(timeout=5) == list(range(width))


def test_queue_and_priority_follow_step_task_run_and_config(flows: Flows) -> None:
    @flows.app.task(name="placed", queue="of-task", priority=3)
    def placed() -> None: ...

    @flows.app.workflow("w", queue="of-run", priority=2)
    def _w(wf: WorkflowBuilder) -> None:
        wf.step("task", placed)
        wf.step("step", placed, queue="of-step", priority=-4)
        wf.step("run", flows.give)

    run = flows.app.submit_workflow("w")
    found = {
        name: flows.app.transport.get_jobs([step.job_id])[0]
        for name, step in run.status().steps.items()
    }
    places = {name: (each.queue, each.priority) for name, each in found.items() if each}
    assert places == {"task": ("of-task", 3), "step": ("of-step", -4), "run": ("of-run", 2)}
    asked = flows.app.submit_workflow("w", priority=7, queue="of-call")
    record = flows.app.transport.get_jobs([asked.status().steps["run"].job_id])[0]
    assert record is not None
    assert (record.queue, record.priority) == ("of-call", 7)


def test_results_come_back_as_annotated(flows: Flows) -> None:
    from datetime import datetime, timezone

    when = datetime(2026, 1, 2, tzinfo=timezone.utc)

    @flows.app.task(name="moment")
    def moment(at: datetime) -> datetime:
        return at

    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> Any:
        first = wf.step("a", moment, args=(when,))
        return wf.step("b", moment, deps={"at": first})

    assert flows.run("w").get(timeout=5) == when


def test_a_run_that_is_unknown_is_said_to_be(flows: Flows) -> None:
    with pytest.raises(RemoteError, match="no record"):
        flows.app.handle_workflow("wf-none").get(timeout=1)


def test_a_hook_sees_the_message_of_every_step_once(flows: Flows) -> None:
    seen: list[str] = []
    headers: list[Any] = []

    @flows.app.on_step_message
    def _trace(values: dict[str, Any], run: str, step: str) -> None:
        seen.append(step)
        values["trace"] = f"{run}/{step}"

    @flows.app.task(name="look")
    def look(value: Any = None) -> None:
        from taskmq import current_task

        headers.append(current_task().headers.get("trace"))

    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> None:
        a = wf.step("a", look)
        wf.step("b", look, deps={"value": a})

    run = flows.run("w")
    assert sorted(seen) == ["a", "b"]
    assert headers == [f"{run.id}/a", f"{run.id}/b"]


def test_events_tell_of_a_run(flows: Flows) -> None:
    from taskmq.events import CollectingSink

    sink = CollectingSink()
    flows.app.add_sink(sink)

    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> Any:
        return wf.step("b", flows.add, deps={"a": wf.step("a", flows.give, args=(1,))})

    run = flows.run("w")
    told = [event for event in sink.events if event.type.startswith("workflow.")]
    assert [event.type for event in told if event.job == run.id] == [
        "workflow.started",
        "workflow.advanced",
        "workflow.advanced",
        "workflow.succeeded",
    ]
