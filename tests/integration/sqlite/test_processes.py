"""Several processes, and forked ones, on one file."""

import itertools
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.waiting import wait_until
from taskmq.errors import TransportUnavailable
from taskmq.states import JobState
from taskmq.transport.sqlite import SqliteTransport
from taskmq.transport.types import Ack, Message, QueueShare, ReapRequest, ReserveRequest

CONSUME = """
import json, os, sys
from taskmq.transport.sqlite import SqliteTransport
from taskmq.transport.types import Ack, QueueShare, ReserveRequest
path, worker, log, complete = sys.argv[1:]
transport = SqliteTransport(path)
idle = 0
with open(log, "a") as file:
    while idle < 3 or not os.path.exists(complete):
        request = ReserveRequest(worker=worker, queues=(QueueShare("q"),), limit=7)
        deliveries = transport.reserve(request).deliveries
        for delivery in deliveries:
            file.write(json.dumps([delivery.id, worker, delivery.deliveries]) + "\\n")
        file.flush()
        acks = [Ack(receipt=delivery.receipt) for delivery in deliveries]
        reply = transport.settle(worker, acks)
        assert all(one.status == "ok" for one in reply.results), reply
        idle = 0 if deliveries else idle + 1
        if not deliveries:
            transport.wait(worker, ["q"], 0.3)
"""

