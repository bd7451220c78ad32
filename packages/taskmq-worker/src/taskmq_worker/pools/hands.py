"""Threads made on demand: for sync tasks beside an event loop, and for what coroutines run in threads."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import ParamSpec

    P = ParamSpec("P")

T = TypeVar("T")


class Hands:
    """Runs calls on daemon threads: an idle one if there is any, else a new one up to a limit.

    A call that returns False ends its thread (which another has replaced).
    """

    def __init__(
        self, spawn: Callable[[str, Callable[[], None]], None], name: str, most: int
    ) -> None:
        self._spawn = spawn
        self._name = name
        self._most = most
        self._lock = threading.Lock()
        self._queue: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._numbers = itertools.count()
        self._threads = 0
        self._free = 0
        """Waiting threads without queued calls; below 0, as many calls wait for a thread."""

    def run(self, call: Callable[[], object]) -> None:
        """Have a thread make the call, now or as soon as one is free."""
        with self._lock:
            self._free -= 1
            grow = self._free < 0 and self._threads < self._most
            if grow:
                self._add()
        self._queue.put(call)
        if grow:
            self._spawn(f"{self._name}-{next(self._numbers)}", self._serve)

    def replace(self) -> None:
        """A thread is stuck and counts no more."""
        with self._lock:
            self._threads -= 1
            grow = self._free < 0
            if grow:
                self._add()
        if grow:
            self._spawn(f"{self._name}-{next(self._numbers)}", self._serve)

    def close(self) -> None:
        """End the threads as they become free."""
        with self._lock:
            threads, self._most = self._threads, 0
        for _ in range(threads):
            self._queue.put(None)

    def _add(self) -> None:
        self._threads += 1
        self._free += 1

    def _serve(self) -> None:
        while (call := self._queue.get()) is not None:
            if call() is False:
                return
            with self._lock:
                self._free += 1


class DaemonExecutor(ThreadPoolExecutor):
    """The loop's executor (`asyncio.to_thread`): a thread that is stuck can't keep the process alive.

    The standard one's threads are waited for when the interpreter exits.
    """

    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        self._hands = Hands(_start_thread, "taskmq-to-thread", workers)
        self._closed = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run it on a daemon thread."""
        if self._closed:
            raise RuntimeError("the worker has ended: nothing can be submitted any more")
        future: Future[T] = Future()

        def call() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            # It is handed on to whoever awaits the future.
            except BaseException as error:  # noqa: BLE001
                future.set_exception(error)
            else:
                future.set_result(result)

        self._hands.run(call)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the threads as they become free; nothing is waited for."""
        self._closed = True
        self._hands.close()
        super().shutdown(wait=False, cancel_futures=cancel_futures)


def _start_thread(name: str, target: Callable[[], Any]) -> None:
    threading.Thread(target=target, name=name, daemon=True).start()
