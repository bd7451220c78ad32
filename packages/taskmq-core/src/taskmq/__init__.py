"""taskmq: a distributed task queue. `App`, `Config`, `Task` and what belongs to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskmq.app import App
from taskmq.config import Config, QueueConfig
from taskmq.context import TaskContext, current_task
from taskmq.errors import (
    ConfigError,
    LeaseLost,
    MessageTooLarge,
    Reject,
    RemoteError,
    ResultTimeout,
    TaskError,
    TransportError,
    TransportUnavailable,
)
from taskmq.handle import TaskHandle
from taskmq.middleware import Middleware
from taskmq.priority import Priority
from taskmq.protocol.envelope import Envelope
from taskmq.retry import Retry, RetryRequest
from taskmq.states import JobState
from taskmq.task import Task

if TYPE_CHECKING:
    __version__: str
    """The version of taskmq-core, from its installed metadata."""

__all__ = [
    "App",
    "Config",
    "ConfigError",
    "Envelope",
    "JobState",
    "LeaseLost",
    "MessageTooLarge",
    "Middleware",
    "Priority",
    "QueueConfig",
    "Reject",
    "RemoteError",
    "ResultTimeout",
    "Retry",
    "RetryRequest",
    "Task",
    "TaskContext",
    "TaskError",
    "TaskHandle",
    "TransportError",
    "TransportUnavailable",
    "__version__",
    "current_task",
]


def __getattr__(name: str) -> str:
    if name == "__version__":
        # Not at import: reading metadata costs more than all the rest.
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("taskmq-core")
        except PackageNotFoundError:
            return "0+unknown"
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
