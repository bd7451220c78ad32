"""What an operator, or reconciliation, does to a run. Every function may be repeated after a crash."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskmq.errors import ConfigError, TransportError
from taskmq.ids import new_id
from taskmq.states import JobState
from taskmq.transport.arrivals import verdict_of
from taskmq.transport.contract import completion_token
from taskmq.transport.types import (
    Ack,
    Arrival,
    Completion,
    ErrorInfo,
    Finish,
    FollowUps,
    Message,
    QueueShare,
    ReserveRequest,
)
from taskmq.workflow import history
from taskmq.workflow.inputs import FETCH, SKIPPED, is_skipped, load_plan
from taskmq.workflow.names import (
    CHILD_TASK,
    CONTROL_QUEUE,
    MAP_TASK,
    NODE_TASK,
    PREFIX,
    RUN_TASK,
    step_id,
    twin_id,
)
from taskmq.workflow.planner import PlanEvaluation, evaluate, job_ids, nodes
from taskmq.workflow.status import index_of, item_records, step_records

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from taskmq.app import App
    from taskmq.transport.types import JobRecord
    from taskmq.workflow.plan import PlanStep, WorkflowPlan

_BAD = (JobState.FAILED, JobState.REVOKED, JobState.EXPIRED)
_EXPANDS = (MAP_TASK, CHILD_TASK)
_EXPANSION = 2.0
"""How long a cancelled map is waited for that may be about to settle a chunk of items, in seconds."""
_ALIVE = (
    JobState.PENDING,
    JobState.QUEUED,
    JobState.RUNNING,
    JobState.RETRYING,
    JobState.WAITING,
)


def cancel(app: App, run: str, *, terminate: bool = False) -> bool:
    """End a run REVOKED, and everything in it. Its guard closes first, so nothing starts meanwhile."""
    status = app.transport.revoke([run], terminate)[0].status
    revoke_steps(app, run, terminate=terminate)
    return status != "final"


def revoke_steps(app: App, run: str, *, terminate: bool = False) -> None:
    """Revoke all that is left of a run, in bounded steps, until a look finds nothing."""
    plan = load_plan(app, run)
    own = [step.id for step in plan.steps if step.id]
    asked: set[str] = set()
    waited = False
    while True:
        alive = list(_alive(app, run))
        found = [each.id for each in alive if each.id not in asked]
        records = app.transport.get_jobs(own) if own else []
        found += [
            each.id
            for each in records
            if each is not None and not each.state.is_final and each.id not in asked
        ]
        if not found:
            # A map that expands at this moment has not heard of it, and what it settles still counts.
            late = [each.id for each in alive if each.task in _EXPANDS]
            if late and not waited:
                app.transport.wait_jobs(late, _EXPANSION)
                waited = True
                continue
            return
        for start in range(0, len(found), FETCH):
            app.transport.revoke(found[start : start + FETCH], terminate)
        asked.update(found)


def retry_failed(app: App, run: str) -> tuple[str, ...]:
    """Reopen what failed, and hold again what was skipped behind it."""
    record = _run_record(app, run)
    plan = load_plan(app, run)
    records = step_records(app, plan, run)
    failed = [
        step.name
        for step in plan.steps
        if (each := records[step.name]) is not None
        and each.state in _BAD
        and step.on_failure != "tolerate"
    ]
    named = [each.id for name in failed if (each := records[name]) is not None]
    if record.state.is_final and record.state is not JobState.SUCCEEDED:
        named.append(run)
    if not named:
        return ()
    history.archive(app, run, records.values())
    if plan.budget is not None:
        from taskmq.workflow.ledger import reset

        reset(app, record.run or run)
    return _reopen(app, run, plan, named, "skipped", {run: record.series})


def rerun(app: App, run: str, name: str) -> tuple[str, ...]:
    """Reopen a step and everything that depends on it."""
    record = _run_record(app, run)
    plan = load_plan(app, run)
    step = _step(plan, name)
    records = step_records(app, plan, run)
    own = records[name]
    if own is None or not own.state.is_final:
        raise TransportError(
            f"step {name!r} of run {run} has not ended, it is {own.state if own else 'gone'}: "
            f"only what has ended can run again"
        )
    history.archive(app, run, records.values())
    _renew_children(app, step, own)
    named = [own.id]
    if record.state in (JobState.REVOKED, JobState.EXPIRED):
        named.append(run)
    return _reopen(app, run, plan, named, "all", {run: record.series})


def skip(app: App, run: str, name: str) -> None:
    """Settle a step SUCCEEDED with its default, marked as skipped, without running it.

    A held one is finished in one step. Any other is ended first, reopened, and settled by the worker that
    gets it, which finds the mark.
    """
    plan = load_plan(app, run)
    step = _step(plan, name)
    record = step_records(app, plan, run)[name]
    if record is None:
        raise TransportError(f"the record of step {name!r} is gone")
    if record.state is JobState.SUCCEEDED:
        if is_skipped(record):
            return
        raise TransportError(f"step {name!r} of run {run} has succeeded: there is nothing to skip")
    if record.state is JobState.RUNNING:
        raise TransportError(f"step {name!r} of run {run} runs at the moment: revoke its job first")
    error = ErrorInfo(reason=SKIPPED, message="skipped by an operator")
    if record.state is JobState.PENDING:
        _finish_held(app, run, step, record, error)
        return
    if not record.state.is_final:
        app.transport.revoke([record.id])
        record = _record(app, record.id)
        if not record.state.is_final:
            raise TransportError(f"step {name!r} of run {run} has just started: wait for its end")
    own = _run_record(app, run)
    history.archive(app, run, [record])
    _mark_skipped(app, run, record)
    named = [record.id]
    if own.state in (JobState.REVOKED, JobState.EXPIRED):
        named.append(run)
    _reopen(app, run, plan, named, "skipped", {record.id: record.series})


def resume(app: App, run: str) -> int:
    """Repeat every arrival that should have happened, and see to parked steps nobody will complete."""
    plan = load_plan(app, run)
    records = step_records(app, plan, run)
    done = _repeat_arrivals(app, run, plan)
    for record in records.values():
        if record is not None and record.state is JobState.WAITING:
            done += _see_to_parked(app, record)
    return done


def advance(app: App, run: str) -> PlanEvaluation:
    """What the plan says of the states of the steps now."""
    plan = load_plan(app, run)
    records = step_records(app, plan, run)
    return evaluate(
        plan,
        {name: each.state for name, each in records.items() if each is not None},
    )


def pending_runs(app: App, limit: int) -> list[str]:
    """The ids of runs that have not ended, oldest first, without child runs."""
    found: list[str] = []
    cursor: str | None = None
    while len(found) < limit:
        page = app.transport.list_jobs(
            prefix=PREFIX,
            states=(JobState.PENDING,),
            task=RUN_TASK,
            limit=min(FETCH, limit),
            cursor=cursor,
        )
        found += [each.id for each in page.jobs if each.run is None]
        cursor = page.cursor
        if cursor is None:
            break
    return found[:limit]


def reopen_children(app: App, parent: str, closer: str) -> None:
    """Before a parked step parks again: run again those of its children that failed.

    Its closer waits anew for these. Without any it only looks again.
    """
    known = app.transport.get_jobs([closer])[0]
    if known is None or not known.state.is_final:
        return
    run = f"{parent}::run{closer.rpartition('::close')[2]}"
    child = app.transport.get_jobs([run])[0]
    if child is not None:
        named = _failed_in(app, child)
    else:
        _, _, generation = closer.rpartition("~")
        wanted = int(generation) if generation.isdigit() else 1
        named = [
            each.id
            for each in item_records(app, parent)
            if each.state in (*_BAD, JobState.SKIPPED) and index_of(each.id)[1] == wanted
        ]
    if child is not None and named:
        _must(app, [*named, closer], "skipped")
    elif not named:
        _must(app, [closer], "all")
    for start in range(0, len(named) if child is None else 0, FETCH):
        _must(app, named[start : start + FETCH], "all")


def control(app: App, follow_ups: FollowUps) -> None:
    """Apply follow-ups from outside: as the worker of a queue of one message."""
    job_id = f"ctl-{new_id()}"
    queue = f"{CONTROL_QUEUE}:{job_id}"
    from taskmq.protocol.envelope import VERSION, Envelope, encode_envelope

    envelope = Envelope(v=VERSION, id=job_id, task=NODE_TASK, queue=queue)
    app.transport.enqueue(
        [
            Message(
                id=job_id,
                task=NODE_TASK,
                queue=queue,
                envelope=encode_envelope(envelope),
                expires=60.0,
                job_ttl=60.0,
            )
        ]
    )
    worker = f"operator-{job_id}"
    request = ReserveRequest(worker=worker, queues=(QueueShare(queue),), limit=1, lease=30.0)
    for delivery in app.transport.reserve(request).deliveries:
        app.transport.settle(worker, [Ack(receipt=delivery.receipt, follow_ups=follow_ups)])


def skip_mark(job_id: str, series: int) -> str:
    """The id of the record that says that this series of a step is skipped by an operator."""
    return f"{job_id}::skip.{series}"


# --- parts ----------------------------------------------------------------------------------------


def _alive(app: App, run: str) -> Iterator[JobRecord]:
    cursor: str | None = None
    while True:
        page = app.transport.list_jobs(prefix=f"{run}::", states=_ALIVE, limit=FETCH, cursor=cursor)
        yield from page.jobs
        cursor = page.cursor
        if cursor is None:
            return


def _failed_in(app: App, run: JobRecord) -> list[str]:
    """What is to be reopened in a child run."""
    plan = load_plan(app, run.id)
    records = step_records(app, plan, run.id)
    named = [
        each.id
        for step in plan.steps
        if (each := records[step.name]) is not None
        and each.state in _BAD
        and step.on_failure != "tolerate"
    ]
    if run.state in (JobState.REVOKED, JobState.EXPIRED):
        named.append(run.id)
    return named


def _renew_children(app: App, step: PlanStep, record: JobRecord) -> None:
    """Reopen all children of a parked step, so that they run again with it."""
    if step.kind == "map":
        items = [each for each in item_records(app, record.id) if each.state.is_final]
        newest = max((index_of(each.id)[1] for each in items), default=1)
        ids = [each.id for each in items if index_of(each.id)[1] == newest]
        for start in range(0, len(ids), FETCH):
            _must(app, ids[start : start + FETCH], "all")
    elif step.kind == "run":
        page = app.transport.list_jobs(prefix=f"{record.id}::run", task=RUN_TASK, limit=FETCH)
        children = [each for each in page.jobs if "::" not in each.id[len(record.id) + 2 :]]
        for child in children[-1:]:
            plan = load_plan(app, child.id)
            records = step_records(app, plan, child.id)
            roots = [each for each in plan.steps if not each.sources]
            for root in roots:
                if (own := records[root.name]) is not None and own.state.is_final:
                    _renew_children(app, root, own)
            _must(app, [step.id or step_id(child.id, step.name) for step in roots], "all")


def _finish_held(app: App, run: str, step: PlanStep, record: JobRecord, error: ErrorInfo) -> None:
    finish = [Finish(id=record.id, state=JobState.SUCCEEDED, result=step.default, error=error)]
    arrive: tuple[Arrival, ...] = ()
    twin = app.transport.get_jobs([twin_id(record.id)])[0]
    if twin is not None and not twin.state.is_final:
        # Of the pair exactly one must count against the run, whatever the step's sources come to.
        arrive = (Arrival(to=run, source=twin.id, verdict="failed", series=twin.series),)
        finish.append(Finish(id=twin.id, state=JobState.FAILED, error=error))
    control(app, FollowUps(arrive=arrive, finish=tuple(finish)))
    if _record(app, record.id).state is JobState.PENDING:
        raise TransportError(f"step {step.name!r} of run {run} could not be skipped: try again")


def _mark_skipped(app: App, run: str, record: JobRecord) -> None:
    from taskmq.transport.types import Hold
    from taskmq.workflow.messages import node_message

    mark = skip_mark(record.id, record.series + 1)
    hold = Hold(arrivals=0, finish=True)
    app.transport.enqueue(
        [node_message(app, mark, hold=hold, queue=record.queue, run=record.run or run)]
    )


def _repeat_arrivals(app: App, run: str, plan: WorkflowPlan) -> int:
    graph = nodes(plan, run)
    ids = [node.id for node in graph.nodes]
    records: dict[str, JobRecord] = {}
    for start in range(0, len(ids), FETCH):
        found = app.transport.get_jobs(ids[start : start + FETCH])
        records |= {each.id: each for each in found if each is not None}
    own = _run_record(app, run)
    records[run] = own
    names = {name: job_id for name, job_id in job_ids(plan, run).items() if job_id in records}
    states = {name: records[job_id].state for name, job_id in names.items()}
    due = evaluate(plan, states)
    late = len(due.ready) + len(due.skipped)
    late += due.state.is_final and not own.state.is_final
    arrivals = [
        Arrival(
            to=edge.to,
            source=node.id,
            verdict=verdict_of(records[node.id].state, edge),
            series=records[node.id].series,
        )
        for node in graph.nodes
        if node.id in records and records[node.id].state.is_final
        for edge in node.successors
        if edge.to in records and records[edge.to].state is JobState.PENDING
    ]
    if late:
        for start in range(0, len(arrivals), FETCH):
            control(app, FollowUps(arrive=tuple(arrivals[start : start + FETCH])))
    return late


def _see_to_parked(app: App, record: JobRecord) -> int:
    """Complete a parked step whose closer has ended without doing so."""
    from taskmq.meta import decode_meta
    from taskmq.workflow.children import CHILDREN

    closer_id = decode_meta(record.meta).get(CHILDREN)
    if not isinstance(closer_id, str) or record.receipt is None:
        return 0
    closer = app.transport.get_jobs([closer_id])[0]
    if closer is None:
        error = ErrorInfo(reason="exception", message="what would have completed it is gone")
        token = completion_token(record.id, record.receipt)
        app.transport.complete(token, Completion(state="FAILED", error=error))
        return 1
    child = app.transport.get_jobs([f"{record.id}::run{closer_id.rpartition('::close')[2]}"])[0]
    done = resume(app, child.id) if child is not None and not child.state.is_final else 0
    if closer.state.is_final:
        if _record(app, record.id).state is JobState.WAITING:
            reopen_children(app, record.id, closer_id)
        return done + 1
    return done


def _reopen(
    app: App,
    run: str,
    plan: WorkflowPlan,
    ids: Sequence[str],
    descendants: str,
    expect: dict[str, int],
) -> tuple[str, ...]:
    result = app.transport.reopen(
        ids, expect=expect, descendants="all" if descendants == "all" else "skipped"
    )
    if result.status == "refused":
        raise TransportError(f"run {run} was not changed: {result.reason}")
    names = {job_id: name for name, job_id in job_ids(plan, run).items()}
    if app.config.eager:
        app.eager.run_until_idle()
    return tuple(names[each] for each in result.reopened if each in names)


def _must(app: App, ids: Sequence[str], descendants: str) -> None:
    if not ids:
        return
    result = app.transport.reopen(ids, descendants="all" if descendants == "all" else "skipped")
    if result.status == "refused":
        raise TransportError(f"children were not reopened: {result.reason}")


def _record(app: App, job_id: str) -> JobRecord:
    record = app.transport.get_jobs([job_id])[0]
    if record is None:
        raise TransportError(f"the record of {job_id} is gone")
    return record


def _run_record(app: App, run: str) -> JobRecord:
    return _record(app, run)


def _step(plan: WorkflowPlan, name: str) -> PlanStep:
    try:
        return plan.step(name)
    except KeyError:
        listed = ", ".join(repr(step.name) for step in plan.steps[:50])
        raise ConfigError(f"the run has no step {name!r}; it has: {listed}") from None
