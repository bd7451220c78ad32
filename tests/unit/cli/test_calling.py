from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from taskmq.plugins import PROCESS_PLUGINS

if TYPE_CHECKING:
    from support.cli import Cli

TYPED = """
from datetime import datetime
from taskmq import App, Config

app = App(Config(transport="sqlite:///jobs.db", events="null"))

@app.task
def year(at: datetime) -> int:
    return at.year

@app.task
async def later(text: str) -> dict:
    return {"text": text, "nan": float("nan")}

@app.task
def leave() -> None:
    raise SystemExit(0)

@app.task(bind=True)
def attempt(self) -> int:
    return self.request.attempt
"""


@pytest.fixture
def app(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> str:
    name = cli.module()
    monkeypatch.setenv("TASKMQ_APP", f"{name}:app")
    return name


def test_a_call_runs_here_and_prints_its_result_as_json(app: str, cli: Cli) -> None:
    result = cli("call", "send", "--args", '["a@b.com"]', "--kwargs", '{"subject": "yo"}')
    assert (result.exit_code, json.loads(result.stdout)) == (0, "sent:a@b.com:yo")
    assert not (cli.folder / "jobs.db").exists()


def test_a_call_converts_arguments_like_a_worker_does(cli: Cli) -> None:
    name = cli.module(TYPED)
    assert (
        cli("call", "year", "--args", '["2026-01-02T03:04:05Z"]', "--app", name).stdout == "2026\n"
    )
    wrong = cli("call", "year", "--args", '["soon"]', "--app", name)
    assert wrong.exit_code == 2
    assert "at" in wrong.stderr
    assert json.loads(cli("call", "later", "--args", '["x"]', "--app", name).stdout) == {
        "text": "x",
        "nan": None,
    }
    assert cli("call", "attempt", "--app", name).stdout == "1\n"
    assert cli("call", "leave", "--app", name).exit_code == 1


def test_a_failing_call_names_error_and_place(app: str, cli: Cli) -> None:
    result = cli("call", "broken", "--args", '["boom"]')
    assert (result.exit_code, result.stdout) == (1, "")
    assert "ValueError: boom" in result.stderr
    assert f"{app}.py:" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert "Traceback" in cli("call", "broken", "--args", '["boom"]', "--debug").stderr


@pytest.mark.parametrize("command", ["call", "submit"])
@pytest.mark.parametrize("args", ["[]", '["a", "b", "c"]'])
def test_wrong_arguments_are_refused_before_anything_runs(
    command: str, args: str, app: str, cli: Cli
) -> None:
    result = cli(command, "send", "--args", args)
    assert result.exit_code == 2
    assert "argument" in result.stderr


def test_submit_prints_the_id_of_a_job_that_waits_on_its_queue(app: str, cli: Cli) -> None:
    job = cli("submit", "send", "--args", '["a"]', "--priority", "5").stdout.strip()
    record = cli.json("jobs", "show", job)
    assert (record["state"], record["queue"], record["priority"]) == ("QUEUED", "email", 5)
    elsewhere = cli.json("submit", "send", "--args", '["a"]', "-Q", "slow", "--delay", "60")["id"]
    record = cli.json("jobs", "show", elsewhere)
    assert record["queue"] == "slow"
    assert record["due_at"] - record["enqueued_at"] == pytest.approx(60, abs=5)


def test_a_key_admits_one_job(app: str, cli: Cli) -> None:
    ids = {cli("submit", "send", "--args", '["a"]', "--key", "k").stdout for _ in range(2)}
    assert len(ids) == 1


def test_a_task_of_another_deployment_is_submitted_by_name(app: str, cli: Cli) -> None:
    refused = cli("submit", "other.task")
    assert refused.exit_code == 2
    job = cli("submit", "other.task", "--by-name", "--queue", "other").stdout.strip()
    assert cli.json("jobs", "show", job)["task"] == "other.task"


def test_a_job_on_memory_is_refused_because_it_would_be_lost(cli: Cli) -> None:
    name = cli.module("from taskmq import App, Config\napp = App(Config(events='null'))\n"
                      "@app.task\ndef f(): pass\n")  # fmt: skip
    result = cli("submit", "f", "--app", name)
    assert result.exit_code == 2
    assert "memory://" in result.stderr
    assert "taskmq call" in result.stderr


def test_waiting_beyond_the_timeout_fails_and_leaves_the_job(app: str, cli: Cli) -> None:
    result = cli("submit", "send", "--args", '["a"]', "--wait", "--timeout", "0.1")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "has not ended within 0.1 s" in result.stderr
    assert len(cli.json("jobs", "list", "--state", "QUEUED")["jobs"]) == 1


def test_a_worker_runs_what_is_there_and_exits(app: str, cli: Cli) -> None:
    good = cli("submit", "send", "--args", '["a"]').stdout.strip()
    bad = cli("submit", "broken", "--args", '["boom"]').stdout.strip()
    result = cli("worker", "--once", "-c", "2", "--shutdown-timeout", "5")
    assert result.exit_code == 0, result.output
    assert cli.json("jobs", "show", good)["result"] == "sent:a:hi"
    assert cli.json("jobs", "show", bad)["error"]["message"] == "boom"
    assert cli.json("dlq", "list")["total"] == 1
    assert cli.json("status")["workers"] == []


def test_a_worker_serves_only_the_queues_named(app: str, cli: Cli) -> None:
    good = cli("submit", "send", "--args", '["a"]').stdout.strip()
    bad = cli("submit", "broken", "--args", '["boom"]').stdout.strip()
    assert cli("worker", "--once", "-Q", "reports", "--pool", "solo").exit_code == 0
    assert cli.json("jobs", "show", good)["state"] == "QUEUED"
    assert cli.json("jobs", "show", bad)["state"] == "FAILED"


def test_without_the_worker_wheel_it_is_named(
    app: str, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    import taskmq.plugins

    monkeypatch.setattr(taskmq.plugins, "_entry_points", lambda kind: ())
    result = cli("worker", "--once")
    assert result.exit_code == 2
    assert "taskmq-worker" in result.stderr


def test_idle_queues_of_the_app_are_shown(app: str, cli: Cli) -> None:
    cli("submit", "other.task", "--by-name", "-Q", "other")
    names = {each["queue"] for each in cli.json("status")["queues"]}
    assert {"email", "reports"} <= names


def test_doctor_finds_a_healthy_backend(app: str, cli: Cli) -> None:
    cli("worker", "--once")
    document = cli.json("doctor")
    assert {each["level"] for each in document["findings"]} <= {"ok", "warning"}
    text = cli("doctor").stdout
    assert "is reached" in text
    assert "2 tasks registered" in text
    assert max(map(len, text.splitlines())) <= 80


def test_doctor_warns_of_jobs_that_nobody_runs(app: str, cli: Cli) -> None:
    cli("submit", "send", "--args", '["a"]')
    result = cli("doctor")
    assert result.exit_code == 0
    assert "no worker runs; 1 job pending" in " ".join(result.stdout.split())


def test_doctor_migrates_before_it_looks(app: str, cli: Cli) -> None:
    for _ in range(2):
        result = cli("doctor", "--migrate")
        assert result.exit_code == 0, result.output
        assert "migrate" in result.stdout.splitlines()[0]
    assert cli.json("doctor")["migrated"] == []


def test_doctor_fails_when_the_backend_is_not_reached(cli: Cli) -> None:
    (cli.folder / "not-a-database").write_text("hello " * 1000)
    result = cli("doctor", "--transport", f"sqlite:///{cli.folder}/not-a-database")
    assert result.exit_code == 1
    assert "error" in result.output.lower()
    assert "Traceback" not in result.output


def test_plugins_are_listed_with_what_brought_them(cli: Cli) -> None:
    rows = cli.json("plugins")["plugins"]
    by_name = {(each["kind"], each["name"]): each["distribution"] for each in rows}
    assert by_name["transports", "sqlite"] == "taskmq-core"
    assert by_name["pools", "threads"] == "taskmq-worker"
    assert by_name["commands", "status"] == "taskmq-cli"
    only = cli.json("plugins", "--kind", "codecs")["plugins"]
    assert {each["name"] for each in only} >= {"json", "msgspec"}
    stores = cli.json("plugins", "--kind", "results")["plugins"]
    assert ("redis", "taskmq-redis") in {(each["name"], each["distribution"]) for each in stores}
    assert "sqlite" in cli("plugins").stdout


def test_plugins_of_the_app_and_of_the_option_are_listed(app: str, cli: Cli) -> None:
    name = cli.module(
        "from taskmq.plugins import register_sink\n"
        "def register():\n    register_sink('mysink', print, override=True)\n"
    )
    rows = cli.json("plugins", "--plugins", f"{name}:register", "--kind", "sinks")["plugins"]
    assert "mysink" in {each["name"] for each in rows}
    PROCESS_PLUGINS._registered.pop(("sinks", "mysink"))
