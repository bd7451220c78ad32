"""Blocking calls: a worker that waits for messages, and handles that wait for the end of jobs.

Queues: `enqueue` pushes a token for each message that became ready to its queue's list, at most
sixteen; a waiter blocks on the lists of its queues and on one of its own (revocations). Beyond a hundred
queues it blocks on one list for all of them. The blocking command stays outstanding between two waits: what
ends a wait from inside the process is a byte on a pipe, so nothing is sent for it and no token gets lost.

Jobs: a waiter's name stands on the record; whoever ends the job pushes its id to the list of that name,
which one thread of the process reads for all handles. Tokens are hints: one that is lost costs two seconds.
"""

from __future__ import annotations

import os
import selectors
import socket
import threading
import time
from typing import TYPE_CHECKING, Any, Final, Literal

from redis.exceptions import RedisError

from taskmq.errors import TransportError, TransportUnavailable
from taskmq.transport.contract import JobRole, MessageRole
from taskmq_redis.forks import renew_in_children
from taskmq_redis.store import Store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskmq.transport.types import JobRecord
    from taskmq_redis.connection import Server

LOOK_EVERY: Final = 2.0
"""How long a lost token goes unnoticed, seconds."""
BLOCK: Final = 20
"""Seconds that the server blocks; without an answer for longer than that the connection is dead."""
GRACE: Final = 5.0
IDLE: Final = 5.0
"""How long the listening thread stays without anybody to listen for, seconds."""
MANY: Final = 100
_EARLY_LIMIT: Final = 1000


class Waiting(Store, MessageRole, JobRole):
    """The blocking parts of the message and the job role."""

    def _start_waiting(self) -> None:
        self._waiters: dict[str, _QueueWaiter] = {}
        self._sleepers: dict[str, list[_Sleeper]] = {}
        self._early: dict[str, None] = {}
        # Reentrant: a signal handler may wake a waiter while its own thread is in here.
        self._waiting_lock = threading.RLock()
        self._listener = _Listener(self._server, self._base)
        self._is_closed = False
        renew_in_children(self)

    def after_fork(self) -> None:
        """Forget waiters, their connections and threads: in a child they are its parent's."""
        self._start_waiting()

    def _stop_waiting(self) -> None:
        self._is_closed = True
        with self._waiting_lock:
            waiters = list(self._waiters.values())
            self._waiters.clear()
            sleepers = [each for group in self._sleepers.values() for each in group]
        for waiter in waiters:
            waiter.close()
        for sleeper in sleepers:
            sleeper.wake()
        self._listener.close()

    def wait(self, worker: str, queues: Sequence[str], timeout: float) -> bool:
        """See the contract."""
        if self._is_closed:
            return False
        return self._waiter(worker).wait(tuple(queues), timeout)

    def wake(self, waiter: str) -> None:
        """See the contract."""
        with self._waiting_lock:
            found = self._waiters.get(waiter)
            sleepers = self._sleepers.get(waiter)
            if found is None and not sleepers:
                self._early[waiter] = None
                while len(self._early) > _EARLY_LIMIT:
                    self._early.pop(next(iter(self._early)))
        if found is not None:
            found.wake()
        for sleeper in sleepers or ():
            sleeper.wake()

    def deregister(self, worker: str) -> None:
        """Forget a worker, and free the connection that it waited on."""
        with self._waiting_lock:
            waiter = self._waiters.pop(worker, None)
        if waiter is not None:
            waiter.close()
        super().deregister(worker)  # type: ignore[misc]  # the registry's, which stands after this

    def wait_jobs(
        self,
        ids: Sequence[str],
        timeout: float,
        *,
        mode: Literal["any", "all"] = "all",
        waiter: str | None = None,
    ) -> list[JobRecord | None]:
        """See the contract."""
        unique = list(dict.fromkeys(ids))
        if timeout > 0 and unique and not self._is_closed:
            self._sleep_for(unique, timeout, mode, waiter)
        return self.get_jobs(ids)

    def _sleep_for(
        self, ids: list[str], timeout: float, mode: Literal["any", "all"], waiter: str | None
    ) -> None:
        sleeper = _Sleeper(ids, mode)
        if waiter is not None and self._enter(waiter, sleeper):
            return
        end = time.monotonic() + timeout
        self._listener.add(sleeper)
        try:
            while not sleeper.is_awake and not self._is_closed:
                try:
                    # Again after each look: a server that was restarted has forgotten the names.
                    still_open = self._listener.watch(sleeper)
                except TransportUnavailable:
                    if time.monotonic() >= end:
                        raise
                else:
                    sleeper.ended(set(sleeper.open) - still_open)
                left = end - time.monotonic()
                if left <= 0:
                    return
                # Returns at once when the last one has ended meanwhile.
                sleeper.sleep(min(left, LOOK_EVERY))
        finally:
            if waiter is not None:
                self._leave(waiter, sleeper)
            self._listener.remove(sleeper)

    def _enter(self, name: str, sleeper: _Sleeper) -> bool:
        """Register a sleeper under its name; True when it was woken before it began."""
        with self._waiting_lock:
            if name in self._early:
                del self._early[name]
                return True
            self._sleepers.setdefault(name, []).append(sleeper)
        return False

    def _leave(self, name: str, sleeper: _Sleeper) -> None:
        with self._waiting_lock:
            group = self._sleepers.get(name, [])
            if sleeper in group:
                group.remove(sleeper)
            if not group:
                self._sleepers.pop(name, None)

    def _waiter(self, name: str) -> _QueueWaiter:
        with self._waiting_lock:
            waiter = self._waiters.get(name)
            if waiter is None:
                waiter = self._waiters[name] = _QueueWaiter(self._server, self._base, name)
            if name in self._early:
                del self._early[name]
                waiter.wake()
            return waiter


