"""Completion from outside: park, complete, and every order in which they can meet."""

from __future__ import annotations

import contextlib
from typing import Any

from taskmq.errors import TransportError
from taskmq.states import JobState
from taskmq.testing.conformance.rig import Rig, boom
from taskmq.testing.conformance.scenario import check, equal, scenario
from taskmq.transport.contract import completion_token
from taskmq.transport.types import Ack, Completion, Park, Payload, Retry

DONE = Completion(state="SUCCEEDED", result=Payload("x", b"from outside"))
FAILED = Completion(state="FAILED", error=boom("exception", "outside says no"))
RETRYABLE = Completion(state="FAILED", error=boom(), retryable=True)


def park(rig: Rig, timeout: float | None = None, **fields: Any) -> tuple[str, str]:
    """Enqueue a job and park it; its id and the token that completes it."""
    job_id = rig.put(**fields)
    receipt = rig.take_one().receipt
    rig.confirm(Park(receipt=receipt, timeout=timeout))
    return job_id, completion_token(job_id, receipt)


@scenario("R7.1")
def parked_job_waits(rig: Rig) -> None:
    """A parked job is WAITING, has no lease to lose, and is delivered to nobody."""
    job_id, _ = park(rig)
    equal(rig.state(job_id), JobState.WAITING, "state")
    equal(rig.stats().waiting, 1, "waiting")
    rig.elapse(rig.moment * 4)
    equal(sum(report.requeued for report in rig.reap()), 0, "requeued")
    equal((rig.take("w2"), rig.state(job_id)), ([], JobState.WAITING), "after a while")


@scenario("R7.2")
def park_outlives_the_lease(rig: Rig) -> None:
    """A parked job stays parked though the lease that it was delivered under is long over."""
    job_id = rig.put(lease=rig.moment)
    receipt = rig.take_one().receipt
    rig.confirm(Park(receipt=receipt))
    rig.elapse(rig.moment * 2)
    rig.reap()
    equal(rig.state(job_id), JobState.WAITING, "state after the lease")
    equal(rig.transport.complete(completion_token(job_id, receipt), DONE).status, "ok", "answer")


@scenario("R7.3")
def complete_ends_a_parked_job(rig: Rig) -> None:
    """A completion ends the parked job with its result, or with its error as a dead letter."""
    job_id, token = park(rig)
    equal(rig.transport.complete(token, DONE).status, "ok", "answer")
    record = rig.job(job_id)
    equal((record.state, record.result), (JobState.SUCCEEDED, DONE.result), "the record")
    check(record.finished_at is not None, "a completed job has no finished_at")
    other, token = park(rig)
    equal(rig.transport.complete(token, FAILED).status, "ok", "answer to a failure")
    record = rig.job(other)
    equal((record.state, record.error), (JobState.FAILED, FAILED.error), "the failed record")
    equal(rig.dead_ids(), [other], "dead letters")
    equal(rig.take(), [], "deliveries afterwards")


@scenario("R7.4")
def completion_may_come_first(rig: Rig) -> None:
    """A completion before the park is kept under its receipt and applied by the park."""
    job_id = rig.put()
    receipt = rig.take_one().receipt
    token = completion_token(job_id, receipt)
    equal(rig.transport.complete(token, DONE).status, "kept", "answer before the park")
    equal(rig.state(job_id), JobState.RUNNING, "state before the park")
    rig.confirm(Park(receipt=receipt))
    record = rig.job(job_id)
    equal((record.state, record.result), (JobState.SUCCEEDED, DONE.result), "after the park")


@scenario("R7.5")
def kept_completion_belongs_to_its_delivery(rig: Rig) -> None:
    """A completion kept for one delivery is not applied to the park of a later one."""
    job_id = rig.put()
    old = rig.take_one().receipt
    rig.transport.complete(completion_token(job_id, old), DONE)
    rig.confirm(Retry(receipt=old, delay=0.0))
    rig.confirm(Park(receipt=rig.take_one().receipt))
    equal(rig.state(job_id), JobState.WAITING, "state after the later park")


@scenario("R7.6")
def repeated_completion_is_already(rig: Rig) -> None:
    """The same outcome again answers `already`, another one `refused`; the first stands."""
    job_id, token = park(rig)
    rig.transport.complete(token, DONE)
    before = rig.job(job_id)
    equal(rig.transport.complete(token, DONE).status, "already", "the same again")
    other = Completion(state="SUCCEEDED", result=Payload("x", b"other"))
    for completion in (FAILED, other):
        result = rig.transport.complete(token, completion)
        equal(result.status, "refused", "another outcome")
        check(result.reason, "a refusal without a reason")
    equal(rig.job(job_id), before, "the record")


