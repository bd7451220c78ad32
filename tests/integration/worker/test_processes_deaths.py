"""The pool `processes` when children die: one attempt is lost, nothing else, and nothing is left."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from support.process_app import APP
from support.processes import Bench, bench, children_of, is_alive
from support.waiting import wait_until
from support.workers import TESTS
from taskmq import App, JobState, RemoteError, TaskHandle
from taskmq.errors import ConfigError
from taskmq.events import CollectingSink
from taskmq.transport.types import JobRecord
from taskmq_worker import Worker


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Bench]:
    with bench(monkeypatch, tmp_path, "memory://", max_message_bytes=4_000_000) as each:
        yield each


def _is_over(moment: float) -> bool:
    return time.monotonic() >= moment


def record(app: App, job: str) -> JobRecord:
    found = app.transport.get_jobs([job])[0]
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("SIGKILL", "killed by SIGKILL"),
        ("SIGSEGV", "killed by SIGSEGV"),
        ("exit", "exit code 0"),
        ("segfault", "killed by SIGSEGV"),
        ("closed", "closed its channel"),
    ],
)
def test_a_death_costs_one_attempt_whose_reason_says_what_happened(
    made: Bench, how: str, text: str
) -> None:
    sink = CollectingSink()
    made.app.add_sink(sink)
    with made.worker() as worker:
        handle = made.task("die").delay(how)
        worker.run_until_idle(20)

    assert handle.get(timeout=5) == "survived"
    assert [effect.attempt for effect in made.effects.all("start")] == [1, 2]
    made.app.events.flush()
    (retried,) = sink.of("task.retrying")
    assert retried.data["reason"] == "worker lost"
    assert text in retried.data["message"]


@pytest.mark.parametrize("how", ["SIGKILL", "exit", "segfault"])
def test_a_job_that_always_kills_its_child_becomes_a_dead_letter(made: Bench, how: str) -> None:
    with made.worker() as worker:
        handle = made.task("die").delay(how, attempts=9)
        worker.run_until_idle(20)

    with pytest.raises(RemoteError) as raised:
        handle.get(timeout=5)
    assert raised.value.reason == "worker lost"
    assert len(made.effects.all("start")) == 2
    assert [letter.id for letter in made.app.transport.list_dead().letters] == [handle.id]


def test_a_job_acknowledged_on_receipt_fails_when_its_child_dies(made: Bench) -> None:
    with made.worker() as worker:
        handle = made.task("die_received").delay("SIGKILL")
        worker.run_until_idle(20)

    with pytest.raises(RemoteError, match="killed by SIGKILL") as raised:
        handle.get(timeout=5)
    assert (raised.value.state, raised.value.reason) == ("FAILED", "worker lost")
    assert len(made.effects.all("start")) == 1


def test_revoking_with_terminate_kills_only_the_job_that_was_named(made: Bench) -> None:
    with made.worker(2) as worker:
        handle = made.task("native").delay(30.0)
        other = made.task("note").delay("other", 1.0)
        wait_until(lambda: len(made.effects.all("start")) == 2)
        began = time.monotonic()
        handle.revoke(terminate=True)
        wait_until(lambda: handle.state is JobState.REVOKED)
        took = time.monotonic() - began
        worker.run_until_idle(20)

    assert took < 10, "a third of what the body takes"
    assert other.state is JobState.SUCCEEDED
    assert made.effects.counts("end") == {"other": 1}


def test_neighbours_of_a_killed_job_are_delivered_once(made: Bench) -> None:
    with made.worker(2) as worker:
        made.task("noop").map_async([()] * 50)
        worker.run_until_idle(20)
        quick = made.task("noop").map_async([()] * 300)
        killer = made.task("die").delay("SIGKILL", attempts=9)
        more = made.task("noop").map_async([()] * 300)
        worker.run_until_idle(30)

    records = made.app.transport.get_jobs([handle.id for handle in [*quick, *more]])
    assert {(r.state, r.deliveries, r.attempt) for r in records if r} == {
        (JobState.SUCCEEDED, 1, 1)
    }
    assert killer.state is JobState.FAILED


def test_children_killed_at_random_lose_no_job_and_none_runs_twice_at_once(
    made: Bench, seed: int
) -> None:
    rng = random.Random(seed)
    with made.worker(2) as worker:
        handles = made.task("nearly").map_async([(0.005,)] * 60)
        until = time.monotonic() + 30
        kills = 0
        while any(not handle.state.is_final for handle in handles) and time.monotonic() < until:
            victims = children_of()
            if victims and kills < 12:
                os.kill(rng.choice(victims), signal.SIGKILL)
                kills += 1
            pause = time.monotonic() + rng.uniform(0.01, 0.15)
            wait_until(partial(_is_over, pause))
        worker.run_until_idle(30)
        wait_until(lambda: len(children_of()) == 2)

    for handle in handles:
        job = record(made.app, handle.id)
        assert job.state is JobState.SUCCEEDED or job.reason == "worker lost", job


def test_an_idle_child_that_dies_is_replaced_at_once(made: Bench) -> None:
    with made.worker() as worker:
        (victim,) = children_of()
        os.kill(victim, signal.SIGKILL)
        (other,) = wait_until(lambda: [pid for pid in children_of() if pid != victim])
        handle = made.task("where").delay()
        worker.run_until_idle(20)
        assert handle.get(timeout=5)["pid"] == other


@pytest.mark.scaled
def test_c038_results_of_a_megabyte_around_the_hard_timeout_all_reach_an_end(
    made: Bench, seed: int, soak: bool
) -> None:
    rng = random.Random(seed)
    count, children = (2_000, 4) if soak else (24, 2)
    with made.worker(children) as worker:
        handles = [
            made.task("nearly").apply_async((0.05 + rng.uniform(-0.005, 0.005),), hard_timeout=0.05)
            for _ in range(count)
        ]
        worker.run_until_idle(50 + count)
        wait_until(lambda: len(children_of()) == children)
        assert made.task("add").delay(1, 1).get(timeout=30) == 2

    states = [record(made.app, handle.id) for handle in handles]
    assert {r.state for r in states} <= {JobState.SUCCEEDED, JobState.FAILED}
    assert {r.reason for r in states if r.state is JobState.FAILED} <= {"timed out"}


@pytest.mark.parametrize("task", ["stubborn", "native"])
def test_a_hard_timeout_kills_within_a_fifth_of_a_second(made: Bench, task: str) -> None:
    with made.worker() as worker:

        def kill() -> tuple[TaskHandle[Any], float]:
            before = len(made.effects.all("start"))
            (child,) = wait_until(children_of)
            job = made.task(task).apply_async((30.0,), timeout=0.1, hard_timeout=0.5)
            wait_until(lambda: len(made.effects.all("start")) > before)
            began = made.effects.all("start")[-1].at
            wait_until(lambda: not is_alive(child), interval=0.001)
            took = time.monotonic() - began
            worker.run_until_idle(20)
            return job, took

        # A machine that is busy elsewhere gets more than one chance to be on time.
        handle, took = kill()
        for _ in range(4):
            if took < 0.7:
                break
            handle, took = kill()

    assert 0.4 < took < 0.7
    with pytest.raises(RemoteError, match="hard_timeout of 0.5 s") as raised:
        handle.get(timeout=5)
    assert raised.value.reason == "timed out"
    if task == "stubborn":
        assert made.effects.all("told")


def test_a_hard_timeout_takes_grandchildren_along(made: Bench) -> None:
    with made.worker() as worker:
        made.task("parent_of_two").apply_async((60.0,), hard_timeout=0.5)
        wait_until(lambda: made.effects.all("grandchildren"))
        pids = [int(pid) for pid in made.effects.all("grandchildren")[0].label.split(",")]
        assert all(map(is_alive, pids))
        worker.run_until_idle(20)
        wait_until(lambda: not any(map(is_alive, pids)), timeout=2)


def test_no_grandchild_outlives_the_worker(made: Bench) -> None:
    with made.worker() as worker:
        made.task("parent_of_two").delay(0.0)
        worker.run_until_idle(20)
        pids = [int(pid) for pid in made.effects.all("grandchildren")[0].label.split(",")]
    wait_until(lambda: not any(map(is_alive, pids)), timeout=2)


def test_hooks_that_hang_are_ended_by_the_hard_timeout_and_the_job_stays_succeeded(
    made: Bench,
) -> None:
    with made.worker() as worker:
        handle = made.task("hooked").apply_async(("hang in hook",), hard_timeout=0.5)
        after = made.task("add").delay(1, 2)
        worker.run_until_idle(20)

    assert handle.state is JobState.SUCCEEDED
    assert after.get(timeout=5) == 3


def test_at_the_shutdown_timeout_children_are_killed_and_jobs_handed_back(made: Bench) -> None:
    with made.worker(2) as worker:
        handles = [made.task("native").delay(30.0), made.task("polite").delay(30.0)]
        wait_until(lambda: len(made.effects.all("start")) == 2)
        children = children_of()
        began = time.monotonic()
        worker.stop(grace=0.3)
        took = time.monotonic() - began

    assert took < 15, "half of what the bodies take"
    assert not any(map(is_alive, children))
    for handle in handles:
        job = record(made.app, handle.id)
        assert (job.state, job.deliveries, job.attempt) == (JobState.QUEUED, 1, 1)


def test_a_stop_lets_running_jobs_end_and_gives_the_rest_back(made: Bench) -> None:
    with made.worker() as worker:
        made.task("note").map_async([("quick",)] * 30)
        worker.run_until_idle(20)
        running = made.task("note").delay("running", 1.5)
        waiting = made.task("note").map_async([("waiting",)] * 20)
        wait_until(lambda: made.effects.counts("start")["running"])

    assert running.state is JobState.SUCCEEDED
    assert made.effects.counts("start")["waiting"] == 0
    records = [record(made.app, handle.id) for handle in waiting]
    assert {(r.state, r.deliveries) for r in records} == {(JobState.QUEUED, 0)}


_CODE = """
from support.process_app import APP, app
from taskmq_worker import Worker
Worker(app, pool="processes", app_path=APP, concurrency=1).run()
"""


@contextmanager
def worker_process(log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", _CODE],
            env={**os.environ, "PYTHONPATH": str(TESTS)},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(10)


@pytest.mark.parametrize("task", ["native", "parent_of_two"])
def test_nothing_outlives_a_killed_worker(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, task: str
) -> None:
    with (
        bench(monkeypatch, tmp_path, f"sqlite:///{tmp_path}/jobs.db") as made,
        worker_process(tmp_path / "worker.log") as worker,
    ):
        made.task(task).delay(60.0)
        wait_until(lambda: made.effects.all(), timeout=20)
        pids = children_of(worker.pid)
        if task == "parent_of_two":
            pids += [int(pid) for pid in made.effects.all()[0].label.split(",")]
        assert len(pids) >= 1
        assert all(map(is_alive, pids))
        worker.kill()
        worker.wait(10)
        wait_until(lambda: not any(map(is_alive, pids)), timeout=2)


def test_a_signal_to_the_whole_group_and_to_children_lets_running_jobs_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with (
        bench(monkeypatch, tmp_path, f"sqlite:///{tmp_path}/jobs.db") as made,
        worker_process(tmp_path / "worker.log") as worker,
    ):
        handle = made.task("note").delay("running", 1.0)
        wait_until(lambda: made.effects.all("start"), timeout=20)
        for pid in [*children_of(worker.pid), worker.pid]:
            os.kill(pid, signal.SIGTERM)
        assert worker.wait(20) == 0
        assert handle.state is JobState.SUCCEEDED


def test_without_an_app_path_the_worker_is_refused(
    made: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TASKMQ_APP", raising=False)
    with pytest.raises(ConfigError, match="app_path"):
        Worker(made.app, pool="processes")


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("support.no_such_module:app", "No module named 'support.no_such_module'"),
        ("support.broken_app:app", r"ValueError: no settings \(.*broken_app.py, line 3\)"),
        ("support.process_app:nothing", "no attribute 'nothing'"),
        ("support.process_app:APP", "is a str, not a taskmq App"),
        ("support.effect_app:app", "lacks 20 tasks"),
    ],
)
def test_an_app_that_children_cannot_import_is_an_error_at_the_start(
    made: Bench, path: str, text: str
) -> None:
    worker = Worker(made.app, pool="processes", app_path=path, concurrency=2)
    with pytest.raises(ConfigError, match=text):
        worker.start()
    assert children_of() == []


def test_another_backend_in_the_children_is_an_error_at_the_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with bench(monkeypatch, tmp_path, f"sqlite:///{tmp_path}/one.db") as made:
        monkeypatch.setenv("TASKMQ_TRANSPORT", f"sqlite:///{tmp_path}/two.db")
        worker = Worker(made.app, pool="processes", app_path=APP, concurrency=1)
        with pytest.raises(ConfigError, match=r"two\.db.*one\.db"):
            worker.start()


def test_a_child_that_cannot_start_any_more_is_tried_again(
    made: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with made.worker() as worker:
        (victim,) = children_of()
        good: Any = worker.pool
        setup = good._setup
        good._setup = type(setup)(
            **{name: getattr(setup, name) for name in setup.__struct_fields__}
            | {"app_path": "support.no_such_module:app"}
        )
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: "can't start" in caplog.text)
        handle = made.task("add").delay(1, 2)
        assert worker.pool.health().alive == 0
        assert "no_such_module" in (worker.pool.health().blocked or "")
        good._setup = setup
        assert handle.get(timeout=20) == 3
