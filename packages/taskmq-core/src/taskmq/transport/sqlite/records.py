"""From rows to the records that callers read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from taskmq.states import JobState
from taskmq.transport.sqlite.schema import Hook, Phase
from taskmq.transport.sqlite.step import decode_error, extra_of
from taskmq.transport.types import DeadLetter, JobRecord, Payload

if TYPE_CHECKING:
    from taskmq.transport.sqlite.database import Row

RECORD: Final = (
    "id, task, queue, state, priority, attempt, deliveries, max_deliveries, yields, series, "
    "enqueued_at, expires_at, reserved_at, started_at, finished_at, worker, receipt, hooks, "
    "phase, rank, result_type, result, error, meta, concurrency_key, "
    "run, step, extra, need, arrived"
)
ENVELOPE: Final = "coalesce(envelope, (SELECT e.envelope FROM envelopes e WHERE e.seq = jobs.seq))"


def record_of(row: Row, envelope: bytes | None = None) -> JobRecord:
    """The record in a row of `RECORD`."""
    (
        job_id, task, queue, state, priority, attempt, deliveries, max_deliveries, yields, series,
        enqueued_at, expires_at, reserved_at, started_at, finished_at, worker, receipt, hooks,
        phase, rank, result_type, result, error_blob, meta, concurrency_key,
        run, step, extra_blob, need, arrived,
    ) = row[:30]  # fmt: skip
    extra = extra_of(extra_blob)
    error = None if error_blob is None else decode_error(error_blob)
    hold = extra.hold
    if hold is not None and need is not None and need != hold.arrivals:
        hold = type(hold)(
            arrivals=need, rule=hold.rule, tolerate=hold.tolerate, finish=hold.finish,
            otherwise=hold.otherwise,
        )  # fmt: skip
    return JobRecord(
        id=job_id,
        task=task,
        queue=queue,
        state=JobState(state),
        priority=priority,
        attempt=attempt,
        deliveries=deliveries,
        max_deliveries=max_deliveries,
        yields=yields,
        series=series,
        enqueued_at=enqueued_at,
        due_at=rank if phase == Phase.DELAYED else None,
        expires_at=expires_at,
        reserved_at=reserved_at,
        started_at=started_at,
        finished_at=finished_at,
        worker=worker,
        receipt=receipt,
        cancel_requested=bool(hooks & Hook.CANCELLED),
        blocked=phase == Phase.BLOCKED,
        dead=phase == Phase.DEAD,
        result=None if result_type is None else Payload(result_type, result),
        result_stored=bool(hooks & Hook.RESULT_STORED),
        error=error,
        reason="" if error is None else error.reason,
        meta=meta,
        key=extra.key,
        concurrency_key=concurrency_key,
        run=run,
        step=step,
        successors=extra.successors,
        hold=hold,
        arrived=arrived or 0,
        envelope=envelope,
    )


LETTER: Final = f"id, task, queue, priority, rank, attempt, deliveries, error, {ENVELOPE}, seq"


def letter_of(row: Row) -> DeadLetter:
    """The dead letter in a row of `LETTER`."""
    job_id, task, queue, priority, rank, attempt, deliveries, error_blob, envelope, _ = row
    error = None if error_blob is None else decode_error(error_blob)
    return DeadLetter(
        id=job_id,
        task=task,
        queue=queue,
        priority=priority,
        reason="" if error is None else error.reason,
        died_at=rank,
        attempt=attempt,
        deliveries=deliveries,
        error=error,
        envelope=envelope or b"",
    )
