"""The types of events that taskmq emits, and what the `data` of each holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class EventType(NamedTuple):
    """What one type of event tells."""

    meaning: str
    data: tuple[str, ...] = ()
    """The names in `Event.data`, those that apply."""


_ERROR = ("error", "message", "reason")

EVENT_TYPES: Mapping[str, EventType] = {
    "task.submitted": EventType("A producer's job was stored.", ("priority",)),
    "task.started": EventType("An attempt is about to run.", ("deliveries",)),
    "task.succeeded": EventType("A job ended SUCCEEDED.", ("duration",)),
    "task.retrying": EventType(
        "An attempt failed; the next is due after `delay`.", ("delay", "duration", *_ERROR)
    ),
    "task.failed": EventType(
        "A job ended FAILED, by its attempt or, with `reason` alone, by maintenance.",
        ("duration", *_ERROR),
    ),
    "task.revoked": EventType("A worker ended a revoked job.", ("duration", *_ERROR)),
    "task.dropped": EventType("A job ended EXPIRED, without having started.", _ERROR),
    "task.deferred": EventType(
        "A job was put off unstarted: rate limit, or a task unknown here.", ("delay", "reason")
    ),
    "task.yielded": EventType("A job was given up unstarted for a more urgent one.", ("delay",)),
    "task.released": EventType(
        "A worker handed a job back; `counted` when it had started.", ("counted",)
    ),
    "task.parked": EventType("An attempt ended and its job is WAITING.", ("duration",)),
    "task.hook_error": EventType(
        "A hook raised; nothing else changes.", ("hook", "error", "message")
    ),
    "workflow.started": EventType("A run was submitted; `job` is its id.", ("workflow", "steps")),
    "workflow.advanced": EventType("A step of a run has ended.", ("workflow", "step", "state")),
    "workflow.succeeded": EventType("A run has ended SUCCEEDED.", ("workflow", "state")),
    "workflow.failed": EventType(
        "A run has ended FAILED, or was cancelled.", ("workflow", "state")
    ),
    "worker.started": EventType("A worker takes jobs.", ("queues", "pool", "concurrency")),
    "worker.stopping": EventType("A worker takes no more jobs.", ("in_flight",)),
    "worker.stopped": EventType("A worker has ended."),
    "worker.thread_abandoned": EventType(
        "A thread goes on after its hard timeout; its slot has a new one.", ("abandoned",)
    ),
    "worker.coroutine_abandoned": EventType(
        "A coroutine ignores that it was cancelled at its hard timeout."
    ),
    "worker.loop_blocked": EventType("A job blocks the event loop of its worker.", ("stack",)),
    "transport.error": EventType("A call to the transport failed.", ("call", "error")),
}
"""The types by name. `duration` and `delay` are seconds, `error` is an exception's type."""
