"""What tests of tasks and of backends need. Nothing here imports pytest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taskmq.clock import Clock, FakeClock
from taskmq.testing.eager import eager_app
from taskmq.testing.runtime import run_until_idle, worker_for

if TYPE_CHECKING:
    from taskmq.testing.conformance import (
        conformance_params,
        result_store_conformance,
        result_store_params,
        transport_conformance,
    )

__all__ = [
    "Clock",
    "FakeClock",
    "conformance_params",
    "eager_app",
    "result_store_conformance",
    "result_store_params",
    "run_until_idle",
    "transport_conformance",
    "worker_for",
]


def __getattr__(name: str) -> Any:
    if name.endswith(("_conformance", "_params")) and name in __all__:
        # The scenarios are large, and only tests of backends need them.
        from taskmq.testing import conformance

        return getattr(conformance, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
