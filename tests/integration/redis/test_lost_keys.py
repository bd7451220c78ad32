"""Any one key may be evicted or deleted: then every job still ends, and what is really lost is told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from support.backends import server
from support.moved_redis import MovedRedis, moved, read_moved_time
from taskmq.states import JobState
from taskmq.transport.types import (
    Ack,
    Edge,
    ErrorInfo,
    Hold,
    HoldRule,
    JobRecord,
    Message,
    Park,
    QueueShare,
    RateWish,
    ReapRequest,
    ReserveRequest,
    Retention,
    Retry,
    WorkerInfo,
)

PREFIX = "lost:"
QUEUES = ("q0", "q1", "q2", "q3")
KEEP = Retention(dead_letter_ttl=None, dead_letter_max=None, worker_ttl=1e9)
BOOM = ErrorInfo(type="ValueError", message="boom")
DAY = 86_400.0
# What is there whether or not there are jobs.
STANDING = {"seq", "time", "mt", "ids"}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with server("redis") as service:
        yield service.url


@pytest.fixture
def admin(url: str) -> Iterator[Any]:
    with redis.Redis.from_url(url) as client:
        client.flushdb()
        yield client


@pytest.fixture
def transport(url: str, admin: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[MovedRedis]:
    read_moved_time(monkeypatch)
    made = moved(f"{url}?prefix={PREFIX}", admin)
    yield made
    made.close()


def message(job_id: str, **fields: Any) -> Message:
    fields.setdefault("queue", "q0")
    return Message(id=job_id, task="t", envelope=b"x" * 100, job_ttl=DAY, **fields)


def take(transport: MovedRedis, worker: str, *queues: str, limit: int = 50) -> dict[str, str]:
    """The receipts of what a worker gets, by job."""
    request = ReserveRequest(
        worker=worker, queues=tuple(map(QueueShare, queues)), limit=limit, lease=30.0
    )
    return {each.id: each.receipt for each in transport.reserve(request).deliveries}


def one_of_each(transport: MovedRedis) -> list[str]:
    """Jobs in every place that a job can be in; all their ids."""
    transport.heartbeat(WorkerInfo(id="w1"))
    transport.acquire("leader", "w1", 60.0)
    transport.take_tokens([RateWish(name="rate", interval=0.1)])
    slots = {"queue": "q1", "concurrency_key": "slot", "concurrency_limit": 1}
    transport.enqueue([message(f"slot{n}", **slots) for n in range(3)])
    transport.enqueue(
        [
            message(name, queue="q2")
            for name in ("well", "held", "parked", "again", "revoked", "bad")
        ]
    )
    got = take(transport, "w1", "q1", "q2")
    transport.settle(
        "w1",
        [
            Ack(receipt=got["well"]),
            Park(receipt=got["parked"], timeout=100.0),
            Retry(receipt=got["again"], delay=50.0, error=BOOM),
            Ack(receipt=got["bad"], state=JobState.FAILED, error=BOOM),
        ],
    )
    transport.revoke(["revoked"])
    run = {"run": "run", "successors": (Edge("run"),)}
    transport.enqueue(
        [
            message("run", queue="q3", hold=Hold(arrivals=4, rule=HoldRule.ALL_DONE, finish=True)),
            message("ok", queue="q3", run="run", successors=(Edge("join"), Edge("run"))),
            message("fails", queue="q3", run="run", successors=(Edge("join"), Edge("run"))),
            message("slow", queue="q3", run="run", successors=(Edge("join"), Edge("run"))),
            message("join", queue="q3", hold=Hold(arrivals=3, rule=HoldRule.ALL_DONE), **run),
        ]
    )
    steps = take(transport, "w1", "q3", limit=2)
    transport.settle(
        "w1",
        [
            Ack(receipt=steps["ok"]),
            Ack(receipt=steps["fails"], state=JobState.FAILED, error=BOOM),
        ],
    )
    transport.enqueue(
        [
            message("plain"),
            message("urgent", priority=5),
            message("keyed", key="key", key_ttl=DAY),
            message("delayed", delay=60.0),
            message("expires", queue="nobody", expires=40.0),
            message("external", external=True),
        ]
    )
    assert list(take(transport, "w1", "q0", limit=1)) == ["urgent"]
    transport.update_meta(got["held"], b"\x80")
    others = "slot1 slot2 run ok fails slow join plain urgent keyed delayed expires"
    return [*got, *others.split()]


def reap(transport: MovedRedis) -> None:
    for _ in range(50):
        if not transport.reap(ReapRequest(retention=KEEP)).more:
            return
    raise AssertionError("reap never comes to an end")


def work_until_idle(transport: MovedRedis) -> None:
    """A worker that does all there is to do for some minutes, with maintenance beside it."""
    for _ in range(14):
        transport.clock.advance(25.0)
        reap(transport)
        while got := take(transport, "w2", *QUEUES):
            transport.settle("w2", [Ack(receipt=receipt) for receipt in got.values()])


def snapshot(admin: Any) -> dict[bytes, tuple[bytes, int]]:
    keys = sorted(admin.scan_iter(f"{PREFIX}*"))
    return {key: (admin.dump(key), max(admin.pttl(key), 0)) for key in keys}


def contents(admin: Any) -> dict[str, Any]:
    read = {
        b"hash": admin.hgetall,
        b"set": admin.smembers,
        b"string": admin.get,
        b"list": lambda key: admin.lrange(key, 0, -1),
        b"zset": lambda key: admin.zrange(key, 0, -1, withscores=True),
    }
    keys = list(admin.scan_iter(f"{PREFIX}*"))
    return {key.decode().removeprefix(PREFIX): read[admin.type(key)](key) for key in keys}


def restore(admin: Any, keys: dict[bytes, tuple[bytes, int]]) -> None:
    admin.flushdb()
    for key, (data, ttl) in keys.items():
        admin.restore(key, ttl, data)


def is_told(record: JobRecord | None) -> bool:
    """Whether the loss of a job's own record can be seen."""
    return record is None or record.reason == "record lost"


