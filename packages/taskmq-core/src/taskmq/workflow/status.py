"""How a run and its steps stand, from their records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Union

import msgspec

from taskmq.states import JobState
from taskmq.transport.types import ErrorInfo
from taskmq.workflow.inputs import FETCH, decode_map_result, is_skipped
from taskmq.workflow.names import RUN_TASK
from taskmq.workflow.planner import evaluate, job_ids

if TYPE_CHECKING:
    from taskmq.app import App
    from taskmq.transport.types import JobRecord
    from taskmq.workflow.plan import PlanStep, WorkflowPlan


NOT_SUCCEEDED = tuple(state for state in JobState if state is not JobState.SUCCEEDED)
BUDGET = "budget"
"""The reason on what failed because the run had used up its budget."""


class StepStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How one step stands.

    `state` is SKIPPED also for a step that a condition or an operator left out. `cause` says why it was
    skipped. Of a map, `items` counts its items by state, and `failed_items` lists the indices of those that
    failed.
    """

    state: JobState
    attempt: int = 1
    job_id: str = ""
    error: Union[ErrorInfo, None] = None
    kind: str = "step"
    task: str = ""
    queue: str = ""
    depends_on: tuple[str, ...] = ()
    cause: str = ""
    worker: Union[str, None] = None
    started_at: Union[float, None] = None
    finished_at: Union[float, None] = None
    items: Mapping[str, int] = {}
    failed_items: tuple[int, ...] = ()


class RunStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How a run stands; `steps` by name, in an order in which each comes after what it depends on."""

    id: str
    workflow: str
    state: JobState
    """RUNNING until it ends SUCCEEDED, FAILED or REVOKED."""
    steps: dict[str, StepStatus]
    reason: str = ""
    """Why it ended other than by success: a step, "deadline", "budget", "revoked"."""
    submitted: str = ""
    submitted_at: float = 0.0
    finished_at: Union[float, None] = None


def read_status(app: App, run: str) -> RunStatus:
    """The status of a run that there is."""
    from taskmq.protocol.envelope import decode_envelope
    from taskmq.workflow.plan import decode_plan

    record = app.transport.get_jobs([run], envelopes=True)[0]
    if record is None or record.envelope is None:
        from taskmq.errors import JobNotFound

        raise JobNotFound(run)
    plan = decode_plan(decode_envelope(record.envelope).body)
    records = step_records(app, plan, run)
    states = {
        name: JobState.PENDING if each is None else each.state for name, each in records.items()
    }
    evaluation = evaluate(plan, states)
    steps = {
        step.name: _step_status(app, step, records[step.name], evaluation.causes)
        for step in plan.steps
    }
    return RunStatus(
        id=run,
        workflow=plan.workflow,
        state=run_state(record),
        steps=steps,
        reason=_reason(record, evaluation.failed, steps),
        submitted=plan.submitted,
        submitted_at=record.enqueued_at,
        finished_at=record.finished_at,
    )


def run_state(record: JobRecord) -> JobState:
    """A run's state as users see it: held is running, and a deadline that is over a failure."""
    if not record.state.is_final:
        return JobState.RUNNING
    return JobState.FAILED if record.state is JobState.EXPIRED else record.state


def is_over_deadline(record: JobRecord) -> bool:
    """Whether a run ended by its deadline: its record expired, or its steps did just before."""
    if record.state is JobState.EXPIRED:
        return True
    expires_at, finished_at = record.expires_at, record.finished_at
    if record.state is not JobState.FAILED or expires_at is None or finished_at is None:
        return False
    return finished_at >= expires_at


def step_records(app: App, plan: WorkflowPlan, run: str) -> dict[str, JobRecord | None]:
    """The record of each step, None where it is gone."""
    ids = job_ids(plan, run)
    found: dict[str, JobRecord | None] = {}
    names = list(ids)
    for start in range(0, len(names), FETCH):
        chunk = names[start : start + FETCH]
        records = app.transport.get_jobs([ids[name] for name in chunk])
        found.update(zip(chunk, records, strict=True))
    return found


