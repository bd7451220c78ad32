"""A producer process: `enqueue.py JOBS` enqueues and prints a JSON line of jobs a second."""

from __future__ import annotations

import json
import sys

from figures import timed

BULK = 4
"""How many bulk calls follow the single ones; each is as large as all of those."""


def enqueue(jobs: int) -> dict[str, float]:
    from bench_tasks import app, noop

    noop.delay(0)  # the connection is not part of the measurement
    with timed() as single:
        for number in range(1, jobs):
            noop.delay(number)
    with timed() as bulk:
        for _ in range(BULK):
            noop.map_async([(number,) for number in range(jobs)])
    app.close()
    return {
        "single": (jobs - 1) / single.wall,
        "single_cpu": single.cpu / jobs * 1e6,
        "bulk": BULK * jobs / bulk.wall,
        "bulk_cpu": bulk.cpu / (BULK * jobs) * 1e6,
    }


if __name__ == "__main__":
    print(json.dumps(enqueue(int(sys.argv[1]))))
