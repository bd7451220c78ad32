"""What makes a job final, and what follows from it in the same transaction. [I5]

Every ending, whoever causes it, goes through `end`: the record, the idempotency key, the
concurrency slot, and the arrivals at successors, whose own endings arrive in turn.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from taskmq.states import JobState
from taskmq.transport.arrivals import (
    Tally,
    cause_of,
    counts_as_failed,
    decide,
    is_closed,
    verdict_of,
)
from taskmq.transport.sqlite.schema import FOREVER, Hook, Phase
from taskmq.transport.sqlite.step import encode, extra_of
from taskmq.transport.types import ErrorInfo

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from taskmq.transport.sqlite.step import Extra, Step
    from taskmq.transport.types import Payload, Verdict


class Job(NamedTuple):
    """The columns of a row that decisions need."""

    seq: int
    id: str
    queue: str
    task: str
    priority: int
    phase: int | None
    rank: float
    state: str
    hooks: int
    receipt: str | None
    series: int
    attempt: int
    deliveries: int
    max_deliveries: int
    yields: int
    lease: float | None
    job_ttl: float
    expires_at: float | None
    started_at: float | None
    concurrency_key: str | None
    need: int | None
    arrived: int | None
    failed: int | None
    run: str | None
    extra: bytes | None
    completion: bytes | None
    outcome: bytes | None
    meta: bytes | None
    worker: str | None

    @property
    def cancelled(self) -> bool:
        """Whether it was revoked while it was held."""
        return bool(self.hooks & Hook.CANCELLED)

    @property
    def rare(self) -> Extra:
        """What few messages have."""
        return extra_of(self.extra)


EXPIRED = ErrorInfo(reason="expired", message="it was not started before its expiry")
JOB = ", ".join(Job._fields)
FREE_PHASES = (Phase.READY, Phase.LAST_CHANCE, Phase.EXTERNAL, Phase.DELAYED, Phase.BLOCKED)
HOLDING_PHASES = (Phase.LEASED, Phase.ACKNOWLEDGED, Phase.PARKED)

Arriving = tuple[str, str, int, "Verdict"]


def find_job(step: Step, job_id: str) -> Job | None:
    """The row with this id."""
    row = step.con.execute(f"SELECT {JOB} FROM jobs WHERE id = ?", (job_id,)).fetchone()
    return Job._make(row) if row is not None else None


def end(
    step: Step,
    job: Job,
    state: JobState,
    *,
    error: ErrorInfo | None = None,
    result: Payload | None = None,
    result_stored: bool = False,
    started_at: float | None = None,
    meta: bytes | None = None,
    dead: bool = False,
    settled: bool = False,
) -> None:
    """End a job and do all that follows.

    With `settled` its receipt stays on record as the winner's; else nobody's settlement counts
    any more.
    """
    arriving: deque[Arriving] = deque()
    _end(
        step, job, state, arriving, error=error, result=result,
        result_stored=result_stored, started_at=started_at, meta=meta, dead=dead, settled=settled,
    )  # fmt: skip
    settle_arrivals(step, arriving)


def _end(
    step: Step,
    job: Job,
    state: JobState,
    arriving: deque[Arriving],
    *,
    error: ErrorInfo | None = None,
    result: Payload | None = None,
    result_stored: bool = False,
    started_at: float | None = None,
    meta: bytes | None = None,
    dead: bool = False,
    settled: bool = False,
) -> None:
    now = step.now
    step.con.execute(
        "UPDATE jobs SET phase = ?, rank = ?, state = ?, finished_at = ?, error = ?, "
        "result_type = ?, result = ?, hooks = hooks | ?, attention = NULL, outcome = NULL, "
        "started_at = coalesce(started_at, ?), meta = coalesce(?, meta), "
        "receipt = CASE WHEN ? THEN receipt END WHERE seq = ?",
        (
            Phase.DEAD if dead else Phase.ENDED,
            now if dead else now + job.job_ttl,
            state.value,
            now,
            encode(error) if error is not None else None,
            result.content_type if result is not None else None,
            result.data if result is not None else None,
            Hook.RESULT_STORED if result_stored else 0,
            started_at,
            meta,
            settled,
            job.seq,
        ),
    )
    step.ended.append(job.seq)
    if not dead:
        step.look_again((job.seq,), now + job.job_ttl)
    if job.hooks:
        _release_key(step, job, state)
        if job.hooks & Hook.CONCURRENCY:
            leave_slot(step, job)
        if job.hooks & Hook.SUCCESSORS:
            for edge in job.rare.successors:
                arriving.append((edge.to, job.id, job.series, verdict_of(state, edge)))


def _release_key(step: Step, job: Job, state: JobState) -> None:
    freed = job.hooks & Hook.KEY_UNTIL_END or (
        job.hooks & Hook.KEY and state is not JobState.SUCCEEDED
    )
    if freed:
        step.con.execute("DELETE FROM keys WHERE key = ? AND job = ?", (job.rare.key, job.id))


# --- concurrency keys: slots and waiting lines ----------------------------------------------------


def take_slot(step: Step, key: str | None, limit: int) -> bool:
    """Take a slot of a concurrency key; False when all are taken."""
    row = step.con.execute(
        "INSERT INTO slots (key, used) VALUES (?, 1) "
        "ON CONFLICT (key) DO UPDATE SET used = used + 1 WHERE used < ? RETURNING used",
        (key, limit),
    ).fetchone()
    return row is not None


def force_slot(step: Step, key: str | None) -> None:
    """Take a slot even beyond the limit, for a body that runs already."""
    step.con.execute(
        "INSERT INTO slots (key, used) VALUES (?, 1) ON CONFLICT (key) DO UPDATE SET used = used + 1",
        (key,),
    )


def leave_slot(step: Step, job: Job) -> None:
    """Give back the slot that a held job has, and let the next of the line in.

    Also for a job that holds none: it may be the one let in last, whose chance passes on.
    """
    key = job.concurrency_key
    if job.phase in HOLDING_PHASES:
        step.con.execute("UPDATE slots SET used = used - 1 WHERE key = ?", (key,))
        step.con.execute("DELETE FROM slots WHERE key = ? AND used <= 0", (key,))
    row = step.con.execute(
        "SELECT seq, queue, priority, deliveries, max_deliveries, extra, "
        "(SELECT used FROM slots WHERE key = ?1) FROM jobs "
        "INDEXED BY jobs_blocked WHERE phase = 5 AND concurrency_key = ?1 AND seq <> ?2 "
        "ORDER BY priority DESC, seq LIMIT 1",
        (key, job.seq),
    ).fetchone()
    if row is None:
        return
    seq, queue, priority, deliveries, max_deliveries, extra, used = row
    if (used or 0) >= extra_of(extra).concurrency_limit:
        return
    step.con.execute(
        "UPDATE jobs SET phase = ?, rank = ? WHERE seq = ?",
        (ready_phase(deliveries, max_deliveries, extra), -priority, seq),
    )
    step.add_ready(queue)


def ready_phase(deliveries: int, max_deliveries: int, extra: bytes | None) -> int:
    """Which of the ready phases a message belongs to."""
    if extra is not None and extra_of(extra).external:
        return Phase.EXTERNAL
    if 0 < deliveries >= max_deliveries - 1:
        return Phase.LAST_CHANCE
    return Phase.READY


# --- arrivals -------------------------------------------------------------------------------------


def settle_arrivals(step: Step, arriving: Iterable[Arriving]) -> None:
    """Count arrivals at held messages, and those that follow from them, until none is left."""
    left = deque(arriving)
    while left:
        to, source, series, verdict = left.popleft()
        _arrive(step, to, source, series, verdict, left)


def arrive_together(
    step: Step, target: str, arriving: Sequence[Arriving], left: deque[Arriving]
) -> None:
    """Count several arrivals at one message, all of them ok, and decide once."""
    job = find_job(step, target)
    if job is None or not job.hooks & Hook.HOLD:
        return
    before = step.con.total_changes
    step.con.executemany(
        "INSERT OR IGNORE INTO arrivals (target, source, series, verdict) VALUES (?, ?, ?, ?)",
        arriving,
    )
    counted = step.con.total_changes - before
    if counted:
        step.con.execute("UPDATE jobs SET arrived = arrived + ? WHERE seq = ?", (counted, job.seq))
        job = job._replace(arrived=(job.arrived or 0) + counted)
        _decide(step, job, left, arriving[-1][1], "ok")


def _arrive(
    step: Step, to: str, source: str, series: int, verdict: Verdict, left: deque[Arriving]
) -> None:
    job = find_job(step, to)
    if job is None or not job.hooks & Hook.HOLD:
        return
    counted = step.con.execute(
        "INSERT OR IGNORE INTO arrivals (target, source, series, verdict) VALUES (?, ?, ?, ?)",
        (to, source, series, verdict),
    ).rowcount
    if counted:
        failed = int(counts_as_failed(verdict))
        step.con.execute(
            "UPDATE jobs SET arrived = arrived + 1, failed = failed + ? WHERE seq = ?",
            (failed, job.seq),
        )
        job = job._replace(arrived=(job.arrived or 0) + 1, failed=(job.failed or 0) + failed)
        _decide(step, job, left, source, verdict)


def decide_held(step: Step, job: Job) -> None:
    """Let a held message go, or end it, if its rule is met or can't be met any more."""
    left: deque[Arriving] = deque()
    _decide(step, job, left, "", "ok")
    settle_arrivals(step, left)


