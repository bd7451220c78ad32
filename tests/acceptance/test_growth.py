"""Faults of area L: everything that grows has an owner that shrinks it."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.backends import ALL, NETWORK, Backends
from taskmq import App, Config, JobState, Retry
from taskmq.clock import FakeClock
from taskmq.transport import Transport
from taskmq.transport.memory import MemoryTransport
from taskmq.transport.sqlite import SqliteTransport
from taskmq.transport.types import ReapRequest
from taskmq_worker import Worker

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Iterator[Transport]:
    transport: Transport = (
        MemoryTransport(clock=clock)
        if request.param == "memory"
        else SqliteTransport(str(tmp_path / "q.db"), clock=clock)
    )
    yield transport
    transport.close()


def reap_all(app: App) -> None:
    while app.transport.reap(ReapRequest(retention=app.config.retention())).more:
        pass


def test_each_class_of_finished_things_ends_with_its_time(
    store: Transport, clock: FakeClock
) -> None:
    with App(Config(transport=store, events="null")) as app:

        @app.task(name="ok")
        def ok() -> int:
            return 1

        @app.task(name="bad")
        def bad() -> None:
            raise ValueError

        goods = ok.map_async([()] * 50)
        keyed = ok.apply_async(key="once")
        bads = bad.map_async([()] * 20)
        with Worker(app) as worker:
            worker.run_until_idle(timeout=20)
        assert ok.apply_async(key="once").id == keyed.id

        clock.advance(app.config.job_ttl + 1)
        reap_all(app)
        assert app.transport.get_jobs([handle.id for handle in goods]) == [None] * 50
        assert all(
            app.transport.get_jobs([handle.id for handle in bads])
        )  # their dead letters live
        assert len(app.transport.list_dead(limit=100).letters) == 20
        assert ok.apply_async(key="once").id == keyed.id  # the key outlives the record

        clock.advance(app.config.idempotency_ttl)
        again = ok.apply_async(key="once")
        assert again.id != keyed.id
        again.revoke()

        clock.advance(app.config.dead_letter_ttl or 0)
        reap_all(app)
        reap_all(app)
        assert app.transport.list_dead().letters == []
        assert app.transport.list_jobs().jobs == []


def test_dead_letters_are_capped(store: Transport) -> None:
    with App(Config(transport=store, events="null", dead_letter_max=10)) as app:

        @app.task(name="bad")
        def bad() -> None:
            raise ValueError

        handles = bad.map_async([()] * 30)
        with Worker(app) as worker:
            worker.run_until_idle(timeout=20)
        reap_all(app)
        letters = app.transport.list_dead().letters
        assert len(letters) == 10
        dead = {letter.id for letter in letters}
        assert {handle.state for handle in handles if handle.id in dead} == {JobState.FAILED}


def test_the_memory_transport_keeps_a_bounded_number_of_finished_jobs() -> None:
    with App(Config(events="null")) as app:

        @app.task(name="ok")
        def ok() -> int:
            return 1

        for _ in range(3):
            ok.map_async([()] * 5000)
            with Worker(app, concurrency=4) as worker:
                worker.run_until_idle(timeout=30)
        reap_all(app)
        page = app.transport.list_jobs(limit=20_000)
        assert len(page.jobs) <= 10_000


@pytest.mark.parametrize(
    "scheme",
    ["memory", "sqlite", *(pytest.param(name, marks=pytest.mark.soak) for name in NETWORK)],
)
def test_memory_stays_flat_over_many_jobs(
    scheme: str, tmp_path: Path, request: pytest.FixtureRequest, backends: Backends
) -> None:
    rounds, size = (40, 5000) if request.config.getoption("--soak") else (8, 2500)
    url = backends.url(scheme, tmp_path)
    process = psutil.Process(os.getpid())
    seen: list[int] = []
    with App(Config(transport=url, events="null", job_ttl=0.2, max_finished_jobs=1000)) as app:

        @app.task(name="mixed", retry=Retry(max_attempts=2, base=0.001, jitter=False))
        def mixed(number: int) -> int:
            if number % 20 == 0:
                raise ValueError(number)
            return number

        for _ in range(rounds):
            mixed.map_async([(n,) for n in range(size)])
            with Worker(app, concurrency=4) as worker:
                worker.run_until_idle(timeout=60)
            app.transport.purge_dead()
            reap_all(app)
            gc.collect()
            seen.append(process.memory_info().rss)
    warm = seen[len(seen) // 2]
    jobs = size * (len(seen) - 1 - len(seen) // 2)
    growth = (seen[-1] - warm) / 1_000_000
    assert growth < 4 + jobs / 100_000, [value // 1_000_000 for value in seen]


def test_a_failed_job_keeps_no_argument_alive() -> None:
    class Big:
        pass

    seen: list[weakref.ref[Any]] = []
    with App(Config(events="null")) as app:

        @app.task(name="bad")
        def bad(payload: dict[str, int]) -> None:
            big = Big()
            seen.append(weakref.ref(big))
            raise ValueError(str(payload))

        handle = bad.delay({"x": 1})
        with Worker(app) as worker:
            worker.run_until_idle(timeout=10)
            gc.collect()
            assert seen[0]() is None
        assert handle.state is JobState.FAILED


@pytest.mark.parametrize("scheme", ALL)
def test_five_thousand_queues_are_served(
    scheme: str, tmp_path: Path, request: pytest.FixtureRequest, backends: Backends
) -> None:
    count = 5000 if request.config.getoption("--soak") else 600
    url = backends.url(scheme, tmp_path)
    names = [f"queue-{number}" for number in range(count)]
    ran: set[str] = set()
    with App(Config(transport=url, events="null")) as app:

        @app.task(name="job")
        def job(name: str) -> None:
            ran.add(name)

        for name in names:
            job.apply_async((name,), queue=name)
        with Worker(app, queues=names, concurrency=4) as worker:
            worker.run_until_idle(timeout=60)
    assert ran == set(names)
