"""The raw limit: a bare client that does what a queue cannot avoid, and nothing else.

Claim with a lease, remove the message, write state and result. No order between queues, no fences,
no keys. The same bytes, the same settings of the server.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from backends import Backend, Place, Sqlite

Job = tuple[str, bytes]
"""An id and an envelope."""


class RawQueue(Protocol):
    """What each bare client does."""

    def enqueue_one(self, job: Job) -> None: ...
    def enqueue(self, jobs: Sequence[Job]) -> None: ...
    def claim(self, limit: int) -> Sequence[Any]:
        """Claimed jobs, as `finish` wants them."""
        ...

    def finish(self, claimed: Sequence[Any], result: bytes) -> None: ...
    def close(self) -> None: ...


def raw_queue(backend: Backend, place: Place) -> RawQueue:
    """The bare client of a backend that has one."""
    if isinstance(backend, Sqlite):
        from raw_sqlite import RawSqlite

        return RawSqlite(str(place.folder / "raw.db"), backend.synchronous)
    if backend.client == "redis-py":
        from raw_redis import RawRedis

        return RawRedis(place.url)
    if backend.client == "psycopg":
        from raw_postgres import RawPostgres

        return RawPostgres(place.url)
    raise ValueError(f"no bare client for {backend.name}")
