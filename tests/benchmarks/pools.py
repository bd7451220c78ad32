"""What the pools reach on memory: coroutines at once, children beside threads, the kill of a timeout."""

from __future__ import annotations

import importlib
import time
from collections.abc import Sequence

from figures import Figure

from taskmq import App
from taskmq_worker import Worker

TASKS = "bench_pool_tasks"
SLEEP = 0.05
AT_ONCE = 500
ROUNDS = 10
HARD_TIMEOUT = 1.0


def _drain(pool: str, task: str, calls: Sequence[tuple[object, ...]], concurrency: int) -> float:
    """Run calls of a task in this process's worker; seconds from the first start to the last end."""
    app: App = importlib.import_module(TASKS).make_app(pool)
    with app:
        worker = Worker(app, concurrency=concurrency, pool=pool, app_path=f"{TASKS}:app")
        with worker:
            # Children and loop are up, and have run something, before it counts.
            app.tasks["bench.noop"].map_async([(0,)] * concurrency)
            worker.run_until_idle(timeout=60)
            handles = app.tasks[task].map_async(calls)
            worker.run_until_idle(timeout=120)
        records = app.transport.get_jobs([handle.id for handle in handles])
    started = [record.started_at for record in records if record and record.started_at]
    ended = [record.finished_at for record in records if record and record.finished_at]
    assert len(ended) == len(calls)
    return max(ended) - min(started)


def _kill(pool: str) -> float:
    """How much later than its hard timeout a body that never ends is over, seconds."""
    app: App = importlib.import_module(TASKS).make_app()
    with app, Worker(app, concurrency=1, pool=pool, app_path=f"{TASKS}:app") as worker:
        app.tasks["bench.noop"].delay(0)
        worker.run_until_idle(timeout=60)
        handle = app.tasks["bench.stuck"].delay()
        handle.wait(timeout=30)
        info = handle.info
        assert info.started_at is not None
        assert info.finished_at is not None
        return float(info.finished_at - info.started_at - HARD_TIMEOUT)


def measure(jobs: int, runs: int) -> list[Figure]:
    """The figures of all pools, on memory, results kept, sink null."""
    group = "pools on memory, results kept, sink null"
    numbers = [(number,) for number in range(jobs)]
    ideal = SLEEP * ROUNDS
    sleeps = [
        ideal / _drain("asyncio", "bench.sleep", [()] * (ROUNDS * AT_ONCE), AT_ONCE) * 100
        for _ in range(runs)
    ]
    threads = [jobs / _drain("threads", "bench.noop", numbers, 10) for _ in range(runs)]
    children = [jobs / _drain("processes", "bench.noop", numbers, 2) for _ in range(runs)]
    spins = [(0.005,)] * 300
    one = [_drain("processes", "bench.spin", spins, 1) for _ in range(runs)]
    two = [_drain("processes", "bench.spin", spins, 2) for _ in range(runs)]
    kills = [_kill("processes") for _ in range(runs)]
    late = [_kill("threads") for _ in range(runs)]
    return [
        Figure.of(
            group,
            f"asyncio, {AT_ONCE} sleeps at once, of the ideal",
            "%",
            sleeps,
            "goal: at least 80",
        ),
        Figure.of(group, "threads, no-op jobs", "jobs/s", threads),
        Figure.of(group, "processes, no-op jobs, 2 children", "jobs/s", children),
        Figure.of(
            group,
            "ratio, processes / threads",
            "",
            [mine / other for mine, other in zip(children, threads, strict=True)],
            "goal: at least 0.5",
        ),
        Figure.of(
            group,
            "ratio, CPU-bound on 2 children / 1",
            "",
            [slow / quick for slow, quick in zip(one, two, strict=True)],
            "goal: at least 1.7",
        ),
        Figure.of(group, "hard timeout, late by, processes", "s", kills, "goal: at most 0.2"),
        Figure.of(group, "hard timeout, late by, threads", "s", late),
    ]


def spin(seconds: float) -> int:
    """Keep one core busy for this much CPU time."""
    end = time.thread_time() + seconds
    count = 0
    while time.thread_time() < end:
        count += 1
    return count
