"""Workflows in a process with a worker: `flows.py PART COUNT` prints a JSON line."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from figures import timed

from taskmq import App, Config
from taskmq.testing import worker_for
from taskmq.workflow import WorkflowBuilder

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
    return number


@app.task(name="bench.total")
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.task(name="bench.now")
def now() -> float:
    return time.monotonic()


@app.task(name="bench.since")
def since(earlier: float) -> float:
    """How long ago that was when this starts."""
    return time.monotonic() - earlier


@app.workflow("chain")
def chain(wf: WorkflowBuilder, count: int) -> Any:
    step = wf.step("0", noop, args=(0,))
    for number in range(1, count):
        step = wf.step(f"{number}", noop, deps={"number": step})
    return step


@app.workflow("fan")
def fan(wf: WorkflowBuilder, count: int) -> Any:
    return wf.step("total", total, deps=[wf.map("items", noop, over=list(range(count)))])


@app.workflow("pair")
def pair(wf: WorkflowBuilder) -> Any:
    return wf.step("after", since, deps={"earlier": wf.step("before", now)})


def run_chain(count: int) -> dict[str, float]:
    """Steps a second of a chain, beside plain jobs sent when the one before has its result."""
    with worker_for(app):
        noop.delay(0).get(timeout=60)
        with timed() as plain:
            for number in range(count):
                noop.delay(number).get(timeout=60)
        run = chain.submit(count=count)
        begin = time.perf_counter()
        run.get(timeout=300)
        taken = time.perf_counter() - begin
    return {"plain": count / plain.wall, "chain": count / taken}


def run_map(count: int) -> dict[str, float]:
    """Items a second of a map with its join, beside plain jobs of the same number; submits are counted."""
    with worker_for(app):
        noop.delay(0).get(timeout=60)
        with timed() as plain:
            handles = noop.map_async([(number,) for number in range(count)])
            handles[-1].get(timeout=300)
            while sum(each.pending + each.in_flight for each in app.transport.stats(["bench"])):
                time.sleep(0.005)
        with timed() as mapped:
            assert fan.submit(count=count).get(timeout=300) == count * (count - 1) // 2
    return {"plain": count / plain.wall, "map": count / mapped.wall}


def run_submit(count: int) -> dict[str, float]:
    """Milliseconds to submit a graph of so many steps, and the calls of the transport that it takes."""
    app.transport.stats()
    calls = [0]
    enqueue = app.transport.enqueue

    def counted(*args: Any, **options: Any) -> Any:
        calls[0] += 1
        return enqueue(*args, **options)

    app.transport.enqueue = counted  # type: ignore[method-assign] # counting is all that it does
    with timed() as clock:
        chain.submit(count=count)
    return {"ms": clock.wall * 1000, "calls": calls[0]}


def run_pickup(count: int) -> dict[str, float]:
    """Median milliseconds from a step's end to the next one's start, and from a call to an idle worker."""
    successors: list[float] = []
    idle: list[float] = []
    with worker_for(app):
        now.delay().get(timeout=60)
        for _ in range(count):
            time.sleep(0.02)
            successors.append(pair.submit().get(timeout=60) * 1000)
            time.sleep(0.02)
            begin = time.monotonic()
            idle.append((now.delay().get(timeout=60) - begin) * 1000)
    return {"successor": statistics.median(successors), "idle": statistics.median(idle)}


PARTS: dict[str, Callable[[int], dict[str, float]]] = {
    "chain": run_chain,
    "map": run_map,
    "submit": run_submit,
    "pickup": run_pickup,
}

if __name__ == "__main__":
    found = PARTS[sys.argv[1]](int(sys.argv[2]))
    app.close()
    print(json.dumps(found))
