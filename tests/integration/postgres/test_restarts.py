"""Restarts, lost sessions and failovers: every call that returned counts, and work goes on by itself."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator

import psycopg
import pytest

from support.load import Load
from support.pg_servers import PgServer, pg_pair, pg_server
from support.waiting import wait_until
from taskmq.errors import TransportUnavailable
from taskmq.transport.types import Message
from taskmq_postgres.transport import PostgresTransport

# A server that was started again is a process that was not there before the test.
pytestmark = [pytest.mark.timeout(120), pytest.mark.leaks]


@pytest.fixture(scope="module")
def server() -> Iterator[PgServer]:
    """A server that these tests stop and start."""
    with pg_server() as server:
        yield server


@pytest.fixture(autouse=True)
def emptied(server: PgServer) -> None:
    server.run("DROP SCHEMA public CASCADE")
    server.run("CREATE SCHEMA public")


def message(job_id: str) -> Message:
    return Message(id=job_id, task="t", queue="q", envelope=b"x")


def finds(transport: PostgresTransport, job_id: str) -> bool:
    try:
        return transport.get_jobs([job_id]) != [None]
    except TransportUnavailable:
        return False


@pytest.mark.scaled
def test_an_idle_producer_s_first_call_after_a_restart_is_stored_or_raises(
    server: PgServer, request: pytest.FixtureRequest
) -> None:
    rounds = 20 if request.config.getoption("--soak") else 5
    transport = PostgresTransport.from_url(server.url, timeout=10)
    transport.enqueue([message("first")])
    returned = []
    for turn in range(rounds):
        server.restart(signal.SIGQUIT if turn % 2 else signal.SIGINT)
        for number in range(11):
            job_id = f"{turn}-{number}"
            transport.enqueue([message(job_id)])
            returned.append(job_id)
    assert None not in transport.get_jobs(returned)
    transport.close()


def test_a_call_while_the_server_is_down_ends_in_time_and_works_once_it_is_back(
    server: PgServer,
) -> None:
    patient = PostgresTransport.from_url(server.url, timeout=20)
    patient.enqueue([message("before")])
    transport = PostgresTransport.from_url(server.url, timeout=1)
    wait_until(lambda: finds(transport, "before"), 20)
    server.stop()
    start = time.monotonic()
    with pytest.raises(TransportUnavailable):
        transport.enqueue([message("during")])
    assert time.monotonic() - start < 5
    server.start()
    assert patient.enqueue([message("after")])[0].status == "created"
    wait_until(lambda: finds(transport, "after"), 20)
    transport.close()
    patient.close()


def test_a_call_begun_before_the_server_is_back_waits_for_it(server: PgServer) -> None:
    transport = PostgresTransport.from_url(server.url, timeout=20)
    transport.ping()
    server.stop()
    answers: list[str] = []
    caller = threading.Thread(
        target=lambda: answers.append(transport.enqueue([message("a")])[0].status)
    )
    caller.start()
    server.start()
    caller.join(20)
    assert answers == ["created"]
    transport.close()


def test_restarts_under_load_lose_nothing_and_work_goes_on(server: PgServer) -> None:
    load = Load(server.url)
    with load.running():
        load.wait_for_more(100)
        for by in (signal.SIGINT, signal.SIGQUIT):
            server.restart(by)
            assert load.wait_for_more(100) < 10
    assert len(load.accepted) > 200
    load.app.close()


def test_sessions_terminated_in_a_stream_lose_nothing(server: PgServer) -> None:
    load = Load(server.url)
    ended = 0
    with load.running():
        load.wait_for_more(20)
        for _ in range(40):
            ended += server.terminate()
            load.wait_for_more(3)
        assert load.wait_for_more(100) < 10
    assert ended > 40
    load.app.close()


def test_ninety_idle_sessions_leave_room_for_work(server: PgServer) -> None:
    load = Load(server.url)
    with load.running():
        load.wait_for_more(100)
        idle = [psycopg.connect(server.url, autocommit=True) for _ in range(85)]
        assert load.wait_for_more(100) < 10
        for connection in idle:
            connection.close()
    load.app.close()


def test_a_listener_hears_again_after_a_restart(server: PgServer) -> None:
    listening = "SELECT 1 FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
    transport = PostgresTransport.from_url(server.url, timeout=20)
    assert transport.wait("w", ["q"], 0.5) is False
    wait_until(lambda: bool(server.rows(listening)))
    server.restart()
    wait_until(lambda: bool(server.rows(listening)), 30)
    wait_until(lambda: transport.describe()["wake-up"] == "LISTEN/NOTIFY", 30)
    transport.close()


@pytest.mark.timeout(240)
@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGQUIT], ids=["in order", "by a crash"])
def test_a_standby_that_takes_over_is_found_and_nothing_it_knows_is_lost(
    by: signal.Signals,
) -> None:
    with pg_pair() as (primary, standby):
        # The standby is named first: what takes no writes is passed over.
        hosts = f"127.0.0.1:{standby.port},127.0.0.1:{primary.port}"
        url = f"postgresql://postgres@{hosts}/postgres"
        load = Load(url, timeout=15)
        with load.running():
            load.wait_for_more()
            for turn in range(3):
                if turn:
                    standby.follow(primary)
                # In order, all that was committed reaches the standby first; in a crash, what it confirmed.
                primary.confirm_by_standby(by is signal.SIGQUIT)
                load.wait_for_more()
                primary.stop(by)
                standby.promote()
                standby.confirm_by_standby(False)
                primary, standby = standby, primary
                assert load.wait_for_more() < 10
            listening = "SELECT 1 FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
            wait_until(lambda: bool(primary.rows(listening)), 30, what="the listener to come back")
        assert len(load.accepted) > 100
        load.app.close()
