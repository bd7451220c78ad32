"""Puts the wall clock of this process where a file says: a host whose clock is set while it works.

The file holds the offset in seconds; every process that names it sees the same steps, as the processes
of one host do.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

ENV = "CLOCK_OFFSET_FILE"

_real = time.time


def step(path: Path, offset: float) -> None:
    """Set the offset of every process that reads this file."""
    beside = path.with_suffix(".new")
    beside.write_text(repr(offset))
    beside.replace(path)


def follow(path: str) -> None:
    """From now on this process's wall clock is off by what the file says."""

    def stepped() -> float:
        with contextlib.suppress(OSError):
            return _real() + float(Path(path).read_text())
        return _real()

    time.time = stepped


def follow_environment() -> None:
    """Follow the file that the environment names, if it names one."""
    if os.environ.get(ENV):
        follow(os.environ[ENV])
