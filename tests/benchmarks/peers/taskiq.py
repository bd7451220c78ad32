"""taskiq on Redis streams: one process, 10 coroutines, acknowledged after the work, no results."""

from __future__ import annotations

import os
import sys
from typing import Any

from peers import common
from taskiq_redis import RedisStreamBroker

broker = RedisStreamBroker(common.URL)


@broker.task(task_name="bench.noop")
async def noop(number: int) -> int:
    common.ran()
    return number


@broker.task(task_name="bench.stamp")
async def stamp(sent: float) -> None:
    common.stamp(sent)


async def enqueue(jobs: int) -> Any:
    await broker.startup()
    await noop.kiq(0)

    async def single() -> None:
        for number in range(1, jobs):
            await noop.kiq(number)

    row = await common.rate_async(single(), jobs - 1)
    await broker.shutdown()
    return row, None


def serve() -> None:
    words = ["-m", "taskiq", "worker", "peers.taskiq:broker", "--workers", "1"]
    limits = ["--max-async-tasks", "10", "--log-level", "ERROR"]
    os.execv(sys.executable, [sys.executable, *words, *limits])


async def ask(count: int) -> None:
    await broker.startup()
    await common.ask_async(stamp.kiq, count)
    await broker.shutdown()


if __name__ == "__main__":
    common.main(enqueue=enqueue, serve=serve, ask=ask)
