"""Clocks: the only place that asks the system for the time."""

from __future__ import annotations

import threading
import time
from functools import partial


class Clock:
    """The system's clocks. Transports and workers take one, so that tests can give their own."""

    def monotonic(self) -> float:
        """Seconds that never run backwards; they go on while the machine sleeps where it can tell."""
        return _monotonic()

    def time(self) -> float:
        """UTC seconds since the epoch."""
        return time.time()


class FakeClock(Clock):
    """A clock that stands still until it is told to advance. Safe to share between threads."""

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._lock = threading.Lock()
        self._time = float(start)
        self._monotonic = 0.0

    def advance(self, seconds: float) -> float:
        """Move both clocks forward and return the new time.

        Raises:
            ValueError: `seconds` is negative; use `set_time` to put the wall clock back.
        """
        if seconds < 0:
            raise ValueError(f"a clock can't advance by {seconds} seconds; use set_time to go back")
        with self._lock:
            self._time += seconds
            self._monotonic += seconds
            return self._time

    def monotonic(self) -> float:
        """Seconds advanced since the clock was made."""
        return self._monotonic

    def set_time(self, epoch: float) -> None:
        """Put the wall clock forward or back, as NTP would; the monotonic clock stays."""
        with self._lock:
            self._time = float(epoch)

    def time(self) -> float:
        """The time it stands at."""
        return self._time


# CLOCK_MONOTONIC stops while a laptop or VM sleeps, and a lease judged by it would outlive the
# server's. Only Linux has the other one. A partial: every job looks at the clock several times.
_monotonic = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME)
    if hasattr(time, "CLOCK_BOOTTIME")
    else time.monotonic
)

SYSTEM_CLOCK = Clock()
"""The clock that is used unless another is given."""
