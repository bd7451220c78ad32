"""Worker processes on one sqlite file: killed, frozen, stopped. Small forms of the field's faults."""

from __future__ import annotations

import itertools
import os
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from support.effects import Effect, EffectLog
from support.waiting import wait_until
from support.workers import Fleet, WorkerProcess, fleet
from taskmq import App, Config, JobState
from taskmq.states import FINAL_STATES
from taskmq.transport.types import JobRecord

LEASE = 2.0
"""No shorter: other processes take back what a busy machine kept its holder from renewing."""


class Site:
    """A sqlite file with a producer in this process and workers in others."""

    def __init__(self, workers: Fleet, url: str) -> None:
        self.workers = workers
        self.effects: EffectLog = workers.effects
        self.app = App(Config(transport=url, events="null", lease=LEASE, max_deliveries=3))

    def send(self, task: str, *args: Any, **options: Any) -> str:
        return self.app.send(task, args=args, **options).id

    def record(self, job: str) -> JobRecord:
        found = self.app.transport.get_jobs([job])[0]
        assert found is not None
        return found

    def all_ended(self, jobs: list[str]) -> bool:
        return all(self.record(job).state in FINAL_STATES for job in jobs)

    def labels(self, what: str) -> dict[str, int]:
        return dict(self.effects.counts(what))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    url = f"sqlite:///{tmp_path}/jobs.db"
    with fleet(tmp_path, url, lease=LEASE, heartbeat_interval=0.5, shutdown_timeout=5) as workers:
        site = Site(workers, url)
        try:
            yield site
        finally:
            site.app.close()


def test_c001_a_delay_longer_than_the_lease_makes_no_copies(site: Site) -> None:
    for _ in range(2):
        site.workers.start(concurrency=2)
    at = time.monotonic()
    jobs = [site.send("work", f"job-{n}", delay=LEASE + 1.5) for n in range(10)]
    time.sleep(LEASE + 0.1)
    assert {site.record(job).state for job in jobs} == {JobState.QUEUED}
    assert {site.record(job).deliveries for job in jobs} == {0}
    wait_until(lambda: site.all_ended(jobs), timeout=20)
    assert site.labels("start") == {f"job-{n}": 1 for n in range(10)}
    assert min(e.at for e in site.effects.all("start")) - at >= LEASE + 1.45


def test_c002_a_job_longer_than_its_lease_is_not_handed_out_again(site: Site) -> None:
    job = site.send("work", "long", 2.5 * LEASE)
    for _ in range(2):
        site.workers.start(concurrency=2)
    wait_until(lambda: site.all_ended([job]), timeout=20)
    assert site.labels("start") == {"long": 1}
    assert site.record(job).deliveries == 1


