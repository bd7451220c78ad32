"""Held messages and the arrivals that release them or give them up."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from taskmq.states import JobState
from taskmq.testing.conformance.rig import Rig, boom
from taskmq.testing.conformance.scenario import check, equal, scenario
from taskmq.transport.contract import Transport, completion_token
from taskmq.transport.types import (
    Ack,
    Arrival,
    Bury,
    Completion,
    Defer,
    Delivery,
    Edge,
    Expect,
    Finish,
    FollowUps,
    Hold,
    HoldRule,
    Park,
    Payload,
    Retry,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def join_of(
    rig: Rig, count: int, hold: Hold | None = None, *, tolerate: bool = False, **fields: Any
) -> list[str]:
    """Submit `count` roots and the message "join" that waits for all of them; the roots' ids."""
    roots = [rig.message(successors=(Edge("join", tolerate),), **fields) for _ in range(count)]
    rig.enqueue(*roots, rig.message("join", hold=hold or Hold(arrivals=count)))
    return [root.id for root in roots]


def fail(delivery: Delivery) -> Ack:
    """End a job FAILED."""
    return Ack(receipt=delivery.receipt, state=JobState.FAILED, error=boom())


@scenario("I5.3")
def held_message_is_invisible(rig: Rig) -> None:
    """A held message is PENDING, counted as held, and never delivered before its release."""
    join_of(rig, 2)
    record = rig.job("join")
    equal((record.state, record.arrived), (JobState.PENDING, 0), "the record")
    equal(record.hold, Hold(arrivals=2), "hold of the record")
    stats = rig.stats()
    equal((stats.held, stats.pending), (1, 2), "held and pending")
    first, second = rig.take()
    rig.confirm(Ack(receipt=first.receipt))
    rig.until(lambda: rig.job("join").arrived == 1, "one arrival at the join")
    equal(rig.take(), [], "deliveries before the last arrival")
    rig.confirm(Ack(receipt=second.receipt))
    rig.expect_state("join", JobState.QUEUED)
    delivery = rig.take_one()
    equal((delivery.id, delivery.deliveries), ("join", 1), "the delivery")
    equal(rig.stats().held, 0, "held afterwards")


@scenario("I5.4")
def graph_goes_in_with_one_call(rig: Rig) -> None:
    """A whole graph is submitted in one call, in any order, and runs along its edges."""
    rig.enqueue(
        rig.message("d", hold=Hold(arrivals=2)),
        rig.message("b", hold=Hold(arrivals=1), successors=(Edge("d"),)),
        rig.message("c", hold=Hold(arrivals=1), successors=(Edge("d"),)),
        rig.message("a", hold=Hold(arrivals=0), successors=(Edge("b"), Edge("c"))),
    )
    equal(rig.job("a").successors, (Edge("b"), Edge("c")), "successors in the record")
    rig.expect_state("a", JobState.QUEUED)
    rig.finish("a")
    rig.until(lambda: rig.stats().pending == 2, "two successors queued")
    deliveries = rig.take()
    equal(sorted(d.id for d in deliveries), ["b", "c"], "deliveries after the root")
    rig.confirm(*(Ack(receipt=d.receipt) for d in deliveries))
    rig.expect_state("d", JobState.QUEUED)
    rig.finish("d")


@scenario("I5.5")
def all_ok_is_given_up_at_the_first_failure(rig: Rig) -> None:
    """ALL_OK: the first failed arrival ends it SKIPPED with the cause; later ones change nothing."""
    join_of(rig, 2)
    first, second = rig.take()
    rig.confirm(fail(first))
    record = rig.expect_state("join", JobState.SKIPPED)
    check(record.reason or record.error, "a skipped job tells no cause")
    check(record.finished_at is not None, "a skipped job has no finished_at")
    rig.confirm(Ack(receipt=second.receipt))
    equal(rig.state("join"), JobState.SKIPPED, "state after the other arrival")
    equal(rig.take(), [], "deliveries")


