"""Connections cut again and again, in every pool: jobs go on within seconds, and probes tell the truth."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from support.backends import NETWORK, Backends
from support.proxy import Proxy, proxy_before
from support.waiting import wait_until
from support.workers import fleet
from taskmq import App, Config, JobState

pytestmark = [pytest.mark.timeout(240), pytest.mark.leaks]
SOON = 5.0
PAUSE = 0.05
"""Twenty jobs a second."""


class Steady:
    """A producer that is not behind the proxy, and the effects of the worker that is."""

    def __init__(self, app: App, counter: Path) -> None:
        self._drop = app.task(name="drop")(lambda seconds: None)
        self._app, self._counter = app, counter
        self._stop = threading.Event()
        self.ids: list[str] = []

    @contextlib.contextmanager
    def flowing(self) -> Iterator[None]:
        thread = threading.Thread(target=self._feed, name="feeder")
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join(30)

    def _feed(self) -> None:
        while not self._stop.wait(PAUSE):
            self.ids.append(self._drop.delay(0.001).id)

    def wait_for_more(self, count: int = 10) -> float:
        """Until so many more have run; how long that took."""
        start, before = time.monotonic(), self._counter.stat().st_size
        wait_until(lambda: self._counter.stat().st_size >= before + count, 30)
        return time.monotonic() - start

    def all_ended(self) -> bool:
        found = self._app.transport.get_results(self.ids)
        return {each and each.state for each in found} == {JobState.SUCCEEDED}


def is_ready(health: Path) -> bool:
    with contextlib.suppress(OSError, ValueError):
        return bool(json.loads(health.read_text())["ready"])
    return False


def behind(url: str, proxy: Proxy) -> str:
    """The same server by way of the proxy."""
    parts = urlsplit(url)
    return url.replace(f":{parts.port}", f":{proxy.port}", 1)


@pytest.mark.parametrize("pool", ["threads", "asyncio", "processes", "solo"])
@pytest.mark.parametrize("backend", NETWORK)
def test_a_worker_hears_again_soon_however_often_it_is_cut_off(
    backend: str,
    pool: str,
    tmp_path: Path,
    backends: Backends,
    request: pytest.FixtureRequest,
) -> None:
    seldom = 12 if request.config.getoption("--soak") else 1
    url = backends.url(backend, tmp_path)
    port = urlsplit(url).port
    assert port
    health = tmp_path / "health.json"
    with (
        proxy_before(port) as proxy,
        fleet(tmp_path, behind(url, proxy), "support.stream_app", lease=3) as workers,
        App(Config(transport=url, events="null")) as app,
    ):
        counter = workers.effects.path
        counter.touch()
        size = 1 if pool == "solo" else 4
        worker = workers.start(pool=pool, health_file=str(health), concurrency=size)
        steady = Steady(app, counter)
        with steady.flowing():
            steady.wait_for_more()
            for _ in range(5):
                proxy.cut()
                time.sleep(0.5)  # the rhythm of the fault, not a wait for something
            assert steady.wait_for_more() < SOON
            for _ in range(seldom):
                if seldom > 1:
                    time.sleep(10)
                proxy.cut()
                assert steady.wait_for_more() < SOON
            wait_until(lambda: is_ready(health), 10, what="the probe to say ready")
            # Away for good, for now: the probe must say so, and the worker must not give up.
            proxy.refuse()
            wait_until(lambda: not is_ready(health), 30, what="the probe to say not ready")
            proxy.accept()
            assert steady.wait_for_more() < SOON
            wait_until(lambda: is_ready(health), 10, what="the probe to say ready again")
        wait_until(steady.all_ended, 30, 0.1, what="every job to end")
        assert worker.alive
        assert worker.terminate() == 0
