"""Producers, workers and reapers at once: each job ends once, and nobody waits for the other crosswise."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support import postgres
from support.waiting import wait_until
from taskmq.transport.types import (
    Ack,
    Edge,
    FollowUps,
    Hold,
    Message,
    Payload,
    QueueShare,
    ReapRequest,
    Release,
    ReserveRequest,
    Retry,
    Settlement,
)
from taskmq_postgres.transport import PostgresTransport

QUEUES = (QueueShare("q0", 3), QueueShare("q1"), QueueShare("q2"))
NAMES = [share.name for share in QUEUES]


@pytest.fixture(scope="module")
def place() -> Iterator[postgres.Place]:
    with postgres.server() as service:
        place = postgres.Place(service.url)
        yield place
        place.close()


def message(name: str, queue: str, **fields: Any) -> Message:
    return Message(id=name, task="t", queue=queue, envelope=b"x", max_deliveries=99, **fields)


def batch(name: str, chance: random.Random) -> list[Message]:
    """Plain jobs, jobs of five keys, and joins over two."""
    keyed = [
        message(
            f"{name}-k{n}", "q1", concurrency_key=f"c{chance.randrange(5)}", concurrency_limit=2
        )
        for n in range(4)
    ]
    plain = [message(f"{name}-p{n}", chance.choice(NAMES), priority=n % 3) for n in range(4)]
    join = f"{name}-join"
    roots = [message(f"{name}-r{n}", "q2", successors=(Edge(join),)) for n in range(2)]
    return [*keyed, *plain, *roots, message(join, "q0", hold=Hold(arrivals=2))]


class Crowd:
    """Threads with a handle each; what they raise is raised again at the end."""

    def __init__(self, transport: PostgresTransport) -> None:
        self.transport = transport
        self.ended = threading.Event()
        self.done: Counter[str] = Counter()
        self.lock = threading.Lock()
        self.errors: list[BaseException] = []
        self.threads: list[threading.Thread] = []

    def start(self, run: Callable[[PostgresTransport, int], None], number: int) -> None:
        def guarded() -> None:
            handle = self.transport.duplicate()
            try:
                run(handle, number)
            # Whatever a thread met fails the test.
            except BaseException as error:
                self.errors.append(error)
            finally:
                handle.close()

        thread = threading.Thread(target=guarded, daemon=True)
        thread.start()
        self.threads.append(thread)

    def produce(self, handle: PostgresTransport, number: int) -> None:
        for n in range(8):
            handle.enqueue(batch(f"b{number}-{n}", random.Random(f"{number}-{n}")))

    def work(self, handle: PostgresTransport, number: int) -> None:
        chance = random.Random(number)
        worker = f"w{number}"
        while not self.ended.is_set():
            limit = chance.choice([1, 5, 20])
            request = ReserveRequest(worker=worker, queues=QUEUES, limit=limit)
            reply = handle.reserve(request)
            if not reply.deliveries:
                handle.wait(worker, NAMES, 0.1)
                continue
            said = [self.settlement(d.id, d.receipt, chance) for d in reply.deliveries]
            results = handle.settle(worker, said).results
            assert [result.status for result in results] == ["ok"] * len(said)
            with self.lock:
                self.done.update(
                    d.id for d, s in zip(reply.deliveries, said, strict=True) if isinstance(s, Ack)
                )

    def settlement(self, name: str, receipt: str, chance: random.Random) -> Settlement:
        dice = chance.random()
        if dice < 0.05:
            return Retry(receipt=receipt, delay=0.02)
        if dice < 0.1:
            return Release(receipt=receipt)
        if dice < 0.15 and not name.endswith("-child"):
            child = FollowUps(enqueue=(message(f"{name}-child", "q2"),))
            return Ack(receipt=receipt, follow_ups=child)
        return Ack(receipt=receipt, result=Payload("x", b"1"))

    def reap(self, handle: PostgresTransport, _: int) -> None:
        while not self.ended.wait(0.05):
            handle.reap(ReapRequest())


@pytest.mark.timeout(120)
def test_each_job_ends_once_among_many(place: postgres.Place) -> None:
    transport = place.transport()
    crowd = Crowd(transport)
    for number in range(2):
        crowd.start(crowd.produce, number)
    for number in range(5):
        crowd.start(crowd.work, number)
    for number in range(2):
        crowd.start(crowd.reap, number)

    def over() -> bool:
        left = place.rows("SELECT 1 FROM {messages} LIMIT 1")
        produced = not any(thread.is_alive() for thread in crowd.threads[:2])
        return bool(crowd.errors) or (produced and not left)

    wait_until(over, 90, 0.05, what="the end of all jobs")
    crowd.ended.set()
    for thread in crowd.threads:
        thread.join(20)
    assert crowd.errors == []
    assert [name for name, times in crowd.done.items() if times > 1] == []
    stored = place.rows("SELECT state, count(*) FROM {jobs} GROUP BY 1")
    assert stored == [("SUCCEEDED", len(crowd.done))]
    assert len(crowd.done) >= 2 * 8 * 11
    transport.close()
