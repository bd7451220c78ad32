"""The hooks around a worker's life: `app.on_worker_start`, `app.on_worker_stop`."""

from __future__ import annotations

import inspect
import logging
from typing import TYPE_CHECKING, Any

from taskmq.errors import TaskmqError

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskmq import App

_log = logging.getLogger("taskmq.worker")


def start(app: App) -> None:
    """Call the start hooks of a process without an event loop of its own; async ones to their end.

    Raises:
        TaskmqError: One failed: the worker must not start.
    """
    for hook in app.worker_start_hooks:
        try:
            _finish(hook())
        # Hooks are the app's code and may raise anything.
        except BaseException as error:
            raise _failed(hook, error) from error


def stop(app: App) -> None:
    """Call the stop hooks, the last one first; errors are logged."""
    for hook in reversed(app.worker_stop_hooks):
        try:
            _finish(hook())
        # The others must run whatever one raises.
        except BaseException:  # noqa: BLE001
            _log.error("the on_worker_stop hook %s failed", _name(hook), exc_info=True)


async def start_here(app: App) -> None:
    """Call the start hooks on the running event loop.

    Raises:
        TaskmqError: One failed: the worker must not start.
    """
    for hook in app.worker_start_hooks:
        try:
            result = hook()
            if inspect.isawaitable(result):
                await result
        # Hooks are the app's code and may raise anything.
        except BaseException as error:
            raise _failed(hook, error) from error


async def stop_here(app: App) -> None:
    """Call the stop hooks on the running event loop, the last one first; errors are logged."""
    for hook in reversed(app.worker_stop_hooks):
        try:
            result = hook()
            if inspect.isawaitable(result):
                await result
        # The others must run whatever one raises.
        except BaseException:  # noqa: BLE001
            _log.error("the on_worker_stop hook %s failed", _name(hook), exc_info=True)


def _failed(hook: Callable[[], Any], error: BaseException) -> TaskmqError:
    return TaskmqError(
        f"the on_worker_start hook {_name(hook)} failed, so the worker does not start: "
        f"{type(error).__name__}: {error}"
    )


def _finish(result: Any) -> None:
    if inspect.isawaitable(result):
        # A worker without async code does without it.
        import asyncio

        async def wait() -> None:
            await result

        asyncio.run(wait())


def _name(hook: Callable[[], Any]) -> str:
    return getattr(hook, "__qualname__", repr(hook))
