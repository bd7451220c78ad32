"""The registry of workers of the memory transport."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from taskmq.transport.contract import WorkerRole
from taskmq.transport.types import HeartbeatReply

if TYPE_CHECKING:
    from taskmq.transport.memory.store import Store
    from taskmq.transport.types import WorkerInfo


class MemoryWorkers(WorkerRole):
    """The worker role."""

    _store: Store

    def heartbeat(self, info: WorkerInfo) -> HeartbeatReply:
        """Record a worker as alive, and elect who does maintenance."""
        store = self._store
        with store.lock:
            now = store.clock.time()
            store.workers[info.id] = msgspec.structs.replace(info, heartbeat_at=now, stale=False)
            elected = store.workers.get(store.maintainer or "")
            if elected is None or is_stale(elected, now):
                store.maintainer = info.id
            return HeartbeatReply(now=now, maintain=store.maintainer == info.id)

    def deregister(self, worker: str) -> None:
        """Forget a worker that ended."""
        store = self._store
        with store.lock:
            store.workers.pop(worker, None)
            if store.maintainer == worker:
                store.maintainer = None
            store.bedroom.forget(worker)
            session = store.sessions.get(worker)
            if session is not None and not session.held:
                del store.sessions[worker]

    def list_workers(self) -> list[WorkerInfo]:
        """List the registered workers."""
        store = self._store
        with store.lock:
            now = store.clock.time()
            return [
                msgspec.structs.replace(info, stale=is_stale(info, now))
                for _, info in sorted(store.workers.items())
            ]


def is_stale(info: WorkerInfo, now: float) -> bool:
    """Whether a worker has missed two of its heartbeats."""
    return now - info.heartbeat_at > 2 * info.heartbeat_interval
