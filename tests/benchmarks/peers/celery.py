"""Celery on Redis: threads pool, acknowledged before the work (its default), no results; and its chord."""

from __future__ import annotations

import os
import time
from typing import Any

from celery import Celery, chord, group
from peers import common

RESULTS = bool(os.environ.get("BENCH_RESULTS"))

app = Celery("bench", broker=common.URL, backend=common.URL if RESULTS else None)
app.conf.update(
    task_ignore_result=not RESULTS,
    worker_prefetch_multiplier=50,
    broker_connection_retry_on_startup=True,
    worker_send_task_events=False,
    worker_hijack_root_logger=False,
)


@app.task(name="bench.noop")
def noop(number: int) -> int:
    common.ran()
    return number


@app.task(name="bench.stamp")
def stamp(sent: float) -> None:
    common.stamp(sent)


@app.task(name="bench.total")
def total(numbers: list[int]) -> int:
    return sum(numbers)


def enqueue(jobs: int) -> Any:
    noop.delay(0)
    single = common.rate(lambda: [noop.delay(number) for number in range(1, jobs)], jobs - 1)
    bulk = common.rate(lambda: group(noop.s(number) for number in range(jobs))(), jobs)
    return single, bulk


def serve() -> None:
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=ERROR"]
    app.worker_main(["worker", "--pool", "threads", "--concurrency", "10", *quiet])


def run_chord(count: int) -> dict[str, float]:
    """A chord's header of `count` no-op tasks and its sum as the body: from the call to the result."""
    noop.delay(0).get(timeout=60)
    begin = time.perf_counter()
    result = chord(noop.s(number) for number in range(count))(total.s())
    called = time.perf_counter() - begin
    value = result.get(timeout=300)
    assert value == count * (count - 1) // 2
    return {"call_s": called, "total_s": time.perf_counter() - begin}


if __name__ == "__main__":
    common.main(
        enqueue=enqueue,
        serve=serve,
        ask=lambda count: common.ask(stamp.delay, count),
        chord=run_chord,
    )
