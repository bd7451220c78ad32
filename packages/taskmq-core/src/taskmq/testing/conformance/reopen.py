"""Final states never change, except by a reopen."""

from __future__ import annotations

from typing import Literal

from taskmq.states import JobState
from taskmq.testing.conformance.held import fail, join_of
from taskmq.testing.conformance.rig import Rig, boom
from taskmq.testing.conformance.scenario import check, equal, scenario
from taskmq.transport.contract import completion_token
from taskmq.transport.types import (
    Ack,
    Bury,
    Completion,
    Edge,
    Extension,
    Finish,
    FollowUps,
    Hold,
    HoldRule,
    Payload,
    Retry,
)


@scenario("I6.3")
def final_states_never_change(rig: Rig) -> None:
    """Nothing but a reopen changes a job that has ended: no late call of any kind does."""
    for state in (JobState.SUCCEEDED, JobState.FAILED, JobState.REVOKED, JobState.EXPIRED):
        message = rig.message()
        job_id = rig.enqueue(message)[0]
        receipt = rig.take_one().receipt
        rig.confirm(Ack(receipt=receipt, state=state, result=Payload("x", b"end")))
        before = rig.job(job_id)
        rig.transport.enqueue([message])
        rig.settle(Retry(receipt=receipt, delay=0.0), Bury(receipt=receipt, error=boom()))
        rig.transport.extend("w1", [Extension(receipt, rig.long, 1.0)])
        rig.transport.revoke([job_id])
        rig.transport.complete(completion_token(job_id, receipt), Completion(state="FAILED"))
        rig.transport.replay_dead([job_id])
        rig.transport.reclaim("w1", [])
        rig.transport.purge("q")
        finish = FollowUps(finish=(Finish(id=job_id, state=JobState.FAILED, error=boom()),))
        rig.put()
        rig.confirm(Ack(receipt=rig.take_one().receipt, follow_ups=finish))
        rig.elapse(rig.moment)
        rig.reap()
        equal(rig.job(job_id), before, f"record of a job that had ended {state}")


@scenario("I6.4")
def reopen_starts_anew(rig: Rig) -> None:
    """A reopened job is queued in a new series: attempt 1, no deliveries, result or error."""
    job_id = rig.put(envelope=b"call")
    rig.confirm(Retry(receipt=rig.take_one().receipt, delay=0.0))
    rig.finish(job_id, result=Payload("x", b"old"))
    result = rig.transport.reopen([job_id])
    equal((result.status, result.reopened), ("ok", (job_id,)), "answer")
    record = rig.job(job_id)
    equal(
        (record.state, record.series, record.attempt, record.deliveries, record.result),
        (JobState.QUEUED, 2, 1, 0, None),
        "the record",
    )
    equal((record.finished_at, record.error), (None, None), "nothing of the old end")
    delivery = rig.take_one()
    equal((delivery.series, delivery.attempt, delivery.envelope), (2, 1, b"call"), "the delivery")


@scenario("I6.5")
def reopen_refuses_what_has_not_ended(rig: Rig) -> None:
    """A reopen is refused, and changes nothing at all, when a named record has not ended."""
    done = rig.put()
    rig.finish(done)
    running = rig.put()
    rig.take_one()
    queued = rig.put()
    before = rig.transport.get_jobs([done, running, queued])
    for other in (running, queued):
        result = rig.transport.reopen([done, other])
        equal((result.status, result.reopened), ("refused", ()), "answer")
        check(result.reason, "a refusal without a reason")
    equal(rig.transport.get_jobs([done, running, queued]), before, "records afterwards")


@scenario("I6.6")
def reopen_compares_the_series(rig: Rig) -> None:
    """With `expect` a reopen is a compare-and-set on the series: outdated ones are refused."""
    job_id = rig.put()
    rig.finish(job_id)
    equal(rig.transport.reopen([job_id], expect={job_id: 2}).status, "refused", "wrong series")
    equal(rig.state(job_id), JobState.SUCCEEDED, "state after the refusal")
    equal(rig.transport.reopen([job_id], expect={job_id: 1}).status, "ok", "right series")
    rig.finish(job_id)
    equal(rig.transport.reopen([job_id], expect={job_id: 1}).status, "refused", "repeated call")


@scenario("I6.7")
def reopeners_at_once_win_once(rig: Rig) -> None:
    """Of several reopens at the same instant one wins; the job gets one new series."""
    job_id = rig.put()
    rig.finish(job_id)
    handles = [rig.duplicate() for _ in range(4)]
    answers = rig.together(
        *((lambda h=h: h.reopen([job_id], expect={job_id: 1}).status) for h in handles)
    )
    equal(sorted(answers), ["ok", "refused", "refused", "refused"], "answers")
    equal(rig.job(job_id).series, 2, "series")
    equal(len(rig.drain()), 1, "deliveries")


@scenario("I6.8")
def reopen_holds_descendants_again(rig: Rig) -> None:
    """All descendants are held again in a new series, and only the reopened source's arrival is removed."""
    first, second = join_of(rig, 2)
    rig.confirm(*(Ack(receipt=d.receipt) for d in rig.take()))
    rig.expect_state("join", JobState.QUEUED)
    rig.finish("join")
    result = rig.transport.reopen([first])
    equal(result.status, "ok", "answer")
    equal(set(result.reopened), {first, "join"}, "reopened")
    record = rig.job("join")
    equal((record.state, record.series, record.arrived), (JobState.PENDING, 2, 1), "the join")
    equal((rig.state(second), rig.job(second).series), (JobState.SUCCEEDED, 1), "the other source")
    rig.finish(first)
    rig.expect_state("join", JobState.QUEUED)
    equal(rig.take_one().series, 2, "series of the join's delivery")


