"""Cancelling is a state of the job."""

from __future__ import annotations

import time

from taskmq.states import JobState
from taskmq.testing.conformance.rig import Rig, boom
from taskmq.testing.conformance.scenario import check, equal, scenario
from taskmq.transport.types import (
    Ack,
    Extension,
    Hold,
    Park,
    Release,
    Retry,
    RevokeResult,
)


@scenario("R6.1")
def revoke_ends_what_nobody_holds(rig: Rig) -> None:
    """Ready, delayed, retrying, parked and held jobs end REVOKED at once and never run."""
    retrying = rig.put()
    rig.confirm(Retry(receipt=rig.take_one().receipt, delay=rig.long, error=boom()))
    parked = rig.put()
    rig.confirm(Park(receipt=rig.take_one().receipt))
    ready, delayed = rig.put(), rig.put(delay=rig.moment)
    held, run = rig.put(hold=Hold(arrivals=1)), rig.put(hold=Hold(arrivals=1, finish=True))
    ids = [ready, delayed, retrying, parked, held, run]
    expected = [RevokeResult("revoked", JobState.REVOKED)] * len(ids)
    equal([r.status for r in rig.transport.revoke(ids)], [r.status for r in expected], "answers")
    for job_id in ids:
        record = rig.job(job_id)
        equal(record.state, JobState.REVOKED, "state")
        check(record.finished_at is not None, "a revoked job has no finished_at")
    rig.elapse(rig.moment * 2)
    rig.reap()
    equal(rig.take(), [], "deliveries afterwards")
    stats = rig.stats()
    counts = (stats.pending, stats.delayed, stats.waiting, stats.held)
    equal(counts, (0, 0, 0, 0), "pending, delayed, waiting, held")


@scenario("R6.2")
def revoke_answers_in_order(rig: Rig) -> None:
    """Answers come in order: revoked, cancelling, final, unknown; repetition is harmless."""
    done = rig.put()
    rig.finish(done)
    running = rig.put()
    rig.take_one()
    queued = rig.put()
    answers = rig.transport.revoke([done, "nobody", running, queued])
    equal(
        [answer.status for answer in answers],
        ["final", "unknown", "cancelling", "revoked"],
        "answers",
    )
    equal(answers[0].state, JobState.SUCCEEDED, "state of the final one")
    again = [answer.status for answer in rig.transport.revoke([done, "nobody", running])]
    equal(again, ["final", "unknown", "cancelling"], "answers to the repeated call")
    check(
        rig.transport.revoke([queued])[0].status in {"final", "revoked"},
        "a job revoked before is neither final nor revoked",
    )


@scenario("R6.3")
def holder_hears_of_it(rig: Rig) -> None:
    """A held job gets `cancel_requested`; reserve, extend and settle tell its holder; it settles REVOKED."""
    job_id = rig.put()
    rig.put()
    first, second = rig.take("w1")
    rig.transport.revoke([job_id])
    record = rig.job(job_id)
    equal((record.state, record.cancel_requested), (JobState.RUNNING, True), "the record")
    mine = frozenset([first.receipt])
    equal(rig.reserve("w1", limit=0).cancelled, mine, "cancelled, by reserve")
    extensions = [Extension(d.receipt, rig.long) for d in (first, second)]
    equal(rig.transport.extend("w1", extensions).cancelled, mine, "cancelled, by extend")
    equal(rig.reserve("w2", limit=0).cancelled, frozenset(), "cancelled, told to another worker")
    reply = rig.transport.settle("w1", [Ack(receipt=second.receipt)])
    equal(reply.cancelled, mine, "cancelled, by settle")
    rig.confirm(Ack(receipt=first.receipt, state=JobState.REVOKED))
    equal(rig.state(job_id), JobState.REVOKED, "state in the end")
    equal(rig.reserve("w1", limit=0).cancelled, frozenset(), "cancelled, afterwards")


