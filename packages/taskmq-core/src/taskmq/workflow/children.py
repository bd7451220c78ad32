"""What hangs under a parked step: items of a map, a child run, and the closer that completes the step."""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from taskmq._internal.guards import is_list
from taskmq.context import Directive
from taskmq.errors import ConfigError, TaskError
from taskmq.meta import encode_meta
from taskmq.states import JobState
from taskmq.transport.types import (
    Arrival,
    Defer,
    Edge,
    FollowUps,
    Hold,
    HoldRule,
    Message,
    Park,
    Payload,
)
from taskmq.workflow.messages import RunPlace, StepSpec, run_messages, step_headers
from taskmq.workflow.names import CHILD_TASK, CLOSE_TASK, child_id, closer_id, item_id

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taskmq.app import App
    from taskmq.context import TaskContext
    from taskmq.workflow.plan import WorkflowPlan

CHUNK = 500
"""The most messages that one settlement carries."""
CHILDREN = "workflow_children"
"""The entry of a parked step's meta that names its closer."""
DELIVERIES = 50
"""How often a task of taskmq's own is delivered before it is given up."""
_CURSOR = "workflow_cursor"


class CloserSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a closer completes: the job of a map, or of a child run."""

    parent: str
    child: str = ""
    """The child run; of a map empty."""
    name: str = ""
    count: int = 0
    generation: int = 1
    tolerate: int = 0
    default: Payload | None = None


class RunOver(Exception):
    """The run of a step has ended: nothing of it is to be enqueued any more."""


def spawn_child(
    context: TaskContext,
    told: StepSpec,
    plan: WorkflowPlan,
    generation: str,
    *,
    own_body: bool = False,
) -> Directive:
    """What lets a step wait for a child run: its messages, and the park.

    With `own_body` it is a user's task that turns into the run: its body must not be repeated for
    another chunk.
    """
    run = child_id(context.id, generation)
    closer = closer_message(
        context.app,
        context,
        told,
        CloserSpec(parent=context.id, child=run, name=told.name),
        arrivals=2,
        generation=generation,
    )
    left = time_left(context, told.run)
    place = RunPlace(
        run=run,
        root=told.root or run,
        queue=told.queue,
        priority=told.priority,
        expires=left,
        budget=told.budget,
        successors=(Edge(closer.id),),
    )
    messages = run_messages(context.app, plan, place)
    if own_body and len(messages) >= CHUNK:
        raise ConfigError(
            f"a step can turn into a run of at most {CHUNK - 2} steps, this one has {len(plan.steps)}: "
            f"make it a step of its own, with wf.run"
        )
    children = iter(messages[cursor_of(context) :])
    return spawn(context, told, closer, children, len(messages), left)


class ItemMaker:
    """Makes the messages of a map's items."""

    def __init__(
        self, context: TaskContext, told: StepSpec, closer: str, expires: float | None
    ) -> None:
        app = context.app
        self._parent = parent = context.id
        self._told = told
        self._generation = context.generation
        self._task = CHILD_TASK if told.workflow else told.task
        self._caller = app.caller_of(self._task)
        options = {"queue": told.queue, "priority": told.priority, "timeout": told.timeout}
        self._fields, self._envelope = self._caller.step_template(options)
        self._args: tuple[Any, ...] = ()
        self._kwargs: dict[str, Any] = {}
        if told.body:
            self._args, self._kwargs = app.codecs.decode_call(told.body, told.content_type)
        if not told.workflow:
            # All items are called alike, so their number and names are checked once.
            self._caller.check_step(self._args, self._kwargs, (told.arg,))
        self._make = partial(Message, successors=(Edge(closer),), guard=told.run, run=told.root)
        if expires is not None:
            self._fields["expires"] = min(expires, self._fields.get("expires") or expires)
        if told.max_concurrency:
            self._fields |= {
                "concurrency_key": f"map:{parent}"[:500],
                "concurrency_limit": told.max_concurrency,
            }
        self._own_key = not told.max_concurrency and not told.workflow
        envelope = self._envelope
        envelope.run, envelope.inputs = told.root, told.inputs
        envelope.concurrency_key = self._fields.get("concurrency_key")
        envelope.headers = step_headers(app, told.name, told.run, told.headers)

    def message(self, index: int, item: Any) -> Message:
        """The message of one item."""
        told, envelope = self._told, self._envelope
        fields: dict[str, Any] = self._fields
        kwargs = {**self._kwargs, told.arg: item}
        args: tuple[Any, ...] = self._args
        if self._own_key and (key := self._caller.step_key(args, kwargs)) is not None:
            envelope.concurrency_key = key
            fields = {**fields, "concurrency_key": key}
        if told.workflow:
            args = (self._child_spec(index),)
        envelope.content_type, envelope.body = self._caller.encode_checked(args, kwargs)
        envelope.id = job_id = item_id(self._parent, index, self._generation)
        envelope.step = step = f"{told.name}[{index}]"
        return self._make(id=job_id, envelope=self._caller.seal(envelope), step=step, **fields)

    def _child_spec(self, index: int) -> bytes:
        told = self._told
        return msgspec.msgpack.encode(
            StepSpec(
                name=f"{told.name}[{index}]",
                run=told.run,
                root=told.root,
                queue=told.queue,
                priority=told.priority,
                workflow=told.workflow,
                budget=told.budget,
            )
        )