def item_records(app: App, job_id: str, states: tuple[JobState, ...] = ()) -> list[JobRecord]:
    """The records of a map's items in these states, of its present generation and of earlier ones."""
    found: list[JobRecord] = []
    cursor: str | None = None
    while True:
        page = app.transport.list_jobs(
            prefix=f"{job_id}[", states=states, limit=FETCH, cursor=cursor
        )
        found += [each for each in page.jobs if "::" not in each.id[len(job_id) :]]
        cursor = page.cursor
        if cursor is None:
            return found


def index_of(job_id: str) -> tuple[int, int]:
    """The index and the generation in the id of an item."""
    text = job_id[job_id.rindex("[") + 1 :]
    index, _, rest = text.partition("]")
    return int(index), int(rest[1:]) if rest.startswith("~") else 1


def is_run(record: JobRecord) -> bool:
    """Whether a record is of a run."""
    return record.task == RUN_TASK


def _step_status(
    app: App, step: PlanStep, record: JobRecord | None, causes: Mapping[str, str]
) -> StepStatus:
    if record is None:
        return StepStatus(
            state=JobState.PENDING, kind=step.kind, task=step.task, depends_on=step.sources
        )
    state, cause = record.state, ""
    if is_skipped(record):
        state, cause = JobState.SKIPPED, record.error.message if record.error else ""
    elif state is JobState.SKIPPED:
        culprit = causes.get(step.name, "")
        cause = f"step {culprit!r} did not succeed" if culprit else _cause(record)
    more: dict[str, Any] = {}
    if step.kind == "map" and state is not JobState.SKIPPED:
        more = _items(app, record)
    return StepStatus(
        state=state,
        attempt=record.attempt,
        job_id=record.id,
        error=None if state is JobState.SUCCEEDED else record.error,
        kind=step.kind,
        task=step.task or step.workflow,
        queue=record.queue,
        depends_on=step.sources,
        cause=cause,
        worker=record.worker,
        started_at=record.started_at,
        finished_at=record.finished_at,
        **more,
    )


def _cause(record: JobRecord) -> str:
    return (record.error.message if record.error else "") or record.reason


def _items(app: App, record: JobRecord) -> dict[str, Any]:
    if record.state is JobState.SUCCEEDED and record.result is not None:
        shape = decode_map_result(record.result.data)
        bad = len(shape.failed)
        ended = {"SUCCEEDED": shape.count - bad, "FAILED": bad}
        return {
            "items": {state: count for state, count in ended.items() if count},
            "failed_items": shape.failed,
        }
    if record.state in (JobState.PENDING, JobState.SKIPPED):
        return {}
    items = item_records(app, record.id)
    newest = max((index_of(each.id)[1] for each in items), default=1)
    items = [each for each in items if index_of(each.id)[1] == newest]
    counts: dict[str, int] = {}
    for each in items:
        counts[each.state.value] = counts.get(each.state.value, 0) + 1
    failed = sorted(
        index_of(each.id)[0]
        for each in items
        if each.state.is_final and each.state is not JobState.SUCCEEDED
    )
    return {"items": counts, "failed_items": tuple(failed)}


def _reason(record: JobRecord, failed: tuple[str, ...], steps: Mapping[str, StepStatus]) -> str:
    if is_over_deadline(record):
        return "deadline"
    if record.state is JobState.REVOKED:
        return "revoked"
    if record.error is not None and record.error.reason == BUDGET:
        return f"{BUDGET}: {record.error.message}"
    for step in steps.values():
        if step.error is not None and step.error.reason == BUDGET:
            return f"{BUDGET}: {step.error.message}"
    if record.state is JobState.FAILED and failed:
        return f"step {failed[0]!r} ended {steps[failed[0]].state}"
    return ""
