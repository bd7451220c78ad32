"""Each operation is killed by SIGKILL before each of its statements, and once after the last."""

import os
import shutil
import signal
import sqlite3
import warnings
from collections.abc import Callable
from dataclasses import dataclass
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
    Delivery,
    Edge,
    ErrorInfo,
    Extension,
    FollowUps,
    Hold,
    Message,
    Park,
    Payload,
    QueueShare,
    ReapRequest,
    Release,
    ReserveRequest,
    Retry,
    WorkerInfo,
)

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forked children")

State = dict[str, Delivery]
ERROR = ErrorInfo(type="ValueError", message="no")


def message(name: str, **fields: Any) -> Message:
    given: dict[str, Any] = {"envelope": b"call", **fields}
    return Message(id=name, task="t", queue="q", **given)


def reserve(transport: SqliteTransport, limit: int = 10) -> State:
    request = ReserveRequest(worker="w", queues=(QueueShare("q"),), limit=limit)
    return {delivery.id: delivery for delivery in transport.reserve(request).deliveries}


@dataclass
class Case:
    """What is there before, what is killed, and how much later that is."""

    prepare: Callable[[SqliteTransport], State]
    act: Callable[[SqliteTransport, State], Any]
    later: float = 0.0
    repeatable: bool = True


def nothing(_: SqliteTransport) -> State:
    return {}


def three(transport: SqliteTransport) -> State:
    transport.enqueue([message(f"job-{n}") for n in range(3)])
    return reserve(transport)


def graph(transport: SqliteTransport) -> State:
    """Two roots, a join of both, something after the join, and a run that collects it."""
    transport.enqueue(
        [
            message("run", hold=Hold(arrivals=1, finish=True, otherwise=JobState.FAILED)),
            message("a", successors=(Edge("join"),), run="run"),
            message("b", successors=(Edge("join"),), run="run"),
            message("join", hold=Hold(arrivals=2), successors=(Edge("last"),), run="run"),
            message("last", hold=Hold(arrivals=1), successors=(Edge("run"),), run="run"),
        ]
    )
    return reserve(transport)


def failed_graph(transport: SqliteTransport) -> State:
    held = graph(transport)
    transport.settle(
        "w", [Ack(receipt=held["a"].receipt), Bury(receipt=held["b"].receipt, error=ERROR)]
    )
    return {}


def keyed(transport: SqliteTransport) -> State:
    transport.enqueue(
        [
            message(f"job-{n}", concurrency_key="k", key=f"key-{n}", key_scope="until_start")
            for n in range(3)
        ]
    )
    return reserve(transport)


def parked(transport: SqliteTransport) -> State:
    held = three(transport)
    transport.settle("w", [Park(receipt=held["job-0"].receipt, timeout=5)])
    return held


def waiting(transport: SqliteTransport) -> State:
    transport.enqueue(
        [
            message("plain"),
            message("large", envelope=b"x" * 5_000),
            message("later", delay=5),
            message("short", expires=5),
            message("keyed-1", concurrency_key="k"),
            message("keyed-2", concurrency_key="k"),
        ]
    )
    return {}


def settle_all_kinds(transport: SqliteTransport, held: State) -> None:
    receipts = [held[f"job-{n}"].receipt for n in range(3)]
    transport.settle(
        "w",
        [
            Retry(receipt=receipts[0], delay=3, error=ERROR, envelope=b"y" * 5_000),
            Defer(receipt=receipts[1], delay=3),
            Release(receipt=receipts[2], counted=True),
        ],
    )


def ack_graph(transport: SqliteTransport, held: State) -> None:
    child = message("child", key="once")
    transport.settle(
        "w",
        [
            Ack(receipt=held["a"].receipt, follow_ups=FollowUps(enqueue=(child,))),
            Ack(receipt=held["b"].receipt, result=Payload("x", b"1")),
        ],
    )


def bury_root(transport: SqliteTransport, held: State) -> None:
    transport.settle("w", [Bury(receipt=held["a"].receipt, error=ERROR)])


def ack_plain(transport: SqliteTransport, held: State) -> None:
    transport.settle("w", [Ack(receipt=one.receipt) for one in held.values()])


def complete(transport: SqliteTransport, held: State) -> None:
    token = completion_token("job-0", held["job-0"].receipt)
    transport.complete(token, Completion(state="FAILED", error=ERROR, retryable=True))


def extend(transport: SqliteTransport, held: State) -> None:
    transport.extend("w", [Extension(one.receipt, 60, 1.0) for one in held.values()])


def graph_only(transport: SqliteTransport, _: State) -> None:
    transport.enqueue(
        [
            message("a", successors=(Edge("join"),)),
            message("join", hold=Hold(arrivals=1)),
            message("empty", hold=Hold(arrivals=0, finish=True), envelope=b"x" * 9_000),
        ]
    )


