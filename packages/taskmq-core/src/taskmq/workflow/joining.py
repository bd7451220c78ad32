"""Adding to what an open join waits for, while it waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from taskmq.errors import TaskError
from taskmq.protocol.envelope import decode_envelope, encode_envelope
from taskmq.transport.types import Edge, Expect
from taskmq.workflow.inputs import load_plan
from taskmq.workflow.planner import job_ids

if TYPE_CHECKING:
    from taskmq.context import TaskContext
    from taskmq.protocol.envelope import Envelope
    from taskmq.transport.types import Message


def joined(
    context: TaskContext, own: Envelope, join: str, message: Message, number: int
) -> tuple[Message, Expect]:
    """A job that a join waits for besides, and by how much it waits for more.

    Raises:
        TaskError: There is no such join, it is not open, or does not depend on this step.
    """
    if context.run is None or context.step is None:
        raise TaskError("add_to_join works in a step of a run")
    run = (
        own.id[: -len(f"::{context.step}")] if own.id.endswith(f"::{context.step}") else context.run
    )
    plan = load_plan(context.app, run)
    ids = job_ids(plan, run)
    target = next((step for step in plan.steps if step.name == join), None)
    if target is None or not target.open:
        raise TaskError(f"run {run} has no join {join!r} that was declared with open=True")
    if context.step not in target.sources:
        raise TaskError(
            f"join {join!r} does not depend on step {context.step!r}, so it may have started: let it"
        )
    job_id = f"{ids[join]}+{context.step}.{number:04d}"
    if context.series > 1:
        job_id += f"~{context.series}"
    envelope = decode_envelope(message.envelope)
    envelope.id, envelope.run, envelope.step = (
        job_id,
        context.run,
        f"{join}+{context.step}.{number}",
    )
    made = replace(
        message,
        id=job_id,
        envelope=encode_envelope(envelope),
        successors=(Edge(ids[join]),),
        guard=run,
        run=context.run,
        step=envelope.step,
        key=None,
    )
    return made, Expect(to=ids[join], more=1)
