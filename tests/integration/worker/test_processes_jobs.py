"""The pool `processes` as tasks see it: results, context, hooks, calls to the worker."""

from __future__ import annotations

import io
import logging
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.process_app import APP
from support.processes import Bench, bench, children_of, is_alive
from support.waiting import wait_until
from taskmq import JobState, RemoteError
from taskmq.events import CollectingSink


@pytest.fixture(params=["memory", "sqlite"])
def made(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Bench]:
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/jobs.db"
    with bench(monkeypatch, tmp_path, url) as each:
        yield each


def test_jobs_run_in_children_on_their_main_thread_with_a_context_of_their_own(made: Bench) -> None:
    with made.worker(2) as worker:
        handles = [made.task("where").delay() for _ in range(20)]
        worker.run_until_idle(20)
        seen = [handle.get(timeout=5) for handle in handles]

    assert os.getpid() not in {each["pid"] for each in seen}
    assert [each["id"] for each in seen] == [handle.id for handle in handles]
    assert {each["mark"] for each in seen} == {"none"}
    assert all(each["thread"] and each["worker"] == worker.id for each in seen)


def test_many_small_jobs_all_end_once(made: Bench) -> None:
    with made.worker(2) as worker:
        handles = made.task("add").map_async([(n, 1) for n in range(2000)])
        worker.run_until_idle(30)

    assert [handle.get(timeout=5) for handle in handles] == [n + 1 for n in range(2000)]
    records = made.app.transport.get_jobs([handle.id for handle in handles])
    assert {record.deliveries for record in records if record} == {1}


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("two", "TwoArguments: one"),
        ("lock", "Lazy: holds a lock"),
        ("closure", "InAClosure: inside"),
        ("unprintable", "unprintable Unprintable"),
        ("surrogate", r"ValueError: a \\ud800 b \\x00 c"),
        ("exit", "SystemExit: 0"),
        ("interrupt", "KeyboardInterrupt"),
    ],
)
def test_whatever_a_task_raises_fails_the_job_and_leaves_the_child_alive(
    made: Bench, kind: str, text: str
) -> None:
    with made.worker() as worker:
        children = children_of()
        handle = made.task("raises").delay(kind)
        after = made.task("add").delay(1, 1)
        worker.run_until_idle(20)
        assert children_of() == children

    with pytest.raises(RemoteError, match=text) as raised:
        handle.get(timeout=5)
    assert raised.value.reason == "exception"
    assert "process_app.py" in raised.value.traceback
    assert after.get(timeout=5) == 2


@pytest.mark.parametrize("kind", ["object", "lock", "big"])
def test_results_that_cannot_travel_fail_the_job(made: Bench, kind: str) -> None:
    with made.worker() as worker:
        handle = made.task("returns").delay(kind)
        worker.run_until_idle(20)

    with pytest.raises(RemoteError) as raised:
        handle.get(timeout=5)
    assert raised.value.reason == "result not serialisable"


def test_end_hooks_run_in_the_child_after_the_settlement(made: Bench) -> None:
    with made.worker() as worker:
        made.task("hooked").delay("succeed")
        worker.run_until_idle(20)
        made.task("hooked").delay("fail")
        worker.run_until_idle(20)

    seen = [(effect.what, effect.label) for effect in made.effects.all()]
    assert seen == [
        ("on_success", "SUCCEEDED True"),
        ("after_return", "SUCCEEDED"),
        ("on_retry", "ValueError"),
        ("after_return", "RETRYING"),
        ("on_failure", "ValueError"),
        ("after_return", "FAILED"),
    ]
    assert os.getpid() not in {effect.pid for effect in made.effects.all()}


def test_a_killed_job_runs_no_hooks_in_any_process(made: Bench) -> None:
    with made.worker() as worker:
        handle = made.task("hooked").delay("die")
        worker.run_until_idle(20)

    assert handle.state is JobState.FAILED
    assert made.effects.all() == []


def test_a_hook_error_reaches_meta_and_the_sinks_of_the_worker(made: Bench) -> None:
    sink = CollectingSink()
    made.app.add_sink(sink)
    with made.worker() as worker:
        handle = made.task("hooked").delay("raise in hook")
        worker.run_until_idle(20)
        wait_until(lambda: sink.of("task.hook_error"))

    event = sink.of("task.hook_error")[0]
    assert (event.job, event.worker, event.data["hook"]) == (handle.id, worker.id, "on_success")
    assert sink.of("task.started")[0].job == handle.id


@pytest.mark.parametrize("now", [False, True])
def test_publishing_reaches_the_queues_of_the_worker(made: Bench, now: bool) -> None:
    with made.worker() as worker:
        parent = made.task("publishes").delay(now)
        failed = made.task("publishes").delay(now, fail=True)
        worker.run_until_idle(20)

    assert made.app.handle(parent.get(timeout=5)).get(timeout=5) == 3
    assert failed.state is JobState.FAILED
    published = made.app.transport.list_jobs(task="add").jobs
    assert len(published) == (2 if now else 1)


