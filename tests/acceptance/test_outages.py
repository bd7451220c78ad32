"""A transport that goes away, and replies that get lost, make nothing run twice and lose nothing."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.backends import ALL, Backends
from support.cut_off import MUTATING, CutOffTransport
from support.waiting import wait_until
from taskmq import App, Config, JobState
from taskmq.transport import Transport
from taskmq_worker import Worker

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(params=ALL)
def store(
    request: pytest.FixtureRequest, tmp_path: Path, backends: Backends
) -> Iterator[Transport]:
    with App(Config(transport=backends.url(request.param, tmp_path), events="null")) as app:
        yield app.transport


@contextmanager
def running(app: App, **options: Any) -> Iterator[Worker]:
    with Worker(app, **options) as worker:
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            yield worker
        finally:
            worker.stop()
            thread.join(30)
            assert not thread.is_alive()


def test_an_outage_longer_than_the_lease_makes_nothing_run_twice(store: Transport) -> None:
    runs: Counter[int] = Counter()
    lock = threading.Lock()
    gate = threading.Event()
    settings: dict[str, Any] = {"lease": 2.0, "heartbeat_interval": 0.5, "events": "null"}
    transports = [CutOffTransport(store), CutOffTransport(store)]
    apps = [App(Config(transport=transport, **settings)) for transport in transports]

    for app in apps:

        @app.task(name="job")
        def job(number: int) -> int:
            with lock:
                runs[number] += 1
            gate.wait(90)
            return number

    producer = App(Config(transport=store, events="null"))
    handles = [producer.send("job", (number,)) for number in range(6)]
    with running(apps[0], concurrency=4), running(apps[1], concurrency=4):
        wait_until(lambda: sum(runs.values()) == 6, timeout=10)
        for transport in transports:
            transport.faults.away.set()
        time.sleep(4.2)  # the outage itself: longer than two leases
        gate.set()  # the jobs end while nobody can be told
        time.sleep(0.2)
        for transport in transports:
            transport.faults.away.clear()
        wait_until(lambda: all(handle.state.is_final for handle in handles), timeout=20)
    assert [handle.state for handle in handles] == [JobState.SUCCEEDED] * 6
    assert runs == Counter(range(6))
    assert {handle.info.deliveries for handle in handles} == {1}


@pytest.mark.parametrize("method", MUTATING)
def test_each_call_repeated_after_a_lost_reply_changes_nothing_more(
    store: Transport, method: str
) -> None:
    runs: Counter[int] = Counter()
    lock = threading.Lock()
    faulty = CutOffTransport(store)
    faulty.faults.lose_reply = lambda name, count: name == method and count % 2 == 1
    with App(
        Config(transport=faulty, lease=3, heartbeat_interval=0.3, events="null", enqueue_timeout=5)
    ) as app:

        @app.task(name="job")
        def job(number: int) -> int:
            with lock:
                runs[number] += 1
            return number

        producer = App(Config(transport=store, events="null"))
        with running(app, concurrency=3):
            handles = [producer.send("job", (number,)) for number in range(40)]
            wait_until(lambda: all(handle.state.is_final for handle in handles), timeout=40)
    assert [handle.state for handle in handles] == [JobState.SUCCEEDED] * 40
    assert runs == Counter(range(40))
    if method in {"reserve", "settle"}:
        assert faulty.faults.lost_replies[method] > 0
