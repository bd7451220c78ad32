"""Job records of the memory transport: reading, revoking, completing, waiting, listing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from taskmq.states import JobState
from taskmq.transport.contract import JobRole, parse_completion_token
from taskmq.transport.memory import endings, reopening
from taskmq.transport.memory.records import Record, Where
from taskmq.transport.memory.waiting import Sleeper
from taskmq.transport.types import CompleteResult, JobPage, JobRecord, JobResult, RevokeResult

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from taskmq.transport.memory.store import Store
    from taskmq.transport.types import Completion, ReopenResult

_UNKNOWN = RevokeResult("unknown")
# How many ids are looked up in one hold of the lock while a page is filled.
_CHUNK = 1_000


class MemoryJobs(JobRole):
    """The job role."""

    _store: Store
    _is_closed: bool

    def get_jobs(self, ids: Sequence[str], *, envelopes: bool = False) -> list[JobRecord | None]:
        """Read records."""
        store = self._store
        with store.lock:
            records = store.records
            return [_show(records.get(job_id), envelopes=envelopes) for job_id in ids]

    def get_results(self, ids: Sequence[str]) -> list[JobResult | None]:
        """Read states and results."""
        store = self._store
        with store.lock:
            found = map(store.records.get, ids)
            return [None if it is None else JobResult(it.state, it.result) for it in found]

    def update_meta(self, receipt: str, meta: bytes) -> bool:
        """Replace a held job's meta."""
        store = self._store
        with store.lock:
            record = store.by_receipt.get(receipt)
            if record is None:
                return False
            # Its hooks run after the settlement: a winner, and who asked for the retry, still count.
            if record.receipt != receipt and record.state != JobState.RETRYING:
                return False
            record.meta = meta
            return True

    def revoke(self, ids: Sequence[str], terminate: bool = False) -> list[RevokeResult]:
        """Cancel jobs."""
        store = self._store
        with store.lock:
            now = store.clock.time()
            return [_revoke(store, job_id, now, terminate=terminate) for job_id in ids]

    def complete(self, token: str, completion: Completion) -> CompleteResult:
        """End a parked job from outside."""
        job_id, receipt = parse_completion_token(token)
        store = self._store
        with store.lock:
            record = store.records.get(job_id)
            if record is None:
                return CompleteResult("refused", f"there is no job {job_id}")
            return _complete(store, record, receipt, completion, store.clock.time())

    def reopen(
        self,
        ids: Sequence[str],
        *,
        expect: Mapping[str, int] | None = None,
        descendants: Literal["all", "skipped"] = "all",
    ) -> ReopenResult:
        """Start a new series of ended jobs."""
        store = self._store
        with store.lock:
            return reopening.reopen(
                store, ids, store.clock.time(), expect=expect or {}, descendants=descendants
            )

    def wait_jobs(
        self,
        ids: Sequence[str],
        timeout: float,
        *,
        mode: Literal["any", "all"] = "all",
        waiter: str | None = None,
    ) -> list[JobRecord | None]:
        """Block until jobs have ended."""
        store = self._store
        watched, sleeper = self._fall_asleep(ids, timeout, mode, waiter)
        if sleeper is not None:
            try:
                sleeper.sleep(timeout)
            finally:
                with store.lock:
                    store.bedroom.unwatch(watched, sleeper)
                    if waiter is not None:
                        store.bedroom.leave(waiter, sleeper)
        return self.get_jobs(ids)

    def _fall_asleep(
        self, ids: Sequence[str], timeout: float, mode: Literal["any", "all"], waiter: str | None
    ) -> tuple[list[str], Sleeper | None]:
        store = self._store
        with store.lock:
            open_ids = [
                job_id
                for job_id in dict.fromkeys(ids)
                if (record := store.records.get(job_id)) is not None and record.where != Where.ENDED
            ]
            has_ended = len(open_ids) < len(set(ids))
            is_over = not open_ids or (mode == "any" and has_ended)
            if is_over or timeout <= 0 or self._is_closed:
                return [], None
            if waiter is not None and store.bedroom.take_early(waiter):
                return [], None
            sleeper = Sleeper(self, 1 if mode == "any" else len(open_ids))
            store.bedroom.watch(open_ids, sleeper)
            if waiter is not None:
                store.bedroom.enter(waiter, sleeper)
            return open_ids, sleeper

    def list_jobs(
        self,
        *,
        prefix: str = "",
        states: Sequence[JobState] = (),
        queue: str | None = None,
        task: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
        newest_first: bool = False,
    ) -> JobPage:
        """List records in order of their ids."""
        store = self._store
        with store.lock:
            ids = list(store.records)
        # Sorted without the lock: listing is rare and may take as long as it likes.
        ids = sorted((i for i in ids if i.startswith(prefix)), reverse=newest_first)
        if cursor is not None:
            ids = [i for i in ids if (i < cursor if newest_first else i > cursor)]
        wanted = frozenset(states)
        jobs: list[JobRecord] = []
        for start in range(0, len(ids), _CHUNK):
            with store.lock:
                for job_id in ids[start : start + _CHUNK]:
                    record = store.records.get(job_id)
                    if record is None or not _matches(record, wanted, queue, task):
                        continue
                    if len(jobs) == limit:
                        return JobPage(jobs=jobs, cursor=jobs[-1].id if jobs else cursor)
                    jobs.append(_shown(record, envelopes=False))
        return JobPage(jobs=jobs)


