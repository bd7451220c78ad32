"""Blocking calls: waiting for messages, waiting for jobs, and being woken."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from taskmq.states import JobState
from taskmq.testing.conformance.scenario import check, equal, scenario
from taskmq.transport.types import Ack, JobRecord, Payload

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from taskmq.testing.conformance.rig import Rig

BRIEF = 0.15
"""Real seconds; blocking calls wait by the machine's clock, whatever clock judges the messages."""
LONG = 15.0
PROMPT = 5.0
"""A wake-up may be lost and found by polling after two seconds; this leaves room for a busy machine."""


def _as_list(records: Sequence[JobRecord | None]) -> list[JobRecord | None]:
    return list(records)


def timed(call: Callable[[], object]) -> float:
    """How long a call blocks."""
    begun = time.monotonic()
    call()
    return time.monotonic() - begun


@scenario("R8.1")
def wait_ends_with_its_timeout(rig: Rig) -> None:
    """`wait` without anything new blocks for about its timeout at most, and takes no message."""
    job_id = rig.put()
    took = timed(lambda: rig.transport.wait("w1", ["empty"], BRIEF))
    check(took < PROMPT, f"a wait of {BRIEF} s took {took:.1f} s")
    equal(rig.state(job_id), JobState.QUEUED, "state of a queued job")


@scenario("R8.2")
def wake_ends_a_wait(rig: Rig) -> None:
    """`wake` makes this waiter's `wait` return at once, also one about to begin; others sleep on."""
    rig.transport.wake("early")
    took = timed(lambda: rig.transport.wait("early", ["q"], LONG))
    check(took < PROMPT, f"a wait woken before it began took {took:.1f} s")

    def wake_later() -> float:
        time.sleep(BRIEF)
        rig.transport.wake("w1")
        return 0.0

    took, _ = rig.together(lambda: timed(lambda: rig.transport.wait("w1", ["q"], LONG)), wake_later)
    check(took < PROMPT, f"a wait took {took:.1f} s after wake")


@scenario("R8.3")
def woken_is_true(rig: Rig) -> None:
    """`wait` answers True when it was woken."""
    rig.transport.wake("w1")
    equal(rig.transport.wait("w1", ["q"], LONG), True, "answer of a woken wait")


@scenario("R8.4")
def wait_jobs_returns_what_has_ended(rig: Rig) -> None:
    """`wait_jobs` returns at once, in order, when all have ended; an unknown id counts as ended."""
    first, second = rig.put_many(2)
    for delivery in rig.take():
        rig.confirm(Ack(receipt=delivery.receipt, result=Payload("x", delivery.id.encode())))
    records: list[JobRecord | None] = []
    took = timed(
        lambda: records.extend(rig.transport.wait_jobs([second, "nobody", first], LONG, mode="all"))
    )
    check(took < PROMPT, f"waiting for ended jobs took {took:.1f} s")
    ids = [getattr(record, "id", None) for record in records]
    equal(ids, [second, None, first], "records in order")


@scenario("R8.5")
def wait_jobs_is_notified(rig: Rig) -> None:
    """`wait_jobs` returns soon after the last of the jobs has ended, with their results."""
    ids = rig.put_many(2)
    first, second = rig.take()
    waiter = rig.duplicate()

    def settle() -> list[JobRecord | None]:
        time.sleep(BRIEF)
        rig.confirm(Ack(receipt=first.receipt, result=Payload("x", b"1")))
        time.sleep(BRIEF)
        rig.confirm(Ack(receipt=second.receipt, result=Payload("x", b"2")))
        return []

    begun = time.monotonic()
    records, _ = rig.together(lambda: _as_list(waiter.wait_jobs(ids, LONG, mode="all")), settle)
    check(time.monotonic() - begun < PROMPT, "wait_jobs did not notice that the jobs had ended")
    results = [getattr(record, "result", None) for record in records]
    equal(results, [Payload("x", b"1"), Payload("x", b"2")], "results")