def _decide(step: Step, job: Job, left: deque[Arriving], source: str, verdict: Verdict) -> None:
    hold = job.rare.hold
    if job.phase != Phase.HELD or hold is None:
        return
    tally = Tally(need=job.need or 0, arrived=job.arrived or 0, failed=job.failed or 0)
    decision = decide(hold, tally)
    if decision == "give_up":
        cause = cause_of(hold, source, verdict)
        _end(step, job, hold.otherwise, left, error=cause)
    elif decision == "release":
        _release(step, job, left)


def _release(step: Step, job: Job, left: deque[Arriving]) -> None:
    extra = job.rare
    if extra.guard is not None and _is_guard_closed(step, extra.guard):
        error = ErrorInfo(reason="revoked", message=f"its run {extra.guard} is over")
        _end(step, job, JobState.REVOKED, left, error=error)
    elif extra.hold is not None and extra.hold.finish:
        _end(step, job, JobState.SUCCEEDED, left)
    else:
        due_at = extra.eta if extra.delay is None else step.now + extra.delay
        requeue(step, job, state=JobState.QUEUED, due_at=due_at)


def _is_guard_closed(step: Step, guard: str) -> bool:
    row = step.con.execute(
        "SELECT state, hooks & ? FROM jobs WHERE id = ?", (Hook.CANCELLED, guard)
    ).fetchone()
    return row is not None and is_closed(JobState(row[0]), cancel_requested=bool(row[1]))


# --- back into the queue --------------------------------------------------------------------------


def requeue(
    step: Step,
    job: Job,
    *,
    state: JobState,
    due_at: float | None = None,
    deliveries: int | None = None,
    keep_receipt: bool = False,
    **changes: Any,
) -> None:
    """Put a message back in its place: ready, or delayed until `due_at`. Gives its slot back."""
    count = job.deliveries if deliveries is None else deliveries
    if due_at is None or due_at <= step.now:
        phase = ready_phase(count, job.max_deliveries, job.extra)
        rank: float = -job.priority
    else:
        phase, rank = Phase.DELAYED, min(due_at, FOREVER)
    sets = "".join(f", {name} = ?" for name in changes)
    step.con.execute(
        "UPDATE jobs SET phase = ?, rank = ?, state = ?, deliveries = ?, "
        "receipt = CASE WHEN ? THEN receipt END, worker = NULL, attention = NULL, "
        f"started_at = NULL{sets} WHERE seq = ?",
        (phase, rank, state.value, count, keep_receipt, *changes.values(), job.seq),
    )
    step.add_ready(job.queue)
    if job.hooks & Hook.CONCURRENCY and job.phase in HOLDING_PHASES:
        leave_slot(step, job)
