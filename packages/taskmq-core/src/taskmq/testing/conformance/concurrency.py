"""Concurrency keys: a slot taken by `reserve`, given back by what ends the delivery."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from taskmq.states import JobState
from taskmq.testing.conformance.rig import Rig, boom
from taskmq.testing.conformance.scenario import check, equal, scenario
from taskmq.transport.contract import completion_token
from taskmq.transport.types import (
    Ack,
    Bury,
    Completion,
    Defer,
    Park,
    Release,
    Retry,
    Settlement,
    Yield,
)

if TYPE_CHECKING:
    from collections.abc import Callable


@scenario("R3.1")
def key_limits_holders(rig: Rig) -> None:
    """No more deliveries of a key are held at once than its limit, over queues and workers."""
    fields: dict[str, Any] = {"concurrency_key": "k", "concurrency_limit": 2}
    first = rig.enqueue(*(rig.message(queue=q, **fields) for q in ("a", "b", "a", "b")))
    held = rig.take("w1", "a", "b")
    equal(len(held), 2, "held at once with a limit of 2")
    equal(rig.take("w2", "a", "b"), [], "deliveries while the key is full")
    rig.confirm(Ack(receipt=held[0].receipt))
    held += rig.take("w2", "a", "b")
    equal(len(held), 3, "delivered once one slot is free")
    rig.confirm(Ack(receipt=held[1].receipt))
    held += rig.take("w2", "a", "b")
    equal(sorted(d.id for d in held), sorted(first), "delivered in all")


@scenario("R3.2")
def full_key_holds_up_nobody_else(rig: Rig) -> None:
    """Messages of other keys and of none pass those that wait for a full key."""
    rig.put_many(30, concurrency_key="full")
    equal(len(rig.take(limit=1)), 1, "first of the key")
    others = [rig.put(concurrency_key="other"), rig.put()]
    found: list[str] = []
    for _ in range(5):
        found += rig.take_ids("w2", limit=10)
    equal(found, others, "deliveries beside the full key")


@scenario("R3.3")
def waiting_line_is_shown(rig: Rig) -> None:
    """What waits for a slot is QUEUED and `blocked`, in the record and in the counts."""
    rig.put(concurrency_key="k")
    waiting = rig.put(concurrency_key="k")
    rig.take()
    record = rig.job(waiting)
    equal((record.state, record.blocked), (JobState.QUEUED, True), "record of a waiter")
    equal((record.deliveries, record.worker), (0, None), "nothing is delivered")
    stats = rig.stats()
    equal((stats.blocked, stats.in_flight, stats.pending), (1, 1, 0), "blocked, in flight, pending")


@scenario("R3.4")
def whatever_ends_a_delivery_frees_the_slot(rig: Rig) -> None:
    """Every settlement that ends a delivery gives the slot to the next in line."""
    makers: list[Callable[[str], Settlement]] = [
        lambda receipt: Ack(receipt=receipt),
        lambda receipt: Ack(receipt=receipt, state=JobState.FAILED, error=boom()),
        lambda receipt: Bury(receipt=receipt, error=boom()),
        lambda receipt: Retry(receipt=receipt, delay=rig.long),
        lambda receipt: Defer(receipt=receipt, delay=rig.long),
        lambda receipt: Yield(receipt=receipt, delay=rig.long),
    ]
    for number, make in enumerate(makers):
        key = f"k{number}"
        first, second = rig.put(concurrency_key=key), rig.put(concurrency_key=key)
        holder = rig.take_one()
        equal(holder.id, first, "holder of the key")
        settlement = make(holder.receipt)
        rig.confirm(settlement)
        following = rig.take("w2")
        equal(
            [d.id for d in following], [second], f"next in line after {type(settlement).__name__}"
        )
        rig.confirm(Ack(receipt=following[0].receipt), worker="w2")


@scenario("R3.5")
def release_frees_the_slot(rig: Rig) -> None:
    """A released delivery gives its slot back and runs again in its place."""
    first, second = rig.put_many(2, concurrency_key="k")
    rig.confirm(Release(receipt=rig.take_one().receipt))
    again = rig.take_one("w2")
    equal(again.id, first, "delivery after the release")
    rig.confirm(Ack(receipt=again.receipt), worker="w2")
    equal(rig.take_ids(), [second], "the next in line")


@scenario("R3.6")
def lost_lease_frees_the_slot(rig: Rig) -> None:
    """The slot ends with the lease: once reap has taken it back, the line moves on."""
    first, second = rig.put_many(2, concurrency_key="k", max_deliveries=1)
    rig.take_one(lease=rig.moment)
    equal(rig.take("w2"), [], "deliveries while the key is full")
    rig.elapse(rig.moment * 1.5)
    rig.reap()
    rig.expect_state(first, JobState.FAILED)
    equal(rig.take_ids("w2"), [second], "next in line after the loss")


@scenario("R3.7")
def requeued_holder_takes_a_slot_again(rig: Rig) -> None:
    """A lost message needs a slot for its next delivery like any other: the limit holds."""
    rig.put_many(3, concurrency_key="k")
    rig.take_one(lease=rig.moment)
    rig.elapse(rig.moment * 1.5)
    rig.reap()
    equal(len(rig.take("w2")), 1, "held at once after the loss")
    equal(rig.take("w3"), [], "deliveries while the key is full again")


@scenario("R3.8")
def late_holder_keeps_within_the_limit(rig: Rig) -> None:
    """A late settlement of a lost holder frees no slot that another one has."""
    rig.put_many(3, concurrency_key="k", max_deliveries=9)
    late = rig.take_one(lease=rig.moment)
    rig.elapse(rig.moment * 1.5)
    rig.reap()
    holder = rig.take_one("w2")
    rig.settle(Ack(receipt=late.receipt))
    equal(rig.take("w3"), [], "deliveries while the key is full")
    rig.confirm(Ack(receipt=holder.receipt), worker="w2")
    equal(len(rig.take("w3")), 1, "deliveries after the slot was freed")


@scenario("R3.9")
def parked_job_keeps_its_slot(rig: Rig) -> None:
    """WAITING keeps the slot, its completion frees it."""
    first, second = rig.put_many(2, concurrency_key="k")
    holder = rig.take_one()
    rig.confirm(Park(receipt=holder.receipt))
    equal(rig.take("w2"), [], "deliveries while the holder is parked")
    token = completion_token(first, holder.receipt)
    rig.transport.complete(token, Completion(state="SUCCEEDED"))
    equal(rig.take_ids("w2"), [second], "next in line after the completion")


@scenario("R3.10")
def revoked_waiters_leave_the_line(rig: Rig) -> None:
    """A revoked waiter ends at once, and a revoked parked holder frees its slot."""
    first, second, third = rig.put_many(3, concurrency_key="k")
    holder = rig.take_one()
    rig.transport.revoke([second])
    equal(rig.state(second), JobState.REVOKED, "state of the revoked waiter")
    equal(rig.stats().blocked, 1, "blocked afterwards")
    rig.confirm(Park(receipt=holder.receipt))
    rig.transport.revoke([first])
    equal(rig.take_ids("w2"), [third], "next in line")


@scenario("R3.11")
def waiters_expire_unread(rig: Rig) -> None:
    """A waiter past its expiry is ended by reap, and never takes the slot."""
    rig.put(concurrency_key="k")
    holder = rig.take_one()
    waiting = rig.put(concurrency_key="k", expires=rig.moment)
    equal(rig.take("w2"), [], "deliveries while the key is full")
    rig.elapse(rig.moment * 1.5)
    rig.reap()
    rig.expect_state(waiting, JobState.EXPIRED)
    rig.confirm(Ack(receipt=holder.receipt))
    equal(rig.take("w2"), [], "deliveries after the slot is free")


@scenario("R3.12")
def line_is_first_in_first_out(rig: Rig) -> None:
    """Waiters of one queue and band get the slot in their order, however often the key is full."""
    ids = rig.put_many(8, concurrency_key="k")
    served: list[str] = []
    for _ in range(8):
        holder = rig.take_one()
        equal(rig.take("w2"), [], "deliveries while the key is full")
        served.append(holder.id)
        rig.confirm(Ack(receipt=holder.receipt))
    equal(served, ids, "order of the line")


@scenario("R3.13")
def purge_takes_waiters_too(rig: Rig) -> None:
    """Purging the queue ends those that wait for a slot and leaves the holder."""
    first, *waiting = rig.put_many(4, concurrency_key="k")
    rig.take_one()
    equal(rig.transport.purge("q").removed, 3, "purged")
    states = {rig.state(job_id) for job_id in waiting}
    equal((rig.state(first), states), (JobState.RUNNING, {JobState.REVOKED}), "states")
    equal(rig.stats().blocked, 0, "blocked afterwards")


@scenario("R3.14")
def limit_holds_among_workers_at_once(rig: Rig) -> None:
    """Under many workers at once the key's limit is never exceeded, and all its jobs run once."""
    ids = rig.put_many(40, concurrency_key="k", concurrency_limit=2)
    lock = threading.Lock()
    running: Counter[str] = Counter()
    done: list[str] = []
    most = 0

    def worker(name: str) -> Callable[[], None]:
        handle = rig.duplicate()

        def run() -> None:
            nonlocal most
            for _ in range(4_000):
                deliveries = rig.take(name, limit=2, via=handle)
                with lock:
                    running.update(d.id for d in deliveries)
                    most = max(most, len(running))
                # Long enough for another worker to reserve meanwhile, if it were let.
                time.sleep(0.002)
                with lock:
                    for delivery in deliveries:
                        del running[delivery.id]
                        done.append(delivery.id)
                rig.settle(*(Ack(receipt=d.receipt) for d in deliveries), worker=name, via=handle)
                if len(done) >= len(ids):
                    return

        return run

    rig.together(*(worker(f"w{n}") for n in range(4)))
    check(most <= 2, f"{most} deliveries were held at once with a limit of 2")
    equal(sorted(done), sorted(ids), "jobs run")
