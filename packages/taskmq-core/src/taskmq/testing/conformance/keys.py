"""Idempotency keys admit one job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taskmq.states import JobState
from taskmq.testing.conformance.rig import Rig, boom
from taskmq.testing.conformance.scenario import equal, scenario
from taskmq.transport.types import Ack, Bury, Enqueued, Message, Retry

if TYPE_CHECKING:
    from collections.abc import Callable


def second(rig: Rig, key: str = "k", **fields: Any) -> Enqueued:
    """What a second message with the key is told."""
    return rig.transport.enqueue([rig.message(key=key, **fields)])[0]


def expect_owner(rig: Rig, owner: str, when: str, key: str = "k") -> None:
    """Insist that the key belongs to this job."""
    equal(second(rig, key), Enqueued(owner, "duplicate"), f"answer {when}")


def expect_free(rig: Rig, when: str, key: str = "k") -> str:
    """Insist that the key is free, which takes it."""
    answer = second(rig, key)
    equal(answer.status, "created", f"answer {when}")
    return answer.id


@scenario("I8.1")
def key_admits_one(rig: Rig) -> None:
    """A second message with a key answers `duplicate` with the first one's id and is not stored."""
    owner = rig.put(key="k")
    other = rig.message(key="k", queue="elsewhere", priority=9)
    equal(rig.transport.enqueue([other]), [Enqueued(owner, "duplicate")], "second message")
    equal(rig.transport.get_jobs([other.id]), [None], "record of the duplicate")
    equal(rig.take_ids("w1", "q", "elsewhere"), [owner], "deliveries")
    expect_owner(rig, owner, "while running")


@scenario("I8.2")
def key_in_one_batch(rig: Rig) -> None:
    """Two messages of one batch with one key are one job; other keys and no key are not touched."""
    messages = [rig.message(key="k"), rig.message(key="k"), rig.message(key="k2"), rig.message()]
    answers = rig.transport.enqueue(messages)
    statuses = [answer.status for answer in answers]
    equal(statuses, ["created", "duplicate", "created", "created"], "answers")
    equal(answers[1].id, messages[0].id, "owner of the key")
    equal(len(rig.take()), 3, "deliveries")


@scenario("I8.3")
def key_owner_repeated_exists(rig: Rig) -> None:
    """The owner's own message sent again answers `exists`, not `duplicate`."""
    message = rig.message(key="k")
    rig.enqueue(message)
    equal(rig.transport.enqueue([message]), [Enqueued(message.id, "exists")], "repeated call")


@scenario("I8.4")
def key_among_producers_at_once(rig: Rig) -> None:
    """Of many producers that use a key at the same instant one creates the job, all learn its id."""

    def producer(message: Message) -> Callable[[], Enqueued]:
        handle = rig.duplicate()
        return lambda: handle.enqueue([message])[0]

    answers = rig.together(*(producer(rig.message(key="k")) for _ in range(8)))
    equal(sum(answer.status == "created" for answer in answers), 1, "jobs created")
    equal(len({answer.id for answer in answers}), 1, "different ids answered")
    equal(len(rig.take()), 1, "deliveries")


@scenario("I8.5")
def key_holds_for_its_window(rig: Rig) -> None:
    """After a success the key holds until its window is over, then it is free."""
    owner = rig.put(key="k", key_ttl=rig.moment * 4)
    rig.finish(owner)
    rig.elapse(rig.moment)
    expect_owner(rig, owner, "after the success, inside the window")
    rig.elapse(rig.moment * 4)
    rig.reap()
    expect_free(rig, "after the window")


@scenario("I8.6")
def key_holds_for_its_jobs_life(rig: Rig) -> None:
    """A key whose window is over holds as long as its job has not ended."""
    owner = rig.put(key="k", key_ttl=rig.moment, delay=rig.moment * 4)
    rig.elapse(rig.moment * 2)
    rig.reap()
    expect_owner(rig, owner, "after the window, while the job waits")
    rig.elapse(rig.moment * 3)
    delivery = rig.take_one()
    expect_owner(rig, owner, "while the job runs")
    rig.confirm(Ack(receipt=delivery.receipt))
    expect_free(rig, "after window and life")


