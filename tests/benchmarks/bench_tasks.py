"""The tasks that the benchmarks run, here and in worker processes; BENCH_URL says where."""

from __future__ import annotations

import itertools
import os
import threading
import time

from taskmq import App, Config

EXPECTED = int(os.environ.get("BENCH_JOBS", "0"))
all_ran = threading.Event()
first_ran: list[float] = []
_ran = itertools.count(1)

app = App(
    Config(
        transport=os.environ.get("BENCH_URL", "memory://"),
        concurrency=10,
        default_queue="bench",
        events="null",
    )
)


@app.task(name="bench.noop")
def noop(number: int) -> int:
    place = next(_ran)
    if place == 1:
        first_ran.append(time.perf_counter())
    if place == EXPECTED:
        all_ran.set()
    return number


@app.task(name="bench.started_at")
def started_at() -> float:
    """The moment of the run by the machine's monotonic clock, which processes share."""
    return time.monotonic()
