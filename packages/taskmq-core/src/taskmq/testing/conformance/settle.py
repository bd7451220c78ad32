"""What each settlement does to a job, and what none of them costs."""

from __future__ import annotations

from taskmq.states import JobState
from taskmq.testing.conformance.rig import Rig, boom
from taskmq.testing.conformance.scenario import check, equal, near, scenario
from taskmq.transport.types import (
    Ack,
    Bury,
    Defer,
    FollowUps,
    Payload,
    Release,
    Retry,
    Settlement,
    Yield,
)


@scenario("I3.4")
def acked_is_gone(rig: Rig) -> None:
    """After an ack nothing sees the message again; the record has state, result and times."""
    job_id = rig.put()
    delivery = rig.take_one(lease=rig.moment)
    result = Payload("application/msgpack", b"\x00\xff result")
    rig.confirm(Ack(receipt=delivery.receipt, result=result, meta=b"\x80"))
    rig.elapse(rig.moment * 2)
    rig.reap()
    equal(rig.take("w2"), [], "deliveries after the ack")
    record = rig.job(job_id)
    equal(
        (record.state, record.result, record.meta, record.receipt, record.error),
        (JobState.SUCCEEDED, result, b"\x80", delivery.receipt, None),
        "what the record says",
    )
    near(record.finished_at, rig.transport.now() - rig.moment * 2, "finished_at", within=rig.slack)
    stats = rig.stats()
    equal((stats.pending, stats.in_flight, stats.dead), (0, 0, 0), "counts of the queue")


@scenario("I3.5")
def ack_ends_in_its_state(rig: Rig) -> None:
    """An ack ends the job in the state it names, with its error, and makes no dead letter."""
    ends = (JobState.SUCCEEDED, JobState.FAILED, JobState.REVOKED, JobState.EXPIRED)
    ids = rig.put_many(len(ends))
    for state, delivery in zip(ends, rig.take(), strict=True):
        error = None if state is JobState.SUCCEEDED else boom("exception", f"text of {state}")
        rig.confirm(Ack(receipt=delivery.receipt, state=state, error=error))
        record = rig.job(delivery.id)
        equal((record.state, record.error, record.dead), (state, error, False), "the record")
    equal(rig.dead_ids(), [], "dead letters")
    equal([rig.state(job_id) for job_id in ids], list(ends), "states")


@scenario("R4.1")
def started_at_travels_with_settlement(rig: Rig) -> None:
    """`started_ago` of a settlement becomes `started_at`; without it the body never began."""
    rig.put_many(2)
    first, second = rig.take()
    rig.elapse(rig.moment * 2)
    rig.confirm(Ack(receipt=first.receipt, started_ago=rig.moment), Ack(receipt=second.receipt))
    expected = rig.transport.now() - rig.moment
    near(rig.job(first.id).started_at, expected, "started_at", within=rig.slack)
    equal(rig.job(second.id).started_at, None, "started_at of what never began")


@scenario("R4.2")
def meta_is_kept_unless_replaced(rig: Rig) -> None:
    """A settlement with `meta=None` keeps the job's meta, any other replaces it; deliveries carry it."""
    job_id = rig.put()
    rig.confirm(Retry(receipt=rig.take_one().receipt, delay=0.0, meta=b"\x81\xa1a\x01"))
    again = rig.take_one()
    equal(again.meta, b"\x81\xa1a\x01", "meta of the next delivery")
    rig.confirm(Release(receipt=again.receipt))
    equal(rig.job(job_id).meta, b"\x81\xa1a\x01", "meta kept")
    rig.confirm(Ack(receipt=rig.take_one().receipt, meta=b"\x80"))
    equal(rig.job(job_id).meta, b"\x80", "meta replaced")


@scenario("R4.3")
def result_stored_elsewhere_is_noted(rig: Rig) -> None:
    """`result_stored` is recorded with the receipt that won, the key of the separate store."""
    rig.put()
    delivery = rig.take_one()
    rig.confirm(Ack(receipt=delivery.receipt, result_stored=True))
    record = rig.job(delivery.id)
    equal((record.result_stored, record.result), (True, None), "where the result is")
    equal(record.receipt, delivery.receipt, "receipt of the record")


@scenario("R4.4")
def retry_starts_the_next_attempt(rig: Rig) -> None:
    """A retry is due after its delay, as the next attempt, with deliveries counted anew."""
    job_id = rig.put(max_deliveries=9)
    rig.lose(job_id)
    delivery = rig.take_one()
    equal(delivery.deliveries, 2, "deliveries of the first attempt")
    rig.confirm(Retry(receipt=delivery.receipt, delay=rig.moment * 2, error=boom()))
    record = rig.job(job_id)
    equal(
        (record.state, record.attempt, record.error), (JobState.RETRYING, 2, boom()), "the record"
    )
    near(record.due_at, rig.transport.now() + rig.moment * 2, "due_at", within=rig.slack)
    equal(rig.take(), [], "deliveries before the delay is over")
    equal(rig.stats().delayed, 1, "delayed")
    rig.elapse(rig.moment * 2.2)
    again = rig.take_one()
    equal((again.id, again.attempt, again.deliveries), (job_id, 2, 1), "the next delivery")


