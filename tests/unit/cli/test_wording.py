"""Words that help a newcomer on: what was meant, what is allowed, where to look."""

from __future__ import annotations

import pytest

from support.cli import APP, Cli


@pytest.fixture
def app(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> str:
    name = cli.module()
    monkeypatch.setenv("TASKMQ_APP", f"{name}:app")
    return name


@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize(
    "arguments",
    [
        ("--args", "[[1]]"),
        ("--args", "[]"),
        ("--kwargs", '{"to": "a", "subjct": "x"}'),
        ("--kwargs", '{"to": {"a": 1}}'),
    ],
)
def test_submit_refuses_what_call_refuses_and_with_the_same_words(
    arguments: tuple[str, ...], by_name: bool, app: str, cli: Cli
) -> None:
    called = cli("call", "send", *arguments)
    submitted = cli(
        "submit", f"{app}.send" if by_name else "send", *arguments, *["--by-name"] * by_name
    )
    assert submitted.exit_code == called.exit_code == 2
    assert submitted.stderr == called.stderr
    assert "wrong arguments for" in called.stderr
    assert not (cli.folder / "jobs.db").exists()


def test_a_misspelt_argument_is_told(app: str, cli: Cli) -> None:
    result = cli("submit", "send", "--kwargs", '{"to": "a", "subjct": "x"}')
    assert "unknown argument 'subjct', did you mean 'subject'?" in result.stderr


def test_no_arguments_show_the_help_on_stdout_without_an_error(cli: Cli) -> None:
    for command in ((), ("jobs",), ("dlq",)):
        result = cli(*command)
        assert result.exit_code == 2
        assert result.stdout.startswith("Usage: ")
        assert "Commands:" in result.stdout
        assert result.stderr == ""


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("submit", "x", "--delay", "soon"), "'soon' is not a valid number."),
        (("submit", "x", "--delay", "nan"), "'nan' is not a valid number."),
        (("worker", "-c", "four"), "'four' is not a valid whole number."),
        (("jobs", "list", "--state", "broken"), "'PENDING', 'QUEUED', 'RUNNING'"),
    ],
)
def test_a_value_of_the_wrong_kind_is_told_in_plain_words(
    args: tuple[str, ...], told: str, cli: Cli
) -> None:
    result = cli(*args)
    assert result.exit_code == 2
    assert told in result.stderr


def test_a_dot_instead_of_the_colon_is_told(cli: Cli) -> None:
    name = cli.module()
    result = cli("status", "--app", f"{name}.app")
    assert result.exit_code == 2
    assert f"did you mean {name}:app?" in result.stderr


def test_articles_and_plurals_are_right(cli: Cli) -> None:
    name = cli.module(APP.partition('@app.task(queue="reports")')[0] + "\nnumber = 5\n")
    assert "is an int, not" in cli("status", "--app", f"{name}:number").stderr
    told = cli("worker", "--once", "--app", name).stderr
    assert "app with 1 task on sqlite:///" in told


def test_a_worker_splits_queues_as_the_other_commands_do(cli: Cli) -> None:
    name = cli.module(APP.replace('"reports"', '"a,b"'))
    bad = cli("submit", "broken", "--args", '["x"]', "--app", name).stdout.strip()
    good = cli("submit", "send", "--args", '["x"]', "--app", name).stdout.strip()
    assert cli("worker", "--once", "-Q", "a,b", "--app", name).exit_code == 0
    state = {each["id"]: each["state"] for each in cli.json("jobs", "list", "--app", name)["jobs"]}
    assert (state[bad], state[good]) == ("FAILED", "QUEUED")
    assert cli("worker", "--once", "-Q", "x,email", "--app", name).exit_code == 0
    assert cli.json("jobs", "show", good, "--app", name)["state"] == "SUCCEEDED"
