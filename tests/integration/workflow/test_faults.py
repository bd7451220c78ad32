"""The faults of workflows that users of task queues met (area F): each is looked for here."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

from support.flows import Flows
from taskmq import Config, JobState, RemoteError
from taskmq.errors import TransportUnavailable
from taskmq.testing import worker_for
from taskmq.transport.types import Ack, Bury, ErrorInfo, QueueShare, ReapRequest, ReserveRequest
from taskmq.workflow import WorkflowBuilder

SHARES = (QueueShare("default"),)


def join_of_five(flows: Flows, **options: Any) -> None:
    """A join whose last member ends in some way; an alert that fires on failure."""

    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> Any:
        parts = [wf.step(f"p{i}", flows.give, args=(i,)) for i in range(4)]
        last = wf.step("last", options.pop("task", flows.give), queue="apart", **options)
        wf.step("alert", flows.errors, after=[*parts, last], rule="any_failed", errors="errors")
        return wf.join("join", flows.collect, [*parts, last])


def _raise(flows: Flows, last: str) -> None:
    flows.fail["last"] = -1
    with worker_for(flows.app, queues=["apart"]) as worker:
        worker.run_until_idle(timeout=20)


def _worker_lost(flows: Flows, last: str) -> None:
    transport = flows.app.transport
    for _ in range(flows.app.config.max_deliveries):
        request = ReserveRequest(worker="gone", queues=(QueueShare("apart"),), limit=1, lease=0.01)
        assert transport.reserve(request).deliveries
        _wait_reaped(flows, last)


def _wait_reaped(flows: Flows, last: str) -> None:
    from support.waiting import wait_until

    def back() -> bool:
        flows.app.transport.reap(ReapRequest())
        record = flows.app.transport.get_jobs([last])[0]
        return record is not None and record.state is not JobState.RUNNING

    wait_until(back, timeout=10)


def _revoked(flows: Flows, last: str) -> None:
    flows.app.handle(last).revoke()


def _purged(flows: Flows, last: str) -> None:
    flows.app.transport.purge("apart")


def _undecodable(flows: Flows, last: str) -> None:
    request = ReserveRequest(worker="w", queues=(QueueShare("apart"),), limit=1)
    delivery = flows.app.transport.reserve(request).deliveries[0]
    error = ErrorInfo(reason="undecodable", message="garbage")
    flows.app.transport.settle("w", [Bury(receipt=delivery.receipt, error=error)])


def _unknown_task(flows: Flows, last: str) -> None:
    task = flows.app.tasks.pop("give")
    flows.app.config = Config(transport="memory://", unknown_task_ttl=0.1)
    try:
        with worker_for(flows.app, queues=["apart"]) as worker:
            worker.run_until_idle(timeout=20)
    finally:
        flows.app.tasks["give"] = task


def _expired(flows: Flows, last: str) -> None:
    from support.waiting import wait_until

    def over() -> bool:
        flows.app.transport.reap(ReapRequest())
        record = flows.app.transport.get_jobs([last])[0]
        return record is not None and record.state.is_final

    wait_until(over, timeout=10)


def _works_until_final(flows: Flows, last: str) -> None:
    from support.waiting import wait_until

    with worker_for(flows.app, queues=["apart"]):
        wait_until(lambda: flows.app.handle(last).state.is_final, timeout=20)


def _hard_timeout(flows: Flows, last: str) -> None:
    _works_until_final(flows, last)
    assert "hard timeout" in str(flows.app.handle(last).info.error)


def _expired_behind_a_rate_limit(flows: Flows, last: str) -> None:
    # Another job takes the only start of this hour.
    first = flows.app.send("limited", queue="apart", priority=9)
    _works_until_final(flows, last)
    assert first.state is JobState.SUCCEEDED


def _expired_behind_a_key(flows: Flows, last: str) -> None:
    # Another job has the only place, and is not done before our time is over.
    request = ReserveRequest(worker="w", queues=(QueueShare("apart"),), limit=1, lease=30)
    first = flows.app.send("keyed", queue="apart", priority=9)
    assert flows.app.transport.reserve(request).deliveries[0].id == first.id
    _works_until_final(flows, last)
    assert first.state is JobState.RUNNING


def _deleted_dead_letter(flows: Flows, last: str) -> None:
    _undecodable(flows, last)
    flows.app.transport.purge_dead([last])


SPECIAL: dict[str, dict[str, Any]] = {
    "short lived": {"expires": 0.05},
    "hangs": {"hard_timeout": 0.3},
    "limited": {"rate_limit": "1/h", "expires": 1.0},
    "keyed": {"concurrency_key": "one", "concurrency_limit": 1, "expires": 1.0},
}
"""Tasks whose last end needs a policy of their own."""

WAYS = {
    "retries used up": (_raise, "FAILED"),
    "worker lost": (_worker_lost, "FAILED"),
    "revoked": (_revoked, "REVOKED"),
    "purged": (_purged, "REVOKED"),
    "undecodable": (_undecodable, "FAILED"),
    "unknown task": (_unknown_task, "FAILED"),
    "expired": (_expired, "EXPIRED"),
    "expired behind a rate limit": (_expired_behind_a_rate_limit, "EXPIRED"),
    "expired behind a key": (_expired_behind_a_key, "EXPIRED"),
    "hard timeout": (_hard_timeout, "FAILED"),
    "dead letter deleted": (_deleted_dead_letter, "FAILED"),
}


NEEDS = {
    "expired": "short lived",
    "expired behind a rate limit": "limited",
    "expired behind a key": "keyed",
    "hard timeout": "hangs",
}


@pytest.mark.parametrize("way", WAYS)
def test_c084_every_end_of_a_member_moves_the_join(flows: Flows, way: str) -> None:
    end, state = WAYS[way]
    gate = threading.Event()

    def hang() -> None:
        gate.wait(20)

    def end_at_once() -> None: ...

    for name, policy in SPECIAL.items():
        declare: Any = flows.app.task(name=name, **policy)
        declare(hang if name == "hangs" else end_at_once)
    join_of_five(flows, **({"task": flows.app.tasks[NEEDS[way]]} if way in NEEDS else {}))
    run = flows.app.submit_workflow("w")
    with worker_for(flows.app, queues=["default"]) as worker:
        worker.run_until_idle(timeout=20)
    end(flows, f"{run.id}::last")
    gate.set()
    with worker_for(flows.app, queues=["default"]) as worker:
        worker.run_until_idle(timeout=20)
    assert flows.states(run)["last"] == state
    assert flows.states(run)["join"] == "SKIPPED"
    assert flows.calls["alert"] == 1, "whatever the cause, the edge on failure is taken once"
    assert run.status().state == "FAILED"
    with pytest.raises(RemoteError, match=f"step 'last' ended {state}"):
        run.get(timeout=5)


@pytest.mark.parametrize("leaf", ["task", "chain", "map", "run"])
def test_c083_one_leaf_fails_in_any_structure(flows: Flows, leaf: str) -> None:
    flows.fail |= {"leaf": -1, "leaf[1]": -1}

    @flows.app.workflow("inner")
    def _inner(wf: WorkflowBuilder) -> Any:
        return wf.step("leaf", flows.give)

    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> Any:
        ok = wf.step("ok", flows.give, args=(1,))
        if leaf == "map":
            bad: Any = wf.map("leaf", flows.add, over=[1, 2, 3], arg="a")
        elif leaf == "run":
            bad = wf.run("inner")
        else:
            bad = wf.step("leaf", flows.give)
            if leaf == "chain":
                bad = wf.step("more", flows.give, deps={"value": bad})
        wf.step("alert", flows.errors, after=[ok, bad], rule="any_failed", errors="errors")
        wf.step("other branch", flows.give, deps={"value": ok})
        return wf.join("body", flows.collect, [ok, bad])

    run = flows.run("w")
    assert run.status().state == "FAILED"
    assert (flows.calls["alert"], flows.calls["body"], flows.calls["other branch"]) == (1, 0, 1)


def test_c086_members_that_run_twice_count_once(flows: Flows) -> None:
    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> Any:
        return wf.join(
            "join", flows.collect, [wf.step(f"p{i}", flows.give, args=(i,)) for i in range(20)]
        )

    run = flows.app.submit_workflow("w")
    transport = flows.app.transport
    # Five are done, and their worker dies before it can say so.
    lost = transport.reserve(ReserveRequest(worker="dies", queues=SHARES, limit=5, lease=0.01))
    assert len(lost.deliveries) == 5
    for delivery in lost.deliveries:
        _wait_reaped(flows, delivery.id)
    flows.drain()
    late = [Ack(receipt=delivery.receipt) for delivery in lost.deliveries]
    assert {each.status for each in transport.settle("dies", late).results} <= {"lost", "already"}
    flows.drain()
    assert run.get(timeout=5) == list(range(20))
    assert flows.calls["join"] == 1


@pytest.mark.parametrize("how", ["before", "after"])
def test_c087_an_error_of_the_store_at_any_call_loses_nothing(
    flows: Flows, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each settlement fails once: before it took effect, or with its reply lost after it did."""
    failed: set[Any] = set()
    settle = flows.app.transport.settle

    def flaky(worker: str, settlements: Any) -> Any:
        receipts = tuple(each.receipt for each in settlements)
        if receipts in failed:
            return settle(worker, settlements)
        failed.add(receipts)
        if how == "after":
            settle(worker, settlements)
        raise TransportUnavailable("timed out")

    monkeypatch.setattr(flows.app.transport, "settle", flaky)

    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> Any:
        parts = wf.map("parts", flows.add, over=[1, 2, 3], arg="a")
        first = wf.step("first", flows.give, args=(1,))
        return wf.join("join", flows.collect, [first, parts])

    assert flows.run("w", timeout=50).get(timeout=5) == [1, [2, 3, 4]]
    assert flows.calls == dict.fromkeys(["first", "parts[0]", "parts[1]", "parts[2]", "join"], 1)