@scenario("R7.7")
def token_of_an_earlier_attempt_is_refused(rig: Rig) -> None:
    """The token of an earlier delivery or attempt completes nothing."""
    job_id = rig.put()
    old = rig.take_one().receipt
    rig.confirm(Retry(receipt=old, delay=0.0))
    equal(
        rig.transport.complete(completion_token(job_id, old), DONE).status,
        "refused",
        "while queued",
    )
    receipt = rig.take_one().receipt
    rig.confirm(Park(receipt=receipt))
    equal(
        rig.transport.complete(completion_token(job_id, old), DONE).status, "refused", "when parked"
    )
    equal(rig.state(job_id), JobState.WAITING, "state")
    equal(
        rig.transport.complete(completion_token(job_id, receipt), DONE).status,
        "ok",
        "the right one",
    )


@scenario("R7.8")
def completing_nothing_is_refused(rig: Rig) -> None:
    """Unknown jobs, jobs settled by their worker and revoked ones are refused; a malformed token too."""
    token = completion_token("nobody", "receipt")
    equal(rig.transport.complete(token, DONE).status, "refused", "unknown job")
    job_id = rig.put()
    receipt = rig.take_one().receipt
    rig.confirm(Ack(receipt=receipt))
    result = rig.transport.complete(completion_token(job_id, receipt), FAILED)
    equal(result.status, "refused", "a job settled by its worker")
    revoked, token = park(rig)
    rig.transport.revoke([revoked])
    equal(rig.transport.complete(token, DONE).status, "refused", "a revoked job")
    equal(rig.state(revoked), JobState.REVOKED, "state of the revoked job")
    with contextlib.suppress(TransportError):
        equal(rig.transport.complete("no token", DONE).status, "refused", "a malformed token")


@scenario("R7.9")
def retryable_completion_is_handed_over(rig: Rig) -> None:
    """A retryable failure goes to a worker as a delivery with that outcome, which decides about a retry."""
    job_id, token = park(rig)
    equal(rig.transport.complete(token, RETRYABLE).status, "handed", "answer")
    equal(rig.transport.complete(token, RETRYABLE).status, "already", "the same again")
    delivery = rig.take_one("w2")
    equal((delivery.id, delivery.outcome), (job_id, RETRYABLE), "the delivery")
    rig.confirm(Retry(receipt=delivery.receipt, delay=0.0, error=boom()), worker="w2")
    again = rig.take_one("w2")
    equal((again.attempt, again.outcome), (2, None), "the next attempt")


@scenario("R7.10")
def handed_outcome_survives_its_worker(rig: Rig) -> None:
    """A delivery with an outcome that is lost or released comes back with its outcome."""
    _, token = park(rig, max_deliveries=9)
    rig.transport.complete(token, RETRYABLE)
    rig.lose()
    equal(rig.take_one("w2").outcome, RETRYABLE, "outcome of the next delivery")


@scenario("R7.11")
def park_timeout_is_handed_over(rig: Rig) -> None:
    """A parked job whose time is over goes to a worker as a delivery with the outcome "timed out"."""
    job_id, token = park(rig, timeout=rig.moment * 2)
    rig.elapse(rig.moment)
    rig.reap()
    equal(rig.state(job_id), JobState.WAITING, "state before the timeout")
    rig.elapse(rig.moment * 1.5)
    equal(sum(report.timed_out for report in rig.reap()), 1, "timed out, by the report")
    equal(sum(report.timed_out for report in rig.reap()), 0, "timed out, by the next report")
    delivery = rig.take_one("w2")
    outcome = delivery.outcome
    equal(outcome and outcome.state, "FAILED", "outcome")
    equal(outcome and outcome.error and outcome.error.reason, "timed out", "reason")
    equal(rig.transport.complete(token, DONE).status, "refused", "a completion after the timeout")
    ack = Ack(receipt=delivery.receipt, state=JobState.FAILED, error=boom("timed out"))
    rig.confirm(ack, worker="w2")
    equal(rig.state(job_id), JobState.FAILED, "state in the end")


@scenario("R7.12")
def completers_at_once_agree(rig: Rig) -> None:
    """Of two different outcomes at the same instant one is applied and the other refused."""
    for _ in range(10):
        job_id, token = park(rig)
        first, second = rig.duplicate(), rig.duplicate()
        answers = rig.together(
            lambda: first.complete(token, DONE).status,
            lambda: second.complete(token, FAILED).status,
        )
        equal(sorted(answers), ["ok", "refused"], "answers")
        state = JobState.SUCCEEDED if answers[0] == "ok" else JobState.FAILED
        equal(rig.state(job_id), state, "state")


@scenario("R7.13")
def park_and_completion_race(rig: Rig) -> None:
    """A park and its completion at the same instant: whichever comes first, the job ends."""
    for _ in range(15):
        job_id = rig.put()
        receipt = rig.take_one().receipt
        token = completion_token(job_id, receipt)
        completer, parker = rig.duplicate(), rig.duplicate()
        rig.together(
            lambda: completer.complete(token, DONE).status,
            lambda: rig.settle(Park(receipt=receipt), via=parker)[0].status,
        )
        equal(rig.state(job_id), JobState.SUCCEEDED, "state after both")
