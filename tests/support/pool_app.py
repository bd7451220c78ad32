"""The tasks that every pool runs in the pool conformance suite; those of coroutines begin with "a_"."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from decimal import Decimal
from typing import Any

from support.effects import record
from taskmq import App, Config, JobState, Reject, Retry, Task, TaskContext, current_task

APP = "support.pool_app:app"
LIFE = "worker"
"""Stands for the job in effects of the hooks around a worker's life."""
ONCE_MORE = Retry(max_attempts=2, base=0.01, jitter=False)

mark: ContextVar[str] = ContextVar("pool_mark", default="none")


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class TwoArguments(Exception):
    def __init__(self, first: str, second: str) -> None:
        super().__init__(first)


class Unreducible(Exception):
    def __init__(self) -> None:
        super().__init__("holds a lock")
        self.lock = threading.Lock()

    def __reduce__(self) -> Any:
        raise TypeError("never")


class BareBase(BaseException):
    pass


def note(what: str, **values: Any) -> None:
    """One effect, with the thread it happened on."""
    context = current_task()
    label = json.dumps({"thread": threading.get_ident(), "current": context.id, **values})
    record(what, label, context.id, context.attempt, context.deliveries)


def make_error(kind: str) -> BaseException:
    class InAClosure(Exception):
        pass

    cycle = ValueError("a cycle")
    cycle.__cause__ = ValueError("of causes")
    cycle.__cause__.__cause__ = cycle
    made: dict[str, BaseException] = {
        "plain": ValueError("plain"),
        "unprintable": Unprintable(),
        "two": TwoArguments("one", "two"),
        "unreducible": Unreducible(),
        "closure": InAClosure("inside"),
        "surrogate": ValueError("a \ud800 b \x00 c"),
        "huge": ValueError("x" * 3_000_000),
        "cycle": cycle,
        "exit": SystemExit(3),
        "interrupt": KeyboardInterrupt(),
        "generator": GeneratorExit(),
        "base": BareBase("bare"),
        "cancelled": asyncio.CancelledError("by itself"),
        "timeout": TimeoutError("its own"),
        "reject": Reject("not this one"),
        "stop": StopIteration("stop"),
    }
    return made[kind]


ERRORS: dict[str, tuple[str, str]] = {
    "plain": ("ValueError", "exception"),
    "unprintable": ("Unprintable", "exception"),
    "two": ("TwoArguments", "exception"),
    "unreducible": ("Unreducible", "exception"),
    "closure": ("InAClosure", "exception"),
    "surrogate": ("ValueError", "exception"),
    "huge": ("ValueError", "exception"),
    "cycle": ("ValueError", "exception"),
    "exit": ("SystemExit", "exception"),
    "interrupt": ("KeyboardInterrupt", "exception"),
    "generator": ("GeneratorExit", "exception"),
    "base": ("BareBase", "exception"),
    "cancelled": ("CancelledError", "exception"),
    "timeout": ("TimeoutError", "exception"),
    "reject": ("Reject", "rejected"),
    "stop": ("StopIteration", "exception"),
}
"""What each kind of error ends as: the type and the reason."""

RESULTS: dict[str, Any] = {
    "none": None,
    "text": "grüße \x00 ☃",
    "large int": 2**200,
    "decimal": Decimal("1.10"),
    "bytes": b"\x00\xff",
    "nested": {"a": [1, {"b": None}], "c": [[], {}]},
    "infinity": float("inf"),
    "set": {1, 2},
    "int keys": {1: "one"},
    "empty": "",
}


def make_unencodable(kind: str) -> Any:
    loop: list[Any] = []
    loop.append(loop)
    return {
        "object": object(),
        "lock": threading.Lock(),
        "generator": (n for n in range(3)),
        "function": make_error,
        "cycle": loop,
        "surrogate": "\ud800",
        "too big": "x" * 1_000_000,
        "exception": ValueError("a value"),
    }[kind]


UNENCODABLE = (
    "object", "lock", "generator", "function", "cycle", "surrogate", "too big", "exception",
)  # fmt: skip


class Hooks(Task):
    """Says what ran in which order, on which thread, and what the context was."""

    retry_policy = ONCE_MORE

    def before_start(self, ctx: Any) -> None:
        ctx.seen = "before"
        mark.set("before")
        note("before_start", mark=mark.get(), same=ctx is self.request)
        if ctx.args == ("refuse",):
            raise ValueError("refused")

    def on_success(self, ctx: Any, result: Any, runtime: float) -> None:
        self._note("on_success", ctx, result=result, timed=runtime >= 0)

    def on_retry(self, ctx: Any, exc: BaseException, delay: float) -> None:
        self._note("on_retry", ctx, exc=type(exc).__name__, delay=delay)

    def on_failure(self, ctx: Any, exc: BaseException) -> None:
        self._note("on_failure", ctx, exc=type(exc).__name__)

    def after_return(
        self,
        ctx: Any,
        state: JobState,
        result: Any = None,
        exc: BaseException | None = None,
    ) -> None:
        self._note("after_return", ctx, state=state.value)

    def _note(self, what: str, ctx: Any, **values: Any) -> None:
        stored = ctx.app.transport.get_jobs([ctx.id])[0]
        assert stored is not None
        note(what, mark=mark.get(), seen=ctx.seen, stored=stored.state.value, **values)
        if ctx.args == ("hook raises",):
            raise RuntimeError("hook")

    def work(self, how: str) -> str:
        ctx: Any = self.request
        ctx.seen = "run"
        mark.set("run")
        note("run", mark=mark.get())
        if how == "fail":
            raise ValueError("no")
        return how


