"""What follows from arrivals at a held message: pure, shared by the backends that run in Python.

A backend keeps, for each held message, who has arrived and how (each source once), and asks
`decide` after every change, inside the same atomic step.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from taskmq.states import JobState
from taskmq.transport.types import Edge, ErrorInfo, Hold, HoldRule, Verdict

Decision = Literal["wait", "release", "give_up"]
"""Go on holding; let it go (queue it, or end a record without a task); end it as `otherwise` says."""


class Tally(msgspec.Struct, frozen=True, gc=False):
    """How far a held message is: `failed` counts the failed and the skipped among `arrived`."""

    need: int
    arrived: int = 0
    failed: int = 0


def verdict_of(state: JobState, edge: Edge) -> Verdict:
    """How a job that ended in `state` arrives over `edge`."""
    if state is JobState.SUCCEEDED or edge.tolerate:
        return "ok"
    return "skipped" if state is JobState.SKIPPED else "failed"


def counts_as_failed(verdict: Verdict) -> bool:
    """Whether an arrival counts against the rule."""
    return verdict != "ok"


def decide(hold: Hold, tally: Tally) -> Decision:
    """What the rule of `hold` says now.

    A message that waits for nobody is released whatever its rule. `tally.need` is the hold's number
    of arrivals plus what was added by `Expect` since.
    """
    if tally.need <= 0:
        return "release"
    complete = tally.arrived >= tally.need
    if hold.rule is HoldRule.ALL_OK:
        if tally.failed:
            return "give_up"
        return "release" if complete else "wait"
    if hold.rule is HoldRule.ANY_FAILED:
        if tally.failed:
            return "release"
        return "give_up" if complete else "wait"
    if not complete:
        return "wait"
    if hold.rule is HoldRule.TOLERATE and tally.failed > hold.tolerate:
        return "give_up"
    return "release"


def cause_of(hold: Hold, source: str, verdict: Verdict) -> ErrorInfo:
    """The cause recorded on a held message that is given up, decided by the arrival of `source`."""
    if hold.rule is HoldRule.ANY_FAILED:
        return ErrorInfo(reason="skipped", message="none of the jobs it waited for has failed")
    return ErrorInfo(reason="skipped", message=f"job {source} arrived {verdict}")


def is_closed(guard: JobState | None, *, cancel_requested: bool = False) -> bool:
    """Whether a guard stops releases: its record has ended or is being cancelled.

    A guard without a record (None) stops nothing: only a record can say that it was cancelled.
    """
    return guard is not None and (guard.is_final or cancel_requested)
