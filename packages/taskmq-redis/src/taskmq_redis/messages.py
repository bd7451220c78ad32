"""Messages as the scripts take them: what every one has by place, what is rare by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from taskmq.errors import LeaseLost
from taskmq.transport.contract import MessageRole
from taskmq.transport.types import Enqueued
from taskmq_redis.store import Store, encode, micros

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskmq.transport.types import Fence, Message


_PLAIN: Final = 6
"""How many words a message without rare fields has."""


class Enqueuing(Store, MessageRole):
    """The part of the message role that producers use."""

    def enqueue(self, messages: Sequence[Message], *, fence: Fence | None = None) -> list[Enqueued]:
        """See the contract."""
        if not messages and fence is None:
            return []
        if len(messages) == 1 and fence is None:
            row = words(messages[0])
            if len(row) == _PLAIN:
                status = self._call("enqueue_one", *row)
                return [Enqueued(messages[0].id, status.decode())]
        held = False if fence is None else [fence.lease, fence.token]
        answers = self._call("enqueue", [words(message) for message in messages], held)
        if fence is not None and answers == b"fenced":
            raise LeaseLost(
                f"token {fence.token} of the lease {fence.lease!r} is outdated, nothing was "
                f"enqueued; acquire the lease again"
            )
        return [Enqueued(job_id.decode(), status.decode()) for job_id, status in answers]


def words(message: Message) -> list[Any]:
    """One message: {id, task, queue, priority, envelope, job_ttl, rare}."""
    base: list[Any] = [
        message.id,
        message.task,
        message.queue,
        message.priority,
        message.envelope,
        micros(message.job_ttl),
    ]
    rare = _rare(message)
    if rare:
        base.append(rare)
    return base


def _rare(message: Message) -> dict[str, Any] | None:
    """The fields that few messages have; the names are those of the record's hash."""
    if (
        message.key is None
        and message.delay is None
        and message.eta is None
        and message.expires is None
        and message.lease is None
        and message.concurrency_key is None
        and message.hold is None
        and message.run is None
        and message.step is None
        and message.guard is None
        and message.max_deliveries == 5
        and message.max_yields == 100
        and not message.successors
        and not message.external
    ):
        return None
    rare: dict[str, Any] = {
        "pl": _is_plain_step(message) or None,
        "de": _micros(message.delay),
        "eta": _micros(message.eta),
        "ex": _micros(message.expires),
        "ls": _micros(message.lease),
        "md": None if message.max_deliveries == 5 else message.max_deliveries,
        "my": None if message.max_yields == 100 else message.max_yields,
        "g": message.guard,
        "ru": message.run,
        "sp": message.step,
        "xt": message.external or None,
    }
    if message.key is not None:
        rare |= {"k": message.key, "kt": micros(message.key_ttl), "ks": message.key_scope}
    if message.concurrency_key is not None:
        rare |= {"c": message.concurrency_key, "cl": message.concurrency_limit}
    if message.hold is not None:
        rare |= {"hd": encode(message.hold), "nd": message.hold.arrivals}
    if message.successors:
        rare["su"] = encode([(edge.to, edge.tolerate) for edge in message.successors])
    return {name: value for name, value in rare.items() if value is not None}


def _is_plain_step(message: Message) -> bool:
    """Whether it is stored as a plain job is, with its place in a run beside: an item of a map is."""
    return (
        message.key is None
        and message.delay is None
        and message.eta is None
        and message.expires is None
        and message.lease is None
        and message.concurrency_key is None
        and message.hold is None
        and message.max_deliveries == 5
        and message.max_yields == 100
        and not message.external
    )


def _micros(value: float | None) -> int | None:
    return None if value is None else micros(value)
