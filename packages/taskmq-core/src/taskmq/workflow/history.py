"""The history of a run: every attempt that is known, from records, their meta, the ledger and archives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Union

import msgspec

from taskmq._internal.guards import is_list
from taskmq.meta import decode_meta
from taskmq.states import JobState
from taskmq.transport.types import Hold
from taskmq.workflow.inputs import FETCH, is_skipped
from taskmq.workflow.names import CLOSE_TASK, NODE_TASK, RUN_TASK

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from taskmq.app import App
    from taskmq.transport.types import JobRecord

ATTEMPTS = "attempts"
"""The entry of a step's meta that keeps its earlier attempts."""
_KEPT = 50


class HistoryEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One attempt of a step, or one amount spent.

    `outcome` is a job state, or "spent". Times are epoch seconds; `series` counts reopenings from 1.
    """

    step: str
    attempt: int = 1
    series: int = 1
    worker: str = ""
    started_at: Union[float, None] = None
    finished_at: Union[float, None] = None
    outcome: str = ""
    error: str = ""
    cost: float = 0.0
    labels: dict[str, Any] = {}


class _Earlier(msgspec.Struct, frozen=True, array_like=True):
    """A failed attempt, as the meta of its step keeps it."""

    attempt: int
    worker: str
    started_at: float
    finished_at: float
    error: str
    series: int = 1


def read_history(app: App, run: str) -> list[HistoryEntry]:
    """All that is known of a run's attempts, in order of time."""
    from taskmq.workflow.inputs import load_plan
    from taskmq.workflow.ledger import read
    from taskmq.workflow.status import step_records

    entries: list[HistoryEntry] = []
    seen: set[str] = set()
    plan = load_plan(app, run)
    own = [record for record in step_records(app, plan, run).values() if record is not None]
    for record in (*own, *_records(app, run)):
        if record.id in seen:
            continue
        seen.add(record.id)
        if record.task == NODE_TASK and record.id.rpartition("::")[2].startswith("history."):
            entries += _archived(app, record)
        else:
            entries += _of_record(record, run)
    if plan.budget is not None:
        for line in read(app, run):
            if line.entry.cost:
                entries.append(
                    HistoryEntry(
                        step=_name(line.entry.ref.partition("#")[0], run),
                        worker=line.entry.worker,
                        started_at=line.entry.at,
                        outcome="spent",
                        cost=line.entry.cost,
                        labels=line.entry.labels,
                    )
                )
    # An archive and a record may both know of an attempt.
    distinct = {
        (each.step, each.series, each.attempt, each.outcome, each.started_at): each
        for each in entries
    }
    return sorted(distinct.values(), key=lambda each: each.started_at or each.finished_at or 0.0)


def archive(app: App, run: str, records: Iterable[JobRecord | None]) -> None:
    """Keep what is known of these attempts: reopening their records forgets it."""
    from taskmq.ids import new_id
    from taskmq.workflow.messages import node_message

    entries: list[HistoryEntry] = []
    root = run
    for record in records:
        if record is not None and record.state.is_final:
            entries += _of_record(record, run)
            root = record.run or root
    for start in range(0, len(entries), FETCH):
        app.transport.enqueue(
            [
                node_message(
                    app,
                    f"{run}::history.{new_id()}",
                    hold=Hold(arrivals=0, finish=True),
                    queue="taskmq:history",
                    run=root,
                    body=_encoder.encode(entries[start : start + FETCH]),
                )
            ]
        )


def note_attempt(meta: dict[str, Any], entry: HistoryEntry) -> None:
    """Keep a failed attempt in the meta of a step that is tried again."""
    known = meta.get(ATTEMPTS)
    entries: list[Any] = [*known] if is_list(known) else []
    made = _Earlier(
        attempt=entry.attempt,
        worker=entry.worker,
        started_at=entry.started_at or 0.0,
        finished_at=entry.finished_at or 0.0,
        error=entry.error[:300],
        series=entry.series,
    )
    entries.append(msgspec.to_builtins(made))
    meta[ATTEMPTS] = entries[-_KEPT:]


def _records(app: App, run: str) -> Iterator[JobRecord]:
    cursor: str | None = None
    while True:
        page = app.transport.list_jobs(prefix=f"{run}::", limit=FETCH, cursor=cursor)
        yield from page.jobs
        cursor = page.cursor
        if cursor is None:
            return


def _of_record(record: JobRecord, run: str) -> Iterator[HistoryEntry]:
    if record.task in (NODE_TASK, RUN_TASK, CLOSE_TASK):
        return
    name = _name(record.id, run) if record.id.startswith(f"{run}::") else record.step or record.id
    for earlier in _earlier(record):
        yield HistoryEntry(
            step=name,
            attempt=earlier.attempt,
            series=earlier.series,
            worker=earlier.worker,
            started_at=earlier.started_at,
            finished_at=earlier.finished_at,
            outcome=JobState.RETRYING.value,
            error=earlier.error,
        )
    if record.state in (JobState.PENDING, JobState.QUEUED, JobState.RETRYING):
        return
    outcome = JobState.SKIPPED.value if is_skipped(record) else record.state.value
    error = record.error
    yield HistoryEntry(
        step=name,
        attempt=record.attempt,
        series=record.series,
        worker=record.worker or "",
        started_at=record.started_at or record.reserved_at,
        finished_at=record.finished_at,
        outcome=outcome,
        error="" if error is None else (error.message or error.reason)[:300],
    )


def _earlier(record: JobRecord) -> list[_Earlier]:
    try:
        return msgspec.convert(decode_meta(record.meta).get(ATTEMPTS, []), list[_Earlier])
    except msgspec.ValidationError:
        # Meta is the task's own to write, this entry too.
        return []


def _archived(app: App, record: JobRecord) -> list[HistoryEntry]:
    from taskmq.protocol.envelope import decode_envelope

    found = app.transport.get_jobs([record.id], envelopes=True)[0]
    if found is None or found.envelope is None:
        return []
    return _decoder.decode(decode_envelope(found.envelope).body)


def _name(job_id: str, run: str) -> str:
    return job_id[len(run) + 2 :] if job_id.startswith(f"{run}::") else job_id


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[HistoryEntry])
