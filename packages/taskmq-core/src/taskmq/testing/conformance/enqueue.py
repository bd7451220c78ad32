"""What `enqueue` promises of a message that has just come in."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from taskmq.errors import LeaseLost
from taskmq.states import JobState
from taskmq.testing.conformance.scenario import Broken, check, equal, near, scenario
from taskmq.transport.types import Ack, Enqueued, Fence, Hold

if TYPE_CHECKING:
    from taskmq.testing.conformance.rig import Rig


@scenario("R1.1")
def enqueue_answers_in_order(rig: Rig) -> None:
    """One call answers for many messages, in their order; an empty batch is no error."""
    messages = [rig.message(f"z{n}") for n in (3, 1, 2)]
    replies = rig.transport.enqueue(messages)
    equal(replies, [Enqueued(m.id, "created") for m in messages], "answers")
    equal(rig.transport.enqueue([]), [], "answer to an empty batch")


@scenario("R1.2")
def enqueue_writes_records(rig: Rig) -> None:
    """A message has a job record from the start, with what the producer said and `enqueued_at` stamped."""
    before = rig.transport.now()
    job_id = rig.put(
        task="shop.mail",
        queue="mail",
        priority=-3,
        max_deliveries=7,
        run="run-1",
        step="s",
        key="k",
    )
    record = rig.job(job_id)
    equal(
        (
            record.id,
            record.task,
            record.queue,
            record.state,
            record.priority,
            record.max_deliveries,
        ),
        (job_id, "shop.mail", "mail", JobState.QUEUED, -3, 7),
        "what the record says",
    )
    equal((record.run, record.step, record.key), ("run-1", "s", "k"), "run, step and key")
    equal((record.attempt, record.deliveries, record.yields, record.series), (1, 0, 0, 1), "counts")
    near(record.enqueued_at, before, "enqueued_at", within=rig.slack)
    equal((record.started_at, record.finished_at, record.worker), (None, None, None), "not begun")


@scenario("R1.3")
def envelope_is_opaque(rig: Rig) -> None:
    """The envelope comes back byte by byte, whatever it holds; records carry it only when asked for."""
    envelopes = [b"", b"\x00\xff\xc1", bytes(range(256)) * 800]
    ids = rig.enqueue(*(rig.message(envelope=envelope) for envelope in envelopes))
    got = [record.envelope for record in rig.transport.get_jobs(ids, envelopes=True) if record]
    equal(got, list(envelopes), "envelopes of records")
    equal(rig.job(ids[1]).envelope, None, "envelope when not asked for")
    equal([d.envelope for d in rig.take()], envelopes, "envelopes of deliveries")


@scenario("I3.1")
def repeated_enqueue_exists(rig: Rig) -> None:
    """A message whose id is known answers `exists` and changes nothing, in any state of its job."""
    message = rig.message("same", priority=1)
    rig.enqueue(message)
    again = rig.message("same", priority=9, queue="other", envelope=b"other")

    def repeat(where: str) -> None:
        equal(rig.transport.enqueue([again]), [Enqueued("same", "exists")], f"repeated {where}")

    repeat("while queued")
    record = rig.transport.get_jobs(["same"], envelopes=True)[0]
    check(
        record and record.queue == "q" and record.priority == 1,
        "the repeated call changed the record",
    )
    check(record and record.envelope == message.envelope, "the repeated call changed the envelope")
    delivery = rig.take_one("w1", "q", "other")
    repeat("while running")
    rig.settle(Ack(receipt=delivery.receipt))
    repeat("after the end")
    equal(rig.state("same"), JobState.SUCCEEDED, "state")
    equal(rig.take("w1", "q", "other"), [], "deliveries after the end")


@scenario("I3.2")
def same_id_twice_in_a_batch(rig: Rig) -> None:
    """One id twice in one call is one job."""
    message = rig.message("twin")
    replies = rig.transport.enqueue([message, message])
    equal(replies, [Enqueued("twin", "created"), Enqueued("twin", "exists")], "answers")
    equal(rig.take_ids(), ["twin"], "deliveries")


@scenario("I3.3")
def known_and_new_in_one_batch(rig: Rig) -> None:
    """A batch repeated with more in it stores what is new and answers for each."""
    first = rig.message()
    rig.enqueue(first)
    second = rig.message()
    replies = rig.transport.enqueue([first, second])
    equal(replies, [Enqueued(first.id, "exists"), Enqueued(second.id, "created")], "answers")
    equal(rig.take_ids(), [first.id, second.id], "deliveries")


@scenario("R1.4")
def batch_appears_whole(rig: Rig) -> None:
    """All of a batch's messages are stored or none: who sees one of them sees every one."""
    ids = [f"batch-{n:04d}" for n in range(300)]
    messages = [rig.message(job_id) for job_id in ids]
    reader = rig.duplicate()
    begun = threading.Event()

    def look() -> int:
        end = time.monotonic() + 10
        while time.monotonic() < end:
            probe = reader.get_jobs([ids[0], ids[-1]])
            begun.set()
            if any(probe):
                return sum(record is not None for record in reader.get_jobs(ids))
        return -1

    def write() -> int:
        begun.wait(10)
        return len(rig.transport.enqueue(messages))

    seen, _ = rig.together(look, write)
    equal(seen, len(ids), "messages of the batch seen along with one of them")


