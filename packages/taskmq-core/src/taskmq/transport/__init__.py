"""The transport contract (`contract`, `types`) and the built-in backends `memory` and `sqlite`."""

from __future__ import annotations

from taskmq.transport.contract import (
    JobRole,
    LeaseRole,
    MessageRole,
    RateRole,
    ResultStore,
    Transport,
    WorkerRole,
    completion_token,
    parse_completion_token,
)

__all__ = [
    "JobRole",
    "LeaseRole",
    "MessageRole",
    "RateRole",
    "ResultStore",
    "Transport",
    "WorkerRole",
    "completion_token",
    "parse_completion_token",
]
