"""Batches of acks whose jobs are waited for: in bulk, and the same as one by one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from taskmq import JobState
from taskmq.transport.sqlite import SqliteTransport
from taskmq.transport.types import (
    Ack,
    Edge,
    FollowUps,
    Hold,
    HoldRule,
    Message,
    Payload,
    QueueShare,
    ReserveRequest,
    SettleReply,
)


@pytest.fixture
def transport(tmp_path: Path) -> Iterator[SqliteTransport]:
    made = SqliteTransport.from_url(f"sqlite:///{tmp_path}/q.db")
    yield made
    made.close()


def message(job_id: str, *edges: Edge, hold: Hold | None = None, key: str | None = None) -> Message:
    return Message(
        id=job_id, task="t", queue="q", envelope=b"x", successors=edges, hold=hold, key=key
    )


def settle_all(transport: SqliteTransport, *failed: str) -> tuple[list[Ack], SettleReply]:
    request = ReserveRequest(worker="w", queues=(QueueShare("q"),), limit=100)
    acks = [
        Ack(
            receipt=each.receipt,
            state=JobState.FAILED if each.id in failed else JobState.SUCCEEDED,
            result=Payload("application/msgpack", b"\x01"),
            started_ago=0.5,
        )
        for each in transport.reserve(request).deliveries
    ]
    return acks, transport.settle("w", acks)


def test_many_arrive_at_one_record_at_once(transport: SqliteTransport) -> None:
    transport.enqueue([message("join", Edge("end"), hold=Hold(arrivals=60))])
    transport.enqueue([message("end", hold=Hold(arrivals=1, finish=True))])
    transport.enqueue([message(f"p{n}", Edge("join")) for n in range(60)])
    acks, reply = settle_all(transport)
    assert {each.status for each in reply.results} == {"ok"}
    join, first = transport.get_jobs(["join", "p0"])
    assert join is not None
    assert first is not None
    assert (join.state, join.arrived) == (JobState.QUEUED, 60)
    assert first.state is JobState.SUCCEEDED
    assert first.started_at is not None
    assert first.result == Payload("application/msgpack", b"\x01")
    assert {each.status for each in transport.settle("w", acks).results} == {"already"}
    settle_all(transport)
    end = transport.get_jobs(["end"])[0]
    assert end is not None
    assert end.state is JobState.SUCCEEDED


def test_failures_among_them_are_counted_one_by_one(transport: SqliteTransport) -> None:
    tolerant = Hold(arrivals=10, rule=HoldRule.TOLERATE, tolerate=1)
    transport.enqueue(
        [
            message("strict", hold=Hold(arrivals=10)),
            message("tolerant", hold=tolerant),
            *(message(f"p{n}", Edge("strict"), Edge("tolerant")) for n in range(10)),
        ]
    )
    settle_all(transport, "p3")
    strict, tolerated = transport.get_jobs(["strict", "tolerant"])
    assert strict is not None
    assert tolerated is not None
    assert strict.state is JobState.SKIPPED
    assert strict.error is not None
    assert "p3" in strict.error.message
    assert (tolerated.state, tolerated.arrived) == (JobState.QUEUED, 10)


def test_a_chain_inside_one_batch_goes_on(transport: SqliteTransport) -> None:
    node = Hold(arrivals=2, finish=True)
    transport.enqueue(
        [
            message("a", Edge("n")),
            message("b", Edge("n")),
            message("n", Edge("m"), hold=node),
            message("m", hold=Hold(arrivals=1)),
        ]
    )
    settle_all(transport)
    found = transport.get_jobs(["n", "m"])
    assert [each.state for each in found if each] == [JobState.SUCCEEDED, JobState.QUEUED]


def test_what_is_not_plain_goes_one_by_one(transport: SqliteTransport) -> None:
    transport.enqueue([message("join", hold=Hold(arrivals=3))])
    transport.enqueue([message("p0", Edge("join")), message("p1", Edge("join"), key="k")])
    transport.enqueue([message("p2", Edge("join"))])
    request = ReserveRequest(worker="w", queues=(QueueShare("q"),), limit=10)
    acks = [Ack(receipt=each.receipt) for each in transport.reserve(request).deliveries]
    reply = transport.settle("w", [*acks, Ack(receipt="1-none"), Ack(receipt="nonsense")])
    assert [each.status for each in reply.results] == ["ok", "ok", "ok", "lost", "lost"]
    join = transport.get_jobs(["join"])[0]
    assert join is not None
    assert join.state is JobState.QUEUED


def test_follow_ups_are_inserted_in_bulk_and_known_ones_left_alone(
    transport: SqliteTransport,
) -> None:
    transport.enqueue([message("root"), message("known")])
    request = ReserveRequest(worker="w", queues=(QueueShare("q"),), limit=1)
    root = transport.reserve(request).deliveries[0]
    new = tuple(message(f"n{n}", Edge("join")) for n in range(20))
    held = message("join", hold=Hold(arrivals=20))
    for again in (new, (*new, message("known"))):
        follow_ups = FollowUps(enqueue=(held, *again))
        transport.settle("w", [Ack(receipt=root.receipt, follow_ups=follow_ups)])
    assert transport.stats(["q"])[0].pending == 21
    settle_all(transport)
    join = transport.get_jobs(["join"])[0]
    assert join is not None
    assert join.state is JobState.QUEUED
