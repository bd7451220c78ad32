"""The app whose tasks the children of the pool `processes` run in tests, and what a worker needs of it."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from support.effects import record
from taskmq import App, Config, Retry, Task, current_task

APP = "support.process_app:app"
ONCE_MORE = Retry(max_attempts=2, base=0.01, jitter=False)

_mark: ContextVar[str] = ContextVar("mark", default="none")
_kept: list[bytes] = []


class TwoArguments(Exception):
    def __init__(self, first: str, second: str) -> None:
        super().__init__(first)


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Lazy(Exception):
    def __init__(self) -> None:
        super().__init__("holds a lock")
        self.lock = threading.Lock()


def noop() -> None:
    return None


def add(a: int, b: int) -> int:
    return a + b


def where() -> dict[str, Any]:
    context = current_task()
    before = _mark.get()
    _mark.set("used")
    return {
        "pid": os.getpid(),
        "thread": threading.current_thread() is threading.main_thread(),
        "id": context.id,
        "attempt": context.attempt,
        "worker": context.worker,
        "mark": before,
    }


def note(label: str, seconds: float = 0.0) -> None:
    context = current_task()
    record("start", label, context.id, context.attempt, context.deliveries)
    time.sleep(seconds)
    record("end", label, context.id, context.attempt, context.deliveries)


def raises(kind: str) -> None:
    class InAClosure(Exception):
        pass

    if kind == "exit":
        sys.exit(0)
    if kind == "interrupt":
        raise KeyboardInterrupt
    raise {
        "two": TwoArguments("one", "two"),
        "lock": Lazy(),
        "closure": InAClosure("inside"),
        "unprintable": Unprintable(),
        "surrogate": ValueError("a \ud800 b \x00 c"),
    }[kind]


def returns(kind: str) -> Any:
    return {"object": object(), "lock": threading.Lock(), "big": "x" * 1_000_000}[kind]


def die(how: str, attempts: int = 1) -> str:
    context = current_task()
    record("start", how, context.id, context.attempt, context.deliveries)
    if context.attempt <= attempts:
        if how == "segfault":
            ctypes.string_at(0)
        elif how == "exit":
            os._exit(0)
        elif how == "closed":
            os.closerange(3, 100)
            time.sleep(60)
        else:
            os.kill(os.getpid(), getattr(signal, how))
        time.sleep(60)
    return "survived"


def stubborn(seconds: float = 60.0) -> None:
    """Ignore whatever can be ignored."""
    context = current_task()
    record("start", "stubborn", context.id, context.attempt, context.deliveries)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            context.check_cancelled()
            time.sleep(0.01)
        except BaseException:
            record("told", "stubborn", context.id, context.attempt, context.deliveries)
            time.sleep(0.05)


def polite(seconds: float = 60.0) -> None:
    context = current_task()
    record("start", "polite", context.id, context.attempt, context.deliveries)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        context.check_cancelled()
        time.sleep(0.01)


def native(seconds: float) -> None:
    """Hold the interpreter's lock in native code."""
    context = current_task()
    record("start", "native", context.id, context.attempt, context.deliveries)
    ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))
    record("end", "native", context.id, context.attempt, context.deliveries)


def nearly(seconds: float) -> str:
    """End at about its hard timeout, with a large result."""
    time.sleep(seconds)
    return "x" * 1_000_000


def families(count: int) -> int:
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    numbers = range(count)
    with get_context("fork").Pool(2) as pool:
        first = sum(pool.map(int.__abs__, numbers))
    with ProcessPoolExecutor(2) as executor:
        return first + sum(executor.map(int.__abs__, numbers))


def parent_of_two(seconds: float = 60.0) -> None:
    """Start two grandchildren, one by exec and one by fork, and wait."""
    first = subprocess.Popen(["sleep", "60"])
    second = os.fork()
    if not second:
        time.sleep(60)
        os._exit(0)
    record("grandchildren", f"{first.pid},{second}")
    time.sleep(seconds)


def publishes(now: bool, fail: bool = False) -> str:
    handle = current_task().publish("add", 1, 2, now=now)
    if fail:
        raise ValueError("after publishing")
    return handle.id


def delays() -> str:
    return current_task().app.tasks["add"].delay(3, 4).id


def waits_for_child() -> int:
    result: int = current_task().app.tasks["add"].delay(3, 4).get(timeout=10, inside_task=True)
    return result


def progress() -> None:
    context = current_task()
    context.update_meta(stage="half")
    context.heartbeat()
    time.sleep(0.2)


def logs() -> None:
    logging.getLogger("support.tasks").warning("hello from %s", os.getpid())
    current_task().log.info("with fields", number=1)


def grows(size: int) -> int:
    _kept.append(b"x" * size)
    return os.getpid()


class Hooked(Task):
    """Records which hooks ran, where, and what the transport said of the job by then."""

    name = "hooked"
    retry_policy = ONCE_MORE

    def run(self, how: str) -> str:
        if how == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "hang in hook" and current_task().attempt == 1:
            return how
        if how == "fail":
            raise ValueError("no")
        return how

    def on_success(self, ctx: Any, result: Any, runtime: float) -> None:
        state = ctx.app.transport.get_jobs([ctx.id])[0].state.value
        record("on_success", f"{state} {current_task().id == ctx.id}")
        if result == "hang in hook":
            time.sleep(60)
        if result == "raise in hook":
            raise RuntimeError("hook")

    def on_retry(self, ctx: Any, exc: BaseException, delay: float) -> None:
        record("on_retry", type(exc).__name__)

    def on_failure(self, ctx: Any, exc: BaseException) -> None:
        record("on_failure", type(exc).__name__)

    def after_return(self, ctx: Any, state: Any, result: Any = None, exc: Any = None) -> None:
        record("after_return", state.value)


_PLAIN: list[Callable[..., Any]] = [
    *(noop, add, where, note, raises, returns, stubborn, polite, native, families),
    *(parent_of_two, publishes, delays, waits_for_child, progress, logs, grows),
]


def make_app(config: Config | None = None) -> App:
    """An app with all of these tasks."""
    made = App(config)
    for function in _PLAIN:
        made.task(name=function.__name__)(function)
    made.task(name="die", retry=ONCE_MORE)(die)
    made.task(name="die_received", ack="on_receipt")(die)
    made.task(name="nearly", hard_timeout=0.3, retry=ONCE_MORE)(nearly)
    made.register(Hooked)
    return made


app = make_app()
