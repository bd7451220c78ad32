"""Named leases, rates, and the registry of workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from taskmq.transport.contract import LeaseRole, RateRole, WorkerRole
from taskmq.transport.types import HeartbeatReply, WorkerInfo
from taskmq_redis.store import Store, encode, micros, seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskmq.transport.types import RateWish

_decode_info: Final = msgspec.msgpack.Decoder(WorkerInfo).decode


class Leases(Store, LeaseRole):
    """The lease role."""

    def acquire(self, name: str, owner: str, ttl: float) -> int | None:
        """See the contract."""
        return int(self._call("lease", "acquire", name, owner, micros(ttl))) or None

    def renew(self, name: str, token: int, ttl: float) -> bool:
        """See the contract."""
        return bool(int(self._call("lease", "renew", name, token, micros(ttl))))

    def release(self, name: str, token: int) -> bool:
        """See the contract."""
        return bool(int(self._call("lease", "release", name, token, 0)))


class Rates(Store, RateRole):
    """The role of rates."""

    def take_tokens(self, wishes: Sequence[RateWish]) -> list[float]:
        """See the contract."""
        rows = [
            [wish.name, *map(micros, (wish.interval, wish.due, wish.tolerance))] for wish in wishes
        ]
        return [seconds(answer) for answer in self._call("rates", rows)]


class Workers(Store, WorkerRole):
    """The worker role."""

    def heartbeat(self, info: WorkerInfo) -> HeartbeatReply:
        """See the contract."""
        now, elected = self._call(
            "workers", "heartbeat", info.id, encode(info), micros(info.heartbeat_interval)
        )
        return HeartbeatReply(now=seconds(now), maintain=bool(elected))

    def deregister(self, worker: str) -> None:
        """See the contract."""
        self._call("workers", "deregister", worker)
        self._queues.pop(worker, None)

    def list_workers(self) -> list[WorkerInfo]:
        """See the contract."""
        now, rows = self._call("workers", "list", "")
        found: list[WorkerInfo] = []
        for blob, seen in rows:
            info = _decode_info(blob)
            at = seconds(seen)
            is_stale = seconds(now) - at > 2 * info.heartbeat_interval
            found.append(msgspec.structs.replace(info, heartbeat_at=at, stale=is_stale))
        return sorted(found, key=lambda info: info.id)
