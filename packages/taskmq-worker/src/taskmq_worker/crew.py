"""The worker's threads: started as daemons, watched, joined by name."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger("taskmq.worker")


class Crew:
    """Starts threads named `taskmq-…`, and says when one of them fails.

    They are daemons: a thread that is stuck in a task must not keep the process from ending.
    """

    def __init__(self, on_failure: Callable[[], None]) -> None:
        self.failure: BaseException | None = None
        self._on_failure = on_failure
        self._threads: list[threading.Thread] = []

    def spawn(self, name: str, target: Callable[[], None]) -> None:
        """Start a thread. That it ends with an error is logged, kept and reported."""

        def watched() -> None:
            try:
                target()
            # A loop that fails must not do so silently, whatever the error is.
            except BaseException as error:  # noqa: BLE001
                _log.critical("the worker's %s failed; the worker stops", name, exc_info=True)
                self.failure = error
                self._on_failure()

        thread = threading.Thread(target=watched, name=f"taskmq-{name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def join(self, prefix: str, timeout: float = 30.0) -> None:
        """Wait for the threads whose names begin so; the current one is left out."""
        for thread in self._threads:
            mine = thread.name.startswith(f"taskmq-{prefix}")
            if mine and thread is not threading.current_thread():
                thread.join(timeout)
