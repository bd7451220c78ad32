"""Finding the app: whatever is wrong with it, the real cause is named in a line or two."""

from __future__ import annotations

import sys

import pytest

from support.cli import APP, Cli

TWO = "from taskmq import App, Config\nfirst = App(Config())\nsecond = App(Config())\n"


def test_an_app_is_found_by_attribute_by_module_alone_and_by_environment(cli: Cli) -> None:
    name = cli.module()
    for args, env in (
        (("--app", f"{name}:app"), {}),
        (("--app", name), {}),
        ((), {"TASKMQ_APP": f"{name}:app"}),
    ):
        result = cli("call", f"{name}.send", "--args", '["a"]', *args, **env)
        assert (result.exit_code, result.stdout) == (0, '"sent:a:hi"\n'), result.stderr


def test_an_app_inside_a_package_or_an_object_is_found(cli: Cli) -> None:
    name = cli.module("class Box:\n    pass\n" + APP + "\nBox.app = app\n")
    assert cli("call", "send", "--args", '["a"]', "--app", f"{name}:Box.app").exit_code == 0


def test_an_option_goes_before_the_environment(cli: Cli) -> None:
    name = cli.module()
    result = cli("call", "send", "--args", '["a"]', "--app", name, TASKMQ_APP="no.such:app")
    assert result.exit_code == 0


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("no_such_module:app", "no module 'no_such_module'"),
        ("json.no_such:app", "no module 'json.no_such'"),
        ("myapp/tasks.py", "try myapp.tasks:app"),
        ("tasks.py:main", "try tasks:main"),
        ("1abc:app", "names no module"),
        ("a b:app", "names no module"),
        (":app", "names no module"),
        ("json:", "names no attribute"),
        ("json:dumps", "not a taskmq App"),
        ("json", "has no taskmq App"),
        ("json:app", "no attribute 'app'"),
    ],
)
def test_a_wrong_path_is_told(path: str, hint: str, cli: Cli) -> None:
    result = cli("call", "send", "--app", path)
    assert result.exit_code == 2
    assert hint in result.stderr
    assert "Traceback" not in result.stderr
    assert len(result.stderr.splitlines()) <= 2


def test_a_misspelt_module_or_attribute_gets_a_suggestion(cli: Cli) -> None:
    name = cli.module()
    assert f"did you mean '{name}'?" in cli("worker", "--app", f"{name}x:app").stderr
    assert "did you mean 'app'?" in cli("worker", "--app", f"{name}:ap").stderr


def test_two_apps_are_both_named(cli: Cli) -> None:
    name = cli.module(TWO)
    result = cli("worker", "--app", name)
    assert result.exit_code == 2
    assert f"{name}:first or {name}:second" in result.stderr


def test_two_names_of_one_app_are_one_app(cli: Cli) -> None:
    name = cli.module(APP + "\nsame = app\n")
    assert cli("call", "send", "--args", '["a"]', "--app", name).exit_code == 0


@pytest.mark.parametrize(
    ("text", "cause", "line"),
    [
        ("x = 1\nimport no_such_library\n", "ModuleNotFoundError: No module named", 2),
        (
            "def f():\n    raise ImportError('needs libfoo')\n\nf()\n",
            "ImportError: needs libfoo",
            2,
        ),
        ("\n\nx = 1 / 0\n", "ZeroDivisionError: division by zero", 3),
        ("x = (\n", "SyntaxError", 1),
        ("import os\nos.environ['NO_SUCH_VARIABLE_X']\n", "KeyError: 'NO_SUCH_VARIABLE_X'", 2),
        ("import sys\nsys.exit(3)\n", "SystemExit: 3", 2),
    ],
)
def test_an_error_inside_the_module_shows_its_type_text_and_place(
    text: str, cause: str, line: int, cli: Cli
) -> None:
    name = cli.module(text)
    result = cli("worker", "--app", f"{name}:app")
    assert result.exit_code == 2
    assert cause in result.stderr
    assert f"{name}.py:{line}" in result.stderr
    assert len(result.stderr.splitlines()) <= 2
    sys.modules.pop(name, None)
    debugged = cli("worker", "--app", f"{name}:app", "--debug")
    assert "Traceback (most recent call last)" in debugged.stderr


