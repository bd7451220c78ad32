"""The tree of errors and warnings: everything taskmq raises on purpose is a `TaskmqError`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class TaskmqError(Exception):
    """Base of every error that taskmq raises."""


class ConfigError(TaskmqError, ValueError):
    """Something was declared or configured wrongly; the message says what is allowed."""


class TaskError(TaskmqError):
    """A task's context or policy was used where it cannot work."""


class ArgumentError(TaskmqError):
    """A job's arguments don't fit the task's annotations: it fails for good, without a retry.

    Attributes:
        path: Where the bad value is, for example "user.emails[2]".
    """

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(f"argument {path}: {message}" if path else message)
        self.path = path


class BudgetExceeded(TaskError):
    """A run has used up its budget: the step that went over it fails for good, and the run with it."""


class Cancelled(TaskError):
    """Raised by `ctx.check_cancelled()`: the attempt should end now.

    Attributes:
        reason: "revoked", "stopping" (handed back for another worker), "lost" or "timed out".
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"this attempt should end: {_CANCELLED.get(reason, reason)}")


class AttemptLost(TaskError):
    """An attempt was ended from outside: its process died, or its hard timeout was over.

    Retry policies judge it like any exception of the task.

    Attributes:
        reason: "worker lost" or "timed out".
    """

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


_CANCELLED = {
    "revoked": "its job was revoked",
    "stopping": "its worker is stopping and hands the job back",
    "lost": "its lease was lost, another worker may have the job",
    "timed out": "its timeout is over",
}


class Reject(TaskmqError):
    """Raise it in a task: the job goes straight to the dead letters, without further attempts."""

    def __init__(self, reason: str = "rejected by the task") -> None:
        super().__init__(reason)
        self.reason = reason


class RemoteError(TaskmqError):
    """The job behind a handle ended other than by success.

    Attributes:
        job_id: The job's id.
        state: The state it ended in, as text.
        type: The name of the remote exception's type, or "" when there was none.
        message: The remote exception's text, or the reason for the end.
        traceback: The remote traceback as text, "" when there is none.
        reason: Which kind of end it was, for example "exception", "worker lost", "expired".
    """

    def __init__(
        self,
        job_id: str,
        *,
        state: str,
        type: str = "",
        message: str = "",
        traceback: str = "",
        reason: str = "",
    ) -> None:
        self.job_id = job_id
        self.state = state
        self.type = type
        self.message = message
        self.traceback = traceback
        self.reason = reason
        what = f"{type}: {message}" if type else (message or reason)
        text = f"job {job_id} ended {state}" + (f": {what}" if what else "")
        if traceback:
            text += f"\n\nRemote traceback:\n{traceback}"
        super().__init__(text)


class JobNotFound(RemoteError):
    """There is no record of the job: it was never enqueued here, or was pruned after `job_ttl`."""

    def __init__(self, job_id: str) -> None:
        super().__init__(
            job_id,
            state="UNKNOWN",
            message="no record of it: never enqueued on this transport, or pruned after job_ttl",
            reason="not found",
        )


class ResultTimeout(TaskmqError, TimeoutError):
    """The job had not ended when the time given to `get` was over; it goes on all the same."""


class MessageTooLarge(TaskmqError, ValueError):
    """An encoded call or result is over `Config.max_message_bytes`; such a call enqueued nothing."""

    def __init__(self, size: int, limit: int, *, what: str = "message") -> None:
        self.size = size
        self.limit = limit
        super().__init__(
            f"the {what} has {size:,} bytes, the limit is {limit:,}: pass a reference (a path, a key) "
            f"instead of the data, or raise Config(max_message_bytes=…)"
        )


class ProtocolError(TaskmqError):
    """Bytes that are no envelope this version can read."""


class EncodeError(TaskmqError, TypeError):
    """A value cannot travel: its type is unknown to the codec, or its text can't be encoded."""


class TransportError(TaskmqError):
    """The backend refused or failed for good: repeating the call would fail again."""


class TransportUnavailable(TransportError):
    """The backend could not be reached in time; repeating the call later may work."""


class LeaseLost(TransportError):
    """A named lease or a delivery belongs to somebody else now; nothing was changed."""


class TaskmqWarning(UserWarning):
    """Base of the warnings that taskmq gives."""


REASONS: Mapping[str, str] = {
    "exception": "The task raised, and no attempt is left.",
    "rejected": "The task raised `Reject`.",
    "timed out": "`timeout` or `hard_timeout` was over, or nobody completed a parked job in time.",
    "worker lost": "Its workers or their processes died, and it may not be handed to another.",
    "invalid arguments": "The arguments don't fit the task's annotations.",
    "result not serialisable": "The work was done, but its result can't travel or is too large.",
    "unknown task": "No worker knew the task for `Config.unknown_task_ttl`.",
    "undecodable": "The message is nothing that can be read.",
    "not storable": "The backend refused to store the outcome.",
    "budget": "Its run had used up its budget.",
    "deadline": "The deadline of the run was over.",
    "expired": "It had not started when `expires` was over.",
    "revoked": "It was revoked.",
    "purged": "Its queue was purged.",
    "skipped": "What it depends on ended otherwise than it needs.",
    "not found": "There is no record of it.",
}
"""Why a job ended other than by success: `RemoteError.reason` and `handle.info.reason`."""
