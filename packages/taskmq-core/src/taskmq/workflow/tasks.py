"""The tasks that taskmq brings itself: maps, child runs, sleeps, and what completes parked steps.

Each can be repeated at any point: ids are deterministic, and what a settlement carries counts once.
"""

from __future__ import annotations

from typing import Any

import msgspec

from taskmq._internal.guards import is_list, is_tuple
from taskmq.context import Directive
from taskmq.errors import ConfigError, EncodeError, TransportUnavailable
from taskmq.meta import encode_meta
from taskmq.retry import Retry
from taskmq.states import JobState
from taskmq.task import Task
from taskmq.transport.contract import completion_token
from taskmq.transport.types import Completion, Defer, ErrorInfo
from taskmq.workflow import inputs as ins
from taskmq.workflow.children import (
    DELIVERIES,
    CloserSpec,
    ItemMaker,
    RunOver,
    closer_message,
    cursor_of,
    spawn,
    spawn_child,
    time_left,
)
from taskmq.workflow.messages import StepSpec
from taskmq.workflow.names import CHILD_TASK, CLOSE_TASK, MAP_TASK, SLEEP_TASK, SWEEP_TASK
from taskmq.workflow.status import NOT_SUCCEEDED, index_of, item_records

_PATIENT = Retry(max_attempts=20, base=0.2, max_delay=30.0, retry_on=(TransportUnavailable,))
_NOT_YET = 0.2
_SLEPT = "workflow_slept"


class _OwnTask(Task[..., Any]):
    retry_policy = _PATIENT
    max_deliveries = DELIVERIES


class MapTask(_OwnTask):
    """Turns a list into one job an item, and parks until all of them have ended."""

    def run(self, spec: bytes, items: Any = None) -> Any:
        """Enqueue the next chunk of items; the last one comes with the park."""
        context, told = self.request, _read(spec)
        if told.items is not None:
            items = self.app.codecs.decode_value(told.items)
        if is_tuple(items):
            items = list(items)
        if not is_list(items):
            raise ConfigError(
                f"map {told.name!r} needs a list, its source gave a {type(items).__name__}"
            )
        if not items:
            return Directive.succeeded(context, ins.encode_map_result(ins.MapResult(count=0)))
        try:
            left = time_left(context, told.run)
        except RunOver:
            return Directive.revoked(context)
        generation = context.generation
        closer = closer_message(
            self.app,
            context,
            told,
            CloserSpec(
                parent=context.id,
                name=told.name,
                count=len(items),
                generation=generation,
                tolerate=told.tolerate,
                default=told.default,
            ),
            arrivals=len(items) + 1,
            generation=str(generation),
        )
        maker = ItemMaker(context, told, closer.id, left)
        done = cursor_of(context)
        made = (maker.message(index, items[index]) for index in range(done, len(items)))
        return spawn(context, told, closer, made, len(items), left)


class ChildTask(_OwnTask):
    """Plans a run of another workflow, submits it, and parks until it has ended."""

    def run(self, spec: bytes, /, **params: Any) -> Any:
        """Enqueue the next chunk of the child run; the last one comes with the park."""
        context, told = self.request, _read(spec)
        static = self.app.codecs.decode_call(told.body, told.content_type)[1] if told.body else {}
        workflow = self.app.find_workflow(told.workflow)
        plan = workflow.plan({**static, **params})
        try:
            return spawn_child(context, told, plan, str(context.generation))
        except RunOver:
            return Directive.revoked(context)


class SleepTask(_OwnTask):
    """Ends `seconds` after its first delivery, without a slot."""

    def run(self, seconds: float) -> Any:
        """Put itself off, once."""
        context = self.request
        if context.meta.get(_SLEPT) == context.series:
            return None
        return Directive(
            Defer(
                receipt=context.receipt,
                delay=seconds,
                reason="sleeping",
                meta=encode_meta({**context.meta, _SLEPT: context.series}),
            ),
            JobState.QUEUED,
        )


class CloseTask(_OwnTask):
    """Completes a parked step once all of its children have ended."""

    def run(self, spec: bytes) -> Any:
        """Look at the children, and give the step its outcome."""
        context = self.request
        told = msgspec.msgpack.decode(spec, type=CloserSpec)
        parent = self.app.transport.get_jobs([told.parent])[0]
        if parent is None or parent.state.is_final:
            return None
        if parent.receipt is None or parent.state not in (JobState.WAITING, JobState.RUNNING):
            # It has been reopened and comes by again: its outcome can be told only to its holder.
            return Directive(
                Defer(receipt=context.receipt, delay=_NOT_YET, reason="not parked yet"),
                JobState.QUEUED,
            )
        completion = self._of_child(told) if told.child else self._of_items(told)
        self.app.transport.complete(completion_token(parent.id, parent.receipt), completion)
        if self.app.events.enabled:
            self.app.run_teller.completed(parent.id, context.worker)
        return None

    def _of_items(self, told: CloserSpec) -> Completion:
        records = {
            index_of(each.id)[0]: each
            for each in item_records(self.app, told.parent, NOT_SUCCEEDED)
            if index_of(each.id)[1] == told.generation
        }
        failed = sorted(records)
        if len(failed) > told.tolerate:
            first = records[failed[0]]
            what = _told_of(first.error) or first.state.value
            listed = ", ".join(map(str, failed[:20])) + (", …" if len(failed) > 20 else "")
            return _failure(
                f"{len(failed)} of {told.count} items of map {told.name!r} failed "
                f"({told.tolerate} tolerated): {listed}; item {failed[0]}: {what}"
            )
        result = ins.MapResult(
            count=told.count,
            generation=told.generation,
            failed=tuple(failed),
            default=told.default,
        )
        return Completion(state="SUCCEEDED", result=ins.encode_map_result(result))

    def _of_child(self, told: CloserSpec) -> Completion:
        from taskmq.workflow.outcome import RunFailed, result_of

        try:
            value = result_of(self.app, told.child)
        except RunFailed as failure:
            return _failure(f"run {told.child}: {failure}")
        if value is None:
            return Completion(state="SUCCEEDED")
        try:
            payload = self.app.codecs.encode_value(value, self.app.config.serializer)
        except EncodeError as error:
            return _failure(f"the result of run {told.child} can't travel: {error}")
        return Completion(state="SUCCEEDED", result=payload)


class SweepTask(_OwnTask):
    """Revokes what is left of a run that has ended before its steps."""

    def run(self, run: str) -> Any:
        """Revoke in bounded steps until nothing is left."""
        from taskmq.workflow.repair import revoke_steps

        revoke_steps(self.app, run)


def _failure(message: str) -> Completion:
    error = ErrorInfo(type="StepFailed", message=message[:4000], reason="exception")
    return Completion(state="FAILED", error=error)


def _told_of(error: ErrorInfo | None) -> str:
    if error is None:
        return ""
    return f"{error.type}: {error.message}" if error.type else error.message or error.reason


def _read(spec: bytes) -> StepSpec:
    return msgspec.msgpack.decode(spec, type=StepSpec)


TASKS: dict[str, type[Task[..., Any]]] = {
    CHILD_TASK: ChildTask,
    CLOSE_TASK: CloseTask,
    MAP_TASK: MapTask,
    SLEEP_TASK: SleepTask,
    SWEEP_TASK: SweepTask,
}
"""The tasks by name; every app has them without registering them."""
