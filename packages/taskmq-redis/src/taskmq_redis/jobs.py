"""Job records: reading, listing, revoking, completing, reopening."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from taskmq.states import JobState
from taskmq.transport.contract import JobRole, parse_completion_token
from taskmq.transport.types import (
    CompleteResult,
    Edge,
    Hold,
    JobPage,
    JobRecord,
    JobResult,
    ReopenResult,
    RevokeResult,
)
from taskmq_redis.store import (
    Store,
    completion_words,
    decode_error,
    pairs,
    read_fixed,
    read_result,
    receipt_of,
    seconds,
    split_receipt,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from taskmq.transport.types import Completion

_decode_hold: Final = msgspec.msgpack.Decoder(Hold).decode
_decode_edges: Final = msgspec.msgpack.Decoder(list[tuple[str, bool]]).decode
_STATES: Final = {state.value.encode(): state for state in JobState}
_CHUNK: Final = 500
"""How many records one call reads at most, so that no script holds the server up."""


class Jobs(Store, JobRole):
    """The job role, without the waiting."""

    def get_jobs(self, ids: Sequence[str], *, envelopes: bool = False) -> list[JobRecord | None]:
        """See the contract."""
        found: list[JobRecord | None] = []
        for start in range(0, len(ids), _CHUNK):
            some = ids[start : start + _CHUNK]
            rows = self._call("show", some, envelopes)
            found += [
                None if not row else _record(job_id, pairs(row))
                for job_id, row in zip(some, rows, strict=True)
            ]
        return found

    def get_results(self, ids: Sequence[str]) -> list[JobResult | None]:
        """See the contract."""
        found: list[JobResult | None] = []
        for start in range(0, len(ids), _CHUNK):
            rows = self._call("results", ids[start : start + _CHUNK])
            found += [row and JobResult(_STATES[row[0]], read_result(row[1])) for row in rows]
        return found

    def update_meta(self, receipt: str, meta: bytes) -> bool:
        """See the contract."""
        job_id, token = split_receipt(receipt)
        return bool(token) and bool(self._call("meta", job_id, token, meta))

    def revoke(self, ids: Sequence[str], terminate: bool = False) -> list[RevokeResult]:
        """See the contract."""
        answers: list[RevokeResult] = []
        for start in range(0, len(ids), _CHUNK):
            rows = self._call("revoke", ids[start : start + _CHUNK], terminate)
            answers += [
                RevokeResult(status.decode(), JobState(state.decode()) if state else None)
                for status, state in rows
            ]
        return answers

    def complete(self, token: str, completion: Completion) -> CompleteResult:
        """See the contract."""
        job_id, receipt = parse_completion_token(token)
        _, secret = split_receipt(receipt)
        if not secret:
            return CompleteResult("refused", "the token belongs to an earlier delivery of the job")
        status, reason = self._call("complete", job_id, secret, completion_words(completion))
        return CompleteResult(status.decode(), reason.decode())

    def reopen(
        self,
        ids: Sequence[str],
        *,
        expect: Mapping[str, int] | None = None,
        descendants: Literal["all", "skipped"] = "all",
    ) -> ReopenResult:
        """See the contract."""
        why, *rest = self._call(
            "reopen", ids, dict(expect or {}), descendants == "all", repeat=False
        )
        if why:
            return ReopenResult(status="refused", reason=why.decode())
        return ReopenResult(status="ok", reopened=tuple(job_id.decode() for job_id in rest[0]))

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
        wanted = frozenset(map(JobState, states))
        choice: tuple[Any, ...] = ()
        if wanted or queue is not None or task is not None:
            named = {state.value: True for state in wanted}
            choice = (named or False, _or_false(queue), _or_false(task))
        jobs: list[JobRecord] = []
        for record in self._records(prefix, cursor, choice, newest_first=newest_first):
            # Looked at again: it may have changed since it was picked.
            if (
                (wanted and record.state not in wanted)
                or (queue is not None and record.queue != queue)
                or (task is not None and record.task != task)
            ):
                continue
            if len(jobs) == limit:
                return JobPage(jobs=jobs, cursor=jobs[-1].id if jobs else cursor)
            jobs.append(record)
        return JobPage(jobs=jobs)

    def _records(
        self, prefix: str, cursor: str | None, choice: tuple[Any, ...], *, newest_first: bool
    ) -> Iterator[JobRecord]:
        """The records whose id starts with `prefix`, in the order of their ids, as pick.lua chooses."""
        at = cursor
        while True:
            ids = self._ids(prefix, at, newest_first=newest_first)
            if not ids:
                return
            picked = ids
            if choice:
                picked = [job_id.decode() for job_id in self._call("pick", ids, *choice)]
            yield from (record for record in self.get_jobs(picked) if record is not None)
            at = ids[-1]

    def _ids(self, prefix: str, after: str | None, *, newest_first: bool) -> list[str]:
        start = prefix.encode()
        low, high = (b"[" + start if start else b"-"), (b"(" + start + b"\xff" if start else b"+")
        if after is not None:
            edge = b"(" + after.encode()
            low, high = (low, edge) if newest_first else (edge, high)
        key = self._base + b"ids"
        command = "ZREVRANGEBYLEX" if newest_first else "ZRANGEBYLEX"
        bounds = (high, low) if newest_first else (low, high)
        found = self._server.command(command, key, *bounds, "LIMIT", 0, _CHUNK)
        return [job_id.decode() for job_id in found]


def _record(job_id: str, f: dict[bytes, bytes]) -> JobRecord:
    if b"b" in f:
        return _plain_record(job_id, f)
    get = f.get
    where = get(b"w")
    token = get(b"r")
    hold = get(b"hd")
    return JobRecord(
        id=job_id,
        task=f[b"t"].decode(),
        queue=f[b"q"].decode(),
        state=JobState(f[b"s"].decode()),
        priority=int(f[b"p"]),
        attempt=int(get(b"a", 1)),
        deliveries=int(get(b"d", 0)),
        max_deliveries=int(get(b"md", 5)),
        yields=int(get(b"y", 0)),
        series=int(get(b"sr", 1)),
        enqueued_at=seconds(f[b"at"]),
        due_at=_time(get(b"du")),
        expires_at=_time(get(b"ex")),
        reserved_at=_time(get(b"ra")),
        started_at=_time(get(b"sa")),
        finished_at=_time(get(b"fa")),
        worker=_text(get(b"wk")),
        receipt=None if token is None else receipt_of(token, job_id),
        cancel_requested=b"cr" in f,
        blocked=where == b"b",
        dead=b"dn" in f,
        result=read_result(get(b"rs")),
        result_stored=b"rx" in f,
        error=decode_error(f[b"er"]) if b"er" in f else None,
        reason=(get(b"rn") or b"").decode(),
        meta=get(b"m"),
        key=_text(get(b"k")),
        concurrency_key=_text(get(b"c")),
        run=_text(get(b"ru")),
        step=_text(get(b"sp")),
        successors=_edges(get(b"su")),
        hold=None if hold is None else _decode_hold(hold),
        arrived=int(get(b"arrived", 0)),
        envelope=get(b"e"),
    )


def _plain_record(job_id: str, f: dict[bytes, bytes]) -> JobRecord:
    """The record of a plain job in its packed form; core.lua describes it."""
    at, priority, queue, task = read_fixed(f[b"b"])
    v = f.get(b"v")
    queued = JobRecord(
        id=job_id,
        task=task,
        queue=queue,
        state=JobState.QUEUED,
        priority=priority,
        enqueued_at=at,
        envelope=f.get(b"e"),
        run=_text(f.get(b"ru")),
        step=_text(f.get(b"sp")),
        successors=_edges(f.get(b"su")),
    )
    if v is None:
        return queued
    return msgspec.structs.replace(
        queued,
        state=JobState.SUCCEEDED if v[:1] == b"e" else JobState.RUNNING,
        deliveries=1,
        receipt=receipt_of(v[1:25], job_id),
        started_at=int(v[41:57]) / 1_000_000 or None,
        finished_at=int(v[57:73]) / 1_000_000 or None,
        reserved_at=int(v[73:89]) / 1_000_000,
        worker=v[96 + int(v[91:96]) :].decode(),
        result=read_result(f.get(b"rs")),
        result_stored=b"rx" in f,
    )


def _or_false(value: str | None) -> str | bool:
    return False if value is None else value


def _edges(value: bytes | None) -> tuple[Edge, ...]:
    if value is None:
        return ()
    return tuple(Edge(to, tolerate) for to, tolerate in _decode_edges(value))


def _time(value: bytes | None) -> float | None:
    return None if value is None else seconds(value)


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def letter_fields(job_id: str, f: dict[bytes, bytes]) -> dict[str, Any]:
    """The fields of a dead letter from its record."""
    return {
        "id": job_id,
        "task": f[b"t"].decode(),
        "queue": f[b"q"].decode(),
        "priority": int(f[b"p"]),
        "reason": f.get(b"rn", b"").decode(),
        "died_at": seconds(f.get(b"fa", 0)),
        "attempt": int(f.get(b"a", 1)),
        "deliveries": int(f.get(b"d", 0)),
        "error": decode_error(f[b"er"]) if b"er" in f else None,
        "envelope": f.get(b"e", b""),
    }