@scenario("I5.6")
def all_done_takes_any_end(rig: Rig) -> None:
    """ALL_DONE: released when all have arrived, however they ended."""
    join_of(rig, 3, Hold(arrivals=3, rule=HoldRule.ALL_DONE))
    deliveries = rig.take()
    rig.confirm(fail(deliveries[0]), Ack(receipt=deliveries[1].receipt))
    equal(rig.state("join"), JobState.PENDING, "state before the last arrival")
    rig.confirm(fail(deliveries[2]))
    rig.expect_state("join", JobState.QUEUED)


@scenario("I5.7")
def any_failed_waits_for_a_failure(rig: Rig) -> None:
    """ANY_FAILED: released at the first failure, given up when all have arrived and none failed."""
    rule = Hold(arrivals=2, rule=HoldRule.ANY_FAILED)
    rig.enqueue(
        rig.message("released", hold=rule),
        rig.message("given-up", hold=rule),
        *(rig.message(f"x{n}", successors=(Edge("released"),), queue="x") for n in range(2)),
        *(rig.message(f"y{n}", successors=(Edge("given-up"),), queue="y") for n in range(2)),
    )
    rig.confirm(fail(rig.take("w1", "x", limit=1)[0]))
    rig.expect_state("released", JobState.QUEUED)
    y = rig.take("w1", "y")
    rig.confirm(Ack(receipt=y[0].receipt))
    equal(rig.state("given-up"), JobState.PENDING, "state before the last arrival")
    rig.confirm(Ack(receipt=y[1].receipt))
    rig.expect_state("given-up", JobState.SKIPPED)


@scenario("I5.8")
def tolerate_counts_failures(rig: Rig) -> None:
    """TOLERATE: decided when all have arrived: released with at most that many failures, else given up."""
    hold = Hold(arrivals=3, rule=HoldRule.TOLERATE, tolerate=1)
    rig.enqueue(
        rig.message("one", hold=hold),
        rig.message("two", hold=hold),
        *(rig.message(f"x{n}", successors=(Edge("one"),), queue="x") for n in range(3)),
        *(rig.message(f"y{n}", successors=(Edge("two"),), queue="y") for n in range(3)),
    )
    x, y = rig.take("w1", "x"), rig.take("w1", "y")
    rig.confirm(fail(x[0]), fail(y[0]), fail(y[1]))
    states = [rig.state("one"), rig.state("two")]
    equal(states, [JobState.PENDING] * 2, "states before the last arrivals")
    rig.confirm(Ack(receipt=x[1].receipt), Ack(receipt=x[2].receipt), Ack(receipt=y[2].receipt))
    rig.expect_state("one", JobState.QUEUED)
    rig.expect_state("two", JobState.SKIPPED)


@scenario("I5.9")
def tolerant_edge_arrives_ok(rig: Rig) -> None:
    """Over an edge with `tolerate` a failed end arrives as ok."""
    join_of(rig, 2, tolerate=True)
    first, second = rig.take()
    rig.confirm(fail(first), Ack(receipt=second.receipt))
    rig.expect_state("join", JobState.QUEUED)


@scenario("I5.10")
def skips_cascade(rig: Rig) -> None:
    """A given-up message arrives at its own successors in turn, along a chain of any length."""
    length = 60
    rig.enqueue(
        rig.message("s0", successors=(Edge("s1"),)),
        *(
            rig.message(f"s{n}", hold=Hold(arrivals=1), successors=(Edge(f"s{n + 1}"),))
            for n in range(1, length)
        ),
        rig.message(f"s{length}", hold=Hold(arrivals=1, rule=HoldRule.ALL_DONE)),
    )
    rig.confirm(fail(rig.take_one()))
    rig.reap()
    rig.expect_state(f"s{length}", JobState.QUEUED)
    states = {rig.state(f"s{n}") for n in range(1, length)}
    equal(states, {JobState.SKIPPED}, "states along the chain")


