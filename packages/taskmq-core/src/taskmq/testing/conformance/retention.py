"""Everything that grows is shrunk."""

from __future__ import annotations

from typing import Any

from taskmq.states import JobState
from taskmq.testing.conformance.dead_letters import bury
from taskmq.testing.conformance.rig import KEEP_ALL, Rig, boom
from taskmq.testing.conformance.scenario import check, equal, scenario
from taskmq.transport.types import Ack, Edge, Hold, Retention


@scenario("I12.2")
def finished_jobs_are_pruned(rig: Rig) -> None:
    """A record is kept for `job_ttl` from its end, each by its own, and pruned then."""
    short, long = rig.put(job_ttl=rig.moment * 2), rig.put(job_ttl=rig.long)
    rig.elapse(rig.moment * 3)
    for delivery in rig.take():
        rig.confirm(Ack(receipt=delivery.receipt))
    rig.elapse(rig.moment)
    rig.reap()
    check(all(rig.transport.get_jobs([short, long])), "pruned before job_ttl was over")
    rig.elapse(rig.moment * 1.5)
    pruned = sum(report.pruned for report in rig.reap())
    equal([bool(r) for r in rig.transport.get_jobs([short, long])], [False, True], "records left")
    check(pruned >= 1, "reap did not count what it pruned")


@scenario("I12.3")
def living_jobs_are_never_pruned(rig: Rig) -> None:
    """No `job_ttl` counts before the end: queued, running, retrying, parked and held jobs stay."""
    ids = rig.put_many(2, job_ttl=rig.moment)
    ids += [rig.put(job_ttl=rig.moment, delay=rig.long)]
    ids += [rig.put(job_ttl=rig.moment, hold=Hold(arrivals=1))]
    rig.take(limit=1)
    rig.elapse(rig.moment * 3)
    rig.reap()
    check(all(rig.transport.get_jobs(ids)), "a job that has not ended was pruned")


@scenario("I12.4")
def ends_without_a_worker_are_pruned(rig: Rig) -> None:
    """Jobs that were revoked, expired, purged or skipped are pruned after `job_ttl` as well."""
    ttl: dict[str, Any] = {"job_ttl": rig.moment}
    revoked, purged = rig.put(**ttl), rig.put(queue="purged", **ttl)
    expired = rig.put(queue="unread", expires=rig.moment, **ttl)
    held = rig.put(hold=Hold(arrivals=1), **ttl)
    failing = rig.put(queue="f", successors=(Edge(held),), **ttl)
    rig.transport.revoke([revoked])
    rig.transport.purge("purged")
    receipt = rig.take_one("w1", "f").receipt
    rig.confirm(Ack(receipt=receipt, state=JobState.FAILED, error=boom()))
    rig.expect_state(held, JobState.SKIPPED)
    rig.elapse(rig.moment * 1.5)
    rig.reap()
    rig.elapse(rig.moment * 1.5)
    rig.reap()
    ids = [revoked, purged, expired, held, failing]
    equal(rig.transport.get_jobs(ids), [None] * 5, "records after job_ttl")


@scenario("I12.5")
def dead_letter_keeps_its_record(rig: Rig) -> None:
    """A record is never pruned while its dead letter exists; it can be replayed then."""
    (job_id,) = bury(rig, job_ttl=rig.moment)
    rig.elapse(rig.moment * 3)
    rig.reap()
    equal(rig.state(job_id), JobState.FAILED, "state after job_ttl")
    equal(rig.transport.replay_dead([job_id]), 1, "replayed after job_ttl")
    rig.finish(job_id)
    equal(rig.state(job_id), JobState.SUCCEEDED, "state in the end")


@scenario("I12.6")
def record_goes_after_its_dead_letter(rig: Rig) -> None:
    """Once its dead letter is dropped a record is pruned after its `job_ttl`."""
    (job_id,) = bury(rig, job_ttl=rig.moment)
    rig.transport.purge_dead([job_id])
    rig.elapse(rig.moment * 1.5)
    rig.reap()
    equal(rig.transport.get_jobs([job_id]), [None], "record after job_ttl")


def run_of_two(rig: Rig) -> list[str]:
    """Submit a run of two steps that keep their records for a moment; the ids, the run's first."""
    ttl: dict[str, Any] = {"job_ttl": rig.moment}
    return rig.enqueue(
        rig.message("run", hold=Hold(arrivals=2, finish=True), **ttl),
        rig.message("run::a", run="run", step="a", successors=(Edge("run"),), **ttl),
        rig.message("run::b", run="run", step="b", successors=(Edge("run"),), **ttl),
    )


