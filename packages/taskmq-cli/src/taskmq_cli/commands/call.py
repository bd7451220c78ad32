"""`taskmq call`."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any

import click

from taskmq_cli import output
from taskmq_cli.errors import Failure, cause_of
from taskmq_cli.group import TaskmqCommand
from taskmq_cli.options import ARGS, KWARGS
from taskmq_cli.session import Session, pass_session
from taskmq_cli.tasks import converted, task_named

if TYPE_CHECKING:
    from collections.abc import Awaitable


@click.command(
    cls=TaskmqCommand,
    examples=(
        (
            'taskmq call myapp.tasks.send_email --args \'["a@b.com", "hi"]\'',
            "run it in this terminal; no worker and no backend is needed",
        ),
        (
            'taskmq call send_email --kwargs \'{"to": "a@b.com"}\'',
            "the last part of the name is enough",
        ),
        ("taskmq call myapp.tasks.report --debug", "with the traceback, should it fail"),
    ),
)
@click.argument("name")
@click.option("--args", type=ARGS, default="[]", help="Positional arguments, a JSON array.")
@click.option("--kwargs", type=KWARGS, default="{}", help="Named arguments, a JSON object.")
@pass_session
def call(session: Session, name: str, args: list[Any], kwargs: dict[str, Any]) -> None:
    """Run task NAME here and now, and print its result as JSON.

    This is the plain function call: no queue, no retry, no job record. Use `taskmq submit` to put a
    job on its queue.
    """
    task = task_named(session.app(), name)
    arguments = converted(task, args, kwargs)
    try:
        result = _run(task, *arguments)
    except (Exception, SystemExit) as error:
        raise Failure(f"{task.name} failed: {cause_of(error)}") from error
    output.show_json(result)


def _run(task: Any, args: Any, kwargs: Any) -> Any:
    result = task(*args, **kwargs)
    return asyncio.run(_awaited(result)) if inspect.isawaitable(result) else result


async def _awaited(result: Awaitable[Any]) -> Any:
    return await result