@scenario("I5.11")
def wide_skips_cascade(rig: Rig) -> None:
    """A skip reaches any number of successors, within a few passes of maintenance."""
    width = 700
    successors = tuple(Edge(f"n{number}") for number in range(width))
    rig.enqueue(
        rig.message("root", successors=successors),
        *(
            rig.message(edge.to, hold=Hold(arrivals=1), successors=(Edge("last"),))
            for edge in successors
        ),
        rig.message("last", hold=Hold(arrivals=width, rule=HoldRule.ALL_DONE)),
    )
    rig.confirm(fail(rig.take_one()))
    rig.reap()
    rig.expect_state("last", JobState.QUEUED)
    records = rig.transport.get_jobs([edge.to for edge in successors])
    states = {record.state for record in records if record}
    equal(states, {JobState.SKIPPED}, "states of the successors")


@scenario("I5.12")
def skipped_counts_like_failed(rig: Rig) -> None:
    """A skipped arrival counts like a failed one for the rules."""
    rig.enqueue(
        rig.message("a", successors=(Edge("b"),)),
        rig.message("b", hold=Hold(arrivals=1), successors=(Edge("c"), Edge("d"))),
        rig.message("c", hold=Hold(arrivals=1, rule=HoldRule.ANY_FAILED)),
        rig.message("d", hold=Hold(arrivals=1, rule=HoldRule.TOLERATE, tolerate=0)),
    )
    rig.confirm(fail(rig.take_one()))
    rig.expect_state("b", JobState.SKIPPED)
    rig.expect_state("c", JobState.QUEUED)
    rig.expect_state("d", JobState.SKIPPED)


@scenario("I5.13")
def finish_needs_no_task(rig: Rig) -> None:
    """A hold with `finish` ends SUCCEEDED when its rule is met, is never delivered, and arrives in turn."""
    rig.enqueue(
        rig.message("a", successors=(Edge("run"),)),
        rig.message("run", hold=Hold(arrivals=1, finish=True), successors=(Edge("after"),)),
        rig.message("after", hold=Hold(arrivals=1)),
    )
    rig.finish("a")
    record = rig.expect_state("run", JobState.SUCCEEDED)
    check(record.finished_at is not None, "a finished record has no finished_at")
    rig.expect_state("after", JobState.QUEUED)
    equal(rig.take_ids(), ["after"], "deliveries")


@scenario("I5.14")
def otherwise_names_the_bad_end(rig: Rig) -> None:
    """A hold that can't be met any more ends as `otherwise` says, and arrives as that."""
    rig.enqueue(
        rig.message("a", successors=(Edge("run"),)),
        rig.message(
            "run",
            hold=Hold(arrivals=1, finish=True, otherwise=JobState.FAILED),
            successors=(Edge("after"),),
        ),
        rig.message("after", hold=Hold(arrivals=1)),
    )
    rig.confirm(fail(rig.take_one()))
    rig.expect_state("run", JobState.FAILED)
    rig.expect_state("after", JobState.SKIPPED)


@scenario("I5.15")
def arrival_counts_once(rig: Rig) -> None:
    """An arrival of one source counts once, by whatever way and however often it comes."""
    roots = join_of(rig, 2)
    first, second = rig.take()
    arrivals = FollowUps(arrive=(Arrival(to="join", source=roots[0]),) * 2)
    ack = Ack(receipt=first.receipt, follow_ups=arrivals)
    rig.confirm(ack)
    rig.settle(ack, ack)
    rig.until(lambda: rig.job("join").arrived == 1, "one arrival at the join")
    equal(rig.state("join"), JobState.PENDING, "state after one source's arrivals")
    equal(rig.take(), [], "deliveries after one source's arrivals")
    rig.confirm(Ack(receipt=second.receipt))
    rig.expect_state("join", JobState.QUEUED)


