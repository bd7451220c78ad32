"""What an operation costs must not depend on how much is stored: counted in steps, not timed."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.memory_rig import Q, ack, message, put, take, take_all, work_of
from taskmq.clock import FakeClock
from taskmq.states import JobState
from taskmq.transport.memory import MemoryTransport
from taskmq.transport.types import (
    Delivery,
    QueueShare,
    ReapRequest,
    Release,
    ReserveRequest,
    Retention,
    WorkerInfo,
)

FEW, MANY = 100, 20_000


def make() -> MemoryTransport:
    return MemoryTransport(clock=FakeClock())


def one_job(transport: MemoryTransport) -> Callable[[], None]:
    """One job's way: enqueued (most urgent), reserved, settled."""

    def run() -> None:
        transport.enqueue([message("one", priority=9)])
        deliveries = take(transport)
        assert [delivery.id for delivery in deliveries] == ["one"]
        ack(transport, deliveries)

    return run


def take_into(found: list[Delivery], transport: MemoryTransport) -> None:
    found += take(transport, limit=9)


@pytest.mark.parametrize("fields", [{}, {"delay": 50.0}, {"expires": 50.0}], ids=str)
def test_a_job_costs_the_same_beside_few_and_many(fields: dict[str, Any]) -> None:
    costs = []
    for count in (FEW, MANY):
        transport = make()
        put(transport, count, **fields)
        take(transport, limit=0)
        costs.append(work_of(one_job(transport)))
    assert costs[1] <= costs[0] * 1.5


def test_a_job_costs_the_same_with_few_and_many_queues() -> None:
    costs = []
    for count in (5, 5_000):
        transport = make()
        queues = tuple(QueueShare(f"q{index}") for index in range(count))
        transport.enqueue([message(f"{q.name}-{n}", queue=q.name) for q in queues for n in (1, 2)])
        take(transport, queues=queues)

        def reserve_and_settle(
            transport: MemoryTransport = transport, queues: tuple[QueueShare, ...] = queues
        ) -> None:
            ack(transport, take(transport, limit=3, queues=queues))

        costs.append(work_of(reserve_and_settle))
    assert costs[1] <= costs[0] * 1.5


def test_putting_back_at_the_old_place_costs_the_same_in_few_and_many() -> None:
    costs = []
    for count in (FEW, MANY):
        transport = make()
        ids = put(transport, count)
        deliveries = take(transport, limit=10)
        releases = [Release(receipt=delivery.receipt) for delivery in deliveries]
        costs.append(work_of(lambda t=transport, r=releases: t.settle("w", r)))  # type: ignore[misc]
        assert [delivery.id for delivery in take(transport, limit=12)] == ids[:12]
    assert costs[1] <= costs[0] * 1.5


def test_what_waits_behind_a_full_key_costs_nothing_to_the_others() -> None:
    costs = []
    for count in (FEW, MANY):
        transport = make()
        put(transport, count, concurrency_key="k")
        holding = take(transport)
        # The line is entered once: by steps, each saying that there is more to do.
        take_all(transport)
        assert transport.stats(["q"])[0].blocked == count - 1
        free = work_of(partial(ack, transport, holding))
        costs.append(work_of(one_job(transport)) + free)
    assert costs[1] <= costs[0] * 1.5


