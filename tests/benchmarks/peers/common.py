"""What every peer's driver shares. It runs in that peer's environment: standard library only.

A driver is started as `python -m peers.NAME MODE`; its modes are functions that it hands to `main`.
What a worker did is told by files in a folder: when the first and the last job ran, and how long after
its call each stamped job ran.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

URL = os.environ.get("BENCH_URL", "")
FOLDER = Path(os.environ.get("BENCH_FOLDER", "."))
EXPECTED = int(os.environ.get("BENCH_JOBS", "0"))
BATCH = 1000
"""Jobs in one bulk call."""

_ran = itertools.count(1)


def ran() -> None:
    """Called by every no-op job: marks the first and the last."""
    number = next(_ran)
    if number == 1:
        mark("first")
    if number == EXPECTED:
        mark("last")


def mark(name: str) -> None:
    """Write this moment into a file that appears at once with all its content."""
    part = FOLDER / f"{name}.part"
    part.write_text(repr(time.monotonic()))
    part.rename(FOLDER / name)


def stamp(sent: float) -> None:
    """Called by a job with the moment of its call: notes how long it took to start."""
    line = f"{time.monotonic() - sent}\n".encode()
    # One write to an appended file is one line, whatever the process.
    file = os.open(FOLDER / "stamps", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, line)
    os.close(file)


def rate(call: Callable[[], object], jobs: int) -> tuple[float, float]:
    """Jobs a second, and CPU milliseconds of this process per 1,000 jobs."""
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    cpu = time.process_time() - cpu
    return jobs / (time.perf_counter() - wall), cpu / jobs * 1e6


async def rate_async(call: Awaitable[object], jobs: int) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    await call
    cpu = time.process_time() - cpu
    return jobs / (time.perf_counter() - wall), cpu / jobs * 1e6


def pause() -> float:
    """How long to wait between two calls to an idle worker, seconds."""
    return random.uniform(0.005, 0.015)


def ask(call: Callable[[float], object], count: int) -> None:
    for _ in range(count):
        time.sleep(pause())
        call(time.monotonic())


async def ask_async(call: Callable[[float], Awaitable[object]], count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(pause())
        await call(time.monotonic())


def main(
    *,
    enqueue: Callable[[int], Any],
    serve: Callable[[], object],
    ask: Callable[[int], Any],
    prepare: Callable[[], object] | None = None,
    chord: Callable[[int], dict[str, float]] | None = None,
) -> None:
    """Run the mode that the command line names.

    `prepare` makes tables, `enqueue JOBS` prints its rates, `serve` works until it is ended, `ask COUNT`
    calls an idle worker, `chord COUNT` waits for the result of one.
    """
    mode = sys.argv[1]
    if mode == "prepare":
        if prepare is not None:
            prepare()
        return
    if mode == "serve":
        serve()
        return
    number = int(sys.argv[2])
    if mode == "chord":
        assert chord is not None
        print(json.dumps(chord(number)))
        return
    function = {"enqueue": enqueue, "ask": ask}[mode]
    answer = function(number)
    if asyncio.iscoroutine(answer):
        answer = asyncio.run(answer)
    if mode == "enqueue":
        single, bulk = answer
        row = {"single": single[0], "single_cpu": single[1], "queued": number}
        if bulk:
            row |= {"bulk": bulk[0], "bulk_cpu": bulk[1], "queued": 2 * number}
        print(json.dumps(row))
