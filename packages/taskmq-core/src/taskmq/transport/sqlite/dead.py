"""Dead letters, purging and counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taskmq.errors import TransportError
from taskmq.states import JobState
from taskmq.transport.sqlite.endings import JOB, Job, end
from taskmq.transport.sqlite.records import LETTER, letter_of
from taskmq.transport.sqlite.reopening import reopen
from taskmq.transport.sqlite.schema import Phase
from taskmq.transport.sqlite.step import encode_list
from taskmq.transport.sqlite.store import Store
from taskmq.transport.types import BandStats, DeadPage, ErrorInfo, PurgeReply, QueueStats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskmq.transport.sqlite.database import Row
    from taskmq.transport.sqlite.step import Step
    from taskmq.transport.types import DeadLetter

_DROP = "UPDATE jobs SET phase = NULL, rank = finished_at + job_ttl WHERE phase = 10 AND {} RETURNING seq"
_BANDS = ", ".join(str(rank) for rank in range(-9, 10))
_FREE_OF_QUEUE = (
    f"""SELECT {JOB} FROM jobs INDEXED BY jobs_line
        WHERE phase IN (1, 2, 3) AND rank IN ({_BANDS}) AND queue = ? LIMIT ?""",
    f"SELECT {JOB} FROM jobs INDEXED BY jobs_line WHERE phase = 5 AND rank = 0 AND queue = ? LIMIT ?",
    f"SELECT {JOB} FROM jobs INDEXED BY jobs_delayed WHERE phase = 4 AND queue = ? LIMIT ?",
)
_FIELD_OF_PHASE = {
    Phase.READY: "pending",
    Phase.LAST_CHANCE: "pending",
    Phase.EXTERNAL: "pending",
    Phase.DELAYED: "delayed",
    Phase.BLOCKED: "blocked",
    Phase.LEASED: "in_flight",
    Phase.ACKNOWLEDGED: "in_flight",
    Phase.HELD: "held",
    Phase.PARKED: "waiting",
    Phase.DEAD: "dead",
}
_BAND_FIELDS = ("pending", "delayed", "in_flight", "blocked")


class DeadLetters(Store):
    """Dead letters, `purge` and `stats`."""

    def list_dead(
        self, queue: str | None = None, *, limit: int = 100, cursor: str | None = None
    ) -> DeadPage:
        """See the contract."""
        after_rank, after_seq = _read_cursor(cursor)
        condition = "" if queue is None else " AND queue = ?4"
        bound = () if queue is None else (queue,)
        rows = self._database.query(
            f"SELECT {LETTER} FROM jobs INDEXED BY jobs_line WHERE phase = 10 AND rank >= ?1 "
            f"AND (rank > ?1 OR seq > ?2){condition} ORDER BY rank, seq LIMIT ?3",
            (after_rank, after_seq, limit + 1, *bound),
        )
        more = len(rows) > limit
        letters = [letter_of(row) for row in rows[:limit]]
        last = f"{rows[limit - 1][4]!r}/{rows[limit - 1][9]}" if more and limit > 0 else None
        return DeadPage(letters=letters, cursor=last)

    def get_dead(self, job_id: str) -> DeadLetter | None:
        """See the contract."""
        rows = self._database.query(
            f"SELECT {LETTER} FROM jobs WHERE id = ? AND phase = 10", (job_id,)
        )
        return letter_of(rows[0]) if rows else None

    def replay_dead(
        self, ids: Sequence[str], *, queue: str | None = None, priority: int | None = None
    ) -> int:
        """See the contract."""
        count = 0
        with self._step() as step:
            for job_id in dict.fromkeys(ids):
                row = step.con.execute("SELECT phase FROM jobs WHERE id = ?", (job_id,)).fetchone()
                if row is not None and row[0] == Phase.DEAD:
                    done = reopen(step, [job_id], {}, "skipped", queue=queue, priority=priority)
                    count += done.status == "ok"
        return count

    def purge_dead(self, ids: Sequence[str] | None = None, *, queue: str | None = None) -> int:
        """See the contract."""
        conditions, bound = ["TRUE"], list[Any]()
        if ids is not None:
            conditions.append("id IN (SELECT value FROM json_each(?))")
            bound.append(encode_list(list(ids)).decode())
        if queue is not None:
            conditions.append("queue = ?")
            bound.append(queue)
        with self._step() as step:
            return drop_dead(step, " AND ".join(conditions), bound)

    def purge(self, queue: str, *, limit: int = 500) -> PurgeReply:
        """See the contract."""
        error = ErrorInfo(reason="purged", message=f"the queue {queue} was purged")
        with self._step() as step:
            rows = _free_of_queue(step, queue, limit + 1)
            for row in rows[:limit]:
                # An earlier one's end may have moved this one out of the key's line.
                end(step, Job._make(row), JobState.REVOKED, error=error)
            return PurgeReply(removed=min(len(rows), limit), more=len(rows) > limit)

    def stats(self, queues: Sequence[str] | None = None) -> list[QueueStats]:
        """See the contract."""
        now = self._clock.time()
        condition = ""
        bound: tuple[str, ...] = ()
        if queues is not None:
            condition = " AND queue IN (SELECT value FROM json_each(?2))"
            bound = (encode_list(list(queues)).decode(),)
        groups = self._database.query(
            # What is due counts as ready, though nobody has come to promote it.
            "SELECT queue, priority, iif(phase = 4 AND rank <= ?1, 1, phase) AS place, count(*), "
            f"min(seq) FROM jobs INDEXED BY jobs_line WHERE phase BETWEEN 1 AND 10{condition} "
            "GROUP BY queue, priority, place",
            (now, *bound),
        )
        born = self._births([row[4] for row in groups if row[2] in (1, 2, 3)])
        by_queue: dict[str, list[Row]] = {name: [] for name in queues or ()}
        for row in groups:
            by_queue.setdefault(row[0], []).append(row)
        return [_stats_of(name, by_queue[name], born, now) for name in sorted(by_queue)]

    def _births(self, seqs: list[int]) -> dict[int, float]:
        if not seqs:
            return {}
        rows = self._database.query(
            "SELECT seq, enqueued_at FROM jobs WHERE seq IN (SELECT value FROM json_each(?))",
            (encode_list(seqs).decode(),),
        )
        return dict(rows)


def drop_dead(step: Step, condition: str, bound: Sequence[Any]) -> int:
    """Turn dead letters into mere records, which are pruned in their time; how many."""
    rows = [row[0] for row in step.con.execute(_DROP.format(condition), bound).fetchall()]
    if rows:
        step.look_again(rows, step.now)
    return len(rows)


def _free_of_queue(step: Step, queue: str, limit: int) -> list[Row]:
    rows: list[Row] = []
    for sql in _FREE_OF_QUEUE:
        if len(rows) < limit:
            rows += step.con.execute(sql, (queue, limit - len(rows))).fetchall()
    return rows


def _stats_of(name: str, rows: Sequence[Row], born: dict[int, float], now: float) -> QueueStats:
    totals: dict[str, int] = {}
    bands: dict[int, dict[str, int]] = {}
    ages: dict[int, float] = {}
    for _, priority, phase, count, first in rows:
        field = _FIELD_OF_PHASE[phase]
        totals[field] = totals.get(field, 0) + count
        if field in _BAND_FIELDS:
            band = bands.setdefault(priority, {})
            band[field] = band.get(field, 0) + count
        if first in born and field == "pending":
            ages[priority] = max(ages.get(priority, 0.0), now - born[first])
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
    rank, _, seq = cursor.partition("/")
    try:
        return float(rank), int(seq)
    except ValueError:
        raise TransportError(f"{cursor!r} is no cursor of a page of dead letters") from None
