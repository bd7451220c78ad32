"""A job written in the caller's own transaction exists if and only if that commits."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import psycopg
import pytest
from psycopg.rows import dict_row

from support.waiting import PATIENCE, wait_until
from taskmq import App, Config, ConfigError, JobState, TransportError
from taskmq.errors import JobNotFound, TransportUnavailable
from taskmq.transport.types import Message
from taskmq_worker import Worker


@pytest.fixture
def app(url: str) -> Iterator[App]:
    app = App(Config(transport=url, events="null", concurrency=2, enqueue_timeout=2.0))

    @app.task(name="read")
    def read(number: int) -> str:
        with psycopg.connect(url) as connection:
            row = connection.execute("SELECT text FROM rows WHERE number = %s", [number]).fetchone()
        return "missing" if row is None else row[0]

    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE rows (number integer PRIMARY KEY, text text)")
    yield app
    app.close()


def exists(app: App, job_id: str) -> bool:
    return app.transport.get_jobs([job_id]) != [None]


def test_a_job_appears_with_the_commit_and_its_id_is_known_before(app: App, url: str) -> None:
    task = app.tasks["read"]
    with psycopg.connect(url) as connection:
        handle = task.apply_async((1,), connection=connection)
        with pytest.raises(JobNotFound):
            _ = handle.state
    assert handle.state is JobState.QUEUED


def test_a_rollback_leaves_no_job(app: App, url: str) -> None:
    with psycopg.connect(url) as connection:
        handle = app.tasks["read"].apply_async((1,), connection=connection)
        many = app.tasks["read"].map_async([(2,), (3,)], connection=connection)
        connection.rollback()
    assert not any(exists(app, each.id) for each in (handle, *many))
    assert app.transport.stats() == []


def test_a_savepoint_that_is_rolled_back_takes_only_its_own_jobs(app: App, url: str) -> None:
    task = app.tasks["read"]
    with psycopg.connect(url) as connection:
        kept = task.apply_async((1,), connection=connection)
        dropped = kept
        with pytest.raises(LookupError), connection.transaction():
            dropped = task.apply_async((2,), connection=connection)
            raise LookupError
    assert dropped.id != kept.id
    assert exists(app, kept.id)
    assert not exists(app, dropped.id)


def test_a_producer_that_is_killed_before_its_commit_leaves_no_job(app: App, url: str) -> None:
    code = f"""
