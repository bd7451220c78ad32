"""An event loop on a thread of its own, for the worker's life, and the watch over it."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from typing import TYPE_CHECKING, Any, TypeVar

from taskmq.clock import SYSTEM_CLOCK
from taskmq_worker.pools.hands import DaemonExecutor

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

_log = logging.getLogger("taskmq.worker")
_monotonic = SYSTEM_CLOCK.monotonic

T = TypeVar("T")

BLOCKED_AFTER = 1.0
"""How late the loop may answer before it counts as blocked, seconds."""
_LOOK_EVERY = 0.5
_STACK_FRAMES = 12
_TO_THREAD = 32


class LoopThread:
    """Runs an event loop until `end`, whatever the code on it raises."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._executor = DaemonExecutor(_TO_THREAD)
        self.loop.set_default_executor(self._executor)
        self.thread = threading.Thread(target=self._run, name="taskmq-loop", daemon=True)
        self._ending = False

    def start(self) -> None:
        """Start the thread."""
        self.thread.start()

    def tell(self, function: Callable[..., object], *args: Any) -> bool:
        """Call this on the loop soon; False when the loop has ended."""
        try:
            self.loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            return False
        return True

    def run(self, coroutine: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run a coroutine there and wait for it, from another thread."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        return future.result(timeout)

    def end(self, timeout: float) -> None:
        """Cancel what is left and end the loop; a loop that is blocked is left alone."""
        self._ending = True
        self.tell(self.loop.stop)
        self.thread.join(timeout)
        self._executor.shutdown(wait=False)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        while not self._ending:
            try:
                self.loop.run_forever()
            # SystemExit of a coroutine comes out here; the loop can go on.
            except BaseException:  # noqa: BLE001
                _log.error("an error came out of the event loop, which goes on", exc_info=True)
        try:
            self.loop.run_until_complete(self._wind_up())
        finally:
            self.loop.close()

    async def _wind_up(self) -> None:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=1.0)
        await self.loop.shutdown_asyncgens()


class LoopWatch:
    """Notices that the loop does not answer, and says what holds it up.

    Args:
        loop: What is watched, while `busy` says that there is something to run.
        busy: Whether anything runs there.
        report: Told the stack, and the loop's current task, once for each time it is blocked.
    """

    def __init__(
        self,
        loop: LoopThread,
        busy: Callable[[], bool],
        report: Callable[[str, asyncio.Task[Any] | None], str],
    ) -> None:
        self._loop = loop
        self._busy = busy
        self._report = report
        self._answered = threading.Event()
        self._wake = threading.Event()
        self._closing = False
        self.sleeping = False
        """Nothing runs, so nothing is watched: `wake` it when that changes."""
        self.blocked: str | None = None
        """What blocks the loop at this moment."""

    def wake(self) -> None:
        """Something runs now."""
        self._wake.set()

    def close(self) -> None:
        """End the thread."""
        self._closing = True
        self._wake.set()
        self._answered.set()

    def run(self) -> None:
        """The thread."""
        while not self._closing:
            if not self._busy():
                self.sleeping = True
                if not self._busy():
                    self._wake.wait()
                self.sleeping = False
                self._wake.clear()
                continue
            if not self._look():
                return
            self._wake.wait(_LOOK_EVERY)
            self._wake.clear()

    def _look(self) -> bool:
        """Have the loop answer, however long that takes; False when it has ended."""
        self._answered.clear()
        asked = _monotonic()
        if not self._loop.tell(self._answered.set):
            return False
        if self._answered.wait(BLOCKED_AFTER):
            return True
        # Much later than asked for: this process stood still, and the loop with it.
        if _monotonic() - asked < 2 * BLOCKED_AFTER and not self._closing:
            self.blocked = self._report(self._stack(), self._current())
        self._answered.wait()
        if self.blocked is not None:
            self.blocked = None
            _log.warning("the event loop goes on after %.1f s", _monotonic() - asked)
        return True

    def _stack(self) -> str:
        # Private by its name, documented all the same: there is no other way to see another thread.
        frames_of = sys._current_frames  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        frame = frames_of().get(self._loop.thread.ident or 0)
        if frame is None:
            return ""
        frames = traceback.extract_stack(frame)[-_STACK_FRAMES:]
        return "".join(traceback.format_list(frames))

    def _current(self) -> asyncio.Task[Any] | None:
        return asyncio.current_task(self._loop.loop)
