"""From rows to the records that callers read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from taskmq.states import JobState
from taskmq.transport.types import DeadLetter, Edge, Hold, HoldRule, JobRecord, Payload
from taskmq_postgres.store import Hook, decode_error, receipt_of

if TYPE_CHECKING:
    from taskmq_postgres.store import Row

COLUMNS: Final = 38


def record_of(row: Row, envelope: bytes | None = None) -> JobRecord:
    """The record in a row of the view `records_1`."""
    (
        job, job_id, task, queue, state, priority, attempt, deliveries, max_deliveries,
        yields, series, enqueued_at, due_at, expires_at, reserved_at, started_at,
        finished_at, worker, token, hooks, blocked, dead, result_type, result, error_blob,
        meta, key, concurrency_key, run, step, successors, tolerant, need, arrived,
        rule, tolerate, finish, otherwise,
    ) = row[:COLUMNS]  # fmt: skip
    error = None if error_blob is None else decode_error(error_blob)
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
        due_at=due_at,
        expires_at=expires_at,
        reserved_at=reserved_at,
        started_at=started_at,
        finished_at=finished_at,
        worker=worker,
        receipt=None if token is None else receipt_of(job, token),
        cancel_requested=bool(hooks & Hook.CANCELLED),
        blocked=bool(blocked),
        dead=dead,
        result=None if result_type is None else Payload(result_type, result),
        result_stored=bool(hooks & Hook.RESULT_STORED),
        error=error,
        reason="" if error is None else error.reason,
        meta=meta,
        key=key,
        concurrency_key=concurrency_key,
        run=run,
        step=step,
        successors=tuple(map(Edge, successors, tolerant)) if successors else (),
        hold=None
        if need is None
        else Hold(
            arrivals=need,
            rule=HoldRule(rule),
            tolerate=tolerate,
            finish=finish,
            otherwise=JobState(otherwise),
        ),
        arrived=arrived or 0,
        envelope=envelope,
    )


def letter_of(row: Row) -> DeadLetter:
    """The dead letter in a row of `list_dead_1`."""
    job_id, task, queue, priority, died_at, attempt, deliveries, error_blob, envelope, _ = row
    error = None if error_blob is None else decode_error(error_blob)
    return DeadLetter(
        id=job_id,
        task=task,
        queue=queue,
        priority=priority,
        reason="" if error is None else error.reason,
        died_at=died_at,
        attempt=attempt,
        deliveries=deliveries,
        error=error,
        envelope=envelope,
    )