def check_after_loss(transport: MovedRedis, ids: list[str], name: str) -> list[str]:
    """What is wrong after the key `name` was deleted and everything has gone on."""
    wrong: list[str] = []
    lost = name.removeprefix("j:") if name.startswith("j:") else ""
    # What follows from a lost job is not known any more; its run is repaired by the plan.
    followers = {"ok", "fails", "slow", "join", "run"} if lost in {"slow", "join"} else set[str]()
    for record, job_id in zip(transport.get_jobs(ids), ids, strict=True):
        if job_id == lost:
            if not is_told(record):
                wrong.append(f"{name}: {job_id} is {record}")
        elif job_id not in followers and (record is None or not record.state.is_final):
            wrong.append(f"{name}: {job_id} is {record and record.state}")
    listed = {record.id for record in transport.list_jobs(limit=1000).jobs}
    missing = set(ids) - listed - {lost}
    if missing:
        wrong.append(f"{name}: {missing} are not listed")
    for stats in transport.stats():
        left = stats.pending + stats.delayed + stats.in_flight + stats.blocked + stats.waiting
        if left - (stats.queue == "q0") or (stats.held and not followers):
            wrong.append(f"{name}: {stats}")
    return wrong


@pytest.mark.timeout(180)
def test_every_job_ends_whichever_key_is_lost(transport: MovedRedis, admin: Any) -> None:
    ids = one_of_each(transport)
    keys = snapshot(admin)
    begin = transport.clock.time()
    wrong: list[str] = []
    names = [key.decode().removeprefix(PREFIX) for key in keys]
    assert {"r:q0", "d:q0", "le", "liver", "due", "ids", "a:join", "cs:slot", "k:key"} <= set(names)
    for name in ["", *names]:
        if name == "time":
            continue
        restore(admin, keys)
        transport.clock.set_time(begin)
        transport.clock.advance(0.0)
        admin.delete(PREFIX + name)
        work_until_idle(transport)
        wrong += check_after_loss(transport, ids, name)
    assert not wrong, "\n".join(wrong)


def test_a_join_remembers_a_failure_whichever_key_is_lost(
    transport: MovedRedis, admin: Any
) -> None:
    transport.enqueue(
        [
            message("join", hold=Hold(arrivals=2, rule=HoldRule.TOLERATE, tolerate=0)),
            message("a", successors=(Edge("join"),)),
            message("b", successors=(Edge("join"),)),
        ]
    )
    got = take(transport, "w1", "q0")
    failed = Ack(receipt=got["a"], state=JobState.FAILED, error=BOOM)
    transport.settle("w1", [failed])
    admin.delete(PREFIX + "af:join")
    transport.settle("w1", [Ack(receipt=got["b"])])
    (join,) = transport.get_jobs(["join"])
    assert join is not None
    assert join.state is JobState.SKIPPED


def test_the_list_of_all_jobs_is_found_again_though_the_sequence_was_lost_before_it(
    transport: MovedRedis, admin: Any
) -> None:
    transport.enqueue([message("delayed", delay=60.0), message("plain", queue="q1")])
    reap(transport)
    admin.delete(PREFIX + "seq", PREFIX + "ids")
    reap(transport)
    admin.delete(PREFIX + "d:q0", PREFIX + "due")
    work_until_idle(transport)
    assert [record and record.state for record in transport.get_jobs(["delayed", "plain"])] == [
        JobState.SUCCEEDED,
        JobState.SUCCEEDED,
    ]
    assert len(transport.list_jobs(limit=10).jobs) == 2


def test_nothing_is_left_when_all_is_over(transport: MovedRedis, admin: Any) -> None:
    ids = one_of_each(transport)
    transport.revoke(["external"])
    work_until_idle(transport)
    assert all(record and record.state.is_final for record in transport.get_jobs(ids))
    transport.deregister("w1")
    transport.purge_dead()
    transport.wait_jobs(ids, 0.1)
    forget = ReapRequest(retention=Retention(worker_ttl=1.0))
    for _ in range(3):
        transport.clock.advance(10 * DAY)
        while transport.reap(forget).more:
            pass
    kept = [key.decode().removeprefix(PREFIX) for key in admin.scan_iter(f"{PREFIX}*")]
    for_ever = {name for name in kept if admin.pttl(PREFIX + name) == -1}
    assert for_ever <= STANDING


def test_a_reap_of_jobs_that_are_all_right_mends_nothing(transport: MovedRedis, admin: Any) -> None:
    one_of_each(transport)
    reap(transport)
    before = contents(admin)
    transport.clock.advance(1.0)
    assert not transport.reap(ReapRequest(retention=KEEP)).more
    after = contents(admin)
    changed = {key for key in before | after if before.get(key) != after.get(key)}
    assert changed <= {"walk", "time"}