CASES: dict[str, Case] = {
    "make the schema": Case(nothing, lambda t, _: t.ping()),
    "enqueue many": Case(nothing, lambda t, _: t.enqueue([message(f"job-{n}") for n in range(5)])),
    "enqueue a graph": Case(nothing, graph_only),
    "enqueue with keys": Case(
        three,
        lambda t, _: t.enqueue([message("x", key="k"), message("job-1"), message("y", key="k")]),
    ),
    "reserve": Case(waiting, lambda t, _: reserve(t), later=6, repeatable=False),
    "ack plainly": Case(three, ack_plain),
    "settle in all kinds": Case(three, settle_all_kinds),
    "release a join": Case(graph, ack_graph),
    "skip a graph": Case(graph, bury_root),
    "give a slot back": Case(keyed, ack_plain),
    "park": Case(three, lambda t, held: t.settle("w", [Park(receipt=held["job-0"].receipt)])),
    "complete": Case(parked, complete),
    "complete before the park": Case(three, complete),
    "time out a park": Case(parked, lambda t, _: t.reap(ReapRequest()), later=10),
    "reclaim": Case(three, lambda t, held: t.reclaim("w", [held["job-0"].receipt])),
    "extend": Case(three, extend, later=70),
    "recover leases": Case(keyed, lambda t, _: t.reap(ReapRequest()), later=100),
    "prune": Case(failed_graph, lambda t, _: t.reap(ReapRequest()), later=5e6, repeatable=False),
    "expire": Case(waiting, lambda t, _: t.reap(ReapRequest()), later=6),
    "revoke": Case(waiting, lambda t, _: t.revoke(["plain", "later", "keyed-1"])),
    "revoke a run": Case(graph, lambda t, _: t.revoke(["run", "a"])),
    "reopen": Case(failed_graph, lambda t, _: t.reopen(["b"], expect={"b": 1})),
    "replay": Case(failed_graph, lambda t, _: t.replay_dead(["b"], queue="other")),
    "drop dead letters": Case(failed_graph, lambda t, _: t.purge_dead()),
    "purge": Case(waiting, lambda t, _: t.purge("q")),
    "take a named lease": Case(nothing, lambda t, _: t.acquire("beat", "me", 10)),
    "beat": Case(nothing, lambda t, _: t.heartbeat(WorkerInfo(id="w"))),
}


TABLES = {
    "jobs": (
        "seq, phase, rank, queue, priority, id, state, hooks, attempt, deliveries, yields, series, "
        "receipt IS NULL, worker, attention, error, outcome, started_at, finished_at, expires_at, "
        "need, arrived, failed, result, envelope"
    ),
    "envelopes": "seq, length(envelope)",
    "arrivals": "target, source, series, verdict",
    "keys": "key, job, until",
    "slots": "key, used",
    "spent": "until",
    "endings": "at, rows",
    "leases": "name, owner, token, until",
    "workers": "id, heartbeat_at",
    "facts": "name, value",
}


def contents(path: Path) -> dict[str, list[Any]]:
    """All that is stored, but for random texts."""
    connection = sqlite3.connect(path)
    try:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        if not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            return {}
        return {
            table: sorted(connection.execute(f"SELECT {columns} FROM {table}"), key=repr)
            for table, columns in TABLES.items()
        }
    finally:
        connection.close()


def copy(source: Path, target: Path) -> None:
    for file in target.parent.glob(f"{target.name}*"):
        if file.is_dir():
            shutil.rmtree(file)
        else:
            file.unlink()
    if source.exists():
        shutil.copy(source, target)


def run_killed(path: Path, clock: FakeClock, case: Case, held: State, last: int) -> bool:
    """Act in a child that dies before statement number `last`; whether it died."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            count = 0

            def killer(_: str) -> None:
                nonlocal count
                if count == last:
                    os.kill(os.getpid(), signal.SIGKILL)
                count += 1

            transport = SqliteTransport(path, clock=clock)
            transport._database.on_statement = killer
            case.act(transport, held)
            os._exit(0)
        except BaseException:
            os._exit(3)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0
    return False


@pytest.mark.parametrize("name", CASES)
def test_a_kill_at_any_statement_leaves_all_or_nothing(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    clock = FakeClock()
    prepared, path = tmp_path / "prepared.db", tmp_path / "used.db"
    transport = SqliteTransport(prepared, clock=clock)
    held = case.prepare(transport)
    transport.close()
    before = contents(prepared) if prepared.exists() else {}
    clock.advance(case.later)

    copy(prepared, path)
    transport = SqliteTransport(path, clock=clock)
    case.act(transport, held)
    transport.close()
    after = contents(path)
    allowed = [before, after] if before else [before, {table: [] for table in TABLES}, after]
    assert after != before

    seen: list[bool] = []
    died = True
    while died:
        copy(prepared, path)
        died = run_killed(path, clock, case, held, len(seen))
        found = contents(path)
        assert found in allowed, f"torn by a kill at statement {len(seen)}"
        seen.append(found == after)
        if case.repeatable:
            transport = SqliteTransport(path, clock=clock)
            case.act(transport, held)
            transport.close()
            assert contents(path) == after, "the repetition is no repetition"
    assert seen[-1]
    assert not seen[0]
