"""PgQueuer on PostgreSQL: batches of 100 without a cap of concurrency, completions buffered, rows deleted.

A cap must be at least twice its batch, so 10 at a time is not to be had; a crash repeats jobs.
"""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import asyncpg
from peers import common
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

WORKER_BATCH = 100


async def enqueue(jobs: int) -> Any:
    connection = await asyncpg.connect(common.URL)
    queries = Queries(AsyncpgDriver(connection))

    async def single() -> None:
        for number in range(1, jobs):
            await queries.enqueue("noop", str(number).encode())

    async def many() -> None:
        for at in range(0, jobs, common.BATCH):
            numbers = range(at, min(at + common.BATCH, jobs))
            payloads: list[bytes | None] = [str(number).encode() for number in numbers]
            await queries.enqueue(["noop"] * len(payloads), payloads, [0] * len(payloads))

    await queries.enqueue("noop", b"0")
    row = await common.rate_async(single(), jobs - 1), await common.rate_async(many(), jobs)
    await connection.close()
    return row


async def prepare() -> None:
    connection = await asyncpg.connect(common.URL)
    await Queries(AsyncpgDriver(connection)).install()
    await connection.close()


async def work() -> None:
    connection = await asyncpg.connect(common.URL)
    app = PgQueuer(AsyncpgDriver(connection))

    @app.entrypoint("noop")
    async def noop(job: Job) -> None:
        common.ran()

    @app.entrypoint("stamp")
    async def stamp(job: Job) -> None:
        assert job.payload is not None
        common.stamp(float(job.payload))

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, app.shutdown.set)
    await app.run(batch_size=WORKER_BATCH)


async def ask(count: int) -> None:
    connection = await asyncpg.connect(common.URL)
    queries = Queries(AsyncpgDriver(connection))
    await common.ask_async(lambda sent: queries.enqueue("stamp", repr(sent).encode()), count)
    await connection.close()


if __name__ == "__main__":
    common.main(
        enqueue=enqueue,
        serve=lambda: asyncio.run(work()),
        ask=ask,
        prepare=lambda: asyncio.run(prepare()),
    )
