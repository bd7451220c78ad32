"""The app that child processes of the tests run: every task writes to the effect log."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from support.effects import record
from support.stepped_clock import follow_environment
from taskmq import App, Config, Retry, current_task

follow_environment()
app = App(Config())


def _note(what: str, label: str) -> None:
    context = current_task()
    record(what, label, context.id, context.attempt, context.deliveries)


@app.task(name="work")
def work(label: str, seconds: float = 0.0) -> str:
    """Start, take a while, end."""
    _note("start", label)
    if seconds:
        time.sleep(seconds)
    _note("end", label)
    return label


@app.task(name="gate")
def gate(label: str, path: str) -> str:
    """Start, and end only once the file exists: tests decide when."""
    _note("start", label)
    while not Path(path).exists():
        time.sleep(0.005)
    _note("end", label)
    return label


@app.task(name="polite")
def polite(label: str) -> None:
    """Run until told to stop, writing a line again and again."""
    context = current_task()
    _note("start", label)
    while True:
        context.check_cancelled()
        _note("tick", label)
        time.sleep(0.02)


@app.task(name="limited", rate_limit="20/s", rate_scope="cluster")
def limited(label: str) -> str:
    """Start at most 20 times a second, on all workers together."""
    _note("start", label)
    return label


@app.task(name="keyed", concurrency_key="key:{key}", concurrency_limit=2)
def keyed(label: str, key: str, seconds: float = 0.0) -> str:
    """At most two at a time for one key."""
    _note("start", label)
    time.sleep(seconds)
    _note("end", label)
    return label


@app.task(name="poison")
def poison(label: str) -> None:
    """Kill the worker that runs it."""
    _note("start", label)
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


@app.task(name="exit_once")
def exit_once(label: str) -> str:
    """End the worker's process on the first delivery, succeed on the next."""
    _note("start", label)
    if current_task().deliveries == 1:
        os._exit(9)
    _note("end", label)
    return label


@app.task(name="fail_once", retry=Retry(max_attempts=3, base=0.01, jitter=False))
def fail_once(label: str) -> str:
    """Fail on the first attempt."""
    _note("start", label)
    if current_task().attempt == 1:
        raise ValueError("the first attempt fails")
    _note("end", label)
    return label


@app.task(name="lease_1", lease=1.0)
def lease_1(label: str) -> str:
    """Hang on the first delivery, under a short lease of its own."""
    return _hang_once(label)


@app.task(name="lease_4", lease=4.0)
def lease_4(label: str) -> str:
    """Hang on the first delivery, under a longer lease of its own."""
    return _hang_once(label)


def _hang_once(label: str) -> str:
    _note("start", label)
    if current_task().deliveries == 1:
        time.sleep(60)
    return label
