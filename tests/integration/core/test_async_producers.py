"""Producers on event loops: a slow or absent backend holds up the call, never the loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from taskmq import App, Config, TransportUnavailable
from taskmq.errors import EncodeError, TransportError
from taskmq.transport.memory import MemoryTransport
from taskmq.transport.types import Enqueued, JobRecord, Message
from taskmq_worker import Worker

SLOW = 0.8
"""What a call takes; a loop that waits for it even once is that late."""
LATE = 0.75


class Slow(MemoryTransport):
    """Every call takes its time; `away` raises after it."""

    def __init__(self) -> None:
        super().__init__()
        self.away = False
        self.batches: list[int] = []
        self.refused: set[str] = set()
        self._pause = threading.Event()

    def _wait(self) -> None:
        self._pause.wait(SLOW)
        if self.away:
            raise TransportUnavailable("away (test)")

    def enqueue(self, messages: Sequence[Message], **options: Any) -> list[Enqueued]:
        self.batches.append(len(messages))
        self._wait()
        if any(message.id in self.refused for message in messages):
            raise TransportError("refused (test)")
        return super().enqueue(messages, **options)

    def wake(self, waiter: str) -> None:
        self._wait()
        super().wake(waiter)

    def get_jobs(self, ids: Sequence[str], *, envelopes: bool = False) -> list[JobRecord | None]:
        self._wait()
        return super().get_jobs(ids, envelopes=envelopes)


@asynccontextmanager
async def lag() -> AsyncIterator[list[float]]:
    """How late a coroutine was that wanted to run every few milliseconds."""
    found = [0.0]

    async def beat() -> None:
        while True:
            asked = time.monotonic()
            await asyncio.sleep(0.005)
            found[0] = max(found[0], time.monotonic() - asked - 0.005)

    task = asyncio.create_task(beat())
    try:
        yield found
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest.fixture
def slow() -> Slow:
    return Slow()


@pytest.fixture
def app(slow: Slow) -> App:
    made = App(Config(transport=slow, events="null"))
    made.task(name="add")(lambda a, b: a + b)
    return made


def run(main: Callable[[], Any]) -> None:
    asyncio.run(asyncio.wait_for(main(), 30))


def test_submitting_to_a_slow_backend_does_not_hold_up_the_loop(app: App, slow: Slow) -> None:
    add: Any = app.tasks["add"]

    async def main() -> None:
        async with lag() as late:
            handles = await asyncio.gather(
                *(add.adelay(n, 1) for n in range(200)),
                *(add.aapply_async((n,), {"b": 2}, priority=3) for n in range(200)),
            )
            assert len({handle.id for handle in handles}) == 400
        assert late[0] < LATE

    began = time.monotonic()
    run(main)
    # Gathered into few calls, not 400 after one another.
    assert sum(slow.batches) == 400
    assert len(slow.batches) <= 3
    assert time.monotonic() - began < 10


def test_with_the_backend_away_the_loop_and_its_executor_stay_free(app: App, slow: Slow) -> None:
    add: Any = app.tasks["add"]
    slow.away = True

    async def main() -> None:
        async with lag() as late:
            calls = [asyncio.ensure_future(add.adelay(n, 1)) for n in range(100)]
            await asyncio.sleep(0.05)
            # Threads of the program's own are not taken up by what waits for the backend.
            began = time.monotonic()
            await asyncio.gather(*(asyncio.to_thread(int) for _ in range(50)))
            assert time.monotonic() - began < LATE
            errors = await asyncio.gather(*calls, return_exceptions=True)
            assert {type(error) for error in errors} == {TransportUnavailable}
            slow.away = False
            assert (await add.adelay(1, 1)).id
        assert late[0] < LATE

    run(main)


def test_results_are_awaited_without_holding_up_the_loop(app: App) -> None:
    add: Any = app.tasks["add"]

    async def main() -> None:
        async with lag() as late:
            handles = await asyncio.gather(*(add.adelay(n, 1) for n in range(50)))
            results = await asyncio.gather(*(handle.aget(timeout=20) for handle in handles))
            assert results == [n + 1 for n in range(50)]
        assert late[0] < LATE

    with Worker(app, concurrency=4):
        run(main)


def test_waits_that_come_one_after_the_other_all_hear_of_the_end(app: App) -> None:
    add: Any = app.tasks["add"]

    async def main() -> None:
        for n in range(3):
            handle = await add.adelay(n, 1)
            assert await handle.aget(timeout=10) == n + 1

    with Worker(app, concurrency=1):
        run(main)


def test_a_call_that_is_wrong_raises_at_once_and_the_others_are_sent(app: App, slow: Slow) -> None:
    add: Any = app.tasks["add"]

    async def main() -> None:
        good = asyncio.ensure_future(add.adelay(1, 1))
        with pytest.raises(TypeError):
            await add.adelay(1)
        with pytest.raises(EncodeError):
            await add.adelay(1, object())
        assert (await good).id

    run(main)
    assert sum(slow.batches) == 1


def test_one_refused_message_fails_its_own_call_only(app: App, slow: Slow) -> None:
    add: Any = app.tasks["add"]
    slow.refused = {"bad"}

    async def main() -> list[Any]:
        calls = [
            add.aapply_async((1, 1), job_id=name) for name in ("first", "good", "bad", "better")
        ]
        return await asyncio.gather(*calls, return_exceptions=True)

    ends = asyncio.run(asyncio.wait_for(main(), 30))
    assert [type(end) is TransportError for end in ends] == [False, False, True, False]


def test_loops_may_come_and_go(app: App) -> None:
    add: Any = app.tasks["add"]

    async def leave() -> None:
        # Not awaited to its end: it may be stored, and must not break the next.
        asyncio.ensure_future(add.adelay(1, 1))  # noqa: RUF006
        await asyncio.sleep(0.01)

    asyncio.run(leave())

    async def main() -> str:
        return str((await add.adelay(1, 1)).id)

    assert asyncio.run(asyncio.wait_for(main(), 30))


def test_an_eager_app_runs_the_job_before_the_call_returns() -> None:
    eager = App(Config(eager=True, events="null"))
    add: Any = eager.task(name="add")(lambda a, b: a + b)

    async def main() -> int:
        handle = await add.adelay(1, 2)
        return int(handle.get(timeout=0.1))

    assert asyncio.run(main()) == 3
    eager.close()
