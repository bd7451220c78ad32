"""`taskmq worker`."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from taskmq_cli import output
from taskmq_cli.errors import Misuse, note, warn
from taskmq_cli.group import TaskmqCommand
from taskmq_cli.options import Number, QueueNames, Whole
from taskmq_cli.queues import named, served_by, warn_of_unknown
from taskmq_cli.session import Session, pass_session
from taskmq_cli.tasks import no_tasks

if TYPE_CHECKING:
    from typing import TextIO

    from taskmq.app import App


@click.command(
    cls=TaskmqCommand,
    examples=(
        ("taskmq worker", "all queues of the app in TASKMQ_APP, with the settings of its Config"),
        ("taskmq worker --app myapp.tasks:app -Q email,default -c 8", "two queues, eight slots"),
        ("taskmq worker --once", "run what is there, then exit"),
        ("taskmq worker --events stdout --log-format pretty", "watch it work"),
        ("taskmq worker --health-port 8081", "answer probes; ask with taskmq health --port 8081"),
        ("taskmq worker --replicas 2", "two processes; kill -HUP PID restarts them without a gap"),
        ("kill -TERM PID", "finish what runs (up to --shutdown-timeout), give the rest back, exit"),
    ),
)
@click.option(
    "--queue",
    "-Q",
    "names",
    type=QueueNames(),
    multiple=True,
    help="Which queues, commas between (a queue with the whole text as its name wins); by default "
    "all that the app uses.",
)
@click.option("--concurrency", "-c", type=Whole(1), help="How many jobs at a time.")
@click.option(
    "--pool", metavar="NAME", help="What runs the jobs: threads, solo, asyncio, processes."
)
@click.option("--prefetch", type=Whole(0), help="Unstarted jobs to hold at most.")
@click.option(
    "--shutdown-timeout",
    type=Number(0),
    metavar="SECONDS",
    help="How long running jobs may finish once asked to stop.",
)
@click.option("--events", metavar="SINK", help="Where events go: stdout, log, null.")
@click.option(
    "--log-format",
    type=click.Choice(("json", "pretty")),
    help="How stdout is written; pretty on a terminal, else json.",
)
@click.option("--health-file", metavar="PATH", help="Write the worker's health there each second.")
@click.option(
    "--health-port",
    type=Whole(0, 65535),
    help="Answer HTTP probes there: /live, /ready, /.",
)
@click.option(
    "--health-host",
    metavar="ADDRESS",
    default="127.0.0.1",
    show_default=True,
    help="Which address the probes' port is on.",
)
@click.option("--once", is_flag=True, help="Run what is ready, not what is due later, then exit.")
@click.option(
    "--replicas",
    type=Whole(1),
    help="Run so many worker processes; SIGHUP restarts them one after the other.",
)
@click.option("--lifeline", type=int, hidden=True, help="Stop when this pipe's other end closes.")
@pass_session
def worker(
    session: Session,
    /,
    names: tuple[str, ...],
    concurrency: int | None,
    pool: str | None,
    prefetch: int | None,
    replicas: int | None,
    lifeline: int | None,
    once: bool,
    **settings: Any,
) -> None:
    """Run jobs until SIGTERM or Ctrl-C; a second signal stops at once.

    An option goes before the field of Config that has its name.
    """
    probes = {name: settings.pop(name) for name in ("health_file", "health_port", "health_host")}
    if replicas is not None:
        if once:
            raise click.UsageError("--once and --replicas exclude each other")
        given: dict[str, Any] = {
            "--concurrency": concurrency,
            "--pool": pool,
            "--prefetch": prefetch,
            **{f"--{name.replace('_', '-')}": value for name, value in settings.items()},
        }
        made = _runtime(session).create_supervisor(
            _command(session, names, given), replicas, **probes
        )
    else:
        app = session.app()
        if not app.tasks:
            raise Misuse(no_tasks(app))
        if (text := session.shadowed()) is not None:
            warn(text)
        queues = named(names, lambda: served_by(session))
        warn_of_unknown(app, queues)
        _warn_of_memory(app)
        if settings["log_format"] is None and _is_watched():
            settings["log_format"] = "pretty"
        _configure(app, settings)
        made = app.plugins.resolve("runtime", "worker")().create_worker(
            app,
            queues=list(queues) or None,
            concurrency=concurrency,
            pool=pool,
            prefetch=prefetch,
            app_path=session.app_name,
            lifeline=lifeline,
            **probes,
        )
    # Only now: an app may have set up logging of its own.
    _show_log(session)
    code = made.run_once() if once else made.run()
    click.get_current_context().exit(code or 0)


def _runtime(session: Session) -> Any:
    """The runtime without the app, which only the workers import."""
    from taskmq.plugins import PROCESS_PLUGINS

    session.load_plugins()
    return PROCESS_PLUGINS.resolve("runtime", "worker")()


def _command(session: Session, queues: tuple[str, ...], given: dict[str, Any]) -> list[str]:
    """The command line of one worker."""
    if session.app_name is None:
        raise Misuse("no app given: say where it is with --app module:attribute or set TASKMQ_APP")
    given = {
        "--app": session.app_name,
        "--plugins": ",".join(session.plugin_names or ()) or None,
        "--transport": session.transport_url,
        "--debug": session.debug or None,
        **given,
    }
    words = [sys.executable, "-m", "taskmq_cli", "worker", *(f"--queue={each}" for each in queues)]
    for name, value in given.items():
        if value is not None:
            words += [name] if value is True else [f"{name}={value}"]
    return words


def _is_watched() -> bool:
    """Whether events go to a terminal, and nobody has said how they are written."""
    # None in a process without standard output, whatever the stubs say.
    stdout: TextIO | None = sys.stdout
    return bool(stdout and stdout.isatty()) and not os.environ.get("TASKMQ_LOG_FORMAT")


def _configure(app: App, settings: dict[str, Any]) -> None:
    changed = {name: value for name, value in settings.items() if value is not None}
    if changed:
        app.config = app.config.replace(**changed)


def _show_log(session: Session) -> None:
    """Let warnings (with --debug everything) of the library and of tasks reach stderr."""
    if logging.getLogger().handlers:
        return
    level = logging.DEBUG if session.debug else logging.INFO
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")


def _warn_of_memory(app: App) -> None:
    if app.transport.describe().get("url", "").startswith("memory:"):
        warn("memory:// lives in this process: no other process can put jobs on its queues")
    note(
        f"app with {output.counted(len(app.tasks), 'task')} on {app.transport.describe().get('url', '?')}"
    )
