"""One holder at a time, and what becomes of a holder that dies."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from taskmq.states import JobState
from taskmq.testing.conformance.rig import KEEP_ALL, Rig
from taskmq.testing.conformance.scenario import check, equal, near, scenario
from taskmq.transport.types import Ack, Delivery, Extension, ReapReport, ReapRequest, Release

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskmq.transport.contract import Transport


@scenario("I1.1")
def one_holder(rig: Rig) -> None:
    """Under any number of workers at once a message goes to one of them."""
    ids = rig.put_many(240)

    def worker(number: int) -> Callable[[], list[Delivery]]:
        handle = rig.duplicate()
        return lambda: rig.drain(f"w{number}", limit=1 + number * 2, via=handle)

    shares = rig.together(*(worker(number) for number in range(6)))
    counts = Counter(delivery.id for share in shares for delivery in share)
    twice = [job_id for job_id, count in counts.items() if count > 1]
    equal(twice, [], "messages that went to more than one worker")
    equal(sorted(counts), sorted(ids), "messages delivered")


@scenario("I1.2")
def held_is_invisible(rig: Rig) -> None:
    """What a worker holds is given to nobody, the holder itself included, through any handle."""
    job_id = rig.put()
    rig.take_one("w1")
    other = rig.duplicate()
    equal(rig.take("w2"), [], "deliveries to another worker")
    equal(rig.take("w2", via=other), [], "deliveries through another handle")
    equal(rig.take("w1"), [], "second delivery to the holder")
    equal(rig.state(job_id), JobState.RUNNING, "state")


@scenario("I1.3")
def receipts_are_never_reused(rig: Rig) -> None:
    """Every delivery has a receipt of its own, and none has a dot in it."""
    rig.put_many(2, max_deliveries=50)
    seen: list[str] = []
    for turn in range(4):
        held = rig.take(f"w{turn % 2}", limit=2)
        seen += [delivery.receipt for delivery in held]
        rig.confirm(*(Release(receipt=d.receipt) for d in held), worker=f"w{turn % 2}")
        seen += [delivery.receipt for delivery in rig.lose(limit=2)]
    equal(len(set(seen)), 16, "different receipts of 16 deliveries")
    check(not any("." in receipt for receipt in seen), "a receipt has a dot in it")


@scenario("R2.1")
def reserve_records_running(rig: Rig) -> None:
    """`reserve` records RUNNING, the worker, the receipt and `reserved_at`, but no `started_at`."""
    job_id = rig.put()
    delivery = rig.take_one("w-7")
    record = rig.job(job_id)
    equal(
        (record.state, record.worker, record.receipt, record.deliveries, record.started_at),
        (JobState.RUNNING, "w-7", delivery.receipt, 1, None),
        "what the record says",
    )
    near(record.reserved_at, rig.transport.now(), "reserved_at", within=rig.slack)
    equal(record.reserved_at, delivery.reserved_at, "reserved_at of record and delivery")


@scenario("R2.2")
def delivery_carries_what_is_known(rig: Rig) -> None:
    """A delivery says all that the worker needs of its message."""
    job_id = rig.put(task="a.b", priority=4, max_deliveries=9, run="r", step="s")
    got = rig.take_one()
    equal(
        (got.id, got.task, got.queue, got.priority, got.max_deliveries, got.run, got.step),
        (job_id, "a.b", "q", 4, 9, "r", "s"),
        "what the delivery says",
    )
    equal((got.attempt, got.deliveries, got.yields, got.series), (1, 1, 0, 1), "counts")
    equal((got.cancel_requested, got.outcome, got.meta), (False, None, None), "nothing special")
    equal(got.enqueued_at, rig.job(job_id).enqueued_at, "enqueued_at")


@scenario("I2.1")
def lost_lease_comes_back(rig: Rig) -> None:
    """A holder that dies loses its lease: the message comes back with one more delivery counted."""
    job_id = rig.put()
    first = rig.take_one("w1", lease=rig.moment)
    rig.elapse(rig.moment * 1.5)
    reports = rig.reap()
    equal(sum(report.requeued for report in reports), 1, "requeued by reap")
    equal(rig.state(job_id), JobState.QUEUED, "state after reap")
    second = rig.take_one("w2")
    equal((second.id, second.deliveries, second.attempt), (job_id, 2, 1), "second delivery")
    check(second.receipt != first.receipt, "the second delivery has the first one's receipt")
    equal(rig.job(job_id).worker, "w2", "worker of the record")


@scenario("I2.2")
def nothing_comes_back_early(rig: Rig) -> None:
    """A lease that stands is not taken back by any pass of maintenance."""
    rig.put()
    rig.take_one(lease=rig.moment * 8)
    rig.elapse(rig.moment)
    equal(sum(report.requeued for report in rig.reap()), 0, "requeued while the lease stands")
    equal(rig.take("w2"), [], "deliveries while the lease stands")


@scenario("I2.3")
def only_reap_takes_back(rig: Rig) -> None:
    """A lease that is over is taken back by `reap` alone, and not by one that may not recover."""
    rig.put()
    rig.take_one(lease=rig.moment)
    rig.elapse(rig.moment * 1.5)
    equal(rig.take("w2"), [], "deliveries before a reap")
    equal(sum(report.requeued for report in rig.reap(recover=False)), 0, "requeued without recover")
    equal(rig.take("w2"), [], "deliveries after a reap without recover")
    rig.reap()
    equal(rig.take_one("w2").deliveries, 2, "deliveries counted")


@scenario("I2.4")
def buried_after_max_deliveries(rig: Rig) -> None:
    """At `max_deliveries` a lost lease buries the job: FAILED, "worker lost", reported, a dead letter."""
    job_id = rig.put(max_deliveries=2)
    rig.lose(job_id)
    rig.take_one(lease=rig.moment)
    rig.elapse(rig.moment * 1.5)
    ended = [entry for report in rig.reap() for entry in report.ended]
    equal(
        [(entry.id, entry.task, entry.queue, entry.state, entry.reason) for entry in ended],
        [(job_id, "app.task", "q", JobState.FAILED, "worker lost")],
        "ended, by the report",
    )
    record = rig.expect_state(job_id, JobState.FAILED)
    equal(record.error and record.error.reason, "worker lost", "reason in the record")
    check(record.dead, "the record does not say that it has a dead letter")
    letter = rig.transport.get_dead(job_id)
    equal(letter and (letter.reason, letter.deliveries), ("worker lost", 2), "the dead letter")
    equal(rig.take("w2"), [], "deliveries after the burial")


@scenario("I11.1")
def message_lease_overrides_worker(rig: Rig) -> None:
    """Each message comes back after its own lease, neither the worker's nor another message's."""
    short = rig.put(lease=rig.moment)
    long = rig.put(lease=rig.long)
    own = rig.put()
    deliveries = rig.take(lease=rig.moment * 20)
    leases = [(d.id, d.lease) for d in deliveries]
    equal(leases, [(short, rig.moment), (long, rig.long), (own, rig.moment * 20)], "leases")
    rig.elapse(rig.moment * 1.5)
    rig.reap()
    equal(rig.take_ids("w2"), [short], "what came back after the shortest lease")


@scenario("I2.5")
def extend_prolongs(rig: Rig) -> None:
    """An extended lease counts from now; one not extended ends all the same."""
    kept, lost = rig.put(), rig.put()
    deliveries = {d.id: d.receipt for d in rig.take(lease=rig.moment * 2)}
    rig.elapse(rig.moment)
    reply = rig.transport.extend("w1", [Extension(deliveries[kept], rig.long)])
    check(not (reply.lost or reply.cancelled or reply.expired), "extend calls a good receipt bad")
    near(reply.now, rig.transport.now(), "now", within=rig.slack)
    rig.elapse(rig.moment * 2)
    rig.reap()
    equal(rig.take_ids("w2"), [lost], "what came back")
    rig.confirm(Ack(receipt=deliveries[kept]))


@scenario("I2.6")
def extend_holds_again(rig: Rig) -> None:
    """A receipt whose lease was over but that nobody has taken is held again, also after a reap."""
    job_id = rig.put()
    for reaped in (False, True):
        delivery = rig.take_one("w1", lease=rig.moment)
        rig.elapse(rig.moment * 1.5)
        if reaped:
            rig.reap()
        reply = rig.transport.extend("w1", [Extension(delivery.receipt, rig.long)])
        equal(reply.lost, frozenset(), f"lost, {'after' if reaped else 'before'} a reap")
        rig.reap()
        equal(rig.take("w2"), [], "deliveries while it is held again")
        equal(rig.state(job_id), JobState.RUNNING, "state while held again")
        rig.confirm(Release(receipt=delivery.receipt))


@scenario("I2.7")
def extend_tells_lost(rig: Rig) -> None:
    """A receipt whose message somebody else has, has ended, or never was, is `lost`; the rest is extended."""
    rig.put(max_deliveries=9)
    taken = rig.lose()[0]
    rig.take_one("w2")
    done = rig.put()
    settled = rig.take_one("w1")
    equal(settled.id, done, "the second job")
    rig.confirm(Ack(receipt=settled.receipt))
    rig.put()
    good = rig.take_one("w1", lease=rig.moment * 2)
    receipts = [taken.receipt, settled.receipt, "never-was", good.receipt]
    reply = rig.transport.extend("w1", [Extension(receipt, rig.long) for receipt in receipts])
    equal(reply.lost, frozenset(receipts[:3]), "lost")
    rig.elapse(rig.moment * 3)
    equal(sum(report.requeued for report in rig.reap()), 0, "requeued after the extension")


@scenario("R2.3")
def extend_records_start(rig: Rig) -> None:
    """`started_ago` of an extension is recorded as `started_at`, by the transport's clock."""
    job_id = rig.put()
    delivery = rig.take_one()
    rig.elapse(rig.moment * 2)
    rig.transport.extend("w1", [Extension(delivery.receipt, rig.long, None)])
    equal(rig.job(job_id).started_at, None, "started_at while unstarted")
    rig.transport.extend("w1", [Extension(delivery.receipt, rig.long, rig.moment)])
    expected = rig.transport.now() - rig.moment
    near(rig.job(job_id).started_at, expected, "started_at", within=rig.slack)


