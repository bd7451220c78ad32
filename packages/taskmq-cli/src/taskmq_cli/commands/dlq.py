"""`taskmq dlq`: list, show, replay, purge dead letters."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click
import msgspec

from taskmq_cli import calls, letters, output
from taskmq_cli.errors import Failure, note
from taskmq_cli.group import TaskmqGroup
from taskmq_cli.options import Whole
from taskmq_cli.queues import check_exists
from taskmq_cli.session import Session, pass_session

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from taskmq.transport.types import DeadLetter


@click.group(
    cls=TaskmqGroup,
    examples=(
        ("taskmq dlq list", "the oldest 50 dead letters, and how many there are"),
        ("taskmq dlq show 01JD…", "why it died, with its call and traceback"),
        ("taskmq dlq replay --all -Q email", "try those of one queue again"),
        ("taskmq dlq purge -Q email", "drop them, after a question"),
    ),
)
def dlq() -> None:
    """List, show, replay and purge dead letters: jobs that are not tried again by themselves."""


@dlq.command(
    "list",
    examples=(
        ("taskmq dlq list -Q email", "of one queue"),
        ("taskmq dlq list --limit 1000 --json", "for a script"),
    ),
)
@click.option("--queue", "-Q", metavar="NAME", help="Only those of this queue.")
@click.option("--limit", "-n", type=Whole(1), default=50, show_default=True)
@pass_session
def list_(session: Session, queue: str | None, limit: int) -> None:
    """List dead letters, the oldest first, and how many there are in all."""
    transport = session.transport(existing=True)
    total = letters.dead_count(transport, queue)
    found: list[DeadLetter] = []
    cursor: str | None = None
    while len(found) < limit:
        want = min(letters.BATCH, limit - len(found))
        page = transport.list_dead(queue, limit=want, cursor=cursor)
        found += page.letters
        cursor = page.cursor
        if cursor is None:
            break
    if session.json:
        output.show_json({"total": total, "letters": [_document(each) for each in found]})
        return
    if not found:
        click.echo("No dead letters.")
        return
    now = letters.now_of(transport)
    rows = [
        (
            each.id,
            each.queue,
            each.task,
            output.age(None if now is None else now - each.died_at),
            _why(each),
        )
        for each in found
    ]
    output.show(output.listing(("id", "queue>", "<task", ">died", "reason>"), rows))
    click.echo(f"{len(found):,} of {output.counted(total, 'dead letter')}")


@dlq.command(
    examples=(
        ("taskmq dlq show 01JD…", "reason, call and traceback"),
        ("taskmq dlq show 01JD… --json", "for a script"),
    )
)
@click.argument("job_id", metavar="ID")
@pass_session
def show(session: Session, job_id: str) -> None:
    """Show one dead letter: why it died, what it would have done, its traceback."""
    letter = session.transport(existing=True).get_dead(job_id)
    if letter is None:
        raise Failure(f"no dead letter {job_id!r}; `taskmq dlq list` shows what there is")
    document = _document(letter)
    if session.json:
        output.show_json(document)
        return
    call: dict[str, Any] = document["call"]
    error = letter.error
    pairs: list[tuple[str, object]] = [
        ("id", letter.id),
        ("reason", letter.reason),
        ("task", letter.task),
        ("queue", letter.queue),
        ("priority", letter.priority),
        ("died", output.instant(letter.died_at)),
        ("attempt", letter.attempt),
        ("deliveries", letter.deliveries),
        *(
            (name, output.to_json(call[name], indent=0))
            for name in ("args", "kwargs", "body", "undecodable", "raw")
            if name in call
        ),
        ("error", calls.error_text(error)),
    ]
    output.show(output.fields(pairs))
    if error is not None and error.traceback:
        output.show("", error.traceback.rstrip())


@dlq.command(
    examples=(
        ("taskmq dlq replay 01JD… 01JE…", "these two"),
        ("taskmq dlq replay --all --dry-run", "only count them"),
        ("taskmq dlq replay --all -Q email", "all dead letters of one queue"),
        ("taskmq dlq replay --all --priority -5 --to slow", "behind all other work, elsewhere"),
    ),
)
@click.argument("job_ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All dead letters, or all of --queue.")
@click.option("--queue", "-Q", metavar="NAME", help="Only those of this queue.")
@click.option("--priority", "-p", type=Whole(-9, 9), help="Give them this priority, not their own.")
@click.option("--to", metavar="QUEUE", help="Put them on this queue, not on their own.")
@click.option("--dry-run", is_flag=True, help="Count what would be replayed, and change nothing.")
@click.option("--yes", "-y", is_flag=True, help="Don't ask on a terminal.")
@pass_session
def replay(
    session: Session,
    job_ids: tuple[str, ...],
    everything: bool,
    queue: str | None,
    priority: int | None,
    to: str | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Try dead letters again, each with a fresh budget of attempts.

    Give ids, or --all, or a queue. Every dead letter is replayed at most once, also when the command
    runs twice at once or is killed half way: running it again goes on with the rest.
    """
    if bool(job_ids) == (everything or queue is not None):
        raise click.UsageError("say which: ids, or --all, or -Q QUEUE for all of one queue")
    transport = session.transport(existing=True)
    if queue is not None:
        check_exists(session, queue)
    total = len(set(job_ids)) or letters.dead_count(transport, queue)
    if dry_run:
        _tell(session, "would replay", "would_replay", total, total)
        return
    if not job_ids and total and not yes and sys.stdin.isatty() and sys.stdout.isatty():
        click.confirm(f"Replay {output.counted(total, 'dead letter')}{_of(queue)}?", abort=True)

    def act(ids: Sequence[str]) -> int:
        return transport.replay_dead(ids, queue=to, priority=priority)

    groups = _given(job_ids) or letters.batches(transport, queue, letters.now_of(transport))
    done = letters.through(total, "replaying", groups, act)
    _tell(session, "replayed", "replayed", done, total)
    if job_ids and done < total:
        missing = output.counted(total - done, "id")
        raise Failure(f"{missing} named no dead letter (never dead, or replayed before)")


