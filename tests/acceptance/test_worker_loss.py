"""A worker that dies, freezes or poisons itself loses nothing and harms nobody else."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from support.waiting import wait_until
from support.workers import Fleet, WorkerProcess
from taskmq import App, JobState, TaskHandle

pytestmark = pytest.mark.timeout(120)


def all_ended(handles: list[TaskHandle[object]]) -> bool:
    return all(handle.state.is_final for handle in handles)


def keep_alive(workers: Fleet, worker: WorkerProcess) -> WorkerProcess:
    """What a supervisor does: start another worker when this one has died."""
    return worker if worker.alive else workers.start(concurrency=4)


def test_a_poison_job_is_buried_and_the_jobs_beside_it_all_end(app: App, workers: Fleet) -> None:
    before = [app.send("work", (f"before-{n}", 0.02)) for n in range(25)]
    poison = app.send("poison", ("poison",))
    after = [app.send("work", (f"after-{n}", 0.02)) for n in range(25)]
    current = workers.start(concurrency=4)

    def done() -> bool:
        nonlocal current
        current = keep_alive(workers, current)
        return poison.state.is_final and all_ended(before + after)

    wait_until(done, timeout=90, interval=0.05)

    assert workers.effects.counts("start")["poison"] == poison.info.deliveries == 3
    # Only what it did to its workers ended them.
    assert [worker.output() for worker in workers.workers if "Traceback" in worker.output()] == []
    assert poison.state is JobState.FAILED
    dead = app.transport.get_dead(poison.id)
    assert dead is not None
    assert dead.reason == "worker lost"
    assert [handle.state for handle in before + after] == [JobState.SUCCEEDED] * 50


def test_jobs_of_a_worker_that_exits_run_again_elsewhere(app: App, workers: Fleet) -> None:
    jobs = [app.send("exit_once", (f"job-{n}",)) for n in range(3)]
    for _ in range(3):
        workers.start(concurrency=1, prefetch=1)

    def done() -> bool:
        if not any(worker.alive for worker in workers.workers):
            workers.start(concurrency=1, prefetch=1)
        return all_ended(jobs)

    wait_until(done, timeout=60, interval=0.05)

    assert {handle.state for handle in jobs} == {JobState.SUCCEEDED}
    ends = workers.effects.all("end")
    assert sorted(effect.label for effect in ends) == ["job-0", "job-1", "job-2"]
    assert {effect.deliveries for effect in ends} == {2}


def test_past_the_limit_a_job_is_dead_and_can_be_replayed(
    app: App, workers: Fleet, tmp_path: Path
) -> None:
    gate = tmp_path / "open"
    job = app.send("gate", ("job", str(gate)))
    for lost in range(3):
        worker = workers.start(concurrency=1)
        workers.wait_started(lost + 1)
        worker.kill()
    final = workers.start(concurrency=1)
    wait_until(lambda: job.state is JobState.FAILED, timeout=30)
    assert len(workers.effects.all("start")) == 3

    gate.touch()
    assert app.transport.replay_dead([job.id]) == 1
    assert job.get(timeout=20) == "job"
    assert app.transport.get_dead(job.id) is None
    assert final.terminate() == 0


def test_a_frozen_holder_changes_nothing_when_it_wakes(
    app: App, workers: Fleet, tmp_path: Path
) -> None:
    gate = tmp_path / "open"
    job = app.send("gate", ("job", str(gate)))
    stale = workers.start(concurrency=1)
    workers.wait_started(1)
    stale.send(signal.SIGSTOP)
    fresh = workers.start(concurrency=1)
    workers.wait_started(2)
    gate.touch()
    assert job.get(timeout=20) == "job"
    winner = job.info

    stale.send(signal.SIGCONT)
    wait_until(lambda: len(workers.effects.all("end")) == 2, timeout=20)
    later = app.send("work", ("later",))
    fresh.terminate()
    assert later.get(timeout=20) == "later"

    assert job.info == winner
    assert stale.alive
    assert {effect.pid for effect in workers.effects.all("end") if effect.label == "later"} <= {
        stale.pid,
        fresh.pid,
    }
    assert stale.output().count("lost") >= 1


def test_a_thousand_jobs_on_two_processes_none_lost_none_twice(app: App, workers: Fleet) -> None:
    for _ in range(2):
        workers.start(concurrency=8)
    # Both are there before the first job: one alone can be through with them while the other starts.
    wait_until(lambda: len(app.transport.list_workers()) == 2, timeout=60)
    handles = [app.send("work", (f"job-{n}", 0.005)) for n in range(1000)]
    wait_until(lambda: all_ended(handles), timeout=60, interval=0.1)
    for worker in workers.workers:
        assert worker.terminate() == 0

    starts = workers.effects.counts("start")
    assert len(starts) == 1000
    assert set(starts.values()) == {1}
    assert {handle.state for handle in handles} == {JobState.SUCCEEDED}
    assert len({effect.pid for effect in workers.effects.all("start")}) == 2


def test_sigkill_in_the_middle_loses_nothing(app: App, workers: Fleet) -> None:
    handles = [app.send("work", (f"job-{n}", 0.01)) for n in range(300)]
    victim = workers.start(concurrency=8)
    workers.start(concurrency=8)
    workers.wait_started(60)
    victim.kill()
    wait_until(lambda: all_ended(handles), timeout=60, interval=0.1)

    assert {handle.state for handle in handles} == {JobState.SUCCEEDED}
    ends = workers.effects.counts("end")
    assert len(ends) == 300
    starts = workers.effects.all("start")
    twice = {label for label, count in workers.effects.counts("start").items() if count > 1}
    assert twice <= {effect.label for effect in starts if effect.pid == victim.pid}
    ended = {effect.label for effect in workers.effects.all("end") if effect.pid == victim.pid}
    # What it was running; besides, what had ended in it and was not settled yet.
    assert len(twice - ended) <= 8
