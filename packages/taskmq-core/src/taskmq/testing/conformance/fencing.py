"""Receipts: repeated calls are harmless, and a stale holder changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskmq.states import JobState
from taskmq.testing.conformance.rig import Rig, boom
from taskmq.testing.conformance.scenario import check, equal, scenario
from taskmq.transport.types import (
    Ack,
    Bury,
    Defer,
    Extension,
    FollowUps,
    Park,
    Payload,
    Release,
    Retry,
    Settlement,
    Yield,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskmq.transport.contract import Transport

STALE = Payload("x", b"stale")


def _every_kind(receipt: str, follow_ups: FollowUps | None = None) -> list[Settlement]:
    """A settlement of each kind under one receipt."""
    return [
        Ack(receipt=receipt, result=STALE, meta=b"\xa5stale", follow_ups=follow_ups),
        Ack(receipt=receipt, state=JobState.RUNNING, follow_ups=follow_ups),
        Retry(receipt=receipt, delay=0.0, error=boom(), envelope=b"stale", follow_ups=follow_ups),
        Defer(receipt=receipt, delay=0.0, meta=b"\xa5stale", follow_ups=follow_ups),
        Yield(receipt=receipt, follow_ups=follow_ups),
        Release(receipt=receipt, counted=True, follow_ups=follow_ups),
        Park(receipt=receipt, follow_ups=follow_ups),
        Bury(receipt=receipt, error=boom("rejected"), follow_ups=follow_ups),
    ]


@scenario("I3.10")
def stale_receipt_changes_nothing(rig: Rig) -> None:
    """Once another worker has the message every settlement is `lost` and changes nothing."""
    job_id = rig.put(envelope=b"call", max_deliveries=9)
    stale = rig.lose(job_id, worker="slow")[0]
    holder = rig.take_one("quick")
    before = rig.transport.get_jobs([job_id], envelopes=True)[0]
    follow_ups = FollowUps(enqueue=(rig.message("published-by-stale"),))
    for settlement in _every_kind(stale.receipt, follow_ups):
        rig.answers("lost", settlement, worker="slow")
        kind = type(settlement).__name__
        equal(rig.transport.get_jobs([job_id], envelopes=True)[0], before, f"record after {kind}")
    equal(rig.transport.get_jobs(["published-by-stale"]), [None], "what a stale holder published")
    equal(
        rig.transport.update_meta(stale.receipt, b"\xa5stale"),
        False,
        "update_meta of a stale holder",
    )
    equal(rig.dead_ids(), [], "dead letters")
    rig.confirm(Ack(receipt=holder.receipt, result=Payload("x", b"good")), worker="quick")
    equal(rig.job(job_id).result, Payload("x", b"good"), "result of the holder")


@scenario("I3.11")
def stale_receipt_cannot_undo_an_end(rig: Rig) -> None:
    """Once another worker has ended the job a stale holder's settlements are `lost`."""
    job_id = rig.put(max_deliveries=9)
    stale = rig.lose(job_id)[0]
    rig.finish(job_id, "w2", result=Payload("x", b"good"))
    before = rig.job(job_id)
    for settlement in _every_kind(stale.receipt):
        rig.answers("lost", settlement)
        equal(rig.job(job_id), before, f"record after {type(settlement).__name__}")


@scenario("I3.12")
def buried_job_takes_no_settlement(rig: Rig) -> None:
    """After reap has buried the job its last holder's settlements answer `lost`."""
    job_id = rig.put(max_deliveries=1)
    stale = rig.lose(job_id)[0]
    before = rig.job(job_id)
    equal(before.state, JobState.FAILED, "state after the burial")
    for settlement in _every_kind(stale.receipt):
        rig.answers("lost", settlement)
        equal(rig.job(job_id), before, f"record after {type(settlement).__name__}")


@scenario("I3.13")
def unknown_receipts_are_lost(rig: Rig) -> None:
    """A receipt that never was answers `lost` to every kind of settlement."""
    rig.put()
    rig.answers("lost", *_every_kind("never-given-out"))
    equal(rig.take_one().deliveries, 1, "deliveries counted")


