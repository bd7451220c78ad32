"""Dramatiq on Redis: one process, 10 threads, acknowledged after the work, no results."""

from __future__ import annotations

import os
import sys
from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from peers import common

dramatiq.set_broker(RedisBroker(url=common.URL))


@dramatiq.actor
def noop(number: int) -> None:
    common.ran()


@dramatiq.actor
def stamp(sent: float) -> None:
    common.stamp(sent)


def enqueue(jobs: int) -> Any:
    noop.send(0)
    return common.rate(lambda: [noop.send(number) for number in range(1, jobs)], jobs - 1), None


def serve() -> None:
    words = ["-m", "dramatiq", "peers.dramatiq", "--processes", "1", "--threads", "10"]
    os.execv(sys.executable, [sys.executable, *words])


if __name__ == "__main__":
    common.main(enqueue=enqueue, serve=serve, ask=lambda count: common.ask(stamp.send, count))
