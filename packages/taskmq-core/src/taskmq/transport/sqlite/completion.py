"""Jobs that are finished from outside: parking, completions, and the ways they can cross."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from taskmq.states import JobState
from taskmq.transport.sqlite.endings import FREE_PHASES, end, force_slot, requeue
from taskmq.transport.sqlite.schema import FOREVER, Hook, Phase
from taskmq.transport.sqlite.step import encode
from taskmq.transport.types import CompleteResult, Completion, ErrorInfo

if TYPE_CHECKING:
    from taskmq.transport.sqlite.endings import Job
    from taskmq.transport.sqlite.step import Step
    from taskmq.transport.types import Park

TIMED_OUT = Completion(
    state="FAILED",
    error=ErrorInfo(reason="timed out", message="nobody completed it in time"),
    retryable=True,
)


class _Said(msgspec.Struct, array_like=True, frozen=True):
    """What was said about the delivery with this receipt."""

    receipt: str
    completion: Completion


_decode_said = msgspec.msgpack.Decoder(_Said).decode


def apply_park(step: Step, job: Job, park: Park, started_at: float | None) -> None:
    """Park a job, or apply the completion that came before."""
    step.con.execute(
        "UPDATE jobs SET started_at = coalesce(started_at, ?), meta = coalesce(?, meta), "
        "outcome = NULL WHERE seq = ?",
        (started_at, park.meta, job.seq),
    )
    said = _decode_said(job.completion) if job.completion is not None else None
    if job.cancelled:
        error = ErrorInfo(reason="revoked", message="it was revoked")
        end(step, job, JobState.REVOKED, error=error, settled=True)
    elif said is not None and said.receipt == job.receipt:
        _apply(step, job, said.completion)
    else:
        until = FOREVER if park.timeout is None else step.now + park.timeout
        step.con.execute(
            "UPDATE jobs SET phase = 9, rank = ?, state = 'WAITING', attention = NULL WHERE seq = ?",
            (until, job.seq),
        )
        if job.hooks & Hook.CONCURRENCY and job.phase in FREE_PHASES:
            force_slot(step, job.concurrency_key)


def apply_completion(
    step: Step, job: Job | None, receipt: str, completion: Completion
) -> CompleteResult:
    """Say from outside how the delivery with this receipt ended."""
    if job is None:
        return CompleteResult("refused", "there is no such job")
    said = _decode_said(job.completion) if job.completion is not None else None
    if said is not None and said.receipt == receipt:
        if said.completion == completion:
            return CompleteResult("already")
        return CompleteResult("refused", "it was completed with another outcome")
    if job.receipt != receipt or job.phase in (Phase.ENDED, Phase.DEAD):
        return CompleteResult("refused", _why(job))
    step.con.execute(
        "UPDATE jobs SET completion = ?, hooks = hooks | ? WHERE seq = ?",
        (encode(_Said(receipt, completion)), Hook.COMPLETION, job.seq),
    )
    if job.phase != Phase.PARKED:
        return CompleteResult("kept")
    return CompleteResult(_apply(step, job, completion))


def hand_over(step: Step, job: Job, completion: Completion) -> None:
    """Queue a parked job with an outcome, for a worker that knows the task to decide."""
    hooks = job.hooks | Hook.HANDED | Hook.COMPLETION
    requeue(step, job, state=JobState.QUEUED, outcome=encode(completion), hooks=hooks)


def _apply(step: Step, job: Job, completion: Completion) -> Literal["ok", "handed"]:
    if completion.state == "SUCCEEDED":
        end(step, job, JobState.SUCCEEDED, result=completion.result, settled=True)
        return "ok"
    if completion.retryable:
        hand_over(step, job, completion)
        return "handed"
    error = completion.error or ErrorInfo(message="it was completed as failed")
    end(step, job, JobState.FAILED, error=error, result=completion.result, dead=True, settled=True)
    return "ok"


def _why(job: Job) -> str:
    if job.phase in (Phase.ENDED, Phase.DEAD):
        return f"it has ended {job.state}"
    return "the token is of an earlier delivery"
