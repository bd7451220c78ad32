"""Limits over all workers: rates and concurrency keys hold, survive deaths, and hold nobody else up."""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from support.backends import ALL, DURABLE, Backends
from support.stepped_clock import ENV as CLOCK
from support.stepped_clock import step
from support.waiting import wait_until
from support.workers import Fleet, fleet
from taskmq import App, Config, ConfigError, JobState, Retry
from taskmq.transport.memory import MemoryTransport
from taskmq.transport.types import Ack, Defer, QueueShare, ReserveRequest, Settlement, SettleReply
from taskmq_worker import Worker

pytestmark = pytest.mark.timeout(120)


class Counting(MemoryTransport):
    """Counts what is asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.deferrals: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()

    def settle(self, worker: str, settlements: Sequence[Settlement]) -> SettleReply:
        for settlement in settlements:
            if isinstance(settlement, Defer):
                self.deferrals[settlement.receipt] += 1
        self.calls["settle"] += 1
        return super().settle(worker, settlements)

    def take_tokens(self, wishes: Any) -> list[float]:
        self.calls["take_tokens"] += 1
        self.calls["wishes"] += len(wishes)
        return super().take_tokens(wishes)

    def reserve(self, request: ReserveRequest) -> Any:
        self.calls["reserve"] += 1
        return super().reserve(request)


@pytest.fixture(params=DURABLE)
def workers(request: pytest.FixtureRequest, tmp_path: Path, backends: Backends) -> Iterator[Fleet]:
    url = backends.url(request.param, tmp_path)
    with fleet(tmp_path, url, lease=2, heartbeat_interval=0.5, shutdown_timeout=5) as started:
        yield started


@pytest.fixture
def app(workers: Fleet) -> Iterator[App]:
    with App(Config(transport=workers.url, events="null")) as made:
        yield made


def most_within(instants: list[float], seconds: float) -> int:
    """The most that any window of this length holds."""
    ordered = sorted(instants)
    return max(bisect_right(ordered, at + seconds) - n for n, at in enumerate(ordered))


@pytest.mark.parametrize("scope", ["cluster", "worker"])
def test_a_rate_limited_flood_holds_up_no_other_task(scope: Any) -> None:
    transport = Counting()
    app = App(Config(transport=transport, events="null", prefetch=8, concurrency=4))
    starts: list[float] = []
    others: list[float] = []

    @app.task(rate_limit="5/s", rate_scope=scope)
    def limited() -> None:
        starts.append(time.monotonic())

    @app.task
    def free() -> None:
        others.append(time.monotonic())

    waiting = limited.map_async([()] * 1000)
    free.map_async([()] * 100)
    begun = time.monotonic()
    with Worker(app):
        wait_until(lambda: len(others) == 100, timeout=5)
        wait_until(lambda: len(starts) >= 10, timeout=20)
    # Counted from one origin: a start may come late on a slow machine, but never early.
    assert all(at - begun >= (number - 1) / 5 for number, at in enumerate(starts))
    # What came late may stand close to what follows: four more than the rate allows.
    assert most_within(starts, 1.0) <= 10
    # Each job was deferred once: it cost one place in one batch, and no delivery.
    assert sum(transport.deferrals.values()) <= 1000 + len(starts)
    assert {handle.info.deliveries for handle in waiting[20:40]} == {0}
    if scope == "cluster":
        assert transport.calls["take_tokens"] <= transport.calls["reserve"]


def test_each_attempt_takes_a_turn_and_unlimited_work_asks_for_none() -> None:
    transport = Counting()
    app = App(Config(transport=transport, events="null"))
    tries: list[float] = []

    @app.task(
        rate_limit="10/s", rate_scope="cluster", retry=Retry(max_attempts=4, base=0.0, jitter=False)
    )
    def fails() -> None:
        tries.append(time.monotonic())
        raise ValueError("again")

    @app.task
    def free() -> None: ...

    free.map_async([()] * 50)
    with Worker(app) as worker:
        worker.run_until_idle(timeout=20)
        assert transport.calls["take_tokens"] == 0
        begun = time.monotonic()
        job = fails.delay()
        worker.run_until_idle(timeout=20)
    assert job.state is JobState.FAILED
    assert len(tries) == 4
    assert tries[-1] - begun > 0.25
    assert job.info.deliveries == 1


def test_a_transport_without_rates_is_refused_at_the_start() -> None:
    class Plain(MemoryTransport):
        supports_rates = False

    app = App(Config(transport=Plain(), events="null"))
    app.task(name="limited", rate_limit="1/s", rate_scope="cluster")(lambda: None)
    with pytest.raises(ConfigError, match="supports_rates"):
        Worker(app)


@pytest.mark.scaled
def test_c062_the_rate_holds_over_four_workers_one_of_which_is_killed(
    app: App, workers: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, soak: bool
) -> None:
    count = 600 if soak else 120
    for _ in range(3):
        workers.start(concurrency=4)
    if not workers.url.startswith("sqlite:"):
        # The fourth is on another host, whose clock is wrong.
        clock = tmp_path / "clock-offset"
        step(clock, 3.0)
        monkeypatch.setenv(CLOCK, str(clock))
    workers.start(concurrency=4)
    wait_until(lambda: len(app.transport.list_workers()) == 4, timeout=30)
    begun = time.monotonic()
    handles = [app.send("limited", (f"job-{n}",)) for n in range(count)]
    workers.wait_started(count // 3, timeout=40)
    workers.workers[0].kill()
    wait_until(lambda: all(h.state.is_final for h in handles), timeout=60, interval=0.1)

    starts = [effect.at for effect in workers.effects.all("start")]
    assert {handle.state for handle in handles} == {JobState.SUCCEEDED}
    # 20 a second, counted from one origin: a start may come late on a slow machine, but never early.
    assert all(at - begun >= (number - 2) / 20 for number, at in enumerate(sorted(starts)))
    # What came late may stand close to what follows; a limit for each worker would allow 80.
    assert most_within(starts, 1.0) <= 20 + 15
    # The killed worker's jobs come back after their lease; the others lose no time by it.
    assert max(starts) - begun < count / 20 + 2 + 15
    by_pid = Counter(effect.pid for effect in workers.effects.all("start"))
    assert len(by_pid) >= 3


def test_slots_of_killed_holders_come_back_and_the_limit_holds_all_the_time(
    app: App, workers: Fleet
) -> None:
    # The producer renders the key, so it must know the task and not only its name.
    @app.task(name="keyed", concurrency_key="key:{key}", concurrency_limit=2)
    def keyed(label: str, key: str, seconds: float = 0.0) -> str:
        return label

    hogs = [keyed.delay(f"hog-{n}", "a", 30.0) for n in range(2)]
    victims = [workers.start(concurrency=1, prefetch=0) for _ in range(2)]
    workers.wait_started(2)
    queued = [keyed.delay(f"job-{n}", "a", 0.1) for n in range(6)]
    other = keyed.delay("other", "b")
    survivors = [workers.start(concurrency=4) for _ in range(2)]
    assert other.get(timeout=20) == "other"
    assert len(workers.effects.all("start")) == 3
    for handle in hogs:
        handle.revoke()
    killed_at = time.monotonic()
    for victim in victims:
        victim.kill()
    wait_until(lambda: all(h.state is JobState.SUCCEEDED for h in queued), timeout=40)
    first = min(e.at for e in workers.effects.all("start") if e.label.startswith("job"))
    assert first - killed_at < 2 + 15  # the lease, a reaper's election and its next pass
    events = sorted(
        (effect.at, 1 if effect.what == "start" else -1)
        for effect in workers.effects.all()
        if effect.label.startswith("job")
    )
    running = most = 0
    for _, change in events:
        running += change
        most = max(most, running)
    assert most <= 2
    assert [s for s in app.transport.stats() if s.blocked or s.in_flight or s.pending] == []
    for worker in survivors:
        assert worker.terminate() == 0


def test_one_tenants_flood_behind_its_key_starves_no_other_tenant() -> None:
    app = App(Config(events="null", concurrency=4))
    started: dict[str, float] = {}
    hold = threading.Event()

    @app.task(concurrency_key="tenant:{tenant}", concurrency_limit=2)
    def work(tenant: str, n: int) -> None:
        started[f"{tenant}-{n}"] = time.monotonic()
        if tenant == "A":
            hold.wait(0.05)

    work.map_async([("A", n) for n in range(5000)])
    with Worker(app):
        wait_until(lambda: len(started) >= 10, timeout=20)
        sent_at = time.monotonic()
        handles = work.map_async([(tenant, n) for tenant in "BCD" for n in range(10)])
        wait_until(lambda: all(handle.state.is_final for handle in handles), timeout=20)
        others = [at for label, at in started.items() if label[0] != "A"]
        assert len(others) == 30
        # Behind A's 5,000 it would be two minutes.
        assert max(others) - sent_at < 10
        hold.set()


@pytest.mark.parametrize("kind", ALL)
def test_five_thousand_blocked_jobs_cost_the_fetch_nothing(
    kind: str, tmp_path: Path, backends: Backends
) -> None:
    url = backends.url(kind, tmp_path)
    with App(Config(transport=url, events="null")) as app:

        @app.task(concurrency_key="key:{key}")
        def keyed(key: str) -> None: ...

        @app.task
        def free() -> None: ...

        queues = (QueueShare("default"),)

        def rounds(count: int) -> float:
            free.map_async([()] * count)
            begun = time.perf_counter()
            for _ in range(count // 10):
                request = ReserveRequest(worker="w", queues=queues, limit=10)
                taken = app.transport.reserve(request).deliveries
                assert len(taken) == 10
                app.transport.settle("w", [Ack(receipt=each.receipt) for each in taken])
            return time.perf_counter() - begun

        rounds(200)
        alone = min(rounds(200) for _ in range(3))
        keyed.map_async([("a",)] * 5001)
        request = ReserveRequest(worker="holder", queues=queues, limit=1)
        assert len(app.transport.reserve(request).deliveries) == 1
        # The blocked ones move to their line once; that is paid for here.
        for _ in range(60):
            reply = app.transport.reserve(ReserveRequest(worker="w", queues=queues, limit=100))
            if not reply.more and not reply.deliveries:
                break
        (stats,) = app.transport.stats(["default"])
        assert (stats.blocked, stats.in_flight) == (5000, 1)
        # One quick round among many is enough: what blocked jobs cost, they would cost in each.
        wait_until(lambda: rounds(200) < 3 * alone + 0.05, timeout=10, what="a round as quick")
