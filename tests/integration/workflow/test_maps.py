"""Fan-out at run time."""

from __future__ import annotations

from typing import Any

import pytest

from support.flows import Flows
from taskmq import RemoteError
from taskmq.workflow import WorkflowBuilder


def declare(flows: Flows, items: Any, **options: Any) -> None:
    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> Any:
        split = wf.step("split", flows.give, args=(items,))
        parts = wf.map("parts", flows.add, over=split, arg="a", **options)
        return wf.step("merge", flows.collect, deps={"values": parts})


@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_results_come_in_item_order(flows: Flows, count: int) -> None:
    declare(flows, list(range(count)))
    run = flows.run("w")
    assert run.get(timeout=5) == [each + 1 for each in range(count)]
    assert run.status().steps["parts"].items == ({"SUCCEEDED": count} if count else {})


def test_many_items_are_enqueued_in_bounded_steps(
    flows: Flows, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    settle = flows.app.transport.settle

    def spy(worker: str, settlements: Any) -> Any:
        sizes.extend(
            len(each.follow_ups.enqueue) for each in settlements if each.follow_ups is not None
        )
        return settle(worker, settlements)

    monkeypatch.setattr(flows.app.transport, "settle", spy)
    declare(flows, list(range(1_300)))
    assert sum(flows.run("w", timeout=60).get(timeout=5)) == sum(range(1_301))
    assert max(sizes) <= 500
    assert sum(sizes) == 1_301, "the items and what completes the map, each once"


def test_an_item_that_fails_fails_the_map_after_all_have_ended(flows: Flows) -> None:
    flows.fail["parts[2]"] = -1
    declare(flows, [0, 1, 2, 3])
    run = flows.run("w")
    assert flows.states(run) == {"split": "SUCCEEDED", "parts": "FAILED", "merge": "SKIPPED"}
    status = run.status()
    assert status.state == "FAILED"
    assert status.steps["parts"].failed_items == (2,)
    assert status.steps["parts"].items == {"SUCCEEDED": 3, "FAILED": 1}
    with pytest.raises(RemoteError, match=r"1 of 4 items of map 'parts' failed .* item 2: .*Boom"):
        run.get(timeout=5)


def test_tolerated_items_leave_their_place_to_the_default(flows: Flows) -> None:
    flows.fail |= {"parts[0]": -1, "parts[3]": -1}
    declare(flows, [0, 1, 2, 3], tolerate=2, default=-1)
    run = flows.run("w")
    assert run.get(timeout=5) == [-1, 2, 3, -1]
    assert run.status().steps["parts"].failed_items == (0, 3)
    assert run.status().state == "SUCCEEDED"


def test_one_failure_too_many_is_not_tolerated(flows: Flows) -> None:
    flows.fail |= {"parts[0]": -1, "parts[1]": -1, "parts[3]": -1}
    declare(flows, [0, 1, 2, 3], tolerate=2)
    assert flows.run("w").status().state == "FAILED"


@pytest.mark.parametrize(("mode", "state"), [("continue", "SUCCEEDED"), ("tolerate", "SUCCEEDED")])
def test_a_map_follows_its_failure_mode(flows: Flows, mode: Any, state: str) -> None:
    flows.fail["parts[0]"] = -1
    declare(flows, [0, 1], on_failure=mode, default=[5])
    run = flows.run("w")
    assert run.status().state == state
    if mode == "tolerate":
        assert run.get(timeout=5) == [5]
    else:
        assert flows.states(run)["merge"] == "SKIPPED"


def test_a_map_feeds_a_map_a_join_and_a_step(flows: Flows) -> None:
    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> Any:
        first = wf.map("first", flows.add, over=[1, 2, 3], arg="a")
        second = wf.map("second", flows.add, over=first, arg="a", kwargs={"b": 10})
        last = wf.step("last", flows.collect, deps={"values": second})
        return wf.join("join", flows.collect, deps=[first, second, last])

    assert flows.run("w").get(timeout=5) == [[2, 3, 4], [12, 13, 14], [12, 13, 14]]


def test_a_map_over_a_field_with_a_shared_dependency(flows: Flows) -> None:
    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> Any:
        probe = wf.step("probe", flows.give, args=({"segments": [1, 2], "by": 100},))
        return wf.map("parts", flows.add, over=probe["segments"], arg="a", deps={"b": probe["by"]})

    assert flows.run("w").get(timeout=5) == [101, 102]


def test_what_is_no_list_fails_the_map(flows: Flows) -> None:
    declare(flows, 7)
    run = flows.run("w")
    assert flows.states(run)["parts"] == "FAILED"
    with pytest.raises(RemoteError, match="map 'parts' needs a list, its source gave a int"):
        run.get(timeout=5)


def test_a_failed_source_skips_the_map(flows: Flows) -> None:
    flows.fail["split"] = -1
    declare(flows, [1])
    assert flows.states(flows.run("w")) == {
        "split": "FAILED", "parts": "SKIPPED", "merge": "SKIPPED",
    }  # fmt: skip


def test_max_concurrency_bounds_the_items_that_run_at_once(flows: Flows) -> None:
    import threading

    running, most, lock = [0], [0], threading.Lock()
    pause = threading.Event()

    @flows.app.task(name="slow")
    def slow(a: int) -> int:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        pause.wait(0.01)
        with lock:
            running[0] -= 1
        return a

    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> Any:
        return wf.map("parts", slow, over=list(range(12)), max_concurrency=2)

    assert flows.run("w").get(timeout=5) == list(range(12))
    assert most[0] <= 2


def test_a_run_per_item(flows: Flows) -> None:
    @flows.app.workflow("one")
    def _one(wf: WorkflowBuilder, a: int, by: int = 1) -> Any:
        first = wf.step("first", flows.add, args=(a,))
        parts = wf.map("parts", flows.add, over=[10, 20], arg="a", deps={"b": first})
        return wf.join("sum", flows.collect, deps=[first, parts])

    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> Any:
        split = wf.step("split", flows.give, args=([1, 2],))
        return wf.map("films", workflow="one", over=split, arg="a")

    assert flows.run("w").get(timeout=5) == [[2, [12, 22]], [3, [13, 23]]]


def test_a_run_per_item_that_fails_is_tolerated(flows: Flows) -> None:
    @flows.app.workflow("one")
    def _one(wf: WorkflowBuilder, a: int) -> Any:
        return wf.step("only", flows.add, deps={"a": wf.step("odd", flows.give, args=(a,))})

    @flows.app.task(name="refuse")
    def refuse(a: int) -> int:
        if a == 2:
            raise ValueError("two")
        return a

    @flows.app.workflow("two")
    def _two(wf: WorkflowBuilder, a: int) -> Any:
        return wf.step("only", refuse, args=(a,))

    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> Any:
        return wf.map("films", workflow="two", over=[1, 2, 3], arg="a", tolerate=1, default="none")

    run = flows.run("w")
    assert run.get(timeout=5) == [1, "none", 3]
    assert run.status().steps["films"].failed_items == (1,)