@scenario("R6.8")
def terminate_reaches_the_holder(rig: Rig) -> None:
    """Revoked with `terminate`, a receipt is reported as such beside `cancelled`, by every reply."""
    asked, forced, later = rig.put(), rig.put(), rig.put()
    rig.put()
    by_id = {delivery.id: delivery for delivery in rig.take("w1")}
    equal([r.status for r in rig.transport.revoke([forced], True)], ["cancelling"], "answer")
    rig.transport.revoke([asked, later])
    rig.transport.revoke([later], terminate=True)
    rig.transport.revoke([forced])
    all_three = frozenset(by_id[job_id].receipt for job_id in (asked, forced, later))
    by_force = frozenset(by_id[job_id].receipt for job_id in (forced, later))
    reply = rig.reserve("w1", limit=0)
    equal((reply.cancelled, reply.terminate), (all_three, by_force), "told by reserve")
    extensions = [Extension(d.receipt, rig.long) for d in by_id.values()]
    extended = rig.transport.extend("w1", extensions)
    equal((extended.cancelled, extended.terminate), (all_three, by_force), "told by extend")
    equal(rig.reserve("w2", limit=0).terminate, frozenset(), "told to another worker")
    settled = rig.transport.settle(
        "w1", [Ack(receipt=by_id[later].receipt, state=JobState.REVOKED)]
    )
    equal(settled.terminate, by_force - {by_id[later].receipt}, "told by settle")
    queued = rig.put(queue="other")
    equal([r.status for r in rig.transport.revoke([queued], True)], ["revoked"], "queued")


@scenario("R6.4")
def success_before_the_cancel_counts(rig: Rig) -> None:
    """A holder that finished before it heard settles as it ended."""
    job_id = rig.put()
    delivery = rig.take_one()
    rig.transport.revoke([job_id])
    rig.confirm(Ack(receipt=delivery.receipt))
    equal(rig.state(job_id), JobState.SUCCEEDED, "state")


@scenario("R6.5")
def cancel_survives_the_holder(rig: Rig) -> None:
    """A cancelled job given back, retried or lost ends REVOKED or tells its next holder."""
    for queue in ("released", "retried", "lost"):
        job_id = rig.put(queue=queue, max_deliveries=9)
        delivery = rig.take_one("w1", queue, lease=rig.moment)
        rig.transport.revoke([job_id])
        if queue == "released":
            rig.confirm(Release(receipt=delivery.receipt))
        elif queue == "retried":
            rig.confirm(Retry(receipt=delivery.receipt, delay=0.0))
        else:
            rig.elapse(rig.moment * 1.5)
            rig.reap()
        following = rig.take("w2", queue)
        if following:
            check(following[0].cancel_requested, f"{queue}: the next holder isn't told")
        else:
            equal(rig.state(job_id), JobState.REVOKED, f"state of what was {queue}")


@scenario("R6.6")
def revoke_wakes_the_holder(rig: Rig) -> None:
    """A worker that waits for messages is woken when a job that it holds is revoked."""
    job_id = rig.put()
    rig.take_one("w1")
    waiter = rig.duplicate()

    def wait() -> float:
        begun = time.monotonic()
        waiter.wait("w1", ["q"], 15.0)
        return time.monotonic() - begun

    def revoke() -> float:
        time.sleep(0.15)
        rig.transport.revoke([job_id])
        return 0.0

    waited, _ = rig.together(wait, revoke)
    check(waited < 5.0, f"wait returned {waited:.1f} s after the revoke")


@scenario("R6.7")
def revoke_and_reserve_race(rig: Rig) -> None:
    """A revoke and a reserve at the same instant agree: either it never runs, or its holder hears."""
    for turn in range(15):
        queue = f"race-{turn}"
        job_id = rig.put(queue=queue)
        revoker, taker = rig.duplicate(), rig.duplicate()
        told, taken = rig.together(
            lambda: [revoker.revoke([job_id])[0].status],
            lambda: rig.take_ids("w1", queue, via=taker),
        )
        expected = ["cancelling"] if taken else ["revoked"]
        equal(told, expected, f"answer to revoke when the worker got {taken}")
        equal(rig.job(job_id).cancel_requested or not taken, True, "cancel_requested")