def _matches(
    record: Record, states: frozenset[JobState], queue: str | None, task: str | None
) -> bool:
    return (
        (not states or record.state in states)
        and (queue is None or record.queue == queue)
        and (task is None or record.message.task == task)
    )


def _show(record: Record | None, *, envelopes: bool) -> JobRecord | None:
    return None if record is None else _shown(record, envelopes=envelopes)


def _shown(record: Record, *, envelopes: bool) -> JobRecord:
    message = record.message
    return JobRecord(
        id=record.id,
        task=message.task,
        queue=record.queue,
        state=record.state,
        priority=record.priority,
        attempt=record.attempt,
        deliveries=record.deliveries,
        max_deliveries=message.max_deliveries,
        yields=record.yields,
        series=record.series,
        enqueued_at=record.enqueued_at,
        due_at=record.due_at,
        expires_at=record.expires_at,
        reserved_at=record.reserved_at,
        started_at=record.started_at,
        finished_at=record.finished_at,
        worker=record.worker,
        receipt=record.receipt,
        cancel_requested=record.cancel_requested,
        blocked=record.where == Where.BLOCKED,
        dead=record.dead_number > 0,
        result=record.result,
        result_stored=record.result_stored,
        error=record.error,
        reason=record.reason,
        meta=record.meta,
        key=message.key,
        concurrency_key=message.concurrency_key,
        run=message.run,
        step=message.step,
        successors=message.successors,
        hold=message.hold,
        arrived=len(record.members) if record.members else 0,
        envelope=record.envelope if envelopes else None,
    )


def _revoke(store: Store, job_id: str, now: float, *, terminate: bool) -> RevokeResult:
    record = store.records.get(job_id)
    if record is None:
        return _UNKNOWN
    if record.where == Where.ENDED:
        return RevokeResult("final", record.state)
    record.cancel_requested = True
    if record.where == Where.LEASED:
        session = store.sessions.get(record.worker or "")
        if session is not None and record.receipt is not None:
            session.cancelled.add(record.receipt)
            if terminate:
                session.terminate.add(record.receipt)
            store.bedroom.wake(session.worker)
        return RevokeResult("cancelling", record.state)
    endings.end(store, record, JobState.REVOKED, now, error=endings.REVOKED)
    return RevokeResult("revoked", JobState.REVOKED)


def _complete(
    store: Store, record: Record, receipt: str, completion: Completion, now: float
) -> CompleteResult:
    if record.completed is not None and record.completed[0] == receipt:
        if record.completed[1] == completion:
            return CompleteResult("already")
        return CompleteResult("refused", "it was completed with another outcome before")
    if record.receipt != receipt:
        return CompleteResult("refused", "the token belongs to an earlier delivery of the job")
    if record.where == Where.PARKED:
        return CompleteResult(
            "ok" if endings.complete(store, record, completion, now) else "handed"
        )
    if record.where != Where.LEASED and not record.late:
        return CompleteResult("refused", f"the job has ended {record.state}")
    if record.kept is None:
        record.kept = completion
        return CompleteResult("kept")
    if record.kept == completion:
        return CompleteResult("already")
    return CompleteResult("refused", "it was completed with another outcome before")