@scenario("R2.4")
def extend_tells_expired(rig: Rig) -> None:
    """`extend` tells which receipts are past their `expires_at`; they stay held for the worker to settle."""
    rig.put(expires=rig.moment)
    rig.put()
    old, fresh = rig.take()
    rig.elapse(rig.moment * 1.5)
    extensions = [Extension(d.receipt, rig.long) for d in (old, fresh)]
    reply = rig.transport.extend("w1", extensions)
    equal(reply.expired, frozenset([old.receipt]), "expired")
    check(old.receipt not in reply.lost, "an expired receipt that is still held was called lost")


@scenario("R2.5")
def extend_tells_head(rig: Rig) -> None:
    """`extend` and `settle` tell the highest priority visible in the queues the worker reserved from."""
    rig.put()
    delivery = rig.take_one()
    rig.put(priority=8)
    reply = rig.transport.extend("w1", [Extension(delivery.receipt, rig.long)])
    equal(reply.head, 8, "head of extend")
    settled = rig.transport.settle("w1", [Ack(receipt=delivery.receipt)])
    equal(settled.head, 8, "head of settle")
    near(settled.now, rig.transport.now(), "now of settle", within=rig.slack)


@scenario("I2.8")
def late_settlement_counts(rig: Rig) -> None:
    """A settlement after the lease was over counts while nobody else has the message, also after a reap."""
    for reaped in (False, True):
        job_id = rig.put()
        delivery = rig.take_one(lease=rig.moment)
        rig.elapse(rig.moment * 1.5)
        if reaped:
            rig.reap()
        rig.confirm(Ack(receipt=delivery.receipt))
        equal(rig.state(job_id), JobState.SUCCEEDED, "state")
        rig.reap()
        equal(rig.take("w2"), [], "deliveries after the late settlement")
        equal(rig.stats().pending, 0, "pending after the late settlement")