@scenario("I6.9")
def reopen_skipped_descendants_only(rig: Rig) -> None:
    """With "skipped" only skipped descendants and records without a task are held again."""
    rig.enqueue(
        rig.message("a", successors=(Edge("done"), Edge("skipped"), Edge("run"))),
        rig.message("done", hold=Hold(arrivals=1, rule=HoldRule.ALL_DONE)),
        rig.message("skipped", hold=Hold(arrivals=1), successors=(Edge("deeper"),)),
        rig.message("deeper", hold=Hold(arrivals=1)),
        rig.message("run", hold=Hold(arrivals=1, finish=True, otherwise=JobState.FAILED)),
    )
    rig.confirm(fail(rig.take_one()))
    rig.expect_state("deeper", JobState.SKIPPED)
    rig.expect_state("run", JobState.FAILED)
    rig.finish("done")
    result = rig.transport.reopen(["a"], descendants="skipped")
    equal(set(result.reopened), {"a", "skipped", "deeper", "run"}, "reopened")
    equal((rig.state("done"), rig.job("done").series), (JobState.SUCCEEDED, 1), "what had run")
    states = [rig.state(job_id) for job_id in ("skipped", "deeper", "run")]
    equal(states, [JobState.PENDING] * 3, "what is held again")
    rig.finish("a")
    rig.expect_state("run", JobState.SUCCEEDED)
    rig.finish("skipped")
    rig.expect_state("deeper", JobState.QUEUED)
    equal(rig.job("done").series, 1, "series of what had run, in the end")


@scenario("I6.10")
def reopen_refuses_running_descendants(rig: Rig) -> None:
    """Refused, changing nothing, while a descendant to be held again is queued or running."""
    (root,) = join_of(rig, 1)
    rig.finish(root)
    rig.expect_state("join", JobState.QUEUED)
    equal(rig.transport.reopen([root]).status, "refused", "answer while the join is queued")
    rig.take_one()
    equal(rig.transport.reopen([root]).status, "refused", "answer while the join runs")
    states = (rig.state(root), rig.state("join"), rig.job(root).series)
    equal(states, (JobState.SUCCEEDED, JobState.RUNNING, 1), "states afterwards")


@scenario("I6.11")
def replay_reopens_the_run(rig: Rig) -> None:
    """Replaying a dead step reopens the steps that were skipped because of it, and its run."""
    run = Hold(arrivals=2, finish=True, rule=HoldRule.ALL_OK, otherwise=JobState.FAILED)
    rig.enqueue(
        rig.message("run", hold=run),
        rig.message("run::a", run="run", step="a", successors=(Edge("run::b"), Edge("run"))),
        rig.message(
            "run::b", run="run", step="b", hold=Hold(arrivals=1), successors=(Edge("run"),)
        ),
    )
    rig.confirm(Bury(receipt=rig.take_one().receipt, error=boom()))
    rig.expect_state("run::b", JobState.SKIPPED)
    rig.expect_state("run", JobState.FAILED)
    equal(rig.transport.replay_dead(["run::a"]), 1, "replayed")
    states = [rig.state(job_id) for job_id in ("run", "run::a", "run::b")]
    expected = [JobState.PENDING, JobState.QUEUED, JobState.PENDING]
    equal(states, expected, "states after the replay")
    rig.finish("run::a")
    rig.expect_state("run::b", JobState.QUEUED)
    equal(rig.state("run"), JobState.PENDING, "state of the run before its last step")
    rig.finish("run::b")
    rig.expect_state("run", JobState.SUCCEEDED)


@scenario("I6.12")
def reopened_job_dies_no_old_death(rig: Rig) -> None:
    """Reopening a dead job removes its dead letter; a revoked or expired job can be reopened too."""
    job_id = rig.put()
    rig.confirm(Bury(receipt=rig.take_one().receipt, error=boom()))
    revoked = rig.put()
    rig.transport.revoke([revoked])
    equal(rig.transport.reopen([job_id, revoked]).status, "ok", "answer")
    equal(rig.dead_ids(), [], "dead letters")
    equal(rig.job(revoked).cancel_requested, False, "cancel_requested of the revoked job")
    equal(rig.take_ids(), [job_id, revoked], "deliveries")


@scenario("I6.13")
def reopen_withdraws_arrivals(rig: Rig) -> None:
    """A reopened source's arrival no longer counts at what still waits: only its new end does."""
    kinds: tuple[Literal["all", "skipped"], ...] = ("all", "skipped")
    for number, kind in enumerate(kinds):
        queue, join = f"in-{number}", f"join-{number}"
        hold = Hold(arrivals=2, rule=HoldRule.TOLERATE, tolerate=0)
        sources = [rig.message(queue=queue, successors=(Edge(join),)) for _ in range(2)]
        rig.enqueue(*sources, rig.message(join, queue="out", hold=hold))
        first, second = rig.take("w1", queue)
        rig.confirm(fail(first))
        _until_arrived(rig, join)
        result = rig.transport.reopen([first.id], descendants=kind)
        equal((result.status, result.reopened), ("ok", (first.id,)), f"answer with {kind!r}")
        equal(rig.job(join).arrived, 0, f"arrivals after a reopen with {kind!r}")
        rig.confirm(Ack(receipt=second.receipt))
        equal(rig.state(join), JobState.PENDING, "state while the reopened source is not done")
        rig.confirm(Ack(receipt=rig.take_one("w1", queue).receipt))
        rig.expect_state(join, JobState.QUEUED)


def _until_arrived(rig: Rig, job_id: str) -> None:
    rig.until(lambda: rig.job(job_id).arrived == 1, f"one arrival at {job_id}")
