"""arq on Redis: 10 coroutines, no results kept; it polls, here every 10 ms (as it comes, each 0.5 s)."""

from __future__ import annotations

from typing import Any

from arq import create_pool, func
from arq.connections import RedisSettings
from arq.worker import run_worker
from peers import common

SETTINGS = RedisSettings.from_dsn(common.URL)


async def noop(context: dict[str, Any], number: int) -> None:
    common.ran()


async def stamp(context: dict[str, Any], sent: float) -> None:
    common.stamp(sent)


class Settings:
    redis_settings = SETTINGS
    functions = [func(noop, name="noop"), func(stamp, name="stamp")]
    max_jobs = 10
    keep_result = 0
    poll_delay = 0.01


async def enqueue(jobs: int) -> Any:
    pool = await create_pool(SETTINGS)
    await pool.enqueue_job("noop", 0)

    async def single() -> None:
        for number in range(1, jobs):
            await pool.enqueue_job("noop", number)

    row = await common.rate_async(single(), jobs - 1)
    await pool.aclose()
    return row, None


async def ask(count: int) -> None:
    pool = await create_pool(SETTINGS)
    await common.ask_async(lambda sent: pool.enqueue_job("stamp", sent), count)
    await pool.aclose()


if __name__ == "__main__":
    common.main(enqueue=enqueue, serve=lambda: run_worker(Settings), ask=ask)
