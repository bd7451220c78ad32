"""The tasks of the pools' benchmark; children import this module and make the app anew."""

from __future__ import annotations

import asyncio
import time

from pools import HARD_TIMEOUT, SLEEP, spin

from taskmq import App, Config


def make_app(pool: str = "") -> App:
    """An app on memory with the tasks that the pool can run."""
    made = App(Config(transport="memory://", default_queue="bench", events="null"))

    @made.task(name="bench.noop")
    def noop(number: int) -> int:
        return number

    @made.task(name="bench.spin")
    def spin_for(seconds: float) -> int:
        return spin(seconds)

    @made.task(name="bench.stuck", hard_timeout=HARD_TIMEOUT)
    def stuck() -> None:
        time.sleep(30)

    if pool == "asyncio":

        @made.task(name="bench.sleep")
        async def sleep() -> None:
            await asyncio.sleep(SLEEP)

    return made


app = make_app()
