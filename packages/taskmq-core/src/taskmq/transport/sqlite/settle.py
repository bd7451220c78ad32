"""What workers say of their deliveries: `settle`, `extend`, `reclaim`.

Plain acks (no follow-ups, nothing that waits for the job) are applied by one guarded update a row,
without looking. If fewer rows changed than were meant, the savepoint is undone and every item is
read and judged by itself.
"""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any, cast

from msgspec import MsgspecError

from taskmq.states import FINAL_STATES, JobState
from taskmq.transport.sqlite.arriving import ack_together
from taskmq.transport.sqlite.completion import apply_park
from taskmq.transport.sqlite.endings import (
    FREE_PHASES,
    JOB,
    Job,
    end,
    find_job,
    force_slot,
    requeue,
    settle_arrivals,
)
from taskmq.transport.sqlite.enqueue import insert_many
from taskmq.transport.sqlite.reserve import Look
from taskmq.transport.sqlite.schema import FOREVER, INLINE_ENVELOPE, Attention, Hook, Phase
from taskmq.transport.sqlite.step import encode
from taskmq.transport.sqlite.store import Store
from taskmq.transport.types import (
    Ack,
    Bury,
    Defer,
    ErrorInfo,
    ExtendReply,
    Park,
    Release,
    Retry,
    SettleReply,
    SettleResult,
    Yield,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskmq.transport.sqlite.database import Row
    from taskmq.transport.sqlite.step import Step
    from taskmq.transport.types import Extension, FollowUps, Settlement

OK = SettleResult("ok")
ALREADY = SettleResult("already")
LOST = SettleResult("lost")

_SPENT_FOR = 86_400.0
WORKER_LOST = ErrorInfo(reason="worker lost", message="its worker went away while it had the job")

_FINAL_TEXT = {state: str(state.value) for state in FINAL_STATES}
"""Plain texts: the driver takes a slow path for those that are enum members."""

_ACK = (
    "UPDATE jobs SET phase = NULL, rank = ?3 + job_ttl, finished_at = ?3, "
    "started_at = coalesce(started_at, ?4), result_type = ?5, result = ?6, {} "
    "WHERE seq = ?1 AND receipt = ?2 AND phase = 6 AND hooks = 0 AND attention IS NULL"
)
# Each bound value costs a tenth of a microsecond as well.
_ACK_OK = _ACK.format("state = 'SUCCEEDED'")
_ACK_ANY = _ACK.format("state = ?7, error = ?8, meta = coalesce(?9, meta), hooks = ?10")


class Settling(Store):
    """`settle`, `extend`, `reclaim`."""

    _queues: dict[str, tuple[str, ...]]
    _awaited_lately: bool = False
    """Whether others waited for the jobs of the last call: those of the next are likely to be alike."""

    def settle(self, worker: str, settlements: Sequence[Settlement]) -> SettleReply:
        """See the contract."""
        with self._step() as step:
            results = self._settle_all(step, settlements)
            look = Look(step.con, worker)
            return SettleReply(
                results=results,
                now=step.now,
                head=look.head(step.con, self._queues.get(worker, ())),
                cancelled=look.cancelled,
                terminate=look.terminate,
            )

    def _settle_all(self, step: Step, settlements: Sequence[Settlement]) -> list[SettleResult]:
        """In bulk if that can be, by the way that the last call went first; else one by one."""
        done = None
        if self._awaited_lately:
            done = _try_together(step, settlements)
        if done is None:
            results = _ack_plain(step, settlements, self._shortest_ttl)
            if results is not None:
                return results
            if not self._awaited_lately:
                done = _try_together(step, settlements)
        if done is None:
            return [_settle_one(step, settlement) for settlement in settlements]
        self._awaited_lately = done
        return [OK] * len(settlements)

    def extend(self, worker: str, extensions: Sequence[Extension]) -> ExtendReply:
        """See the contract."""
        lost: set[str] = set()
        expired: set[str] = set()
        cancelled: set[str] = set()
        with self._step() as step:
            for extension in extensions:
                job = _find_held(step, extension.receipt)
                if job is None or job.phase not in _EXTENSIBLE:
                    lost.add(extension.receipt)
                    continue
                _extend_one(step, worker, job, extension)
                if job.cancelled:
                    cancelled.add(extension.receipt)
                unstarted = job.started_at is None and extension.started_ago is None
                if unstarted and job.expires_at is not None and job.expires_at <= step.now:
                    expired.add(extension.receipt)
            look = Look(step.con, worker)
            return ExtendReply(
                now=step.now,
                lost=frozenset(lost),
                cancelled=frozenset(cancelled) | look.cancelled,
                terminate=look.terminate,
                expired=frozenset(expired),
                head=look.head(step.con, self._queues.get(worker, ())),
            )

    def reclaim(self, worker: str, keep: Sequence[str]) -> int:
        """See the contract."""
        known = set(keep)
        with self._step() as step:
            rows = step.con.execute(
                f"SELECT {JOB} FROM jobs INDEXED BY jobs_line WHERE phase = 6 AND worker = ?",
                (worker,),
            ).fetchall()
            unknown = [job for job in map(Job._make, rows) if job.receipt not in known]
            for job in unknown:
                give_back(step, job, deliveries=job.deliveries - 1)
            return len(unknown)


_EXTENSIBLE = (Phase.LEASED, Phase.ACKNOWLEDGED, *FREE_PHASES)
_SETTLEABLE = _EXTENSIBLE


def seq_of(receipt: str) -> int:
    """The row that a receipt names; 0, which is none, for a text that is no receipt."""
    try:
        return int(receipt[: receipt.index("-")])
    except ValueError:
        return 0


def _find_held(step: Step, receipt: str) -> Job | None:
    row = step.con.execute(
        f"SELECT {JOB} FROM jobs WHERE seq = ? AND receipt = ?", (seq_of(receipt), receipt)
    ).fetchone()
    return Job._make(row) if row is not None else None


def give_back(
    step: Step,
    job: Job,
    *,
    deliveries: int | None = None,
    keep_receipt: bool = False,
    settled: bool = False,
    state: JobState = JobState.QUEUED,
    due_at: float | None = None,
    **changes: Any,
) -> None:
    """Put a delivery back into its queue, or end it when it was cancelled meanwhile."""
    if job.cancelled:
        error = ErrorInfo(reason="revoked", message="it was revoked")
        end(step, job, JobState.REVOKED, error=error, settled=settled)
        return
    requeue(
        step, job, state=state, due_at=due_at, deliveries=deliveries, keep_receipt=keep_receipt,
        **changes,
    )  # fmt: skip
    if settled:
        step.con.execute(
            "INSERT OR REPLACE INTO spent (receipt, until) VALUES (?, ?)",
            (job.receipt, step.now + _SPENT_FOR),
        )


def _extend_one(step: Step, worker: str, job: Job, extension: Extension) -> None:
    ago = extension.started_ago
    phase = Phase.ACKNOWLEDGED if job.phase == Phase.ACKNOWLEDGED else Phase.LEASED
    step.con.execute(
        "UPDATE jobs SET phase = ?, rank = ?, state = 'RUNNING', worker = ?, "
        "started_at = coalesce(started_at, ?) WHERE seq = ?",
        (
            phase,
            step.now + extension.lease,
            worker,
            None if ago is None else step.now - ago,
            job.seq,
        ),
    )
    if job.phase in FREE_PHASES:
        _hold_again(step, job)


def _hold_again(step: Step, job: Job) -> None:
    """Give a delivery whose lease was taken back to its holder again."""
    if job.hooks & Hook.CONCURRENCY:
        force_slot(step, job.concurrency_key)
    if 1 < job.deliveries >= job.max_deliveries:
        step.con.execute(
            "UPDATE jobs SET attention = ? WHERE seq = ?", (Attention.LAST_CHANCE, job.seq)
        )


# --- plain acks -----------------------------------------------------------------------------------


def _ack_plain(
    step: Step, settlements: Sequence[Settlement], look_after: float
) -> list[SettleResult] | None:
    """Apply a batch that has nothing but plain acks, all of them held; None when it isn't one."""
    rows = _ack_rows(settlements, step.now)
    if not rows:
        return None
    con = step.con
    before = con.total_changes
    try:
        con.executemany(_ACK_OK if len(rows[0]) == _OK_VALUES else _ACK_ANY, rows)
        complete = con.total_changes - before == len(rows)
    except _UNSTORABLE:
        complete = False
    if not complete:
        step.restart()
        return None
    seqs = [row[0] for row in rows]
    step.ended = seqs
    # Rows kept for longer are looked at in vain once, and then at their own time.
    step.look_again(seqs, step.now + (look_after if look_after < FOREVER else 0.0))
    return [OK] * len(rows)


_OK_VALUES = 6


def _ack_rows(settlements: Sequence[Settlement], now: float) -> list[Row] | None:
    """The values of `_ACK_OK` when that is all they need, else of `_ACK_ANY`."""
    rows: list[Row] = []
    more: list[Row] = []
    simple = True
    try:
        for one in settlements:
            if type(one) is not Ack or one.follow_ups is not None:
                return None
            receipt, ago, result = one.receipt, one.started_ago, one.result
            row = (
                int(receipt[: receipt.index("-")]),
                receipt,
                now,
                None if ago is None else now - ago,
                None if result is None else result.content_type,
                None if result is None else result.data,
            )
            rows.append(row)
            simple = simple and _is_simple(one)
        if simple:
            return rows
        for one, row in zip(settlements, rows, strict=True):
            more.append((*row, *_more_values(one)))
    except (KeyError, *_UNSTORABLE):
        return None
    return more


def _is_simple(ack: Ack) -> bool:
    return (
        ack.state is JobState.SUCCEEDED
        and ack.error is None
        and ack.meta is None
        and not ack.result_stored
    )


def _more_values(settlement: Settlement) -> tuple[Any, ...]:
    ack = cast("Ack", settlement)
    return (
        _FINAL_TEXT[ack.state],
        None if ack.error is None else encode(ack.error),
        ack.meta,
        Hook.RESULT_STORED if ack.result_stored else 0,
    )


def _try_together(step: Step, settlements: Sequence[Settlement]) -> bool | None:
    try:
        return ack_together(step, settlements)
    except _UNSTORABLE:
        step.restart()
        return None


# --- one by one -----------------------------------------------------------------------------------

_UNSTORABLE = (
    sqlite3.DataError,
    sqlite3.IntegrityError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
    MsgspecError,
    OverflowError,
    TypeError,
    ValueError,
)
"""What storing a value may raise because of the value itself."""


class _Refused(Exception):
    """A limit forbids the settlement; its savepoint is undone."""


def _settle_one(step: Step, settlement: Settlement) -> SettleResult:
    job = _find_held(step, settlement.receipt)
    verdict = _judge(step, job, settlement)
    if verdict is not None or job is None:
        return verdict or LOST
    undo = step.savepoint()
    try:
        if settlement.follow_ups is not None:
            # Before the job's own end, whose arrival must find what is new and what is expected.
            _follow(step, settlement.follow_ups)
        _apply(step, job, settlement)
    except (_Refused, *_UNSTORABLE) as error:
        undo()
        text = str(error) if isinstance(error, _Refused) else f"not storable: {error}"
        return SettleResult("refused", text)
    finally:
        step.con.execute("RELEASE item")
    return OK


def _judge(step: Step, job: Job | None, settlement: Settlement) -> SettleResult | None:
    """The answer when the receipt doesn't count, None when it does."""
    if job is None:
        spent = step.con.execute(
            "SELECT 1 FROM spent WHERE receipt = ?", (settlement.receipt,)
        ).fetchone()
        return ALREADY if spent else LOST
    if job.phase in (Phase.ENDED, Phase.DEAD, Phase.PARKED):
        return ALREADY
    if job.phase == Phase.ACKNOWLEDGED:
        if isinstance(settlement, Ack) and settlement.state is JobState.RUNNING:
            return ALREADY
        if isinstance(settlement, (Defer, Yield, Release)):
            return SettleResult("refused", "acknowledged before the work: it can't go back")
        return None
    return None if job.phase in _SETTLEABLE else LOST


def _apply(step: Step, job: Job, settlement: Settlement) -> None:
    ago = settlement.started_ago
    started_at = None if ago is None else step.now - ago
    changes: dict[str, Any] = {} if settlement.meta is None else {"meta": settlement.meta}
    if isinstance(settlement, Ack):
        _apply_ack(step, job, settlement, started_at)
    elif isinstance(settlement, Bury):
        end(
            step, job, JobState.FAILED, error=settlement.error, started_at=started_at,
            meta=settlement.meta, dead=True, settled=True,
        )  # fmt: skip
    elif isinstance(settlement, Park):
        apply_park(step, job, settlement, started_at)
    elif isinstance(settlement, Retry):
        _apply_retry(step, job, settlement, changes)
    elif isinstance(settlement, Release):
        _apply_release(step, job, settlement, changes)
    else:
        if isinstance(settlement, Yield):
            if job.yields >= job.rare.max_yields:
                raise _Refused("max yields")
            changes["yields"] = job.yields + 1
        give_back(
            step, job, settled=True, deliveries=max(0, job.deliveries - 1),
            due_at=step.now + settlement.delay, **changes,
        )  # fmt: skip


def _apply_ack(step: Step, job: Job, ack: Ack, started_at: float | None) -> None:
    if ack.state is not JobState.RUNNING:
        end(
            step, job, ack.state, error=ack.error, result=ack.result,
            result_stored=ack.result_stored, started_at=started_at, meta=ack.meta, settled=True,
        )  # fmt: skip
        return
    late = job.phase in FREE_PHASES
    step.con.execute(
        "UPDATE jobs SET phase = 7, state = 'RUNNING', started_at = coalesce(started_at, ?), "
        "rank = CASE WHEN ? THEN ? ELSE rank END, meta = coalesce(?, meta) WHERE seq = ?",
        (started_at, late, step.now + (job.lease or _LATE_LEASE), ack.meta, job.seq),
    )
    if late:
        _hold_again(step, job)


_LATE_LEASE = 60.0


def _apply_retry(step: Step, job: Job, retry: Retry, changes: dict[str, Any]) -> None:
    if retry.error is not None:
        changes["error"] = encode(retry.error)
    if retry.envelope is not None:
        large = len(retry.envelope) > INLINE_ENVELOPE
        changes["envelope"] = None if large else retry.envelope
        step.con.execute("DELETE FROM envelopes WHERE seq = ?", (job.seq,))
        if large:
            step.con.execute(
                "INSERT INTO envelopes (seq, envelope) VALUES (?, ?)", (job.seq, retry.envelope)
            )
    give_back(
        step, job, settled=True, state=JobState.RETRYING, due_at=step.now + retry.delay,
        deliveries=0, attempt=job.attempt + 1, outcome=None,
        hooks=job.hooks & ~Hook.HANDED, **changes,
    )  # fmt: skip


def _apply_release(step: Step, job: Job, release: Release, changes: dict[str, Any]) -> None:
    if release.counted and job.deliveries >= job.max_deliveries and not job.cancelled:
        end(step, job, JobState.FAILED, error=WORKER_LOST, dead=True, settled=True)
        return
    count = job.deliveries if release.counted else max(0, job.deliveries - 1)
    give_back(step, job, settled=True, deliveries=count, **changes)


def _follow(step: Step, follow_ups: FollowUps) -> None:
    insert_many(step, follow_ups.enqueue)
    for expect in follow_ups.expect:
        step.con.execute(
            "UPDATE jobs SET need = need + ? WHERE id = ? AND phase = 8", (expect.more, expect.to)
        )

    for arrival in follow_ups.arrive:
        settle_arrivals(step, [(arrival.to, arrival.source, arrival.series, arrival.verdict)])
    for finish in follow_ups.finish:
        job = find_job(step, finish.id)
        if job is not None and job.phase not in (Phase.ENDED, Phase.DEAD):
            end(step, job, finish.state, result=finish.result, error=finish.error)
