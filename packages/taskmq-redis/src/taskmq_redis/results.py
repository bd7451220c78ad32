"""The result store of `redis://` URLs: one expiring key for each result, independent of the transport."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taskmq.transport.contract import ResultStore
from taskmq_redis.connection import Server
from taskmq_redis.settings import RedisSettings
from taskmq_redis.store import read_result, result_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

    from taskmq.transport.types import Payload


class RedisResultStore(ResultStore):
    """Results in a Redis server, each under its job and receipt.

    Args:
        settings: Where the server is.
        timeout: How long a call may wait for it before `TransportUnavailable`, seconds.
    """

    def __init__(self, settings: RedisSettings, *, timeout: float = 5.0) -> None:
        self._server = Server(settings, timeout)
        self._base = self._server.base + b"res:"

    @classmethod
    def from_url(cls, url: str, *, timeout: float = 5.0) -> Self:
        """Read a URL; it has the options of the transport's."""
        return cls(RedisSettings.parse(url), timeout=timeout)

    def put(self, batch: Sequence[tuple[str, str, Payload]], ttl: float) -> None:
        """See the contract."""
        rows = [(self._key(job_id, receipt), payload) for job_id, receipt, payload in batch]

        def store(client: Any) -> None:
            with client.pipeline(transaction=False) as pipe:
                for key, payload in rows:
                    pipe.execute_command("SET", key, result_bytes(payload), "PX", int(ttl * 1000))
                pipe.execute()

        if rows:
            self._server.run(store)

    def get(self, ids: Sequence[tuple[str, str]]) -> list[Payload | None]:
        """See the contract."""
        if not ids:
            return []
        keys = [self._key(job_id, receipt) for job_id, receipt in ids]
        found = self._server.command("MGET", *keys)
        return [read_result(data) for data in found]

    def delete(self, ids: Sequence[tuple[str, str]]) -> None:
        """See the contract."""
        keys = [self._key(job_id, receipt) for job_id, receipt in ids]
        if keys:
            self._server.command("DEL", *keys)

    def close(self) -> None:
        """Free connections."""
        self._server.close()

    def _key(self, job_id: str, receipt: str) -> bytes:
        return self._base + f"{receipt}.{job_id}".encode()