@scenario("R8.6")
def wait_jobs_any(rig: Rig) -> None:
    """With mode "any" the first end is enough."""
    ids = rig.put_many(2)
    _, second = rig.take()
    waiter = rig.duplicate()

    def settle() -> list[JobRecord | None]:
        time.sleep(BRIEF)
        rig.confirm(Ack(receipt=second.receipt))
        return []

    begun = time.monotonic()
    records, _ = rig.together(lambda: _as_list(waiter.wait_jobs(ids, LONG, mode="any")), settle)
    check(time.monotonic() - begun < PROMPT, "wait_jobs did not notice that a job had ended")
    states = [getattr(record, "state", None) for record in records]
    equal(states, [JobState.RUNNING, JobState.SUCCEEDED], "states")


@scenario("R8.7")
def wait_jobs_times_out(rig: Rig) -> None:
    """When time is over `wait_jobs` returns the records as they are."""
    done, open_ = rig.put(), rig.put()
    rig.finish(done)
    records: list[JobRecord | None] = []
    took = timed(lambda: records.extend(rig.transport.wait_jobs([done, open_], BRIEF)))
    check(took < PROMPT, f"a wait of {BRIEF} s took {took:.1f} s")
    states = [getattr(record, "state", None) for record in records]
    equal(states, [JobState.SUCCEEDED, JobState.QUEUED], "states")


@scenario("R8.8")
def wake_ends_wait_jobs(rig: Rig) -> None:
    """`wake(waiter)` makes `wait_jobs` of that waiter return now, also one about to begin."""
    job_id = rig.put()
    rig.transport.wake("hub")
    took = timed(lambda: rig.transport.wait_jobs([job_id], LONG, waiter="hub"))
    check(took < PROMPT, f"wait_jobs woken before it began took {took:.1f} s")

    def wake_later() -> float:
        time.sleep(BRIEF)
        rig.transport.wake("hub")
        return 0.0

    took, _ = rig.together(
        lambda: timed(lambda: rig.transport.wait_jobs([job_id], LONG, waiter="hub")), wake_later
    )
    check(took < PROMPT, f"wait_jobs took {took:.1f} s after wake")


@scenario("R8.9")
def every_end_notifies(rig: Rig) -> None:
    """Jobs ended by revoke, purge, reap or a skip notify those who wait for them, too."""
    revoked, purged = rig.put(queue="a"), rig.put(queue="b")
    buried = rig.put(queue="c", max_deliveries=1)
    rig.take_one("w9", "c", lease=rig.moment)
    waiter = rig.duplicate()

    def end() -> list[JobRecord | None]:
        time.sleep(BRIEF)
        rig.transport.revoke([revoked])
        rig.transport.purge("b")
        rig.elapse(rig.moment * 1.5)
        rig.reap()
        return []

    begun = time.monotonic()
    ids = [revoked, purged, buried]
    records, _ = rig.together(lambda: _as_list(waiter.wait_jobs(ids, LONG)), end)
    check(time.monotonic() - begun < PROMPT, "wait_jobs did not notice that the jobs had ended")
    states = [getattr(record, "state", None) for record in records]
    equal(states, [JobState.REVOKED, JobState.REVOKED, JobState.FAILED], "states")


@scenario("R8.10")
def close_ends_waiting_calls(rig: Rig) -> None:
    """`close` makes waiting calls of that handle return, and may be called twice."""
    handle = rig.duplicate()
    begun = threading.Event()

    def wait() -> float:
        begun.set()
        try:
            return timed(lambda: handle.wait("w1", ["q"], LONG))
        # A call on a closed handle may return or raise; it may not go on waiting.
        except Exception:  # noqa: BLE001
            return 0.0

    def close() -> float:
        begun.wait(PROMPT)
        time.sleep(BRIEF)
        handle.close()
        handle.close()
        return 0.0

    took, _ = rig.together(wait, close)
    check(took < PROMPT, f"a wait took {took:.1f} s though its handle was closed")


@scenario("R8.11")
def delayed_messages_are_picked_up(rig: Rig) -> None:
    """A worker that waits no longer than `next_due_in` misses no delayed message."""
    rig.put(delay=rig.moment)
    reply = rig.reserve()
    check(reply.next_due_in is not None, "next_due_in is None with a delayed message")
    rig.elapse(reply.next_due_in or 0.0)
    equal(len(rig.take()), 1, "deliveries when next_due_in is over")