def test_a_worker_at_its_last_chance_steps_over_the_others_at_once() -> None:
    costs = []
    for count in (FEW, MANY // 10):
        clock = FakeClock()
        transport = MemoryTransport(clock=clock)
        ids = put(transport, count, max_deliveries=2)
        take(transport, limit=count, lease=1.0, worker="dead")
        clock.advance(2)
        transport.reap(ReapRequest(limit=count + 1))
        put(transport, 1, prefix="normal")
        assert [delivery.id for delivery in take(transport)] == ids[:1]
        found: list[Delivery] = []
        costs.append(work_of(partial(take_into, found, transport)))
        assert [delivery.id for delivery in found] == ["normal000000"]
    assert costs[1] <= costs[0] * 1.5


def test_steps_count_the_turns_of_a_loop() -> None:
    assert work_of(lambda: sum(number * 2 for number in range(1_000))) > 1_000
    assert work_of(lambda: [number * 2 for number in range(1_000)]) > 1_000


def test_cancelled_messages_do_not_stay_in_any_line() -> None:
    transport = make()
    store = transport._store
    # A worker that serves the queue keeps its lines in being.
    take(transport, limit=0)
    ready = put(transport, 2_000)
    delayed = put(transport, 2_000, prefix="d", delay=1e6)
    expiring = put(transport, 2_000, prefix="e", expires=1e6)
    transport.revoke(ready + delayed + expiring)
    transport.reap(ReapRequest())
    queue = store.queues["q"]
    assert len(queue.bands[0].fresh) < 200
    assert len(queue.delayed.entries) < 200
    assert len(store.expiring) < 200


def test_leases_of_settled_deliveries_do_not_stay() -> None:
    transport = make()
    for round_ in range(50):
        put(transport, 100, prefix=f"r{round_}-")
        ack(transport, take(transport, limit=100))
    assert len(transport._store.leased.entries) < 200


def test_ended_jobs_are_bounded_without_any_reaping() -> None:
    transport = MemoryTransport(clock=FakeClock(), max_finished_jobs=100)
    for round_ in range(10):
        put(transport, 100, prefix=f"r{round_}-")
        ack(transport, take(transport, limit=100))
    store = transport._store
    assert len(store.records) == len(store.by_receipt) == 100
    assert len(store.finished_due.entries) < 300
    # The youngest are those that are kept.
    assert transport.get_jobs(["r9-000099", "r8-000000"])[0] is not None
    assert transport.get_jobs(["r9-000099", "r8-000000"])[1] is None


def test_a_limit_brought_by_a_reap_holds_from_then_on() -> None:
    transport = make()
    put(transport, 60)
    ack(transport, take(transport, limit=50))
    transport.reap(ReapRequest(retention=Retention(max_finished_jobs=5)))
    assert len(transport._store.finished) == 5
    ack(transport, take(transport, limit=10))
    assert len(transport._store.finished) == 5


def test_everything_that_was_is_gone_after_its_time() -> None:
    clock = FakeClock()
    transport = MemoryTransport(clock=clock)
    put(transport, 50, key_ttl=10.0, job_ttl=10.0)
    transport.enqueue([message("keyed", key="k", key_ttl=10.0, job_ttl=10.0)])
    transport.heartbeat(WorkerInfo(id="w"))
    transport.acquire("lease", "owner", 10.0)
    ack(transport, take(transport, limit=100))
    clock.advance(10_000)
    for _ in range(3):
        transport.reap(ReapRequest())
    store = transport._store
    for table in (
        store.records,
        store.by_receipt,
        store.queues,
        store.sessions,
        store.views,
        store.keys,
        store.key_ends,
        store.finished,
        store.named_leases,
        store.workers,
        store.bedroom.by_name,
    ):
        assert not table


def test_freed_concurrency_keys_are_forgotten() -> None:
    transport = make()
    for index in range(10):
        key = f"k{index}"
        transport.enqueue([message(f"{name}{index}", concurrency_key=key) for name in "ab"])
    first = take(transport, limit=100)
    assert len(first) == 10
    ack(transport, first)
    # Put back for the freed slot, then cancelled before anybody took it.
    transport.revoke([f"b{index}" for index in range(10)])
    assert not transport._store.key_lines


def test_a_waiter_that_leaves_before_its_turn_passes_the_slot_on() -> None:
    transport = make()
    ids = put(transport, 3, concurrency_key="k")
    holding = take(transport, limit=3)
    ack(transport, holding)
    transport.revoke([ids[1]])
    assert [delivery.id for delivery in take(transport)] == [ids[2]]


def test_a_freed_slot_reaches_the_waiters_of_every_queue() -> None:
    transport = make()
    both = (QueueShare("q"), QueueShare("other"))
    transport.enqueue(
        [
            message("holder", concurrency_key="k"),
            message("unserved", queue="other", concurrency_key="k"),
            message("served", concurrency_key="k"),
        ]
    )
    holding = take(transport, limit=3, queues=both)
    assert [delivery.id for delivery in holding] == ["holder"]
    ack(transport, holding)
    # Nobody serves the queue of the first waiter any more.
    assert [delivery.id for delivery in take(transport, queues=Q)] == ["served"]


@pytest.mark.parametrize("batch", [1, 3, 10, 40])
def test_weights_share_exactly_whatever_the_batch(batch: int) -> None:
    transport = make()
    put(transport, 60, prefix="a", queue="a")
    put(transport, 60, prefix="b", queue="b")
    queues = (QueueShare("a", 3), QueueShare("b", 1))
    taken: list[str] = []
    while len(taken) < 40:
        limit = min(batch, 40 - len(taken))
        taken += [delivery.queue for delivery in take(transport, limit=limit, queues=queues)]
    assert (taken.count("a"), taken.count("b")) == (30, 10)
    # Smooth: no one waits longer than a whole round.
    assert all("b" in taken[start : start + 5] for start in range(35))


@given(weights=st.lists(st.integers(1, 9), min_size=2, max_size=5))
def test_any_weights_share_exactly_over_whole_rounds(weights: list[int]) -> None:
    transport = make()
    queues = tuple(QueueShare(f"q{n}", weight) for n, weight in enumerate(weights))
    for share in queues:
        put(transport, share.weight * 3 + 1, prefix=share.name, queue=share.name)
    taken = [d.queue for d in take(transport, limit=sum(weights) * 3, queues=queues)]
    assert [taken.count(share.name) for share in queues] == [weight * 3 for weight in weights]


def test_a_queue_that_was_empty_cannot_catch_up() -> None:
    transport = make()
    queues = (QueueShare("a"), QueueShare("b"))
    put(transport, 100, prefix="a", queue="a")
    take(transport, limit=50, queues=queues)
    put(transport, 50, prefix="b", queue="b")
    taken = [delivery.queue for delivery in take(transport, limit=20, queues=queues)]
    assert taken.count("b") == 10


@given(data=st.data())
def test_whatever_is_put_back_the_order_is_by_place(data: st.DataObject) -> None:
    transport = make()
    ids = put(transport, 12)
    for _ in range(data.draw(st.integers(1, 6))):
        deliveries = take(transport, limit=data.draw(st.integers(1, 12)))
        kept = data.draw(st.lists(st.sampled_from(deliveries), unique_by=lambda d: d.id))
        ack(transport, kept)
        gone = {delivery.id for delivery in kept}
        releases = [Release(receipt=d.receipt) for d in deliveries if d.id not in gone]
        transport.settle("w", data.draw(st.permutations(releases)))
        ids = [id for id in ids if id not in gone]
        records = transport.get_jobs(ids)
        assert all(record is not None and record.state is JobState.QUEUED for record in records)
        if not ids:
            return
    assert [delivery.id for delivery in take_all(transport)] == ids


def test_next_due_follows_the_earliest_delayed_message() -> None:
    transport = make()
    request = ReserveRequest(worker="w", queues=Q, limit=1)
    for delay in range(1_000, 0, -1):
        transport.enqueue([message(f"d{delay}", delay=float(delay))])
    assert transport.reserve(request).next_due_in == 1.0
    transport.revoke(["d1", "d2"])
    assert transport.reserve(request).next_due_in == 3.0
    clock = transport.clock
    assert isinstance(clock, FakeClock)
    clock.advance(3.5)
    reply = transport.reserve(request)
    assert [delivery.id for delivery in reply.deliveries] == ["d3"]
    assert reply.next_due_in == pytest.approx(0.5)
