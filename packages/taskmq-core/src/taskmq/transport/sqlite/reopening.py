"""New series of ended jobs: `reopen`, and `replay_dead`, which is one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from taskmq.states import JobState
from taskmq.transport.arrivals import counts_as_failed
from taskmq.transport.sqlite.endings import find_job, ready_phase
from taskmq.transport.sqlite.schema import Hook, Phase
from taskmq.transport.sqlite.step import encode_list, extra_of
from taskmq.transport.types import ReopenResult

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from taskmq.transport.sqlite.endings import Job
    from taskmq.transport.sqlite.step import Step

Descendants = Literal["all", "skipped"]

_ENDED = (Phase.ENDED, Phase.DEAD)
_ANEW = (
    "series = series + 1, attempt = 1, deliveries = 0, yields = 0, expires_at = NULL, "
    "reserved_at = NULL, started_at = NULL, finished_at = NULL, worker = NULL, receipt = NULL, "
    "attention = NULL, error = NULL, outcome = NULL, completion = NULL, result_type = NULL, "
    f"result = NULL, hooks = hooks & ~{Hook.OF_SERIES}"
)


def reopen(
    step: Step,
    ids: Sequence[str],
    expect: Mapping[str, int],
    descendants: Descendants,
    *,
    queue: str | None = None,
    priority: int | None = None,
) -> ReopenResult:
    """Reopen the named jobs and hold again what depends on them, or say why not."""
    named: dict[str, Job] = {}
    for job_id in dict.fromkeys(ids):
        job = find_job(step, job_id)
        if job is None:
            return _refused(f"there is no job {job_id}")
        if job.phase not in _ENDED:
            return _refused(f"job {job_id} has not ended, it is {job.state}")
        named[job_id] = job
    held = _descendants(step, named, descendants)
    for job in held.values():
        if job.phase not in _ENDED and job.phase != Phase.HELD:
            return _refused(f"job {job.id}, which depends on it, is {job.state}")
    for job_id, series in expect.items():
        job = named.get(job_id) or held.get(job_id) or find_job(step, job_id)
        if job is None or job.series != series:
            return _refused(f"job {job_id} is not in series {series}")
    again = {job_id: job for job_id, job in held.items() if job.phase != Phase.HELD}
    dependent = _remove_arrivals(step, [*named, *again])
    for job in named.values():
        if _is_without_task(job) or (job.hooks & Hook.HOLD and job.id in dependent):
            _hold_again(step, job)
        else:
            _queue_anew(step, job, queue, priority)
    for job in again.values():
        _hold_again(step, job)
    return ReopenResult(status="ok", reopened=(*named, *again))


def _refused(reason: str) -> ReopenResult:
    return ReopenResult(status="refused", reason=reason)


def _is_without_task(job: Job) -> bool:
    hold = job.rare.hold
    return hold is not None and hold.finish


def _descendants(step: Step, named: Mapping[str, Job], descendants: Descendants) -> dict[str, Job]:
    found: dict[str, Job] = {}
    left = list(named.values())
    while left:
        for edge in extra_of(left.pop().extra).successors:
            if edge.to in found or edge.to in named:
                continue
            job = find_job(step, edge.to)
            if job is None or not job.hooks & Hook.HOLD:
                continue
            if descendants == "all" or job.state == JobState.SKIPPED or _is_without_task(job):
                found[job.id] = job
                left.append(job)
    return found


def _remove_arrivals(step: Step, sources: Sequence[str]) -> set[str]:
    """Take back the arrivals of these sources; the targets that had any."""
    rows = step.con.execute(
        "DELETE FROM arrivals WHERE source IN (SELECT value FROM json_each(?)) "
        "RETURNING target, verdict",
        (encode_list(sources).decode(),),
    ).fetchall()
    step.con.executemany(
        "UPDATE jobs SET arrived = arrived - 1, failed = failed - ? WHERE id = ?",
        [(int(counts_as_failed(verdict)), target) for target, verdict in rows],
    )
    return {target for target, _ in rows}


def _hold_again(step: Step, job: Job) -> None:
    step.con.execute(
        f"UPDATE jobs SET phase = 8, rank = 0, state = 'PENDING', {_ANEW} WHERE seq = ?",
        (job.seq,),
    )
    _take_key(step, job)


def _queue_anew(step: Step, job: Job, queue: str | None, priority: int | None) -> None:
    target = job.queue if queue is None else queue
    level = job.priority if priority is None else priority
    (seq,) = step.con.execute("SELECT max(seq) + 1 FROM jobs").fetchone()
    values: tuple[Any, ...] = (
        seq, ready_phase(0, job.max_deliveries, job.extra), -level, target, level, job.seq,
    )  # fmt: skip
    step.con.execute(
        "UPDATE jobs SET seq = ?, phase = ?, rank = ?, queue = ?, priority = ?, state = 'QUEUED', "
        f"{_ANEW} WHERE seq = ?",
        values,
    )
    step.con.execute("UPDATE envelopes SET seq = ? WHERE seq = ?", (seq, job.seq))
    _take_key(step, job)
    step.add_ready(target)


def _take_key(step: Step, job: Job) -> None:
    extra = job.rare
    if extra.key is not None:
        step.con.execute(
            "INSERT OR IGNORE INTO keys (key, job, until, look_at) VALUES (?1, ?2, ?3, ?3)",
            (extra.key, job.id, step.now + extra.key_ttl),
        )
