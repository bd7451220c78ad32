"""What calls may cost: round trips and memory, counted by the server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from support.backends import server
from taskmq.ids import new_id
from taskmq.transport.types import Ack, Message, Payload, QueueShare, ReserveRequest
from taskmq_redis import RedisTransport

SCRIPTS = {"cmdstat_eval", "cmdstat_evalsha"}
RESULT = Payload("application/msgpack", b"\x2a")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with server("redis") as service:
        yield service.url


@pytest.fixture
def admin(url: str) -> Iterator[Any]:
    with redis.Redis.from_url(url) as client:
        client.flushall()
        yield client


@pytest.fixture
def transport(url: str) -> Iterator[RedisTransport]:
    made = RedisTransport.from_url(f"{url}?lua=on")
    yield made
    made.close()


def fill(transport: RedisTransport, jobs: int) -> None:
    messages = [
        Message(id=new_id(), task="noop", queue="q", envelope=bytes(200)) for _ in range(jobs)
    ]
    transport.enqueue(messages)


def work(transport: RedisTransport, batch: int) -> None:
    request = ReserveRequest(worker="w", queues=(QueueShare("q"),), limit=batch)
    found = transport.reserve(request).deliveries
    assert len(found) == batch
    acks = [Ack(receipt=each.receipt, result=RESULT) for each in found]
    assert {result.status for result in transport.settle("w", acks).results} == {"ok"}


def scripts_run(admin: Any) -> int:
    stats = admin.info("commandstats")
    return sum(stats[name]["calls"] for name in SCRIPTS & stats.keys())


@pytest.mark.parametrize("batch", [1, 10, 100])
def test_a_batch_is_reserved_and_settled_in_one_call_each(
    transport: RedisTransport, admin: Any, batch: int
) -> None:
    fill(transport, 6 * batch)
    work(transport, batch)
    admin.config_resetstat()
    for _ in range(5):
        work(transport, batch)
    assert scripts_run(admin) == 10


def test_a_plain_job_costs_five_commands_inside_the_scripts(
    transport: RedisTransport, admin: Any
) -> None:
    fill(transport, 400)
    work(transport, 100)
    admin.config_resetstat()
    for _ in range(3):
        work(transport, 100)
    stats = admin.info("commandstats")
    per_job = {
        name.removeprefix("cmdstat_"): round(stat["calls"] / 300, 1)
        for name, stat in stats.items()
        if stat["calls"] >= 300
    }
    assert per_job == {"hmget": 2.0, "hset": 2.0, "pexpireat": 1.0}


def test_a_finished_job_takes_little_more_than_what_it_holds(
    transport: RedisTransport, admin: Any
) -> None:
    fill(transport, 1)
    work(transport, 1)
    (key,) = admin.scan_iter("taskmq:j:*")
    assert admin.hgetall(key).keys() == {b"b", b"e", b"v", b"rs"}
    held = sum(map(len, admin.hgetall(key).values()))
    assert admin.memory_usage(key) < held + 500
