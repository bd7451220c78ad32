"""What waiting costs: connections, commands, and how soon a waiter hears."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from support.redis_servers import RedisServer
from support.waiting import wait_until
from taskmq import App, Config, TaskHandle
from taskmq.transport.types import Message
from taskmq_redis import RedisTransport
from taskmq_redis.waiting import BLOCK
from taskmq_worker import Worker

MOST = 2 * 8 + 2
"""For ?connections=8: so many for scripts and for the rest, the listener's, the worker's blocked one."""


def make_app(url: str) -> App:
    app = App(Config(transport=url, events="null", concurrency=4))

    @app.task(name="double")
    def double(number: int) -> int:
        return 2 * number

    return app


def blocked(server: RedisServer) -> list[dict[str, str]]:
    return [each for each in server.connections() if each["cmd"] == "blpop"]


def commands(server: RedisServer) -> int:
    return int(server.ask("INFO", "stats")["total_commands_processed"])


@pytest.mark.parametrize("queues", [["one"], [f"q{number}" for number in range(150)]])
def test_an_idle_worker_has_one_blocked_connection_and_asks_for_next_to_nothing(
    server: RedisServer, queues: list[str]
) -> None:
    app = make_app(server.url)
    with Worker(app, queues=queues):
        wait_until(lambda: len(blocked(server)) == 1)
        before = commands(server)
        time.sleep(4)  # the time that is looked at
        # Looks every two seconds, heartbeats, one pass of maintenance a second; and our own INFO.
        assert commands(server) - before < 100
        assert len(blocked(server)) == 1
        assert len(server.connections()) <= 8
    wait_until(lambda: not blocked(server))
    app.close()
    wait_until(lambda: not server.connections())


def test_one_enqueue_wakes_one_of_many_waiting_workers(server: RedisServer) -> None:
    transports = [RedisTransport.from_url(server.url) for _ in range(6)]
    woken: list[int] = []

    def wait(number: int) -> None:
        if transports[number].wait(f"worker-{number}", ["q"], 1.5):
            woken.append(number)

    threads = [threading.Thread(target=wait, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(blocked(server)) == 6)
    producer = RedisTransport.from_url(server.url)
    producer.enqueue([Message(id="a", task="t", queue="q", envelope=b"x")])
    for thread in threads:
        thread.join(10)
    assert len(woken) == 1
    for transport in (*transports, producer):
        transport.close()


def test_wake_and_close_end_a_wait_at_once(url: str) -> None:
    transport = RedisTransport.from_url(url)
    ends: list[Callable[[], None]] = [partial(transport.wake, "me"), transport.close]
    for end in ends:
        waits = ThreadPoolExecutor(1)
        waiting = waits.submit(transport.wait, "me", ["q"], 30)
        start = time.monotonic()
        time.sleep(0.05)  # into the wait; before it, it would end it as well
        end()
        waiting.result(timeout=5)
        assert time.monotonic() - start < 3
        waits.shutdown()


def test_a_token_that_was_lost_costs_two_seconds_at_most(server: RedisServer) -> None:
    app = make_app(server.url)
    with Worker(app):
        wait_until(lambda: blocked(server))
        stop = threading.Event()

        def steal() -> None:
            while not stop.is_set():
                for key in server.ask("KEYS", "taskmq:t:*"):
                    server.ask("DEL", key)

        # The server hands tokens to the waiter first; whoever enqueues meanwhile loses some to us.
        thief = threading.Thread(target=steal)
        thief.start()
        for number in range(3):
            start = time.monotonic()
            assert app.tasks["double"].delay(number).get(timeout=10) == 2 * number
            assert time.monotonic() - start < 4
        stop.set()
        thief.join(10)
    app.close()


@pytest.mark.scaled
def test_many_threads_that_wait_for_results_share_few_connections(
    server: RedisServer, soak: bool
) -> None:
    gets = 10_000 if soak else 400
    app = make_app(f"{server.url}?connections=8")
    task = app.tasks["double"]
    most = 0
    stop = threading.Event()

    def count() -> None:
        nonlocal most
        while not stop.is_set():
            most = max(most, len(server.connections()))

    never = task.apply_async((0,), queue="nobody")

    def get(number: int) -> int:
        if number % 2:
            with pytest.raises(TimeoutError):
                never.get(timeout=0.01)
            return 0
        handle: TaskHandle[int] = task.delay(number)
        return handle.get(timeout=20)

    counter = threading.Thread(target=count)
    counter.start()
    with Worker(app), ThreadPoolExecutor(20) as pool:
        results = list(pool.map(get, range(gets)))
    stop.set()
    counter.join(10)
    assert results == [0 if number % 2 else 2 * number for number in range(gets)]
    assert most <= MOST
    app.close()
    wait_until(lambda: not server.connections())


@pytest.mark.scaled
def test_a_thousand_coroutines_that_wait_share_few_connections(
    server: RedisServer, soak: bool
) -> None:
    half = 5_000 if soak else 200
    app = make_app(f"{server.url}?connections=8")
    task = app.tasks["double"]

    async def get(handle: TaskHandle[int], timeout: float) -> int | None:
        try:
            return await handle.aget(timeout=timeout)
        except TimeoutError:
            return None

    async def all_of_them() -> tuple[list[int | None], int]:
        handles = [task.apply_async((number,)) for number in range(half)]
        never = task.apply_async((0,), queue="nobody")
        waits = [get(handle, 30) for handle in handles]
        waits += [get(never, 0.05) for _ in range(half)]
        gathered = asyncio.gather(*waits)
        most = 0
        while not gathered.done():
            most = max(most, len(server.connections()))
            await asyncio.sleep(0.01)
        return await gathered, most

    with Worker(app):
        results, most = asyncio.run(all_of_them())
    assert results == [2 * number for number in range(half)] + [None] * half
    assert most <= MOST
    app.close()


def test_a_get_hears_of_the_end_without_asking(server: RedisServer) -> None:
    app = make_app(server.url)
    gate = threading.Event()

    @app.task
    def slow() -> int:
        assert gate.wait(20)
        return 1

    handle = slow.delay()
    with Worker(app), ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(handle.get, 20)
        # The worker's own and the listener's.
        wait_until(lambda: len(blocked(server)) == 2)
        start = time.monotonic()
        gate.set()
        assert waiting.result(timeout=10) == 1
        assert time.monotonic() - start < 1.5
    app.close()
    assert BLOCK > 10
