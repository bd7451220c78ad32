"""SAQ on Redis and PostgreSQL: 10 coroutines, acknowledged after the work, no results kept."""

from __future__ import annotations

import asyncio
from typing import Any

from peers import common
from saq import Queue, Worker


async def noop(context: Any, *, number: int) -> None:
    common.ran()


async def stamp(context: Any, *, sent: float) -> None:
    common.stamp(sent)


async def enqueue(jobs: int) -> Any:
    queue = Queue.from_url(common.URL, name="bench")
    await queue.connect()
    await queue.enqueue("noop", number=0, ttl=-1)

    async def single() -> None:
        for number in range(1, jobs):
            await queue.enqueue("noop", number=number, ttl=-1)

    row = await common.rate_async(single(), jobs - 1)
    await queue.disconnect()
    return row, None


async def work() -> None:
    queue = Queue.from_url(common.URL, name="bench")
    await queue.connect()
    functions: Any = [("noop", noop), ("stamp", stamp)]
    await Worker(queue, functions=functions, concurrency=10).start()


async def ask(count: int) -> None:
    queue = Queue.from_url(common.URL, name="bench")
    await queue.connect()
    await common.ask_async(lambda sent: queue.enqueue("stamp", sent=sent, ttl=-1), count)
    await queue.disconnect()


if __name__ == "__main__":
    common.main(enqueue=enqueue, serve=lambda: asyncio.run(work()), ask=ask)
