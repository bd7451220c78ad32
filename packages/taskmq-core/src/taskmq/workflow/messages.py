"""From a plan to the messages of one submission, each with its hold, its edges and its inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Union

import msgspec

from taskmq.errors import ConfigError
from taskmq.names import MAX_NAME
from taskmq.protocol.envelope import VERSION, Envelope, encode_envelope
from taskmq.transport.types import Edge, Hold, Message, Payload
from taskmq.workflow import inputs as ins
from taskmq.workflow.names import CHILD_TASK, MAP_TASK, NODE_TASK, RUN_TASK, SLEEP_TASK
from taskmq.workflow.plan import encode_plan
from taskmq.workflow.planner import nodes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from taskmq.app import App
    from taskmq.workflow.plan import PlanStep, WorkflowPlan
    from taskmq.workflow.planner import Node

MANY_SOURCES = 65_536
"""From this many bytes on a step's sources are read from the plan."""


class RunPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run stands: its id, the run that all of it belongs to, its own successors."""

    run: str
    root: str
    queue: str
    priority: int = 0
    expires: Union[float, None] = None
    budget: bool = False
    successors: tuple[Edge, ...] = ()


class StepSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the job of a map or a child run is told; it parks, and its closer is told the same."""

    name: str
    run: str
    root: str
    queue: str
    priority: int = 0
    task: str = ""
    workflow: str = ""
    arg: str = ""
    content_type: str = ""
    body: bytes = b""
    max_concurrency: int = 0
    tolerate: int = 0
    default: Union[Payload, None] = None
    items: Union[Payload, None] = None
    inputs: Union[bytes, None] = None
    """Of a map: those of each item."""
    budget: bool = False
    headers: Union[dict[str, Any], None] = None
    timeout: Union[float, None] = None


def run_messages(app: App, plan: WorkflowPlan, place: RunPlace) -> list[Message]:
    """All messages of a run, each before those that arrive at it.

    Raises:
        MessageTooLarge: A step's message is over `Config.max_message_bytes`.
    """
    graph = nodes(plan, place.run)
    maker = _Maker(app, plan, place)
    made = [maker.record(plan, graph.hold)]
    made += [maker.message(node) for node in reversed(graph.nodes)]
    return made