@scenario("I3.14")
def repeated_settlement_is_already(rig: Rig) -> None:
    """A settlement of any kind sent again answers `already` and changes nothing more."""
    for number, make in enumerate(_kinds()):
        queue = f"q{number}"
        job_id = rig.put(queue=queue, max_deliveries=9)
        settlement = make(rig.take_one("w1", queue).receipt)
        kind = type(settlement).__name__
        rig.confirm(settlement)
        before = rig.job(job_id)
        for _ in range(2):
            result = rig.settle(settlement)[0]
            equal(result.status, "already", f"repeated {kind}")
        equal(rig.job(job_id), before, f"record after the repeated {kind}")


@scenario("I3.15")
def repetition_does_not_touch_the_next_holder(rig: Rig) -> None:
    """A settlement sent again after the next worker has reserved takes nothing from that worker."""
    for number, make in enumerate(_kinds()[2:6]):
        queue = f"q{number}"
        job_id = rig.put(queue=queue, max_deliveries=9)
        settlement = make(rig.take_one("w1", queue).receipt)
        rig.confirm(settlement)
        rig.elapse(rig.moment * 1.5)
        holder = rig.take_one("w2", queue)
        status = rig.settle(settlement)[0].status
        kind = type(settlement).__name__
        check(status in {"already", "lost"}, f"late repetition of {kind} answers {status}")
        equal(rig.state(job_id), JobState.RUNNING, f"state after the late repetition of {kind}")
        rig.confirm(Ack(receipt=holder.receipt), worker="w2")


@scenario("I3.16")
def second_settlement_does_not_override(rig: Rig) -> None:
    """The first settlement of a receipt stands: another kind under the same receipt changes nothing."""
    job_id = rig.put()
    receipt = rig.take_one().receipt
    rig.confirm(Ack(receipt=receipt, result=Payload("x", b"first")))
    before = rig.job(job_id)
    for settlement in _every_kind(receipt):
        status = rig.settle(settlement)[0].status
        check(status in {"already", "lost"}, f"a second settlement answers {status}")
        equal(rig.job(job_id), before, f"record after {type(settlement).__name__}")


@scenario("I3.17")
def settlers_at_once_apply_once(rig: Rig) -> None:
    """The same settlement from many threads is applied once and confirmed to each."""
    rig.put_many(40)
    deliveries = rig.take(limit=40)
    acks = [
        Ack(receipt=d.receipt, follow_ups=FollowUps(enqueue=(rig.message(queue="out"),)))
        for d in deliveries
    ]
    handles = [rig.duplicate() for _ in range(4)]
    answers = rig.together(*(_settler(rig, acks, n, h) for n, h in enumerate(handles)))
    flat = [status for each in answers for status in each]
    equal(flat.count("ok"), 40, "settlements applied")
    equal(flat.count("already"), 120, "settlements confirmed without being applied")
    rig.until(lambda: rig.stats("out").pending == 40, "40 published messages")


@scenario("I3.18")
def takeover_and_late_settlement_race(rig: Rig) -> None:
    """A late settlement and a takeover at the same instant: one of both wins, and the other is told."""
    for turn in range(15):
        queue = f"race-{turn}"
        job_id = rig.put(queue=queue, max_deliveries=9)
        slow = rig.take_one("slow", queue, lease=rig.moment / 4)
        rig.elapse(rig.moment / 2)
        rig.reap()
        settler, taker = rig.duplicate(), rig.duplicate()
        settled, taken = rig.together(
            _settler(rig, [Ack(receipt=slow.receipt)], 0, settler),
            lambda: rig.take_ids("quick", queue, via=taker),
        )
        expected = ["lost"] if taken else ["ok"]
        equal(settled, expected, f"answer when the other worker got {taken}")
        final = JobState.RUNNING if taken else JobState.SUCCEEDED
        equal(rig.state(job_id), final, "state after the race")


@scenario("I3.19")
def meta_needs_a_holder(rig: Rig) -> None:
    """`update_meta` writes under the holder's receipt, and answers False once it holds nothing."""
    job_id = rig.put()
    first = rig.take_one()
    check(rig.transport.update_meta(first.receipt, b"\x81\xa1p\x05"), "update_meta of the holder")
    equal(rig.job(job_id).meta, b"\x81\xa1p\x05", "meta")
    check(rig.transport.update_meta(first.receipt, b"\x81\xa1p\x06"), "update_meta repeated")
    rig.confirm(Release(receipt=first.receipt))
    equal(rig.transport.update_meta(first.receipt, b"\x80"), False, "update_meta once released")
    equal(rig.transport.update_meta("never", b"\x80"), False, "update_meta of nobody")
    equal(rig.job(job_id).meta, b"\x81\xa1p\x06", "meta once released")