def test_c092_a_graph_is_written_whole_or_not_at_all(
    flows: Flows, monkeypatch: pytest.MonkeyPatch
) -> None:
    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> Any:
        return wf.join(
            "join", flows.collect, [wf.step(f"p{i}", flows.give, args=(i,)) for i in range(50)]
        )

    enqueue = flows.app.transport.enqueue

    def lost_reply(messages: Any, **options: Any) -> Any:
        enqueue(messages, **options)
        raise TransportUnavailable("the reply was lost")

    def lost(messages: Any, **options: Any) -> Any:
        raise TransportUnavailable("the call was lost")

    for call in (lost, lost_reply):
        monkeypatch.setattr(flows.app.transport, "enqueue", call)
        with pytest.raises(TransportUnavailable):
            flows.app.submit_workflow("w", run_id=f"wf-{call.__name__}")
    monkeypatch.undo()
    flows.drain()
    assert not flows.app.transport.list_jobs(prefix="wf-lost::", limit=5).jobs
    assert flows.app.handle_workflow("wf-lost_reply").get(timeout=5) == list(range(50))
    again = flows.app.submit_workflow("w", run_id="wf-lost_reply")
    flows.drain()
    assert again.get(timeout=5) == list(range(50))
    assert flows.calls["join"] == 1