import os, psycopg, sys
from taskmq import App, Config
app = App(Config(transport={url!r}, events="null"))
task = app.task(name="read")(lambda number: None)
connection = psycopg.connect({url!r})
print(task.apply_async((1,), connection=connection).id, flush=True)
sys.stdin.read()
"""
    producer = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with producer:
        assert producer.stdout is not None
        job_id = producer.stdout.readline().strip()
        os.kill(producer.pid, signal.SIGKILL)
        assert producer.wait(10) == -signal.SIGKILL
    assert len(job_id) > 10
    with psycopg.connect(url, autocommit=True) as connection:
        open_ = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            "AND state = 'idle in transaction'"
        )
        wait_until(lambda: connection.execute(open_).fetchone() == (0,))
    assert not exists(app, job_id)


def test_a_job_that_starts_at_once_sees_the_row_of_its_transaction(app: App, url: str) -> None:
    task = app.tasks["read"]
    handles = []
    with Worker(app) as worker, psycopg.connect(url) as connection:
        thread = threading.Thread(target=worker.run_until_idle, kwargs={"timeout": 30})
        thread.start()
        for number in range(30):
            with connection.transaction():
                handles.append(task.apply_async((number,), connection=connection))
                connection.execute("INSERT INTO rows VALUES (%s, 'there')", [number])
        assert {handle.get(timeout=10) for handle in handles} == {"there"}
        thread.join(30)


def test_a_sleeping_worker_is_woken_by_the_commit_and_not_before(app: App, url: str) -> None:
    transport = app.transport
    woken = threading.Event()
    assert transport.wait("w", ["default"], 0.05) is False

    def sleep() -> None:
        if transport.wait("w", ["default"], 20):
            woken.set()

    with psycopg.connect(url) as connection:
        sleeper = threading.Thread(target=sleep)
        sleeper.start()
        with psycopg.connect(url) as other:
            asleep = "SELECT 1 FROM taskmq_sleepers WHERE name = 'w'"
            wait_until(lambda: other.execute(asleep).fetchone())
        app.tasks["read"].apply_async((1,), connection=connection)
        assert not woken.wait(0.3)
    assert woken.wait(5)
    sleeper.join(5)


def test_any_kind_of_rows_and_cursors_will_do(app: App, url: str) -> None:
    factories: Any = {"row_factory": dict_row, "cursor_factory": psycopg.ClientCursor}
    with psycopg.connect(url, **factories) as connection:
        first = app.tasks["read"].apply_async((1,), key="k", connection=connection)
        again = app.tasks["read"].apply_async((1,), key="k", connection=connection)
        shown: Any = connection.execute("SHOW lock_timeout").fetchone()
    assert first.id == again.id
    assert shown == {"lock_timeout": "0"}


def test_an_asynchronous_connection_is_awaited(app: App, url: str) -> None:
    task = app.tasks["read"]

    async def produce() -> list[str]:
        async with await psycopg.AsyncConnection.connect(url) as connection:
            kept = await task.aapply_async((1,), connection=connection)
            keyed = await task.aapply_async((1,), key="k", connection=connection)
            with pytest.raises(ConfigError, match="await aapply_async"):
                task.apply_async((1,), connection=connection)
        async with await psycopg.AsyncConnection.connect(url) as connection:
            dropped = await task.aapply_async((2,), connection=connection)
            await connection.rollback()
        with psycopg.connect(url) as sync:
            other = await task.aapply_async((3,), connection=sync)
        return [kept.id, keyed.id, dropped.id, other.id]

    ids = asyncio.run(produce())
    assert [exists(app, each) for each in ids] == [True, True, False, True]


def test_a_key_of_an_open_transaction_holds_others_up_for_a_bounded_time(
    app: App, url: str
) -> None:
    task = app.tasks["read"]
    with psycopg.connect(url) as first, psycopg.connect(url) as second:
        owner = task.apply_async((1,), key="invoice-7", connection=first)
        with pytest.raises(TransportUnavailable, match="open transaction.*'invoice-7'") as caught:
            task.apply_async((1,), key="invoice-7", connection=second)
        assert "End that transaction" in str(caught.value)
        second.rollback()
        first.commit()
        assert task.apply_async((1,), key="invoice-7", connection=second).id == owner.id


@pytest.mark.parametrize("option", ["", "?pooler=transaction"])
def test_a_call_that_waits_for_a_key_in_vain_names_it_and_says_what_to_do(
    url: str, option: str
) -> None:
    # Behind a pooler nothing limits the wait on the server: the caller gives up by itself.
    config = Config(transport=url + option, events="null", enqueue_timeout=1.0)
    with App(config) as app, psycopg.connect(url) as connection:
        task = app.task(name="t")(lambda number: None)
        task.apply_async((0,))
        owner = task.apply_async((1,), key="invoice-7", connection=connection)
        start = time.monotonic()
        with pytest.raises(TransportUnavailable, match="open transaction.*'invoice-7'") as caught:
            task.apply_async((1,), key="invoice-7")
        assert time.monotonic() - start < 3 * PATIENCE
        for part in ("127.0.0.1", "End that transaction", "taskmq doctor", "enqueue again"):
            assert part in str(caught.value)
        connection.commit()
        assert task.apply_async((1,), key="invoice-7").id == owner.id


def test_a_batch_that_waits_for_a_key_names_its_keys(url: str) -> None:
    with App(Config(transport=url, events="null", enqueue_timeout=1.0)) as app:
        app.transport.ping()
        batch = [
            Message(id=f"b{n}", task="t", queue="q", envelope=b"x", key=f"k{n}") for n in range(9)
        ]
        with psycopg.connect(url) as connection:
            app.transport.enqueue_in(connection, [msgspec.structs.replace(batch[4], id="a")])
            with pytest.raises(TransportUnavailable, match="one of the keys 'k0', 'k1', 'k2' …"):
                app.transport.enqueue(batch)


def test_a_locked_table_is_not_taken_for_a_key(url: str) -> None:
    with App(Config(transport=url, events="null", enqueue_timeout=1.0)) as app:
        task = app.task(name="t")(lambda number: None)
        task.apply_async((0,))
        with psycopg.connect(url) as connection, psycopg.connect(url) as other:
            connection.execute("LOCK TABLE taskmq_jobs IN ACCESS EXCLUSIVE MODE")
            for given in (None, other):
                with pytest.raises(TransportUnavailable, match="somebody holds a lock") as caught:
                    task.apply_async((1,), key="k", connection=given)
                assert "has enqueued a job with the key 'k', and has neither" not in str(
                    caught.value
                )


def test_a_serialisation_failure_reaches_the_callers_own_retries(app: App, url: str) -> None:
    task = app.tasks["read"]
    with psycopg.connect(url) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT 1 FROM rows")
        task.apply_async((1,), key="k")
        with pytest.raises(psycopg.errors.SerializationFailure):
            task.apply_async((1,), key="k", connection=connection)
        connection.rollback()


def test_an_aborted_transaction_and_a_lost_connection_say_so(app: App, url: str) -> None:
    task = app.tasks["read"]
    with psycopg.connect(url) as connection:
        with pytest.raises(psycopg.errors.DivisionByZero):
            connection.execute("SELECT 1/0")
        with pytest.raises(TransportError, match="aborted"):
            task.apply_async((1,), connection=connection)
        connection.rollback()
    with pytest.raises(TransportUnavailable, match="lost"):
        task.apply_async((1,), connection=connection)


def test_what_is_no_psycopg_connection_is_refused_with_the_way_to_one(app: App) -> None:
    with pytest.raises(ConfigError, match=r"driver_connection.*ensure_connection"):
        app.tasks["read"].apply_async((1,), connection=object())


def test_another_transport_has_no_transaction_to_share() -> None:
    with App(Config(transport="memory://", events="null")) as app:
        task = app.task(name="read")(lambda number: None)
        with pytest.raises(ConfigError, match=r"postgresql://.*memory://"):
            task.apply_async((1,), connection=object())
