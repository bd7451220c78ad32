"""What is past its `expires_at` before it starts never runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskmq.states import JobState
from taskmq.testing.conformance.scenario import check, equal, scenario
from taskmq.transport.types import Ack, Release, Retry

if TYPE_CHECKING:
    from taskmq.testing.conformance.rig import Rig


@scenario("I9.1")
def expired_is_never_delivered(rig: Rig) -> None:
    """`reserve` ends what is past its expiry and hands out the rest."""
    old = rig.put(expires=rig.moment, priority=9)
    fresh = rig.put(expires=rig.long)
    rig.elapse(rig.moment * 1.5)
    equal(rig.take_ids(), [fresh], "deliveries")
    record = rig.expect_state(old, JobState.EXPIRED)
    equal((record.dead, record.started_at), (False, None), "dead, started")
    check(record.finished_at is not None, "an expired job has no finished_at")


@scenario("I9.2")
def reap_ends_what_nobody_reads(rig: Rig) -> None:
    """`reap` ends expired jobs of queues that nobody reads, ready or delayed, and reports them."""
    ready = rig.put(queue="unread", expires=rig.moment)
    delayed = rig.put(queue="unread", expires=rig.moment, delay=rig.long)
    living = rig.put(queue="unread", expires=rig.long)
    rig.elapse(rig.moment * 1.5)
    ended = [entry for report in rig.reap() for entry in report.ended]
    found = sorted((entry.id, entry.queue, entry.state, entry.reason) for entry in ended)
    expected = [(job_id, "unread", JobState.EXPIRED, "expired") for job_id in (ready, delayed)]
    equal(found, sorted(expected), "ends reported")
    states = [rig.state(job_id) for job_id in (ready, delayed, living)]
    equal(states, [JobState.EXPIRED, JobState.EXPIRED, JobState.QUEUED], "states")


@scenario("I9.3")
def expiry_spares_what_runs(rig: Rig) -> None:
    """A job that is held when its expiry passes is its holder's: it may still succeed."""
    job_id = rig.put(expires=rig.moment)
    delivery = rig.take_one()
    rig.elapse(rig.moment * 1.5)
    rig.reap()
    equal(rig.state(job_id), JobState.RUNNING, "state of what is held")
    rig.confirm(Ack(receipt=delivery.receipt))


@scenario("I9.4")
def given_back_too_late_expires(rig: Rig) -> None:
    """A message given back or retried past its expiry is not delivered again."""
    rig.put_many(2, expires=rig.moment)
    first, second = rig.take()
    rig.elapse(rig.moment * 1.5)
    rig.confirm(Release(receipt=first.receipt), Retry(receipt=second.receipt, delay=0.0))
    equal(rig.take("w2"), [], "deliveries past the expiry")
    rig.reap()
    states = {rig.state(d.id) for d in (first, second)}
    equal(states, {JobState.EXPIRED}, "states")


@scenario("I9.5")
def lost_past_expiry_does_not_run_again(rig: Rig) -> None:
    """A lease lost past the job's expiry ends it; nothing runs it again."""
    job_id = rig.put(expires=rig.moment, max_deliveries=9)
    rig.take_one(lease=rig.moment)
    rig.elapse(rig.moment * 2)
    rig.reap()
    equal(rig.take("w2"), [], "deliveries past the expiry")
    rig.reap()
    rig.expect_state(job_id, JobState.EXPIRED)
