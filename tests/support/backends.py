"""The backends that tests run on: each server is started when first asked for, once a session.

A test asks for a URL of its own: a file, a prefix or a schema that nobody else uses.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

import pytest

from support import services
from support.services import Service

NETWORK = ("redis", "postgres")
"""Backends with a server of their own."""
DURABLE = ("sqlite", *NETWORK)
"""Backends that several processes share."""
ALL = ("memory", *DURABLE)
CLUSTERED = (*DURABLE, "redis-cluster")
"""Those and a Redis Cluster, for what is worth its time: it differs in how its nodes are found."""

SHARED: set[int] = set()
"""Processes of servers that outlive the test which first asked for them."""


def need(name: str) -> None:
    """Skip the test at a desk without this server; fail it in CI."""
    missing = services.SERVERS[name].missing()
    if missing:
        message = f"{', '.join(missing)} not found: hatch run services up {name} installs it"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)


@contextmanager
def server(name: str) -> Iterator[Service]:
    """A server of one's own, or a skip where there is none."""
    need(name)
    with services.running(name) as service:
        yield service


class Backends:
    """The servers of one test session."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._servers: dict[str, Service] = {}
        self._numbers = count()

    def url(self, name: str, folder: Path) -> str:
        """A place of one's own on a backend; `folder` is for those that keep files."""
        number = next(self._numbers)
        if name == "memory":
            return "memory://"
        if name == "sqlite":
            return f"sqlite:///{folder}/queue-{number}.db"
        option = f"prefix=t{number}_" if name == "postgres" else f"prefix=t{number}:"
        url = self._server(name).url
        return f"{url}{'&' if '?' in url else '?'}{option}"

    def close(self) -> None:
        """Stop the servers."""
        self._stack.close()

    def _server(self, name: str) -> Service:
        if name not in self._servers:
            self._servers[name] = self._stack.enter_context(server(name))
            SHARED.update(self._servers[name].pids)
        return self._servers[name]


@pytest.fixture(scope="session")
def backends() -> Iterator[Backends]:
    """The backends of this session."""
    started = Backends()
    yield started
    started.close()
