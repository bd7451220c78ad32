"""Counts, purging and listing."""

from __future__ import annotations

from taskmq.states import JobState
from taskmq.testing.conformance.rig import Rig, boom, ids_of
from taskmq.testing.conformance.scenario import check, equal, near, scenario
from taskmq.transport.types import Ack, BandStats, Bury, Edge, Hold, Park, Payload, Retry


@scenario("R11.1")
def stats_count_every_place(rig: Rig) -> None:
    """`stats` counts what is ready, delayed, in flight, blocked, held, waiting and dead."""
    rig.put()
    rig.confirm(Bury(receipt=rig.take_one().receipt, error=boom()))
    rig.put()
    rig.confirm(Park(receipt=rig.take_one().receipt))
    rig.put()
    rig.confirm(Retry(receipt=rig.take_one().receipt, delay=rig.long))
    rig.put_many(2, concurrency_key="k")
    rig.take_one()
    rig.put(delay=rig.long)
    rig.put_many(3)
    rig.put(hold=Hold(arrivals=1))
    stats = rig.stats()
    equal(
        (stats.pending, stats.delayed, stats.in_flight, stats.blocked),
        (3, 2, 1, 1),
        "pending, delayed, in flight, blocked",
    )
    equal((stats.held, stats.waiting, stats.dead), (1, 1, 1), "held, waiting, dead")


@scenario("R11.2")
def stats_count_by_priority(rig: Rig) -> None:
    """`stats` tells each priority of a queue apart."""
    rig.enqueue(*(rig.message(priority=p) for p in (5, 5, 0)))
    rig.put(priority=-9, delay=rig.long)
    rig.put(priority=9)
    rig.take(limit=1)
    bands = {
        band.priority: (band.pending, band.delayed, band.in_flight)
        for band in rig.stats().bands
        if band != BandStats(priority=band.priority)
    }
    equal(bands, {9: (0, 0, 1), 5: (2, 0, 0), 0: (1, 0, 0), -9: (0, 1, 0)}, "bands")


@scenario("R11.3")
def stats_are_sorted(rig: Rig) -> None:
    """`stats` lists queues sorted by name, all of them or those asked for."""
    for name in ("b", "a", "c"):
        rig.put(queue=name)
    equal([entry.queue for entry in rig.transport.stats()], ["a", "b", "c"], "all queues")
    names = [entry.queue for entry in rig.transport.stats(["c", "a"]) if entry.pending]
    equal(names, ["a", "c"], "queues asked for")


@scenario("R11.4")
def stats_tell_the_oldest(rig: Rig) -> None:
    """`oldest_age` is the age of the oldest pending message, None when nothing is pending."""
    rig.put(priority=9)
    rig.elapse(rig.moment)
    rig.put()
    near(rig.stats().oldest_age, rig.moment, "oldest_age", within=rig.slack)
    rig.take()
    equal(rig.stats().oldest_age, None, "oldest_age with nothing pending")


@scenario("R11.5")
def due_messages_count_as_pending(rig: Rig) -> None:
    """A delayed message that has become due is pending, with nobody there to reserve it."""
    rig.put(delay=rig.moment)
    rig.elapse(rig.moment * 1.5)
    stats = rig.stats()
    equal((stats.pending, stats.delayed), (1, 0), "pending, delayed")


@scenario("R11.6")
def purge_ends_what_nobody_holds(rig: Rig) -> None:
    """`purge` ends ready, delayed and retrying jobs of a queue REVOKED, in bounded steps."""
    rig.put()
    rig.confirm(Retry(receipt=rig.take_one().receipt, delay=rig.long))
    running = rig.put()
    rig.take_one()
    rig.put(delay=rig.long)
    rig.put_many(5)
    other = rig.put(queue="other")
    removed, more = 0, True
    for _ in range(10):
        reply = rig.transport.purge("q", limit=3)
        check(reply.removed <= 3, "a step removed more than its limit")
        removed, more = removed + reply.removed, reply.more
        if not more:
            break
    equal((removed, more), (7, False), "removed, more")
    stats = rig.stats()
    equal((stats.pending, stats.delayed, stats.in_flight), (0, 0, 1), "left in the queue")
    equal((rig.state(running), rig.state(other)), (JobState.RUNNING, JobState.QUEUED), "untouched")
    equal(rig.transport.purge("q").removed, 0, "removed by a repeated call")
    equal(rig.take(), [], "deliveries after the purge")


@scenario("R11.7")
def purged_jobs_are_revoked(rig: Rig) -> None:
    """A purged job is REVOKED, finished, and no dead letter; its receipt, if any, is lost."""
    job_id = rig.put()
    rig.transport.purge("q")
    record = rig.job(job_id)
    equal((record.state, record.dead), (JobState.REVOKED, False), "the record")
    check(record.finished_at is not None, "a purged job has no finished_at")


