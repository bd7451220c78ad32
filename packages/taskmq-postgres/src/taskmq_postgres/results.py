"""Results in a database of their own: `Config(result="postgresql://…")`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from taskmq.transport.contract import ResultStore
from taskmq.transport.types import Payload
from taskmq_postgres import arrays
from taskmq_postgres.database import Database
from taskmq_postgres.settings import read_url

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

_PAIRS = "SELECT * FROM unnest(%s::text[], %s::text[])"
# Sorted, so that two writers of the same results never wait for each other in a circle.
_PUT = (
    "INSERT INTO {results} (until, id, receipt, content_type, data) "
    "SELECT {now}() + %s, * FROM unnest(%s::text[], %s::text[], %s::text[], %s::bytea[]) "
    "ORDER BY 2, 3 ON CONFLICT (id, receipt) DO UPDATE "
    "SET until = excluded.until, content_type = excluded.content_type, data = excluded.data"
)
_GET = (
    "SELECT id, receipt, content_type, data FROM {results} "
    f"WHERE (id, receipt) IN ({_PAIRS}) AND until > {{now}}()"
)
_DELETE = f"DELETE FROM {{results}} WHERE (id, receipt) IN ({_PAIRS})"
_PRUNE = (
    "DELETE FROM {results} WHERE (id, receipt) IN ("
    "SELECT id, receipt FROM {results} WHERE until <= {now}() "
    "ORDER BY until LIMIT 1000 FOR UPDATE SKIP LOCKED)"
)
_PRUNE_EVERY: Final = 30.0


class PostgresResultStore(ResultStore):
    """Results in a PostgreSQL table, until their time is over."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._prune_at = 0.0

    @classmethod
    def from_url(cls, url: str, *, timeout: float = 5.0) -> Self:
        """Read the same URL as the transport."""
        return cls(Database(read_url(url, timeout)))

    def put(self, batch: Sequence[tuple[str, str, Payload]], ttl: float) -> None:
        """See the contract."""
        # The last of a key counts: one statement may not touch a row twice.
        rows = {(job, receipt): payload for job, receipt, payload in batch}
        if not rows:
            return
        payloads = rows.values()
        self._database.query(
            self._database.names.statement(_PUT),
            [
                ttl,
                *_columns(list(rows)),
                arrays.texts([payload.content_type for payload in payloads]),
                arrays.blobs([payload.data for payload in payloads]),
            ],
        )
        self._prune()

    def get(self, ids: Sequence[tuple[str, str]]) -> list[Payload | None]:
        """See the contract."""
        if not ids:
            return []
        sql = self._database.names.statement(_GET)
        rows = self._database.query(sql, _columns(ids))
        found = {(job, receipt): Payload(kind, data) for job, receipt, kind, data in rows}
        return [found.get((job, receipt)) for job, receipt in ids]

    def delete(self, ids: Sequence[tuple[str, str]]) -> None:
        """See the contract."""
        if ids:
            self._database.query(self._database.names.statement(_DELETE), _columns(ids))

    def close(self) -> None:
        """See the contract."""
        self._database.close()

    def _prune(self) -> None:
        """Remove what is past its time: nobody else does it for a store."""
        now = time.monotonic()
        if now >= self._prune_at:
            removed = self._database.query(
                self._database.names.statement(_PRUNE + " RETURNING 1"), housekeeping=True
            )
            # A full batch says that there is more.
            self._prune_at = now + (_PRUNE_EVERY if len(removed) < 1000 else 0.0)


def _columns(ids: Sequence[tuple[str, str]]) -> list[arrays.Texts]:
    return [arrays.texts([job for job, _ in ids]), arrays.texts([receipt for _, receipt in ids])]