@scenario("I11.2")
def one_last_chance_at_a_time(rig: Rig) -> None:
    """A worker holds at most one delivery at its last chance after a loss; further ones stay in place."""
    ids = rig.put_many(3, max_deliveries=2)
    rig.lose(limit=3)
    held = rig.take("w1")
    equal([d.id for d in held], ids[:1], "deliveries at their last chance in one call")
    equal(rig.take("w1"), [], "further deliveries while one is held")
    equal(rig.take_ids("w2"), ids[1:2], "deliveries to another worker")
    fresh = rig.put_many(2, max_deliveries=1)
    equal(rig.take_ids("w1"), fresh, "messages without a loss beside one at its last chance")
    rig.confirm(Ack(receipt=held[0].receipt))
    equal(rig.take_ids("w1"), ids[2:], "the next one after settling")


@scenario("I11.3")
def poison_buries_itself_alone(rig: Rig) -> None:
    """A job that kills each worker that holds it is buried; all that were reserved beside it end well."""
    poison = rig.put(max_deliveries=3)
    good = rig.put_many(12, max_deliveries=3)
    for turn in range(40):
        worker = f"w{turn}"
        held = rig.take(worker, limit=20, lease=rig.moment)
        if not held:
            break
        if any(delivery.id == poison for delivery in held):
            rig.elapse(rig.moment * 1.5)
            rig.reap()
        else:
            rig.confirm(*(Ack(receipt=d.receipt) for d in held), worker=worker)
    states = Counter(rig.state(job_id) for job_id in good)
    equal(states, Counter({JobState.SUCCEEDED: 12}), "ends of the neighbours")
    rig.expect_state(poison, JobState.FAILED)
    equal(rig.dead_ids(), [poison], "dead letters")


