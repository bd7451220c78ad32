"""`taskmq status`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click
import msgspec

from taskmq.transport.types import QueueStats, WorkerInfo
from taskmq_cli import output, runs
from taskmq_cli.errors import note, warn
from taskmq_cli.group import TaskmqCommand
from taskmq_cli.options import Number
from taskmq_cli.session import Session, pass_session

if TYPE_CHECKING:
    from rich.console import RenderableType

    from taskmq.transport import Transport
    from taskmq.transport.types import BandStats

_ALWAYS = ("pending", "delayed", "in_flight", "dead")
_WHEN_ANY = ("blocked", "held", "waiting")
_RUNS = 10
"""How many runs of workflows are shown."""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What the backend holds at one moment."""

    transport: dict[str, str]
    capabilities: dict[str, bool]
    limitations: dict[str, str]
    queues: list[QueueStats]
    workers: list[WorkerInfo] | None
    workflows: list[runs.Run] | None
    now: float | None

    def document(self) -> dict[str, Any]:
        """Return it as one JSON-ready document; `workers` and `workflows` are null where unknown."""
        document: dict[str, Any] = msgspec.to_builtins(self)
        return document


@click.command(
    cls=TaskmqCommand,
    examples=(
        ("taskmq status", "queues and workers of the app in TASKMQ_APP"),
        ("taskmq status --by-priority --watch", "one line a priority, renewed every second"),
        ("taskmq status --transport sqlite:///jobs.db --json", "for a script, without the app"),
    ),
)
@click.option("--by-priority", is_flag=True, help="One line for each priority of a queue.")
@click.option("--watch", "-w", is_flag=True, help="Renew until Ctrl-C; with --json a line each.")
@click.option(
    "--interval",
    type=Number(0.1, 3600),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="How often --watch looks.",
)
@pass_session
def status(session: Session, by_priority: bool, watch: bool, interval: float) -> None:
    """Show queues, workers, runs of workflows and what the backend can't do.

    pending is ready now, delayed is due later (retries too), in flight is held by a worker, dead are
    dead letters. A worker that missed two heartbeats is marked STALE. Of the runs that go on the 10
    oldest are shown; `taskmq workflow list` shows all.
    """
    if (text := session.shadowed()) is not None:
        warn(text)
    if watch:
        _watch(session, by_priority, interval)
        return
    snapshot = look(session)
    if session.json:
        output.show_json(snapshot.document())
        return
    if snapshot.transport.get("url", "").startswith("memory:"):
        note(
            "Note: memory:// lives in one process; jobs of other processes are not seen from here."
        )
    output.show(*render(snapshot, by_priority))


def look(session: Session) -> Snapshot:
    """Ask the backend for everything that `status` shows."""
    transport = session.transport(existing=True)
    return Snapshot(
        transport=dict(transport.describe()),
        capabilities=capabilities(transport),
        limitations=dict(transport.limitations),
        queues=_queues(session, transport),
        workers=transport.list_workers() if transport.supports_workers else None,
        workflows=_runs(transport),
        now=_now(transport),
    )


def capabilities(transport: Transport) -> dict[str, bool]:
    """Return what a transport declares that it can do."""
    return {
        "leases": transport.supports_leases,
        "workers": transport.supports_workers,
        "job_listing": transport.supports_job_listing,
        "atomic_settle": transport.supports_atomic_settle,
        "rates": transport.supports_rates,
    }


def render(snapshot: Snapshot, by_priority: bool) -> list[RenderableType]:
    """Return the parts of the screen."""
    about = dict(snapshot.transport)
    lacking = [name for name, has in snapshot.capabilities.items() if not has]
    head = [("transport", about.pop("url", "?")), *about.items(), ("lacks", ", ".join(lacking))]
    parts: list[RenderableType] = [output.fields(head), "", _queue_table(snapshot, by_priority), ""]
    parts.append(_worker_table(snapshot))
    if snapshot.workflows:
        parts += ["", "Workflows", runs.listing(snapshot.workflows, snapshot.now)]
    if snapshot.limitations:
        rows = list(snapshot.limitations.items())
        parts += ["", output.table(("scenario", "limitation"), rows, title="Limitations")]
    return parts


def _queue_table(snapshot: Snapshot, by_priority: bool) -> RenderableType:
    if not snapshot.queues:
        return "No queues: nothing is enqueued."
    extra = [name for name in _WHEN_ANY if any(getattr(each, name) for each in snapshot.queues)]
    counts = [*_ALWAYS, *extra]
    heads = [f">{name.replace('_', ' ')}" for name in counts]
    columns = ("queue", *([">priority"] if by_priority else []), *heads, ">oldest")
    rows: list[list[str]] = []
    for queue in snapshot.queues:
        rows.append(_counts(queue, queue.queue, "all" if by_priority else None, counts))
        if by_priority:
            bands = sorted(queue.bands, key=lambda band: -band.priority)
            rows += [_counts(band, "", f"{band.priority}", counts) for band in bands]
    return output.table(columns, rows, title="Queues")


def _counts(
    stats: QueueStats | BandStats, name: str, priority: str | None, counts: list[str]
) -> list[str]:
    numbers = [f"{getattr(stats, count):,}" if hasattr(stats, count) else "" for count in counts]
    first = [name] if priority is None else [name, priority]
    return [*first, *numbers, output.age(stats.oldest_age)]


def _worker_table(snapshot: Snapshot) -> RenderableType:
    from rich.text import Text

    if snapshot.workers is None:
        return "Workers: this transport keeps no registry of workers."
    if not snapshot.workers:
        return "No workers are running."
    rows: list[list[object]] = []
    for worker in sorted(snapshot.workers, key=lambda each: each.id):
        silent = None if snapshot.now is None else snapshot.now - worker.heartbeat_at
        state = Text("STALE", style="bold red") if worker.stale else Text(worker.state)
        load = f"{worker.in_flight}/{worker.concurrency}"
        queues = ", ".join(worker.queues)
        rows.append([worker.id, queues, worker.pool, load, state, output.age(silent)])
    columns = ("worker", "queues", "pool", ">busy", "state", ">heard")
    return output.table(columns, rows, title="Workers")


def _queues(session: Session, transport: Transport) -> list[QueueStats]:
    found = transport.stats()
    if not session.has_app:
        return found
    seen = {each.queue for each in found}
    # An idle queue of the app is worth a line: its absence would look like a mistake in its name.
    idle = [each.name for each in session.app().queue_shares(None) if each.name not in seen]
    return sorted([*found, *(QueueStats(queue=name) for name in idle)], key=lambda each: each.queue)


def _runs(transport: Transport) -> list[runs.Run] | None:
    if not transport.supports_job_listing:
        return None
    return runs.find(transport, [runs.RUNNING], _RUNS, newest_first=False)


def _now(transport: Transport) -> float | None:
    from taskmq.errors import TransportError

    try:
        return transport.now()
    except TransportError:
        return None


def _watch(session: Session, by_priority: bool, interval: float) -> None:
    if session.json:
        while True:
            click.echo(output.to_json(look(session).document(), indent=0))
            time.sleep(interval)
    from rich.console import Group
    from rich.live import Live

    screen = output.console()
    with Live(console=screen, auto_refresh=False, screen=screen.is_terminal) as live:
        while True:
            live.update(Group(*render(look(session), by_priority)), refresh=True)
            time.sleep(interval)