_Selector: Any = getattr(selectors, "PollSelector", selectors.SelectSelector)


def _readable(timeout: float, *sockets: Any) -> list[Any]:
    """Wait until one of them can be read; those that can. Unlike select(), with any number of files open."""
    with _Selector() as selector:
        for each in sockets:
            selector.register(each, selectors.EVENT_READ)
        return [key.fileobj for key, _ in selector.select(max(timeout, 0.0))]


class _QueueWaiter:
    """The one blocked connection of a worker."""

    def __init__(self, server: Server, base: bytes, name: str) -> None:
        self._server, self._base, self._name = server, base, name
        self._lock = threading.Lock()
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._theirs.setblocking(False)
        self._connection: Any = None
        self._selector: Any = None
        self._keys: tuple[bytes, ...] = ()
        self._question: Any = None
        self._asked_at = 0.0
        self._told_at = 0.0

    def wake(self) -> None:
        """End the wait, or the next one."""
        try:
            self._theirs.send(b".")
        except (BlockingIOError, OSError):
            # Full of bytes that wake it anyway, or closed.
            return

    def close(self) -> None:
        """Free the connection."""
        self.wake()
        with self._lock:
            self._drop()
            self._ours.close()
            self._theirs.close()

    def wait(self, queues: tuple[str, ...], timeout: float) -> bool:
        """Block until there may be something; True when woken."""
        end = time.monotonic() + timeout
        with self._lock:
            if self._ours.fileno() < 0:
                return False
            while True:
                left = end - time.monotonic()
                try:
                    ready = self._block(self._lists(queues), max(left, 0.0))
                except (RedisError, OSError, TransportError):
                    # Whoever reserves next hears of it in full; until then no faster than this.
                    self._drop()
                    return self._pause(min(max(end - time.monotonic(), 0.0), 0.2))
                if ready is not None:
                    return ready
                if time.monotonic() >= end:
                    return False

    def _lists(self, queues: tuple[str, ...]) -> tuple[bytes, ...]:
        own = self._base + b"tw:" + self._name.encode()
        if len(queues) > MANY:
            return own, self._base + b"tany"
        return (own, *(self._base + b"t:" + name.encode() for name in queues))

    def _block(self, keys: tuple[bytes, ...], timeout: float) -> bool | None:
        """One look at the connection and the pipe; None when there is nothing yet."""
        if self._keys != keys:
            self._drop()
        connection = self._connection or self._connect(keys)
        if not self._asked_at:
            # The same words each time. What stands between a worker's last job and its sleep delays
            # the start of that job on a slot's thread, so nothing is made here that can be kept.
            connection.send_packed_command(self._question)
            self._asked_at = time.monotonic()
        self._register(keys)
        overdue = self._asked_at + BLOCK + GRACE - time.monotonic()
        ready = self._selector.select(max(min(timeout, overdue, LOOK_EVERY), 0.0))
        readable = [key.fileobj for key, _ in ready]
        if self._ours in readable:
            self._drain()
            return True
        if readable:
            self._asked_at = 0.0
            return True if connection.read_response() is not None else None
        if time.monotonic() >= self._asked_at + BLOCK + GRACE:
            self._drop()
        return None

    def _connect(self, keys: tuple[bytes, ...]) -> Any:
        self._connection = connection = self._server.blocking()
        self._keys, self._asked_at = keys, 0.0
        self._question = connection.pack_command("BLPOP", *keys, BLOCK)
        self._selector = _Selector()
        # There is no public way to the socket.
        for each in (self._ours, connection._sock):  # noqa: SLF001
            self._selector.register(each, selectors.EVENT_READ)
        return connection

    def _register(self, keys: tuple[bytes, ...]) -> None:
        """Tell producers that somebody waits for more queues than can be blocked on."""
        if len(keys) == 2 and keys[1] == self._base + b"tany":
            now = time.monotonic()
            if now - self._told_at > BLOCK:
                # Beside the queues, where producers look anyway; by the server's clock.
                until = (int(self._server.command("TIME")[0]) + 3 * BLOCK) * 1_000_000
                self._server.command("ZADD", self._base + b"liver", until, b"\0many")
                self._told_at = now

    def _pause(self, seconds: float) -> bool:
        if not _readable(seconds, self._ours):
            return False
        self._drain()
        return True

    def _drain(self) -> None:
        try:
            while self._ours.recv(4096):
                pass
        except BlockingIOError:
            return

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        selector, self._selector = self._selector, None
        self._keys, self._asked_at = (), 0.0
        if selector is not None:
            selector.close()
        if connection is not None:
            connection.disconnect()


