"""The settler: batches, repetition, refusals, results kept elsewhere."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from support.faulty import FaultyTransport
from support.waiting import wait_until
from taskmq.clock import SYSTEM_CLOCK
from taskmq.errors import TransportError, TransportUnavailable
from taskmq.events import CollectingSink, EventBus
from taskmq.states import JobState
from taskmq.transport.contract import ResultStore
from taskmq.transport.types import (
    Ack,
    Bury,
    ErrorInfo,
    Message,
    Payload,
    QueueShare,
    ReserveRequest,
    Settlement,
    SettleReply,
    SettleResult,
    Yield,
)
from taskmq_worker.contact import Contact
from taskmq_worker.reports import Reports
from taskmq_worker.reservation import Holdings, Reservation
from taskmq_worker.settler import Settler
from taskmq_worker.shelf import ResultShelf

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

WORKER = "w"


class Bench:
    """A settler on a transport that can fail, and reservations to settle."""

    def __init__(self, transport: FaultyTransport, shelf: ResultShelf | None = None) -> None:
        self.transport = transport
        self.sink = CollectingSink()
        reports = Reports(EventBus([self.sink]), WORKER)
        self.contact = Contact(0.0, 10.0, reports.transport_error)
        self.holdings = Holdings()
        self.settler = Settler(transport, WORKER, self.holdings, self.contact, reports, shelf=shelf)

    def reserve(self, count: int = 1, **fields: Any) -> list[Reservation]:
        messages = [
            Message(id=f"j{n}", task="t", queue="q", envelope=b"", **fields) for n in range(count)
        ]
        self.transport.enqueue(messages)
        request = ReserveRequest(worker=WORKER, queues=(QueueShare("q"),), limit=count)
        reply = self.transport.reserve(request)
        now = SYSTEM_CLOCK.monotonic()
        found = [Reservation(d, cast("Any", None), now) for d in reply.deliveries]
        self.holdings.add(found)
        return found

    def state(self, job: str = "j0") -> JobState | None:
        record = self.transport.get_jobs([job])[0]
        return None if record is None else record.state


@contextmanager
def running(bench: Bench) -> Iterator[Bench]:
    thread = threading.Thread(target=bench.settler.run, name="taskmq-settler", daemon=True)
    thread.start()
    try:
        yield bench
    finally:
        bench.settler.close(1.0)
        thread.join(10)
        assert not thread.is_alive()


def ack(reservation: Reservation, **fields: Any) -> Ack:
    return Ack(receipt=reservation.delivery.receipt, **fields)


def test_what_gathers_while_the_transport_is_busy_goes_out_as_one_batch() -> None:
    gate, sizes = threading.Event(), list[int]()

    class Slow(FaultyTransport):
        def settle(self, worker: str, settlements: Sequence[Settlement]) -> SettleReply:
            sizes.append(len(settlements))
            assert gate.wait(10)
            return super().settle(worker, settlements)

    with running(Bench(Slow())) as bench:
        first, *others = bench.reserve(100)
        bench.settler.submit(ack(first), first)
        wait_until(lambda: sizes == [1], what="one settled at once, for the settler was idle")
        for reservation in others:
            bench.settler.submit(ack(reservation), reservation)
        gate.set()
        wait_until(lambda: not len(bench.holdings))
    assert sizes == [1, 99]


def test_a_lost_reply_is_repeated_and_changes_nothing_more() -> None:
    bench = Bench(FaultyTransport())
    (reservation,) = bench.reserve()
    bench.transport.lose_replies("settle", 2)
    with running(bench):
        result = bench.settler.settle(ack(reservation), reservation)
    assert result.status == "already"
    assert bench.state() is JobState.SUCCEEDED
    assert bench.transport.calls["settle"] == 3
    assert not len(bench.holdings)


def test_outcomes_are_kept_while_the_transport_is_away() -> None:
    bench = Bench(FaultyTransport())
    reservations = bench.reserve(5)
    bench.transport.down = True
    with running(bench):
        for reservation in reservations:
            bench.settler.submit(ack(reservation), reservation)
        wait_until(lambda: bench.transport.calls["settle"] >= 3)
        assert len(bench.holdings) == 5
        bench.transport.down = False
        wait_until(lambda: not len(bench.holdings))
    assert {bench.state(f"j{n}") for n in range(5)} == {JobState.SUCCEEDED}
    assert len(bench.sink.of("transport.error")) == 1, "an outage is told once, not at every try"


def test_a_lost_delivery_is_told_and_the_settler_goes_on() -> None:
    bench = Bench(FaultyTransport())
    mine, other = bench.reserve(2)
    bench.transport.reclaim(WORKER, [other.delivery.receipt])
    with running(bench):
        assert bench.settler.settle(ack(mine), mine).status == "lost"
        assert mine.lost
        assert bench.settler.settle(ack(other), other).status == "ok"
    assert bench.state("j0") is JobState.QUEUED


def refusing(refuse: Callable[[Settlement], str]) -> FaultyTransport:
    class Refusing(FaultyTransport):
        def settle(self, worker: str, settlements: Sequence[Settlement]) -> SettleReply:
            results: list[SettleResult] = []
            for settlement in settlements:
                reason = refuse(settlement)
                results += (
                    [SettleResult("refused", reason)]
                    if reason
                    else super().settle(worker, [settlement]).results
                )
            return SettleReply(results=results, now=self.now())

    return Refusing()


def test_what_the_backend_cannot_store_fails_with_a_cleaned_text_and_blocks_nobody() -> None:
    def nul(settlement: Settlement) -> str:
        result = settlement.result if isinstance(settlement, Ack) else None
        return "a \x00 can't be stored \ud800" if result and b"\x00" in result.data else ""

    bench = Bench(refusing(nul))
    bad, good = bench.reserve(2)
    with running(bench):
        bench.settler.submit(ack(bad, result=Payload("x", b"\x00")), bad)
        assert bench.settler.settle(ack(good, result=Payload("x", b"1")), good).status == "ok"
        wait_until(lambda: not len(bench.holdings))
    letter = bench.transport.get_dead("j0")
    assert letter is not None
    assert letter.error is not None
    assert letter.error.reason == "not storable"
    assert "\x00" not in letter.error.message
    letter.error.message.encode("utf-8")


def test_the_waiting_thread_hears_of_the_refusal_not_of_its_replacement() -> None:
    bench = Bench(refusing(lambda s: "no" if isinstance(s, Ack) else ""))
    (reservation,) = bench.reserve()
    with running(bench):
        result = bench.settler.settle(ack(reservation), reservation)
    assert result == SettleResult("refused", "no")
    assert bench.state() is JobState.FAILED


def test_what_is_refused_even_as_a_failure_is_left_to_its_lease() -> None:
    bench = Bench(refusing(lambda _: "never"))
    (reservation,) = bench.reserve()
    with running(bench):
        result = bench.settler.settle(ack(reservation), reservation)
    assert result.status == "lost"
    assert bench.state() is JobState.RUNNING
    assert not len(bench.holdings)


def test_a_call_refused_as_a_whole_is_taken_apart() -> None:
    class Picky(FaultyTransport):
        def settle(self, worker: str, settlements: Sequence[Settlement]) -> SettleReply:
            if any(isinstance(s, Ack) and s.result for s in settlements):
                raise TransportError("this call has something in it that can't be stored")
            return super().settle(worker, settlements)

    bench = Bench(Picky())
    reservations = bench.reserve(20)
    for n, reservation in enumerate(reservations):
        result = Payload("x", b"bad") if n == 13 else None
        bench.settler.submit(ack(reservation, result=result), reservation)
    with running(bench):
        wait_until(lambda: not len(bench.holdings))
    states = [bench.state(f"j{n}") for n in range(20)]
    assert states[13] is JobState.FAILED
    assert states.count(JobState.SUCCEEDED) == 19


def test_a_refused_yield_leaves_the_delivery_held() -> None:
    bench = Bench(FaultyTransport())
    (reservation,) = bench.reserve(max_yields=0)
    with running(bench):
        settlement = Yield(receipt=reservation.delivery.receipt)
        assert bench.settler.settle(settlement, reservation).status == "refused"
        assert len(bench.holdings) == 1
        assert bench.settler.settle(ack(reservation), reservation).status == "ok"


def test_an_early_acknowledgement_keeps_the_delivery_until_its_end() -> None:
    bench = Bench(FaultyTransport())
    (reservation,) = bench.reserve()
    with running(bench):
        early = ack(reservation, state=JobState.RUNNING)
        assert bench.settler.settle(early, reservation).status == "ok"
        assert len(bench.holdings) == 1
        assert bench.settler.settle(ack(reservation), reservation).status == "ok"
        assert not len(bench.holdings)


def test_closing_gives_up_on_a_transport_that_stays_away() -> None:
    bench = Bench(FaultyTransport())
    (reservation,) = bench.reserve()
    bench.transport.down = True
    results: list[SettleResult] = []
    with running(bench):
        bench.settler.submit(ack(reservation), reservation, results.append)
    assert [result.status for result in results] == ["lost"]
    late: list[SettleResult] = []
    bench.settler.submit(ack(reservation), reservation, late.append)
    assert late, "nobody waits for an answer that can't come"


def test_each_confirmed_end_is_one_event() -> None:
    bench = Bench(FaultyTransport())
    won, failed = bench.reserve(2)
    with running(bench):
        bench.settler.settle(ack(won), won)
        error = ErrorInfo(type="ValueError", message="no")
        bench.settler.settle(Bury(receipt=failed.delivery.receipt, error=error), failed)
    assert [(e.type, e.job) for e in bench.sink.events] == [
        ("task.succeeded", "j0"),
        ("task.failed", "j1"),
    ]


class Shelf(ResultStore):
    def __init__(self) -> None:
        self.down = False
        self.kept: dict[tuple[str, str], Payload] = {}

    def put(self, batch: Sequence[tuple[str, str, Payload]], ttl: float) -> None:
        if self.down:
            raise TransportUnavailable("the result store is away")
        self.kept |= {(job, receipt): payload for job, receipt, payload in batch}

    def get(self, ids: Sequence[tuple[str, str]]) -> list[Payload | None]:
        return [self.kept.get(key) for key in ids]

    def delete(self, ids: Sequence[tuple[str, str]]) -> None:
        for key in ids:
            self.kept.pop(key, None)

    def close(self) -> None:
        pass


def test_a_result_is_stored_elsewhere_before_its_job_settles() -> None:
    shelf = Shelf()
    bench = Bench(FaultyTransport(), ResultShelf(shelf, 60.0, 100))
    (reservation,) = bench.reserve()
    receipt = reservation.delivery.receipt
    with running(bench):
        bench.settler.settle(ack(reservation, result=Payload("x", b"1")), reservation)
    record = bench.transport.get_jobs(["j0"])[0]
    assert record is not None
    assert record.result_stored
    assert record.result is None
    assert record.receipt == receipt
    assert shelf.kept == {("j0", receipt): Payload("x", b"1")}


def test_while_the_store_is_away_small_results_go_inline_and_large_ones_wait() -> None:
    shelf = Shelf()
    shelf.down = True
    bench = Bench(FaultyTransport(), ResultShelf(shelf, 60.0, 100))
    small, large, none = bench.reserve(3)
    with running(bench):
        bench.settler.submit(ack(small, result=Payload("x", b"1")), small)
        bench.settler.submit(ack(large, result=Payload("x", b"1" * 101)), large)
        bench.settler.submit(ack(none), none)
        wait_until(lambda: len(bench.holdings) == 1)
        assert bench.state("j1") is JobState.RUNNING
        record = bench.transport.get_jobs(["j0"])[0]
        assert record is not None
        assert record.result == Payload("x", b"1")
        shelf.down = False
        wait_until(lambda: not len(bench.holdings))
    assert bench.state("j1") is JobState.SUCCEEDED
    record = bench.transport.get_jobs(["j1"])[0]
    assert record is not None
    assert record.result_stored
    # What went to the record moves to the store as well.
    keys = {(each.delivery.id, each.delivery.receipt) for each in (small, large)}
    wait_until(lambda: shelf.kept.keys() == keys)


def test_an_outage_of_the_store_is_reported_and_is_none_of_the_transport() -> None:
    shelf = Shelf()
    shelf.down = True
    seen: list[tuple[str, str]] = []

    def report(what: str, error: Exception) -> None:
        seen.append((what, str(error)))

    bench = Bench(FaultyTransport(), ResultShelf(shelf, 60.0, 100, report))
    (small,) = bench.reserve()
    with running(bench):
        bench.settler.settle(ack(small, result=Payload("x", b"1")), small)
        assert seen == [("storing results", "the result store is away")]
        assert not bench.contact.broken
        assert not bench.contact.in_grace
        shelf.down = False
        wait_until(lambda: shelf.kept)


def test_only_one_batch_waits_for_a_store_that_does_not_answer() -> None:
    class Slow(Shelf):
        calls = 0

        def put(self, batch: Sequence[tuple[str, str, Payload]], ttl: float) -> None:
            self.calls += 1
            if self.down:
                assert not gone.wait(0.5)
            super().put(batch, ttl)

    gone, shelf = threading.Event(), Slow()
    shelf.down = True
    bench = Bench(FaultyTransport(), ResultShelf(shelf, 60.0, 100))
    reservations = bench.reserve(20)
    with running(bench):
        start = SYSTEM_CLOCK.monotonic()
        for each in reservations:
            bench.settler.settle(ack(each, result=Payload("x", b"1")), each)
        # One by one; each that waited for the store would cost half a second.
        assert SYSTEM_CLOCK.monotonic() - start < 5
        shelf.down = False
        wait_until(lambda: len(shelf.kept) == 20)


def test_a_large_result_keeps_its_lease_when_the_worker_ends_in_an_outage() -> None:
    shelf = Shelf()
    shelf.down = True
    away = ResultShelf(shelf, 60.0, 100)
    bench = Bench(FaultyTransport(), away)
    (large,) = bench.reserve()
    answers: list[SettleResult] = []
    with running(bench):
        bench.settler.submit(ack(large, result=Payload("x", b"1" * 101)), large, answers.append)
        wait_until(lambda: away.waiting)
        bench.settler.close(0.2)
        wait_until(lambda: answers)
    assert answers[0].status == "lost"
    assert bench.state("j0") is JobState.RUNNING
    assert not len(bench.holdings)


def test_a_result_of_a_later_outage_moves_too() -> None:
    shelf = Shelf()
    bench = Bench(FaultyTransport(), ResultShelf(shelf, 60.0, 100))
    reservations = bench.reserve(4)
    with running(bench):
        for number, each in enumerate(reservations):
            shelf.down = number % 2 == 1
            bench.settler.settle(ack(each, result=Payload("x", b"1")), each)
            shelf.down = False
            wait_until(partial(_has, shelf, number + 1))


def test_a_result_that_the_store_never_takes_fails_its_job_alone() -> None:
    class Picky(Shelf):
        def put(self, batch: Sequence[tuple[str, str, Payload]], ttl: float) -> None:
            if any(payload.content_type == "bad" for _, _, payload in batch):
                raise TransportError("such results are not for me")
            super().put(batch, ttl)

    shelf = Picky()
    shelf.down = True
    bench = Bench(FaultyTransport(), ResultShelf(shelf, 60.0, 100))
    good, bad, small = bench.reserve(3)
    with running(bench):
        bench.settler.submit(ack(good, result=Payload("x", b"1" * 101)), good)
        bench.settler.submit(ack(bad, result=Payload("bad", b"1" * 101)), bad)
        bench.settler.submit(ack(small, result=Payload("bad", b"1")), small)
        wait_until(lambda: len(bench.holdings) == 2)
        shelf.down = False
        wait_until(lambda: not len(bench.holdings))
    assert bench.state("j0") is JobState.SUCCEEDED
    assert bench.state("j1") is JobState.FAILED
    record = bench.transport.get_jobs(["j1"])[0]
    assert record is not None
    assert record.error is not None
    assert "such results are not for me" in record.error.message
    # It stays where it is.
    assert bench.state("j2") is JobState.SUCCEEDED
    assert len(shelf.kept) == 1


def _has(shelf: Shelf, count: int) -> bool:
    return len(shelf.kept) == count
