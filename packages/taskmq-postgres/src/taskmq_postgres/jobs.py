"""Job records: reading, revoking, completing, reopening."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from taskmq.states import JobState
from taskmq.transport.contract import parse_completion_token
from taskmq.transport.types import (
    CompleteResult,
    JobPage,
    JobResult,
    Payload,
    ReopenResult,
    RevokeResult,
)
from taskmq_postgres import arrays
from taskmq_postgres.records import record_of
from taskmq_postgres.store import Store, encode, split_receipt

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from taskmq.transport.types import Completion, JobRecord

_GET = "SELECT * FROM {get_jobs_1}(%s)"
_RESULTS = "SELECT * FROM {get_results_1}(%s)"
_ENVELOPES = "SELECT * FROM {get_envelopes_1}(%s)"
_LIST = "SELECT * FROM {list_jobs_1}(%s, %s, %s, %s, %s, %s, %s)"
_STATES = {str(state.value): state for state in JobState}
_LAST_CHARACTER = "\U0010ffff"
_REOPEN = "SELECT * FROM {reopen_1}(%s, %s, %s, %s, NULL, NULL, false)"
_COMPLETE = "SELECT * FROM {complete_1}(%s, %s, %s, %s, %s, %s, %s, %s)"


class Jobs(Store):
    """The role of job records."""

    def get_jobs(self, ids: Sequence[str], *, envelopes: bool = False) -> list[JobRecord | None]:
        """See the contract."""
        if not ids:
            return []
        bound = [arrays.texts(ids)]
        rows = self._ask(_GET, bound)
        bodies: dict[str, bytes] = dict(self._ask(_ENVELOPES, bound)) if envelopes else {}
        found = {row[1]: record_of(row, bodies.get(row[1])) for row in rows}
        return [found.get(job_id) for job_id in ids]

    def get_results(self, ids: Sequence[str]) -> list[JobResult | None]:
        """See the contract."""
        if not ids:
            return []
        found: dict[str, JobResult] = {
            job_id: JobResult(_STATES[state], None if kind is None else Payload(kind, data))
            for job_id, state, kind, data in self._ask(_RESULTS, [arrays.texts(ids)])
        }
        return [found.get(job_id) for job_id in ids]

    def update_meta(self, receipt: str, meta: bytes) -> bool:
        """See the contract."""
        number, token = split_receipt(receipt)
        rows = self._ask("SELECT {update_meta_1}(%s, %s, %s)", [number, token, meta])
        return bool(rows[0][0])

    def revoke(self, ids: Sequence[str], terminate: bool = False) -> list[RevokeResult]:
        """See the contract."""
        rows = self._work("SELECT * FROM {revoke_1}(%s, %s)", [arrays.texts(ids), terminate])
        return [
            RevokeResult(status, None if state is None else JobState(state))
            for _, status, state in sorted(rows)
        ]

    def complete(self, token: str, completion: Completion) -> CompleteResult:
        """See the contract."""
        job_id, receipt = parse_completion_token(token)
        _, text = split_receipt(receipt)
        result = completion.result
        rows = self._work(
            _COMPLETE,
            [
                job_id,
                text,
                encode(completion),
                completion.state,
                None if result is None else result.content_type,
                None if result is None else result.data,
                None if completion.error is None else encode(completion.error),
                completion.retryable,
            ],
        )
        status, reason = rows[0]
        return CompleteResult(status, reason)

    def reopen(
        self,
        ids: Sequence[str],
        *,
        expect: Mapping[str, int] | None = None,
        descendants: Literal["all", "skipped"] = "all",
    ) -> ReopenResult:
        """See the contract."""
        expected = expect or {}
        rows = self._work(
            _REOPEN,
            [
                arrays.texts(ids),
                arrays.texts(list(expected)),
                arrays.ints(list(expected.values())),
                descendants == "all",
            ],
        )
        status, reopened, reason = rows[0]
        return ReopenResult(status=status, reopened=tuple(reopened), reason=reason)

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
        first = prefix
        # Ids are compared by code points; the greatest of them closes the range.
        before = prefix + _LAST_CHARACTER if prefix else None
        if cursor is not None and newest_first:
            before = cursor if before is None else min(before, cursor)
        elif cursor is not None:
            # The next one after the cursor; no id has a NUL, so nothing lies between.
            first = max(first, cursor + "\x01")
        rows = self._work(
            _LIST,
            [
                first,
                before,
                arrays.texts([JobState(state).value for state in states]) if states else None,
                queue,
                task,
                limit + 1,
                newest_first,
            ],
        )
        jobs = [record_of(row) for row in rows[:limit]]
        return JobPage(jobs=jobs, cursor=jobs[-1].id if len(rows) > limit and jobs else None)