def test_c090_equal_graphs_give_equal_values(flows: Flows, seed: int) -> None:
    """Random trees of chains and fan-outs, built by direct edges and by collecting nodes."""
    rng = random.Random(seed)

    def tree(depth: int) -> Any:
        if depth == 0 or rng.random() < 0.3:
            return rng.randrange(100)
        return [tree(depth - 1) for _ in range(rng.randrange(1, 4))]

    shape = tree(3)

    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder, gathered: bool) -> Any:
        count = [0]

        def build(node: Any) -> Any:
            count[0] += 1
            name = f"n{count[0]}"
            if not isinstance(node, list):
                return wf.step(name, flows.give, args=(node,))
            parts = [build(each) for each in node]
            if gathered:
                return wf.step(name, flows.give, deps=[wf.gather(f"{name} all", parts)])
            return wf.join(name, flows.collect, parts)

        return build(shape)

    assert flows.run("w", gathered=False).get(timeout=5) == shape
    assert flows.run("w", gathered=True).get(timeout=5) == shape


def test_records_of_a_run_stay_until_it_has_ended_and_go_with_it(flows: Flows) -> None:
    from support.waiting import wait_until

    flows.app.config = Config(transport="memory://", job_ttl=0.2)
    tokens: list[str] = []

    @flows.app.task(name="ext", completion="external")
    def ext(value: Any) -> None:
        from taskmq import current_task

        tokens.append(current_task().completion_token)

    @flows.app.workflow("w")
    def _w(wf: WorkflowBuilder) -> Any:
        first = wf.step("first", flows.give, args=("kept",))
        waits = wf.step("waits", ext, deps={"value": first})
        return wf.join("end", flows.collect, [first, waits])

    run = flows.run("w")
    plain = flows.give.delay()
    flows.drain()
    transport = flows.app.transport

    def pruned(job_id: str) -> bool:
        transport.reap(ReapRequest())
        return transport.get_jobs([job_id])[0] is None

    wait_until(lambda: pruned(plain.id), timeout=10)
    assert transport.get_jobs([f"{run.id}::first"])[0] is not None
    flows.app.complete(tokens[0], 1)
    flows.drain()
    assert run.get(timeout=5) == ["kept", 1]
    wait_until(lambda: pruned(run.id) and pruned(f"{run.id}::first"), timeout=10)
