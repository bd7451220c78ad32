"""Finding runs of workflows and how far they are, for `workflow list` and `status`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Union

import msgspec

from taskmq.states import JobState
from taskmq_cli import output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskmq.transport import Transport
    from taskmq.transport.types import JobRecord
    from taskmq.workflow.plan import WorkflowPlan

RUNNING = "RUNNING"
ENDED = ("SUCCEEDED", "FAILED", "REVOKED")
STATES = (RUNNING, *ENDED)
"""The states of a run as people see them."""
_RECORD_STATES = {
    RUNNING: (JobState.PENDING,),
    "SUCCEEDED": (JobState.SUCCEEDED,),
    # A run past its deadline expired; to people it failed.
    "FAILED": (JobState.FAILED, JobState.EXPIRED),
    "REVOKED": (JobState.REVOKED,),
}
_PAGE = 500


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One line about a run; `done` is None where it was not counted."""

    id: str
    workflow: str
    state: str
    steps: int
    done: Union[int, None] = None
    submitted_at: float = 0.0
    finished_at: Union[float, None] = None

    @property
    def progress(self) -> str:
        """Return "3/8", or "8" when the run has ended."""
        return f"{self.steps}" if self.done is None else f"{self.done}/{self.steps}"


def find(
    transport: Transport, states: Sequence[str], limit: int, *, newest_first: bool = True
) -> list[Run]:
    """Return runs in these states, child runs left out; of those that run it is counted how far they are."""
    records = _records(transport, states, limit, newest_first)
    plans = _plans(transport, records)
    # A run can end, and its record expire, between the two looks.
    shown = [each for each in records if each.id in plans]
    alive = {each.id: plans[each.id] for each in shown if not each.state.is_final}
    done = _progress(transport, alive)
    return [_run(each, plans[each.id], done.get(each.id)) for each in shown]


def listing(runs: Sequence[Run], now: float | None) -> str:
    """Return a line for each run."""
    rows = [
        (
            each.id,
            each.workflow,
            each.state,
            each.progress,
            output.age(None if now is None else now - each.submitted_at),
        )
        for each in runs
    ]
    return output.listing(("run", "workflow>", "state", ">steps", ">age"), rows)


def _records(
    transport: Transport, states: Sequence[str], limit: int, newest_first: bool
) -> list[JobRecord]:
    from taskmq.workflow.names import PREFIX, RUN_TASK

    found: list[JobRecord] = []
    cursor: str | None = None
    while len(found) < limit:
        page = transport.list_jobs(
            prefix=PREFIX,
            states=[state for name in states for state in _RECORD_STATES[name]],
            task=RUN_TASK,
            limit=_PAGE,
            cursor=cursor,
            newest_first=newest_first,
        )
        found += [each for each in page.jobs if each.run is None]
        cursor = page.cursor
        if cursor is None:
            break
    return found[:limit]


def _plans(transport: Transport, records: Sequence[JobRecord]) -> dict[str, WorkflowPlan]:
    from taskmq.errors import ProtocolError
    from taskmq.protocol.envelope import decode_envelope
    from taskmq.workflow.plan import WorkflowPlan, decode_plan

    plans: dict[str, WorkflowPlan] = {}
    for at in range(0, len(records), _PAGE):
        ids = [each.id for each in records[at : at + _PAGE]]
        for record in transport.get_jobs(ids, envelopes=True):
            if record is None or record.envelope is None:
                continue
            try:
                plans[record.id] = decode_plan(decode_envelope(record.envelope).body)
            except ProtocolError:
                # One run of a newer version must not hide the others.
                plans[record.id] = WorkflowPlan(workflow="(unreadable plan)")
    return plans


def _progress(transport: Transport, plans: dict[str, WorkflowPlan]) -> dict[str, int]:
    from taskmq.workflow.planner import job_ids

    owners = {job: run for run, plan in plans.items() for job in job_ids(plan, run).values()}
    done = dict.fromkeys(plans, 0)
    ids = list(owners)
    for at in range(0, len(ids), _PAGE):
        for record in transport.get_jobs(ids[at : at + _PAGE]):
            if record is not None and record.state.is_final:
                done[owners[record.id]] += 1
    return done


def _run(record: JobRecord, plan: WorkflowPlan, done: int | None) -> Run:
    from taskmq.workflow.status import run_state

    return Run(
        id=record.id,
        workflow=plan.workflow,
        state=run_state(record).value,
        steps=len(plan.steps),
        done=done,
        submitted_at=record.enqueued_at,
        finished_at=record.finished_at,
    )
