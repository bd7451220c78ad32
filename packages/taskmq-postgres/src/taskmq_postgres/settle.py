"""What workers say of their deliveries: `settle`, `extend`, `reclaim`.

Settlements without follow-ups are one call of one function, whatever their kinds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taskmq.transport.types import ExtendReply, SettleReply, SettleResult
from taskmq_postgres import arrays
from taskmq_postgres.columns import columns
from taskmq_postgres.follow_ups import SETTLE, settle_together
from taskmq_postgres.reserve import attention
from taskmq_postgres.store import UNSTORABLE, Store, not_storable, split_receipt

if TYPE_CHECKING:
    from collections.abc import Sequence

    import psycopg

    from taskmq.transport.types import Extension, Settlement
    from taskmq_postgres.store import Row

_EXTEND = "SELECT * FROM {extend_1}(%s, %s, %s, %s, %s, %s)"
_RECLAIM = "SELECT {reclaim_1}(%s, %s, %s)"

_OK = SettleResult("ok")


class Settling(Store):
    """`settle`, `extend`, `reclaim`."""

    def settle(self, worker: str, settlements: Sequence[Settlement]) -> SettleReply:
        """See the contract."""
        names = arrays.texts(self._queues.get(worker, ()))
        results: list[SettleResult] = []
        if any(one.follow_ups is not None for one in settlements):
            rows = self._settle_with_follow_ups(worker, names, settlements, results)
        else:
            rows = self._settle_plain(worker, names, settlements, results)
        cancelled, terminate, now, head = _heard(rows)
        return SettleReply(
            results=results, now=now, head=head, cancelled=cancelled, terminate=terminate
        )

    def _settle_plain(
        self,
        worker: str,
        names: arrays.Texts,
        settlements: Sequence[Settlement],
        results: list[SettleResult],
    ) -> list[Row]:
        """Settle in one call; in halves when something in it can't be stored."""
        try:
            rows = self._work(SETTLE, [worker, names, *columns(settlements)])
        except UNSTORABLE as error:
            if len(settlements) == 1:
                results.append(not_storable(error))
                return self._work(SETTLE, [worker, names, *columns([])])
            half = len(settlements) // 2
            self._settle_plain(worker, names, settlements[:half], results)
            return self._settle_plain(worker, names, settlements[half:], results)
        part = [_OK] * len(settlements)
        for kind, n, status, reason, *_ in rows:
            if kind == "s":
                part[n - 1] = SettleResult(status, reason)
        results += part
        return rows

    def _settle_with_follow_ups(
        self,
        worker: str,
        names: arrays.Texts,
        settlements: Sequence[Settlement],
        results: list[SettleResult],
    ) -> list[Row]:
        def work(cursor: psycopg.Cursor[Row]) -> list[Row]:
            results[:] = settle_together(cursor, self._statement, worker, settlements)
            look = [worker, names, *columns([])]
            return cursor.execute(self._statement(SETTLE), look, binary=True).fetchall()

        return self._database.transaction(work, long=True)

    def extend(self, worker: str, extensions: Sequence[Extension]) -> ExtendReply:
        """See the contract."""
        receipts = [split_receipt(extension.receipt) for extension in extensions]
        rows = self._ask(
            _EXTEND,
            [
                worker,
                arrays.texts(self._queues.get(worker, ())),
                arrays.bigints([number for number, _ in receipts]),
                arrays.texts([token for _, token in receipts]),
                arrays.floats([float(extension.lease) for extension in extensions]),
                arrays.floats([extension.started_ago for extension in extensions]),
            ],
            housekeeping=True,
        )
        cancelled, terminate, now, head = _heard(rows)

        def named(kind: str, how: str | None = None) -> frozenset[str]:
            places = [
                int(row[1]) - 1 for row in rows if row[0] == kind and (how is None or row[2] == how)
            ]
            return frozenset(extensions[place].receipt for place in places)

        return ExtendReply(
            now=now,
            lost=named("l"),
            cancelled=cancelled | named("x"),
            terminate=terminate | named("x", "force"),
            expired=named("e"),
            head=head,
        )

    def reclaim(self, worker: str, keep: Sequence[str]) -> int:
        """See the contract."""
        known = [split_receipt(receipt) for receipt in keep]
        numbers = arrays.bigints([number for number, _ in known])
        rows = self._work(_RECLAIM, [worker, numbers, arrays.texts([token for _, token in known])])
        return int(rows[0][0])


def _heard(rows: Sequence[Row]) -> tuple[frozenset[str], frozenset[str], float, int | None]:
    """Receipts that are cancelled, and those to be ended by force; now; the head."""
    held: list[tuple[Any, Any, Any]] = []
    now: float = 0.0
    head: int | None = None
    for kind, n, status, _, job, at in rows:
        if kind == "a":
            held.append((job, status, n))
        elif kind == "h":
            now, head = at, n
    cancelled, terminate = attention(held)
    return cancelled, terminate, now, head
