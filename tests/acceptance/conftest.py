"""A producer's app and a fleet of worker processes on each backend that processes can share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.backends import DURABLE, Backends
from support.workers import Fleet, fleet
from taskmq import App, Config


@pytest.fixture(params=DURABLE)
def workers(request: pytest.FixtureRequest, tmp_path: Path, backends: Backends) -> Iterator[Fleet]:
    """Workers with a lease of 2 s, on a place of the test's own."""
    url = backends.url(request.param, tmp_path)
    with fleet(tmp_path, url, lease=2, heartbeat_interval=0.5, shutdown_timeout=3) as started:
        yield started


@pytest.fixture
def app(workers: Fleet) -> Iterator[App]:
    """The producer: knows tasks by name only."""
    with App(Config(transport=workers.url, lease=2, max_deliveries=3, events="null")) as producer:
        yield producer