def test_a_task_may_submit_jobs_and_wait_for_them(made: Bench) -> None:
    with made.worker(2) as worker:
        first = made.task("delays").delay()
        second = made.task("waits_for_child").delay()
        worker.run_until_idle(20)

    assert made.app.handle(first.get(timeout=5)).get(timeout=5) == 7
    assert second.get(timeout=5) == 7


def test_meta_and_heartbeat_work_while_a_job_runs(made: Bench) -> None:
    with made.worker() as worker:
        handle = made.task("progress").delay()
        wait_until(lambda: handle.info and handle.info.meta.get("stage") == "half")
        worker.run_until_idle(20)

    assert handle.state is JobState.SUCCEEDED


def test_revoking_a_running_job_reaches_the_child(made: Bench) -> None:
    with made.worker() as worker:
        handle = made.task("polite").delay()
        wait_until(lambda: made.effects.all("start"))
        handle.revoke()
        worker.run_until_idle(20)

    assert handle.state is JobState.REVOKED


def test_a_job_may_start_processes_of_its_own(made: Bench) -> None:
    with made.worker() as worker:
        handle = made.task("families").delay(10)
        worker.run_until_idle(30)

    assert handle.get(timeout=5) == 90


def test_the_log_of_tasks_is_shown_as_the_worker_shows_its_own(
    made: Bench, capfd: pytest.CaptureFixture[str]
) -> None:
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.INFO)
    try:
        with made.worker() as worker:
            made.task("logs").delay()
            worker.run_until_idle(20)
    finally:
        root.setLevel(level)

    shown = capfd.readouterr().err
    assert re.search(r"WARNING support.tasks: hello from \d+", shown)
    assert "with fields number=1" in shown


def test_children_are_replaced_after_so_many_jobs_without_losing_any(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with bench(monkeypatch, tmp_path, "memory://", max_jobs_per_child=3) as made:
        with made.worker(2) as worker:
            handles = made.task("where").map_async([() for _ in range(24)])
            worker.run_until_idle(40)
        pids = [handle.get(timeout=5)["pid"] for handle in handles]

    assert len(pids) == 24
    assert max(map(pids.count, set(pids))) == 3
    assert not any(map(is_alive, pids))


@contextmanager
def logging_all_the_time() -> Iterator[None]:
    """A thread that holds the lock of a logging handler as good as always."""
    over = threading.Event()
    handler = logging.StreamHandler(io.StringIO())

    def write() -> None:
        while not over.wait(0.0001):
            handler.handle(logging.makeLogRecord({"msg": "again"}))

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(10)


@pytest.mark.scaled
@pytest.mark.timeout(120)
def test_c039_c049_children_of_one_job_each_are_replaced_and_none_hangs_at_its_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, soak: bool
) -> None:
    count = 5_000 if soak else 24
    fewest = [time.monotonic()]
    longest = 0.0
    with bench(monkeypatch, tmp_path, "memory://", max_jobs_per_child=1) as made:
        with logging_all_the_time(), made.worker(4) as worker:
            handles = made.task("where").map_async([()] * count)

            def all_ended() -> bool:
                nonlocal longest
                now = time.monotonic()
                if len(children_of()) >= 3:
                    fewest[0] = now
                longest = max(longest, now - fewest[0])
                return not worker.buffer.busy and all(handle.state.is_final for handle in handles)

            wait_until(all_ended, timeout=30 + count, interval=0.1)
            wait_until(lambda: len(children_of()) == 4, what="four children at the end")
        pids = [handle.get(timeout=5)["pid"] for handle in handles]
    assert len(set(pids)) == count
    assert longest < 30, "a child hung at its start or its end"
    print(f"never fewer than three children for longer than {longest:.1f} s")


def test_a_child_that_has_grown_too_big_is_replaced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with bench(monkeypatch, tmp_path, "memory://", max_memory_per_child=150_000_000) as made:
        with made.worker() as worker:
            small = [made.task("grows").delay(1000) for _ in range(2)]
            worker.run_until_idle(20)
            big = [made.task("grows").delay(200_000_000) for _ in range(2)]
            worker.run_until_idle(20)
        first, second = (handle.get(timeout=5) for handle in small)
        third, fourth = (handle.get(timeout=5) for handle in big)

    assert first == second == third != fourth


def test_a_quick_task_that_turns_slow_does_not_keep_others_waiting(made: Bench) -> None:
    with made.worker(2) as worker:
        made.task("note").map_async([("quick",)] * 40)
        worker.run_until_idle(20)
        made.task("note").map_async([("slow", 3.0)] + [("next",)] * 30)
        wait_until(lambda: made.effects.counts("end")["next"] == 30)
        assert made.effects.counts("end")["slow"] == 0, "they are through while it still runs"
        worker.run_until_idle(20)

    assert made.effects.counts("start")["next"] == 30
    assert {effect.deliveries for effect in made.effects.all()} == {1}


def test_app_path_may_come_from_the_environment(
    made: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKMQ_APP", APP)
    with made.worker(app_path=None) as worker:
        handle = made.task("add").delay(1, 2)
        worker.run_until_idle(20)
    assert handle.get(timeout=5) == 3
