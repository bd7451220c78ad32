"""Wake-ups between threads and processes that share the file: who sleeps, and for what.

A board in shared memory holds a stamp for each of 1,024 hashed queues and a flag for each sleeper;
a sleeper blocks on a datagram socket of its own. Telling nobody costs a look at 256 bytes. What is
written here is a hint: a waiter looks at the stamps again every second, so a lost datagram costs
little, and where there is no board the file's change counter is read instead.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Literal
from zlib import crc32

from taskmq.transport.sqlite.board import BY_JOB, BY_QUEUE, SharedBoard, Sleeper

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

POLL = 0.02
"""How often to look where nobody can send a wake-up, seconds."""
_LOOK_AGAIN = 1.0
_MAX_NAMES = 1_000

Woken = Literal["called", "told", "time"]
"""Why a sleep ended: `wake`, something on the board, or the time given."""


class Board:
    """One process's side of the wake-ups."""

    def __init__(self, path: str, changes: Callable[[], int]) -> None:
        self._path = path
        self._changes = changes
        self._closed = False
        self._fresh()
        _boards.add(self)

    def _fresh(self) -> None:
        self._lock = threading.Lock()
        self._shared: SharedBoard | None = None
        self._tried = False
        self._free: list[Sleeper] = []
        self._active: dict[str, list[Sleeper]] = {}
        self._called: dict[str, None] = {}
        self._seen: dict[str, tuple[tuple[str, ...], bytes]] = {}
        self._hashes: dict[tuple[str, ...], tuple[int, ...]] = {}

    # --- telling ---

    def announce_ready(self, ready: Mapping[str, int]) -> None:
        """Tell sleepers of these queues about so many new messages."""
        shared = self._open()
        if shared is not None:
            shared.announce_queues({crc32(name.encode()): n for name, n in ready.items()})

    def announce_ended(self, rows: Sequence[int]) -> None:
        """Tell those who wait for one of these jobs."""
        shared = self._open()
        if shared is not None:
            shared.announce_jobs(rows)

    # --- waiting ---

    def note(self, worker: str, names: tuple[str, ...]) -> None:
        """Remember what the board says before a worker looks for messages."""
        shared = self._open()
        if shared is not None:
            self._seen[worker] = (names, shared.stamps(self._hashes_of(names)))

    def wait_queues(self, worker: str, names: tuple[str, ...], timeout: float) -> bool:
        """Block until there may be something new since the last `note`."""
        shared = self._open()
        sleeper = self._take(worker)
        try:
            if shared is None:
                return self._watch_file(sleeper, timeout) != "time"
            hashes = self._hashes_of(names)
            own = crc32(worker_topic(worker).encode())
            seen = self._seen.get(worker)
            old = seen[1] if seen is not None and seen[0] == names else None

            def arm() -> bool:
                sleeper.arm(BY_QUEUE, (*hashes, own))
                now = shared.stamps(hashes)
                told = now != old if old is not None else any(now)
                if told:
                    self._seen[worker] = (names, now)
                return told

            return self._sleep(sleeper, arm, timeout) != "time"
        finally:
            self._give(worker, sleeper)

    def wait_rows(
        self, waiter: str, rows: Sequence[int], look: Callable[[], bool], deadline: float
    ) -> Woken:
        """Block until `look`, asked whenever one of these jobs may have ended, says so."""
        shared = self._open()
        sleeper = self._take(waiter)
        try:
            while True:
                if shared is not None:
                    sleeper.arm(BY_JOB, rows)
                began = time.monotonic()
                if look():
                    return "told"
                now = time.monotonic()
                if now >= deadline:
                    return "time"
                if shared is None:
                    woken = self._watch_file(sleeper, deadline - now)
                else:
                    woken = self._sleep(sleeper, None, min(_LOOK_AGAIN, deadline - now))
                if woken == "called":
                    return woken
                # A look at many jobs must not take more than about a tenth of a core.
                sleeper.pause(min(9 * (now - began), 0.1, max(0.0, deadline - now)))
        finally:
            self._give(waiter, sleeper)

    def wake(self, waiter: str) -> None:
        """End the present sleeps of a waiter, or its next one."""
        with self._lock:
            sleeping = list(self._active.get(waiter, ()))
            if not sleeping:
                self._called[waiter] = None
                if len(self._called) > _MAX_NAMES:
                    del self._called[next(iter(self._called))]
        for sleeper in sleeping:
            sleeper.call()

    def forget(self, worker: str) -> None:
        """Drop what is remembered of a worker that is gone."""
        self._seen.pop(worker, None)

    def close(self) -> None:
        """End all sleeps and free the sockets."""
        with self._lock:
            self._closed = True
            sleeping = [sleeper for group in self._active.values() for sleeper in group]
            free, self._free = self._free, []
            shared = self._shared
        for sleeper in sleeping:
            sleeper.call()
        for sleeper in free:
            sleeper.close()
        if shared is not None and not sleeping:
            shared.close()

    def abandon(self) -> None:
        """Forget the parent's sleepers in a forked child; nothing of theirs is removed."""
        for sleeper in (*self._free, *(s for group in self._active.values() for s in group)):
            sleeper.abandon()
        self._fresh()

    # --- sleeping ---

    def _sleep(self, sleeper: Sleeper, arm: Callable[[], bool] | None, timeout: float) -> Woken:
        deadline = time.monotonic() + timeout
        while True:
            if arm is not None and arm():
                return "told"
            left = deadline - time.monotonic()
            if left <= 0:
                return "called" if sleeper.called else "time"
            told = sleeper.sleep(min(left, _LOOK_AGAIN if sleeper.can_be_told else POLL))
            if sleeper.called:
                return "called"
            if told:
                return "told"

    def _watch_file(self, sleeper: Sleeper, timeout: float) -> Woken:
        deadline = time.monotonic() + timeout
        before = self._changes()
        while time.monotonic() < deadline:
            sleeper.sleep(min(POLL, max(0.0, deadline - time.monotonic())))
            if sleeper.called:
                return "called"
            if self._changes() != before:
                return "told"
        return "time"

    def _take(self, name: str) -> Sleeper:
        with self._lock:
            sleeper = self._free.pop() if self._free else None
        if sleeper is None:
            sleeper = Sleeper(self._open())
        sleeper.reset()
        with self._lock:
            self._active.setdefault(name, []).append(sleeper)
            if self._called.pop(name, False) is None or self._closed:
                sleeper.called = True
        return sleeper

    def _give(self, name: str, sleeper: Sleeper) -> None:
        sleeper.disarm()
        with self._lock:
            group = self._active.get(name, [])
            if sleeper in group:
                group.remove(sleeper)
            if not group:
                self._active.pop(name, None)
            keep = not self._closed and len(self._free) < 8
            if keep:
                self._free.append(sleeper)
        if not keep:
            sleeper.close()

    def _open(self) -> SharedBoard | None:
        if not self._tried:
            with self._lock:
                if not self._tried:
                    with suppress(OSError, ValueError):
                        self._shared = SharedBoard(self._path)
                    self._tried = True
        return self._shared

    def _hashes_of(self, names: tuple[str, ...]) -> tuple[int, ...]:
        hashes = self._hashes.get(names)
        if hashes is None:
            if len(self._hashes) > _MAX_NAMES:
                self._hashes.clear()
            hashes = self._hashes[names] = tuple(crc32(name.encode()) for name in names)
        return hashes


def worker_topic(worker: str) -> str:
    """The name under which a worker itself, not a queue of its own, is told; no queue is named so."""
    return f"\0worker {worker}"


_boards: weakref.WeakSet[Board] = weakref.WeakSet()


def _after_fork() -> None:
    for board in list(_boards):
        board.abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
