"""The order in which messages are handed out."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from taskmq.states import JobState
from taskmq.testing.conformance.scenario import check, equal, near, scenario
from taskmq.transport.types import Ack, Defer, QueueShare, Release, Yield

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taskmq.testing.conformance.rig import Rig


@scenario("I4.1")
def global_priority(rig: Rig) -> None:
    """Strictly by priority across all the queues asked for, whatever their weights."""
    low = rig.put(queue="a", priority=-5)
    normal = rig.put(queue="b", priority=0)
    urgent = rig.put(queue="c", priority=9)
    high = rig.put(queue="a", priority=5)
    shares = (QueueShare("a", 100), QueueShare("b", 1), QueueShare("c", 1))
    equal(rig.take_ids("w1", *shares), [urgent, high, normal, low], "order of deliveries")


@scenario("I4.2")
def all_nineteen_levels(rig: Rig) -> None:
    """Every priority from 9 down to -9 is a level of its own inside a queue, in one call or many."""
    levels = [(n * 7) % 19 - 9 for n in range(38)]
    rig.enqueue(*(rig.message(priority=level) for level in levels))
    order = [d.priority for d in rig.take(limit=20)]
    order += [d.priority for d in rig.drain(limit=1)]
    equal(order, sorted(levels, reverse=True), "priorities as delivered")


@scenario("I4.3")
def fifo_in_a_band(rig: Rig) -> None:
    """Inside a queue and band first in, first out, over calls and batches."""
    ids = rig.put_many(7) + [rig.put() for _ in range(6)] + rig.put_many(7)
    got = rig.take_ids(limit=3) + [d.id for d in rig.drain(limit=5)]
    equal(got, ids, "order of deliveries")


@scenario("I4.4")
def weighted_round_robin(rig: Rig) -> None:
    """Inside a band, queues of weights 3 and 1 share 40 deliveries 30 to 10, one by one or in batches."""
    shares = (QueueShare("a", 3), QueueShare("b", 1))
    for limit in (1, 8, 40):
        rig.enqueue(*(rig.message(queue=q) for q in ("a", "b") for _ in range(40)))
        credits: Mapping[str, float] = {}
        got: list[str] = []
        receipts: list[str] = []
        while len(got) < 40:
            reply = rig.reserve("w1", *shares, limit=limit, credits=credits)
            check(reply.deliveries, "reserve gave nothing although messages are ready")
            credits = reply.credits
            got += [d.queue for d in reply.deliveries]
            receipts += [d.receipt for d in reply.deliveries]
        counts = Counter(got[:40])
        check(
            29 <= counts["a"] <= 31,
            f"at limit {limit}, of 40 deliveries a got {counts['a']}, not 30",
        )
        rest = [d.receipt for d in rig.drain("w1", *shares, limit=80)]
        rig.confirm(*(Ack(receipt=receipt) for receipt in receipts + rest))


@scenario("I4.5")
def light_queue_is_not_starved(rig: Rig) -> None:
    """A queue of weight 1 beside one of weight 9 has its turn within two rounds of its band."""
    shares = (QueueShare("heavy", 9), QueueShare("light", 1))
    rig.enqueue(*(rig.message(queue="heavy") for _ in range(60)), rig.message(queue="light"))
    credits: Mapping[str, float] = {}
    got: list[str] = []
    for _ in range(20):
        reply = rig.reserve("w1", *shares, limit=1, credits=credits)
        credits = reply.credits
        got += [d.queue for d in reply.deliveries]
    check("light" in got, "the light queue had no turn in 20 deliveries of weights 9 and 1")


@scenario("I4.6")
def empty_queues_take_no_turns(rig: Rig) -> None:
    """A heavy queue without messages holds up nobody."""
    ids = rig.put_many(10, queue="light")
    shares = (QueueShare("empty", 9), QueueShare("light", 1))
    equal(rig.take_ids("w1", *shares, limit=10), ids, "deliveries beside an empty queue")


@scenario("I4.7")
def release_keeps_place(rig: Rig) -> None:
    """A released message keeps its place before those that came later."""
    ids = rig.put_many(4)
    first = rig.take("w1", limit=2)
    rig.confirm(Release(receipt=first[0].receipt))
    rig.confirm(Release(receipt=first[1].receipt, counted=True))
    equal(rig.take_ids(), ids, "order after the release")


@scenario("I4.8")
def yield_keeps_place(rig: Rig) -> None:
    """A yielded message keeps its place in its band."""
    ids = rig.put_many(3)
    rig.confirm(Yield(receipt=rig.take(limit=1)[0].receipt))
    equal(rig.take_ids(), ids, "order after the yield")


@scenario("I4.9")
def delayed_yield_keeps_place(rig: Rig) -> None:
    """A yield with a delay is due after it, in its old place."""
    ids = rig.put_many(3)
    rig.confirm(Yield(receipt=rig.take(limit=1)[0].receipt, delay=rig.moment))
    equal(rig.reserve(limit=0).head, 0, "head beside a yielded message")
    rig.elapse(rig.moment * 1.5)
    equal(rig.take_ids(), ids, "order once the yielded message is due")


@scenario("I4.10")
def defer_keeps_place(rig: Rig) -> None:
    """A deferred message is due after the delay, in its old place."""
    ids = rig.put_many(4)
    rig.confirm(Defer(receipt=rig.take(limit=1)[0].receipt, delay=rig.moment))
    equal(rig.take_ids(limit=1), [ids[1]], "delivery while the first is deferred")
    rig.elapse(rig.moment * 1.5)
    equal(rig.take_ids(), [ids[0], ids[2], ids[3]], "order once the deferred message is due")


@scenario("I4.11")
def freed_slot_keeps_place(rig: Rig) -> None:
    """A message from a key's waiting line comes back in its place, before those that came later."""
    keyed: dict[str, Any] = {"concurrency_key": "k"}
    first, second = rig.put(**keyed), rig.put(**keyed)
    later = rig.put()
    holder = rig.take(limit=1)[0]
    equal(holder.id, first, "first delivery")
    equal(rig.take_ids(limit=1), [later], "delivery past the full key")
    last = rig.put()
    rig.confirm(Ack(receipt=holder.receipt))
    equal(rig.take_ids(), [second, last], "order once the slot is free")


