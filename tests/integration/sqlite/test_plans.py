"""No statement walks over all jobs, and plain batches need few statements."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from taskmq.clock import FakeClock
from taskmq.states import JobState
from taskmq.transport import completion_token
from taskmq.transport.sqlite import SqliteTransport
from taskmq.transport.types import (
    Ack,
    Bury,
    Completion,
    Defer,
    Edge,
    ErrorInfo,
    Extension,
    Hold,
    Message,
    Park,
    QueueShare,
    ReapRequest,
    ReserveRequest,
    Retention,
    Retry,
    WorkerInfo,
)

ERROR = ErrorInfo(message="no")
# 300 queues take another way than a few do.
ONE = (QueueShare("q"),)
MANY = tuple(QueueShare(f"q{n}") for n in range(300))


def message(name: str, **fields: Any) -> Message:
    given: dict[str, Any] = {"envelope": b"x", **fields}
    return Message(id=name, task="t", queue="q", **given)


def use_everything(transport: SqliteTransport, clock: FakeClock) -> None:
    """Come by every statement that there is."""

    def reserve(queues: tuple[QueueShare, ...] = ONE) -> list[str]:
        request = ReserveRequest(worker="w", queues=queues, limit=10)
        return [delivery.receipt for delivery in transport.reserve(request).deliveries]

    transport.heartbeat(WorkerInfo(id="w"))
    transport.list_workers()
    token = transport.acquire("beat", "me", 10) or 0
    transport.renew("beat", token, 10)
    transport.release("beat", token)
    transport.enqueue([message(f"job-{n}", priority=n % 3) for n in range(8)])
    transport.enqueue(
        [message("k1", concurrency_key="k", key="a"), message("k2", concurrency_key="k")]
    )
    transport.enqueue(
        [message("big", envelope=b"x" * 5_000), message("job-1"), message("later", delay=5)]
    )
    transport.enqueue([message("short", expires=5, delay=1)])
    transport.enqueue(
        [
            message("root", successors=(Edge("end"),), run="end"),
            message("end", hold=Hold(arrivals=1)),
        ]
    )
    first, second, third, fourth, *rest = reserve()
    reserve((*ONE, *MANY[:3]))
    reserve((*ONE, *MANY))
    transport.settle("w", [Ack(receipt=one) for one in rest])
    transport.settle(
        "w", [Retry(receipt=first, delay=1, error=ERROR), Defer(receipt=second, delay=2)]
    )
    transport.settle("w", [Bury(receipt=third, error=ERROR), Park(receipt=fourth, timeout=3)])
    transport.extend("w", [Extension(first, 5)])
    transport.update_meta(first, b"")
    transport.revoke(["k2", "job-0", "root"])
    transport.reclaim("w", [])
    transport.complete(completion_token("job-1", fourth), Completion(state="SUCCEEDED"))
    transport.list_dead()
    transport.list_dead("q", cursor="0.0/1")
    dead = [letter.id for letter in transport.list_dead().letters]
    transport.get_dead(dead[0])
    transport.replay_dead(dead)
    transport.reopen(["root"])
    transport.wait_jobs(["later", "job-1"], 0)
    transport.get_jobs(["later", "job-1"], envelopes=True)
    transport.get_jobs(["later"])
    transport.list_jobs(prefix="job", states=[JobState.FAILED], queue="q")
    transport.list_jobs(newest_first=True, cursor="job-3")
    transport.stats()
    transport.stats(["q"])
    transport.purge("q", limit=2)
    clock.advance(5_000)
    retention = Retention(dead_letter_ttl=1, dead_letter_max=0, max_finished_jobs=100)
    transport.reap(ReapRequest(retention=retention))
    reserve()
    transport.purge_dead(["x"])
    transport.purge_dead(queue="q")
    clock.advance(5e6)
    transport.reap(ReapRequest(retention=retention))
    transport.deregister("w")


SCANS_ALLOWED = (
    # Counting the finished, only with a limit on their number: the count of a covering index.
    "SELECT (SELECT count(*) FROM jobs)",
)


def test_no_statement_scans_a_table_of_jobs(tmp_path: Path) -> None:
    clock = FakeClock()
    transport = SqliteTransport(tmp_path / "x.db", clock=clock)
    seen: dict[str, None] = {}
    transport._database.on_statement = lambda sql: seen.setdefault(sql)
    use_everything(transport, clock)
    transport.close()

    connection = sqlite3.connect(tmp_path / "x.db")
    bad = []
    for sql in seen:
        if not sql.startswith(("SELECT", "UPDATE", "DELETE", "INSERT", "WITH")):
            continue
        if sql.startswith(SCANS_ALLOWED):
            continue
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}")]
        tables = ("jobs", "j", "keys", "k", "spent", "arrivals", "envelopes", "endings", "e")
        if any(line.split()[:2] == ["SCAN", table] for line in plan for table in tables):
            bad.append((sql, plan))
    connection.close()
    assert len(seen) > 60
    assert bad == []


def counted(transport: SqliteTransport, act: Callable[[], object]) -> int:
    """How many statements an act takes; a row of an `executemany` is no statement of its own."""
    seen: list[str] = []
    connection = transport._database._writer
    assert connection is not None
    connection.set_trace_callback(
        lambda sql: seen.append(sql.split(" WHERE ")[0].split(" VALUES ")[0][:40])
    )
    act()
    connection.set_trace_callback(None)
    return len([sql for sql, before in zip(seen, ["", *seen[:-1]], strict=True) if sql != before])


@pytest.mark.parametrize("size", [1, 10, 100])
def test_a_plain_batch_takes_few_statements_whatever_its_size(tmp_path: Path, size: int) -> None:
    transport = SqliteTransport(tmp_path / "x.db")
    transport.enqueue([message(f"first-{n}") for n in range(10)])
    messages = [message(f"job-{n}") for n in range(size)]
    assert counted(transport, lambda: transport.enqueue(messages)) <= 5
    request = ReserveRequest(worker="w", queues=ONE, limit=size)
    receipts: list[str] = []
    reserving = counted(
        transport, lambda: receipts.extend(d.receipt for d in transport.reserve(request).deliveries)
    )
    assert reserving <= 6
    assert len(receipts) == size
    acks = [Ack(receipt=receipt) for receipt in receipts]
    assert counted(transport, lambda: transport.settle("w", acks)) <= 6
    transport.close()
