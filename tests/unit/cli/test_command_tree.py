from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

from support.cli import Cli, environment
from support.unmeasured import unmeasured
from taskmq_cli.main import cli as root
from taskmq_cli.options import SHARED_NAMES
from taskmq_cli.table import COMMANDS

if TYPE_CHECKING:
    from collections.abc import Iterator

PLUGIN = """
import click
from taskmq.plugins import register_command

@click.command()
def greet():
    "Say hello."
    click.echo("hello from a plugin")

def register():
    register_command("greet", greet)

def override_silently():
    register_command("version", greet)

def override():
    register_command("version", greet, override=True)
"""


def walk(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from walk(child, f"{path} {name}")


EVERY = dict(walk(root, "taskmq"))


@pytest.mark.parametrize("path", EVERY)
def test_every_command_teaches_by_example_and_says_what_it_does(path: str, cli: Cli) -> None:
    result = cli(*path.split()[1:], "--help")
    assert result.exit_code == 0
    assert "Examples:" in result.output
    assert f"  {path}" in result.output.partition("Examples:")[2]
    assert EVERY[path].help
    assert max(map(len, result.output.splitlines())) <= 100


@pytest.mark.parametrize("path", EVERY)
def test_every_command_takes_the_shared_options(path: str) -> None:
    command = EVERY[path]
    spellings = {opt for param in command.get_params(click.Context(command)) for opt in param.opts}
    assert spellings >= SHARED_NAMES


def test_every_option_has_a_help_text() -> None:
    for path, command in EVERY.items():
        for param in command.params:
            if isinstance(param, click.Option) and "--limit" not in param.opts:
                assert param.help, f"{path} {param.opts}"


def test_the_table_has_a_module_for_each_line_and_a_line_for_each_module() -> None:
    import taskmq_cli.commands

    folder = Path(next(iter(taskmq_cli.commands.__path__)))
    modules = {each.stem for each in folder.glob("*.py")} - {"__init__"}
    assert modules == set(COMMANDS)


def test_help_lists_all_commands_with_their_summaries(cli: Cli) -> None:
    output = cli("--help").output
    for name, lazy in COMMANDS.items():
        assert name in output
        assert lazy.summary in output


def test_no_arguments_show_the_help(cli: Cli) -> None:
    result = cli()
    assert result.exit_code == 2
    assert "Commands:" in result.output


@pytest.mark.parametrize(
    ("args", "hint"),
    [
        (("wroker",), "did you mean 'worker'?"),
        (("jobs", "lst"), "did you mean 'list'?"),
        (("status", "--by-prio"), "--by-priority"),
        (("dlq", "reply"), "did you mean 'replay'?"),
        (("--jsn", "status"), "--json"),
        (("purge",), "--queue"),
        (("submit",), "NAME"),
        (("submit", "x", "--priority", "10"), "-9<=x<=9"),
        (("worker", "-c", "0"), "x>=1"),
        (("worker", "-Q", ","), "names nothing"),
        (("jobs", "list", "--state", "BROKEN"), "FAILED"),
        (("submit", "x", "--timeout", "5"), "--wait"),
        (("jobs", "complete", "t", "--retryable"), "--fail"),
        (("jobs", "complete", "t", "--fail", "x", "--result", "1"), "exclude"),
        (("dlq", "replay"), "--all"),
        (("dlq", "replay", "--all", "id"), "--all"),
    ],
)
def test_wrong_usage_is_told_in_two_lines_with_what_was_meant(
    args: tuple[str, ...], hint: str, cli: Cli
) -> None:
    result = cli(*args)
    assert result.exit_code == 2, result.output
    assert hint.lower() in result.stderr.lower()
    assert len(result.stderr.strip().splitlines()) <= 2
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("option", "text", "hint"),
    [
        ("--args", "[1, 2", "no valid JSON"),
        ("--args", '{"a": 1}', "must be a JSON array"),
        ("--args", "hello", "no valid JSON"),
        ("--args", "[NaN]", "NaN is no JSON value"),
        ("--args", "[" * 100_000, "no valid JSON"),
        ("--kwargs", "[1]", "must be a JSON object"),
        ("--kwargs", "", "no valid JSON"),
    ],
)
def test_bad_json_arguments_are_refused_with_an_example(
    option: str, text: str, hint: str, cli: Cli
) -> None:
    result = cli("submit", "some.task", option, text)
    assert result.exit_code == 2
    assert hint in result.stderr
    assert "a@b.com" in result.stderr


def test_version_is_shown_by_option_and_by_command(cli: Cli) -> None:
    assert cli("--version").stdout.startswith("taskmq 0.")
    assert "taskmq-core" in cli("version").stdout
    assert set(cli.json("version")["wheels"]) >= {"taskmq-core", "taskmq-cli"}


def test_help_and_version_import_neither_app_nor_library_nor_rich(tmp_path: Path) -> None:
    (tmp_path / "bomb.py").write_text("raise SystemExit('the app was imported')")
    code = (
        "import sys\n"
        "from taskmq_cli.main import cli\n"
        "for args in (['--help'], ['--version']):\n"
        "    try: cli.main(['--app', 'bomb', *args])\n"
        "    except SystemExit as end: assert end.code == 0, end.code\n"
        "heavy = {'bomb', 'rich', 'taskmq', 'taskmq_worker', 'sqlite3', 'msgspec', 'asyncio'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=unmeasured(environment(TASKMQ_APP="bomb")),
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )
    assert result.stderr.strip() == "[]"


def test_a_plugin_adds_a_command(cli: Cli) -> None:
    name = cli.module(PLUGIN)
    result = cli("--plugins", f"{name}:register", "greet")
    assert (result.exit_code, result.stdout) == (0, "hello from a plugin\n")
    assert "greet" in cli("--plugins", f"{name}:register", "--help").stdout
    assert cli("greet", TASKMQ_PLUGINS=f"{name}:register").exit_code == 0


def test_a_plugin_replaces_a_built_in_command_only_with_override(cli: Cli) -> None:
    name = cli.module(PLUGIN)
    refused = cli("--plugins", f"{name}:override_silently", "version")
    assert refused.exit_code == 2
    assert "override=True" in refused.stderr
    replaced = cli("--plugins", f"{name}:override", "version")
    assert replaced.stdout == "hello from a plugin\n"


def test_a_missing_plugin_is_named(cli: Cli) -> None:
    result = cli("--plugins", "no_such_plugin", "version")
    assert result.exit_code == 2
    assert "no_such_plugin" in result.stderr
    help_text = cli("--plugins", "no_such_plugin", "--help")
    assert help_text.exit_code == 0
    assert "Commands:" in help_text.stdout


def test_a_known_but_absent_command_names_its_distribution(cli: Cli) -> None:
    result = cli("celery")
    assert result.exit_code == 2
    assert "taskmq-celery" in result.stderr
