"""Messages go out: `reserve`."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from taskmq.priority import HIGHEST
from taskmq.transport.types import Delivery, ReserveReply
from taskmq_postgres import arrays
from taskmq_postgres.store import Attention, Store, decode_completion, receipt_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskmq.transport.types import ReserveRequest
    from taskmq_postgres.store import Row

_RESERVE = "SELECT * FROM {reserve_1}(%s, %s, %s, %s, %s, %s, %s, %s)"


class Reserving(Store):
    """`reserve`."""

    def reserve(self, request: ReserveRequest) -> ReserveReply:
        """See the contract."""
        names = tuple([share.name for share in request.queues])
        self._queues[request.worker] = names
        token = secrets.token_urlsafe(12)
        parameters = [
            request.worker,
            arrays.texts(names),
            arrays.floats([float(share.weight) for share in request.queues]),
            arrays.floats([request.credits.get(name, 0.0) for name in names]),
            request.limit,
            float(request.lease),
            token,
            HIGHEST if request.max_priority is None else request.max_priority,
        ]
        # Not repeated by itself: what a lost reply had leased would stay unknown to the worker.
        rows = self._ask(_RESERVE, parameters, repeat=False)
        return _reply(request, token, rows)


def _reply(request: ReserveRequest, token: str, rows: Sequence[Row]) -> ReserveReply:
    _, _, _, _, _, head, _, _, now, _, more, _, _, _, next_due_in, *_ = rows[-1]
    deliveries: list[Delivery] = []
    held: list[Row] = []
    credits: dict[str, float] = {}
    for row in rows:
        kind = row[0]
        if kind == "d":
            deliveries.append(_delivery(row, token, now, request.lease))
        elif kind == "a":
            held.append(row)
        elif kind == "c":
            credits[row[4]] = row[14]
    cancelled, terminate = attention([(row[1], row[2], row[5]) for row in held])
    return ReserveReply(
        deliveries=deliveries,
        now=now,
        head=head,
        next_due_in=next_due_in,
        more=bool(more),
        cancelled=cancelled,
        terminate=terminate,
        credits=credits,
    )


def _delivery(row: Row, token: str, now: float, default_lease: float) -> Delivery:
    (
        _, job, job_id, task, queue, priority, envelope, max_deliveries, enqueued_at, lease,
        attempt, deliveries, yields, series, expires_at, meta, outcome, run, step,
    ) = row  # fmt: skip
    return Delivery(
        id=job_id,
        task=task,
        queue=queue,
        priority=priority,
        envelope=envelope,
        receipt=receipt_of(job, token),
        lease=default_lease if lease is None else lease,
        attempt=attempt,
        deliveries=deliveries,
        max_deliveries=max_deliveries,
        yields=yields,
        series=series,
        enqueued_at=enqueued_at,
        reserved_at=now,
        expires_at=expires_at,
        meta=meta,
        outcome=None if outcome is None else decode_completion(outcome),
        run=run,
        step=step,
    )


def attention(rows: Sequence[tuple[Any, Any, Any]]) -> tuple[frozenset[str], frozenset[str]]:
    """The receipts that are cancelled, and those of them to be ended by force."""
    if not rows:
        return frozenset(), frozenset()
    cancelled = frozenset(receipt_of(job, t) for job, t, bits in rows if bits & Attention.CANCEL)
    terminate = frozenset(receipt_of(job, t) for job, t, bits in rows if bits & Attention.TERMINATE)
    return cancelled, terminate
