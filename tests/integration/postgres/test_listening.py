"""Waking: by notifications where they arrive, by looking where they don't, and never by claiming."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from typing_extensions import Self

from support.pg_databases import Databases
from support.pg_servers import PgServer, pooler_before
from support.proxy import Proxy
from support.waiting import wait_until
from taskmq.transport.types import Ack, Message, QueueShare, ReserveRequest
from taskmq_postgres import listener
from taskmq_postgres.transport import PostgresTransport

LISTENING = (
    "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'"
)


def message(job_id: str) -> Message:
    return Message(id=job_id, task="t", queue="q", envelope=b"x")


def sleeping(connection: psycopg.Connection[Any], count: tuple[int]) -> bool:
    return connection.execute("SELECT count(*) FROM taskmq_sleepers").fetchone() == count


class Sleeper:
    """A worker of one transport that reserves, settles and sleeps, and notes when it had each job."""

    def __init__(self, transport: PostgresTransport) -> None:
        self.transport = transport
        self.had: dict[str, float] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stopped.set()
        self.transport.wake("sleeper")
        self._thread.join(20)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        request = ReserveRequest(worker="sleeper", queues=(QueueShare("q"),), limit=10)
        while not self._stopped.is_set():
            deliveries = self.transport.reserve(request).deliveries
            now = time.monotonic()
            for delivery in deliveries:
                self.had[delivery.id] = now
            if deliveries:
                self.transport.settle("sleeper", [Ack(receipt=each.receipt) for each in deliveries])
            else:
                self.transport.wait("sleeper", ["q"], 5)

    def latency(self, job_id: str) -> float:
        """How long a job that is enqueued now takes to be had."""
        start = time.monotonic()
        self.transport.enqueue([message(job_id)])
        wait_until(lambda: job_id in self.had, 20, 0.001, what=f"job {job_id}")
        return self.had[job_id] - start


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def hears(transport: PostgresTransport) -> bool:
    return transport._bedroom.listener().hears


@pytest.fixture
def transport(url: str) -> Iterator[PostgresTransport]:
    transport = PostgresTransport.from_url(url, timeout=10)
    yield transport
    transport.close()


def test_an_idle_worker_has_a_job_at_once(transport: PostgresTransport) -> None:
    with Sleeper(transport) as sleeper:
        wait_until(lambda: hears(transport))
        sleeper.latency("first")
        taken = [sleeper.latency(f"job{number}") for number in range(15)]
    # Without notifications it would be the next look, up to a second away.
    assert median(taken) < 0.1
    assert transport.describe()["wake-up"] == "LISTEN/NOTIFY"


def test_one_session_listens_for_all_and_a_message_wakes_one(
    transport: PostgresTransport, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserved = threading.Semaphore(0)
    told: list[str] = []
    tell = transport._bedroom._tell

    def note(name: str) -> None:
        told.append(name)
        tell(name)

    monkeypatch.setattr(transport._bedroom, "_tell", note)

    def take(worker: str) -> None:
        request = ReserveRequest(worker=worker, queues=(QueueShare("q"),), limit=1)
        while transport.wait(worker, ["q"], 20):
            deliveries = transport.reserve(request).deliveries
            if deliveries:
                transport.settle(worker, [Ack(receipt=deliveries[0].receipt)])
                reserved.release()
                return

    workers = [f"w{number}" for number in range(12)]
    threads = [threading.Thread(target=take, args=(name,)) for name in workers]
    for each in threads:
        each.start()
    with psycopg.connect(url, autocommit=True) as connection:
        for number in range(len(workers)):
            left = (len(workers) - number,)
            wait_until(partial(sleeping, connection, left))
            assert len(connection.execute(LISTENING).fetchall()) == 1
            transport.enqueue([message(f"job{number}")])
            assert reserved.acquire(timeout=20)
    for each in threads:
        each.join(20)
    # A herd would be 12 + 11 + … + 1. Who looks just when a message is there needs none.
    assert 1 <= len(told) <= len(workers)


def test_a_listener_that_is_terminated_comes_back_and_hears(
    transport: PostgresTransport, url: str
) -> None:
    with Sleeper(transport) as sleeper, psycopg.connect(url, autocommit=True) as connection:
        wait_until(lambda: hears(transport))
        (before,) = connection.execute(LISTENING).fetchall()
        connection.execute("SELECT pg_terminate_backend(%s)", before)
        # Also while it is away nothing waits for long.
        assert sleeper.latency("away") < 5
        wait_until(lambda: connection.execute(LISTENING).fetchall() not in ([], [before]), 20)
        wait_until(lambda: hears(transport), 20)
        assert median([sleeper.latency(f"job{number}") for number in range(9)]) < 0.1


def test_notifications_that_stop_arriving_are_noticed(
    transport: PostgresTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "TEST_EVERY", 0.1)
    monkeypatch.setattr(listener, "TEST_TIMEOUT", 0.3)
    deaf = transport._bedroom.listener()
    assert deaf.start(10)
    # As after a failover of which nothing is heard: what it listens to is not what is notified.
    deaf.channel = "taskmq_of_somebody_else"
    wait_until(lambda: "do not arrive" in transport.describe()["wake-up"], 10)


def test_a_network_that_is_dead_to_the_listener_is_noticed_and_left(
    server: PgServer, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "TEST_EVERY", 0.1)
    monkeypatch.setattr(listener, "TEST_TIMEOUT", 0.5)
    with contextlib.closing(Proxy(server.port)) as proxy:
        through = quote(url.replace(f":{server.port}/", f":{proxy.port}/"), safe="")
        transport = PostgresTransport.from_url(f"{url}?listen={through}", timeout=10)
        with Sleeper(transport) as sleeper:
            wait_until(lambda: hears(transport))
            proxy.abandon()
            wait_until(lambda: "do not arrive" in transport.describe()["wake-up"], 20)
            assert sleeper.latency("meanwhile") < 5
            wait_until(lambda: proxy.accepted > 1 and hears(transport), 20)
            assert median([sleeper.latency(f"job{number}") for number in range(9)]) < 0.1
        transport.close()


@pytest.fixture
def pooled_url(server: PgServer, url: str) -> Iterator[str]:
    with pooler_before(server) as pooled:
        yield pooled.replace("/postgres?", f"/{url.rpartition('/')[2]}?")


def test_behind_a_pooler_an_idle_worker_looks_and_finds(pooled_url: str) -> None:
    transport = PostgresTransport.from_url(pooled_url, timeout=10)
    with Sleeper(transport) as sleeper:
        sleeper.latency("first")
        assert median([sleeper.latency(f"job{number}") for number in range(7)]) < 1
    assert transport.describe()["wake-up"] == "polling"
    transport.close()


def test_behind_a_pooler_a_direct_url_hears(pooled_url: str, url: str) -> None:
    transport = PostgresTransport.from_url(f"{pooled_url}&listen={quote(url, safe='')}", timeout=10)
    with Sleeper(transport) as sleeper:
        wait_until(lambda: hears(transport))
        sleeper.latency("first")
        assert median([sleeper.latency(f"job{number}") for number in range(9)]) < 0.1
    assert transport.describe()["wake-up"] == "LISTEN/NOTIFY"
    transport.close()


def test_a_pooler_that_nobody_declared_is_noticed_and_works(pooled_url: str) -> None:
    transport = PostgresTransport.from_url(pooled_url.partition("?")[0], timeout=10)
    with Sleeper(transport) as sleeper:
        for number in range(20):
            assert sleeper.latency(f"job{number}") < 5
        wait_until(lambda: "do not arrive" in transport.describe()["wake-up"], 20)
    transport.close()


@pytest.mark.parametrize("pooled", [False, True])
def test_waiting_looks_seldom_and_never_claims(
    url: str, databases: Databases, pooled: bool
) -> None:
    name = url.rpartition("/")[2]
    databases.server.run(f"ALTER DATABASE {name} SET track_functions = 'all'")
    transport = PostgresTransport.from_url(url + ("?pooler=transaction" if pooled else ""))
    transport.reserve(ReserveRequest(worker="w", queues=(QueueShare("q"),), limit=1))
    assert transport.wait("w", ["q"], 2.0) is False
    transport.close()
    with psycopg.connect(url, autocommit=True) as connection:
        calls = "SELECT funcname, calls FROM pg_stat_user_functions"

        def counted() -> dict[str, int]:
            found: dict[str, int] = dict(connection.execute(calls).fetchall())
            return {key.removeprefix("taskmq_"): value for key, value in found.items()}

        wait_until(lambda: "probe_1" in counted())
        looks = counted()
    assert looks["reserve_1"] == 1
    assert looks["probe_1"] <= (40 if pooled else 6)
