"""Dead letters: listed, read, replayed, dropped."""

from __future__ import annotations

from typing import Any

from taskmq.states import JobState
from taskmq.testing.conformance.rig import Rig, boom
from taskmq.testing.conformance.scenario import check, equal, scenario
from taskmq.transport.types import Ack, Bury, Payload


def bury(rig: Rig, count: int = 1, **fields: Any) -> list[str]:
    """Enqueue jobs and bury each, one after the other."""
    ids = [rig.put(**fields) for _ in range(count)]
    queue = str(fields.get("queue", "q"))
    for delivery in rig.drain("gravedigger", queue):
        rig.confirm(Bury(receipt=delivery.receipt, error=boom()), worker="gravedigger")
    return ids


@scenario("R5.2")
def dead_letters_come_oldest_first(rig: Rig) -> None:
    """Dead letters are listed oldest first, of all queues or one, with those fields that tell them apart."""
    first = bury(rig, 2, queue="a")
    rig.elapse(0.01)
    second = bury(rig, 2, queue="b")
    rig.elapse(0.01)
    third = bury(rig, 1, queue="a")
    equal(rig.dead_ids(), first + second + third, "all dead letters")
    equal(rig.dead_ids("a"), first + third, "dead letters of a")
    equal(rig.dead_ids("never-used"), [], "dead letters of an unknown queue")
    letter = rig.transport.list_dead("b").letters[0]
    equal((letter.task, letter.queue, letter.error), ("app.task", "b", boom()), "a letter's fields")


@scenario("R5.3")
def dead_letters_come_in_pages(rig: Rig) -> None:
    """Pages of dead letters hold each of them once, and the last page has no cursor."""
    ids = bury(rig, 7)
    seen: list[str] = []
    cursor: str | None = None
    for _ in range(10):
        page = rig.transport.list_dead(limit=3, cursor=cursor)
        check(len(page.letters) <= 3, "a page has more letters than asked for")
        seen += [letter.id for letter in page.letters]
        cursor = page.cursor
        if cursor is None:
            break
    equal(seen, ids, "letters over all pages")
    equal(cursor, None, "cursor at the end")


@scenario("R5.4")
def unknown_dead_letter_is_none(rig: Rig) -> None:
    """`get_dead` answers None for what is no dead letter, a living job included."""
    living = rig.put()
    equal(rig.transport.get_dead("nobody"), None, "unknown id")
    equal(rig.transport.get_dead(living), None, "a living job")


@scenario("I6.1")
def replay_starts_a_new_series(rig: Rig) -> None:
    """A replayed job is queued in a new series with a fresh budget, without its error or dead letter."""
    job_id = rig.put(max_deliveries=2, priority=3, envelope=b"call")
    rig.lose(job_id)
    rig.lose(job_id)
    equal(rig.transport.replay_dead([job_id]), 1, "replayed")
    record = rig.job(job_id)
    equal(
        (record.state, record.series, record.attempt, record.deliveries, record.dead, record.error),
        (JobState.QUEUED, 2, 1, 0, False, None),
        "the record",
    )
    equal((record.queue, record.priority), ("q", 3), "queue and priority kept")
    equal((record.finished_at, record.result), (None, None), "nothing of the old end")
    equal(rig.transport.get_dead(job_id), None, "the dead letter")
    delivery = rig.take_one()
    equal((delivery.series, delivery.deliveries, delivery.attempt), (2, 1, 1), "the delivery")
    equal((delivery.envelope, delivery.max_deliveries), (b"call", 2), "the call")


@scenario("I6.2")
def each_is_replayed_once(rig: Rig) -> None:
    """However often and by however many it is asked at once, a dead letter is replayed at most once."""
    ids = bury(rig, 20)
    handles = [rig.duplicate() for _ in range(4)]
    counts = rig.together(*((lambda h=h: h.replay_dead(ids)) for h in handles))
    equal(sum(counts), 20, "replayed in all")
    equal(rig.transport.replay_dead([*ids, "nobody"]), 0, "replayed by a later call")
    equal(sorted(d.id for d in rig.drain()), sorted(ids), "deliveries after the replay")


@scenario("R5.5")
def replay_may_move(rig: Rig) -> None:
    """Replay goes to another queue and priority when they are given."""
    job_id = bury(rig, 1, priority=-2)[0]
    equal(rig.transport.replay_dead([job_id], queue="repair", priority=7), 1, "replayed")
    equal(rig.take(), [], "deliveries in the old queue")
    delivery = rig.take_one("w1", "repair")
    equal((delivery.id, delivery.queue, delivery.priority), (job_id, "repair", 7), "the delivery")
    equal((rig.job(job_id).queue, rig.job(job_id).priority), ("repair", 7), "the record")


@scenario("R5.6")
def replay_drops_the_expiry(rig: Rig) -> None:
    """A replayed job doesn't expire any more."""
    job_id = bury(rig, 1, expires=rig.moment * 2)[0]
    rig.elapse(rig.moment * 3)
    equal(rig.transport.replay_dead([job_id]), 1, "replayed")
    rig.reap()
    equal(rig.job(job_id).expires_at, None, "expires_at")
    equal(rig.take_ids(), [job_id], "deliveries")


@scenario("R5.7")
def replayed_can_die_again(rig: Rig) -> None:
    """A replayed job that fails again is a dead letter again, and can be replayed again."""
    job_id = bury(rig)[0]
    for series in (2, 3):
        equal(rig.transport.replay_dead([job_id]), 1, f"replayed into series {series}")
        delivery = rig.take_one()
        equal(delivery.series, series, "series")
        rig.confirm(Bury(receipt=delivery.receipt, error=boom("rejected")))
        equal(rig.dead_ids(), [job_id], "dead letters")
    rig.transport.replay_dead([job_id])
    rig.finish(job_id, result=Payload("x", b"ok"))
    equal(rig.job(job_id).result, Payload("x", b"ok"), "result in the end")


@scenario("R5.8")
def purge_of_dead_letters(rig: Rig) -> None:
    """Dead letters are dropped by id, by queue, or all; their jobs stay FAILED and can't be replayed."""
    a, b, c = bury(rig, 3, queue="a"), bury(rig, 2, queue="b"), bury(rig, 1, queue="c")
    equal(rig.transport.purge_dead([a[0], "nobody"]), 1, "dropped by id")
    equal(rig.transport.purge_dead([a[0]]), 0, "dropped by the repeated call")
    equal(rig.transport.purge_dead(queue="a"), 2, "dropped by queue")
    equal(rig.dead_ids(), b + c, "left")
    equal(rig.transport.purge_dead(), 3, "dropped all")
    equal(rig.dead_ids(), [], "left in the end")
    for job_id in a + b + c:
        record = rig.job(job_id)
        equal((record.state, record.dead), (JobState.FAILED, False), "record after the purge")
    equal(rig.transport.replay_dead(a), 0, "replayed after the purge")


@scenario("R5.9")
def stale_settlement_after_replay(rig: Rig) -> None:
    """A receipt of an earlier series changes nothing in the new one."""
    job_id = rig.put(max_deliveries=1)
    old = rig.lose(job_id)[0]
    rig.transport.replay_dead([job_id])
    rig.answers("lost", Ack(receipt=old.receipt))
    equal(rig.state(job_id), JobState.QUEUED, "state of the replayed job")
    rig.finish(job_id)
