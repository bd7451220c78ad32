"""The memory transport: everything in this process, gone when it ends."""

from __future__ import annotations

import copy
import os
import threading
import weakref
from typing import TYPE_CHECKING, ClassVar

from taskmq.clock import SYSTEM_CLOCK, Clock
from taskmq.errors import ConfigError
from taskmq.transport.contract import Transport
from taskmq.transport.memory.dead import MemoryDeadLetters
from taskmq.transport.memory.jobs import MemoryJobs
from taskmq.transport.memory.leases import MemoryLeases, MemoryRates
from taskmq.transport.memory.messages import MemoryMessages
from taskmq.transport.memory.reaping import MemoryReaping
from taskmq.transport.memory.settling import MemorySettling
from taskmq.transport.memory.store import Store
from taskmq.transport.memory.waiting import MemoryWaiting
from taskmq.transport.memory.workers import MemoryWorkers
from taskmq.transport.types import Finding

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Self

MAX_FINISHED_JOBS = 10_000
"""How many ended jobs are kept unless the retention says otherwise."""


class MemoryTransport(
    MemoryMessages,
    MemoryReaping,
    MemorySettling,
    MemoryDeadLetters,
    MemoryWaiting,
    MemoryJobs,
    MemoryLeases,
    MemoryRates,
    MemoryWorkers,
    Transport,
):
    """Keeps all jobs in this process: for tests, for trying out, and for work that may be lost.

    It keeps every promise of the contract but durability. A forked child has a copy of its own.

    Args:
        clock: What "now" is; a `FakeClock` in tests. Blocking calls block in real time all the same.
        max_finished_jobs: How many ended jobs are kept, until a reap brings another limit.
    """

    lives_here = True

    supports_rates: ClassVar[bool] = True

    def __init__(
        self, *, clock: Clock = SYSTEM_CLOCK, max_finished_jobs: int = MAX_FINISHED_JOBS
    ) -> None:
        self._store = Store(clock, max_finished_jobs)
        self._is_closed = False
        _stores.add(self._store)

    @property
    def clock(self) -> Clock:
        """The clock that judges time."""
        return self._store.clock

    @classmethod
    def from_url(cls, url: str, *, timeout: float = 5.0) -> Self:
        """Build a transport of its own; nothing is shared between two of them.

        Raises:
            ConfigError: The URL has a host, a path or options.
        """
        if url != "memory://":
            raise ConfigError(
                f"transport {url!r}: memory takes no host, path or options; write 'memory://'"
            )
        return cls()

    def duplicate(self) -> MemoryTransport:
        """Another handle on the same storage; closing one leaves the other open."""
        return copy.copy(self)

    def describe(self) -> Mapping[str, str]:
        """Where it is and how long it lives."""
        return {"url": "memory://", "durability": "none: jobs live as long as this process"}

    def now(self) -> float:
        """The transport's clock, UTC epoch seconds."""
        return self._store.clock.time()

    def diagnose(self) -> list[Finding]:
        """It works, but only in this process."""
        return [
            Finding(level="ok", subject="reachable", message="memory:// needs no server"),
            Finding(
                level="warning",
                subject="durability",
                message="jobs are lost when the process ends, and no other process sees them",
                advice="use sqlite:///path for work that must survive",
            ),
        ]

    def close(self) -> None:
        """Let this handle's blocked calls return. Its storage goes with the last handle."""
        store = self._store
        with store.lock:
            self._is_closed = True
            store.bedroom.wake_all(self)


class _Held(threading.local):
    """The stores whose locks this thread holds over its fork."""

    def __init__(self) -> None:
        self.stores: list[Store] = []


_stores: weakref.WeakSet[Store] = weakref.WeakSet()
_forking = _Held()


def _before_fork() -> None:
    # A child must not inherit a store in the middle of another thread's change.
    for store in list(_stores):
        store.lock.acquire()
        _forking.stores.append(store)


def _after_fork_in_parent() -> None:
    while _forking.stores:
        _forking.stores.pop().lock.release()


def _after_fork_in_child() -> None:
    while _forking.stores:
        _forking.stores.pop().after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )
