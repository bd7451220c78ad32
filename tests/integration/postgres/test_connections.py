"""Connections: bounded in time and number, one's own in each process, and errors that say what to do."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from support import services
from support.pg_servers import PgServer, pg_server
from support.waiting import wait_until
from taskmq import App, Config
from taskmq.errors import ConfigError, ResultTimeout, TransportError, TransportUnavailable
from taskmq.transport.types import Message, WorkerInfo
from taskmq_postgres.transport import PostgresTransport
from taskmq_worker import Worker


def message(job_id: str) -> Message:
    return Message(id=job_id, task="t", queue="q", envelope=b"x")


def sessions(url: str, condition: str = "true") -> int:
    """How many clients besides this one are connected to the database."""
    count = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        f"AND backend_type = 'client backend' AND pid <> pg_backend_pid() AND {condition}"
    )
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(count.encode()).fetchone()
    assert row is not None
    return int(row[0])


def answers(transport: PostgresTransport) -> bool:
    try:
        transport.ping()
    except TransportUnavailable:
        return False
    return True


# --- no server, or none that answers ---


def test_without_a_server_every_call_ends_in_time_and_says_so() -> None:
    url = f"postgresql://me:secret@127.0.0.1:{services.free_port()}/db"
    with App(Config(transport=url, events="null", enqueue_timeout=0.5)) as app:
        task = app.task(name="t")(lambda: None)
        for _ in range(4):
            start = time.monotonic()
            with pytest.raises(TransportUnavailable, match=r"me:\*\*\*@.*refused") as caught:
                task.delay()
            assert time.monotonic() - start < 3
            assert url.partition("@")[2] in str(caught.value)
            assert "is the server running" in str(caught.value)
            assert "secret" not in str(caught.value)


def test_what_comes_from_the_environment_is_named_in_errors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PGHOST", "127.0.0.1")
    monkeypatch.setenv("PGPORT", str(services.free_port()))
    monkeypatch.setenv("PGDATABASE", "orders")
    monkeypatch.setenv("PGPASSWORD", "s3cret")
    transport = PostgresTransport.from_url("postgresql:///", timeout=0.5)
    with pytest.raises(TransportUnavailable, match="host 127.0.0.1, database orders") as caught:
        transport.ping()
    assert "s3cret" not in str(caught.value)
    transport.close()


def test_without_a_server_other_coroutines_go_on_while_a_call_waits() -> None:
    url = f"postgresql://127.0.0.1:{services.free_port()}/db"
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0.01)

    async def produce(app: App) -> None:
        task = app.task(name="t")(lambda: None)
        other = asyncio.create_task(count())
        for _ in range(2):
            start = time.monotonic()
            with pytest.raises(TransportUnavailable):
                await task.adelay()
            assert time.monotonic() - start < 3
        other.cancel()

    with App(Config(transport=url, events="null", enqueue_timeout=0.5)) as app:
        asyncio.run(produce(app))
    assert turns > 10


@pytest.fixture(scope="module")
def own_server() -> Iterator[PgServer]:
    """A server that these tests freeze."""
    with pg_server() as server:
        yield server


def test_a_frozen_server_holds_nobody_up_and_works_again_when_it_thaws(
    own_server: PgServer,
) -> None:
    patient = PostgresTransport.from_url(own_server.url, timeout=20)
    patient.enqueue([message("before")])
    transport = PostgresTransport.from_url(own_server.url, timeout=1)
    wait_until(lambda: answers(transport), 20)
    own_server.freeze(True)
    try:
        for _ in range(2):
            start = time.monotonic()
            with pytest.raises(TransportUnavailable):
                transport.enqueue([message("during")])
            assert time.monotonic() - start < 5
    finally:
        own_server.freeze(False)
    assert patient.enqueue([message("after")])[0].status == "created"
    wait_until(lambda: answers(transport), 20)
    assert transport.enqueue([message("before")])[0].status == "exists"
    transport.close()
    patient.close()


def test_a_table_that_somebody_has_locked_ends_a_call_in_time(url: str) -> None:
    patient = PostgresTransport.from_url(url, timeout=20)
    patient.ping()
    transport = PostgresTransport.from_url(url, timeout=0.5)
    wait_until(lambda: answers(transport), 20)
    with psycopg.connect(url) as connection:
        connection.execute("LOCK TABLE taskmq_messages IN ACCESS EXCLUSIVE MODE")
        start = time.monotonic()
        with pytest.raises(TransportUnavailable, match="holds a lock"):
            transport.enqueue([message("a")])
        assert time.monotonic() - start < 3
    # The server may have gone on waiting for the lock when the caller no longer did.
    assert patient.enqueue([message("a")])[0].status in ("created", "exists")
    assert patient.enqueue([message("b")])[0].status == "created"
    transport.close()
    patient.close()


# --- what can never work ---


@pytest.fixture(scope="module")
def guarded(own_server: PgServer) -> PgServer:
    """A server with a role that needs its password, and others that may not do all."""
    for statement in (
        "CREATE ROLE guarded LOGIN PASSWORD 'right'",
        "CREATE ROLE plain LOGIN",
        "CREATE ROLE nobody_logs_in",
        "CREATE DATABASE closed",
        "REVOKE CONNECT ON DATABASE closed FROM public",
        "CREATE DATABASE bare",
    ):
        own_server.run(statement)
    with psycopg.connect(own_server.url, dbname="bare", autocommit=True) as connection:
        connection.execute("REVOKE CREATE ON SCHEMA public FROM public")
    rules = Path(own_server.data / "pg_hba.conf")
    lines = (
        "host all guarded 127.0.0.1/32 scram-sha-256",
        "host all shut_out 127.0.0.1/32 reject",
        rules.read_text(),
    )
    rules.write_text("\n".join(lines))
    own_server.run("SELECT pg_reload_conf()")
    return own_server


@pytest.mark.parametrize(
    ("who", "where", "text", "advice"),
    [
        ("guarded:s3cret", "postgres", "password authentication failed", "PGPASSWORD"),
        ("guarded", "postgres?password=s3cret", "password authentication failed", "PGPASSWORD"),
        ("guarded", "postgres", "no password supplied", "~/.pgpass"),
        ("stranger:s3cret", "postgres", 'role "stranger" does not exist', "createuser"),
        ("nobody_logs_in:s3cret", "postgres", "not permitted to log in", "ALTER ROLE"),
        ("shut_out:s3cret", "postgres", "rejects", "a line in the server's pg_hba.conf"),
        ("plain:s3cret", "missing", 'database "missing" does not exist', "createdb"),
        ("plain:s3cret", "closed", "permission denied for database", "GRANT CONNECT"),
        ("plain:s3cret", "bare", "no tables yet", "taskmq doctor --migrate"),
        ("plain:s3cret", "postgres?sslmode=require", "SSL", "check sslmode"),
        ("plain:s3cret", "postgres?sslmode=bogus", "invalid sslmode", "correct this option"),
    ],
)
def test_what_can_never_work_is_one_masked_line_that_says_where_and_what_to_do(
    guarded: PgServer, who: str, where: str, text: str, advice: str
) -> None:
    place = f"127.0.0.1:{guarded.port}/{where.partition('?')[0]}"
    transport = PostgresTransport.from_url(
        f"postgresql://{who}@127.0.0.1:{guarded.port}/{where}", timeout=20
    )
    start = time.monotonic()
    with pytest.raises(TransportError, match=text) as caught:
        transport.ping()
    assert not isinstance(caught.value, TransportUnavailable)
    assert time.monotonic() - start < 10
    said = str(caught.value)
    assert advice in said
    assert place in said
    assert "s3cret" not in said
    assert "\n" not in said
    (finding,) = transport.diagnose()
    assert said == finding.message
    transport.close()


def test_a_role_without_rights_on_the_tables_is_told_which_it_needs(guarded: PgServer) -> None:
    owner = PostgresTransport.from_url(guarded.url)
    owner.migrate()
    owner.close()
    url = guarded.url.replace("postgres@", "plain:s3cret@")
    transport = PostgresTransport.from_url(url)
    with pytest.raises(TransportError, match="permission denied for table") as caught:
        transport.enqueue([message("a")])
    assert "needs USAGE on schema 'public', SELECT, INSERT, UPDATE, DELETE" in str(caught.value)
    assert "s3cret" not in str(caught.value)
    assert f"127.0.0.1:{guarded.port}/postgres" in str(caught.value)
    transport.close()


def test_a_server_without_free_connections_is_an_outage_that_says_what_helps() -> None:
    with pg_server("max_connections=5") as server, contextlib.ExitStack() as taken:
        server.run("CREATE ROLE plain LOGIN")
        url = server.url.replace("postgres@", "plain:s3cret@")
        # The others are kept back for superusers.
        for _ in range(2):
            taken.enter_context(psycopg.connect(url))
        transport = PostgresTransport.from_url(url, timeout=1)
        with pytest.raises(TransportUnavailable, match="connection slots") as caught:
            transport.ping()
        for part in ("limit of connections", "?connections=", f"127.0.0.1:{server.port}/postgres"):
            assert part in str(caught.value)
        assert "s3cret" not in str(caught.value)
        transport.close()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ("?shcema=a", "unknown option 'shcema'.*schema"),
        ("?pooler=yes", "pooler"),
        ("?prefix=Drop Table", "prefix"),
        ("?connections=0", "connections"),
        ("?client_encoding=latin1", "client_encoding"),
    ],
)
def test_a_bad_option_is_refused_before_anything_connects(options: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        PostgresTransport.from_url("postgresql://127.0.0.1/db" + options)


def test_libpq_s_own_options_and_environment_count(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = conninfo_to_dict(url)
    monkeypatch.setenv("PGHOST", str(parts["host"]))
    monkeypatch.setenv("PGPORT", str(parts["port"]))
    monkeypatch.setenv("PGUSER", "postgres")
    transport = PostgresTransport.from_url(
        f"postgresql:///{parts['dbname']}?application_name=billing"
    )
    transport.ping()
    assert sessions(url, "application_name = 'billing'") == 1
    transport.close()


# --- how many, and whose ---


def test_threads_share_a_bounded_number_of_connections(url: str) -> None:
    transport = PostgresTransport.from_url(url + "?connections=3")
    most = 0
    done = threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.wait(0.01):
            most = max(most, sessions(url))

    watcher = threading.Thread(target=watch)
    watcher.start()
    with ThreadPoolExecutor(20) as threads:
        answers = threads.map(lambda n: transport.enqueue([message(f"job{n}")]), range(400))
        assert {answer[0].status for answer in answers} == {"created"}
    done.set()
    watcher.join(10)
    # The watcher's own session of a moment ago may still be on its way out.
    assert 1 <= most <= 3 + 1
    transport.close()
    wait_until(lambda: sessions(url) == 0)


@pytest.mark.scaled
def test_waiting_for_results_leaves_no_connection_and_no_watch_behind(
    url: str, request: pytest.FixtureRequest
) -> None:
    half = 5_000 if request.config.getoption("--soak") else 300
    most = 0
    with App(Config(transport=url + "?connections=4", events="null", concurrency=4)) as app:
        done = app.task(name="done")(lambda: 1)
        never = app.task(name="never", queue="nobody")(lambda: 1)
        with Worker(app) as worker:
            runner = threading.Thread(target=worker.run_until_idle, kwargs={"timeout": 600})
            waits = done.map_async([()] * half)
            runner.start()

            def get(number: int) -> str:
                if number % 2:
                    try:
                        never.delay().get(timeout=0.02)
                    except ResultTimeout:
                        return "late"
                return str(waits[number // 2].get(timeout=20))

            async def aget(number: int) -> str:
                return str(await waits[number].aget(timeout=20))

            async def aget_all() -> list[str]:
                return await asyncio.gather(*map(aget, range(half)))

            with ThreadPoolExecutor(20) as threads:
                answers = threads.map(get, range(2 * half))
                most = max(sessions(url) for _ in range(20))
                assert {*answers} == {"1", "late"}
            assert {*asyncio.run(aget_all())} == {"1"}
            runner.join(600)
        # The pool's, one for housekeeping, one that listens, and the one of whoever asked before.
        assert max(most, sessions(url)) <= 7
        app.transport.purge("nobody")
        with psycopg.connect(url, autocommit=True) as connection:
            watched = "SELECT count(*) FROM taskmq_watches WHERE until > extract(epoch FROM now())"
            # What an end missed while it was registered is gone once its time is over.
            wait_until(lambda: connection.execute(watched).fetchone() == (0,), 30)


def test_a_worker_is_never_idle_in_a_transaction_while_jobs_run(url: str) -> None:
    with App(Config(transport=url, events="null", concurrency=2, heartbeat_interval=0.2)) as app:
        gate = threading.Event()
        started = threading.Semaphore(0)

        @app.task(name="long")
        def long() -> None:
            started.release()
            assert gate.wait(30)

        long.map_async([(), ()])
        with Worker(app) as worker:
            runner = threading.Thread(target=worker.run_until_idle, kwargs={"timeout": 30})
            runner.start()
            assert started.acquire(timeout=20)
            assert started.acquire(timeout=20)
            seen = [sessions(url, "state LIKE 'idle in%'") for _ in range(40)]
            gate.set()
            runner.join(30)
    assert set(seen) == {0}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_forked_children_connect_anew_and_leave_the_parent_s_alone(url: str) -> None:
    transport = PostgresTransport.from_url(url, timeout=20)
    transport.enqueue([message("parent")])
    assert transport.wait("parent", ["other"], 0.05) is False
    backend = "SELECT pg_backend_pid()"
    mine = transport._database.query(backend)
    children = []
    for number in range(8):
        pid = os.fork()
        if not pid:
            code = 1
            try:
                with ThreadPoolExecutor(4) as threads:
                    jobs = [[message(f"child{number}-{n}")] for n in range(4)]
                    created = {each[0].status for each in threads.map(transport.enqueue, jobs)}
                other = transport._database.query(backend)
                slept = transport.wait(f"child{number}", ["other"], 0.05)
                code = 0 if created == {"created"} and other != mine and not slept else 2
            finally:
                os._exit(code)
        children.append(pid)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda n: transport.enqueue([message(f"mine{n}")]), range(40)))
    assert {os.waitpid(pid, 0)[1] for pid in children} == {0}
    expected = [f"child{c}-{n}" for c in range(8) for n in range(4)]
    expected += [f"mine{n}" for n in range(40)]
    assert None not in transport.get_jobs(expected)
    transport.close()


@pytest.mark.parametrize("first", ["heartbeat", "wait", "enqueue"])
def test_a_close_in_the_middle_of_calls_leaves_no_session(url: str, first: str) -> None:
    transport = PostgresTransport.from_url(url)
    if first == "heartbeat":
        transport.heartbeat(WorkerInfo(id="w", concurrency=1))
    elif first == "wait":
        transport.wait("w", ["q"], 0.01)
    else:
        transport.enqueue([message("a")])
    stop = threading.Event()

    def call() -> None:
        while not stop.is_set():
            try:
                transport.now()
                transport.renew("lease", 1, 10)
                transport.wait("w", ["q"], 0.01)
            except TransportError:
                return

    callers = [threading.Thread(target=call) for _ in range(6)]
    for caller in callers[: 0 if first == "heartbeat" else 6]:
        caller.start()
    transport.close()
    stop.set()
    for caller in callers:
        if caller.ident is not None:
            caller.join(20)
    gc.collect()
    wait_until(lambda: sessions(url) == 0)