@scenario("R4.5")
def retry_may_change_the_call(rig: Rig) -> None:
    """A retry with an envelope replaces it, one without keeps it."""
    rig.put(envelope=b"one")
    rig.confirm(Retry(receipt=rig.take_one().receipt, delay=0.0, envelope=b"two"))
    second = rig.take_one()
    equal(second.envelope, b"two", "the changed envelope")
    rig.confirm(Retry(receipt=second.receipt, delay=0.0))
    third = rig.take_one()
    equal((third.envelope, third.attempt), (b"two", 3), "the kept envelope")


@scenario("I7.1")
def defer_costs_nothing(rig: Rig) -> None:
    """A deferral consumes neither attempt nor delivery, however often; it is due after its delay."""
    job_id = rig.put(max_deliveries=2)
    for _ in range(4):
        delivery = rig.take_one()
        equal((delivery.attempt, delivery.deliveries, delivery.yields), (1, 1, 0), "counts")
        rig.confirm(Defer(receipt=delivery.receipt, delay=rig.moment, reason="rate"))
        equal(rig.state(job_id), JobState.QUEUED, "state while deferred")
        equal(rig.take(), [], "deliveries before the delay is over")
        rig.elapse(rig.moment * 1.2)
    equal(rig.take_one().deliveries, 1, "deliveries counted after four deferrals")


@scenario("I7.2")
def yield_is_counted_apart(rig: Rig) -> None:
    """A yield consumes no delivery and is counted in `yields`."""
    job_id = rig.put(max_deliveries=1)
    for count in range(3):
        delivery = rig.take_one()
        equal((delivery.attempt, delivery.deliveries, delivery.yields), (1, 1, count), "counts")
        rig.confirm(Yield(receipt=delivery.receipt))
        equal((rig.state(job_id), rig.job(job_id).yields), (JobState.QUEUED, count + 1), "record")


@scenario("I7.3")
def yields_are_limited(rig: Rig) -> None:
    """A yield beyond `max_yields` is refused with "max yields"; the delivery stays held."""
    job_id = rig.put(max_yields=2)
    for _ in range(2):
        rig.confirm(Yield(receipt=rig.take_one().receipt))
    delivery = rig.take_one()
    result = rig.settle(Yield(receipt=delivery.receipt))[0]
    equal((result.status, result.reason), ("refused", "max yields"), "answer to the third yield")
    equal(rig.take("w2"), [], "deliveries of what stays held")
    equal((rig.state(job_id), rig.job(job_id).yields), (JobState.RUNNING, 2), "the record")
    rig.confirm(Ack(receipt=delivery.receipt))


@scenario("I7.4")
def release_costs_nothing(rig: Rig) -> None:
    """A release gives back at once without consuming a delivery."""
    job_id = rig.put(max_deliveries=1)
    for _ in range(3):
        delivery = rig.take_one()
        equal(delivery.deliveries, 1, "deliveries counted")
        rig.confirm(Release(receipt=delivery.receipt))
        record = rig.job(job_id)
        equal(
            (record.state, record.deliveries, record.worker), (JobState.QUEUED, 0, None), "record"
        )


@scenario("I7.5")
def counted_release_keeps_the_count(rig: Rig) -> None:
    """A counted release keeps the delivery counted, and at the last one buries the job."""
    job_id = rig.put(max_deliveries=2)
    rig.confirm(Release(receipt=rig.take_one().receipt, counted=True))
    delivery = rig.take_one("w2")
    equal(delivery.deliveries, 2, "deliveries counted")
    rig.confirm(Release(receipt=delivery.receipt, counted=True), worker="w2")
    record = rig.expect_state(job_id, JobState.FAILED)
    equal((record.dead, record.error and record.error.reason), (True, "worker lost"), "the record")
    equal(rig.dead_ids(), [job_id], "dead letters")


@scenario("R4.6")
def ack_on_receipt_is_never_redelivered(rig: Rig) -> None:
    """Acknowledged before the work, a message is never delivered again; a second settlement ends the job."""
    job_id = rig.put()
    delivery = rig.take_one(lease=rig.moment * 4)
    rig.confirm(Ack(receipt=delivery.receipt, state=JobState.RUNNING))
    equal(rig.state(job_id), JobState.RUNNING, "state after the early ack")
    equal(rig.take("w2"), [], "deliveries after the early ack")
    rig.confirm(Ack(receipt=delivery.receipt, result=Payload("x", b"1")))
    equal(rig.job(job_id).result, Payload("x", b"1"), "result of the second settlement")
    equal(rig.state(job_id), JobState.SUCCEEDED, "state after the second settlement")


