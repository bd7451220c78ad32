"""Dead letters, purging and counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskmq.transport.types import BandStats, DeadPage, PurgeReply, QueueStats
from taskmq_postgres import arrays
from taskmq_postgres.records import letter_of
from taskmq_postgres.store import Store, bad_cursor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskmq.transport.types import DeadLetter
    from taskmq_postgres.store import Row

_LIST = "SELECT * FROM {list_dead_1}(%s, %s, %s, %s)"
_GET = "SELECT * FROM {get_dead_1}(%s)"

_FIELD_OF_PHASE = {
    1: "pending",
    2: "pending",
    3: "pending",
    4: "delayed",
    5: "blocked",
    6: "in_flight",
    7: "in_flight",
    8: "waiting",
    9: "held",
    10: "dead",
}
_BAND_FIELDS = ("pending", "delayed", "in_flight", "blocked")


class DeadLetters(Store):
    """Dead letters, `purge` and `stats`."""

    def list_dead(
        self, queue: str | None = None, *, limit: int = 100, cursor: str | None = None
    ) -> DeadPage:
        """See the contract."""
        died_at, number = _read_cursor(cursor)
        rows = self._work(_LIST, [died_at, number, queue, limit + 1])
        more = len(rows) > limit
        last = f"{rows[limit - 1][4]!r}/{rows[limit - 1][9]}" if more and limit > 0 else None
        return DeadPage(letters=[letter_of(row) for row in rows[:limit]], cursor=last)

    def get_dead(self, job_id: str) -> DeadLetter | None:
        """See the contract."""
        rows = self._ask(_GET, [job_id])
        return letter_of(rows[0]) if rows else None

    def replay_dead(
        self, ids: Sequence[str], *, queue: str | None = None, priority: int | None = None
    ) -> int:
        """See the contract."""
        bound = [arrays.texts(ids), queue, priority]
        return int(self._work("SELECT {replay_1}(%s, %s, %s)", bound)[0][0])

    def purge_dead(self, ids: Sequence[str] | None = None, *, queue: str | None = None) -> int:
        """See the contract."""
        bound = [None if ids is None else arrays.texts(ids), queue]
        return int(self._work("SELECT {purge_dead_1}(%s, %s)", bound)[0][0])

    def purge(self, queue: str, *, limit: int = 500) -> PurgeReply:
        """See the contract."""
        removed, more = self._work("SELECT * FROM {purge_1}(%s, %s)", [queue, limit])[0]
        return PurgeReply(removed=removed, more=more)

    def stats(self, queues: Sequence[str] | None = None) -> list[QueueStats]:
        """See the contract."""
        bound = [None if queues is None else arrays.texts(queues)]
        by_queue: dict[str, list[Row]] = {name: [] for name in queues or ()}
        for row in self._work("SELECT * FROM {stats_1}(%s)", bound):
            by_queue.setdefault(row[0], []).append(row)
        return [_stats_of(name, by_queue[name]) for name in sorted(by_queue)]


def _stats_of(name: str, rows: Sequence[Row]) -> QueueStats:
    totals: dict[str, int] = {}
    bands: dict[int, dict[str, int]] = {}
    ages: dict[int, float] = {}
    for _, priority, phase, count, born, now in rows:
        field = _FIELD_OF_PHASE[phase]
        totals[field] = totals.get(field, 0) + count
        if field in _BAND_FIELDS:
            band = bands.setdefault(priority, {})
            band[field] = band.get(field, 0) + count
        if born is not None and field == "pending":
            ages[priority] = max(ages.get(priority, 0.0), now - born)
    return QueueStats(
        queue=name,
        oldest_age=max(ages.values(), default=None),
        bands=tuple(
            BandStats(priority=priority, oldest_age=ages.get(priority), **bands[priority])
            for priority in sorted(bands, reverse=True)
        ),
        **totals,
    )


def _read_cursor(cursor: str | None) -> tuple[float, int]:
    if cursor is None:
        return -1.0, -1
    died_at, _, number = cursor.partition("/")
    try:
        return float(died_at), int(number)
    except ValueError:
        raise bad_cursor(cursor, "dead letters") from None
