"""What a run has come to: its result, or why there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taskmq.errors import RemoteError
from taskmq.states import JobState
from taskmq.transport.types import ErrorInfo
from taskmq.workflow.inputs import Values, is_skipped
from taskmq.workflow.planner import evaluate, job_ids
from taskmq.workflow.status import BUDGET, is_over_deadline, step_records

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taskmq.app import App
    from taskmq.transport.types import JobRecord
    from taskmq.workflow.plan import WorkflowPlan


class RunFailed(RemoteError):
    """A run has no result.

    Attributes:
        step: The step that is to blame, "" when none is.
    """

    step: str = ""


def result_of(app: App, run: str) -> Any:
    """The result of a run that has ended.

    Raises:
        RunFailed: It has none; the message names the step and its error.
    """
    values = Values(app)
    record = values.record(run)
    plan = values.plan(run)
    ids = job_ids(plan, run)
    if record.state is not JobState.SUCCEEDED:
        raise failure_of(app, record, plan)
    values.fetch(ids[name] for name in plan.sinks)
    if plan.shape == "one":
        sink = values.record(ids[plan.sinks[0]])
        if sink.state is not JobState.SUCCEEDED or is_skipped(sink):
            raise _no_sink(app, record, plan, plan.sinks[0], sink)
        return _convert(app, plan, plan.sinks[0], values.value(sink.id))
    defaults = {step.name: step.default for step in plan.steps}
    found = {
        name: _convert(app, plan, name, values.value(ids[name], defaults[name]))
        for name in plan.sinks
    }
    return [found[name] for name in plan.sinks] if plan.shape == "list" else found


def failure_of(app: App, record: JobRecord, plan: WorkflowPlan) -> RunFailed:
    """Why a run ended without success, as the error that `get` raises."""
    run = record.id
    if is_over_deadline(record):
        return _error(run, "the run's deadline is over", "deadline")
    if record.state is JobState.REVOKED:
        return _error(run, "the run was cancelled", "revoked", state=JobState.REVOKED)
    if record.error is not None and record.error.reason == BUDGET:
        return _error(run, record.error.message, BUDGET)
    by_name = step_records(app, plan, run)
    failed = evaluate(plan, states_of(by_name)).failed
    for name in sorted(failed, key=lambda each: _blame(by_name[each])):
        found = by_name[name]
        if found is not None:
            return _by_step(run, name, found)
    return _error(run, "a step that failed has no record any more", "exception")


def _blame(record: JobRecord | None) -> int:
    """What failed by itself goes before what was revoked because of it."""
    if record is None:
        return 2
    return 0 if record.state is JobState.FAILED else 1


def states_of(records: Mapping[str, JobRecord | None]) -> dict[str, JobState]:
    """The states by step; a record that is gone counts as failed."""
    return {
        name: JobState.FAILED if record is None else record.state
        for name, record in records.items()
    }


def _by_step(run: str, name: str, record: JobRecord) -> RunFailed:
    info = record.error or ErrorInfo(message=record.reason, reason=record.reason)
    what = f"{info.type}: {info.message}" if info.type else info.message or info.reason
    made = RunFailed(
        run,
        state=JobState.FAILED.value,
        message=f"step {name!r} ended {record.state}: {what}",
        traceback=info.traceback,
        reason=info.reason,
    )
    made.step = name
    return made


def _no_sink(
    app: App, record: JobRecord, plan: WorkflowPlan, name: str, sink: JobRecord
) -> RunFailed:
    if sink.state is JobState.SUCCEEDED:
        why = sink.error.message if sink.error else ""
        made = _error(record.id, f"its sink {name!r} was skipped: {why}", "skipped")
    elif sink.state is JobState.SKIPPED:
        states = states_of(step_records(app, plan, record.id))
        cause = evaluate(plan, states).causes.get(name, "")
        why = f"step {cause!r} ended {states[cause]}" if cause else "nothing it waited for happened"
        made = _error(record.id, f"its sink {name!r} was skipped: {why}", "skipped")
    else:
        made = _by_step(record.id, name, sink)
    made.step = name
    return made


def _error(run: str, message: str, reason: str, state: JobState = JobState.FAILED) -> RunFailed:
    return RunFailed(run, state=state.value, message=message, reason=reason)


def _convert(app: App, plan: WorkflowPlan, name: str, value: Any) -> Any:
    """A sink's value as its task's annotation says, where the task is at hand."""
    step = plan.step(name)
    task = app.tasks.get(step.task)
    if task is None or step.kind not in ("step", "map"):
        return value
    annotation = task.signature.returns
    if annotation is Any:
        return value
    if step.kind == "map":
        return [app.codecs.convert_value(each, annotation) for each in value]
    return app.codecs.convert_value(value, annotation)