WAIT_ONCE = """
import sys
from taskmq.transport.sqlite import SqliteTransport
from taskmq.transport.types import Ack, QueueShare, ReserveRequest
transport = SqliteTransport(sys.argv[1])
request = ReserveRequest(worker="w", queues=(QueueShare("q"),), limit=1)
print("ready", flush=True)
while True:
    deliveries = transport.reserve(request).deliveries
    if deliveries:
        transport.settle("w", [Ack(receipt=deliveries[0].receipt)])
        continue
    transport.wait("w", ["q"], 30)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def transport(path: Path) -> Iterator[SqliteTransport]:
    transport = SqliteTransport(path)
    yield transport
    transport.close()


def message(name: str) -> Message:
    return Message(id=name, task="t", queue="q", envelope=b"call")


def python(code: str, *arguments: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_four_processes_run_two_thousand_jobs_once_each(
    transport: SqliteTransport, path: Path, tmp_path: Path
) -> None:
    names = [f"job-{n:05}" for n in range(2_000)]
    logs = [tmp_path / f"{n}.log" for n in range(4)]
    transport.enqueue([message(name) for name in names[:500]])
    complete = tmp_path / "complete"
    workers = [python(CONSUME, path, f"w{n}", log, complete) for n, log in enumerate(logs)]
    for start in range(500, 2_000, 5):
        transport.enqueue([message(name) for name in names[start : start + 5]])
    complete.touch()
    assert [worker.wait(timeout=150) for worker in workers] == [0, 0, 0, 0]
    for worker in workers:
        worker.communicate(timeout=5)
    ran = [json.loads(line) for log in logs for line in log.read_text().splitlines()]
    assert Counter(job for job, _, _ in ran) == Counter(names)
    assert {deliveries for _, _, deliveries in ran} == {1}
    records = transport.get_jobs(names)
    assert {record.state for record in records if record} == {JobState.SUCCEEDED}
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


def test_an_enqueue_wakes_an_idle_process_within_milliseconds(
    transport: SqliteTransport, path: Path
) -> None:
    transport.ping()
    worker = python(WAIT_ONCE, path)
    try:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
        rounds = itertools.count()

        def there_and_back() -> float:
            """The median of forty."""
            turn = next(rounds)
            latencies = []
            for number in range(40):
                # The worker is asleep once its flag is up on the board.
                wait_until(lambda: b"\x01" in flags(path), timeout=10, interval=0.001)
                began = time.perf_counter()
                transport.enqueue([message(f"job-{turn}-{number}")])
                done = transport.wait_jobs([f"job-{turn}-{number}"], 30)[0]
                latencies.append(time.perf_counter() - began)
                assert done is not None
                assert done.state is JobState.SUCCEEDED
            return sorted(latencies)[20]

        # Both ways: the worker's pick-up and the waiter's wake-up. Half of the hops by polling would take
        # 20 ms and more; the bound is wide, and a machine busy elsewhere gets more than one chance.
        wait_until(lambda: there_and_back() < 0.05, timeout=5)
    finally:
        worker.kill()
        worker.communicate(timeout=5)


def flags(path: Path) -> bytes:
    board = path.with_name(f"{path.name}-wake") / "board"
    if not board.exists():
        return b""
    start = 64 + 8 * 1024 + 8
    return board.read_bytes()[start : start + 256]


def test_places_and_sockets_of_killed_processes_are_taken_away(
    transport: SqliteTransport, path: Path
) -> None:
    transport.ping()
    worker = python(WAIT_ONCE, path)
    wait_until(lambda: b"\x01" in flags(path), timeout=10)
    worker.send_signal(signal.SIGKILL)
    worker.communicate(timeout=5)
    folder = path.with_name(f"{path.name}-wake")
    assert len(list(folder.iterdir())) == 2
    # Whoever needs a place looks for dead ones first.
    transport.wait("other", ["q"], 0.01)
    transport.close()
    assert [file.name for file in folder.iterdir()] == ["board"]


def test_a_killed_sleeper_swallows_no_wake_up(transport: SqliteTransport, path: Path) -> None:
    transport.ping()
    worker = python(WAIT_ONCE, path)
    wait_until(lambda: b"\x01" in flags(path), timeout=10)
    worker.send_signal(signal.SIGKILL)
    worker.communicate(timeout=5)
    woken: list[bool] = []
    request = ReserveRequest(worker="alive", queues=(QueueShare("q"),), limit=1)
    transport.reserve(request)
    thread = threading.Thread(target=lambda: woken.append(transport.wait("alive", ["q"], 10)))
    thread.start()
    wait_until(lambda: b"\x01" in flags(path), timeout=10)
    began = time.perf_counter()
    transport.enqueue([message("job")])
    thread.join(timeout=10)
    assert woken == [True]
    assert time.perf_counter() - began < 5


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_forked_children_use_connections_of_their_own(
    transport: SqliteTransport, path: Path
) -> None:
    transport.enqueue([message("parent-0")])
    transport.wait("w", ["q"], 0.01)
    stop = threading.Event()
    failures: list[BaseException] = []

    def busy() -> None:
        number = 1
        try:
            while not stop.is_set():
                transport.enqueue([message(f"parent-{number}")])
                number += 1
        except BaseException as error:
            failures.append(error)

    # Its lock may be held at the moment of the fork.
    thread = threading.Thread(target=busy)
    thread.start()
    children = []
    for child in range(8):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            try:
                for number in range(20):
                    transport.enqueue([message(f"child-{child}-{number}")])
                transport.wait("w", ["none"], 0.01)
                transport.close()
                os._exit(0)
            except BaseException:
                os._exit(1)
        children.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    stop.set()
    thread.join(timeout=10)
    assert codes == [0] * 8
    assert failures == []
    wanted = [f"child-{child}-{number}" for child in range(8) for number in range(20)]
    assert None not in transport.get_jobs(wanted)


def test_a_writer_that_never_ends_is_reported_in_time_and_in_words(path: Path) -> None:
    transport = SqliteTransport(path, timeout=0.3)
    transport.ping()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    began = time.perf_counter()
    with pytest.raises(TransportUnavailable, match="stayed in use by other writers") as caught:
        transport.enqueue([message("job")])
    assert 0.2 < time.perf_counter() - began < 15
    assert "locked" not in str(caught.value)
    other.execute("ROLLBACK")
    other.close()
    assert transport.enqueue([message("job")])[0].status == "created"
    transport.close()


def test_a_busy_file_raises_no_lock_errors(path: Path) -> None:
    """Writers in threads and handles, a reader with an open cursor, a VACUUM and a backup."""
    handles = [SqliteTransport(path, timeout=30) for _ in range(3)]
    handles[0].enqueue([message(f"first-{n}") for n in range(100)])
    reader = sqlite3.connect(path)
    cursor = reader.execute("SELECT id FROM jobs")
    cursor.fetchone()
    failures: list[BaseException] = []

    def write(number: int) -> None:
        handle = handles[number % 3]
        try:
            for turn in range(60):
                handle.enqueue([message(f"{number}-{turn}")])
                handle.reap(ReapRequest())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    copy = sqlite3.connect(path.with_name("backup.db"))
    source = sqlite3.connect(path, timeout=30)
    source.backup(copy)
    source.execute("VACUUM")
    for thread in threads:
        thread.join(timeout=50)
    for connection in (reader, source, copy):
        connection.close()
    assert failures == []
    assert sum(one.pending for one in handles[0].stats(["q"])) == 460
    for handle in handles:
        handle.close()


def test_a_reservation_of_a_dead_process_comes_back(path: Path) -> None:
    code = """
import sys, os
from taskmq.transport.sqlite import SqliteTransport
from taskmq.transport.types import QueueShare, ReserveRequest
transport = SqliteTransport(sys.argv[1])
transport.reserve(ReserveRequest(worker="dead", queues=(QueueShare("q"),), limit=5, lease=0.05))
os._exit(9)
"""
    transport = SqliteTransport(path)
    transport.enqueue([message("job")])
    process = python(code, path)
    process.communicate(timeout=20)
    assert process.returncode == 9
    wait_until(lambda: transport.reap(ReapRequest()).requeued == 1, timeout=10)
    request = ReserveRequest(worker="alive", queues=(QueueShare("q"),), limit=5)
    (delivery,) = transport.reserve(request).deliveries
    assert delivery.deliveries == 2
    assert transport.settle("alive", [Ack(receipt=delivery.receipt)]).results[0].status == "ok"
    transport.close()