class _Maker:
    """Makes the messages of one run."""

    def __init__(self, app: App, plan: WorkflowPlan, place: RunPlace) -> None:
        self._app = app
        self._place = place
        self._steps = {step.name: step for step in plan.steps}
        self._templates: dict[Any, tuple[dict[str, Any], Envelope]] = {}

    def record(self, plan: WorkflowPlan, hold: Hold) -> Message:
        """The record of the run itself, with the plan."""
        place, config = self._place, self._app.config
        envelope = Envelope(
            v=VERSION,
            id=place.run,
            task=RUN_TASK,
            queue=place.queue,
            priority=place.priority,
            run=place.root,
            body=encode_plan(plan.stored()),
        )
        return Message(
            id=place.run,
            task=RUN_TASK,
            queue=place.queue,
            priority=place.priority,
            envelope=encode_envelope(envelope),
            expires=place.expires,
            job_ttl=config.job_ttl,
            hold=hold,
            successors=place.successors,
            run=None if place.run == place.root else place.root,
        )

    def message(self, node: Node) -> Message:
        """The message of a step, or the record of a node without a task."""
        step = self._steps[node.step]
        if len(node.id) > MAX_NAME:
            raise ConfigError(
                f"step {step.name!r} of run {self._place.run!r} would have a job id of {len(node.id)} "
                f"characters, {MAX_NAME} are allowed: shorten its name, or nest less deeply"
            )
        if node.twin or step.kind == "gather":
            return self._node(node, step)
        if step.kind == "step":
            return self._message(node, step, step.task, step.content_type, step.body)
        task = {"map": MAP_TASK, "run": CHILD_TASK, "sleep": SLEEP_TASK}[step.kind]
        told = step.seconds if step.kind == "sleep" else msgspec.msgpack.encode(self._spec(step))
        content_type, body = self._app.caller_of(task).encode_step((told,), {}, ())
        return self._message(node, step, task, content_type, body)

    def _message(
        self, node: Node, step: PlanStep, task: str, content_type: str, body: bytes
    ) -> Message:
        place, caller = self._place, self._app.caller_of(task)
        fields: dict[str, Any]
        fields, envelope = self._template(step, task)
        envelope.id = node.id
        envelope.step = step.name
        envelope.content_type, envelope.body = content_type, body
        envelope.inputs = self._inputs(step, task)
        envelope.headers = step_headers(self._app, step.name, place.run, step.headers)
        if step.kind == "step" and fields.get("concurrency_key") is None:
            args, kwargs = self._app.codecs.decode_call(body, content_type)
            key = caller.step_key(args, kwargs)
            envelope.concurrency_key = key
            fields = {**fields, "concurrency_key": key}
        if node.hold is not None:
            # The task's own expiry would run while the step is held.
            fields = {**fields, "expires": None}
        if place.expires is not None:
            fields = {**fields, "expires": _sooner(fields.get("expires"), place.expires)}
        return Message(
            id=node.id,
            envelope=caller.seal(envelope),
            hold=node.hold,
            successors=node.successors,
            guard=place.run,
            run=place.root,
            step=step.name,
            **fields,
        )

    def _template(self, step: PlanStep, task: str) -> tuple[dict[str, Any], Envelope]:
        """The parts of a message that steps of the same task share."""
        key = (task, step.queue, step.priority, step.timeout)
        found = self._templates.get(key)
        if found is None:
            options = {"queue": step.queue, "priority": step.priority, "timeout": step.timeout}
            found = self._app.caller_of(task).step_template(options)
            found[1].run = self._place.root
            self._templates[key] = found
        return found

    def _node(self, node: Node, step: PlanStep) -> Message:
        place = self._place
        return node_message(
            self._app,
            node.id,
            hold=node.hold or Hold(arrivals=0, finish=True),
            queue=step.queue,
            successors=node.successors,
            run=place.root,
            step=None if node.twin else step.name,
        )

    def _inputs(self, step: PlanStep, task: str) -> bytes | None:
        place = self._place
        wants = [edge for edge in step.edges if edge.into is not None]
        plain = not (wants or step.conditions or place.budget or step.default is not None)
        if plain and step.kind not in ("map", "run"):
            return None
        sources = ins.sources_of(step, self._steps)
        if step.kind == "map":
            # The items fetch what goes to each of them; the map itself only wants the list.
            sources = tuple(
                each
                if edge.at == ("over",)
                else msgspec.structs.replace(each, into=None, path=(), at=(), default=None)
                for each, edge in zip(sources, step.edges, strict=True)
            )
        elif step.kind == "step":
            sources = tuple(each for each in sources if each.into is not None)
        made = ins.Inputs(
            run=place.run,
            root=place.root,
            sources=sources,
            conditions=tuple(
                ins.Condition(
                    ref=self._steps[each.source].id or f"::{each.source}",
                    path=each.path,
                    negate=each.negate,
                    default=self._steps[each.source].default,
                )
                for each in step.conditions
            ),
            default=step.default,
            budget=place.budget,
            open=step.open,
        )
        data = ins.encode_inputs(made)
        if len(data) > MANY_SOURCES and step.kind == "step":
            slim = msgspec.structs.replace(made, sources=(), from_plan=step.name)
            data = ins.encode_inputs(slim)
        return data

    def _spec(self, step: PlanStep) -> StepSpec:
        place = self._place
        return StepSpec(
            name=step.name,
            run=place.run,
            root=place.root,
            queue=step.queue,
            priority=step.priority,
            task=step.task,
            workflow=step.workflow,
            arg=step.arg,
            content_type=step.content_type,
            body=step.body,
            max_concurrency=step.max_concurrency,
            tolerate=step.tolerate,
            default=step.default,
            items=step.items,
            inputs=self._item_inputs(step) if step.kind == "map" else None,
            budget=place.budget,
            headers=step.headers,
            timeout=step.timeout,
        )

    def _item_inputs(self, step: PlanStep) -> bytes | None:
        place = self._place
        sources = tuple(
            each
            for each, edge in zip(ins.sources_of(step, self._steps), step.edges, strict=True)
            if edge.into is not None and edge.at != ("over",)
        )
        if not (sources or place.budget):
            return None
        return ins.encode_inputs(
            ins.Inputs(run=place.run, root=place.root, sources=sources, budget=place.budget)
        )


def node_message(
    app: App,
    job_id: str,
    *,
    hold: Hold,
    queue: str,
    successors: Sequence[Edge] = (),
    run: str | None = None,
    step: str | None = None,
    body: bytes = b"",
) -> Message:
    """A record without a task."""
    envelope = Envelope(v=VERSION, id=job_id, task=NODE_TASK, queue=queue, body=body)
    return Message(
        id=job_id,
        task=NODE_TASK,
        queue=queue,
        envelope=encode_envelope(envelope),
        job_ttl=app.config.job_ttl,
        hold=hold,
        successors=tuple(successors),
        run=run,
        step=step,
    )


def step_headers(
    app: App, step: str, run: str, headers: Mapping[str, Any] | None
) -> dict[str, Any] | None:
    """The headers of a step's message, after the hooks that may add to them."""
    if not app.step_hooks:
        return None if headers is None else dict(headers)
    made = dict(headers or {})
    for hook in app.step_hooks:
        hook(made, run, step)
    return made or None


def _sooner(first: float | None, second: float) -> float:
    return second if first is None else min(first, second)
