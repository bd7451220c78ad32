"""Which backend a command works with, and that looking at one doesn't make it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from support.cli import Cli

IN_CODE = """
from taskmq import App, Config
from taskmq.transport.sqlite import SqliteTransport

app = App(Config(transport=SqliteTransport("jobs.db"), events="null"))

@app.task
def f() -> None: ...
"""
UNSAID = """
from taskmq import App, Config

app = App(Config(events="null"))

@app.task
def where() -> str:
    return str(app.config.transport)
"""


def other(cli: Cli) -> str:
    return f"sqlite:///{cli.folder}/other.db"


def test_the_transport_option_goes_before_the_apps_in_every_command(cli: Cli) -> None:
    name = cli.module()
    options = ("--app", name, "--transport", other(cli))
    job = cli("submit", "send", "--args", '["a"]', *options).stdout.strip()
    assert not (cli.folder / "jobs.db").exists()
    assert cli("worker", "--once", *options).exit_code == 0
    assert cli.json("jobs", "show", job, "--transport", other(cli))["state"] == "SUCCEEDED"
    assert not (cli.folder / "jobs.db").exists()


def test_a_call_sees_the_transport_option(cli: Cli) -> None:
    name = cli.module(UNSAID)
    result = cli("call", "where", "--app", name, "--transport", other(cli))
    assert result.stdout == f'"{other(cli)}"\n'


@pytest.mark.parametrize("command", [("submit", "f"), ("worker", "--once"), ("call", "f")])
def test_a_transport_given_as_an_instance_is_not_replaced(
    command: tuple[str, ...], cli: Cli
) -> None:
    result = cli(*command, "--app", cli.module(IN_CODE), "--transport", other(cli))
    assert result.exit_code == 2
    assert "--transport" in result.stderr
    assert "SqliteTransport" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_shadowed_variable_is_told_without_secrets(cli: Cli) -> None:
    name = cli.module()
    env = {"TASKMQ_APP": name, "TASKMQ_TRANSPORT": "redis://me:hunter2@host:6379/0"}
    job = cli("submit", "send", "--args", '["a"]', **env)
    assert (job.exit_code, job.stderr) == (0, "")
    for command in (("status",), ("worker", "--once")):
        result = cli(*command, **env)
        assert result.exit_code == 0, result.output
        told = [line for line in result.stderr.splitlines() if "TASKMQ_TRANSPORT" in line]
        assert len(told) == 1
        assert "redis://me:***@host:6379/0" in told[0]
        assert "sqlite:///jobs.db" in told[0]
    findings = json.loads(cli("doctor", "--json", **env).stdout)["findings"]
    assert [each["level"] for each in findings if "TASKMQ_TRANSPORT" in each["message"]] == [
        "warning"
    ]
    assert "hunter2" not in str(findings)


def test_a_variable_that_says_the_same_or_is_obeyed_needs_no_warning(cli: Cli) -> None:
    cli("submit", "send", "--args", '["a"]', "--app", cli.module())
    same = cli("status", TASKMQ_APP=cli.module(), TASKMQ_TRANSPORT="sqlite:///jobs.db")
    obeyed = cli("status", TASKMQ_APP=cli.module(UNSAID), TASKMQ_TRANSPORT="sqlite:///jobs.db")
    option = cli(
        "status", "--transport", "sqlite:///jobs.db", TASKMQ_APP=cli.module(), TASKMQ_TRANSPORT="x"
    )
    for result in (same, obeyed, option):
        assert (result.exit_code, result.stderr) == (0, "")


@pytest.mark.parametrize(
    "command",
    [
        ("status",),
        ("status", "--watch"),
        ("jobs", "list"),
        ("jobs", "show", "x"),
        ("jobs", "revoke", "x"),
        ("dlq", "list"),
        ("dlq", "show", "x"),
        ("dlq", "replay", "--all"),
        ("dlq", "purge", "--yes"),
        ("purge", "-Q", "x", "--yes"),
        ("doctor",),
    ],
)
@pytest.mark.parametrize("through_app", [False, True])
def test_looking_at_a_database_that_is_missing_makes_none(
    command: tuple[str, ...], through_app: bool, cli: Cli, tmp_path: Path
) -> None:
    options = ("--app", cli.module()) if through_app else ("--transport", cli.url)
    result = cli(*command, *options)
    assert result.exit_code == 1
    assert f"no such database {tmp_path}/jobs.db" in result.stderr
    assert "a producer or worker creates it" in result.stderr
    assert not list(tmp_path.glob("jobs.db*"))


def test_migrating_makes_the_database(cli: Cli) -> None:
    assert cli("doctor", "--migrate", "--transport", cli.url).exit_code == 0
    assert (cli.folder / "jobs.db").exists()