class _Sleeper:
    """One blocked `wait_jobs`."""

    def __init__(self, ids: Sequence[str], mode: Literal["any", "all"]) -> None:
        self.open = set(ids)
        self._enough = len(self.open) - 1 if mode == "any" else 0
        self._event = threading.Event()

    @property
    def is_awake(self) -> bool:
        return self._event.is_set()

    def ended(self, ids: set[str]) -> None:
        """Some of the jobs have ended."""
        self.open -= ids
        if len(self.open) <= self._enough:
            self._event.set()

    def wake(self) -> None:
        self._event.set()

    def sleep(self, timeout: float) -> None:
        self._event.wait(timeout)


class _Listener:
    """The one thread of a process that hears of the ends of jobs, while anybody waits for one."""

    def __init__(self, server: Server, base: bytes) -> None:
        self._server, self._base = server, base
        self._name = os.urandom(8).hex()
        self._lock = threading.Lock()
        self._by_job: dict[str, list[_Sleeper]] = {}
        self._thread: threading.Thread | None = None
        self._closed = False
        self._pipe: tuple[socket.socket, socket.socket] | None = None

    def add(self, sleeper: _Sleeper) -> None:
        """Listen for its jobs."""
        with self._lock:
            for job_id in sleeper.open:
                self._by_job.setdefault(job_id, []).append(sleeper)
            if self._thread is None and not self._closed:
                self._pipe = socket.socketpair()
                self._thread = threading.Thread(
                    target=self._listen, args=self._pipe, name="taskmq-redis-listener", daemon=True
                )
                self._thread.start()

    def watch(self, sleeper: _Sleeper) -> set[str]:
        """Put our name on the records that have not ended; their ids."""
        ids = list(sleeper.open)
        still_open: set[str] = set()
        for at in range(0, len(ids), 500):
            rows = self._server.call("watch", ids[at : at + 500], self._name, True, base=self._base)
            still_open.update(job_id.decode() for job_id in rows)
        return still_open

    def remove(self, sleeper: _Sleeper) -> None:
        """Nobody waits for its jobs any more, unless others do."""
        left: list[str] = []
        with self._lock:
            for job_id in [key for key, group in self._by_job.items() if sleeper in group]:
                group = self._by_job[job_id]
                group.remove(sleeper)
                if not group:
                    del self._by_job[job_id]
                    if job_id in sleeper.open:
                        left.append(job_id)
        if left:
            try:
                self._server.call("watch", left, self._name, False, base=self._base)
            except TransportError:
                # The name on the record costs one expiring list at the job's end.
                return

    def close(self) -> None:
        """End the thread."""
        with self._lock:
            self._closed = True
            thread, pipe = self._thread, self._pipe
        if thread is not None and pipe is not None:
            try:
                pipe[1].send(b".")
            except OSError:
                return
            if thread is not threading.current_thread():
                thread.join(5)

    def _listen(self, ours: socket.socket, theirs: socket.socket) -> None:
        connection: Any = None
        idle_since: float | None = None
        key = self._base + b"wj:" + self._name.encode()
        asked = False
        while True:
            with self._lock:
                if self._by_job:
                    idle_since = None
                elif idle_since is None:
                    idle_since = time.monotonic()
                if self._closed or (
                    idle_since is not None and time.monotonic() - idle_since > IDLE
                ):
                    self._thread = self._pipe = None
                    break
            try:
                if connection is None:
                    connection, asked = self._server.blocking(), False
                if not asked:
                    connection.send_command("BLPOP", key, BLOCK)
                    asked = True
                handle = connection._sock  # noqa: SLF001  # there is no public way to the socket
                readable = _readable(1.0, ours, handle)
                if handle in readable:
                    asked = False
                    self._heard(connection.read_response())
            except (RedisError, OSError, TransportError):
                if connection is not None:
                    connection.disconnect()
                connection = None
                _readable(0.2, ours)
        if connection is not None:
            connection.disconnect()
        ours.close()
        theirs.close()

    def _heard(self, reply: Any) -> None:
        if reply is None:
            return
        job_id = reply[1].decode()
        with self._lock:
            sleepers = list(self._by_job.get(job_id, ()))
        for sleeper in sleepers:
            sleeper.ended({job_id})