@scenario("I3.21")
def meta_follows_the_winning_receipt(rig: Rig) -> None:
    """Who settled a job may still write its meta while it is ended or RETRYING, and nobody else."""
    job_id = rig.put(max_deliveries=9)
    stale = rig.lose(job_id)[0]
    first = rig.take_one("w2")
    rig.confirm(Retry(receipt=first.receipt, delay=0.0), worker="w2")
    check(rig.transport.update_meta(first.receipt, b"\x81\xa1p\x01"), "meta after the retry")
    equal(rig.transport.update_meta(stale.receipt, b"\x80"), False, "meta of a stale holder")
    winner = rig.take_one("w2")
    equal(rig.transport.update_meta(first.receipt, b"\x80"), False, "meta of the last attempt")
    rig.confirm(Ack(receipt=winner.receipt), worker="w2")
    check(rig.transport.update_meta(winner.receipt, b"\x81\xa1p\x02"), "meta after the end")
    equal(rig.transport.update_meta(first.receipt, b"\x80"), False, "meta of an earlier attempt")
    equal(rig.job(job_id).meta, b"\x81\xa1p\x02", "meta")
    rig.transport.reopen([job_id])
    equal(rig.transport.update_meta(winner.receipt, b"\x80"), False, "meta after a reopen")


@scenario("I3.20")
def stale_extension_holds_nothing(rig: Rig) -> None:
    """An extension by a stale holder neither prolongs the new lease nor takes the message back."""
    job_id = rig.put(max_deliveries=9)
    stale = rig.lose(job_id)[0]
    rig.take_one("w2", lease=rig.moment)
    rig.transport.extend("w1", [Extension(stale.receipt, rig.long, 1.0)])
    equal((rig.job(job_id).worker, rig.job(job_id).started_at), ("w2", None), "holder and start")
    rig.elapse(rig.moment * 1.5)
    equal(sum(report.requeued for report in rig.reap()), 1, "requeued after the new holder's lease")


def _kinds() -> list[Callable[[str], Settlement]]:
    return [
        lambda receipt: Ack(receipt=receipt, result=Payload("x", b"1")),
        lambda receipt: Bury(receipt=receipt, error=boom()),
        lambda receipt: Retry(receipt=receipt, delay=0.0, error=boom()),
        lambda receipt: Defer(receipt=receipt, delay=0.0),
        lambda receipt: Yield(receipt=receipt),
        lambda receipt: Release(receipt=receipt),
        lambda receipt: Release(receipt=receipt, counted=True),
        lambda receipt: Park(receipt=receipt),
        lambda receipt: Ack(receipt=receipt, state=JobState.RUNNING),
    ]


def _settler(rig: Rig, acks: list[Ack], number: int, handle: Transport) -> Callable[[], list[str]]:
    mixed = acks[number * 10 :] + acks[: number * 10]
    return lambda: [result.status for result in rig.settle(*mixed, via=handle)]


@scenario("I3.22")
def meta_of_an_earlier_series_is_refused(rig: Rig) -> None:
    """Once a job is reopened, the receipt that had settled it writes nothing any more."""
    job_id = rig.put()
    receipt = rig.take_one().receipt
    rig.confirm(Ack(receipt=receipt))
    equal(rig.transport.reopen([job_id]).status, "ok", "answer")
    equal(rig.transport.update_meta(receipt, b"\x81\xa1p\x01"), False, "meta while queued again")
    again = rig.take_one().receipt
    equal(rig.transport.update_meta(receipt, b"\x81\xa1p\x02"), False, "meta while running again")
    rig.confirm(Ack(receipt=again))
    equal(rig.transport.update_meta(receipt, b"\x81\xa1p\x03"), False, "meta after the new end")
    check(rig.transport.update_meta(again, b"\x81\xa1p\x04"), "meta of the new holder")
    equal(rig.job(job_id).meta, b"\x81\xa1p\x04", "meta")
