"""A worker at work and a producer that notes which of its calls returned, while a test does harm."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

from support.waiting import wait_until
from taskmq import App, Config, JobState, TaskHandle, TransportUnavailable
from taskmq_worker import Worker


class Load:
    """Jobs in a steady stream, on a thread, and a worker for them on another.

    Args:
        transport: A URL or a transport.
        timeout: How long the producer waits for the server.
        pause: How long it rests between two jobs.
        config: Further settings.
    """

    def __init__(
        self, transport: Any, *, timeout: float = 10.0, pause: float = 0.005, **config: Any
    ) -> None:
        config = {"concurrency": 4, **config}
        self.app = App(
            Config(transport=transport, events="null", enqueue_timeout=timeout, **config)
        )
        self.ran: dict[int, int] = {}
        """How often the job of each number has run."""
        self.accepted: list[TaskHandle[Any]] = []
        self.refused: list[TransportUnavailable] = []
        self.longest = 0.0
        """The longest call of the producer, seconds."""
        self._pause = pause
        self._stop = threading.Event()

        @self.app.task(name="work")
        def work(number: int) -> int:
            self.ran[number] = self.ran.get(number, 0) + 1
            return number

        self._task = work
        self._producer = threading.Thread(target=self._produce, name="producer")

    def _produce(self) -> None:
        number = 0
        while not self._stop.wait(self._pause):
            number += 1
            start = time.monotonic()
            try:
                self.accepted.append(self._task.delay(number))
            except TransportUnavailable as error:
                self.refused.append(error)
            self.longest = max(self.longest, time.monotonic() - start)

    @contextlib.contextmanager
    def running(self, *, lossless: bool = True) -> Iterator[None]:
        """Produce and work during the block; afterwards all that was accepted has ended."""
        with Worker(self.app) as worker:
            runner = threading.Thread(target=worker.run, name="worker")
            runner.start()
            self._producer.start()
            try:
                yield
                assert runner.is_alive()
                self._stop.set()
                self._producer.join(30)
                if lossless:
                    wait_until(
                        lambda: not self.unfinished(), 40, 0.1, what="the accepted jobs to end"
                    )
            finally:
                self._stop.set()
                worker.stop()
                runner.join(30)
                self._producer.join(30)
        assert not runner.is_alive()

    def unfinished(self) -> list[str]:
        """The accepted jobs that have not succeeded, or that nobody knows any more."""
        ids = [handle.id for handle in self.accepted]
        records = self.app.transport.get_jobs(ids)
        return [
            job_id
            for job_id, record in zip(ids, records, strict=True)
            if record is None or record.state is not JobState.SUCCEEDED
        ]

    def wait_for_more(self, count: int = 50, timeout: float = 30.0) -> float:
        """Until this many more jobs have run; how long that took."""
        start, before = time.monotonic(), len(self.ran)
        wait_until(lambda: len(self.ran) >= before + count, timeout, what=f"{count} more jobs")
        return time.monotonic() - start
