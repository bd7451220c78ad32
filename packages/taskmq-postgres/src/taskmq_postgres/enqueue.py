"""Messages go in: the columns of a batch, built in Python, inserted by one call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import psycopg

from taskmq.errors import LeaseLost, TransportUnavailable
from taskmq.transport.types import Enqueued
from taskmq_postgres import arrays
from taskmq_postgres.faults import Fault, held_keys, judge
from taskmq_postgres.store import Hook, Store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskmq.transport.types import Fence, Hold, Message
    from taskmq_postgres.store import Row

ENQUEUE = "SELECT * FROM {enqueue_1}(" + ", ".join(["%s"] * 30) + ")"
ENQUEUE_ONE = "SELECT {enqueue_one_1}(" + ", ".join(["%s"] * 12) + ")"
_MANY = 500
"""From so many on a call may take longer than others."""
_RARE = 16
"""How many columns only rare messages need."""
_OF_HOLDS = 5
"""How many of them only held ones."""


class Enqueuing(Store):
    """`enqueue`."""

    def enqueue(self, messages: Sequence[Message], *, fence: Fence | None = None) -> list[Enqueued]:
        """See the contract."""
        if not messages:
            return []
        if len(messages) == 1 and fence is None and not is_rare(messages[0]):
            created = self._ask(ENQUEUE_ONE, one_parameters(messages[0]))[0][0]
            return [Enqueued(messages[0].id, "created" if created else "exists")]
        parameters = enqueue_parameters(messages, fence)
        try:
            rows = self._ask(ENQUEUE, parameters, long=len(messages) > _MANY)
        except TransportUnavailable as error:
            raise self._named(error, messages) from error.__cause__
        return enqueued(messages, rows, fence)

    def _named(
        self, error: TransportUnavailable, messages: Sequence[Message]
    ) -> TransportUnavailable:
        """The error, naming the keys when it was waiting that took too long."""
        cause = error.__cause__
        keys = keys_of(messages)
        if not keys or not isinstance(cause, psycopg.Error) or judge(cause) is not Fault.SLOW:
            return error
        return held_keys(self._database.settings, keys, cause)


def keys_of(messages: Sequence[Message]) -> list[str]:
    """The idempotency keys of a batch, each once."""
    return list(dict.fromkeys(m.key for m in messages if m.key is not None))


def one_parameters(message: Message, *, foreign: bool = False) -> list[Any]:
    """The parameters of `ENQUEUE_ONE`, for a message that is not rare."""
    return [
        message.id,
        message.task,
        message.queue,
        message.priority,
        message.envelope,
        message.max_deliveries,
        message.job_ttl,
        message.delay,
        message.eta,
        message.expires,
        message.lease,
        foreign,
    ]


def enqueue_parameters(
    messages: Sequence[Message], fence: Fence | None = None, *, foreign: bool = False
) -> list[Any]:
    """The parameters of `ENQUEUE`. `foreign` says that the transaction is the caller's."""
    return [
        arrays.texts([m.id for m in messages]),
        arrays.texts([m.task for m in messages]),
        arrays.texts([m.queue for m in messages]),
        arrays.smallints([m.priority for m in messages]),
        arrays.blobs([m.envelope for m in messages]),
        arrays.ints([m.max_deliveries for m in messages]),
        arrays.floats([m.job_ttl for m in messages]),
        arrays.some_floats([m.delay for m in messages]),
        arrays.some_floats([m.eta for m in messages]),
        arrays.some_floats([m.expires for m in messages]),
        arrays.some_floats([m.lease for m in messages]),
        *(_rare_columns(messages) if any(map(is_rare, messages)) else [None] * _RARE),
        None if fence is None else fence.lease,
        None if fence is None else fence.token,
        foreign,
    ]


def enqueued(
    messages: Sequence[Message], rows: Sequence[Row], fence: Fence | None = None
) -> list[Enqueued]:
    """The answers, from the rows about those that were not created.

    Raises:
        LeaseLost: The fence held everything up.
    """
    answers = [Enqueued(message.id, "created") for message in messages]
    for n, status, job_id in rows:
        if fence is not None and status == "fenced":
            raise LeaseLost(
                f"the lease {fence.lease!r} is no longer held under token {fence.token}: "
                f"nothing was enqueued"
            )
        known: Literal["exists", "duplicate"] = status
        answers[n - 1] = Enqueued(job_id, known)
    return answers


def is_rare(message: Message) -> bool:
    """Whether a message has more than routing, times and a body."""
    return (
        message.key is not None
        or message.concurrency_key is not None
        or message.hold is not None
        or message.run is not None
        or message.step is not None
        or message.guard is not None
        or message.external
        or message.max_yields != 100
        or bool(message.successors)
    )


def _rare_columns(messages: Sequence[Message]) -> list[Any]:
    holds = [m.hold for m in messages]
    ends = [m.successors for m in messages]
    return [
        arrays.ints([_hooks(m) for m in messages]),
        arrays.some_texts([m.run for m in messages]),
        arrays.some_texts([m.step for m in messages]),
        arrays.some_texts([m.key for m in messages]),
        arrays.floats([m.key_ttl for m in messages]),
        arrays.some_texts([m.concurrency_key for m in messages]),
        arrays.ints([m.concurrency_limit for m in messages]),
        arrays.ints([m.max_yields for m in messages]),
        arrays.some_texts([m.guard for m in messages]),
        *(_hold_columns(holds) if any(holds) else [None] * _OF_HOLDS),
        arrays.some_texts([arrays.literal([edge.to for edge in edges]) for edges in ends]),
        arrays.some_texts(
            [arrays.literal(["ft"[edge.tolerate] for edge in edges]) for edges in ends]
        ),
    ]


def _hold_columns(holds: Sequence[Hold | None]) -> list[Any]:
    return [
        arrays.ints([None if hold is None else hold.arrivals for hold in holds]),
        arrays.texts([None if hold is None else hold.rule.value for hold in holds]),
        arrays.ints([None if hold is None else hold.tolerate for hold in holds]),
        arrays.bools([None if hold is None else hold.finish for hold in holds]),
        arrays.texts([None if hold is None else hold.otherwise.value for hold in holds]),
    ]


def _hooks(message: Message) -> int:
    hooks = Hook.SUCCESSORS if message.successors else 0
    if message.concurrency_key is not None:
        hooks |= Hook.CONCURRENCY
    if message.run is not None:
        hooks |= Hook.RUN
    if message.hold is not None:
        hooks |= Hook.HOLD
    if message.external:
        hooks |= Hook.EXTERNAL
    if message.key is not None:
        hooks |= Hook.KEY
        if message.key_scope == "until_start":
            hooks |= Hook.KEY_UNTIL_START
        elif message.key_scope == "until_end":
            hooks |= Hook.KEY_UNTIL_END
    return hooks
