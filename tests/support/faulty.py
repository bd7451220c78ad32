"""A memory transport that can be away, lose replies, and counts its calls."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, TypeVar

from taskmq.errors import TransportUnavailable
from taskmq.transport.memory import MemoryTransport

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from taskmq.transport.types import (
        ExtendReply,
        Extension,
        HeartbeatReply,
        ReapReport,
        ReapRequest,
        ReserveReply,
        ReserveRequest,
        Settlement,
        SettleReply,
        WorkerInfo,
    )

T = TypeVar("T")


class FaultyTransport(MemoryTransport):
    """`down = True` makes every call fail; `lose_replies("settle", 2)` carries two out and fails.

    `calls` counts what was asked, `reaps` and `settled` keep what was sent.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.down = False
        self.calls: Counter[str] = Counter()
        self.reaps: list[ReapRequest] = []
        self.settled: list[Settlement] = []
        self._replies_to_lose: Counter[str] = Counter()
        self._errors: dict[str, list[Exception]] = {}

    def lose_replies(self, method: str, times: int = 1) -> None:
        """The next calls of this method take effect, and their replies never arrive."""
        self._replies_to_lose[method] += times

    def fail_next(self, method: str, error: Exception) -> None:
        """The next call of this method raises and does nothing."""
        self._errors.setdefault(method, []).append(error)

    def _through(self, method: str, call: Callable[[], T]) -> T:
        self.calls[method] += 1
        if self.down:
            raise TransportUnavailable("the backend is away (test)")
        if self._errors.get(method):
            raise self._errors[method].pop(0)
        reply = call()
        if self._replies_to_lose[method] > 0:
            self._replies_to_lose[method] -= 1
            raise TransportUnavailable(f"the reply of {method} was lost (test)")
        return reply

    def reserve(self, request: ReserveRequest) -> ReserveReply:
        return self._through("reserve", lambda: super(FaultyTransport, self).reserve(request))

    def reclaim(self, worker: str, keep: Sequence[str]) -> int:
        return self._through("reclaim", lambda: super(FaultyTransport, self).reclaim(worker, keep))

    def settle(self, worker: str, settlements: Sequence[Settlement]) -> SettleReply:
        self.settled.extend(settlements)
        return self._through(
            "settle", lambda: super(FaultyTransport, self).settle(worker, settlements)
        )

    def extend(self, worker: str, extensions: Sequence[Extension]) -> ExtendReply:
        return self._through(
            "extend", lambda: super(FaultyTransport, self).extend(worker, extensions)
        )

    def heartbeat(self, info: WorkerInfo) -> HeartbeatReply:
        return self._through("heartbeat", lambda: super(FaultyTransport, self).heartbeat(info))

    def reap(self, request: ReapRequest) -> ReapReport:
        self.reaps.append(request)
        return self._through("reap", lambda: super(FaultyTransport, self).reap(request))
