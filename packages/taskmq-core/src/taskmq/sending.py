"""Submitting from event loops: one thread for the whole app sends what has gathered in one call.

A call that waits for the backend in a thread of the loop's own executor would be one thread each: with
the backend away a handful of them would fill it up, and with it everything else of the program.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from taskmq.errors import TransportUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from taskmq.transport.types import Enqueued, Message

logger = logging.getLogger("taskmq.sending")

MAX_BATCH = 1_000
_LINGER = 1.0


class _Letter(NamedTuple):
    message: Message
    future: asyncio.Future[Enqueued]


class SendHub:
    """Turns `enqueue` into something to await. Its thread starts with the first call and ends when idle.

    Args:
        enqueue: Stores messages, all or none.
    """

    def __init__(self, enqueue: Callable[[Sequence[Message]], list[Enqueued]]) -> None:
        self._enqueue = enqueue
        self._thread: threading.Thread | None = None
        self._reset()

    async def send(self, message: Message) -> Enqueued:
        """Send a message with the next batch. One that is not awaited to the end may be stored."""
        future: asyncio.Future[Enqueued] = asyncio.get_running_loop().create_future()
        self._put(_Letter(message, future))
        return await future

    def _put(self, letter: _Letter) -> None:
        if self._pid != os.getpid():
            self._reset()
        with self._changed:
            self._letters.append(letter)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="taskmq-send", daemon=True)
                self._thread.start()
            else:
                self._changed.notify()

    def _reset(self) -> None:
        # Also in a forked child, which has neither the thread nor its loops.
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._letters: list[_Letter] = []
        self._thread = None

    def _run(self) -> None:
        while letters := self._next():
            try:
                stored = self._enqueue([letter.message for letter in letters])
            except TransportUnavailable as error:
                for letter in letters:
                    _tell(letter, error=error)
            # Whatever a backend raises belongs to the callers.
            except Exception as error:  # noqa: BLE001
                self._one_by_one(letters, error)
            else:
                for letter, each in zip(letters, stored, strict=True):
                    _tell(letter, result=each)

    def _next(self) -> list[_Letter]:
        """What has gathered; nothing when the thread is to end."""
        with self._changed:
            if not self._letters:
                self._changed.wait(_LINGER)
            letters, self._letters = self._letters[:MAX_BATCH], self._letters[MAX_BATCH:]
            if not letters:
                self._thread = None
            return letters

    def _one_by_one(self, letters: list[_Letter], error: Exception) -> None:
        """The backend refused the batch: only the one at fault must hear of it."""
        if len(letters) == 1:
            _tell(letters[0], error=error)
            return
        for letter in letters:
            try:
                stored = self._enqueue([letter.message])
            # As above.
            except Exception as refusal:  # noqa: BLE001
                _tell(letter, error=refusal)
            else:
                _tell(letter, result=stored[0])


def _tell(letter: _Letter, *, result: Any = None, error: Exception | None = None) -> None:
    future = letter.future

    def set_it() -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    try:
        future.get_loop().call_soon_threadsafe(set_it)
    except RuntimeError:
        # Its loop has ended meanwhile; nobody waits any more.
        logger.debug("a job was submitted after its event loop had ended")
