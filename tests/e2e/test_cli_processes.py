"""Real `taskmq` processes on sqlite: what a person at a terminal sees, exit codes and signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from support.cli import APP, command, environment, run, started
from support.unmeasured import unmeasured
from support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

APP_ENV = {"TASKMQ_APP": "shop:app"}
SLOW = """

import pathlib, time

@app.task(queue="email")
def slow(seconds: float) -> str:
    pathlib.Path("started").touch()
    time.sleep(seconds)
    return "done"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(APP + SLOW)
    return tmp_path


def workers(folder: Path) -> list[dict[str, object]]:
    return list(json.loads(run(folder, "status", "--json", **APP_ENV).stdout)["workers"])


def wait_for_worker(folder: Path) -> None:
    wait_until(lambda: workers(folder), timeout=20, interval=0.1, what="a registered worker")


def state(folder: Path, job: str) -> str:
    shown = run(folder, "jobs", "show", job, "--json", **APP_ENV)
    return str(json.loads(shown.stdout)["state"])


def test_a_worker_runs_jobs_of_other_processes_and_ends_on_sigterm(folder: Path) -> None:
    with started(folder, "worker", **APP_ENV) as worker:
        waited = run(
            folder, "submit", "send", "--args", '["a"]', "--wait", "--timeout", "20", **APP_ENV
        )
        assert waited.returncode == 0, waited.stderr
        assert json.loads(waited.stdout) == "sent:a:hi"
        assert waited.stderr.startswith("job ")
        failed = run(
            folder, "submit", "broken", "--args", '["boom"]', "--wait", "--json", **APP_ENV
        )
        assert failed.returncode == 1
        assert json.loads(failed.stdout)["error"]["type"].endswith("ValueError")
        assert "boom" in failed.stderr
        assert "Traceback" not in failed.stderr
        assert "threads" in run(folder, "status", **APP_ENV).stdout
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(20) == 0
    assert workers(folder) == []


def test_ctrl_c_lets_running_jobs_finish(folder: Path) -> None:
    with started(folder, "worker", **APP_ENV) as worker:
        job = run(folder, "submit", "slow", "--args", "[2.0]", **APP_ENV).stdout.strip()
        wait_until((folder / "started").exists, timeout=20)
        worker.send_signal(signal.SIGINT)
        assert worker.wait(20) == 0
        assert worker.stderr is not None
        told = [line for line in worker.stderr if "waiting for" in line]
    assert len(told) == 1
    assert "waiting for 1 running job, up to 30 s; again to stop at once" in told[0]
    assert state(folder, job) == "SUCCEEDED"


def test_an_idle_worker_stops_without_a_word(folder: Path) -> None:
    run(folder, "submit", "send", "--args", '["a"]', **APP_ENV)
    with started(folder, "worker", **APP_ENV) as worker:
        wait_for_worker(folder)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(20) == 0
        assert worker.stderr is not None
        assert "waiting for" not in worker.stderr.read()


def test_a_second_signal_gives_running_jobs_back_at_once(folder: Path) -> None:
    with started(folder, "worker", "--events", "stdout", **APP_ENV) as worker:
        job = run(folder, "submit", "slow", "--args", "[30]", **APP_ENV).stdout.strip()
        wait_until((folder / "started").exists, timeout=20)
        worker.send_signal(signal.SIGTERM)
        assert worker.stdout is not None
        assert any("worker.stopping" in line for line in worker.stdout)
        worker.send_signal(signal.SIGINT)
        began = time.monotonic()
        assert worker.wait(20) == 0
        assert time.monotonic() - began < 10
    assert state(folder, job) == "QUEUED"


def test_the_shutdown_timeout_ends_the_patience(folder: Path) -> None:
    with started(folder, "worker", "--shutdown-timeout", "0.2", **APP_ENV) as worker:
        job = run(folder, "submit", "slow", "--args", "[30]", **APP_ENV).stdout.strip()
        wait_until((folder / "started").exists, timeout=20)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(20) == 0
    assert state(folder, job) == "QUEUED"


def test_events_of_a_worker_go_where_the_options_say(folder: Path) -> None:
    run(folder, "submit", "send", "--args", '["a"]', **APP_ENV)
    result = run(folder, "worker", "--once", "--events", "stdout", **APP_ENV)
    assert result.returncode == 0, result.stderr
    types = {json.loads(line)["type"] for line in result.stdout.splitlines()}
    assert "task.succeeded" in types
    run(folder, "submit", "send", "--args", '["a"]', **APP_ENV)
    options = ("--events", "stdout", "--log-format", "pretty")
    pretty = run(folder, "worker", "--once", *options, **APP_ENV)
    assert "task.succeeded" in pretty.stdout
    assert not pretty.stdout.startswith("{")
    silent = run(folder, "worker", "--once", **APP_ENV)
    assert silent.stdout == ""


