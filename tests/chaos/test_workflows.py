"""Workers are killed all through runs of a graph with maps, a retry and a child run: all end right.

Short here, 200 runs by `hatch run soak`. TEST_SEED repeats a run as far as machines allow.
"""

from __future__ import annotations

import random
import signal
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from support import thirty_app
from support.backends import DURABLE, Backends
from support.chaos import twice_started
from support.effects import Effect
from support.waiting import wait_until
from support.workers import Fleet, fleet
from taskmq import App
from taskmq.workflow import WorkflowHandle, WorkflowPlan

LEASE = 1.0


class Figures(NamedTuple):
    runs: int
    pause: float
    """Between two submits, in seconds."""
    workers: int
    limit: float


@pytest.fixture
def figures(request: pytest.FixtureRequest) -> Figures:
    if request.config.getoption("--soak"):
        return Figures(200, 0.5, 4, 1800)
    return Figures(5, 0.2, 2, 120)


@pytest.fixture(params=DURABLE)
def workers(request: pytest.FixtureRequest, tmp_path: Path, backends: Backends) -> Iterator[Fleet]:
    url = backends.url(request.param, tmp_path)
    limits = {"lease": LEASE, "heartbeat_interval": 0.3, "max_deliveries": 200}
    with fleet(tmp_path, url, "support.thirty_app", **limits) as started:
        yield started


@pytest.fixture
def app(workers: Fleet) -> Iterator[App]:
    """The workers' own app, in this process: it knows the graph."""
    app, before = thirty_app.app, thirty_app.app.config
    app.config = before.replace(
        transport=workers.url, lease=LEASE, max_deliveries=200, events="null"
    )
    yield app
    app.close()
    app.config = before


class Killer:
    """Kills a worker after each so many starts of jobs, and starts another as a supervisor would."""

    def __init__(self, workers: Fleet, size: int, rng: random.Random) -> None:
        self.workers = workers
        self.rng = rng
        self.kills = 0
        self._spared = 0
        for _ in range(size):
            workers.start(concurrency=rng.randint(2, 5))

    def strike(self) -> None:
        """Kill one of those that work, if it is time for it."""
        starts = self.workers.effects.all("start")
        if len(starts) < self._spared:
            return
        self._spared = len(starts) + self.rng.randint(15, 60)
        busy = {effect.pid for effect in starts}
        chosen = [each for each in self.workers.workers if each.alive and each.pid in busy]
        if chosen:
            self.rng.choice(chosen).kill()
            self.kills += 1
            self.workers.start(concurrency=self.rng.randint(2, 5))


@pytest.mark.timeout(2000)
def test_all_runs_end_right_while_workers_are_killed(
    app: App, workers: Fleet, seed: int, figures: Figures
) -> None:
    killer = Killer(workers, figures.workers, random.Random(seed))
    runs: list[WorkflowHandle[Any]] = []
    due = 0.0

    def look() -> bool:
        """Submit, kill, and see whether all have ended."""
        nonlocal due
        if len(runs) < figures.runs and time.monotonic() >= due:
            runs.append(app.submit_workflow("thirty"))
            due = time.monotonic() + figures.pause
        killer.strike()
        records = app.transport.get_jobs([run.id for run in runs])
        return len(runs) == figures.runs and all(each and each.state.is_final for each in records)

    wait_until(look, timeout=figures.limit, interval=0.05, what="the end of all runs")
    for worker in workers.workers:
        if worker.alive:
            # The last ones may not have come as far as to listen.
            assert worker.terminate(30) in (0, -signal.SIGTERM)

    effects = workers.effects.all()
    problems = {
        "wrong result": [run.id for run in runs if run.get(timeout=0) != thirty_app.RESULT],
        "left over": [line for run in runs for line in left_over(run)],
        "started too early": too_early(runs[0].plan, [run.id for run in runs], effects),
        "one delivery started twice": twice_started(effects),
    }
    assert {name: found for name, found in problems.items() if found} == {}
    print(f"{killer.kills} kills, {len(effects)} effects")
    assert killer.kills >= figures.runs // 2


def left_over(run: WorkflowHandle[Any]) -> list[str]:
    """Steps that have not ended although their run has."""
    steps = run.status().steps
    assert len(steps) == thirty_app.STEPS
    return [
        f"{run.id} {name} {each.state}" for name, each in steps.items() if not each.state.is_final
    ]


def too_early(plan: WorkflowPlan, runs: Sequence[str], effects: Sequence[Effect]) -> list[str]:
    """Steps that started before what they depend on had ended once."""
    first: dict[tuple[str, str], float] = defaultdict(lambda: float("inf"))
    for effect in effects:
        key = (effect.what, effect.job)
        first[key] = min(first[key], effect.at)
    found: list[str] = []
    for run in runs:
        for step in plan.steps:
            started = first["start", f"{run}::{step.name}"]
            for source in step.sources:
                ended = first["end", f"{run}::{source}"]
                # Maps, nodes and child runs leave no effects, and what failed has no end.
                if started < ended < float("inf"):
                    found.append(f"{run} {step.name} started before {source} ended")
    return found


def test_the_check_sees_a_step_that_starts_too_early() -> None:
    plan = thirty_app.thirty.plan({})
    early = [
        Effect("start", "", "wf-1::link-1", 1, 1, 10, 1.0),
        Effect("end", "", "wf-1::link-0", 1, 1, 10, 2.0),
    ]
    assert too_early(plan, ["wf-1"], early) == ["wf-1 link-1 started before link-0 ended"]
    assert too_early(plan, ["wf-1"], [early[0]._replace(at=3.0), early[1]]) == []
