"""`taskmq submit`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from taskmq_cli import output
from taskmq_cli.ends import JOB, TIMEOUT_ALONE, wait_for
from taskmq_cli.errors import Misuse
from taskmq_cli.group import TaskmqCommand
from taskmq_cli.options import ARGS, KWARGS, Number, Whole
from taskmq_cli.session import Session, pass_session
from taskmq_cli.tasks import converted, task_named

if TYPE_CHECKING:
    from taskmq.handle import TaskHandle


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line said about the job."""

    name: str
    args: list[Any]
    kwargs: dict[str, Any]
    options: dict[str, Any]
    by_name: bool


@click.command(
    cls=TaskmqCommand,
    examples=(
        (
            'taskmq submit myapp.tasks.send_email --args \'["a@b.com", "hi"]\'',
            "print the job's id",
        ),
        (
            'taskmq submit send_email --args \'["vip@b.com", "now"]\' --priority 9 --wait',
            "jump the line, wait for a worker, print the result as JSON",
        ),
        (
            "taskmq submit myapp.tasks.report --delay 3600 --key report-2026-01",
            "in an hour, and only once for this key",
        ),
        (
            "taskmq submit other.app.task --by-name --queue other",
            "a task that only other deployments know",
        ),
    ),
)
@click.argument("name")
@click.option("--args", type=ARGS, default="[]", help="Positional arguments, a JSON array.")
@click.option("--kwargs", type=KWARGS, default="{}", help="Named arguments, a JSON object.")
@click.option("--queue", "-Q", metavar="NAME", help="Queue; by default the task's.")
@click.option("--priority", "-p", type=Whole(-9, 9), help="Priority, higher first.")
@click.option("--delay", type=Number(0), metavar="SECONDS", help="Not before then.")
@click.option("--expires", type=Number(0), metavar="SECONDS", help="Not started later.")
@click.option("--key", metavar="TEXT", help="Idempotency key: a second call gets the first's job.")
@click.option("--by-name", is_flag=True, help="Submit although this app doesn't know the task.")
@click.option("--wait", is_flag=True, help="Wait for the end and print the result as JSON.")
@click.option("--timeout", type=Number(0), metavar="SECONDS", help="With --wait: wait no longer.")
@pass_session
def submit(
    session: Session,
    /,
    name: str,
    args: list[Any],
    kwargs: dict[str, Any],
    by_name: bool,
    wait: bool,
    timeout: float | None,
    **options: Any,
) -> None:
    """Put a job of task NAME on its queue and print its id.

    With --wait the id goes to stderr and the result, as JSON, to stdout; the exit code is 1 when the
    job ended other than by success or the time is over (the job goes on all the same).
    """
    if timeout is not None and not wait:
        raise click.UsageError(TIMEOUT_ALONE)
    given = {key: value for key, value in options.items() if value is not None}
    call = Call(name=name, args=args, kwargs=kwargs, options=given, by_name=by_name)
    handle = _enqueue(session, call)
    if wait:
        wait_for(session, handle, JOB, timeout)
    elif session.json:
        output.show_json({"id": handle.id})
    else:
        click.echo(handle.id)


def _enqueue(session: Session, call: Call) -> TaskHandle[Any]:
    app = session.app()
    if app.transport.describe().get("url", "").startswith("memory:") and not app.config.eager:
        raise Misuse(
            "memory:// ends with this process, and the job with it: use `taskmq call` to run it here, "
            "or a transport that stays, for example TASKMQ_TRANSPORT=sqlite:///jobs.db"
        )
    try:
        if call.by_name and call.name not in app.tasks:
            return app.send(call.name, args=tuple(call.args), kwargs=call.kwargs, **call.options)
        task = task_named(app, call.name)
        # What JSON said is what travels: the worker converts it again.
        converted(task, call.args, call.kwargs)
        handle: TaskHandle[Any] = task.apply_async(tuple(call.args), call.kwargs, **call.options)
    except TypeError as error:
        raise Misuse(f"wrong arguments for {call.name}: {error}") from error
    return handle
