"""Random calls against Redis, compared with a simple model after each of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from support.backends import server
from support.moved_redis import moved_transport
from taskmq.clock import FakeClock
from taskmq.transport import Transport
from unit.core.test_transport_state_machine import BOUNDED, TransportMachine


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with server("redis") as service:
        yield service.url


def run(url: str, monkeypatch: Any, options: str, examples: int, steps: int) -> None:
    with redis.Redis.from_url(url) as admin:

        class RedisMachine(TransportMachine):
            def make(self, clock: FakeClock) -> Transport:
                admin.flushdb()
                transport, self.clock = moved_transport(url + options, admin, monkeypatch)
                return transport

        run_state_machine_as_test(
            RedisMachine,
            settings=settings(BOUNDED, max_examples=examples, stateful_step_count=steps),
        )


@pytest.mark.timeout(180)
def test_redis_agrees_with_the_model(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run(url, monkeypatch, "?lua=on", 40, 30)


@pytest.mark.timeout(180)
def test_redis_agrees_with_the_model_without_lua(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run(url, monkeypatch, "?lua=off", 10, 20)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("options", ["?lua=on", "?lua=off"])
def test_redis_agrees_with_the_model_for_long(
    url: str, monkeypatch: pytest.MonkeyPatch, options: str
) -> None:
    run(url, monkeypatch, options, 400, 150)
