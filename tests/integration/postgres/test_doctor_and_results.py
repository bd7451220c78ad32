"""What doctor says of a server, and results in a store of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from urllib.parse import quote

import psycopg
import pytest
from typing_extensions import LiteralString

from support.waiting import wait_until
from taskmq import App, Config, TransportError
from taskmq.testing import worker_for
from taskmq.transport.types import Finding, Payload
from taskmq_postgres import doctor
from taskmq_postgres.results import PostgresResultStore
from taskmq_postgres.transport import PostgresTransport
from taskmq_worker import Worker


@pytest.fixture
def transport(url: str) -> Iterator[PostgresTransport]:
    transport = PostgresTransport.from_url(url, timeout=10)
    yield transport
    transport.close()


def finding(transport: PostgresTransport, subject: str) -> Finding:
    return next(each for each in transport.diagnose() if each.subject == subject)


def test_a_sound_server_has_nothing_to_mend(transport: PostgresTransport) -> None:
    found = transport.diagnose()
    # The private server of the tests may be busy with many databases, and others hold snapshots.
    assert {each.level for each in found} == {"ok"}
    assert {each.subject for each in found} >= {
        "server", "schema", "rights", "clock", "snapshot", "vacuum", "connections", "wake-up",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("level", "statement"),
    [
        (psycopg.IsolationLevel.REPEATABLE_READ, "SELECT 1"),
        # What it has written keeps dead rows as well, though it has no snapshot between statements.
        (psycopg.IsolationLevel.READ_COMMITTED, "CREATE TABLE written (n integer)"),
    ],
)
def test_an_old_snapshot_is_named_with_its_age_and_holder(
    transport: PostgresTransport,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    level: psycopg.IsolationLevel,
    statement: LiteralString,
) -> None:
    monkeypatch.setattr(doctor, "OLD_SNAPSHOT", 0.2)
    with psycopg.connect(url, application_name="report") as connection:
        connection.isolation_level = level
        connection.execute(statement)
        wait_until(lambda: finding(transport, "snapshot").level == "warning")
        old = finding(transport, "snapshot").message
    assert "report" in old
    assert "idle in transaction" in old
    wait_until(lambda: finding(transport, "snapshot").level == "ok")


def test_a_worker_says_at_its_start_that_a_crash_may_lose_jobs(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    def told() -> list[str]:
        return [each.getMessage() for each in caplog.records if "durability" in each.getMessage()]

    options = quote("-c synchronous_commit=off", safe="")
    app = App(
        Config(transport=f"{url}{'&' if '?' in url else '?'}options={options}", events="null")
    )
    app.task(name="done")(lambda: 1)
    with worker_for(app):
        wait_until(lambda: any("synchronous_commit is off" in each for each in told()))
    app.close()


def test_a_read_only_database_is_an_error(transport: PostgresTransport, url: str) -> None:
    transport.ping()
    name = url.rpartition("/")[2]
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on".encode())
    other = PostgresTransport.from_url(url)
    assert any("read-only" in each.message for each in other.diagnose() if each.level == "error")
    other.close()


def test_the_command_reports_the_server_and_migrates(empty_url: str) -> None:
    def doctor_command(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "taskmq", "doctor", *words],
            env={**os.environ, "TASKMQ_TRANSPORT": empty_url, "NO_COLOR": "1"},
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )

    migrated = doctor_command("--migrate")
    assert "applied 0001_tables" in migrated.stdout, migrated.stderr
    assert "notifications arrive" in migrated.stdout
    assert "applied" not in doctor_command("--migrate").stdout
    assert json.loads(doctor_command("--json").stdout)


@pytest.fixture
def store(url: str) -> Iterator[PostgresResultStore]:
    store = PostgresResultStore.from_url(url, timeout=10)
    yield store
    store.close()


def test_a_result_is_found_under_its_id_and_receipt_only(store: PostgresResultStore) -> None:
    store.put([("a", "r1", Payload("text", b"one")), ("b", "r1", Payload("text", b"\0two"))], 60)
    found = store.get([("b", "r1"), ("a", "r2"), ("a", "r1")])
    assert found == [Payload("text", b"\0two"), None, Payload("text", b"one")]
    store.delete([("a", "r1"), ("none", "r1")])
    assert store.get([("a", "r1"), ("b", "r1")]) == [None, Payload("text", b"\0two")]


def test_putting_again_replaces_and_nothing_is_no_call(store: PostgresResultStore) -> None:
    store.put([], 60)
    assert store.get([]) == []
    store.delete([])
    store.put([("a", "r", Payload("t", b"1")), ("a", "r", Payload("t", b"2"))], 60)
    assert store.get([("a", "r")]) == [Payload("t", b"2")]
    store.put([("a", "r", Payload("t", b"3"))], 60)
    assert store.get([("a", "r")]) == [Payload("t", b"3")]


def test_a_result_past_its_time_is_gone_and_removed(store: PostgresResultStore, url: str) -> None:
    store.put([("a", "r", Payload("t", b"1"))], 0.05)
    wait_until(lambda: store.get([("a", "r")]) == [None])
    store._prune_at = 0.0
    store.put([("b", "r", Payload("t", b"2"))], 60)
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT id FROM taskmq_results").fetchall() == [("b",)]


def test_what_cannot_be_stored_is_refused(store: PostgresResultStore) -> None:
    with pytest.raises(TransportError, match="refused a value"):
        store.put([("a\0", "r", Payload("t", b"1"))], 60)


def test_results_of_jobs_go_to_the_store(url: str, empty_url: str) -> None:
    with App(Config(transport=url, result=empty_url, result_ttl=60, events="null")) as app:
        double = app.task(name="double")(lambda number: 2 * number)
        handles = [double.delay(number) for number in range(20)]
        with Worker(app) as worker:
            worker.run_until_idle(timeout=30)
        assert [handle.get(timeout=10) for handle in handles] == [2 * n for n in range(20)]
    with psycopg.connect(empty_url) as connection:
        assert connection.execute("SELECT count(*) FROM taskmq_results").fetchone() == (20,)
