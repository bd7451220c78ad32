"""Middleware: code of the app around every attempt of every task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from taskmq.context import TaskContext


class Middleware(Protocol):
    """A callable that wraps `before_start` and `run` of each attempt.

    ```python
    def timing(ctx, call_next):
        with statsd.timer(ctx.task.name):
            return call_next()
    ```

    It returns what `call_next` returned, or another result. What it raises counts like an exception
    of the body. Around an `async def` task `call_next` returns an awaitable, and the middleware may be
    `async def` itself.
    """

    def __call__(self, ctx: TaskContext, call_next: Callable[[], Any], /) -> Any:
        """Run the rest of the attempt and return its result."""


def wrap(middleware: Sequence[Middleware], ctx: TaskContext, body: Callable[[], Any]) -> Any:
    """Call `body` inside all middleware, the first one outermost."""
    call = body
    for each in reversed(middleware):
        call = _bind(each, ctx, call)
    return call()


def _bind(middleware: Middleware, ctx: TaskContext, call: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: middleware(ctx, call)
