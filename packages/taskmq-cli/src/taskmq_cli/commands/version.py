"""`taskmq version`."""

from __future__ import annotations

import platform
from importlib.metadata import distributions

import click

from taskmq_cli import output
from taskmq_cli.group import TaskmqCommand
from taskmq_cli.session import Session, pass_session


@click.command(
    cls=TaskmqCommand,
    examples=(
        ("taskmq version", "all wheels, for a bug report"),
        ("taskmq --version", "one line"),
        ("taskmq version --json", "for a script"),
    ),
)
@pass_session
def version(session: Session) -> None:
    """Show the versions of the installed taskmq wheels, of Python and of the platform."""
    wheels = {
        name: each.version
        for each in distributions()
        if (name := each.metadata["Name"]) and name.startswith("taskmq-")
    }
    about = {"python": platform.python_version(), "platform": platform.platform()}
    if session.json:
        output.show_json({"wheels": dict(sorted(wheels.items())), **about})
    else:
        output.show(output.fields([*sorted(wheels.items()), *about.items()]))
