"""Jobs in a steady stream through worker processes, and how many a second they end while a test does harm."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from support.waiting import wait_until
from support.workers import Fleet, WorkerProcess, fleet
from taskmq import App, Config, JobState, TransportUnavailable

SLOTS = 8
WORKERS = 2
JOB_SECONDS = 0.01
"""So the slots decide how many jobs end a second, 1,600 at most, and not how busy the machine is."""
BATCH = 400
WINDOW = 1.0
"""Rates are those of the last so many seconds."""


class Recovery(NamedTuple):
    """What a disturbance did: jobs a second before and during it, and how long until all was well."""

    before: float
    during: float
    seconds: float


class Stream:
    """Workers that are never without work, and a producer that notes what was accepted."""

    def __init__(self, workers: Fleet) -> None:
        self._workers = workers
        self._counter = workers.effects.path
        self._counter.touch()
        self._app = App(Config(transport=workers.url, events="null", enqueue_timeout=30))
        self._drop = self._app.task(name="drop")(lambda seconds: None)
        self._stop = threading.Event()
        self._feeder = threading.Thread(target=self._feed, name="feeder")
        self.accepted: list[str] = []
        self.refused: list[TransportUnavailable] = []

    @property
    def done(self) -> int:
        """How many have run; what ran twice counts twice."""
        return self._counter.stat().st_size

    @contextlib.contextmanager
    def flowing(self) -> Iterator[None]:
        """Feed and work during the block; afterwards all that was accepted has ended well."""
        for _ in range(WORKERS):
            self.start_worker()
        self._feeder.start()
        try:
            wait_until(lambda: self.done > BATCH, 30, what="the stream to flow")
            yield
            self._stop.set()
            self._feeder.join(40)
            wait_until(lambda: not self._unfinished(), 60, 0.2, what="the accepted jobs to end")
        finally:
            self._stop.set()
            self._feeder.join(40)
            self._app.close()

    def start_worker(self) -> WorkerProcess:
        """One more worker."""
        return self._workers.start(concurrency=SLOTS)

    def kill_worker(self) -> None:
        """Kill the oldest one, and start another."""
        next(worker for worker in self._workers.workers if worker.alive).kill()
        self.start_worker()

    def rate(self, seconds: float) -> float:
        """Jobs a second that end from now on, for so long."""
        start, done = time.monotonic(), self.done
        time.sleep(seconds)
        return (self.done - done) / (time.monotonic() - start)

    def recovery(
        self, harm: contextlib.AbstractContextManager[None], share: float, within: float
    ) -> Recovery:
        """Measure, do harm, and wait until this share of the rate before is back, so many seconds at most."""
        before = self.rate(3 * WINDOW)
        start, done = time.monotonic(), self.done
        with harm:
            pass
        ended = time.monotonic()
        during = (self.done - done) / (ended - start)
        looks = [(ended, self.done)]

        def is_back() -> bool:
            now = time.monotonic()
            looks.append((now, self.done))
            then, done = next(look for look in looks if look[0] >= now - WINDOW)
            return now - ended >= WINDOW and (self.done - done) / (now - then) >= share * before

        wait_until(is_back, within, 0.05, what=f"{share:.0%} of {before:.0f} jobs a second")
        return Recovery(before, during, time.monotonic() - ended)

    def _feed(self) -> None:
        while not self._stop.wait(0.02):
            if len(self.accepted) - self.done > 3 * BATCH:
                continue
            try:
                handles = self._drop.map_async([(JOB_SECONDS,)] * BATCH)
            except TransportUnavailable as error:
                self.refused.append(error)
            else:
                self.accepted += [handle.id for handle in handles]

    def _unfinished(self) -> list[str]:
        left = []
        for start in range(0, len(self.accepted), 1000):
            ids = self.accepted[start : start + 1000]
            found = self._app.transport.get_results(ids)
            left += [
                job_id
                for job_id, result in zip(ids, found, strict=True)
                if result is None or result.state is not JobState.SUCCEEDED
            ]
        return left


@contextlib.contextmanager
def stream(folder: Path, url: str) -> Iterator[Stream]:
    """A stream whose workers are gone afterwards."""
    with fleet(folder, url, "support.stream_app", lease=3, heartbeat_interval=0.5) as workers:
        yield Stream(workers)
