"""One bounded pass of maintenance: `reap`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskmq.states import JobState
from taskmq.transport import rates
from taskmq.transport.types import Ended, ReapReport
from taskmq_postgres.store import TIMED_OUT, Store, encode

if TYPE_CHECKING:
    from taskmq.transport.types import ReapRequest

_REAP = "SELECT * FROM {reap_1}(%s, %s, %s, %s, %s, %s, %s, %s)"


class Maintaining(Store):
    """`reap`."""

    def reap(self, request: ReapRequest) -> ReapReport:
        """See the contract."""
        retention = request.retention
        rows = self._work(
            _REAP,
            [
                request.recover,
                max(1, request.limit),
                retention.dead_letter_ttl,
                retention.dead_letter_max,
                retention.max_finished_jobs,
                retention.worker_ttl,
                rates.KEPT,
                encode(TIMED_OUT),
            ],
        )
        *_, counts, next_in = rows[-1]
        requeued, timed_out, pruned, more = counts
        return ReapReport(
            requeued=requeued,
            timed_out=timed_out,
            pruned=pruned,
            ended=tuple(
                Ended(id=row[1], task=row[2], queue=row[3], state=JobState(row[4]), reason=row[5])
                for row in rows[:-1]
            ),
            next_in=next_in,
            more=bool(more),
        )
