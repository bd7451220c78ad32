"""`taskmq workflow`: submit, list, status, resume, cancel, retry, rerun, skip, graph."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import click
import msgspec

from taskmq_cli import calls, letters, output, runs
from taskmq_cli.ends import RUN, TIMEOUT_ALONE, wait_for
from taskmq_cli.errors import Failure, Misuse, did_you_mean
from taskmq_cli.group import TaskmqGroup
from taskmq_cli.options import KWARGS, Number, Upper, Whole
from taskmq_cli.session import Session, pass_session

if TYPE_CHECKING:
    from collections.abc import Generator

    from taskmq.app import App
    from taskmq.workflow import HistoryEntry, RunStatus, StepStatus, WorkflowHandle


@click.group(
    cls=TaskmqGroup,
    examples=(
        (
            'taskmq workflow submit etl --params \'{"source": "a.csv"}\'',
            "start a run of the app's workflow",
        ),
        ("taskmq workflow list", "runs that go on, and the newest that ended"),
        ("taskmq workflow status wf-01JD…", "how each of its steps stands"),
        ("taskmq workflow retry wf-01JD…", "run again what failed, and what waited for it"),
        ("taskmq workflow graph wf-01JD…", "a picture of it, in Mermaid or DOT"),
    ),
)
def workflow() -> None:
    """Start, list, show, repair and draw runs of workflows.

    The app's code is needed by submit alone: for the others --transport will do.
    """


@workflow.command(
    examples=(
        (
            'taskmq workflow submit etl --params \'{"source": "a.csv"}\'',
            "print the run's id",
        ),
        ("taskmq workflow submit etl --wait", "wait for workers, print the result as JSON"),
        ("taskmq workflow submit etl --run-id wf-etl-2026-01-31", "once, however often it is said"),
    ),
)
@click.argument("name")
@click.option("--params", type=KWARGS, default="{}", help="Its parameters, a JSON object.")
@click.option("--queue", "-Q", metavar="NAME", help="Queue of steps whose task names none.")
@click.option("--priority", "-p", type=Whole(-9, 9), help="Priority of steps whose task has none.")
@click.option("--deadline", type=Number(0), metavar="SECONDS", help="How long the run may take.")
@click.option("--run-id", metavar="TEXT", help="An id of your own; it begins with wf-.")
@click.option("--wait", is_flag=True, help="Wait for the end and print the result as JSON.")
@click.option("--timeout", type=Number(0), metavar="SECONDS", help="With --wait: wait no longer.")
@pass_session
def submit(
    session: Session,
    /,
    name: str,
    params: dict[str, Any],
    wait: bool,
    timeout: float | None,
    **options: Any,
) -> None:
    """Start a run of workflow NAME and print its id.

    With --wait the id goes to stderr and the result, as JSON, to stdout; the exit code is 1 when the
    run ended other than by success or the time is over (the run goes on all the same).
    """
    if timeout is not None and not wait:
        raise click.UsageError(TIMEOUT_ALONE)
    app = session.app()
    if app.transport.describe().get("url", "").startswith("memory:"):
        raise Misuse(
            "memory:// ends with this process, and the run with it: name a transport that stays, for "
            "example TASKMQ_TRANSPORT=sqlite:///jobs.db"
        )
    given = {key: value for key, value in options.items() if value is not None}
    try:
        run = app.submit_workflow(name, params, **given)
    except TypeError as error:
        raise Misuse(f"wrong parameters for workflow {name}: {error}") from error
    if wait:
        wait_for(session, run, RUN, timeout)
    elif session.json:
        output.show_json({"id": run.id})
    else:
        click.echo(run.id)


@workflow.command(
    "list",
    examples=(
        ("taskmq workflow list", "all that run, and the newest 20 that ended"),
        ("taskmq workflow list --state FAILED --limit 100", "the last failures"),
        ("taskmq workflow list --json", "for a script"),
    ),
)
@click.option(
    "--state",
    "states",
    multiple=True,
    type=Upper(runs.STATES),
    metavar="STATE",
    help=f"Only runs in this state ({', '.join(runs.STATES)}); repeat it for several.",
)
@click.option("--limit", "-n", type=Whole(1), default=20, show_default=True)
@pass_session
def list_(session: Session, states: tuple[str, ...], limit: int) -> None:
    """List runs: those that go on first, then those that ended, the newest first.

    The limit is one for each of the two. Runs that are steps of other runs are left out.
    """
    transport = session.transport(existing=True)
    wanted = states or runs.STATES
    found: list[runs.Run] = []
    for part in ([runs.RUNNING], [*runs.ENDED]):
        if chosen := [state for state in part if state in wanted]:
            found += runs.find(transport, chosen, limit)
    if session.json:
        output.show_json({"runs": msgspec.to_builtins(found)})
    elif not found:
        click.echo("No runs.")
    else:
        output.show(runs.listing(found, letters.now_of(transport)))


@workflow.command(
    examples=(
        ("taskmq workflow status wf-01JD…", "state, attempt, job and dependencies of each step"),
        ("taskmq workflow status wf-01JD… --history", "every attempt: worker, times, outcome"),
        ("taskmq workflow status wf-01JD… --json", "for a script"),
    ),
)
@click.argument("run_id", metavar="RUN")
@click.option("--history", is_flag=True, help="Show every attempt that is known too.")
@pass_session
def status(session: Session, run_id: str, history: bool) -> None:
    """Show how a run and each of its steps stand."""
    with _run(session, run_id) as run:
        found = run.status()
        entries = run.history() if history else None
    if session.json:
        document: dict[str, Any] = msgspec.to_builtins(found)
        if entries is not None:
            document["history"] = [msgspec.structs.asdict(each) for each in entries]
        output.show_json(document)
        return
    output.show(_head(found), "", _step_lines(found))
    for name, step in found.steps.items():
        if text := _why(step):
            output.show("", f"{name}: {text}")
    if entries is not None:
        output.show("", _history_lines(entries))


@workflow.command(
    examples=(("taskmq workflow resume wf-01JD…", "do what should have followed by itself"),),
)
@click.argument("run_id", metavar="RUN")
@pass_session
def resume(session: Session, run_id: str) -> None:
    """Let a run go on that stands still: repeat what should have followed from its steps' ends.

    Workers do the same once a minute. It changes nothing in a run that is well.
    """
    with _run(session, run_id) as run:
        count = run.resume()
    if session.json:
        output.show_json({"id": run_id, "resumed": count})
    elif count:
        click.echo(f"resumed: {output.counted(count, 'thing')} had been left undone")
    else:
        click.echo("nothing was left undone")


@workflow.command(
    examples=(
        ("taskmq workflow cancel wf-01JD…", "what waits never starts, what runs is asked to end"),
        ("taskmq workflow cancel wf-01JD… --terminate", "kill running bodies (pool processes)"),
    ),
)
@click.argument("run_id", metavar="RUN")
@click.option("--terminate", is_flag=True, help="End running bodies by force where the pool can.")
@pass_session
def cancel(session: Session, run_id: str, terminate: bool) -> None:
    """Cancel a run and everything in it, child runs included.

    The exit code is 1 when it had already ended otherwise.
    """
    with _run(session, run_id) as run:
        cancelled = run.cancel(terminate=terminate)
        state = run.status().state.value
    if session.json:
        output.show_json({"id": run_id, "cancelled": cancelled, "state": state})
    else:
        click.echo(f"{run_id} {'cancelled' if cancelled else f'had ended {state}'}")
    if not cancelled and state != "REVOKED":
        click.get_current_context().exit(1)


@workflow.command(
    examples=(("taskmq workflow retry wf-01JD…", "after the cause of the failure is mended"),),
)
@click.argument("run_id", metavar="RUN")
@pass_session
def retry(session: Session, run_id: str) -> None:
    """Run failed steps again, and what was skipped behind them.

    Steps that succeeded keep their results; of a map only failed items run again.
    """
    with _run(session, run_id) as run:
        names = run.retry_failed()
    _tell(session, run_id, "retried", names, "nothing has failed in it")


@workflow.command(
    examples=(("taskmq workflow rerun wf-01JD… clean", "the step and all that depends on it"),),
)
@click.argument("run_id", metavar="RUN")
@click.argument("step")
@pass_session
def rerun(session: Session, run_id: str, step: str) -> None:
    """Run a step again that has ended, and everything that depends on it."""
    with _run(session, run_id, step) as run:
        names = run.rerun(step)
    _tell(session, run_id, "rerun", names, "nothing was to run again")


@workflow.command(
    examples=(("taskmq workflow skip wf-01JD… stats", "its dependants get its default"),),
)
@click.argument("run_id", metavar="RUN")
@click.argument("step")
@pass_session
def skip(session: Session, run_id: str, step: str) -> None:
    """Let a run go on without a step that has not succeeded: its dependants get its default."""
    with _run(session, run_id, step) as run:
        run.skip(step)
    _tell(session, run_id, "skipped", (step,), "")


@workflow.command(
    examples=(
        ("taskmq workflow graph wf-01JD…", "Mermaid, which many wikis draw, with states"),
        ("taskmq workflow graph wf-01JD… --format dot | dot -Tsvg > run.svg", "by Graphviz"),
        ("taskmq workflow graph wf-01JD… --no-states", "the graph alone"),
    ),
)
@click.argument("run_id", metavar="RUN")
@click.option(
    "--format",
    "kind",
    type=click.Choice(["mermaid", "dot"]),
    default="mermaid",
    show_default=True,
    help="The language of the picture.",
)
@click.option("--states/--no-states", default=True, help="With the states of the steps, or not.")
@pass_session
def graph(session: Session, run_id: str, kind: Literal["mermaid", "dot"], states: bool) -> None:
    """Draw a run as text: Mermaid or DOT."""
    with _run(session, run_id) as run:
        text = run.graph(kind, states=states)
    if session.json:
        output.show_json({"id": run_id, "format": kind, "graph": text})
    else:
        output.show(text.rstrip("\n"))


@contextmanager
def _run(session: Session, run_id: str, step: str = "") -> Generator[WorkflowHandle[Any]]:
    """The handle of a run that there is; errors in the words of the command line."""
    from taskmq.errors import JobNotFound

    session.transport(existing=True)
    app = session.app() if session.has_app else _bare_app(session)
    try:
        run = app.handle_workflow(run_id)
        if step:
            _check_step(run, step)
        yield run
    except JobNotFound:
        raise Failure(
            f"no run {run_id!r}: the id is wrong, or the record is gone (they are kept for job_ttl); "
            f"`taskmq workflow list` shows what there is"
        ) from None
    finally:
        if not session.has_app:
            app.close()


def _bare_app(session: Session) -> App:
    """An app without tasks: what is done to runs needs their records only."""
    from taskmq.app import App
    from taskmq.config import Config

    return App(Config(transport=session.transport(), events="null"))


def _check_step(run: WorkflowHandle[Any], step: str) -> None:
    names = [each.name for each in run.plan.steps]
    if step not in names:
        raise Failure(
            f"run {run.id} has no step {step!r}{did_you_mean(step, names)} "
            f"(it has: {', '.join(names[:20])}{', …' if len(names) > 20 else ''})"
        )


def _tell(session: Session, run_id: str, verb: str, names: tuple[str, ...], nothing: str) -> None:
    if session.json:
        output.show_json({"id": run_id, verb: list(names)})
    elif names:
        click.echo(f"{verb}: {', '.join(names)}")
    else:
        click.echo(nothing)


def _head(run: RunStatus) -> Any:
    return output.fields(
        [
            ("run", run.id),
            ("workflow", run.workflow),
            ("state", run.state.value),
            ("reason", run.reason),
            ("params", run.submitted),
            ("submitted", output.instant(run.submitted_at)),
            ("finished", output.instant(run.finished_at)),
        ]
    )


def _step_lines(run: RunStatus) -> str:
    rows: list[tuple[object, ...]] = [
        (
            name,
            step.state.value,
            step.attempt,
            ", ".join(step.depends_on),
            " ".join(f"{count} {state}" for state, count in step.items.items()),
            step.job_id,
        )
        for name, step in run.steps.items()
    ]
    columns = ["step", "state", ">try", "after>", "items>", "<job"]
    if not any(step.items for step in run.steps.values()):
        rows = [(*row[:4], *row[5:]) for row in rows]
        columns.remove("items>")
    return output.listing(columns, rows)


def _why(step: StepStatus) -> str:
    if step.failed_items:
        shown = ", ".join(map(str, step.failed_items[:20]))
        more = f" and {len(step.failed_items) - 20:,} more" if len(step.failed_items) > 20 else ""
        text = f"items {shown}{more} did not succeed"
        return f"{text}; {calls.error_text(step.error)}" if step.error is not None else text
    if step.cause:
        return f"skipped: {step.cause}"
    return calls.error_text(step.error)


def _history_lines(entries: list[HistoryEntry]) -> str:
    rows = [
        (
            output.instant(each.started_at or each.finished_at)[:19],
            each.step,
            each.attempt if each.series == 1 else f"{each.series}.{each.attempt}",
            each.outcome if each.outcome != "spent" else f"spent {each.cost:g}",
            _took(each),
            each.worker,
            " ".join(each.error.split()) or _labels(each),
        )
        for each in entries
    ]
    columns = ("when (UTC)", "step", ">try", "outcome", ">took", "<worker", "error>")
    return output.listing(columns, rows) if rows else "No history yet."


def _took(entry: HistoryEntry) -> str:
    if entry.started_at is None or entry.finished_at is None:
        return ""
    seconds = max(0.0, entry.finished_at - entry.started_at)
    return f"{seconds:.2f} s" if seconds < 100 else output.age(seconds)


def _labels(entry: HistoryEntry) -> str:
    return " ".join(f"{name}={value}" for name, value in entry.labels.items())
