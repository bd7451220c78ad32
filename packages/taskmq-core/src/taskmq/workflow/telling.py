"""Events of runs: told by whoever settles a step, or finds that maintenance has ended a run."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from taskmq.errors import TaskmqError
from taskmq.states import JobState
from taskmq.workflow.checks import leaves
from taskmq.workflow.inputs import load_plan
from taskmq.workflow.names import RUN_TASK
from taskmq.workflow.status import run_state

if TYPE_CHECKING:
    from taskmq.app import App
    from taskmq.transport.types import Delivery, Ended, JobRecord

_REMEMBERED = 256


class RunTeller:
    """Emits `workflow.advanced`, and `workflow.succeeded` or `workflow.failed` at a run's end.

    Only a step that nothing depends on, or one that failed, can end a run: only then it is looked at.
    Two that end together may both tell.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self._runs: OrderedDict[str, tuple[str, frozenset[str]]] = OrderedDict()

    def settled(self, delivery: Delivery, state: JobState, worker: str) -> None:
        """A step has ended."""
        self._told(delivery, state, worker)

    def _told(self, job: Delivery | JobRecord, state: JobState, worker: str) -> None:
        step = job.step or ""
        run = run_of(job.id, step, job.run or "")
        try:
            workflow, last = self._known(run)
            if not step.endswith("]"):
                self._app.events.emit(
                    "workflow.advanced",
                    job=run,
                    task=RUN_TASK,
                    queue=job.queue,
                    worker=worker,
                    workflow=workflow,
                    step=step,
                    state=state.value,
                )
            if step in last or state is not JobState.SUCCEEDED:
                self._ended(run, workflow, worker)
        except TaskmqError:
            # Nobody's job depends on being told of.
            return

    def completed(self, job_id: str, worker: str) -> None:
        """A parked step was completed, if it was one."""
        try:
            record = self._app.transport.get_jobs([job_id])[0]
        except TaskmqError:
            return
        if record is not None and record.step is not None and record.state.is_final:
            self._told(record, record.state, worker)

    def ended(self, job: Ended, worker: str) -> None:
        """Maintenance has ended a run: by its deadline, or because a step of its could not go on."""
        try:
            self._ended(job.id, self._known(job.id)[0], worker)
        except TaskmqError:
            return

    def _ended(self, run: str, workflow: str, worker: str) -> None:
        record = self._app.transport.get_jobs([run])[0]
        if record is None or not record.state.is_final:
            return
        state = run_state(record)
        kind = "workflow.succeeded" if state is JobState.SUCCEEDED else "workflow.failed"
        self._app.events.emit(
            kind,
            job=run,
            task=RUN_TASK,
            queue=record.queue,
            worker=worker,
            workflow=workflow,
            state=state.value,
        )

    def _known(self, run: str) -> tuple[str, frozenset[str]]:
        """The workflow's name and its last steps; the plan is read once a run and worker."""
        found = self._runs.get(run)
        if found is None:
            plan = load_plan(self._app, run)
            found = self._runs[run] = (plan.workflow, frozenset(leaves(plan.steps)))
            if len(self._runs) > _REMEMBERED:
                self._runs.popitem(last=False)
        return found


def run_of(job_id: str, step: str, root: str) -> str:
    """The innermost run that a step's job belongs to."""
    suffix = f"::{step}"
    return job_id[: -len(suffix)] if job_id.endswith(suffix) else root
