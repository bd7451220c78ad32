"""Blocking calls of the memory transport, and what wakes them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

from taskmq.transport.contract import MessageRole
from taskmq.transport.types import QueueShare

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskmq.transport.memory.sessions import Session
    from taskmq.transport.memory.store import Store
    from taskmq.transport.memory.views import View

# How many wake-ups for waiters that never came are remembered.
_EARLY_LIMIT = 1_000


class Sleeper:
    """One blocked call. All but `sleep` is called under the store's lock."""

    __slots__ = ("_lock", "caller", "is_woken", "remaining")

    def __init__(self, caller: object, remaining: int = 1) -> None:
        self.caller = caller
        self._lock = threading.Lock()
        self._lock.acquire()
        self.is_woken = False
        self.remaining = remaining

    def wake(self) -> None:
        """Make a blocked call of this waiter return."""
        """Let the call return."""
        if not self.is_woken:
            self.is_woken = True
            self._lock.release()

    def count_down(self) -> None:
        """One of the jobs waited for has ended; the call returns at the last."""
        self.remaining -= 1
        if self.remaining <= 0:
            self.wake()

    def sleep(self, timeout: float) -> None:
        """Block until woken or until time is over, without the store's lock."""
        # The platform's limit: a longer wait is as good as this one.
        self._lock.acquire(timeout=min(timeout, threading.TIMEOUT_MAX))


class Bedroom:
    """Who sleeps under which name. Called under the store's lock."""

    def __init__(self) -> None:
        self.by_name: dict[str, list[Sleeper]] = {}
        self.by_job: dict[str, list[Sleeper]] = {}
        self._early: OrderedDict[str, None] = OrderedDict()

    def wake(self, name: str) -> None:
        """Wake the calls of this waiter, or the next one when none is blocked."""
        sleepers = self.by_name.get(name)
        if sleepers:
            for sleeper in sleepers:
                sleeper.wake()
            return
        self._early[name] = None
        if len(self._early) > _EARLY_LIMIT:
            self._early.popitem(last=False)

    def take_early(self, name: str) -> bool:
        """Whether this waiter was woken before it began to wait."""
        if name in self._early:
            del self._early[name]
            return True
        return False

    def forget(self, name: str) -> None:
        """Drop what is remembered of a waiter that is gone."""
        self._early.pop(name, None)

    def enter(self, name: str, sleeper: Sleeper) -> None:
        """Register a sleeper under its waiter's name."""
        self.by_name.setdefault(name, []).append(sleeper)

    def leave(self, name: str, sleeper: Sleeper) -> None:
        """Take a sleeper off its waiter's name."""
        _discard(self.by_name, name, sleeper)

    def watch(self, ids: Sequence[str], sleeper: Sleeper) -> None:
        """Count the sleeper down when these jobs end."""
        for job_id in ids:
            self.by_job.setdefault(job_id, []).append(sleeper)

    def unwatch(self, ids: Sequence[str], sleeper: Sleeper) -> None:
        """Take the sleeper off these jobs."""
        for job_id in ids:
            _discard(self.by_job, job_id, sleeper)

    def job_ended(self, job_id: str) -> None:
        """Tell who waits for this job."""
        for sleeper in self.by_job.pop(job_id, ()):
            sleeper.count_down()

    def wake_all(self, caller: object) -> None:
        """Let every blocked call of this handle return."""
        for sleepers in (*self.by_name.values(), *self.by_job.values()):
            for sleeper in sleepers:
                if sleeper.caller is caller:
                    sleeper.wake()


class MemoryWaiting(MessageRole):
    """The part of the message role that blocks."""

    _store: Store
    _is_closed: bool

    def wait(self, worker: str, queues: Sequence[str], timeout: float) -> bool:
        """Block until there may be something new in one of the queues."""
        store = self._store
        with store.lock:
            now = store.clock.time()
            session = store.session(worker, now)
            view = _view_of(store, session, queues)
            is_early = store.bedroom.take_early(worker)
            if _take_news(session, view) or is_early or self._is_closed:
                return True
            due_at = view.next_due()
            due_in = timeout if due_at is None else due_at - now
            if timeout <= 0 or due_in <= 0:
                return due_in <= 0 < timeout
            sleeper = Sleeper(self)
            store.bedroom.enter(worker, sleeper)
            view.sleepers.append(sleeper)
        try:
            sleeper.sleep(min(timeout, due_in))
        finally:
            with store.lock:
                store.bedroom.leave(worker, sleeper)
                if sleeper in view.sleepers:
                    view.sleepers.remove(sleeper)
                _take_news(session, view)
        return sleeper.is_woken or due_in < timeout

    def wake(self, waiter: str) -> None:
        """Make a blocked call of this waiter return, also one about to begin."""
        store = self._store
        with store.lock:
            store.bedroom.wake(waiter)


def _view_of(store: Store, session: Session, queues: Sequence[str]) -> View:
    """The view of these queues; the one that the worker reserves from when it has the same."""
    view = session.view
    if view is not None:
        if session.wait_names is queues:
            return view
        if len(queues) == len(view.links) and all(name in view.links for name in queues):
            # Only a tuple can be trusted to stay as it is.
            session.wait_names = queues if isinstance(queues, tuple) else ()
            return view
    other = store.shared_view(tuple(QueueShare(name) for name in queues))
    if other is not session.wait_view:
        session.wait_view = other
        # A worker that looks for the first time has seen nothing of what is there already.
        session.wait_seen = other.version - (other.mask != 0)
    return other


def _take_news(session: Session, view: View) -> bool:
    """Whether the view has something that the worker hasn't been told of; it has been now."""
    if view is session.view:
        is_new = session.seen != view.version
        session.seen = view.version
    else:
        is_new = session.wait_seen != view.version
        session.wait_seen = view.version
    return is_new


def _discard(table: dict[str, list[Sleeper]], name: str, sleeper: Sleeper) -> None:
    sleepers = table.get(name)
    if sleepers is not None and sleeper in sleepers:
        sleepers.remove(sleeper)
        if not sleepers:
            del table[name]