@scenario("I5.16")
def siblings_release_once(rig: Rig) -> None:
    """Siblings that end at the same instant release their join exactly once."""
    handles = [rig.duplicate() for _ in range(4)]
    for turn in range(6):
        queue, join = f"in-{turn}", f"join-{turn}"
        rig.enqueue(
            *(rig.message(queue=queue, successors=(Edge(join),)) for _ in range(8)),
            rig.message(join, queue="out", hold=Hold(arrivals=8)),
        )
        held = rig.take("w1", queue)
        rig.together(*(_settler(rig, handle, held[n::4]) for n, handle in enumerate(handles)))
        rig.expect_state(join, JobState.QUEUED)
        equal(rig.job(join).arrived, 8, "arrivals")
        equal(rig.take_ids("w2", "out"), [join], "deliveries of the join")


@scenario("I5.17")
def failing_siblings_give_up_once(rig: Rig) -> None:
    """Siblings that fail and succeed at the same instant leave no join without a decision."""
    handles = [rig.duplicate() for _ in range(2)]
    for turn in range(8):
        queue, join, after = f"in-{turn}", f"join-{turn}", f"after-{turn}"
        rig.enqueue(
            *(rig.message(queue=queue, successors=(Edge(join),)) for _ in range(2)),
            rig.message(join, hold=Hold(arrivals=2), successors=(Edge(after),)),
            rig.message(after, queue="out", hold=Hold(arrivals=1, rule=HoldRule.ANY_FAILED)),
        )
        good, bad = rig.take("w1", queue)
        rig.together(
            _settler(rig, handles[0], [good]),
            lambda: handles[1].settle("w1", [fail(bad)]).results[0].status,
        )
        rig.expect_state(join, JobState.SKIPPED)
        rig.expect_state(after, JobState.QUEUED)


@scenario("I5.18", "atomic_settle")
def no_moment_between_end_and_successor(rig: Rig) -> None:
    """Whoever sees that a job has ended sees its successor queued and its published messages there."""
    reader = rig.duplicate()
    for turn in range(12):
        root, following, child = f"root-{turn}", f"next-{turn}", f"child-{turn}"
        rig.enqueue(
            rig.message(root, successors=(Edge(following),)),
            rig.message(following, queue="out", hold=Hold(arrivals=1)),
        )
        delivery = rig.take_one()
        published = FollowUps(enqueue=(rig.message(child, queue="out"),))
        watching = threading.Event()

        def watch(
            root: str = root, following: str = following, child: str = child
        ) -> tuple[bool, bool]:
            end = time.monotonic() + 10
            while time.monotonic() < end:
                record = reader.get_jobs([root])[0]
                watching.set()
                if record is not None and record.state is JobState.SUCCEEDED:
                    then = reader.get_jobs([following, child])
                    return then[0] is not None and then[0].state is JobState.QUEUED, bool(then[1])
            return False, False

        def settle() -> tuple[bool, bool]:
            watching.wait(10)
            rig.confirm(Ack(receipt=delivery.receipt, follow_ups=published))
            return True, True

        seen, _ = rig.together(watch, settle)
        equal(seen, (True, True), "successor queued, child stored, at the sight of the end")


@scenario("I5.19")
def buried_by_worker_arrives(rig: Rig) -> None:
    """A burial by its worker arrives as failed."""
    join_of(rig, 1)
    rig.confirm(Bury(receipt=rig.take_one().receipt, error=boom()))
    rig.expect_state("join", JobState.SKIPPED)


@scenario("I5.20")
def buried_by_reap_arrives(rig: Rig) -> None:
    """A burial by reap arrives as failed."""
    join_of(rig, 1, max_deliveries=1)
    rig.lose()
    rig.expect_state("join", JobState.SKIPPED)


@scenario("I5.21")
def expired_arrives(rig: Rig) -> None:
    """An expiry arrives as failed, whether a reserve or a reap found it."""
    join_of(rig, 1, expires=rig.moment)
    rig.enqueue(
        rig.message(queue="unread", expires=rig.moment, successors=(Edge("join-2"),)),
        rig.message("join-2", hold=Hold(arrivals=1)),
    )
    rig.elapse(rig.moment * 1.5)
    equal(rig.take(), [], "deliveries past the expiry")
    rig.reap()
    rig.expect_state("join", JobState.SKIPPED)
    rig.expect_state("join-2", JobState.SKIPPED)


@scenario("I5.22")
def revoked_arrives(rig: Rig) -> None:
    """A revocation arrives as failed, of a queued job and of a held one."""
    roots = join_of(rig, 1)
    rig.enqueue(
        rig.message("held", hold=Hold(arrivals=1), successors=(Edge("join-2"),)),
        rig.message("join-2", hold=Hold(arrivals=1)),
    )
    rig.transport.revoke([roots[0], "held"])
    rig.expect_state("join", JobState.SKIPPED)
    rig.expect_state("join-2", JobState.SKIPPED)


@scenario("I5.23")
def purged_arrives(rig: Rig) -> None:
    """A job ended by purge arrives as failed."""
    join_of(rig, 1, queue="purged")
    equal(rig.transport.purge("purged").removed, 1, "purged")
    rig.expect_state("join", JobState.SKIPPED)


@scenario("I5.24")
def completed_arrives(rig: Rig) -> None:
    """A completion from outside arrives, as ok or as failed."""
    good = join_of(rig, 1)[0]
    receipt = rig.take_one().receipt
    rig.confirm(Park(receipt=receipt))
    rig.transport.complete(completion_token(good, receipt), Completion(state="SUCCEEDED"))
    rig.expect_state("join", JobState.QUEUED)
    rig.enqueue(
        rig.message("bad", queue="b", successors=(Edge("join-2"),)),
        rig.message("join-2", hold=Hold(arrivals=1)),
    )
    receipt = rig.take_one("w1", "b").receipt
    rig.confirm(Park(receipt=receipt))
    completion = Completion(state="FAILED", error=boom())
    rig.transport.complete(completion_token("bad", receipt), completion)
    rig.expect_state("join-2", JobState.SKIPPED)


@scenario("I5.25")
def retry_does_not_arrive(rig: Rig) -> None:
    """Only an end arrives: neither a retry nor a lost lease nor a deferral does."""
    join_of(rig, 1)
    rig.lose()
    rig.confirm(Retry(receipt=rig.take_one().receipt, delay=0.0, error=boom()))
    rig.confirm(Defer(receipt=rig.take_one().receipt, delay=0.0))
    record = rig.job("join")
    equal((record.state, record.arrived), (JobState.PENDING, 0), "the held message")


@scenario("I5.26")
def explicit_arrivals_count(rig: Rig) -> None:
    """A settlement may arrive for a source of its own choice, as ok, failed or skipped."""
    hold = Hold(arrivals=3, rule=HoldRule.TOLERATE, tolerate=1)
    rig.enqueue(rig.message("join", queue="out", hold=hold), rig.message())
    arrivals = FollowUps(
        arrive=(
            Arrival(to="join", source="s1"),
            Arrival(to="join", source="s2", verdict="skipped"),
            Arrival(to="join", source="s3"),
        )
    )
    rig.confirm(Ack(receipt=rig.take_one().receipt, follow_ups=arrivals))
    rig.expect_state("join", JobState.QUEUED)


@scenario("I5.27")
def expectations_can_be_raised(rig: Rig) -> None:
    """A settlement raises the number that a held message waits for before its own arrival counts."""
    join_of(rig, 1)
    delivery = rig.take_one()
    children = tuple(rig.message(f"c{n}", successors=(Edge("join"),)) for n in range(2))
    follow_ups = FollowUps(enqueue=children, expect=(Expect("join", 2),))
    rig.confirm(Ack(receipt=delivery.receipt, follow_ups=follow_ups))
    rig.until(lambda: rig.job("join").arrived == 1, "one arrival at the join")
    equal(rig.state("join"), JobState.PENDING, "state of the join before the children")
    for _ in range(2):
        rig.confirm(Ack(receipt=rig.take(limit=1)[0].receipt))
    rig.expect_state("join", JobState.QUEUED)


