"""Named leases, rates and the registry of workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from taskmq.transport.types import HeartbeatReply, WorkerInfo
from taskmq_postgres import arrays
from taskmq_postgres.store import Store, encode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskmq.transport.types import RateWish

_decode_info = msgspec.msgpack.Decoder(WorkerInfo).decode
_MISSED = 2
"""Heartbeat intervals until a worker counts as stale."""


class Leases(Store):
    """The role of named leases."""

    def acquire(self, name: str, owner: str, ttl: float) -> int | None:
        """See the contract."""
        rows = self._ask("SELECT {acquire_1}(%s, %s, %s)", [name, owner, float(ttl)])
        token: int | None = rows[0][0]
        return token

    def renew(self, name: str, token: int, ttl: float) -> bool:
        """See the contract."""
        bound = [name, token, float(ttl)]
        return bool(self._ask("SELECT {renew_1}(%s, %s, %s)", bound, housekeeping=True)[0][0])

    def release(self, name: str, token: int) -> bool:
        """See the contract."""
        return bool(self._ask("SELECT {release_1}(%s, %s)", [name, token])[0][0])


class Rates(Store):
    """The role of rates."""

    def take_tokens(self, wishes: Sequence[RateWish]) -> list[float]:
        """See the contract."""
        rows = self._ask(
            "SELECT * FROM {take_tokens_1}(%s, %s, %s, %s)",
            [
                arrays.texts([wish.name for wish in wishes]),
                arrays.floats([float(wish.interval) for wish in wishes]),
                arrays.floats([float(wish.due) for wish in wishes]),
                arrays.floats([float(wish.tolerance) for wish in wishes]),
            ],
        )
        return [row[0] for row in rows]


class Workers(Store):
    """The role of the worker registry."""

    def heartbeat(self, info: WorkerInfo) -> HeartbeatReply:
        """See the contract."""
        missed = _MISSED * float(info.heartbeat_interval)
        bound = [info.id, missed, encode(info)]
        rows = self._ask("SELECT * FROM {heartbeat_1}(%s, %s, %s)", bound, housekeeping=True)
        now, maintain = rows[0]
        return HeartbeatReply(now=now, maintain=maintain)

    def deregister(self, worker: str) -> None:
        """See the contract."""
        self._queues.pop(worker, None)
        self._ask("SELECT {deregister_1}(%s)", [worker])

    def list_workers(self) -> list[WorkerInfo]:
        """See the contract."""
        rows = self._ask(
            "SELECT info, heartbeat_at, stale_at <= {now}() FROM {workers} ORDER BY id", []
        )
        return [
            msgspec.structs.replace(_decode_info(info), heartbeat_at=heartbeat_at, stale=stale)
            for info, heartbeat_at, stale in rows
        ]
