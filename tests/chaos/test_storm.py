"""Workers are killed, frozen, stopped and their clock set at random: nothing is lost or ends twice.

Short here, five minutes by `hatch run soak`. Backends join by `support.backends`. What happened is
decided by the seed, but not to the millisecond: machines differ. TEST_SEED repeats a run as far as that.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from support.backends import CLUSTERED, Backends
from support.chaos import Storm, twice_started, unexplained
from support.effects import Effect
from support.stepped_clock import ENV as CLOCK
from support.stepped_clock import step
from support.waiting import wait_until
from support.workers import Fleet, fleet
from taskmq import App, Config, JobState, TaskHandle
from taskmq.transport.types import JobRecord

LEASE = 3.0
PHASES = 6


class Figures(NamedTuple):
    seconds: float
    jobs: int
    workers: int


@pytest.fixture
def figures(request: pytest.FixtureRequest) -> Figures:
    return Figures(300, 20_000, 6) if request.config.getoption("--soak") else Figures(10, 900, 3)


@pytest.fixture(params=CLUSTERED)
def workers(request: pytest.FixtureRequest, tmp_path: Path, backends: Backends) -> Iterator[Fleet]:
    url = backends.url(request.param, tmp_path)
    limits: dict[str, Any] = {"lease": LEASE, "heartbeat_interval": 0.5, "shutdown_timeout": 2}
    with fleet(tmp_path, url, **limits) as started:
        yield started


@pytest.fixture
def app(workers: Fleet) -> Iterator[App]:
    config = Config(transport=workers.url, lease=LEASE, max_deliveries=200, events="null")
    with App(config) as producer:
        # As the workers know them: retries and keys are decided at the producer.
        @producer.task(name="keyed", concurrency_key="key:{key}", concurrency_limit=2)
        def keyed(label: str, key: str, seconds: float = 0.0) -> str:
            return label

        yield producer


class Load(NamedTuple):
    """What was sent: jobs that must succeed, and jobs that only a revocation ends."""

    plain: list[TaskHandle[object]]
    endless: list[TaskHandle[object]]

    @property
    def all(self) -> list[TaskHandle[object]]:
        return self.plain + self.endless


def send(app: App, rng: random.Random, load: Load, prefix: str, count: int) -> None:
    keyed = app.tasks["keyed"]
    for n in (f"{prefix}{number}" for number in range(count)):
        seconds = rng.choice((0.0, 0.0, 0.005, 0.05, 0.3))
        kind = rng.random()
        if kind < 0.7:
            options: dict[str, Any] = {
                "priority": rng.randint(-9, 9),
                "delay": rng.choice((None, None, 1.0)),
            }
            load.plain.append(app.send("work", (f"work-{n}", seconds), **options))
        elif kind < 0.85:
            load.plain.append(app.send("fail_once", (f"fails-{n}",)))
        elif kind < 0.98:
            load.plain.append(keyed.delay(f"keyed-{n}", rng.choice("abc"), min(seconds, 0.05)))
        else:
            load.endless.append(app.send("polite", (f"endless-{n}",), priority=-9))


def records(app: App, handles: list[TaskHandle[object]]) -> dict[str, JobRecord]:
    found = app.transport.get_jobs([handle.id for handle in handles])
    return {record.id: record for record in found if record is not None}


@pytest.mark.timeout(900)
def test_after_a_storm_every_job_has_ended_once(
    app: App,
    workers: Fleet,
    seed: int,
    figures: Figures,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = random.Random(seed)
    load = Load([], [])
    clock = tmp_path / "clock-offset"
    step(clock, 0.0)
    monkeypatch.setenv(CLOCK, str(clock))
    storm = Storm(workers, rng, figures.workers, LEASE, clock)
    ended: dict[str, JobRecord] = {}
    changed: list[str] = []

    def look() -> bool:
        """Note what has ended; what has ended must stay as it is."""
        for job_id, record in records(app, load.all).items():
            before = ended.setdefault(job_id, record) if record.state.is_final else None
            if job_id in ended and before != record:
                changed.append(f"{ended[job_id]} became {record}")
        return len(ended) == len(load.all)

    for phase in range(PHASES):
        send(app, rng, load, f"{phase}-", figures.jobs // PHASES)
        storm.rage(figures.seconds / PHASES)
        look()
        for handle in rng.sample(load.endless, len(load.endless) // 3):
            handle.revoke(terminate=rng.random() < 0.5)
    for handle in load.endless:
        handle.revoke()
    storm.set_clock(0.0)
    storm.fill()
    wait_until(look, timeout=120, interval=0.2)
    for worker in workers.workers:
        if worker.alive:
            # One that was started a moment ago may not have begun to listen for signals.
            assert worker.terminate(30) in (0, -signal.SIGTERM)
    look()

    effects = workers.effects.all()
    problems = {
        "ended twice": changed,
        "wrong end": wrong_ends(load, ended),
        "one delivery started twice": twice_started(effects),
        "started again for no reason": unexplained(effects, storm.disturbed),
        "ended without its work": without_work(load.plain, effects),
        "left over": [
            str(s) for s in app.transport.stats() if s.pending or s.in_flight or s.blocked
        ],
    }
    assert {name: found for name, found in problems.items() if found} == {}, "\n".join(
        storm.journal
    )
    assert sum(line.split()[1] in ("kill", "freeze", "stop", "hurry") for line in storm.journal) > 5


def wrong_ends(load: Load, ended: dict[str, JobRecord]) -> list[str]:
    return [
        f"{handle.id}: {ended[handle.id].state} {ended[handle.id].error}"
        for handle in load.all
        if ended[handle.id].state
        is not (JobState.REVOKED if handle in load.endless else JobState.SUCCEEDED)
    ]


def without_work(handles: list[TaskHandle[object]], effects: list[Effect]) -> list[str]:
    done = {effect.job for effect in effects if effect.what == "end"}
    return [handle.id for handle in handles if handle.id not in done]


def effect(what: str, job: str, deliveries: int, pid: int) -> Effect:
    return Effect(what, job, job, 1, deliveries, pid, 0.0)


def test_the_checks_see_what_they_look_for() -> None:
    once = [effect("start", "a", 1, 10), effect("end", "a", 1, 10)]
    assert twice_started(once) == unexplained(once, set()) == []
    assert twice_started([*once, effect("start", "a", 1, 11)]) != []
    again = [*once, effect("start", "a", 2, 11)]
    assert twice_started(again) == []
    assert unexplained(again, {10}) == []
    assert unexplained(again, {11}) != []