@scenario("I5.28")
def follow_ups_apply_in_order(rig: Rig) -> None:
    """Enqueue, expect, arrive and finish apply in this order and may build on each other."""
    rig.put()
    follow_ups = FollowUps(
        enqueue=(
            rig.message("late-join", queue="out", hold=Hold(arrivals=1)),
            rig.message("record", hold=Hold(arrivals=5, finish=True)),
        ),
        expect=(Expect("late-join", 1),),
        arrive=(
            Arrival(to="late-join", source="s1"),
            Arrival(to="late-join", source="s2"),
        ),
        finish=(Finish(id="record", state=JobState.SUCCEEDED, result=Payload("x", b"r")),),
    )
    rig.confirm(Ack(receipt=rig.take_one().receipt, follow_ups=follow_ups))
    rig.expect_state("late-join", JobState.QUEUED)
    equal(rig.expect_state("record", JobState.SUCCEEDED).result, Payload("x", b"r"), "result")


@scenario("I5.29")
def finishing_a_record_arrives(rig: Rig) -> None:
    """A settlement may end a record that has no task, with result or error; that end arrives, once."""
    rig.enqueue(
        rig.message(priority=9),
        rig.message("run", hold=Hold(arrivals=7, finish=True), successors=(Edge("parent"),)),
        rig.message("parent", hold=Hold(arrivals=1)),
        rig.message(priority=1),
    )
    failed = Finish(id="run", state=JobState.FAILED, error=boom())
    rig.confirm(Ack(receipt=rig.take(limit=1)[0].receipt, follow_ups=FollowUps(finish=(failed,))))
    equal(rig.expect_state("run", JobState.FAILED).error, boom(), "error of the record")
    rig.expect_state("parent", JobState.SKIPPED)
    again = Finish(id="run", state=JobState.SUCCEEDED)
    rig.confirm(Ack(receipt=rig.take(limit=1)[0].receipt, follow_ups=FollowUps(finish=(again,))))
    equal(rig.state("run"), JobState.FAILED, "state after a second finish")


@scenario("I5.30")
def closed_guard_revokes_releases(rig: Rig) -> None:
    """Messages guarded by a record that is cancelled or ended end REVOKED instead of being released."""
    rig.enqueue(
        rig.message("run", hold=Hold(arrivals=9, finish=True)),
        rig.message("a", successors=(Edge("b"),), guard="run"),
        rig.message("b", hold=Hold(arrivals=1), successors=(Edge("c"),), guard="run"),
        rig.message("c", hold=Hold(arrivals=1), guard="run"),
        rig.message("free", hold=Hold(arrivals=1)),
        rig.message("x", queue="x", successors=(Edge("y"),)),
        rig.message("y", hold=Hold(arrivals=1), guard="run"),
    )
    running = rig.take_one()
    rig.transport.revoke(["run"])
    rig.confirm(Ack(receipt=running.receipt))
    rig.expect_state("b", JobState.REVOKED)
    rig.confirm(Ack(receipt=rig.take_one("w1", "x").receipt))
    rig.expect_state("y", JobState.REVOKED)
    check(rig.state("c").is_final, f"c waits for a revoked job and is {rig.state('c')}")
    equal(rig.state("free"), JobState.PENDING, "state of an unguarded message")
    equal(rig.take(), [], "deliveries")


@scenario("I5.31")
def open_guard_releases(rig: Rig) -> None:
    """A guard that is neither ended nor cancelled lets its messages go."""
    rig.enqueue(
        rig.message("run", hold=Hold(arrivals=9, finish=True)),
        rig.message("a", successors=(Edge("b"),), guard="run"),
        rig.message("b", hold=Hold(arrivals=1), guard="run"),
    )
    rig.finish("a")
    rig.expect_state("b", JobState.QUEUED)


