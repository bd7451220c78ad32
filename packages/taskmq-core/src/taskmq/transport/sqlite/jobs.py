"""Job records: reading, waiting, revoking, completing, reopening."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal

from taskmq.states import JobState
from taskmq.transport.contract import parse_completion_token
from taskmq.transport.sqlite.completion import apply_completion
from taskmq.transport.sqlite.endings import Job, end, find_job
from taskmq.transport.sqlite.records import ENVELOPE, RECORD, record_of
from taskmq.transport.sqlite.reopening import reopen
from taskmq.transport.sqlite.schema import Attention, Hook, Phase
from taskmq.transport.sqlite.settle import seq_of
from taskmq.transport.sqlite.step import encode_list
from taskmq.transport.sqlite.store import Store
from taskmq.transport.sqlite.wakeup import worker_topic
from taskmq.transport.types import ErrorInfo, JobPage, JobResult, Payload, RevokeResult

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from taskmq.transport.sqlite.step import Step
    from taskmq.transport.types import (
        CompleteResult,
        Completion,
        JobRecord,
        ReopenResult,
    )

_LAST_CHARACTER = "\U0010ffff"


_META_OF_RETRY = """UPDATE jobs SET meta = ?1 WHERE seq = ?2 AND state = 'RETRYING' AND ?3 = (
    SELECT receipt FROM spent WHERE receipt >= ?2 || '-' AND receipt < ?2 || '.' ORDER BY until DESC LIMIT 1
)"""


class Jobs(Store):
    """The role of job records."""

    def get_jobs(self, ids: Sequence[str], *, envelopes: bool = False) -> list[JobRecord | None]:
        """See the contract."""
        columns = f"{RECORD}, {ENVELOPE}" if envelopes else RECORD
        if len(ids) == 1:
            rows = self._database.query(f"SELECT {columns} FROM jobs WHERE id = ?", (ids[0],))
        else:
            rows = self._database.query(
                f"SELECT {columns} FROM jobs WHERE id IN (SELECT value FROM json_each(?))",
                (encode_list(list(ids)).decode(),),
            )
        found = {row[0]: record_of(row, row[30] if envelopes else None) for row in rows}
        return [found.get(job_id) for job_id in ids]

    def get_results(self, ids: Sequence[str]) -> list[JobResult | None]:
        """See the contract."""
        rows = self._database.query(
            "SELECT id, state, result_type, result FROM jobs "
            "WHERE id IN (SELECT value FROM json_each(?))",
            (encode_list(list(ids)).decode(),),
        )
        found = {
            job_id: JobResult(JobState(state), None if kind is None else Payload(kind, data))
            for job_id, state, kind, data in rows
        }
        return [found.get(job_id) for job_id in ids]

    def update_meta(self, receipt: str, meta: bytes) -> bool:
        """See the contract."""
        with self._step() as step:
            seq = seq_of(receipt)
            changed = step.con.execute(
                "UPDATE jobs SET meta = ? WHERE seq = ? AND receipt = ?", (meta, seq, receipt)
            ).rowcount
            # A retry took the receipt off the row: the last one that was spent on it still counts.
            return (
                changed > 0 or step.con.execute(_META_OF_RETRY, (meta, seq, receipt)).rowcount > 0
            )

    def revoke(self, ids: Sequence[str], terminate: bool = False) -> list[RevokeResult]:
        """See the contract."""
        with self._step() as step:
            return [_revoke(step, find_job(step, job_id), terminate=terminate) for job_id in ids]

    def complete(self, token: str, completion: Completion) -> CompleteResult:
        """See the contract."""
        job_id, receipt = parse_completion_token(token)
        with self._step() as step:
            return apply_completion(step, find_job(step, job_id), receipt, completion)

    def reopen(
        self,
        ids: Sequence[str],
        *,
        expect: Mapping[str, int] | None = None,
        descendants: Literal["all", "skipped"] = "all",
    ) -> ReopenResult:
        """See the contract."""
        with self._step() as step:
            return reopen(step, ids, expect or {}, descendants)

    def wait_jobs(
        self,
        ids: Sequence[str],
        timeout: float,
        *,
        mode: Literal["any", "all"] = "all",
        waiter: str | None = None,
    ) -> list[JobRecord | None]:
        """See the contract."""
        deadline = time.monotonic() + timeout
        pending = self._pending(ids)
        if pending and not (mode == "any" and len(pending) < len(set(ids))):
            rows = list(pending.values())

            def look() -> bool:
                left = self._left(rows)
                if mode == "all":
                    rows[:] = left
                    return not left
                return len(left) < len(rows)

            self._board.wait_rows(waiter or _ANONYMOUS, rows, look, deadline)
        return self.get_jobs(ids)

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
        """See the contract."""
        conditions = ["id >= ?", "id < ?"]
        bound: list[Any] = [prefix, prefix + _LAST_CHARACTER]
        for condition, value in (
            ("id < ?" if newest_first else "id > ?", cursor),
            ("queue = ?", queue),
            ("task = ?", task),
        ):
            if value is not None:
                conditions.append(condition)
                bound.append(value)
        if states:
            conditions.append(f"state IN ({', '.join('?' * len(states))})")
            bound += [JobState(state).value for state in states]
        rows = self._database.query(
            f"SELECT {RECORD} FROM jobs WHERE {' AND '.join(conditions)} "
            f"ORDER BY id{' DESC' if newest_first else ''} LIMIT ?",
            (*bound, limit + 1),
        )
        jobs = [record_of(row) for row in rows[:limit]]
        return JobPage(jobs=jobs, cursor=jobs[-1].id if len(rows) > limit and jobs else None)

    def _pending(self, ids: Sequence[str]) -> dict[str, int]:
        """The rows of those that have not ended. An unknown one counts as ended."""
        rows = self._database.query(
            "SELECT id, seq FROM jobs WHERE id IN (SELECT value FROM json_each(?)) "
            "AND phase BETWEEN 1 AND 9",
            (encode_list(list(ids)).decode(),),
        )
        return dict(rows)

    def _left(self, rows: Sequence[int]) -> list[int]:
        found = self._database.query(
            "SELECT seq FROM jobs WHERE seq IN (SELECT value FROM json_each(?)) "
            "AND phase BETWEEN 1 AND 9",
            (encode_list(rows).decode(),),
        )
        return [row[0] for row in found]


_ANONYMOUS = "\0waiting for jobs"


def _revoke(step: Step, job: Job | None, *, terminate: bool) -> RevokeResult:
    if job is None:
        return RevokeResult("unknown")
    if job.phase in (Phase.ENDED, Phase.DEAD):
        return RevokeResult("final", JobState(job.state))
    if job.phase in (Phase.LEASED, Phase.ACKNOWLEDGED):
        attention = Attention.CANCEL | (Attention.TERMINATE if terminate else 0)
        step.con.execute(
            "UPDATE jobs SET hooks = hooks | ?, attention = coalesce(attention, 0) | ? WHERE seq = ?",
            (Hook.CANCELLED, attention, job.seq),
        )
        if job.worker is not None:
            step.add_ready(worker_topic(job.worker))
        return RevokeResult("cancelling", JobState.RUNNING)
    error = ErrorInfo(reason="revoked", message="it was revoked before it ran")
    end(step, job, JobState.REVOKED, error=error)
    return RevokeResult("revoked", JobState.REVOKED)
