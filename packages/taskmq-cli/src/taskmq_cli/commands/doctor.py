"""`taskmq doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from taskmq_cli import output
from taskmq_cli.errors import clean, masked
from taskmq_cli.group import TaskmqCommand
from taskmq_cli.session import Session, pass_session

if TYPE_CHECKING:
    from taskmq.app import App
    from taskmq.transport import Transport
    from taskmq.transport.types import Finding

_STYLES = {"ok": "green", "warning": "yellow", "error": "bold red"}


@click.command(
    cls=TaskmqCommand,
    examples=(
        ("taskmq doctor", "is everything all right?"),
        ("taskmq doctor --migrate", "bring the stored schema up to date first"),
        ("taskmq doctor --transport sqlite:///jobs.db --json", "for a monitor"),
    ),
)
@click.option("--migrate", is_flag=True, help="Bring the backend's schema up to date first.")
@pass_session
def doctor(session: Session, migrate: bool) -> None:
    """Check that the backend is reached, has the right version and rights, and loses no jobs.

    The exit code is 1 when there is an error; warnings alone leave it at 0.
    """
    transport = session.transport(existing=not migrate)
    done = transport.migrate() if migrate else []
    findings = _examine(transport)
    if (text := session.shadowed()) is not None:
        advice = "unset it, or take transport= out of the code and let the variable decide"
        findings.append(_finding_of_warning("settings", text, advice))
    if session.has_app:
        findings += _examine_app(session.app(), transport)
    if session.json:
        output.show_json({"migrated": done, "findings": findings})
    else:
        for line in done:
            click.echo(f"migrated: {clean(line)}")
        if migrate and not done:
            click.echo("nothing to migrate")
        _show(findings)
    if any(each.level == "error" for each in findings):
        click.get_current_context().exit(1)


def _finding_of_warning(subject: str, text: str, advice: str) -> Finding:
    from taskmq.transport.types import Finding

    return Finding(level="warning", subject=subject, message=text, advice=advice)


def _examine(transport: Transport) -> list[Finding]:
    from taskmq.errors import TransportError
    from taskmq.transport.types import Finding

    url = masked(transport.describe().get("url", type(transport).__name__))
    try:
        transport.ping()
    except TransportError as error:
        text = masked(f"{url} is not reached: {error}")
        return [Finding(level="error", subject="backend", message=text)]
    reached = Finding(level="ok", subject="backend", message=f"{url} is reached")
    return [reached, *transport.diagnose(), *_registry(transport)]


def _registry(transport: Transport) -> list[Finding]:
    from taskmq.transport.types import Finding

    if not transport.supports_workers:
        text = "this transport keeps no registry of workers"
        return [Finding(level="ok", subject="workers", message=text)]
    workers = transport.list_workers()
    stale = [each.id for each in workers if each.stale]
    if stale:
        text = f"{len(stale)} of {output.counted(len(workers), 'worker')} gave no sign of life"
        advice = f"look at {', '.join(stale[:3])}; their jobs come back when their leases are over"
        return [Finding(level="warning", subject="workers", message=text, advice=advice)]
    waiting = sum(each.pending for each in transport.stats())
    if waiting and not workers:
        text = f"no worker runs; {output.counted(waiting, 'job')} pending"
        return [
            Finding(level="warning", subject="workers", message=text, advice="start taskmq worker")
        ]
    text = f"{output.counted(len(workers), 'worker')} registered"
    return [Finding(level="ok", subject="workers", message=text)]


def _examine_app(app: App, transport: Transport) -> list[Finding]:
    from taskmq.transport.types import Finding

    findings: list[Finding] = []
    count = len(app.tasks)
    if count:
        text = output.counted(count, "task")
        findings.append(Finding(level="ok", subject="app", message=f"{text} registered"))
    else:
        advice = "name the modules that declare them in Config(include=[…])"
        text = "the app has no tasks"
        findings.append(Finding(level="warning", subject="app", message=text, advice=advice))
    served = {name for each in _served(transport) for name in each}
    unserved = sorted(each.name for each in app.queue_shares(None) if each.name not in served)
    if served and unserved:
        text = f"no running worker serves {', '.join(unserved)}"
        advice = f"start one: taskmq worker -Q {','.join(unserved)}"
        findings.append(Finding(level="warning", subject="queues", message=text, advice=advice))
    return findings


def _served(transport: Transport) -> list[tuple[str, ...]]:
    return [each.queues for each in transport.list_workers()] if transport.supports_workers else []


def _show(findings: list[Finding]) -> None:
    from rich.text import Text

    rows: list[tuple[object, ...]] = []
    for each in findings:
        text = each.message + (f"\n→ {each.advice}" if each.advice else "")
        rows.append((Text(each.level, style=_STYLES.get(each.level, "")), each.subject, text))
    output.show(output.table(("level", "subject", "finding"), rows))
