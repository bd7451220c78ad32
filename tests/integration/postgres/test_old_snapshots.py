"""A session that keeps an old snapshot stops vacuum; claims stay quick all the same."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from typing import Any

import psycopg
import pytest

from support import postgres
from support.waiting import wait_until
from taskmq.transport.types import (
    Ack,
    Message,
    Payload,
    QueueShare,
    ReapRequest,
    Release,
    ReserveRequest,
    Retry,
)
from taskmq_postgres.transport import PostgresTransport

RESULT = Payload("x", b"1")
numbers = count()


@pytest.fixture(scope="module")
def place() -> Iterator[postgres.Place]:
    with postgres.server() as service:
        place = postgres.Place(service.url)
        yield place
        place.close()


@pytest.fixture
def old_snapshot(place: postgres.Place) -> Iterator[psycopg.Connection[Any]]:
    place.empty()
    place.connection.execute("VACUUM ANALYZE")
    with psycopg.connect(place.url) as reader:
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT 1").fetchall()
        yield reader
        reader.rollback()


def work(transport: PostgresTransport, jobs: int) -> float:
    """Enqueue, claim and settle so many; the seconds for claims and settlements."""
    request = ReserveRequest(worker="w", queues=(QueueShare("q"),), limit=500)
    taken = 0.0
    for _ in range(jobs // 500):
        transport.enqueue([message() for _ in range(500)])
        begun = time.perf_counter()
        deliveries = transport.reserve(request).deliveries
        assert len(deliveries) == 500
        transport.settle("w", [Ack(receipt=d.receipt, result=RESULT) for d in deliveries])
        taken += time.perf_counter() - begun
    return taken


def message(**fields: Any) -> Message:
    return Message(id=f"j{next(numbers)}", task="t", queue="q", envelope=b"x", **fields)


def until_floors(place: postgres.Place, transport: PostgresTransport) -> None:
    """Work until what can't be vacuumed makes itself felt."""
    for _ in range(60):
        work(transport, 1_000)
        if place.rows("SELECT 1 FROM {floors} WHERE queue <> ''"):
            return
    pytest.fail("60,000 dead rows at the front of a queue did not slow a claim")


def reserve_one(transport: PostgresTransport, worker: str = "w") -> list[tuple[str, str]]:
    request = ReserveRequest(worker=worker, queues=(QueueShare("q"),), limit=1)
    return [(d.id, d.receipt) for d in transport.reserve(request).deliveries]


@pytest.mark.timeout(120)
@pytest.mark.usefixtures("old_snapshot")
def test_order_holds_while_floors_are_used(place: postgres.Place) -> None:
    transport = place.transport()
    until_floors(place, transport)
    first, second, urgent = message(), message(), message(priority=9)
    transport.enqueue([first, second])
    ((got, receipt),) = reserve_one(transport)
    assert got == first.id
    transport.settle("w", [Release(receipt=receipt)])
    transport.enqueue([urgent])
    ((got, _),) = reserve_one(transport)
    assert got == urgent.id
    ((got, receipt),) = reserve_one(transport)
    assert got == first.id
    transport.settle("w", [Retry(receipt=receipt, delay=0.0)])
    assert [job for job, _ in reserve_one(transport)] == [first.id]
    assert [job for job, _ in reserve_one(transport)] == [second.id]
    assert reserve_one(transport) == []
    transport.close()


@pytest.mark.timeout(120)
def test_floors_are_gone_with_the_snapshot(
    place: postgres.Place, old_snapshot: psycopg.Connection[Any]
) -> None:
    transport = place.transport()
    until_floors(place, transport)
    old_snapshot.rollback()
    place.connection.execute("VACUUM")
    deadline = time.monotonic() + 60
    while place.rows("SELECT 1 FROM {floors} WHERE queue <> ''"):
        assert time.monotonic() < deadline, "floors were kept for a minute"
        work(transport, 500)
    transport.close()


@pytest.mark.timeout(120)
@pytest.mark.usefixtures("old_snapshot")
def test_lost_leases_come_back_while_floors_are_used(place: postgres.Place) -> None:
    transport = place.transport()
    place.run(
        "CREATE OR REPLACE FUNCTION {is_slow_reap_1}(began timestamptz) RETURNS boolean "
        "LANGUAGE sql AS $$ SELECT true $$"
    )
    transport.enqueue([message(), message()])
    for worker in ("w1", "w2"):
        request = ReserveRequest(worker=worker, queues=(QueueShare("q"),), limit=1, lease=0.05)
        assert transport.reserve(request).deliveries

        def taken_back() -> int:
            return transport.reap(ReapRequest()).requeued

        assert wait_until(taken_back, 20, what="a lost lease to be taken back") == 1
        assert place.rows("SELECT 1 FROM {floors} WHERE queue = ''")
    transport.close()


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("old_snapshot")
def test_throughput_under_an_old_snapshot(place: postgres.Place) -> None:
    transport = place.transport()
    work(transport, 5_000)
    before = work(transport, 10_000)
    work(transport, 200_000)
    after = work(transport, 10_000)
    print(f"{before:.2f} s before, {after:.2f} s after")
    assert after <= before / 0.7
    transport.close()