@scenario("I4.12")
def due_messages_are_promoted_first(rig: Rig) -> None:
    """What has become due takes part in the very next call: an urgent one overtakes at once."""
    normal = rig.put()
    urgent = rig.put(priority=9, delay=rig.moment)
    rig.elapse(rig.moment * 1.5)
    equal(rig.take_ids(), [urgent, normal], "order of deliveries")


@scenario("I4.13")
def only_the_queues_asked_for(rig: Rig) -> None:
    """Only from the queues asked for, no more than `limit`."""
    rig.put_many(3, queue="a")
    rig.put(queue="b", priority=9)
    equal([d.queue for d in rig.take("w1", "a", limit=2)], ["a", "a"], "queues of the deliveries")
    equal(rig.take("w1", "nobody-knows-it"), [], "deliveries of a queue nobody has used")


@scenario("I4.14")
def max_priority_leaves_out(rig: Rig) -> None:
    """`max_priority` leaves what is more urgent where it is."""
    urgent, normal = rig.put(priority=9), rig.put(priority=0)
    low = rig.put(priority=-1)
    equal(rig.take_ids(max_priority=0), [normal, low], "deliveries up to priority 0")
    equal(rig.take_ids(), [urgent], "deliveries without the limit")


@scenario("I4.15")
def head_tells_the_best_left(rig: Rig) -> None:
    """`head` is the highest priority visible after the call, None when nothing is."""
    equal(rig.reserve().head, None, "head of an empty queue")
    rig.enqueue(
        rig.message(priority=7), rig.message(priority=-2), rig.message(priority=9, queue="x")
    )
    rig.put(priority=8, delay=rig.long)
    equal(rig.reserve(limit=0).head, 7, "head before")
    equal(rig.reserve(limit=1).head, -2, "head after the best was taken")
    equal(rig.reserve(limit=1).head, None, "head after the last was taken")


@scenario("I4.16")
def limit_zero_only_looks(rig: Rig) -> None:
    """`limit=0` takes nothing and still answers `head`, `next_due_in` and `now`."""
    job_id = rig.put(priority=3)
    rig.put(delay=rig.moment * 20)
    reply = rig.reserve(limit=0)
    equal(reply.deliveries, [], "deliveries")
    equal(reply.head, 3, "head")
    near(reply.next_due_in, rig.moment * 20, "next_due_in", within=rig.slack)
    near(reply.now, rig.transport.now(), "now", within=rig.slack)
    equal(rig.state(job_id), JobState.QUEUED, "state after a look")


@scenario("I4.17")
def next_due_tells_when(rig: Rig) -> None:
    """`next_due_in` is the time until the next delayed message of the queues asked for."""
    equal(rig.reserve().next_due_in, None, "next_due_in with nothing delayed")
    rig.put(delay=rig.moment * 40)
    rig.put(delay=rig.moment * 20)
    rig.put(queue="other", delay=rig.moment * 2)
    near(rig.reserve().next_due_in, rig.moment * 20, "next_due_in", within=rig.slack)


@scenario("I4.18")
def many_queues_are_all_served(rig: Rig) -> None:
    """A worker on 600 queues is given what is in any of them, calling again while `more` says so."""
    names = [f"queue-{n:03d}" for n in range(600)]
    ids = rig.enqueue(*(rig.message(queue=name) for name in names[::6]))
    got = rig.drain("w1", *names, limit=30)
    equal(sorted(d.id for d in got), sorted(ids), "messages delivered")


@scenario("I4.19")
def retried_keeps_priority(rig: Rig) -> None:
    """What comes back, by whatever way, comes back to its own priority and queue."""
    job_id = rig.put(priority=6)
    rig.lose(job_id)
    rig.put(priority=5)
    again = rig.take(limit=1)[0]
    equal((again.id, again.priority, again.queue), (job_id, 6, "q"), "delivery after a lost lease")