@scenario("I5.32")
def big_joins_stay_exact(rig: Rig) -> None:
    """A join over 600 members is released by the last one, not before."""
    join_of(rig, 600)
    deliveries = rig.drain(limit=200)
    rig.confirm(*(Ack(receipt=d.receipt) for d in deliveries[:-1]))
    rig.until(lambda: rig.job("join").arrived == 599, "599 arrivals")
    equal(rig.state("join"), JobState.PENDING, "state before the last arrival")
    rig.confirm(Ack(receipt=deliveries[-1].receipt))
    rig.expect_state("join", JobState.QUEUED)


@scenario("I5.33")
def lost_settlement_does_not_arrive(rig: Rig) -> None:
    """A settlement that is lost arrives nowhere."""
    join_of(rig, 1, max_deliveries=9)
    stale = rig.lose()[0]
    holder = rig.take_one("w2")
    rig.answers("lost", Ack(receipt=stale.receipt))
    equal(rig.state("join"), JobState.PENDING, "state after the stale settlement")
    rig.confirm(Ack(receipt=holder.receipt), worker="w2")
    rig.expect_state("join", JobState.QUEUED)


def _settler(rig: Rig, handle: Transport, deliveries: list[Delivery]) -> Callable[[], str]:
    acks = [Ack(receipt=d.receipt) for d in deliveries]
    return lambda: rig.settle(*acks, via=handle)[0].status


@scenario("I5.34")
def delay_of_a_held_message_counts_from_its_release(rig: Rig) -> None:
    """`delay` of a held message counts from its release, `eta` is the time it says; never earlier."""
    eta = rig.transport.now() + 6 * rig.moment
    held: dict[str, dict[str, float]] = {
        "later": {"delay": 3 * rig.moment},
        "at": {"eta": eta},
        "past": {"eta": rig.transport.now() - 1.0},
    }
    for name, times in held.items():
        root = rig.message(f"root-{name}", successors=(Edge(name),))
        rig.enqueue(
            root, rig.message(name, queue="held", hold=Hold(arrivals=1), **dict[str, Any](times))
        )
    rig.elapse(4 * rig.moment)
    equal(rig.take("w1", "held"), [], "deliveries of what is held, its delay over")
    for delivery in rig.take():
        rig.confirm(Ack(receipt=delivery.receipt))
    rig.until(lambda: rig.state("later") == JobState.QUEUED, "the release")
    equal(rig.take_ids("w1", "held"), ["past"], "what is due at the release")
    stats = rig.stats("held")
    equal((stats.pending, stats.delayed), (0, 2), "pending and delayed")
    rig.elapse(2.5 * rig.moment)
    equal(rig.take_ids("w1", "held"), ["at"], "what is due at its eta")
    rig.elapse(rig.moment)
    equal(rig.take_ids("w1", "held"), ["later"], "what is due after its delay")


@scenario("I5.35")
def odd_ids_arrive(rig: Rig) -> None:
    """Ids of any characters without controls name successors, several of one job among them."""
    odd = [
        'a "quoted" one',
        "back\\slash\\",
        "{braces},commas",
        "NULL",
        "  ",
        "it's",
        "ünïcode ✓",
        "%s",
    ]
    edges = tuple(Edge(each, tolerate=number % 2 == 1) for number, each in enumerate(odd))
    root = rig.message("root {of},all", successors=edges)
    held = [rig.message(each, queue="odd", hold=Hold(arrivals=1)) for each in odd]
    rig.enqueue(root, *held)
    equal(rig.job(root.id).successors, edges, "successors of the record")
    rig.confirm(fail(rig.take_one()))
    rig.until(lambda: rig.state(odd[-1]) != JobState.PENDING, "the arrivals")
    ends = [rig.state(each) for each in odd]
    equal(ends, [JobState.SKIPPED, JobState.QUEUED] * 4, "states: a tolerant edge arrives ok")
    equal(sorted(rig.take_ids("w1", "odd")), sorted(odd[1::2]), "deliveries")
