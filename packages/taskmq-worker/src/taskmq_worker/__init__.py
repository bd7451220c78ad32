"""The taskmq worker: what runs jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taskmq_worker.worker import NotIdle, Worker

__all__ = ["NotIdle", "Worker"]


def __getattr__(name: str) -> Any:
    # A child of a worker starts faster when it need not import the worker itself.
    if name in __all__:
        from taskmq_worker import worker

        return getattr(worker, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
