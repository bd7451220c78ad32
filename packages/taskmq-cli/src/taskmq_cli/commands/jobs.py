"""`taskmq jobs`: list, show, revoke, complete."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from taskmq_cli import calls, letters, output
from taskmq_cli.errors import Failure
from taskmq_cli.group import TaskmqGroup
from taskmq_cli.options import ANY_JSON, QueueNames, Upper, Whole
from taskmq_cli.queues import known_queues, named
from taskmq_cli.session import Session, pass_session

if TYPE_CHECKING:
    from taskmq.states import JobState
    from taskmq.transport import Transport
    from taskmq.transport.types import Completion, JobRecord

STATES = (
    "PENDING",
    "QUEUED",
    "RUNNING",
    "RETRYING",
    "WAITING",
    "SUCCEEDED",
    "FAILED",
    "REVOKED",
    "EXPIRED",
    "SKIPPED",
)
_PAGE = 500


class Wanted(NamedTuple):
    """Which jobs a list shows."""

    states: list[JobState]
    task: str | None
    limit: int
    newest_first: bool


@click.group(
    cls=TaskmqGroup,
    examples=(
        ("taskmq jobs list --state FAILED", "the last failures"),
        ("taskmq jobs show 01JD…", "state, call, result or error of one job"),
        ("taskmq jobs revoke 01JD…", "cancel it"),
    ),
)
def jobs() -> None:
    """List, show, revoke and complete jobs."""


@jobs.command(
    "list",
    examples=(
        ("taskmq jobs list", "the newest 50 jobs"),
        ("taskmq jobs list --state FAILED --queue email", "failures of one queue"),
        ("taskmq jobs list --task myapp.tasks.send_email --limit 500 --json", "for a script"),
    ),
)
@click.option(
    "--state",
    "states",
    multiple=True,
    type=Upper(STATES),
    metavar="STATE",
    help=f"Only jobs in this state ({', '.join(STATES)}); repeat it for several.",
)
@click.option(
    "--queue",
    "-Q",
    "given",
    type=QueueNames(),
    multiple=True,
    help="Only jobs of these queues, commas between; a queue with the whole text as its name wins.",
)
@click.option("--task", metavar="NAME", help="Only jobs of this task.")
@click.option("--limit", "-n", type=Whole(1), default=50, show_default=True)
@click.option("--oldest-first", is_flag=True, help="Start with the oldest.")
@pass_session
def list_(
    session: Session,
    states: tuple[str, ...],
    given: tuple[str, ...],
    task: str | None,
    limit: int,
    oldest_first: bool,
) -> None:
    """List jobs, the newest first."""
    from taskmq.states import JobState

    transport = session.transport(existing=True)
    wanted = Wanted(
        states=[JobState(each) for each in states],
        task=task,
        limit=limit,
        newest_first=not oldest_first,
    )
    queues = named(given, lambda: known_queues(session))
    # Each may have all of the wanted ones.
    lists = [_find(transport, wanted, queue) for queue in queues or (None,)]
    found = list(
        heapq.merge(
            *(jobs for jobs, _ in lists), key=lambda each: each.id, reverse=wanted.newest_first
        )
        if len(lists) > 1
        else lists[0][0]
    )
    more = any(more for _, more in lists) or len(found) > limit
    found = found[:limit]
    if session.json:
        output.show_json({"jobs": [calls.record_document(each) for each in found]})
    elif not found:
        click.echo("No jobs.")
    else:
        now = letters.now_of(transport)
        rows = [
            (
                each.id,
                each.state,
                each.task,
                each.queue,
                each.attempt,
                output.age(None if now is None else now - each.enqueued_at),
            )
            for each in found
        ]
        columns = ("id", "state", "<task", "queue>", ">try", ">age")
        output.show(output.listing(columns, rows))
        if more:
            click.echo(f"(the first {len(found):,}; more with --limit)")


def _find(transport: Transport, wanted: Wanted, queue: str | None) -> tuple[list[JobRecord], bool]:
    """Return the jobs of one queue, or of all, up to the limit; and whether there are more."""
    found: list[JobRecord] = []
    cursor: str | None = None
    while len(found) < wanted.limit:
        page = transport.list_jobs(
            states=wanted.states,
            queue=queue,
            task=wanted.task,
            limit=min(_PAGE, wanted.limit - len(found)),
            cursor=cursor,
            newest_first=wanted.newest_first,
        )
        found += page.jobs
        cursor = page.cursor
        if cursor is None:
            break
    return found, cursor is not None


@jobs.command(
    examples=(
        ("taskmq jobs show 01JD…", "for people"),
        ("taskmq jobs show 01JD… --json", "the whole record"),
    ),
)
@click.argument("job_id", metavar="ID")
@pass_session
def show(session: Session, job_id: str) -> None:
    """Show everything about one job: state, times, call, result or error."""
    record = session.transport(existing=True).get_jobs([job_id], envelopes=True)[0]
    if record is None:
        raise Failure(
            f"no job {job_id!r}: the id is wrong, or the record is gone (they are kept for job_ttl)"
        )
    document = calls.record_document(record)
    if session.json:
        output.show_json(document)
        return
    output.show(output.fields(_shown(record, document)))
    if record.error is not None and record.error.traceback:
        output.show("", record.error.traceback.rstrip())


def _shown(record: JobRecord, document: dict[str, Any]) -> list[tuple[str, object]]:
    call: dict[str, Any] = document.get("call", {})
    error = record.error
    succeeded = record.state == "SUCCEEDED"
    return [
        ("id", record.id),
        ("state", f"{record.state}{' (cancelling)' if record.cancel_requested else ''}"),
        ("reason", record.reason),
        ("task", record.task),
        ("queue", record.queue),
        ("priority", record.priority),
        ("args", _compact(call.get("args"))),
        ("kwargs", _compact(call.get("kwargs"))),
        ("body", _compact(call.get("body") or call.get("undecodable"))),
        ("attempt", f"{record.attempt} of {call.get('max_attempts', '?')}"),
        ("deliveries", f"{record.deliveries} of {record.max_deliveries}"),
        ("yields", record.yields or None),
        ("series", record.series if record.series > 1 else None),
        ("enqueued", output.instant(record.enqueued_at)),
        ("due", output.instant(record.due_at)),
        ("expires", output.instant(record.expires_at)),
        ("started", output.instant(record.started_at)),
        ("finished", output.instant(record.finished_at)),
        ("worker", record.worker),
        ("key", record.key),
        ("concurrency", record.concurrency_key),
        ("dead letter", f"yes: taskmq dlq replay {record.id}" if record.dead else None),
        ("meta", _compact(document["meta"] or None)),
        ("result", output.to_json(document["result"]) if succeeded else None),
        ("error", calls.error_text(error)),
    ]


def _compact(value: Any) -> str:
    return "" if value is None else output.to_json(value, indent=0)


@jobs.command(
    examples=(
        ("taskmq jobs revoke 01JD…", "a queued job ends at once, a running one is told"),
        ("taskmq jobs revoke 01JD… 01JE…", "several at once"),
        ("taskmq jobs revoke --terminate 01JD…", "kill its child process (pool processes)"),
    ),
)
@click.argument("job_ids", metavar="ID...", nargs=-1, required=True)
@click.option("--terminate", is_flag=True, help="End a running body by force where the pool can.")
@pass_session
def revoke(session: Session, job_ids: tuple[str, ...], terminate: bool) -> None:
    """Cancel jobs: what no worker holds ends REVOKED at once, a running job is asked to stop.

    The exit code is 1 when one of them is unknown, or had already ended otherwise.
    """
    results = session.transport(existing=True).revoke(list(job_ids), terminate)
    told = {
        "revoked": "revoked",
        "cancelling": "is held by a worker, which will hear of it",
        "unknown": "unknown",
    }
    failed = False
    for job_id, result in zip(job_ids, results, strict=True):
        ended = result.status == "final" and result.state != "REVOKED"
        failed = failed or ended or result.status == "unknown"
        if not session.json:
            click.echo(f"{job_id} {told.get(result.status, f'had ended {result.state}')}")
    if session.json:
        pairs = zip(job_ids, results, strict=True)
        shown = [{"id": job, "status": each.status, "state": each.state} for job, each in pairs]
        output.show_json({"jobs": shown})
    if failed:
        click.get_current_context().exit(1)


@jobs.command(
    examples=(
        ('taskmq jobs complete TOKEN --result \'{"url": "s3://b/1"}\'', "it succeeded"),
        ("taskmq jobs complete TOKEN --fail 'no space' --retryable", "it failed; try it again"),
    ),
)
@click.argument("token")
@click.option("--result", type=ANY_JSON, help="The result, as JSON (default null).")
@click.option("--fail", metavar="TEXT", help="The work failed, for this reason.")
@click.option("--retryable", is_flag=True, help="With --fail: the retry policy may try again.")
@pass_session
def complete(session: Session, token: str, result: Any, fail: str | None, retryable: bool) -> None:
    """End a job that waits for the outside, by its completion token."""
    if fail is not None and result is not None:
        raise click.UsageError("--result and --fail exclude each other")
    if retryable and fail is None:
        raise click.UsageError("--retryable goes with --fail")
    answer = session.transport(existing=True).complete(token, _completion(result, fail, retryable))
    if session.json:
        output.show_json({"status": answer.status, "reason": answer.reason})
    if answer.status == "refused":
        raise Failure(f"refused: {answer.reason or 'the job does not wait under this token'}")
    if not session.json:
        click.echo(
            {
                "ok": "done",
                "kept": "kept: applied as soon as the job waits",
                "handed": "handed to a worker for the retry decision",
                "already": "was done before",
            }[answer.status]
        )


def _completion(result: Any, fail: str | None, retryable: bool) -> Completion:
    from taskmq.protocol.codec import CodecSet
    from taskmq.transport.types import Completion, ErrorInfo

    if fail is not None:
        error = ErrorInfo(message=fail, reason="exception")
        return Completion(state="FAILED", error=error, retryable=retryable)
    return Completion(state="SUCCEEDED", result=CodecSet().encode_value(result))
