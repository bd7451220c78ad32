"""`taskmq worker --replicas N`: crashes, signals, rolling restarts, and no orphans."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.cli import APP, run, started
from support.waiting import wait_until

pytestmark = pytest.mark.timeout(300)

SLOW = """

import os, pathlib, time

@app.task(queue="email")
def slow(seconds: float) -> int:
    pathlib.Path("started").touch()
    time.sleep(seconds)
    return os.getpid()

@app.task(queue="email")
def stamp(n: int) -> None:
    with open("stamps", "a") as file:
        file.write(f"{n}\\n")
"""
APP_ENV = {"TASKMQ_APP": "shop:app"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(APP + SLOW)
    return tmp_path


def rows(folder: Path) -> list[dict[str, Any]]:
    return list(json.loads(run(folder, "status", "--json", **APP_ENV).stdout)["workers"])


def health(folder: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        return dict(json.loads((folder / "health.json").read_text()))
    return {"replicas": [], "ready": False}


def ready(folder: Path, but: set[int] = frozenset()) -> set[int]:  # type: ignore[assignment]
    """The pids of the replicas that take jobs."""
    return {each["pid"] for each in health(folder)["replicas"] if each.get("ready")} - but


@contextlib.contextmanager
def fleet(folder: Path, count: int = 2, *more: str) -> Iterator[subprocess.Popen[str]]:
    words = ("worker", "--replicas", str(count), "--health-file", "health.json", *more)
    with started(folder, *words, **APP_ENV) as supervisor:
        try:
            wait_until(lambda: len(ready(folder)) == count, timeout=40)
            yield supervisor
        finally:
            children = (
                psutil.Process(supervisor.pid).children() if supervisor.poll() is None else []
            )
            for child in children:
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()


def submit(folder: Path, task: str, *args: object) -> str:
    done = run(folder, "submit", task, "--args", json.dumps(args), **APP_ENV)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def state(folder: Path, job: str) -> str:
    return str(json.loads(run(folder, "jobs", "show", job, "--json", **APP_ENV).stdout)["state"])


def test_each_replica_is_a_worker_and_sigterm_ends_all_with_0(folder: Path) -> None:
    with fleet(folder) as supervisor:
        pids = ready(folder)
        wait_until(lambda: {row["pid"] for row in rows(folder)} == pids)
        assert supervisor.pid not in pids
        job = submit(folder, "slow", 1.0)
        wait_until((folder / "started").exists, timeout=20)
        supervisor.send_signal(signal.SIGTERM)
        assert supervisor.wait(30) == 0
    assert state(folder, job) == "SUCCEEDED"
    assert rows(folder) == []
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert not (folder / "health.json").exists()


def test_replicas_obey_the_transport_option(folder: Path) -> None:
    with fleet(folder, 1, "--transport", "sqlite:///other.db") as supervisor:
        assert (folder / "other.db").exists()
        assert not (folder / "jobs.db").exists()
        supervisor.send_signal(signal.SIGTERM)
        assert supervisor.wait(30) == 0


def test_a_second_signal_is_passed_on_too(folder: Path) -> None:
    with fleet(folder) as supervisor:
        job = submit(folder, "slow", 60.0)
        wait_until((folder / "started").exists, timeout=20)
        supervisor.send_signal(signal.SIGINT)
        wait_until(lambda: health(folder).get("state") == "stopping", timeout=10)
        wait_until(
            lambda: any(each.get("state") == "stopping" for each in health(folder)["replicas"]),
            timeout=10,
        )
        supervisor.send_signal(signal.SIGINT)
        assert supervisor.wait(20) == 0
    assert state(folder, job) == "QUEUED"


def test_a_crashed_replica_comes_back_and_the_others_go_on(folder: Path) -> None:
    with fleet(folder) as supervisor:
        before = ready(folder)
        victim = min(before)
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: len(ready(folder, {victim})) == 2, timeout=40)
        assert len(before & ready(folder)) == 1
        supervisor.send_signal(signal.SIGTERM)
        assert supervisor.wait(30) == 0
        assert supervisor.stderr is not None
        assert "killed by SIGKILL" in supervisor.stderr.read()


def test_sighup_replaces_every_worker_while_jobs_go_on(folder: Path) -> None:
    with fleet(folder) as supervisor:
        before = ready(folder)
        fewest = 2
        supervisor.send_signal(signal.SIGHUP)
        sent = 0

        def replaced() -> bool:
            nonlocal fewest, sent
            fewest = min(fewest, len(ready(folder)))
            submit(folder, "stamp", sent)
            sent += 1
            return len(ready(folder, before)) == 2

        wait_until(replaced, timeout=60)
        assert fewest == 2
        wait_until(lambda: not any(psutil.pid_exists(pid) for pid in before), timeout=30)
        wait_until(lambda: (folder / "stamps").read_text().count("\n") == sent, timeout=30)
        assert supervisor.poll() is None
        supervisor.send_signal(signal.SIGTERM)
        assert supervisor.wait(30) == 0


def test_a_rolling_restart_into_broken_code_keeps_the_old_workers(folder: Path) -> None:
    with fleet(folder) as supervisor:
        before = ready(folder)
        (folder / "shop.py").write_text(
            "import pathlib\npathlib.Path('tried').touch()\nimport nowhere_to_be_found\n"
        )
        supervisor.send_signal(signal.SIGHUP)
        wait_until((folder / "tried").exists, timeout=20)
        wait_until(lambda: len(psutil.Process(supervisor.pid).children()) == 2, timeout=20)
        assert ready(folder) == before
        supervisor.send_signal(signal.SIGTERM)
        assert supervisor.wait(30) == 0
        assert supervisor.stderr is not None
        assert "the old ones go on" in supervisor.stderr.read()


def test_workers_whose_supervisor_was_killed_finish_their_job_and_end(folder: Path) -> None:
    with fleet(folder) as supervisor:
        pids = ready(folder)
        job = submit(folder, "slow", 1.0)
        wait_until((folder / "started").exists, timeout=20)
        supervisor.kill()
        supervisor.wait(10)
        wait_until(lambda: not any(_lives(pid) for pid in pids), timeout=30)
    assert state(folder, job) == "SUCCEEDED"
    assert rows(folder) == []


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_configuration_that_cannot_work_ends_everything_with_2(folder: Path) -> None:
    (folder / "shop.py").write_text("app = 1\n")
    done = run(folder, "worker", "--replicas", "2", **APP_ENV)
    assert done.returncode == 2
    assert "not a taskmq App" in done.stderr
    assert "Traceback" not in done.stderr


def test_replicas_and_once_exclude_each_other(folder: Path) -> None:
    done = run(folder, "worker", "--replicas", "2", "--once", **APP_ENV)
    assert done.returncode == 2


def test_no_job_is_left_leased_after_a_clean_stop(folder: Path) -> None:
    with fleet(folder, 2, "-c", "2") as supervisor:
        for n in range(10):
            submit(folder, "stamp", n)
        supervisor.send_signal(signal.SIGTERM)
        assert supervisor.wait(30) == 0
    with contextlib.closing(sqlite3.connect(folder / "jobs.db")) as connection:
        (leased,) = connection.execute("SELECT count(*) FROM jobs WHERE phase = 6").fetchone()
    assert leased == 0