@scenario("I12.7")
def steps_live_as_long_as_their_run(rig: Rig) -> None:
    """A step's record is not pruned while its run lives, and goes some time after the run has ended."""
    ids = run_of_two(rig)
    first, second = rig.take()
    rig.confirm(Ack(receipt=first.receipt))
    rig.elapse(rig.moment * 3)
    rig.reap()
    equal(rig.state(first.id), JobState.SUCCEEDED, "state of a step while its run lives")
    rig.confirm(Ack(receipt=second.receipt))
    rig.expect_state("run", JobState.SUCCEEDED)
    if rig.skips_time:
        # A backend looks at a living run's steps now and then only, so this may take a while.
        rig.elapse(rig.long)
        rig.reap()
        equal(rig.transport.get_jobs(ids), [None] * 3, "records long after the run's end")


@scenario("I12.15")
def steps_go_with_their_run(rig: Rig) -> None:
    """The records of a run and of its steps are pruned once the run's `job_ttl` is over."""
    ids = run_of_two(rig)
    rig.confirm(*(Ack(receipt=delivery.receipt) for delivery in rig.take()))
    rig.expect_state("run", JobState.SUCCEEDED)
    for _ in range(3):
        rig.elapse(rig.moment * 1.5)
        rig.reap()
    equal(rig.transport.get_jobs(ids), [None] * 3, "records after the run's end")


@scenario("I12.8")
def old_dead_letters_are_dropped(rig: Rig) -> None:
    """Dead letters go after `dead_letter_ttl`, not before."""
    old = bury(rig)
    retention = Retention(dead_letter_ttl=rig.moment * 4)
    rig.elapse(rig.moment * 3)
    new = bury(rig)
    rig.reap(retention=retention)
    equal(rig.dead_ids(), old + new, "dead letters before the end of their time")
    rig.elapse(rig.moment * 2)
    rig.reap(retention=retention)
    equal(rig.dead_ids(), new, "dead letters after it")


@scenario("I12.9")
def too_many_dead_letters_are_dropped(rig: Rig) -> None:
    """Beyond `dead_letter_max` the oldest dead letters go."""
    ids = bury(rig, 6)
    rig.reap(retention=Retention(dead_letter_ttl=None, dead_letter_max=4))
    equal(rig.dead_ids(), ids[2:], "dead letters left")


@scenario("I12.10")
def too_many_finished_jobs_are_dropped(rig: Rig) -> None:
    """Beyond `max_finished_jobs` the records that ended first go, living jobs never."""
    ids = rig.put_many(5)
    for delivery in rig.take():
        rig.confirm(Ack(receipt=delivery.receipt))
        rig.elapse(0.002)
    living = rig.put()
    rig.reap(retention=Retention(max_finished_jobs=2))
    left = [record is not None for record in rig.transport.get_jobs([*ids, living])]
    equal(left, [False, False, False, True, True, True], "records left")


@scenario("I12.11")
def no_limit_keeps_everything(rig: Rig) -> None:
    """With limits of None dead letters and finished jobs stay for as long as their own times say."""
    ids = bury(rig, 3)
    done = rig.put(job_ttl=rig.long * 10)
    rig.finish(done)
    rig.elapse(rig.moment * 4)
    rig.reap(retention=KEEP_ALL)
    equal(rig.dead_ids(), ids, "dead letters")
    check(rig.transport.get_jobs([done])[0], "a finished job was pruned before its time")


@scenario("I12.12")
def vanished_queues_leave_the_counts(rig: Rig) -> None:
    """A queue in which nothing is left has no counts, and is not listed for ever."""
    for number in range(5):
        rig.put(queue=f"once-{number}", job_ttl=rig.moment)
        receipt = rig.take_one("w1", f"once-{number}").receipt
        rig.confirm(Ack(receipt=receipt))
    rig.put_many(2, queue="lasting")
    rig.take("w1", "lasting", limit=1)
    rig.elapse(rig.moment * 2)
    rig.reap()
    rig.elapse(rig.moment * 2)
    rig.reap()
    names = [entry.queue for entry in rig.transport.stats()]
    check("lasting" in names, "a queue with a message is not listed")
    lingering = [name for name in names if name.startswith("once-")]
    equal(lingering, [], "queues listed though nothing is left of them")


@scenario("I12.13")
def pruning_is_bounded(rig: Rig) -> None:
    """Pruning goes in bounded passes that say `more`, until all is done."""
    ids = rig.put_many(30, job_ttl=rig.moment)
    rig.confirm(*(Ack(receipt=d.receipt) for d in rig.take(limit=30)))
    rig.elapse(rig.moment * 1.5)
    reports = rig.reap(limit=8)
    check(all(report.pruned <= 16 for report in reports), "a pass pruned far more than its limit")
    equal(rig.transport.get_jobs(ids), [None] * 30, "records in the end")


@scenario("I12.14")
def reused_id_is_a_new_job(rig: Rig) -> None:
    """Once its record is pruned, an id may be used anew and starts from nothing."""
    message = rig.message("again", job_ttl=rig.moment)
    rig.enqueue(message)
    rig.finish("again")
    rig.elapse(rig.moment * 1.5)
    rig.reap()
    rig.enqueue(message)
    record = rig.job("again")
    equal(
        (record.state, record.deliveries, record.result), (JobState.QUEUED, 0, None), "the record"
    )
    rig.finish("again")