@dlq.command(
    examples=(
        ("taskmq dlq purge", "all of them, after a question that shows how many"),
        ("taskmq dlq purge -Q email --yes", "those of one queue, without a question"),
        ("taskmq dlq purge 01JD…", "one"),
    ),
)
@click.argument("job_ids", metavar="[ID]...", nargs=-1)
@click.option("--queue", "-Q", metavar="NAME", help="Only those of this queue.")
@click.option("--yes", "-y", is_flag=True, help="Don't ask.")
@pass_session
def purge(session: Session, job_ids: tuple[str, ...], queue: str | None, yes: bool) -> None:
    """Drop dead letters for good. Their jobs stay FAILED until their records expire.

    Only what is dead when the command starts is dropped; later deaths are kept.
    """
    if job_ids and queue is not None:
        raise click.UsageError("give ids or -Q QUEUE, not both")
    transport = session.transport(existing=True)
    if queue is not None:
        check_exists(session, queue)
    until = letters.now_of(transport)
    total = len(set(job_ids)) or letters.dead_count(transport, queue)
    if total and not yes:
        what = output.counted(total, "dead letter")
        click.confirm(f"Drop {what}{_of(queue)} for good?", abort=True, err=True)
    groups = _given(job_ids) or letters.batches(transport, queue, until)
    done = letters.through(total, "purging", groups, transport.purge_dead)
    _tell(session, "purged", "purged", done, total)
    if job_ids and done < total:
        raise Failure(f"{output.counted(total - done, 'id')} named no dead letter")


def _given(job_ids: Sequence[str]) -> Iterator[list[str]] | None:
    unique = list(dict.fromkeys(job_ids))
    size = letters.BATCH
    return iter([unique[at : at + size] for at in range(0, len(unique), size)]) if unique else None


def _of(queue: str | None) -> str:
    return " of all queues" if queue is None else f" of queue {queue!r}"


def _tell(session: Session, verb: str, key: str, done: int, total: int) -> None:
    if session.json:
        output.show_json({key: done, "found": total})
    else:
        click.echo(f"{verb} {done:,} of {output.counted(total, 'dead letter')}")
    if verb == "replayed" and done < total and not session.json:
        note("The others were replayed or purged by somebody else meanwhile, or are unknown.")


def _why(letter: DeadLetter) -> str:
    error = letter.error
    if error is None or not (error.type or error.message):
        return letter.reason
    return " ".join((calls.error_text(error) if error.type else error.message).split())


def _document(letter: DeadLetter) -> dict[str, Any]:
    plain = msgspec.structs.asdict(letter)
    plain["error"] = calls.error_document(letter.error)
    plain["call"] = calls.read_envelope(plain.pop("envelope"))
    return plain
