"""An effect log outside taskmq: what the tasks really did, one line a start or an end.

Tests assert on this file, not on taskmq's own status. A line is written with one `write` on a file
opened for appending, so that lines of many processes never mix and a SIGKILL leaves whole lines.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

ENV = "EFFECT_LOG"


class Effect(NamedTuple):
    """One line: which job did what, in which process and thread, and when (monotonic)."""

    what: str
    label: str
    job: str
    attempt: int
    deliveries: int
    pid: int
    at: float


def record(what: str, label: str, job: str = "", attempt: int = 0, deliveries: int = 0) -> None:
    """Append one effect to the log named by the environment."""
    line = json.dumps([what, label, job, attempt, deliveries, os.getpid(), time.monotonic()]) + "\n"
    fd = os.open(os.environ[ENV], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(fd, line.encode())
    finally:
        os.close(fd)


class EffectLog:
    """Reads the log."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def all(self, what: str | None = None) -> list[Effect]:
        """The effects so far in the order of their writing."""
        if not self.path.exists():
            return []
        effects = [Effect(*json.loads(line)) for line in self.path.read_text().splitlines()]
        return [effect for effect in effects if what is None or effect.what == what]

    def counts(self, what: str) -> Counter[str]:
        """How often each label did this."""
        return Counter(effect.label for effect in self.all(what))
