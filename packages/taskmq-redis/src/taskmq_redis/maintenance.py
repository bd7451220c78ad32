"""Maintenance, counts and purging."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from taskmq.errors import TransportError, TransportUnavailable
from taskmq.states import JobState
from taskmq.transport.contract import MessageRole
from taskmq.transport.types import (
    BandStats,
    Completion,
    Ended,
    ErrorInfo,
    PurgeReply,
    QueueStats,
    ReapReport,
)
from taskmq_redis.store import Store, completion_words, micros, pairs, seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskmq.transport.types import ReapRequest

_TIMED_OUT: Final = completion_words(
    Completion(
        state="FAILED",
        error=ErrorInfo(reason="timed out", message="nobody completed the job in time"),
        retryable=True,
    )
)
_QUEUES: Final = 200
"""How many queues one call counts."""
_PAGE: Final = 1000
"""How many keys one call looks at for the list of all jobs."""
_GLOB: Final = re.compile(rb"[*?\[\]\\^]")


class Maintaining(Store, MessageRole):
    """The part of the message role about maintenance."""

    _scanned: int = 0

    def reap(self, request: ReapRequest) -> ReapReport:
        """See the contract."""
        kept = request.retention
        requeued, timed_out, pruned, ended, next_in, more, unlisted = self._call(
            "reap",
            request.recover,
            request.limit,
            _TIMED_OUT,
            _or_false(kept.dead_letter_ttl),
            False if kept.dead_letter_max is None else kept.dead_letter_max,
            False if kept.max_finished_jobs is None else kept.max_finished_jobs,
            micros(kept.worker_ttl),
        )
        return ReapReport(
            requeued=requeued,
            timed_out=timed_out,
            pruned=pruned,
            ended=tuple(_ended(row) for row in ended),
            next_in=seconds(next_in) if next_in else None,
            more=bool(more) or (bool(unlisted) and self._relist()),
        )

    def _relist(self) -> bool:
        """Find jobs for the list of all of them, which was lost; whether there is more to look at."""
        pattern = _GLOB.sub(rb"\\\g<0>", self._base) + b"j:*"
        try:
            cursor, keys = self._server.command(
                "SCAN", self._scanned, "MATCH", pattern, "COUNT", _PAGE
            )
        except TransportUnavailable:
            raise
        except TransportError:
            # Not allowed: what is enqueued from now on is listed, and every job is run all the same.
            return False
        self._scanned = int(cursor)
        self._call("relist", [key[len(self._base) + 2 :] for key in keys], self._scanned == 0)
        return self._scanned != 0

    def stats(self, queues: Sequence[str] | None = None) -> list[QueueStats]:
        """See the contract."""
        if queues is None:
            key = self._base + b"qs"
            members = self._server.command("SMEMBERS", key)
            names = sorted(name.decode() for name in members)
        else:
            names = sorted(set(queues))
        found: list[QueueStats] = []
        for at in range(0, len(names), _QUEUES):
            found += map(_stats, self._call("stats", names[at : at + _QUEUES]))
        return found if queues is not None else [each for each in found if not _is_empty(each)]

    def purge(self, queue: str, *, limit: int = 500) -> PurgeReply:
        """See the contract."""
        removed, more = self._call("purge", queue, limit)
        return PurgeReply(removed=removed, more=bool(more))


def _or_false(value: float | None) -> Any:
    return False if value is None else micros(value)


def _ended(row: Sequence[bytes]) -> Ended:
    job_id, task, queue, state, reason = (part.decode() for part in row)
    return Ended(id=job_id, task=task, queue=queue, state=JobState(state), reason=reason)


def _is_empty(stats: QueueStats) -> bool:
    return not (stats.bands or stats.held or stats.waiting or stats.dead)


def _stats(row: Sequence[Any]) -> QueueStats:
    name, flat, dead, ready = row
    counters = {field.decode(): int(value) for field, value in pairs(flat).items()}
    pending = {level: (count, seconds(age)) for level, count, age in ready}
    levels = {int(field[1:]) for field in counters if field[0] in "dblx" and len(field) > 1}
    bands = tuple(
        BandStats(
            priority=level,
            pending=pending.get(level, (0, 0.0))[0] + counters.get(f"x{level}", 0),
            delayed=counters.get(f"d{level}", 0),
            in_flight=counters.get(f"l{level}", 0),
            blocked=counters.get(f"b{level}", 0),
            oldest_age=pending[level][1] if level in pending else None,
        )
        for level in sorted(levels | pending.keys(), reverse=True)
    )
    ages = [band.oldest_age for band in bands if band.oldest_age is not None]
    return QueueStats(
        queue=name.decode(),
        pending=sum(band.pending for band in bands),
        delayed=sum(band.delayed for band in bands),
        in_flight=sum(band.in_flight for band in bands),
        blocked=sum(band.blocked for band in bands),
        held=counters.get("h", 0),
        waiting=counters.get("w", 0),
        dead=dead,
        oldest_age=max(ages) if ages else None,
        bands=bands,
    )