@scenario("R11.8")
def get_jobs_answers_in_order(rig: Rig) -> None:
    """`get_jobs` answers in the order asked, None where there is no record, and twice where asked twice."""
    a, b = rig.put_many(2)
    records = rig.transport.get_jobs([b, "nobody", a, b])
    ids = [record.id if record else None for record in records]
    equal(ids, [b, None, a, b], "records")
    equal(rig.transport.get_jobs([]), [], "records of no ids")


@scenario("R11.9", "job_listing")
def jobs_are_listed_by_prefix(rig: Rig) -> None:
    """`list_jobs` gives the records whose id starts with the prefix, taken literally, ordered by id."""
    ids = ["run-1::a", "run-1::b", "run-2::a", "run_1::a", "run%1", "RUN-1::a", "x"]
    rig.enqueue(*(rig.message(job_id) for job_id in reversed(ids)))

    def listed(prefix: str) -> list[str]:
        return ids_of(rig.transport.list_jobs(prefix=prefix).jobs)

    equal(listed("run-1::"), ["run-1::a", "run-1::b"], "prefix run-1::")
    equal(listed("run_"), ["run_1::a"], "prefix run_")
    equal(listed("run%"), ["run%1"], "prefix run%")
    equal(listed("run"), sorted(i for i in ids if i.startswith("run")), "prefix run")
    equal(listed("nobody"), [], "a prefix of nothing")
    equal(listed(""), sorted(ids), "no prefix")


@scenario("R11.10", "job_listing")
def jobs_are_listed_in_pages(rig: Rig) -> None:
    """Pages hold each record once in order, forwards or newest first, and the last has no cursor."""
    ids = sorted(rig.put_many(11))
    for newest_first in (False, True):
        seen: list[str] = []
        cursor: str | None = None
        for _ in range(10):
            page = rig.transport.list_jobs(limit=4, cursor=cursor, newest_first=newest_first)
            check(len(page.jobs) <= 4, "a page has more records than asked for")
            seen += ids_of(page.jobs)
            cursor = page.cursor
            if cursor is None:
                break
        equal(seen, ids[::-1] if newest_first else ids, "records over all pages")
        equal(cursor, None, "cursor at the end")


@scenario("R11.11", "job_listing")
def jobs_are_listed_by_what_they_are(rig: Rig) -> None:
    """`list_jobs` selects by states, queue and task, and all together."""
    a = rig.put("a", queue="q1", task="t1")
    b = rig.put("b", queue="q1", task="t2")
    c = rig.put("c", queue="q2", task="t1")
    receipt = rig.take_one("w1", "q2").receipt
    rig.confirm(Ack(receipt=receipt))
    listing = rig.transport.list_jobs
    equal(ids_of(listing(queue="q1").jobs), [a, b], "by queue")
    equal(ids_of(listing(task="t1").jobs), [a, c], "by task")
    equal(ids_of(listing(states=(JobState.SUCCEEDED,)).jobs), [c], "by state")
    both = (JobState.SUCCEEDED, JobState.QUEUED)
    equal(ids_of(listing(states=both).jobs), [a, b, c], "by two states")
    equal(ids_of(listing(states=both, queue="q1", task="t2").jobs), [b], "by all")
    page = listing(states=(JobState.QUEUED,), limit=1)
    following = listing(states=(JobState.QUEUED,), limit=1, cursor=page.cursor)
    equal(ids_of([*page.jobs, *following.jobs]), [a, b], "pages of a selection")


@scenario("R11.12")
def get_results_agrees_with_get_jobs(rig: Rig) -> None:
    """`get_results` gives state and result of every kind of record, in the order asked."""
    plain, empty, failed, queued = rig.put_many(4)
    join = rig.put(hold=Hold(arrivals=1))
    held = {each.id: each.receipt for each in rig.take("w", limit=3)}
    item = rig.message(successors=(Edge(join),), run="run-of-it", step="items[0]", priority=9)
    rig.enqueue(item)
    rig.confirm(
        Ack(receipt=held[plain], result=Payload("text/plain", b"one")),
        Ack(receipt=held[empty]),
        Bury(receipt=held[failed], error=boom()),
        worker="w",
    )
    delivery = rig.take_one("w", limit=1)
    equal((delivery.id, delivery.run, delivery.step), (item.id, item.run, item.step), "delivery")
    rig.confirm(Ack(receipt=delivery.receipt, result=Payload("text/plain", b"two")), worker="w")
    record = rig.job(item.id)
    equal(
        (record.run, record.step, record.successors), (item.run, item.step, (Edge(join),)), "record"
    )
    equal(rig.take_ids("w"), [queued, join], "what follows")
    ids = [queued, plain, "nobody", empty, failed, join, item.id, plain]
    records = rig.transport.get_jobs(ids)
    equal(
        rig.transport.get_results(ids),
        [record and (record.state, record.result) for record in records],
        "states and results",
    )
    equal(rig.transport.get_results([]), [], "results of no ids")
