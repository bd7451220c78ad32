"""Urgent work jumps in; weights share a band; request state never mixes."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.backends import ALL, NETWORK, Backends
from support.pools import KINDS, Site, pool_site
from support.waiting import wait_until
from taskmq import App, Config, Priority, QueueConfig, current_task
from taskmq_worker import Worker

# A pool does not see which backend it works for: the network ones run with one of the pools.
SITES = [
    *((kind, scheme) for kind in KINDS for scheme in ("memory", "sqlite")),
    *(("threads", scheme) for scheme in NETWORK),
]


@pytest.fixture(params=SITES, ids="-".join)
def site(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    backends: Backends,
) -> Iterator[Site]:
    kind, scheme = request.param
    with pool_site(kind, monkeypatch, tmp_path, backends.url(scheme, tmp_path)) as each:
        yield each


def test_g1_the_next_free_slot_runs_the_critical_job(site: Site) -> None:
    concurrency = 1 if site.pool == "solo" else 4
    step = site.task("step")
    for _ in range(300):
        step.apply_async(("low", 0.1), priority=Priority.LOW)
    with site.worker(concurrency, shutdown_timeout=1):
        wait_until(lambda: len(site.order()) >= 4 * concurrency, timeout=20)
        handle = step.apply_async(("critical", 0.1), priority=Priority.CRITICAL)
        before = site.order().count("start low")
        assert handle.wait(timeout=20)
        order = site.order()
    overtaken = order[: order.index("start critical")].count("start low")
    # Those that had started, and what starts while the call and a fetch are under way.
    assert overtaken - before <= 2 * concurrency


def test_g2_an_unstarted_lower_job_is_yielded_to_a_higher_one(site: Site) -> None:
    step = site.task("step")
    low = [step.apply_async((f"low-{n}", 0.1 if n else 2.0), priority=-5) for n in range(5)]

    def yields() -> list[int]:
        records = site.app.transport.get_jobs([handle.id for handle in low])
        return [record.yields for record in records if record is not None]

    with site.worker(1, prefetch=4) as worker:
        wait_until(lambda: "start low-0" in site.order() and len(worker.buffer) == 4)
        high = step.apply_async(("high", 0.0), priority=5)
        assert high.wait(timeout=20)
        assert all(handle.wait(timeout=20) for handle in low)
    starts = [line for line in site.order() if line.startswith("start")]
    assert starts[:2] == ["start low-0", "start high"]
    assert yields() == [0, 0, 0, 0, 1]
    assert {handle.info.deliveries for handle in low} == {1}


def test_g3_a_job_that_runs_is_never_interrupted_for_a_higher_one(site: Site) -> None:
    step = site.task("step")
    low = step.apply_async(("low", 1.0), priority=Priority.LOW)
    with site.worker(1):
        wait_until(lambda: site.order() == ["start low"], timeout=20)
        high = step.apply_async(("high", 0.0), priority=Priority.CRITICAL)
        assert high.wait(timeout=20)
    assert site.order() == ["start low", "end low", "start high", "end high"]
    assert low.info.deliveries == 1


@pytest.mark.parametrize("scheme", ALL)
@pytest.mark.parametrize("concurrency", [1, 4])
def test_two_queues_share_a_band_by_weight(
    scheme: str, concurrency: int, tmp_path: Path, backends: Backends
) -> None:
    url = backends.url(scheme, tmp_path)
    queues = {"heavy": QueueConfig(weight=3), "light": QueueConfig(weight=1)}
    ran: list[str] = []
    lock = threading.Lock()
    with App(Config(transport=url, queues=queues, events="null")) as app:

        @app.task(name="note")
        def note() -> None:
            with lock:
                ran.append(current_task().queue)

        note.map_async([()] * 60, queue="heavy")
        note.map_async([()] * 60, queue="light")
        with Worker(app, queues=["heavy", "light"], concurrency=concurrency) as worker:
            worker.run_until_idle(timeout=20)
    shares = Counter(ran[:40])
    assert abs(shares["heavy"] - 30) <= (0 if concurrency == 1 else concurrency)
    assert len(ran) == 120


def test_a_hundred_jobs_on_eight_slots_never_mix_request_state() -> None:
    mixed: list[str] = []
    barrier = threading.Barrier(4, timeout=30)
    with App(Config(events="null")) as app:

        @app.task(bind=True, name="stateful")
        def stateful(self, number: int) -> int:  # type: ignore[no-untyped-def]
            self.request.tenant = number
            self.request.update_meta(number=number)
            try:
                barrier.wait()  # several jobs hold their state at the same time
            except threading.BrokenBarrierError:
                mixed.append("barrier")
            if self.request.tenant != number or self.request.args != (number,):
                mixed.append(f"{self.request.id}: {self.request.tenant} is not {number}")
            if current_task().id != self.request.id:
                mixed.append("current_task")
            return number

        handles = stateful.map_async([(n,) for n in range(100)])
        with Worker(app, concurrency=8) as worker:
            worker.run_until_idle(timeout=30)
        assert [handle.get(timeout=5) for handle in handles] == list(range(100))
        assert [handle.info.meta["number"] for handle in handles] == list(range(100))
    assert mixed == []
