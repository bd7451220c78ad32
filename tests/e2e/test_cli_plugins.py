"""Commands of other distributions, found by their entry points."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.cli import run

if TYPE_CHECKING:
    from pathlib import Path

COMMAND = """
import sys
from taskmq_cli import Session, TaskmqCommand, pass_session
import click

print("imported", file=sys.stderr)

@click.command(cls=TaskmqCommand, examples=(("taskmq depth", "how many"),))
@pass_session
def depth(session: Session) -> None:
    "Say how many jobs are pending."
    click.echo(sum(each.pending for each in session.transport().stats()))

number = 3
"""


@pytest.fixture
def path(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "depth_plugin.py").write_text(COMMAND)
    info = tmp_path / "depth_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: depth-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[taskmq.commands]\n"
        "depth = depth_plugin:depth\n"
        "broken = no_such_module:command\n"
        "number = depth_plugin:number\n"
        "status = depth_plugin:depth\n"
    )
    return {"PYTHONPATH": str(tmp_path)}


def test_help_names_commands_of_plugins_without_importing_them(
    tmp_path: Path, path: dict[str, str]
) -> None:
    result = run(tmp_path, "--help", **path)
    assert "depth" in result.stdout
    assert result.stderr == ""
    assert result.returncode == 0


def test_a_command_of_a_plugin_works_with_the_shared_options(
    tmp_path: Path, path: dict[str, str]
) -> None:
    result = run(tmp_path, "depth", "--transport", "sqlite:///jobs.db", **path)
    assert (result.returncode, result.stdout) == (0, "0\n")
    taught = run(tmp_path, "depth", "--help", **path)
    assert "Examples:" in taught.stdout
    assert "--transport" in taught.stdout


def test_an_entry_point_never_replaces_a_built_in_command(
    tmp_path: Path, path: dict[str, str]
) -> None:
    result = run(tmp_path, "status", "--transport", "sqlite:///jobs.db", **path)
    assert "no such database" in result.stderr
    assert "imported" not in result.stderr


@pytest.mark.parametrize(("name", "hint"), [("broken", "no_such_module"), ("number", "an int")])
def test_a_broken_command_of_a_plugin_names_its_cause(
    name: str, hint: str, tmp_path: Path, path: dict[str, str]
) -> None:
    result = run(tmp_path, name, **path)
    assert result.returncode == 2
    assert hint in result.stderr
    assert "Traceback" not in result.stderr