class SyncHooks(Hooks):
    name = "hooks"

    def run(self, how: str) -> str:
        return self.work(how)


class AsyncHooks(Hooks):
    name = "a_hooks"

    async def run(self, how: str) -> str:
        await asyncio.sleep(0)
        return self.work(how)


def raises(kind: str) -> None:
    raise make_error(kind)


async def a_raises(kind: str) -> None:
    await asyncio.sleep(0)
    raise make_error(kind)


def returns(kind: str) -> Any:
    return RESULTS[kind] if kind in RESULTS else make_unencodable(kind)


async def a_returns(kind: str) -> Any:
    await asyncio.sleep(0)
    return returns(kind)


def add(a: int, b: int) -> int:
    return a + b


async def a_add(a: int, b: int) -> int:
    return a + b


def context(number: int) -> dict[str, Any]:
    found = mark.get()
    mark.set(f"job {number}")
    ctx: Any = current_task()
    ctx.number = number
    time.sleep(0.002)
    return {"id": ctx.id, "mark": found, "args": list(ctx.args), "number": ctx.number}


async def a_context(number: int) -> dict[str, Any]:
    found = mark.get()
    mark.set(f"job {number}")
    ctx: Any = current_task()
    ctx.number = number
    await asyncio.sleep(0.002)
    # Also in coroutines and threads that the task starts.
    inner = await asyncio.gather(asyncio.to_thread(current_task), _inner())
    assert {id(each) for each in inner} == {id(ctx)}
    assert mark.get() == f"job {number}"
    return {"id": ctx.id, "mark": found, "args": list(ctx.args), "number": ctx.number}


async def _inner() -> TaskContext:
    return current_task()


def polite(seconds: float = 30.0) -> str:
    """Write a line now and then, and end when asked."""
    ctx = current_task()
    note("start")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        note("line")
        ctx.check_cancelled()
        time.sleep(0.02)
    return "not asked"


async def a_polite(seconds: float = 30.0) -> str:
    note("start")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        note("line")
        await asyncio.sleep(0.02)
    return "not asked"


def step(label: str, seconds: float) -> None:
    note("start", label=label)
    time.sleep(seconds)
    note("end", label=label)


async def a_step(label: str, seconds: float) -> None:
    note("start", label=label)
    await asyncio.sleep(seconds)
    note("end", label=label)


def own_timeout() -> None:
    raise TimeoutError("of its own")


async def a_own_timeout() -> None:
    await asyncio.wait_for(asyncio.Event().wait(), 0.01)


def deaf(seconds: float) -> str:
    """Catch everything, and go on."""
    note("start")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            current_task().check_cancelled()
            time.sleep(0.01)
        except BaseException:
            time.sleep(0.01)
    note("end")
    return "late"


async def a_deaf(seconds: float) -> str:
    note("start")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            await asyncio.sleep(0.01)
        except BaseException:
            note("told")
    note("end")
    return "late"


def _add_life_hook(made: App, what: str) -> None:
    async def hook() -> None:
        await asyncio.sleep(0)
        record(f"worker {what}", json.dumps({"thread": threading.get_ident()}), LIFE)
        if os.environ.get("FAIL_AT_START") and what == "start":
            raise OSError("no route")

    (made.on_worker_start if what == "start" else made.on_worker_stop)(hook)


def make_app(config: Config) -> App:
    """The app, with the same tasks in every process."""
    made = App(config)
    made.register(SyncHooks)
    for what in ("start", "stop"):
        _add_life_hook(made, what)
    functions: list[Callable[..., Any]] = [raises, returns, add, context, polite, step, own_timeout]
    for function in functions:
        made.task(name=function.__name__)(function)
    made.task(name="deaf", hard_timeout=0.5)(deaf)
    made.task(name="deaf_retried", hard_timeout=0.5, retry=ONCE_MORE)(deaf)
    made.task(name="timed", timeout=0.2)(polite)
    made.task(name="own_timed", timeout=5)(own_timeout)
    made.task(name="timed_retried", timeout=0.2, retry=ONCE_MORE)(polite)
    return made


def make_async_app(config: Config) -> App:
    """The same, with the coroutines beside them."""
    made = make_app(config)
    made.register(AsyncHooks)
    functions: list[Callable[..., Any]] = [
        a_raises,
        a_returns,
        a_add,
        a_context,
        a_polite,
        a_step,
        a_own_timeout,
    ]
    for function in functions:
        made.task(name=function.__name__)(function)
    made.task(name="a_deaf", hard_timeout=0.5)(a_deaf)
    made.task(name="a_deaf_retried", hard_timeout=0.5, retry=ONCE_MORE)(a_deaf)
    made.task(name="a_timed", timeout=0.2)(a_polite)
    made.task(name="a_own_timed", timeout=5)(a_own_timeout)
    made.task(name="a_timed_retried", timeout=0.2, retry=ONCE_MORE)(a_polite)
    return made


app = make_app(Config())