def closer_message(
    app: App,
    context: TaskContext,
    told: StepSpec,
    spec: CloserSpec,
    *,
    arrivals: int,
    generation: str,
) -> Message:
    """What completes a parked step once all of its children have ended."""
    caller = app.caller_of(CLOSE_TASK)
    fields, envelope = caller.step_template({"queue": told.queue, "priority": told.priority})
    job_id = closer_id(context.id, generation)
    envelope.id, envelope.run = job_id, told.root
    kwargs = {"spec": msgspec.msgpack.encode(spec)}
    envelope.content_type, envelope.body = caller.encode_step((), kwargs, ())
    fields["max_deliveries"] = envelope.max_deliveries = DELIVERIES
    return Message(
        id=job_id,
        envelope=caller.seal(envelope),
        hold=Hold(arrivals=arrivals, rule=HoldRule.ALL_DONE),
        guard=told.run or None,
        run=told.root or None,
        **fields,
    )


def spawn(
    context: TaskContext,
    told: StepSpec,
    closer: Message,
    children: Iterator[Message],
    count: int,
    left: float | None,
) -> Directive:
    """Enqueue children in chunks; with the last one the step parks and arrives at its closer."""
    done = cursor_of(context)
    if done == 0:
        _before_children(context, told, closer, count)
    room = CHUNK if done else CHUNK - 1
    chunk = list(islice(children, room))
    follow_ups = FollowUps(enqueue=tuple(chunk if done else [closer, *chunk]))
    done += len(chunk)
    if done < count:
        put_off = Defer(
            receipt=context.receipt,
            delay=0.0,
            reason="expanding",
            meta=encode_meta({**context.meta, _CURSOR: [context.series, done]}),
            follow_ups=follow_ups,
        )
        return Directive(put_off, JobState.QUEUED)
    arrival = Arrival(to=closer.id, source=context.id, series=context.series)
    park = Park(
        receipt=context.receipt,
        timeout=left,
        meta=encode_meta({**context.meta, _CURSOR: None, CHILDREN: closer.id}),
        follow_ups=FollowUps(enqueue=follow_ups.enqueue, arrive=(arrival,)),
    )
    return Directive(park, JobState.WAITING)


def _before_children(context: TaskContext, told: StepSpec, closer: Message, count: int) -> None:
    from taskmq.workflow.ledger import Entry, append
    from taskmq.workflow.repair import reopen_children

    if context.series > 1:
        reopen_children(context.app, context.id, closer.id)
    if told.budget:
        append(context, told.root, Entry(jobs=count, ref=closer.id))


def cursor_of(context: TaskContext) -> int:
    """How many children have been enqueued in this series."""
    cursor = context.meta.get(_CURSOR)
    # A backend may keep the meta when a job is reopened: the cursor of another series is none.
    if not is_list(cursor) or len(cursor) != 2 or cursor[0] != context.series:
        return 0
    return int(cursor[1])


def time_left(context: TaskContext, run: str) -> float | None:
    """Seconds until the run's deadline; None without one.

    Raises:
        RunOver: The run has ended.
    """
    if not run:
        return None
    record = context.app.transport.get_jobs([run])[0]
    if record is None:
        raise TaskError(f"the record of run {run} is gone")
    if record.state.is_final or record.cancel_requested:
        raise RunOver
    if record.expires_at is None:
        return None
    return max(0.001, record.expires_at - context.reserved_at)
