"""Tables and functions come into being once, whoever comes first, and need few rights afterwards."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from support.pg_servers import PgServer
from taskmq.errors import TransportError
from taskmq.transport.types import Ack, Message, QueueShare, ReserveRequest
from taskmq_postgres.migrate import known
from taskmq_postgres.transport import PostgresTransport

GRANTS = """
GRANT USAGE ON SCHEMA jobs TO app;
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA jobs TO app;
GRANT USAGE ON ALL SEQUENCES IN SCHEMA jobs TO app;
"""


def message(job_id: str) -> Message:
    return Message(id=job_id, task="t", queue="q", envelope=b"x")


def run_one(transport: PostgresTransport, job_id: str) -> None:
    assert transport.enqueue([message(job_id)])[0].status == "created"
    request = ReserveRequest(worker="w", queues=(QueueShare("q"),), limit=1)
    deliveries = transport.reserve(request).deliveries
    results = transport.settle("w", [Ack(receipt=each.receipt) for each in deliveries]).results
    assert [each.status for each in results] == ["ok"]


def test_ten_first_users_at_once_make_the_tables_once(empty_url: str) -> None:
    transports = [PostgresTransport.from_url(empty_url, timeout=20) for _ in range(10)]
    start = threading.Barrier(len(transports))

    def use(number: int) -> str:
        start.wait(10)
        return transports[number].enqueue([message(f"job{number}")])[0].status

    with ThreadPoolExecutor(len(transports)) as threads:
        assert set(threads.map(use, range(len(transports)))) == {"created"}
    with psycopg.connect(empty_url) as connection:
        rows = connection.execute("SELECT version FROM taskmq_migrations ORDER BY 1").fetchall()
    assert [version for (version,) in rows] == [each.version for each in known()]
    for transport in transports:
        transport.close()


def test_migrating_says_what_was_done_and_then_nothing(empty_url: str) -> None:
    transport = PostgresTransport.from_url(f"{empty_url}?schema=jobs&prefix=app1_")
    first = transport.migrate()
    assert first[0] == "created schema jobs"
    assert first[1:] == [f"applied {each.name}" for each in known()]
    assert transport.migrate() == []
    with psycopg.connect(empty_url) as connection:
        found = connection.execute(
            "SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname = 'jobs' AND c.relname LIKE 'app1_%'"
        ).fetchone()
    assert found is not None
    assert found[0] > 10
    transport.close()


def test_a_migration_that_fails_leaves_nothing_behind(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = (*known()[:3], known()[3].__class__(4, "0004_broken", "SELECT no_such_thing()"))
    with monkeypatch.context() as patch:
        patch.setattr("taskmq_postgres.migrate.known", lambda: broken)
        transport = PostgresTransport.from_url(empty_url)
        with pytest.raises(TransportError, match="no_such_thing"):
            transport.ping()
        transport.close()
    with psycopg.connect(empty_url) as connection:
        count = "SELECT count(*) FROM pg_class WHERE relname LIKE 'taskmq_%'"
        assert connection.execute(count).fetchone() == (0,)
    transport = PostgresTransport.from_url(empty_url)
    run_one(transport, "a")
    transport.close()


def test_a_call_that_makes_the_tables_may_take_longer_than_others(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = known()[-1]
    slow = last.__class__(last.version + 1, "slow", "SELECT pg_sleep(1.5)")
    monkeypatch.setattr("taskmq_postgres.migrate.known", lambda: (*known(), slow))
    transport = PostgresTransport.from_url(empty_url, timeout=1)
    transport.ping()
    assert transport.migrate() == []
    transport.close()


def test_tables_that_vanish_are_made_anew_at_the_next_call(url: str) -> None:
    transport = PostgresTransport.from_url(url)
    run_one(transport, "a")
    with psycopg.connect(url) as connection:
        connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    run_one(transport, "a")
    transport.close()


def test_a_newer_schema_does_not_disturb_this_version(url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("INSERT INTO taskmq_migrations (version, name) VALUES (9000, 'later')")
    transport = PostgresTransport.from_url(url)
    run_one(transport, "a")
    assert any("newer than this taskmq" in each.message for each in transport.diagnose())
    transport.close()


def test_a_running_worker_goes_on_while_a_migration_is_applied(url: str) -> None:
    transport = PostgresTransport.from_url(url)
    run_one(transport, "before")
    with psycopg.connect(url) as connection:
        # What a later version does: a lock of its own, and only additions.
        connection.execute(
            'SELECT pg_advisory_xact_lock(hashtextextended(\'"public"."taskmq_migrations"\', 0))'
        )
        connection.execute("CREATE TABLE taskmq_later (x integer)")
        connection.execute(
            "CREATE FUNCTION taskmq_now_2() RETURNS float8 LANGUAGE sql AS 'SELECT 1.0'"
        )
        run_one(transport, "while")
        other = PostgresTransport.from_url(url)
        run_one(other, "another")
        other.close()
    run_one(transport, "after")
    transport.close()


@pytest.fixture
def role(server: PgServer) -> str:
    server.run("CREATE ROLE app LOGIN")
    return "app"


@pytest.fixture
def app_url(empty_url: str, role: str) -> Iterator[str]:
    yield empty_url.replace("postgres@", f"{role}@") + "?schema=jobs"
    with psycopg.connect(empty_url) as connection:
        connection.execute("DROP OWNED BY app; DROP ROLE app")


def test_a_role_that_may_not_create_is_told_what_to_do(app_url: str) -> None:
    transport = PostgresTransport.from_url(app_url)
    with pytest.raises(TransportError, match="permission denied") as caught:
        transport.ping()
    assert "taskmq doctor --migrate" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [each.level for each in transport.diagnose()] == ["error"]
    transport.close()


def test_the_documented_grants_are_enough_to_work(app_url: str, empty_url: str) -> None:
    owner = PostgresTransport.from_url(f"{empty_url}?schema=jobs")
    owner.migrate()
    with psycopg.connect(empty_url) as connection:
        connection.execute(GRANTS)
    transport = PostgresTransport.from_url(app_url)
    run_one(transport, "a")
    assert transport.wait("w", ["q"], 0.05) is False
    assert transport.acquire("beat", "me", 10) is not None
    assert {
        each.level for each in transport.diagnose() if each.subject in ("rights", "schema")
    } == {"ok"}
    transport.close()
    owner.close()


def test_doctor_names_the_rights_that_are_missing(app_url: str, empty_url: str) -> None:
    owner = PostgresTransport.from_url(f"{empty_url}?schema=jobs")
    owner.migrate()
    with psycopg.connect(empty_url) as connection:
        connection.execute(GRANTS + "REVOKE DELETE ON jobs.taskmq_messages FROM app;")
    transport = PostgresTransport.from_url(app_url)
    (finding,) = [each for each in transport.diagnose() if each.subject == "rights"]
    assert finding.level == "error"
    assert "taskmq_messages" in finding.message
    with pytest.raises(TransportError, match="permission denied"):
        run_one(transport, "a")
    transport.close()
    owner.close()
