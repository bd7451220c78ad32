"""A worker in a process of its own: `consume.py JOBS` drains what is queued and prints a JSON line.

Timed from the start of the first job until the last is settled and its result is stored; what it costs
to ask whether that is so begins when the last job has run. CPU is counted from the worker's start.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time

from figures import peak_rss_mib, timed


def consume(jobs: int) -> dict[str, float]:
    os.environ["BENCH_JOBS"] = str(jobs)
    from bench_tasks import all_ran, app, first_ran

    from taskmq_worker import Worker

    worker = Worker(app, concurrency=10)
    wall = [0.0]

    def watch() -> None:
        all_ran.wait(300)

        def left() -> int:
            queues = app.transport.stats(["bench"])
            return sum(queue.pending + queue.delayed + queue.in_flight for queue in queues)

        while left():
            time.sleep(0.02)
        wall[0] = time.perf_counter() - first_ran[0]

    with worker, timed() as clock:
        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        worker.run_until_idle(timeout=300)
        watcher.join(30)
    app.close()
    return {
        "rate": jobs / wall[0],
        "cpu_ms_per_1000": clock.cpu / jobs * 1e6,
        "rss_mib": peak_rss_mib(),
    }


if __name__ == "__main__":
    print(json.dumps(consume(int(sys.argv[1]))))
