"""Reserving: one call leases a whole batch."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from taskmq.transport.contract import MessageRole
from taskmq.transport.types import Delivery, ReserveReply
from taskmq_redis.store import (
    HEADS,
    Store,
    decode_completion,
    micros,
    read_fixed,
    receipt_of,
    seconds,
    shown_receipt,
    split_receipt,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskmq.transport.types import QueueShare, ReserveRequest

NONE: Final[frozenset[str]] = frozenset()
_TOKEN_BYTES: Final = 12
_CHARS: Final = 2 * _TOKEN_BYTES
_PLAIN: Final = (5, 7)
"""How many words the delivery of a plain job has, and that of a plain step."""


class Reserving(Store, MessageRole):
    """The part of the message role by which workers get deliveries."""

    def reserve(self, request: ReserveRequest) -> ReserveReply:
        """See the contract. Not repeated when its reply is lost: the caller reclaims."""
        shares = request.queues
        names = self._names(request.worker, shares)
        reply = self._call(
            "reserve",
            request.worker,
            names,
            [share.weight for share in shares],
            request.limit,
            micros(request.lease),
            {name: value for name, value in request.credits.items() if value},
            False if request.max_priority is None else request.max_priority,
            _tokens(request.limit),
            repeat=False,
        )
        now = seconds(reply[0])
        cancelled, terminate = cancellations(reply[2])
        return ReserveReply(
            deliveries=[_delivery(row, names, request.lease, now) for row in reply[3]],
            now=now,
            head=priority(reply[1]),
            next_due_in=seconds(reply[4]) if reply[4] else None,
            more=bool(reply[5]),
            cancelled=cancelled,
            terminate=terminate,
            credits=_credits(reply[6], request),
        )

    def reclaim(self, worker: str, keep: Sequence[str]) -> int:
        """See the contract."""
        known = [f"{token}-{job_id}" for job_id, token in map(split_receipt, keep)]
        given, rank = 0, 0
        while rank >= 0:
            some, rank = self._call("reclaim", worker, known, rank)
            given += some
        return given

    def _names(self, worker: str, shares: tuple[QueueShare, ...]) -> tuple[str, ...]:
        names = tuple(share.name for share in shares)
        if len(names) <= HEADS and self._queues.get(worker) != names:
            self._queues[worker] = names
        return names


def _tokens(count: int) -> list[str]:
    """Receipts that were never given out and can't be guessed."""
    if count <= 0:
        return []
    text = os.urandom(_TOKEN_BYTES * count).hex()
    return [text[at : at + _CHARS] for at in range(0, _CHARS * count, _CHARS)]


def priority(value: Any) -> int | None:
    """A head as the scripts write it: a number, or nothing."""
    return None if value == b"" else int(value)


def cancellations(flat: Sequence[bytes]) -> tuple[frozenset[str], frozenset[str]]:
    """The held receipts whose job is revoked, and those among them to be ended by force."""
    if not flat:
        return NONE, NONE
    found = {shown_receipt(text): how for text, how in zip(flat[::2], flat[1::2], strict=True)}
    return frozenset(found), frozenset(receipt for receipt, how in found.items() if how == b"2")


def _credits(flat: Sequence[bytes] | int, request: ReserveRequest) -> dict[str, float]:
    if isinstance(flat, int):
        # Nobody's share was touched.
        return dict(request.credits)
    return {name.decode(): float(value) for name, value in zip(flat[::2], flat[1::2], strict=True)}


def _delivery(row: list[Any], names: tuple[str, ...], lease: float, now: float) -> Delivery:
    job_id = row[0].decode()
    if len(row) in _PLAIN:
        number: int
        _, number, envelope, token, fixed, *place = row
        at, level, _, task = read_fixed(fixed)
        return Delivery(
            id=job_id,
            task=task,
            queue=names[number],
            priority=level,
            envelope=envelope,
            receipt=receipt_of(token, job_id),
            lease=lease,
            enqueued_at=at,
            reserved_at=now,
            run=place[0].decode() or None if place else None,
            step=place[1].decode() or None if place else None,
        )
    queue: int
    (_, task, queue, level, envelope, token, attempt, deliveries, at, own_lease) = row[:10]
    most, yields, series, expires, cancelled, meta, outcome, run, step = row[10:]
    return Delivery(
        id=job_id,
        task=task.decode(),
        queue=names[queue],
        priority=level,
        envelope=envelope,
        receipt=receipt_of(token, job_id),
        lease=seconds(own_lease),
        attempt=int(attempt),
        deliveries=int(deliveries),
        max_deliveries=int(most or 5),
        yields=int(yields or 0),
        series=int(series or 1),
        enqueued_at=seconds(at),
        reserved_at=now,
        expires_at=seconds(expires) if expires else None,
        cancel_requested=bool(cancelled),
        meta=meta or None,
        outcome=decode_completion(outcome) if outcome else None,
        run=run.decode() or None,
        step=step.decode() or None,
    )