@scenario("I11.4")
def any_reaper_recovers(rig: Rig) -> None:
    """Recovery needs nothing that the dead holder or its process had: any handle does it."""
    gone = rig.transport.duplicate()
    job_id = rig.put()
    rig.take_one("dead", lease=rig.moment, via=gone)
    gone_is_shared = gone is rig.transport
    if not gone_is_shared:
        gone.close()
    rig.elapse(rig.moment * 1.5)
    reports = rig.reap(via=rig.duplicate())
    equal(sum(report.requeued for report in reports), 1, "requeued")
    equal(rig.take_ids("w2"), [job_id], "deliveries")


@scenario("I10.1")
def reapers_at_once_requeue_once(rig: Rig) -> None:
    """Any number of reapers at once take each lost lease back once and count it once."""
    ids = rig.put_many(120, max_deliveries=3)
    rig.take(limit=120, lease=rig.moment)
    rig.elapse(rig.moment * 1.5)
    handles = [rig.duplicate() for _ in range(5)]
    reports = rig.together(*(_reaper(rig, handle) for handle in handles))
    equal(sum(report.requeued for each in reports for report in each), 120, "requeued in all")
    counts = Counter((d.id, d.deliveries) for d in rig.drain("w2", limit=50))
    equal(counts, Counter({(job_id, 2): 1 for job_id in ids}), "deliveries afterwards")


@scenario("I10.2")
def reapers_at_once_bury_once(rig: Rig) -> None:
    """Any number of reapers at once bury each job once and report each end once."""
    ids = rig.put_many(60, max_deliveries=1)
    rig.take(limit=60, lease=rig.moment)
    rig.elapse(rig.moment * 1.5)
    handles = [rig.duplicate() for _ in range(5)]
    reports = rig.together(*(_reaper(rig, handle) for handle in handles))
    ended = [entry.id for each in reports for report in each for entry in report.ended]
    equal(sorted(ended), sorted(ids), "ends reported")
    equal(sorted(rig.dead_ids()), sorted(ids), "dead letters")


