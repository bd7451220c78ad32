"""The states of a job and which of them are final."""

from __future__ import annotations

from enum import Enum


class JobState(str, Enum):
    """Where a job is in its life. A plain string in JSON, logs and comparisons.

    Terminal states never change except by an explicit reopen (replay, rerun), which starts a new
    numbered series on the same id.
    """

    PENDING = "PENDING"
    """Held: waits for the arrivals of the jobs it depends on."""
    QUEUED = "QUEUED"
    """In its queue: ready, delayed, or in the waiting line of its concurrency key."""
    RUNNING = "RUNNING"
    """Reserved by a worker, whether or not the body has started."""
    RETRYING = "RETRYING"
    """An attempt failed; the next one is due later."""
    WAITING = "WAITING"
    """Parked until somebody outside completes it."""
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    REVOKED = "REVOKED"
    EXPIRED = "EXPIRED"
    SKIPPED = "SKIPPED"

    def __str__(self) -> str:
        return self.value

    @property
    def is_final(self) -> bool:
        """Whether the job has ended."""
        return self in FINAL_STATES


FINAL_STATES = frozenset(
    {
        JobState.SUCCEEDED,
        JobState.FAILED,
        JobState.REVOKED,
        JobState.EXPIRED,
        JobState.SKIPPED,
    }
)
