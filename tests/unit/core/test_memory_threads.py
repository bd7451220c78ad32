"""Threads, wake-ups, forks and handles of the memory transport."""

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest

from support.memory_rig import Q, ack, message, put, take
from support.waiting import wait_until
from taskmq.clock import FakeClock
from taskmq.errors import ConfigError
from taskmq.states import JobState
from taskmq.transport.memory import MemoryTransport
from taskmq.transport.types import (
    Ack,
    Bury,
    Delivery,
    ErrorInfo,
    ReapRequest,
    Release,
    ReserveRequest,
    Retry,
    Settlement,
)


class Blocked:
    """A blocking call on a thread of its own."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.result: object = None
        self._call = call
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self.result = self._call()

    @property
    def is_done(self) -> bool:
        return not self._thread.is_alive()

    def join(self) -> object:
        self._thread.join(10)
        assert self.is_done, "the call did not return"
        return self.result


def asleep(transport: MemoryTransport, name: str = "w") -> Callable[[], bool]:
    return lambda: name in transport._store.bedroom.by_name


def test_eight_threads_end_every_job_exactly_once(seed: int) -> None:
    transport = MemoryTransport(max_finished_jobs=100_000)
    total, producers = 3_000, 2
    ends: Counter[str] = Counter()
    lock = threading.Lock()
    stop = time.monotonic() + 30

    def produce(number: int) -> None:
        for start in range(0, total // producers, 50):
            transport.enqueue(
                [
                    message(
                        f"p{number}-{start + n}",
                        priority=n % 3,
                        concurrency_key=f"k{n % 5}" if n % 2 else None,
                        concurrency_limit=2,
                        max_deliveries=1_000,
                    )
                    for n in range(50)
                ]
            )

    def consume(number: int) -> None:
        rng = random.Random(seed + number)
        worker = f"w{number}"
        while time.monotonic() < stop:
            lease = rng.choice((0.0, 30.0))
            taken = take(transport, rng.randrange(1, 20), worker, lease=lease)
            if rng.random() < 0.1:
                transport.reclaim(worker, [delivery.receipt for delivery in taken])
            settle(rng, worker, taken)
            with lock:
                if sum(ends.values()) >= total:
                    return

    def settle(rng: random.Random, worker: str, taken: list[Delivery]) -> None:
        def say(delivery: Delivery) -> Settlement:
            receipt = delivery.receipt
            if delivery.attempt < 3 and rng.random() < 0.2:
                return Retry(receipt=receipt, delay=0.0)
            if rng.random() < 0.1:
                return Release(receipt=receipt)
            if rng.random() < 0.05:
                return Bury(receipt=receipt, error=ErrorInfo())
            return Ack(receipt=receipt)

        said = [say(delivery) for delivery in taken]
        results = transport.settle(worker, said).results
        with lock:
            for delivery, settlement, result in zip(taken, said, results, strict=True):
                if isinstance(settlement, (Ack, Bury)) and result.status == "ok":
                    ends[delivery.id] += 1

    def maintain() -> None:
        while time.monotonic() < stop:
            transport.reap(ReapRequest())
            transport.stats()
            with lock:
                if sum(ends.values()) >= total:
                    return

    calls: list[Callable[[], None]] = [partial(produce, number) for number in range(producers)]
    calls += [partial(consume, number) for number in range(5)]
    blocked = [Blocked(call) for call in [*calls, maintain]]
    for each in blocked:
        each._thread.join(40)
        assert each.is_done
    assert len(ends) == total
    assert set(ends.values()) == {1}
    store = transport._store
    band_counts = [
        (band.ready, band.last_ready, band.delayed, band.blocked, band.leased)
        for band in store.queues["q"].bands.values()
    ]
    assert set(band_counts) == {(0, 0, 0, 0, 0)}
    assert not store.key_lines
    assert all(not session.held and not session.cancelled for session in store.sessions.values())
    assert all(session.last_chances == 0 for session in store.sessions.values())


def test_an_enqueue_wakes_a_waiting_worker() -> None:
    transport = MemoryTransport(clock=FakeClock())
    take(transport)
    waiting = Blocked(lambda: transport.wait("w", ("q",), 10))
    wait_until(asleep(transport))
    transport.enqueue([message("elsewhere", queue="other")])
    assert not waiting.is_done
    put(transport, 1)
    assert waiting.join() is True
    assert transport._store.bedroom.by_name == {}


def test_an_enqueue_between_reserve_and_wait_is_not_missed() -> None:
    transport = MemoryTransport(clock=FakeClock())
    take(transport)
    put(transport, 1)
    start = time.monotonic()
    assert transport.wait("w", ["q"], 10)
    assert time.monotonic() - start < 5
    # It has been told once.
    assert not transport.wait("w", ["q"], 0)


def test_a_wait_ends_when_a_delayed_message_falls_due() -> None:
    transport = MemoryTransport()
    take(transport)
    waiting = Blocked(lambda: transport.wait("w", ("q",), 10))
    wait_until(asleep(transport))
    transport.enqueue([message("soon", delay=0.05)])
    # Woken to hear of the earlier due time, then by the due time itself.
    assert waiting.join() is True
    take(transport)
    assert transport.wait("w", ("q",), 10)
    wait_until(lambda: take(transport), timeout=5)


def test_a_wake_before_the_wait_is_kept_for_it() -> None:
    transport = MemoryTransport(clock=FakeClock())
    transport.wake("w")
    assert transport.wait("w", ("q",), 10)
    assert not transport.wait("w", ("q",), 0.01)


def test_wake_ups_for_nobody_are_bounded() -> None:
    transport = MemoryTransport(clock=FakeClock())
    for index in range(3_000):
        transport.wake(f"nobody{index}")
    assert len(transport._store.bedroom._early) <= 1_000


def test_closing_a_handle_lets_only_its_own_calls_return() -> None:
    transport = MemoryTransport(clock=FakeClock())
    other = transport.duplicate()
    put(transport, 1)
    take(transport)
    mine = Blocked(lambda: transport.wait("w", ("q",), 30))
    wait_until(asleep(transport))
    theirs = Blocked(lambda: other.wait_jobs(["j000000"], 30, waiter="hub"))
    wait_until(asleep(transport, "hub"))
    other.close()
    other.close()
    theirs.join()
    assert not mine.is_done
    transport.close()
    mine.join()
    assert transport._store.bedroom.by_job == {}


def test_a_wait_for_many_jobs_ends_with_the_last() -> None:
    transport = MemoryTransport(clock=FakeClock())
    ids = put(transport, 100)
    deliveries = take(transport, limit=100)
    waiting = Blocked(lambda: transport.wait_jobs([*ids, "unknown"], 30))
    wait_until(lambda: len(transport._store.bedroom.by_job) == 100)
    ack(transport, deliveries[:99])
    assert not waiting.is_done
    ack(transport, deliveries[99:])
    records = waiting.join()
    assert isinstance(records, list)
    assert records[-1] is None
    assert {record.state for record in records[:-1]} == {JobState.SUCCEEDED}
    assert transport._store.bedroom.by_job == {}


def test_waiting_for_other_queues_keeps_what_the_worker_reserves_from() -> None:
    transport = MemoryTransport(clock=FakeClock())
    transport.enqueue([message("a"), message("b")])
    first = take(transport)
    assert transport.wait("w", ["another"], 0.01) is False
    # The head is that of the queues it reserves from.
    reply = transport.settle("w", [Ack(receipt=first[0].receipt)])
    assert reply.head == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_a_usable_copy_of_its_own() -> None:
    transport = MemoryTransport(clock=FakeClock())
    put(transport, 2)
    take(transport)
    busy = threading.Event()
    done = threading.Event()

    def hold_the_lock() -> None:
        with transport._store.lock:
            busy.set()
            # Holds it while the fork begins, which has to wait for it.
            done.wait(0.05)

    thread = threading.Thread(target=hold_the_lock)
    thread.start()
    assert busy.wait(10)
    child = os.fork()
    if child == 0:
        ok = len(take(transport)) == 1 and not transport.wait("w", ("q",), 0.01)
        os._exit(0 if ok else 1)
    _, status = os.waitpid(child, 0)
    thread.join(10)
    assert os.waitstatus_to_exitcode(status) == 0
    # The child's reservation happened in its copy only.
    assert len(take(transport, limit=5)) == 1


def test_a_signal_handler_may_wake_a_waiter_inside_of_a_call() -> None:
    transport = MemoryTransport(clock=FakeClock())
    with transport._store.lock:
        transport.wake("w")
    assert transport.wait("w", ("q",), 10)


def test_receipts_are_long_random_and_never_the_same() -> None:
    store = MemoryTransport()._store
    receipts = {store.new_receipt() for _ in range(2_000)}
    assert len(receipts) == 2_000
    assert all(len(receipt) == 24 and "." not in receipt for receipt in receipts)


def test_a_url_with_more_than_the_scheme_is_refused() -> None:
    assert MemoryTransport.from_url("memory://").describe()["url"] == "memory://"
    with pytest.raises(ConfigError, match="takes no host, path or options"):
        MemoryTransport.from_url("memory://name?x=1")


def test_doctor_says_that_nothing_survives_the_process() -> None:
    findings = MemoryTransport().diagnose()
    assert [finding.level for finding in findings] == ["ok", "warning"]


def test_reserve_hears_of_cancelled_deliveries() -> None:
    transport = MemoryTransport(clock=FakeClock())
    put(transport, 1)
    (delivery,) = take(transport)
    transport.revoke([delivery.id])
    request = ReserveRequest(worker="w", queues=Q, limit=0)
    assert transport.reserve(request).cancelled == {delivery.receipt}
    transport.settle("w", [Ack(receipt=delivery.receipt, state=JobState.REVOKED)])
    assert transport.reserve(request).cancelled == frozenset()
