"""Servers that are away, restarted, frozen, full, read-only, or that have forgotten our scripts."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from support.backends import need
from support.load import Load
from support.proxy import Proxy, proxy_before
from support.redis_servers import RedisServer, redis_server
from support.waiting import wait_until
from taskmq import App, Config, JobState
from taskmq.errors import TransportUnavailable
from taskmq.transport.types import Message
from taskmq_redis import RedisTransport
from taskmq_worker import Worker

# A server that was started again is a process that was not there before the test.
pytestmark = [pytest.mark.timeout(120), pytest.mark.leaks]
SOON = 10.0
"""Within so many seconds work goes on; five, on a machine that does nothing else."""


@pytest.fixture
def proxy(server: RedisServer) -> Iterator[Proxy]:
    with proxy_before(server.port) as proxy:
        yield proxy


def through(proxy: Proxy) -> str:
    return f"redis://127.0.0.1:{proxy.port}/0"


def message(job_id: str, *, size: int = 1) -> Message:
    return Message(id=job_id, task="t", queue="q", envelope=b"x" * size)


# Away ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["away", "frozen"])
def test_enqueue_without_a_server_ends_in_time_every_time(server: RedisServer, state: str) -> None:
    app = App(Config(transport=server.url, events="null", enqueue_timeout=0.5))

    @app.task
    def work() -> None: ...

    work.delay()
    server.kill() if state == "away" else server.freeze()
    for _ in range(4):
        start = time.monotonic()
        with pytest.raises(TransportUnavailable, match="can't be reached"):
            work.delay()
        assert time.monotonic() - start < 2.5
    app.close()


def test_other_coroutines_go_on_while_one_waits_for_a_server_that_is_away(
    server: RedisServer,
) -> None:
    app = App(Config(transport=server.url, events="null", enqueue_timeout=0.5))

    @app.task
    def work() -> None: ...

    server.kill()
    turns = 0

    async def call() -> None:
        nonlocal turns
        waiting = asyncio.ensure_future(work.adelay())
        while not waiting.done():
            turns += 1
            await asyncio.sleep(0.01)
        with pytest.raises(TransportUnavailable):
            await waiting

    asyncio.run(call())
    assert turns > 10
    app.close()


def test_a_call_begun_before_the_server_is_back_waits_for_it(server: RedisServer) -> None:
    transport = RedisTransport.from_url(server.url, timeout=20)
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


# Restarts -----------------------------------------------------------------------------------------


def test_an_idle_producer_s_first_calls_after_a_restart_are_stored_or_raise(
    server: RedisServer,
) -> None:
    transport = RedisTransport.from_url(server.url, timeout=10)
    transport.enqueue([message("first")])
    returned = ["first"]
    for turn in range(6):
        # Killed, the server keeps what it has handed to the system for its append-only file.
        server.restart(kill=bool(turn % 2))
        for number in range(11):
            job_id = f"{turn}-{number}"
            transport.enqueue([message(job_id)])
            returned.append(job_id)
    assert None not in transport.get_jobs(returned)
    transport.close()


def test_restarts_under_load_lose_nothing_that_the_append_only_file_kept(
    server: RedisServer,
) -> None:
    load = Load(server.url)
    with load.running():
        load.wait_for_more()
        for kill in (False, True):
            server.restart(kill=kill)
            assert load.wait_for_more() < SOON
    # What was under way at the restart may have run once more, and nothing else.
    assert sum(load.ran.values()) - len(load.ran) <= 2 * 50
    load.app.close()


def test_a_server_that_comes_back_empty_is_worked_with_at_once() -> None:
    with redis_server() as server:
        load = Load(server.url)
        with load.running(lossless=False):
            load.wait_for_more()
            server.restart(kill=True)
            assert load.wait_for_more() < SOON
            known = len(load.accepted)
            load.wait_for_more()
        # Whatever was accepted since then has run or is still there; what it had forgotten is gone.
        assert load.accepted[known].state in (JobState.SUCCEEDED, JobState.QUEUED)
        load.app.close()


def test_a_job_that_runs_through_a_restart_is_settled_once(server: RedisServer) -> None:
    app = App(Config(transport=server.url, events="null", concurrency=4, enqueue_timeout=10))
    gate, starts = threading.Event(), list[int]()

    @app.task
    def work(number: int) -> int:
        starts.append(number)
        assert gate.wait(30)
        return number

    handles = [work.delay(number) for number in range(4)]
    with Worker(app):
        wait_until(lambda: len(starts) == 4)
        server.restart(kill=True)
        gate.set()
        assert [handle.get(timeout=20) for handle in handles] == [0, 1, 2, 3]
    assert sorted(starts) == [0, 1, 2, 3]
    app.close()


# Connections --------------------------------------------------------------------------------------


def test_a_worker_is_never_deaf_however_connections_are_cut(proxy: Proxy) -> None:
    load = Load(through(proxy), pause=0.02)
    with load.running():
        load.wait_for_more(10)
        for _ in range(5):
            proxy.cut()
            time.sleep(0.2)  # the rhythm of the fault, not a wait for something
        assert load.wait_for_more(20) < SOON
        for _ in range(3):
            proxy.refuse()
            proxy.accept()
            assert load.wait_for_more(20) < SOON
    load.app.close()


def test_an_idle_worker_whose_connection_died_in_silence_hears_of_jobs_all_the_same(
    server: RedisServer, proxy: Proxy
) -> None:
    worker_app = App(Config(transport=through(proxy), events="null", enqueue_timeout=1))
    app = App(Config(transport=server.url, events="null"))
    for each in (worker_app, app):

        @each.task(name="double")
        def double(number: int) -> int:
            return 2 * number

    with Worker(worker_app):
        assert app.tasks["double"].delay(1).get(timeout=10) == 2
        wait_until(lambda: any(each["cmd"] == "blpop" for each in server.connections()))
        proxy.abandon()
        assert app.tasks["double"].delay(2).get(timeout=SOON) == 4
    worker_app.close()
    app.close()


def test_connections_killed_in_a_stream_lose_nothing(server: RedisServer) -> None:
    load = Load(server.url)
    with load.running():
        load.wait_for_more(20)
        for _ in range(20):
            server.cut()
            load.wait_for_more(2)
        assert load.wait_for_more() < SOON
    load.app.close()


def test_a_frozen_server_costs_only_its_own_time(server: RedisServer) -> None:
    load = Load(server.url, timeout=1)
    with load.running():
        load.wait_for_more()
        server.freeze()
        wait_until(lambda: load.refused, 10, what="a call to be refused")
        server.thaw()
        assert load.wait_for_more() < SOON
    assert load.longest < 5
    load.app.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("lua", ["on", "off"])
def test_forked_children_enqueue_on_connections_of_their_own(server: RedisServer, lua: str) -> None:
    transport = RedisTransport.from_url(f"{server.url}?lua={lua}", timeout=10)
    # Modules are imported by now: a fork in the middle of an import can't end well.
    transport.enqueue([message("first")])
    stop = threading.Event()

    def busy() -> None:
        # Holds the pool's locks now and then, also at the moment of a fork.
        number = 0
        while not stop.is_set():
            number += 1
            transport.enqueue([message(f"parent-{number}")])

    threads = [threading.Thread(target=busy) for _ in range(2)]
    for thread in threads:
        thread.start()
    children: list[int] = []
    for child in range(8):
        pid = os.fork()
        if not pid:
            status = 1
            try:
                for number in range(5):
                    job_id = f"{child}-{number}"
                    transport.enqueue([message(job_id)])
                    record = transport.get_jobs([job_id])[0]
                    assert record is not None
                    assert record.id == job_id
                transport.wait("me", ["q"], 0.01)
                status = 0
            finally:
                os._exit(status)
        children.append(pid)
    statuses = [os.waitpid(pid, 0)[1] for pid in children]
    stop.set()
    for thread in threads:
        thread.join(20)
    assert statuses == [0] * 8
    ids = [f"{child}-{number}" for child in range(8) for number in range(5)]
    assert None not in transport.get_jobs(ids)
    transport.close()


# Moods --------------------------------------------------------------------------------------------


def test_scripts_that_were_flushed_are_loaded_again_under_load(server: RedisServer) -> None:
    load = Load(server.url)
    with load.running():
        for _ in range(10):
            load.wait_for_more(10)
            server.ask("SCRIPT", "FLUSH")
    assert not load.refused
    load.app.close()


def test_a_server_that_became_a_replica_is_waited_for(server: RedisServer) -> None:
    # A master that never answers, so that the data stay as they are.
    with redis_server({"requirepass": "unknown"}, login=("default", "unknown")) as other:
        load = Load(server.url, timeout=1)
        with load.running():
            for _ in range(2):
                load.wait_for_more()
                before = len(load.refused)
                server.ask("REPLICAOF", "127.0.0.1", other.port)
                wait_until(partial(_has_more, load.refused, before), 20)
                server.ask("REPLICAOF", "NO", "ONE")
                assert load.wait_for_more(10) < SOON
        load.app.close()


def _has_more(items: list[Any], count: int) -> bool:
    return len(items) > count


def test_a_full_server_refuses_jobs_at_once_and_is_drained_without_a_restart() -> None:
    need("redis-full")
    with redis_server({"maxmemory": "12mb", "maxmemory-policy": "noeviction"}) as server:
        app = App(
            Config(
                transport=server.url, events="null", concurrency=4, enqueue_timeout=20, job_ttl=0.2
            )
        )

        @app.task
        def swallow(data: bytes) -> int:
            return len(data)

        accepted = 0
        with pytest.raises(TransportUnavailable, match="full") as caught:
            while accepted < 10_000:
                swallow.delay(b"x" * 10_000)
                accepted += 1
        assert accepted > 100
        assert "nothing was enqueued" in str(caught.value)
        start = time.monotonic()
        with pytest.raises(TransportUnavailable, match="full"):
            swallow.delay(b"x" * 10_000)
        assert time.monotonic() - start < 2
        with Worker(app) as worker:
            worker.run_until_idle(timeout=60)

            def again() -> Any:
                try:
                    return swallow.delay(b"again")
                except TransportUnavailable:
                    return None

            # Records end by their time to live, which the server applies little by little.
            assert wait_until(again, 30, 0.1).get(timeout=10) == 5
        app.close()
