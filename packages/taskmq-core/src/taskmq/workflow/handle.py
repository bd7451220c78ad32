"""Handles of runs: state, result, cancelling, repair."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Literal, TypeVar, cast

from taskmq._internal import checks
from taskmq.clock import SYSTEM_CLOCK
from taskmq.context import current
from taskmq.errors import JobNotFound, ResultTimeout, TaskError
from taskmq.workflow import outcome, repair
from taskmq.workflow.inputs import load_plan
from taskmq.workflow.names import RUN_TASK
from taskmq.workflow.status import RunStatus, read_status

if TYPE_CHECKING:
    from taskmq.app import App
    from taskmq.transport.types import JobRecord
    from taskmq.workflow.history import HistoryEntry
    from taskmq.workflow.plan import WorkflowPlan

R_co = TypeVar("R_co", covariant=True)

_SLICE = 30.0


class WorkflowHandle(Generic[R_co]):
    """A run: its id, its state, its result, and what an operator can do about it."""

    __slots__ = ("_app", "id")

    def __init__(self, app: App, id: str) -> None:
        self._app = app
        self.id = id

    @property
    def plan(self) -> WorkflowPlan:
        """The graph, as it is stored with the run."""
        self._record()
        return load_plan(self._app, self.id)

    def status(self) -> RunStatus:
        """How the run and each of its steps stand.

        Raises:
            JobNotFound: There is no such run (any more).
        """
        self._record()
        return read_status(self._app, self.id)

    def wait(self, timeout: float | None = None, *, inside_task: bool = False) -> bool:
        """Wait for the run's end, however it ends; False when it has not come in time.

        Raises:
            TaskError: Called inside a task without `inside_task=True`: it would hold a slot.
        """
        if timeout is not None:
            checks.number("timeout", timeout)
        if self._record().state.is_final:
            return True
        if not inside_task:
            self._refuse_inside_task()
        end = None if timeout is None else SYSTEM_CLOCK.monotonic() + timeout
        while True:
            left = _SLICE if end is None else min(end - SYSTEM_CLOCK.monotonic(), _SLICE)
            if left <= 0:
                return False
            record = self._app.transport.wait_jobs([self.id], left)[0]
            if record is None or record.state.is_final:
                return True

    def get(self, timeout: float | None = None, *, inside_task: bool = False) -> R_co:
        """Wait for the run's result: the sink's, a list of them, or `{leaf: result}`.

        Raises:
            RemoteError: The run failed, was cancelled, or its sink was skipped; the message names the step.
            ResultTimeout: It has not ended in time.
            TaskError: Called inside a task without `inside_task=True`.
        """
        if not self.wait(timeout, inside_task=inside_task):
            raise ResultTimeout(
                f"run {self.id} has not ended within {timeout} s; it goes on all the same"
            )
        return cast("R_co", outcome.result_of(self._app, self.id))

    async def aget(self, timeout: float | None = None) -> R_co:
        """Like `get`, without blocking the event loop."""
        import asyncio

        if timeout is not None:
            checks.number("timeout", timeout)
        record = await self._app.waits.wait(self.id, timeout)
        if record is None:
            raise JobNotFound(self.id)
        if not record.state.is_final:
            raise ResultTimeout(
                f"run {self.id} has not ended within {timeout} s; it goes on all the same"
            )
        return cast("R_co", await asyncio.to_thread(outcome.result_of, self._app, self.id))

    def cancel(self, *, terminate: bool = False) -> bool:
        """Cancel the run and everything in it, child runs included; True unless it had ended.

        What waits never starts; what runs is asked to end, with `terminate` by force.
        """
        self._record()
        return repair.cancel(self._app, self.id, terminate=terminate)

    def retry_failed(self) -> tuple[str, ...]:
        """Run failed steps again, and what was skipped behind them; their names.

        Steps that succeeded keep their results; of a map only failed items run again.
        """
        self._record()
        return repair.retry_failed(self._app, self.id)

    def rerun(self, step: str) -> tuple[str, ...]:
        """Run a step again, and everything that depends on it; the names of these steps.

        Raises:
            TransportError: One of them is queued or running.
        """
        self._record()
        return repair.rerun(self._app, self.id, step)

    def skip(self, step: str) -> None:
        """Let the run go on without a step: its dependants get its `default`.

        Raises:
            TransportError: It runs at the moment, or has succeeded.
        """
        self._record()
        repair.skip(self._app, self.id, step)

    def resume(self) -> int:
        """Do what should have followed from the states of the steps; how much there was to do."""
        self._record()
        return repair.resume(self._app, self.id)

    def graph(self, format: Literal["mermaid", "dot"] = "mermaid", *, states: bool = True) -> str:
        """A picture of the graph as text, with the states of the steps unless `states=False`."""
        from taskmq.workflow.pictures import draw

        self._record()
        return draw(self.plan, format, self.status() if states else None)

    def history(self) -> list[HistoryEntry]:
        """Every attempt of every step that is known, and what was spent, in order of time."""
        from taskmq.workflow.history import read_history

        self._record()
        return read_history(self._app, self.id)

    def _record(self) -> JobRecord:
        record = self._app.transport.get_jobs([self.id])[0]
        if record is None:
            raise JobNotFound(self.id)
        if record.task != RUN_TASK:
            raise TaskError(f"{self.id} is a job of {record.task!r}, no run: use app.handle")
        return record

    def _refuse_inside_task(self) -> None:
        context = current.get()
        if context is not None and context.holds_a_slot:
            raise TaskError(
                f"task {context.task.name!r} waits for run {self.id} while it holds a slot of its worker: "
                f"when all slots wait, nothing moves. Return ctx.become(…), make it a step with wf.run, or "
                f"pass inside_task=True if slots for its steps are certain"
            )

    def __repr__(self) -> str:
        return f"<WorkflowHandle {self.id}>"
