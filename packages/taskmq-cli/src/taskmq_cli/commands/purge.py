"""`taskmq purge`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from taskmq_cli import output
from taskmq_cli.group import TaskmqCommand
from taskmq_cli.options import QueueNames
from taskmq_cli.queues import check_exists, known_queues, named
from taskmq_cli.session import Session, pass_session

if TYPE_CHECKING:
    from taskmq.transport import Transport

_STEP = 500


@click.command(
    cls=TaskmqCommand,
    examples=(
        ("taskmq purge -Q email", "says how many jobs that ends, and asks"),
        ("taskmq purge -Q email,reports --yes", "two queues, without a question"),
        ("taskmq purge -Q email --dry-run", "only count"),
    ),
)
@click.option(
    "--queue",
    "-Q",
    "given",
    type=QueueNames(),
    multiple=True,
    required=True,
    help="Which queues, commas between; a queue with the whole text as its name wins.",
)
@click.option("--yes", "-y", is_flag=True, help="Don't ask.")
@click.option("--dry-run", is_flag=True, help="Count what would end, and change nothing.")
@pass_session
def purge(session: Session, given: tuple[str, ...], yes: bool, dry_run: bool) -> None:
    """Revoke every job of a queue that no worker holds: ready, delayed, retrying or blocked.

    Running jobs go on, dead letters stay (see `taskmq dlq purge`). At most as many jobs end as were
    counted beforehand. Killed half way, the rest is as it was.
    """
    queues = named(given, lambda: known_queues(session))
    for queue in queues:
        check_exists(session, queue)
    transport = session.transport(existing=True)
    counts = _count(transport, queues)
    total = sum(counts.values())
    names = ", ".join(repr(queue) for queue in queues)
    if dry_run:
        _tell(session, "would revoke", counts, counts)
        return
    if total and not yes:
        click.confirm(f"Revoke {output.counted(total, 'job')} of {names}?", abort=True, err=True)
    removed = {queue: _purge(transport, queue, counts[queue]) for queue in queues}
    _tell(session, "revoked", removed, counts)


def _count(transport: Transport, queues: tuple[str, ...]) -> dict[str, int]:
    found = {each.queue: each for each in transport.stats(list(queues))}
    return {
        queue: (stats.pending + stats.delayed + stats.blocked if stats else 0)
        for queue in queues
        for stats in (found.get(queue),)
    }


def _purge(transport: Transport, queue: str, most: int) -> int:
    removed = 0
    while removed < most:
        reply = transport.purge(queue, limit=min(_STEP, most - removed))
        removed += reply.removed
        if not reply.more or not reply.removed:
            break
    return removed


def _tell(session: Session, verb: str, done: dict[str, int], found: dict[str, int]) -> None:
    if session.json:
        key = verb.replace(" ", "_")
        shown = [{"queue": name, key: done[name], "found": found[name]} for name in done]
        output.show_json({"queues": shown})
        return
    for name, number in done.items():
        click.echo(f"{verb} {output.counted(number, 'job')} of queue {name!r}")