def test_a_missing_module_of_the_same_prefix_inside_is_the_modules_own_error(cli: Cli) -> None:
    (cli.folder / "shoppkg").mkdir()
    (cli.folder / "shoppkg" / "__init__.py").write_text("import shoppkg.missing\n")
    (cli.folder / "shoppkg" / "tasks.py").write_text(APP)
    result = cli("worker", "--app", "shoppkg.tasks:app")
    assert result.exit_code == 2
    assert "shoppkg/__init__.py:1" in result.stderr


def test_a_broken_include_shows_the_real_cause(cli: Cli) -> None:
    broken = cli.module("import no_such_library\n")
    text = f"from taskmq import App, Config\napp = App(Config(include=['{broken}']))\n"
    result = cli("worker", "--app", cli.module(text))
    assert result.exit_code == 2
    assert "no_such_library" in result.stderr


def test_an_app_without_tasks_starts_no_worker(cli: Cli) -> None:
    name = cli.module("from taskmq import App, Config\napp = App(Config(events='null'))\n")
    for command in (("worker",), ("worker", "--once"), ("call", "x"), ("submit", "x", "--by-name")):
        result = cli(*command, "--app", name)
        assert result.exit_code == 2, command
        assert "no tasks" in result.stderr or "memory://" in result.stderr


def test_no_app_at_all_is_told(cli: Cli) -> None:
    for command in (("worker",), ("call", "x"), ("submit", "x")):
        result = cli(*command)
        assert result.exit_code == 2
        assert "--app module:attribute" in result.stderr
        assert "TASKMQ_APP" in result.stderr


def test_a_wrong_setting_of_the_environment_names_the_variable(cli: Cli) -> None:
    name = cli.module("from taskmq import App, Config\napp = App(Config(events='null'))\n")
    result = cli("worker", "--app", name, TASKMQ_CONCURRENCY="many")
    assert result.exit_code == 2
    assert "TASKMQ_CONCURRENCY" in result.stderr


def test_an_unknown_config_field_in_the_module_suggests_the_right_one(cli: Cli) -> None:
    name = cli.module("from taskmq import App, Config\napp = App(Config(concurency=8))\n")
    result = cli("worker", "--app", name)
    assert result.exit_code == 2
    assert "concurrency" in result.stderr
    assert f"{name}.py:2" in result.stderr


@pytest.mark.parametrize(
    ("task", "hint"),
    [
        ("sendd", "did you mean"),
        ("MODULE.snd", "did you mean 'MODULE.send'?"),
        ("zzz", "it has MODULE.broken, MODULE.send"),
    ],
)
def test_a_misspelt_task_gets_a_suggestion(task: str, hint: str, cli: Cli) -> None:
    name = cli.module()
    for command in ("call", "submit"):
        result = cli(command, task.replace("MODULE", name), "--app", name)
        assert result.exit_code == 2
        assert hint.replace("MODULE", name) in result.stderr


def test_a_misspelt_queue_of_a_worker_is_warned_of(cli: Cli) -> None:
    result = cli("worker", "--app", cli.module(), "-Q", "emial", "--once")
    assert "did you mean 'email'?" in result.stderr
    assert result.exit_code == 0


def test_many_queues_that_the_app_does_not_use_are_told_in_a_few_lines(cli: Cli) -> None:
    names = ",".join(f"tenant{number}" for number in range(300))
    result = cli("worker", "--app", cli.module(), "-Q", names, "--once")
    assert result.exit_code == 0
    told = [line for line in result.stderr.splitlines() if line.startswith("Warning")]
    assert len(told) == 6
    assert "295 more" in told[-1]


def test_an_unknown_pool_or_sink_is_a_configuration_error(cli: Cli) -> None:
    name = cli.module()
    for option in (("--pool", "threds"), ("--events", "stdot")):
        result = cli("worker", "--app", name, "--once", *option)
        assert result.exit_code == 2, result.output
        assert option[1] in result.stderr
        assert len(result.stderr.strip().splitlines()) <= 3