@scenario("R1.5")
def delay_holds_a_message_back(rig: Rig) -> None:
    """`delay` counts from the transport's now: not delivered before, delivered after."""
    delay = rig.moment * 2
    job_id = rig.put(delay=delay)
    record = rig.job(job_id)
    equal(record.state, JobState.QUEUED, "state while delayed")
    near(record.due_at, record.enqueued_at + delay, "due_at", within=0.01)
    equal(rig.take(), [], "deliveries before the due time")
    rig.elapse(delay)
    equal(rig.take_ids(), [job_id], "deliveries after the due time")


@scenario("R1.6")
def delay_is_not_a_lease(rig: Rig) -> None:
    """A delay longer than the lease makes no copies: a delayed message is held by nobody."""
    job_id = rig.put(delay=rig.moment * 4, lease=rig.moment)
    for _ in range(2):
        rig.elapse(rig.moment * 1.5)
        rig.reap()
        equal(rig.take(), [], "deliveries before the due time")
        equal(rig.stats().in_flight, 0, "in flight before the due time")
    rig.elapse(rig.moment * 1.5)
    equal(rig.take_one().deliveries, 1, "deliveries counted")
    equal(rig.job(job_id).state, JobState.RUNNING, "state")


@scenario("R1.7")
def eta_is_absolute(rig: Rig) -> None:
    """`eta` is an instant of the transport's clock; one that is past means now."""
    eta = rig.transport.now() + rig.moment * 2
    later = rig.put(eta=eta)
    past = rig.put(eta=rig.transport.now() - 1000)
    near(rig.job(later).due_at, eta, "due_at", within=0.01)
    equal(rig.take_ids(), [past], "deliveries before the eta")
    rig.elapse(rig.moment * 2)
    equal(rig.take_ids(), [later], "deliveries after the eta")


@scenario("R1.8")
def expiry_counts_from_enqueue(rig: Rig) -> None:
    """`expires` is made absolute by the transport and travels with the delivery."""
    job_id = rig.put(expires=rig.long)
    record = rig.job(job_id)
    near(record.expires_at, record.enqueued_at + rig.long, "expires_at", within=0.01)
    equal(rig.take_one().expires_at, record.expires_at, "expires_at of the delivery")


@scenario("R1.9")
def external_is_never_reserved(rig: Rig) -> None:
    """An external message is stored but never returned by `reserve`."""
    job_id = rig.put(external=True)
    own = rig.put()
    equal(rig.take_ids(), [own], "deliveries")
    equal(rig.state(job_id), JobState.QUEUED, "state of the external job")


@scenario("R1.10")
def hold_of_nothing_is_released(rig: Rig) -> None:
    """A hold of 0 arrivals is released at once; with `finish` it ends SUCCEEDED at once."""
    queued = rig.put(hold=Hold(arrivals=0))
    done = rig.put(hold=Hold(arrivals=0, finish=True))
    rig.expect_state(done, JobState.SUCCEEDED)
    rig.expect_state(queued, JobState.QUEUED)
    equal(rig.take_ids(), [queued], "deliveries")


@scenario("R1.11")
def enqueue_wakes_waiting_workers(rig: Rig) -> None:
    """A worker that waits on a queue returns soon after a message came in, long before its timeout."""
    waiter = rig.duplicate()

    def wait() -> float:
        begun = time.monotonic()
        waiter.wait("w1", ["other", "q"], 15.0)
        return time.monotonic() - begun

    def put() -> float:
        time.sleep(0.15)
        rig.put()
        return 0.0

    waited, _ = rig.together(wait, put)
    check(waited < 5.0, f"wait returned {waited:.1f} s after a message had come in")


@scenario("R1.12", "leases")
def outdated_fence_stores_nothing(rig: Rig) -> None:
    """An outdated fencing token refuses the whole batch with LeaseLost; the current one does not."""
    old = rig.transport.acquire("leader", "a", rig.moment)
    check(old is not None, "a free lease was not given")
    rig.elapse(rig.moment * 1.5)
    new = rig.transport.acquire("leader", "b", rig.long)
    check(new is not None, "a lease that is over was not given")
    messages = [rig.message("x1"), rig.message("x2")]
    try:
        rig.transport.enqueue(messages, fence=Fence("leader", old or 0))
    except LeaseLost:
        pass
    else:
        raise Broken("enqueue under an outdated fencing token did not raise LeaseLost")
    equal(rig.transport.get_jobs(["x1", "x2"]), [None, None], "records after the refusal")
    equal(rig.take(), [], "deliveries after the refusal")
    replies = rig.transport.enqueue(messages, fence=Fence("leader", new or 0))
    equal([r.status for r in replies], ["created", "created"], "answers under the current token")


@scenario("R1.13")
def big_batches_are_taken(rig: Rig) -> None:
    """A thousand messages go in with one call, come out in order and settle in one call."""
    ids = rig.put_many(1000)
    deliveries = rig.drain(limit=1000)
    equal([d.id for d in deliveries], ids, "order of deliveries")
    rig.confirm(*(Ack(receipt=d.receipt) for d in deliveries))
    equal(rig.stats().in_flight, 0, "in flight after settling")
