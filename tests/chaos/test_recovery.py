"""What happens to servers in real life, under load: throughput is back soon after, and nothing is lost.

By `hatch run soak` 95 % of the throughput before must be back, here half of it: what is looked for is a
worker or a session that never comes back, and a machine of tests has other things to do.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import psycopg
import pytest

from support.backends import need
from support.pg_servers import PgServer, pg_server
from support.redis_servers import RedisServer, redis_server
from support.stream import Stream, stream

pytestmark = [pytest.mark.timeout(240), pytest.mark.leaks]


class Figures(NamedTuple):
    share: float
    turns: int
    """How often each disturbance comes."""
    seconds: float
    """How long those last that have a length."""


@pytest.fixture
def figures(request: pytest.FixtureRequest) -> Figures:
    return Figures(0.95, 3, 8.0) if request.config.getoption("--soak") else Figures(0.5, 1, 2.0)


Harm = Callable[[], contextlib.AbstractContextManager[None]]


def disturb(flow: Stream, harms: dict[str, Harm], figures: Figures, *, within: float) -> None:
    """Do each harm in turn, and print what it did."""
    with flow.flowing():
        for name, harm in harms.items():
            for _ in range(figures.turns):
                found = flow.recovery(harm(), figures.share, within)
                print(
                    f"{name:<22} before {found.before:6.0f}/s  during {found.during:6.0f}/s  "
                    f"back after {found.seconds:4.1f} s"
                )
    print(f"{len(flow.accepted):,} accepted, all ended; {len(flow.refused)} calls refused")


def again(
    act: Callable[[], object], seconds: float, pause: float
) -> contextlib.AbstractContextManager[None]:
    """Do it again and again, for so long."""

    @contextlib.contextmanager
    def harm() -> Iterator[None]:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            act()
            time.sleep(pause)
        yield

    return harm()


def once(act: Callable[[], object]) -> contextlib.AbstractContextManager[None]:
    return again(act, 0.0001, 0.0)


# PostgreSQL ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def idle_sessions(server: PgServer, seconds: float) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for _ in range(90):
            stack.enter_context(psycopg.connect(server.url, autocommit=True))
        time.sleep(seconds)
        yield


@contextlib.contextmanager
def idle_in_transaction(server: PgServer, seconds: float) -> Iterator[None]:
    with psycopg.connect(server.url) as session:
        session.execute("SELECT count(*) FROM taskmq_messages")
        session.execute("CREATE TABLE written (n integer)")
        time.sleep(seconds)
        yield
        session.rollback()


@contextlib.contextmanager
def overlapping_readers(server: PgServer, seconds: float) -> Iterator[None]:
    """Four readers with snapshots of their own: there is always one of them open."""
    length = seconds / 5

    def read() -> psycopg.Connection[tuple[object, ...]]:
        session = psycopg.connect(server.url)
        session.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        session.execute("SELECT count(*) FROM taskmq_jobs")
        return session

    readers: list[psycopg.Connection[tuple[object, ...]]] = []
    try:
        for _ in range(4):
            readers.append(read())
            time.sleep(length)
            if len(readers) > 1:
                readers.pop(0).close()
        yield
    finally:
        for reader in readers:
            reader.close()


def test_postgres_is_back_soon_after_each_disturbance(tmp_path: Path, figures: Figures) -> None:
    need("postgres")
    with pg_server("max_connections=110") as server, stream(tmp_path, server.url) as flow:
        seconds = figures.seconds
        harms: dict[str, Harm] = {
            "restart": lambda: once(server.restart),
            "crash": lambda: once(lambda: server.restart(signal.SIGQUIT)),
            "terminated sessions": lambda: again(server.terminate, seconds, 0.1),
            "90 idle sessions": lambda: idle_sessions(server, seconds),
            "idle in transaction": lambda: idle_in_transaction(server, seconds),
            "overlapping readers": lambda: overlapping_readers(server, seconds),
            "killed workers": lambda: again(flow.kill_worker, seconds, 1.0),
        }
        disturb(flow, harms, figures, within=10)


# Redis --------------------------------------------------------------------------------------------


def test_redis_is_back_soon_after_each_disturbance(tmp_path: Path, figures: Figures) -> None:
    need("redis")
    kept = {"appendonly": "yes", "appendfsync": "always"}
    with redis_server(kept) as server, stream(tmp_path, server.url) as flow:
        seconds = figures.seconds
        harms: dict[str, Harm] = {
            "restart": lambda: once(server.restart),
            "crash": lambda: once(lambda: server.restart(kill=True)),
            "cut connections": lambda: again(server.cut, seconds, 0.1),
            "freeze": lambda: frozen(server, seconds),
            "killed workers": lambda: again(flow.kill_worker, seconds, 1.0),
        }
        disturb(flow, harms, figures, within=5)


@contextlib.contextmanager
def frozen(server: RedisServer, seconds: float) -> Iterator[None]:
    server.freeze()
    try:
        time.sleep(seconds)
    finally:
        server.thaw()
    yield
