"""Claims, settlements and reaps stay on their indexes, whatever else the tables hold."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import psycopg
import pytest

from support import postgres
from taskmq.states import JobState
from taskmq.transport import completion_token
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
    Payload,
    QueueShare,
    ReapRequest,
    ReserveRequest,
    Retention,
    Retry,
    WorkerInfo,
)
from taskmq_postgres import arrays
from taskmq_postgres.database import Database
from taskmq_postgres.transport import PostgresTransport

ERROR = ErrorInfo(message="no")
ONE = (QueueShare("q"),)
MANY = tuple(QueueShare(f"q{n}") for n in range(40))
BIG = ("jobs", "messages", "dead", "barriers", "arrivals", "keys", "spent", "endings")
KEEP_ALL = Retention(dead_letter_ttl=None, dead_letter_max=None)
_SCAN = re.compile(r"Seq Scan on (\S+)")


class Watched(PostgresTransport):
    """Runs on one connection, whose plans are kept."""

    def __init__(self, place: postgres.Place) -> None:
        super().__init__(Database(place.settings))
        self.place = place
        self.plans: list[str] = []
        self.connection = psycopg.connect(place.url, autocommit=True)
        arrays.register(self.connection.adapters)
        self.connection.execute(
            "LOAD 'auto_explain'; SET auto_explain.log_nested_statements = on; "
            "SET auto_explain.log_analyze = on; SET auto_explain.log_buffers = on; "
            "SET client_min_messages = log"
        )
        self.connection.add_notice_handler(self._keep)

    def _keep(self, notice: psycopg.errors.Diagnostic) -> None:
        text = notice.message_primary or ""
        if "plan:" in text:
            self.plans.append(text)

    def watch(self) -> None:
        """Keep the plans from here on."""
        self.plans.clear()
        self.connection.execute("SET auto_explain.log_min_duration = 0")

    def _ask(self, sql: str, parameters: Sequence[Any], **_how: bool) -> list[tuple[Any, ...]]:
        cursor = self.connection.execute(self._statement(sql), parameters, binary=True)
        return cursor.fetchall()

    def close(self) -> None:
        self.connection.close()
        super().close()

    def scans(self) -> list[str]:
        """The big tables that a plan walks over from end to end."""
        prefix = self._database.names.prefix
        return [
            plan
            for plan in self.plans
            for table in _SCAN.findall(plan)
            if table.removeprefix(prefix) in BIG
        ]

    def buffers(self) -> int:
        """How many pages the last call met, all its statements together."""
        found = re.findall(r"shared hit=(\d+)(?: read=(\d+))?", self.plans[-1])
        return sum(map(int, filter(None, found[0]))) if found else 0


@pytest.fixture(scope="module")
def place() -> Iterator[postgres.Place]:
    with postgres.server() as service:
        place = postgres.Place(service.url)
        yield place
        place.close()


@pytest.fixture
def transport(place: postgres.Place) -> Iterator[Watched]:
    place.empty()
    place.connection.execute("VACUUM ANALYZE")
    watched = Watched(place)
    yield watched
    watched.close()


def message(name: str, **fields: Any) -> Message:
    given: dict[str, Any] = {"envelope": b"x", "queue": "q", **fields}
    return Message(id=name, task="t", **given)


def receipts_of(transport: PostgresTransport, queues: tuple[QueueShare, ...] = ONE) -> list[str]:
    request = ReserveRequest(worker="w", queues=queues, limit=10)
    return [delivery.receipt for delivery in transport.reserve(request).deliveries]


def use_everything(transport: PostgresTransport) -> None:
    """Come by every statement that there is."""
    transport.heartbeat(WorkerInfo(id="w"))
    token = transport.acquire("beat", "me", 10) or 0
    transport.renew("beat", token, 10)
    transport.release("beat", token)
    transport.enqueue([message(f"job-{n}", priority=n % 3) for n in range(8)])
    transport.enqueue([message("k1", concurrency_key="k", key="a"), message("k2", key="b")])
    transport.enqueue([message("job-1"), message("later", delay=500)])
    transport.enqueue([message("single")])
    graph = [
        message("root", successors=(Edge("end"),), run="end"),
        message("end", hold=Hold(arrivals=1)),
    ]
    transport.enqueue(graph)
    first, second, third, fourth, *rest = receipts_of(transport)
    receipts_of(transport, (*ONE, *MANY))
    transport.settle("w", [Ack(receipt=one, result=Payload("x", b"1")) for one in rest])
    transport.settle(
        "w", [Retry(receipt=first, delay=0, error=ERROR), Defer(receipt=second, delay=2)]
    )
    transport.settle("w", [Bury(receipt=third, error=ERROR), Park(receipt=fourth, timeout=300)])
    transport.extend("w", [Extension(first, 5)])
    transport.update_meta(first, b"")
    transport.revoke(["k2", "job-0", "root"])
    transport.reclaim("w", [])
    transport.complete(completion_token("job-1", fourth), Completion(state="SUCCEEDED"))
    transport.list_dead()
    dead = [letter.id for letter in transport.list_dead("q", cursor="0.0/1").letters]
    transport.get_dead(dead[0])
    transport.replay_dead(dead)
    transport.reopen(["root"])
    transport.get_jobs(["later", "job-1"], envelopes=True)
    transport.list_jobs(prefix="job", states=[JobState.FAILED], queue="q")
    transport.reap(ReapRequest(retention=Retention(dead_letter_max=0, max_finished_jobs=0)))
    transport.purge("q", limit=2)
    transport.purge_dead(["x"])
    transport.deregister("w")


def test_no_statement_walks_over_a_table_of_jobs(transport: Watched) -> None:
    use_everything(transport)
    transport.place.empty()
    transport.watch()
    use_everything(transport)
    assert len(transport.plans) > 300
    # Pages of dead letters by queue, and the count of what is kept, are small or bounded.
    walked = [plan for plan in transport.scans() if "taskmq_endings" not in plan]
    assert walked == []


def fill(place: postgres.Place, rows: int) -> None:
    """Delayed jobs of higher priority, dead ones, those of another queue and finished ones."""
    quarter = rows // 4
    jobs = (
        "INSERT INTO {jobs} (job, enqueued_at, job_ttl, max_deliveries, priority, id, task, queue, "
        "state, finished_at, envelope) SELECT nextval({'numbers}), 1, 1e9, 5, 5, %s || g, 't', %s, "
        "%s, 1, '\\x00' FROM generate_series(1, %s) g"
    )
    for name, queue, state in (
        ("delayed", "q", None),
        ("foreign", "other", None),
        ("dead", "q", "FAILED"),
        ("finished", "q", "SUCCEEDED"),
    ):
        place.run(jobs, name, queue, state, quarter)
    place.run(
        "INSERT INTO {messages} (job, place, priority, phase, rank, queue, max_deliveries) "
        "SELECT job, job, 5, CASE queue WHEN 'q' THEN 4 ELSE 1 END, 4e9 + job, queue, 5 FROM {jobs} "
        "WHERE state IS NULL"
    )
    place.run("INSERT INTO {dead} SELECT job, queue, 4e9 FROM {jobs} WHERE state = 'FAILED'")
    place.run(
        "INSERT INTO {endings} SELECT 4e9, array_agg(job) FROM {jobs} WHERE state = 'SUCCEEDED' "
        "GROUP BY job / 100"
    )


def pages_of_calls(transport: Watched) -> dict[str, int]:
    """How many pages a claim, its settlement and a reap meet."""
    transport.enqueue([message(f"a{n}-{time.monotonic_ns()}") for n in range(60)])
    met: dict[str, int] = {}

    def measure(name: str, call: Callable[[], Any]) -> Any:
        transport.watch()
        answer = call()
        met[name] = transport.buffers()
        return answer

    for _ in range(6):
        receipts = measure("claim", lambda: receipts_of(transport))
        assert len(receipts) == 10
        acks = [Ack(receipt=receipt) for receipt in receipts]
        measure("settle", partial(transport.settle, "w", acks))
        measure("reap", lambda: transport.reap(ReapRequest(retention=KEEP_ALL)))
    return met


@pytest.mark.scaled
@pytest.mark.timeout(300)
def test_what_else_is_there_costs_no_pages(
    transport: Watched, request: pytest.FixtureRequest
) -> None:
    empty = pages_of_calls(transport)
    fill(transport.place, 1_000_000 if request.config.getoption("--soak") else 40_000)
    full = pages_of_calls(transport)
    assert transport.scans() == []
    for name, pages in full.items():
        # Indexes of more rows are a level or two deeper.
        assert pages <= 2 * empty[name] + 60, (name, empty, full)
    claim = "\n".join(transport.plans)
    assert "taskmq_messages_over" in claim


def test_claims_take_the_index_of_what_is_ready(transport: Watched) -> None:
    transport.enqueue([message(f"j{n}") for n in range(20)])
    transport.watch()
    receipts_of(transport)
    picked = [plan for plan in transport.plans if "FOR UPDATE SKIP LOCKED" in plan]
    assert picked
    assert "taskmq_messages_ready" in picked[-1]
    assert "Sort" not in picked[-1]


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_claims_take_as_long_as_in_an_empty_table(place: postgres.Place) -> None:
    transport = place.transport()

    def p95() -> float:
        taken: list[float] = []
        for turn in range(200):
            transport.enqueue([message(f"t{time.monotonic_ns()}-{n}") for n in range(10)])
            begun = time.perf_counter()
            receipts = receipts_of(transport)
            taken.append(time.perf_counter() - begun)
            assert len(receipts) == 10, turn
            transport.settle("w", [Ack(receipt=receipt) for receipt in receipts])
        return statistics.quantiles(taken, n=20)[-1]

    p95()
    empty = p95()
    fill(place, 1_000_000)
    assert p95() <= 2 * empty
    transport.close()


@pytest.mark.parametrize("size", [1, 10, 100])
def test_a_batch_takes_one_statement_to_claim_and_one_to_settle(
    place: postgres.Place, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = place.transport()
    transport.enqueue([message(f"j{n}") for n in range(3 * size)])
    request = ReserveRequest(worker="w", queues=ONE, limit=size)

    def batch() -> None:
        receipts = [delivery.receipt for delivery in transport.reserve(request).deliveries]
        assert len(receipts) == size
        transport.settle("w", [Ack(receipt=receipt) for receipt in receipts])

    batch()
    sent: list[str] = []
    query = transport._database.query

    def counted(sql: Any, *args: Any, **options: Any) -> Any:
        sent.append(sql)
        return query(sql, *args, **options)

    monkeypatch.setattr(transport._database, "query", counted)
    monkeypatch.setattr(transport._database, "transaction", None)
    batch()
    assert len(sent) == 2
    transport.close()