def test_c009_a_frozen_holder_changes_nothing_when_it_wakes(site: Site, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    frozen = site.workers.start(concurrency=1)
    job = site.send("gate", "contested", str(gate))
    site.workers.wait_started(1)
    freeze(frozen, tmp_path / "jobs.db")
    site.workers.start(concurrency=1)
    wait_until(lambda: len(site.effects.all("start")) == 2, timeout=20, what="the other took over")
    second = site.record(job)
    assert second.deliveries == 2
    gate.touch()
    wait_until(lambda: site.all_ended([job]), timeout=20)
    ended = site.record(job)
    frozen.send(signal.SIGCONT)
    wait_until(lambda: len(site.effects.all("end")) == 2, timeout=20)
    wait_until(lambda: job in frozen.output(), timeout=20, what="the loss is told")
    again = site.send("work", "after")
    wait_until(lambda: site.all_ended([again]), timeout=20)
    assert site.record(job) == ended
    assert ended.receipt == second.receipt
    assert frozen.alive


def test_c013_each_job_comes_back_after_its_own_lease(site: Site) -> None:
    killed = site.workers.start(concurrency=2)
    short = site.app.task(name="lease_1", lease=1.0)(_stand_in).delay("short").id
    long = site.app.task(name="lease_4", lease=4.0)(_stand_in).delay("long").id
    site.workers.wait_started(2)
    site.workers.start(concurrency=2)
    wait_until(lambda: len(site.app.transport.list_workers()) == 2, timeout=20)
    at = time.monotonic()
    killed.kill()
    wait_until(lambda: len(site.effects.all("start")) == 4, timeout=30)
    again = {e.label: e.at - at for e in site.effects.all("start")[2:]}
    assert again["short"] > 0
    assert again["long"] > 2.0
    # Three seconds apart, of which a slow machine may eat the most.
    assert again["long"] - again["short"] > 0.5
    for job in (short, long):
        assert site.record(job).deliveries == 2


def test_c017_after_a_kill_every_job_ends_and_none_stays_running(site: Site) -> None:
    killed = site.workers.start(concurrency=10)
    jobs = [
        site.send("exit_once", "job-0"),
        *(site.send("work", f"job-{n}", 0.3) for n in range(1, 10)),
    ]
    wait_until(lambda: not killed.alive, timeout=20, what="os._exit(9) in one of the jobs")
    at = time.monotonic()
    site.workers.start(concurrency=10)
    wait_until(lambda: site.all_ended(jobs), timeout=20)
    assert time.monotonic() - at < LEASE + 15
    assert {site.record(job).state for job in jobs} == {JobState.SUCCEEDED}
    assert site.record(jobs[0]).deliveries == 2
    (stats,) = site.app.transport.stats(["default"])
    assert (stats.in_flight, stats.pending) == (0, 0)


def test_c005_a_poison_job_is_buried_and_its_neighbours_all_end(site: Site) -> None:
    jobs = [site.send("work", f"good-{n}") for n in range(50)]
    poison = site.send("poison", "poison")
    for _ in range(8):
        worker = site.workers.start(concurrency=4, prefetch=8)
        wait_until(partial(_gone_or_done, worker, site, [poison, *jobs]), timeout=20)
        if site.all_ended([poison, *jobs]):
            break
    assert site.record(poison).state is JobState.FAILED
    assert site.record(poison).reason == "worker lost"
    assert {site.record(job).state for job in jobs} == {JobState.SUCCEEDED}
    assert site.labels("start")["poison"] == site.record(poison).max_deliveries


@pytest.mark.parametrize("how", ["cold stop", "kill"])
def test_c020_an_interrupted_job_is_never_forgotten(site: Site, tmp_path: Path, how: str) -> None:
    gate = tmp_path / "gate"
    job = site.send("gate", "held", str(gate))
    worker = site.workers.start(concurrency=1)
    site.workers.wait_started(1)
    if how == "kill":
        worker.kill()
        assert site.record(job).state is JobState.RUNNING
    else:
        worker.send(signal.SIGTERM)
        # The first signal has been heard once the worker says that it stops.
        wait_until(lambda: {w.state for w in site.app.transport.list_workers()} == {"stopping"})
        assert worker.terminate() == 0
        assert site.record(job).state is JobState.QUEUED
        assert site.record(job).deliveries == 1
    gate.touch()
    site.workers.start(concurrency=1)
    wait_until(lambda: site.all_ended([job]), timeout=20)
    assert site.record(job).state is JobState.SUCCEEDED
    assert site.record(job).deliveries == 2


def test_c022_reservations_are_back_at_once_when_their_worker_stops(site: Site) -> None:
    jobs = [site.send("work", f"{n:03}", 0.05) for n in range(40)]
    worker = site.workers.start(concurrency=1, prefetch=16)
    site.workers.wait_started(5)
    assert worker.terminate() == 0
    left = [job for job in jobs if not site.record(job).state.is_final]
    assert left
    assert {site.record(job).state for job in left} == {JobState.QUEUED}
    assert {site.record(job).deliveries for job in left} == {0}
    site.workers.start(concurrency=1)
    wait_until(lambda: site.all_ended(jobs), timeout=30)
    assert [e.label for e in site.effects.all("start")] == [f"{n:03}" for n in range(40)]


def test_c052_what_does_not_end_in_time_starts_elsewhere_at_once(
    site: Site, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    job = site.send("gate", "long", str(gate))
    stopping = site.workers.start(config={"shutdown_timeout": 0.5, "lease": 600}, concurrency=1)
    site.workers.wait_started(1)
    site.workers.start(concurrency=1)
    at = time.monotonic()
    assert stopping.terminate() == 0
    assert time.monotonic() - at < 15
    site.workers.wait_started(2, timeout=5)
    gate.touch()
    wait_until(lambda: site.all_ended([job]), timeout=20)


def test_c101_what_was_revoked_with_no_worker_up_never_runs(site: Site) -> None:
    ready = [site.send("work", f"ready-{n}") for n in range(5)]
    delayed = [site.send("work", f"delayed-{n}", delay=0.5) for n in range(5)]
    for job in ready + delayed:
        site.app.handle(job).revoke()
    assert {site.record(job).state for job in ready + delayed} == {JobState.REVOKED}
    last = site.send("work", "last", delay=1.0)
    site.workers.start(concurrency=4)
    wait_until(lambda: site.all_ended([last]), timeout=20)
    assert site.labels("start") == {"last": 1}


def test_a_running_job_is_cancelled_across_processes(site: Site) -> None:
    worker = site.workers.start(concurrency=2)
    job = site.send("polite", "polite")
    site.workers.wait_started(1)
    at = time.monotonic()
    site.app.handle(job).revoke()
    wait_until(lambda: site.record(job).state is JobState.REVOKED, timeout=10)
    assert time.monotonic() - at < 10
    ticks = len(site.effects.all("tick"))
    other = site.send("work", "other")
    wait_until(lambda: site.all_ended([other]), timeout=10)
    assert len(site.effects.all("tick")) == ticks, "nothing runs on after the final state"
    assert worker.alive


def test_two_workers_share_many_jobs_none_lost_none_twice(site: Site) -> None:
    for _ in range(2):
        site.workers.start(concurrency=2)
    wait_until(lambda: len(site.app.transport.list_workers()) == 2, timeout=40)
    jobs = [site.send("work", f"{n}", 0.02) for n in range(300)]
    wait_until(lambda: site.all_ended(jobs), timeout=40)
    assert site.labels("start") == {str(n): 1 for n in range(300)}
    assert len({e.pid for e in site.effects.all("start")}) == 2


def test_an_idle_worker_is_quick_to_pick_up_and_costs_next_to_nothing(site: Site) -> None:
    worker = site.workers.start(concurrency=2)
    first = site.send("work", "warm")
    wait_until(lambda: site.all_ended([first]), timeout=20)
    before = cpu_seconds(worker.pid)
    time.sleep(2)
    assert (cpu_seconds(worker.pid) - before) / 2 < 0.03
    rounds = itertools.count()

    def pick_up() -> float:
        """The median of twenty."""
        turn = next(rounds)
        delays: list[float] = []
        for n in range(20):
            at = time.monotonic()
            site.send("work", f"job-{turn}-{n}")
            found = wait_until(partial(_starts_of, site, f"job-{turn}-{n}"))
            delays.append(found[0].at - at)
        return sorted(delays)[10]

    # A machine that is busy elsewhere gets more than one chance; a worker that polls needs a miracle.
    wait_until(lambda: pick_up() < 0.05, timeout=10)


def _stand_in(label: str) -> None:
    """The producer's side of a task: its policy travels, its body is the worker's."""


def freeze(worker: WorkerProcess, database: Path) -> None:
    """SIGSTOP, but not in the middle of a write, which would hold up every other process too."""
    while True:
        worker.send(signal.SIGSTOP)
        with closing(sqlite3.connect(database, timeout=0.1, isolation_level=None)) as probe:
            try:
                probe.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                worker.send(signal.SIGCONT)
                continue
            probe.execute("ROLLBACK")
            return


def _gone_or_done(worker: WorkerProcess, site: Site, jobs: list[str]) -> bool:
    return not worker.alive or site.all_ended(jobs)


def _starts_of(site: Site, label: str) -> list[Effect]:
    return [effect for effect in site.effects.all("start") if effect.label == label]


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
