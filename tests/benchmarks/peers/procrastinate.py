"""Procrastinate on PostgreSQL: 10 coroutines, acks after the work; rows of done jobs stay, as it comes."""

from __future__ import annotations

import asyncio
from typing import Any

from peers import common
from procrastinate import App, PsycopgConnector

app = App(connector=PsycopgConnector(conninfo=common.URL))


@app.task(name="noop", queue="bench")
async def noop(number: int) -> None:
    common.ran()


@app.task(name="stamp", queue="bench")
async def stamp(sent: float) -> None:
    common.stamp(sent)


def enqueue(jobs: int) -> Any:
    def many() -> None:
        for at in range(0, jobs, common.BATCH):
            numbers = range(at, min(at + common.BATCH, jobs))
            noop.batch_defer(*[{"number": number} for number in numbers])

    with app.open():
        noop.defer(number=0)
        single = common.rate(
            lambda: [noop.defer(number=number) for number in range(1, jobs)], jobs - 1
        )
        return single, common.rate(many, jobs)


def prepare() -> None:
    with app.open():
        app.schema_manager.apply_schema()


async def work() -> None:
    async with app.open_async():
        await app.run_worker_async(concurrency=10)


def ask(count: int) -> None:
    with app.open():
        common.ask(lambda sent: stamp.defer(sent=sent), count)


if __name__ == "__main__":
    common.main(enqueue=enqueue, serve=lambda: asyncio.run(work()), ask=ask, prepare=prepare)