@scenario("I8.7")
def key_outlives_the_record(rig: Rig) -> None:
    """The window holds though the job's record is pruned before."""
    owner = rig.put(key="k", key_ttl=rig.moment * 10, job_ttl=rig.moment)
    rig.finish(owner)
    rig.elapse(rig.moment * 2)
    rig.reap()
    equal(rig.transport.get_jobs([owner]), [None], "record after job_ttl")
    expect_owner(rig, owner, "after the record is gone")


@scenario("I8.8")
def bad_end_frees_the_key(rig: Rig) -> None:
    """A key is free again once its job ended other than by success, whichever way."""
    ends = (JobState.FAILED, JobState.REVOKED, JobState.EXPIRED)
    for state in ends:
        rig.put(key=state.value)
        rig.confirm(Ack(receipt=rig.take_one().receipt, state=state, error=boom()))
        rig.transport.revoke([expect_free(rig, f"after {state}", state.value)])
    rig.put(key="buried")
    rig.confirm(Bury(receipt=rig.take_one().receipt, error=boom()))
    rig.transport.revoke([expect_free(rig, "after a burial", "buried")])
    revoked = rig.put(key="revoked")
    rig.transport.revoke([revoked])
    rig.transport.revoke([expect_free(rig, "after a revoke", "revoked")])
    rig.put(key="lost", max_deliveries=1)
    rig.lose()
    expect_free(rig, "after reap has buried the owner", "lost")


@scenario("I8.9")
def expiry_frees_the_key(rig: Rig) -> None:
    """The key of a job that expired unread is free again."""
    rig.put(key="k", expires=rig.moment)
    rig.elapse(rig.moment * 1.5)
    rig.reap()
    expect_free(rig, "after the expiry")


@scenario("I8.10")
def key_until_start(rig: Rig) -> None:
    """With `until_start` the key is free as soon as the job has been reserved."""
    owner = rig.put(key="k", key_scope="until_start")
    expect_owner(rig, owner, "before the start")
    rig.take_one()
    expect_free(rig, "after the start")


@scenario("I8.11")
def key_until_end(rig: Rig) -> None:
    """With `until_end` the key is free as soon as the job has ended, also by success."""
    owner = rig.put(key="k", key_scope="until_end")
    delivery = rig.take_one()
    expect_owner(rig, owner, "while running")
    rig.confirm(Retry(receipt=delivery.receipt, delay=0.0))
    expect_owner(rig, owner, "between attempts")
    rig.finish(owner)
    expect_free(rig, "after the end")


@scenario("I8.12")
def key_never_swallows_a_retry(rig: Rig) -> None:
    """Retries, losses and replays of the owner run under its own key."""
    owner = rig.put(key="k", max_deliveries=2)
    rig.confirm(Retry(receipt=rig.take_one().receipt, delay=0.0))
    rig.lose(owner)
    delivery = rig.take_one()
    equal((delivery.id, delivery.attempt, delivery.deliveries), (owner, 2, 2), "the delivery")
    expect_owner(rig, owner, "after retry and loss")
    rig.confirm(Bury(receipt=delivery.receipt, error=boom()))
    equal(rig.transport.replay_dead([owner]), 1, "replayed")
    rig.finish(owner)


@scenario("I8.13")
def freed_key_belongs_to_the_next(rig: Rig) -> None:
    """The end of an earlier owner takes nothing from the job that has the key now."""
    rig.put("first", key="k", key_scope="until_start")
    first = rig.take_one()
    rig.put("second", key="k")
    rig.confirm(Ack(receipt=first.receipt, state=JobState.FAILED, error=boom()))
    expect_owner(rig, "second", "after the earlier owner failed")