def test_an_import_error_shows_file_and_line(folder: Path) -> None:
    (folder / "shop.py").write_text("import os\n\nimport no_such_library\n")
    result = run(folder, "worker", **APP_ENV)
    assert result.returncode == 2
    assert "no_such_library" in result.stderr
    assert "shop.py:3" in result.stderr


def test_ctrl_c_while_waiting_leaves_the_job(folder: Path) -> None:
    with started(folder, "submit", "send", "--args", '["a"]', "--wait", **APP_ENV) as waiting:
        assert waiting.stderr is not None
        job = waiting.stderr.readline().split()[1]
        # The line comes just before the wait; what counts is that the signal ends it.
        waiting.send_signal(signal.SIGINT)
        assert waiting.wait(20) == 130
        assert "Traceback" not in waiting.stderr.read()
    assert state(folder, job) == "QUEUED"


def test_ctrl_c_ends_a_watch(folder: Path) -> None:
    run(folder, "submit", "send", "--args", '["a"]', **APP_ENV)
    with started(folder, "status", "--watch", "--json", "--interval", "0.1", **APP_ENV) as watch:
        assert watch.stdout is not None
        assert "queues" in json.loads(watch.stdout.readline())
        assert "queues" in json.loads(watch.stdout.readline())
        watch.send_signal(signal.SIGINT)
        assert watch.wait(20) == 130


def test_a_reader_that_goes_away_is_no_error(folder: Path) -> None:
    run(folder, "submit", "send", "--args", '["a"]', **APP_ENV)
    for args in (("jobs", "list", "--json"), ("status",), ("--help",)):
        read, write = os.pipe()
        os.close(read)
        process = subprocess.run(
            command(*args),
            cwd=folder,
            env=environment(**APP_ENV),
            stdin=subprocess.DEVNULL,
            stdout=write,
            stderr=subprocess.PIPE,
            text=True,
            timeout=30,
            check=False,
        )
        os.close(write)
        assert process.stderr == "", args
        assert process.returncode in {0, 1}


@pytest.mark.parametrize(
    "args", [("status",), ("submit", "send", "--args", '["a"]'), ("worker", "--once")]
)
def test_a_process_without_standard_output_does_its_work(
    folder: Path, args: tuple[str, ...]
) -> None:
    run(folder, "submit", "send", "--args", '["a"]', **APP_ENV)
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *command(*args)],
        cwd=folder,
        env=environment(**APP_ENV, TASKMQ_EVENTS="stdout"),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "rror" not in done.stderr


def test_the_job_store_needs_no_app_to_be_read(folder: Path) -> None:
    run(folder, "submit", "send", "--args", '["a"]', **APP_ENV)
    url = f"sqlite:///{folder}/jobs.db"
    listed = run(folder, "jobs", "list", "--transport", url, "--json")
    assert len(json.loads(listed.stdout)["jobs"]) == 1
    by_env = run(folder, "purge", "-Q", "email", "--yes", TASKMQ_TRANSPORT=url)
    assert by_env.stdout == "revoked 1 job of queue 'email'\n"


def test_a_question_without_anybody_to_answer_changes_nothing(folder: Path) -> None:
    run(folder, "submit", "send", "--args", '["a"]', **APP_ENV)
    result = run(folder, "purge", "-Q", "email", **APP_ENV)
    assert result.returncode == 1
    assert "Revoke 1 job of 'email'?" in result.stderr
    assert "--yes" in result.stderr
    assert len(json.loads(run(folder, "jobs", "list", "--json", **APP_ENV).stdout)["jobs"]) == 1


def test_output_survives_a_terminal_without_utf8(folder: Path) -> None:
    run(folder, "submit", "send", "--args", '["grüße"]', **APP_ENV)
    ascii_only = {**APP_ENV, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C"}
    listed = run(folder, "jobs", "list", "--json", **ascii_only)
    assert listed.returncode == 0, listed.stderr
    job = json.loads(listed.stdout)["jobs"][0]["id"]
    shown = run(folder, "jobs", "show", job, "--json", **ascii_only)
    assert json.loads(shown.stdout)["call"]["args"] == ["grüße"]
    for args in (("jobs", "show", job), ("status",), ("doctor",), ("jobs", "list")):
        result = run(folder, *args, **ascii_only)
        assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("word", ["--help", "--version"])
def test_a_short_answer_imports_neither_backend_nor_tables(folder: Path, word: str) -> None:
    program, *line = command(word)
    result = subprocess.run(
        [program, "-X", "importtime", *line],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
        env=unmeasured(environment()),
    )
    imported = {part.rpartition("|")[2].strip() for part in result.stderr.splitlines()}
    assert "click" in imported
    heavy = {"asyncio", "rich.table", "sqlite3", "taskmq.app", "taskmq_worker", "tasks"}
    assert not heavy & imported
