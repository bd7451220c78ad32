"""One server for the tests that leave it as it is; each test has a prefix of its own."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from support.backends import SHARED, need
from support.redis_servers import RedisServer, redis_server

_numbers = count()


@pytest.fixture(scope="session")
def shared() -> Iterator[RedisServer]:
    """A server that the tests of this folder share."""
    need("redis")
    with redis_server() as server:
        SHARED.add(server.pid)
        yield server


@pytest.fixture
def url(shared: RedisServer) -> str:
    """A place of one's own on it."""
    return f"{shared.url}?prefix=own{next(_numbers)}:"


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """A server that the test may do anything to, with what it keeps on disk."""
    need("redis")
    with redis_server({"appendonly": "yes", "appendfsync": "everysec"}) as server:
        yield server