@scenario("R4.7")
def ack_on_receipt_lost_is_failed(rig: Rig) -> None:
    """Acknowledged before the work and then lost, a job ends FAILED ("worker lost") and never runs again."""
    job_id = rig.put(max_deliveries=9)
    delivery = rig.take_one(lease=rig.moment)
    rig.confirm(Ack(receipt=delivery.receipt, state=JobState.RUNNING))
    rig.elapse(rig.moment * 1.5)
    rig.reap()
    record = rig.expect_state(job_id, JobState.FAILED)
    equal(record.error and record.error.reason, "worker lost", "reason in the record")
    equal(rig.take("w2"), [], "deliveries after it was lost")


@scenario("R4.8")
def bury_makes_a_dead_letter(rig: Rig) -> None:
    """A buried job is FAILED with its error and is a dead letter with that reason."""
    job_id = rig.put(envelope=b"raw \xff", priority=2)
    error = boom("rejected", "no good")
    rig.confirm(Bury(receipt=rig.take_one().receipt, error=error))
    record = rig.job(job_id)
    equal((record.state, record.error, record.dead), (JobState.FAILED, error, True), "the record")
    letter = rig.transport.get_dead(job_id)
    check(letter is not None, "get_dead does not know the buried job")
    equal(
        letter and (letter.id, letter.task, letter.queue, letter.priority, letter.reason),
        (job_id, "app.task", "q", 2, "rejected"),
        "the dead letter",
    )
    equal(letter and (letter.error, letter.envelope), (error, b"raw \xff"), "error and envelope")
    near(letter.died_at if letter else None, rig.transport.now(), "died_at", within=rig.slack)


@scenario("R4.9")
def settlements_apply_in_order(rig: Rig) -> None:
    """Several settlements of one call are applied in order, also of one receipt."""
    rig.put_many(3)
    a, b, c = rig.take()
    results = rig.settle(
        Ack(receipt=a.receipt, state=JobState.RUNNING),
        Bury(receipt=b.receipt, error=boom()),
        Ack(receipt=a.receipt, state=JobState.FAILED, error=boom()),
        Retry(receipt=c.receipt, delay=0.0),
    )
    equal([result.status for result in results], ["ok"] * 4, "answers")
    states = [rig.state(d.id) for d in (a, b, c)]
    equal(states, [JobState.FAILED, JobState.FAILED, JobState.RETRYING], "states")
    equal(rig.transport.settle("w1", []).results, [], "results of an empty call")


@scenario("R4.10")
def refused_item_blocks_no_other(rig: Rig) -> None:
    """One refused or lost item changes nothing itself and never blocks the others of its call."""
    rig.put_many(3, max_yields=0)
    a, b, c = rig.take()
    results = rig.settle(
        Ack(receipt=a.receipt),
        Yield(receipt=b.receipt),
        Ack(receipt="no-such-receipt"),
        Ack(receipt=c.receipt),
    )
    equal([r.status for r in results], ["ok", "refused", "lost", "ok"], "answers in order")
    states = [rig.state(d.id) for d in (a, b, c)]
    equal(states, [JobState.SUCCEEDED, JobState.RUNNING, JobState.SUCCEEDED], "states")


@scenario("I5.1")
def follow_ups_come_with_the_settlement(rig: Rig) -> None:
    """Messages that a settlement publishes are queued with it, and once when it is repeated."""
    rig.put()
    delivery = rig.take_one()
    children = (rig.message("child-1"), rig.message("child-2", priority=5))
    ack = Ack(receipt=delivery.receipt, follow_ups=FollowUps(enqueue=children))
    rig.confirm(ack)
    rig.until(lambda: all(rig.transport.get_jobs(["child-1", "child-2"])), "the published jobs")
    rig.answers("already", ack)
    equal([d.id for d in rig.drain()], ["child-2", "child-1"], "published messages delivered")


@scenario("I5.2")
def any_settlement_may_publish(rig: Rig) -> None:
    """Follow-ups go with every kind of settlement that is applied, not only with ends."""
    rig.put()

    def publishing(number: int) -> FollowUps:
        return FollowUps(enqueue=(rig.message(f"by-{number}", queue="out"),))

    def settle(number: int, settlement: Settlement) -> None:
        rig.confirm(settlement)
        rig.until(lambda: rig.stats("out").pending == number, f"message number {number}")

    settle(1, Defer(receipt=rig.take_one().receipt, delay=0.0, follow_ups=publishing(1)))
    settle(2, Release(receipt=rig.take_one().receipt, follow_ups=publishing(2)))
    settle(3, Retry(receipt=rig.take_one().receipt, delay=0.0, follow_ups=publishing(3)))
    settle(4, Yield(receipt=rig.take_one().receipt, follow_ups=publishing(4)))


@scenario("R4.11")
def publishing_a_known_id_is_harmless(rig: Rig) -> None:
    """A settlement that publishes an id which is there already is applied, the job there unchanged."""
    rig.put("child", priority=1)
    rig.put("parent", priority=9)
    parent = rig.take(limit=1)[0]
    child = rig.message("child", priority=-9)
    rig.confirm(Ack(receipt=parent.receipt, follow_ups=FollowUps(enqueue=(child,))))
    equal(rig.job("child").priority, 1, "priority of the job that was there")
    equal([d.id for d in rig.drain()], ["child"], "deliveries")
