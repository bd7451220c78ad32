"""Waiting for a condition instead of sleeping, with patience for slow machines."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 3.0
"""How much slower than the desk a machine may be before a wait is given up."""


def wait_until(
    condition: Callable[[], T],
    timeout: float = 10.0,
    interval: float = 0.005,
    *,
    what: str = "",
) -> T:
    """Return the first true value of `condition`; fail when `timeout` seconds bring none.

    The time is meant for a machine at rest, and multiplied by `PATIENCE`: a wait that ends well costs
    nothing by it. What must not take longer is measured and asserted, never left to a wait.
    """
    timeout *= PATIENCE
    end = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= end:
            name = what or getattr(condition, "__qualname__", "the condition")
            raise AssertionError(f"waited {timeout} s for {name}; last value: {value!r}")
        time.sleep(interval)
