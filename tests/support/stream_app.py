"""The app of a steady stream of jobs: each takes some milliseconds and leaves one byte behind."""

from __future__ import annotations

import os
import time

from support.effects import ENV
from taskmq import App, Config

app = App(Config())
_COUNTER = os.open(os.environ[ENV], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


@app.task(name="drop")
def drop(seconds: float) -> None:
    """Take so long, then count by one."""
    time.sleep(seconds)
    os.write(_COUNTER, b".")
