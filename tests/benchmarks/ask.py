"""A producer that asks an idle worker: `ask.py COUNT` prints pick-up and round-trip times.

Pick-up: calls some milliseconds apart, nobody waiting, as the peers are asked. Round trip: `call` to `get`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import ExitStack

from peers.common import pause


def ask(count: int) -> dict[str, list[float]]:
    from bench_tasks import app, started_at

    with ExitStack() as stack:
        if os.environ["BENCH_URL"].startswith("memory"):
            from taskmq.testing import worker_for

            stack.enter_context(worker_for(app))
        started_at.delay().get(timeout=30)  # waits until the worker is there
        sent = []
        for _ in range(count):
            time.sleep(pause())
            begin = time.monotonic()
            sent.append((begin, started_at.delay()))
        pickup = [(handle.get(timeout=30) - begin) * 1000 for begin, handle in sent]
        round_trip: list[float] = []
        for _ in range(count):
            time.sleep(pause())
            begin = time.monotonic()
            started_at.delay().get(timeout=30)
            round_trip.append((time.monotonic() - begin) * 1000)
    app.close()
    return {"pickup_ms": pickup, "round_trip_ms": round_trip}


if __name__ == "__main__":
    print(json.dumps(ask(int(sys.argv[1]))))
