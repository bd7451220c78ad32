"""What is special about an attempt of a step: its inputs, its budget, its place in the history."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taskmq.clock import SYSTEM_CLOCK
from taskmq.context import Become, Directive
from taskmq.errors import BudgetExceeded, EncodeError, TransportUnavailable
from taskmq.meta import decode_meta, encode_meta
from taskmq.states import JobState
from taskmq.transport.types import Ack, Defer, ErrorInfo, Finish, FollowUps, Retry
from taskmq.workflow.history import HistoryEntry, note_attempt
from taskmq.workflow.inputs import SKIPPED, decode_inputs, fill
from taskmq.workflow.ledger import Entry, append, budget_error
from taskmq.workflow.names import SWEEP_TASK

if TYPE_CHECKING:
    from msgspec import Struct

    from taskmq.execution import Attempt, Outcome
    from taskmq.transport.types import Message, Payload
    from taskmq.workflow.inputs import Inputs

_AWAY = 1.0


def begin(attempt: Attempt) -> Directive | None:
    """Fill in the arguments of a step; a directive when it is not to be run now, or at all.

    Raises:
        BudgetExceeded: The run may make no further attempt.
        TaskmqError: What it needs is not there.
    """
    context, envelope = attempt.context, attempt.envelope
    told = None if envelope.inputs is None else decode_inputs(envelope.inputs)
    try:
        if attempt.delivery.series > 1 and _is_marked(attempt):
            return _skipped(attempt, told.default if told else None, "skipped by an operator")
        if told is None:
            return None
        args, kwargs = attempt.app.codecs.decode_call(envelope.body, envelope.content_type)
        filled = fill(attempt.app, told, args, kwargs, context.id)
        if filled.skip:
            return _skipped(attempt, told.default, filled.skip)
        if told.budget:
            number = f"{attempt.delivery.series}.{context.attempt}"
            append(context, told.root, Entry(ref=f"{context.id}#{number}", attempts=1))
    except TransportUnavailable:
        # The backend's absence is no failure of the step.
        put_off = Defer(receipt=context.receipt, delay=_AWAY, reason="values out of reach")
        return Directive(put_off, JobState.QUEUED)
    context.generation = filled.generation
    attempt.call = (filled.args, filled.kwargs)
    return None


def become(attempt: Attempt, wish: Become) -> Directive:
    """Turn a job into a run."""
    from taskmq.workflow.children import RunOver, spawn_child
    from taskmq.workflow.messages import StepSpec

    context, delivery = attempt.context, attempt.delivery
    inputs = attempt.envelope.inputs
    told = None if inputs is None else decode_inputs(inputs)
    run = _run_of(attempt, told)
    spec = StepSpec(
        name=delivery.step or context.id,
        run=run,
        root=delivery.run or "",
        queue=delivery.queue,
        priority=delivery.priority,
        budget=told.budget if told else False,
    )
    plan = attempt.app.find_workflow(wish.workflow).plan(wish.params)
    number = f"{delivery.series}.{delivery.attempt}"
    try:
        return spawn_child(context, spec, plan, number, own_body=True)
    except RunOver:
        return Directive.revoked(context)


def after_attempt(attempt: Attempt, outcome: Outcome) -> dict[str, Any]:
    """What else the settlement of a step says: history, and the end of a run whose budget is used up."""
    changes: dict[str, Any] = {}
    if isinstance(outcome.settlement, Retry):
        changes |= _noted(attempt, outcome)
    if isinstance(outcome.exc, BudgetExceeded) and outcome.state is JobState.FAILED:
        changes["follow_ups"] = _end_of_run(attempt, outcome.exc)
    return changes


def _noted(attempt: Attempt, outcome: Outcome) -> dict[str, Any]:
    context = attempt.context
    settled: Struct = outcome.settlement
    known = getattr(settled, "meta", None)
    meta = {**(decode_meta(known) if known else context.meta)}
    now = SYSTEM_CLOCK.time()
    error = outcome.error
    entry = HistoryEntry(
        step=context.step or "",
        attempt=context.attempt,
        series=context.series,
        worker=context.worker,
        started_at=now - attempt.runtime,
        finished_at=now,
        error="" if error is None else error.message or error.type,
    )
    note_attempt(meta, entry)
    try:
        return {"meta": encode_meta(meta)}
    except EncodeError:
        return {}


def _end_of_run(attempt: Attempt, error: BudgetExceeded) -> FollowUps:
    root = attempt.delivery.run or ""
    finish = Finish(id=root, state=JobState.FAILED, error=budget_error(error))
    return FollowUps(enqueue=(_sweeper(attempt, root),), finish=(finish,))


def _sweeper(attempt: Attempt, root: str) -> Message:
    delivery = attempt.delivery
    options = {"queue": delivery.queue, "priority": delivery.priority}
    return attempt.app.caller_of(SWEEP_TASK).message((root,), {}, options)


def _is_marked(attempt: Attempt) -> bool:
    from taskmq.workflow.repair import skip_mark

    mark = skip_mark(attempt.delivery.id, attempt.delivery.series)
    return attempt.app.transport.get_jobs([mark])[0] is not None


def _skipped(attempt: Attempt, default: Payload | None, why: str) -> Directive:
    error = ErrorInfo(reason=SKIPPED, message=why)
    settlement = Ack(receipt=attempt.delivery.receipt, result=default, error=error)
    return Directive(settlement, JobState.SUCCEEDED)


def _run_of(attempt: Attempt, told: Inputs | None) -> str:
    """The run that a job is a step of: the innermost one."""
    if told is not None:
        return told.run
    delivery = attempt.delivery
    suffix = f"::{delivery.step}"
    if delivery.step and delivery.id.endswith(suffix):
        return delivery.id[: -len(suffix)]
    return delivery.run or ""
