"""`taskmq plugins`."""

from __future__ import annotations

import click

from taskmq_cli import extensions, output
from taskmq_cli.errors import Failure
from taskmq_cli.group import TaskmqCommand
from taskmq_cli.session import Session, pass_session
from taskmq_cli.table import COMMANDS

KINDS = ("transports", "results", "codecs", "sinks", "pools", "commands", "runtime")


@click.command(
    cls=TaskmqCommand,
    examples=(
        ("taskmq plugins", "everything that a name in Config or a URL can mean"),
        ("taskmq plugins --kind transports", "which URL schemes work here"),
        ("taskmq --plugins myqueue.taskmq plugins", "with what a module of yours registers"),
    ),
)
@click.option("--kind", type=click.Choice(KINDS), multiple=True, help="Only plugins of this kind.")
@pass_session
def plugins(session: Session, kind: tuple[str, ...]) -> None:
    """Show what is registered under which name, and which distribution brought it.

    Nothing is imported for it, but what --plugins names. With --app, what the app registers is
    shown too.
    """
    extensions.register_builtins({name: lazy.where for name, lazy in COMMANDS.items()})
    session.load_plugins()
    infos = [each for each in session.plugins().listing() if not kind or each.kind in kind]
    if not infos:
        raise Failure(f"no plugin of kind {' or '.join(kind)} is registered")
    rows = [
        {
            "kind": each.kind,
            "name": each.name,
            "distribution": _distribution(each.distribution),
            "target": each.target,
            "source": "built-in" if each.distribution == "taskmq_cli" else each.source,
        }
        for each in infos
    ]
    if session.json:
        output.show_json({"plugins": rows})
        return
    shown = [(row["kind"], row["name"], row["distribution"], row["target"]) for row in rows]
    output.show(output.table(("kind", "name", "from", "object"), shown))


def _distribution(name: str) -> str:
    return "taskmq-cli" if name == "taskmq_cli" else name