@scenario("I10.3")
def reap_is_bounded(rig: Rig) -> None:
    """One pass does at most `limit` and says `more` until nothing is left."""
    rig.put_many(12)
    rig.take(limit=12, lease=rig.moment)
    rig.elapse(rig.moment * 1.5)
    reports = rig.reap(limit=5)
    check(len(reports) >= 3, f"12 lost leases were done in {len(reports)} passes of at most 5")
    check(all(report.requeued <= 5 for report in reports), "a pass did more than its limit")
    equal(sum(report.requeued for report in reports), 12, "requeued in all")


@scenario("R5.1")
def reap_tells_when_next(rig: Rig) -> None:
    """`next_in` is no later than the end of the next lease."""
    rig.put()
    rig.take_one(lease=rig.moment * 4)
    report = rig.transport.reap(ReapRequest(retention=KEEP_ALL))
    check(
        report.next_in is not None and report.next_in <= rig.moment * 4 + rig.slack,
        f"a lease ends in {rig.moment * 4} s, next_in is {report.next_in}",
    )


@scenario("R2.6")
def reclaim_gives_back_unknown(rig: Rig) -> None:
    """`reclaim` gives back, uncounted and in place, what the worker holds without knowing it."""
    ids = rig.put_many(4)
    known = rig.take("w1", limit=2)
    rig.take("w1", limit=1)
    rig.take("w2", limit=1)
    equal(rig.transport.reclaim("w1", [known[0].receipt]), 2, "given back")
    again = rig.take("w3")
    equal([(d.id, d.deliveries) for d in again], [(ids[1], 1), (ids[2], 1)], "deliveries after it")
    equal(rig.transport.reclaim("w1", [known[0].receipt]), 0, "given back by a repeated call")
    rig.confirm(Ack(receipt=known[0].receipt))
    rig.answers("lost", Ack(receipt=known[1].receipt))
    equal(rig.state(ids[3]), JobState.RUNNING, "state of what another worker holds")


@scenario("R2.7")
def limit_holds_beside_last_chances(rig: Rig) -> None:
    """`reserve` gives no more than its limit where messages at their last chance stand among others."""
    for queues in (("a",), ("a", "b")):
        fresh, last = list[str](), list[str]()
        for queue in queues:
            last = rig.put_many(3, queue=queue, max_deliveries=2)
            rig.put_many(3, queue=queue, max_deliveries=9)
            equal(len(rig.lose(limit=6, queues=(queue,))), 6, "messages lost once")
            fresh = rig.put_many(3, queue=queue)
        for limit in (1, 2, 4):
            held = rig.take(f"w{limit}", *queues, limit=limit)
            equal(len(held), limit, f"deliveries of a call with a limit of {limit}")
            at_last = [d for d in held if d.deliveries > 1 and d.deliveries == d.max_deliveries]
            check(len(at_last) <= 1, f"{len(at_last)} deliveries at their last chance at once")
            rig.confirm(*(Ack(receipt=d.receipt) for d in held), worker=f"w{limit}")
        left = rig.drain("rest", *queues, limit=1)
        rig.confirm(*(Ack(receipt=d.receipt) for d in left), worker="rest")
        equal({rig.state(job_id) for job_id in fresh}, {JobState.SUCCEEDED}, "ends of new ones")
        while rest := rig.take("rest", *queues, limit=3):
            rig.confirm(*(Ack(receipt=d.receipt) for d in rest), worker="rest")
        equal({rig.state(job_id) for job_id in last}, {JobState.SUCCEEDED}, "ends of the last")


def _reaper(rig: Rig, handle: Transport) -> Callable[[], list[ReapReport]]:
    return lambda: rig.reap(via=handle, limit=20)
