"""Settlements with follow-ups: one transaction for a call, with a handful of statements.

All receipts are judged and locked, then what counts is enqueued, expected, arrived, finished and
settled, each kind for the whole call at once. When anything in it is refused or can't be stored,
the transaction begins anew and takes the settlements one by one, each under a savepoint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taskmq.transport.types import SettleResult
from taskmq_postgres import arrays
from taskmq_postgres.columns import columns, kind_of
from taskmq_postgres.enqueue import ENQUEUE, enqueue_parameters
from taskmq_postgres.store import UNSTORABLE, encode, not_storable, split_receipt

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import psycopg

    from taskmq.transport.types import FollowUps, Settlement

    Cursor = psycopg.Cursor[tuple[Any, ...]]
    Statement = Callable[[str], Any]

SETTLE = "SELECT * FROM {settle_1}(" + ", ".join(["%s"] * 14) + ")"
_JUDGE = "SELECT * FROM {judge_all_1}(%s, %s, %s)"
_EXPECT = "SELECT {expect_1}(%s, %s)"
_ARRIVE = "SELECT {arrive_1}(%s, %s, %s, %s, {now}())"
_FINISH = "SELECT {finish_1}(%s, %s, %s, %s, %s)"

_OK = SettleResult("ok")


class _OneByOne(Exception):
    """Something in the call stands in the way of the rest."""


def settle_together(
    cursor: Cursor, statement: Statement, worker: str, settlements: Sequence[Settlement]
) -> list[SettleResult]:
    """Apply a whole call; one by one where that is needed."""
    cursor.execute("SAVEPOINT together")
    try:
        results = _all_at_once(cursor, statement, worker, settlements)
    except (_OneByOne, *UNSTORABLE):
        cursor.execute("ROLLBACK TO together")
        return [_under_savepoint(cursor, statement, worker, one) for one in settlements]
    return results


def _under_savepoint(
    cursor: Cursor, statement: Statement, worker: str, settlement: Settlement
) -> SettleResult:
    cursor.execute("SAVEPOINT item")
    try:
        result = _all_at_once(cursor, statement, worker, [settlement], alone=True)[0]
    except UNSTORABLE as error:
        result = not_storable(error)
    if result.status == "refused":
        cursor.execute("ROLLBACK TO item")
    cursor.execute("RELEASE item")
    return result


def _all_at_once(
    cursor: Cursor,
    statement: Statement,
    worker: str,
    settlements: Sequence[Settlement],
    *,
    alone: bool = False,
) -> list[SettleResult]:
    receipts = [split_receipt(one.receipt) for one in settlements]
    if len(set(receipts)) < len(receipts):
        raise _OneByOne
    results = [_OK] * len(settlements)
    judged = [
        arrays.bigints([number for number, _ in receipts]),
        arrays.texts([token for _, token in receipts]),
        arrays.texts([kind_of(one) for one in settlements]),
    ]
    for n, status, reason in cursor.execute(statement(_JUDGE), judged).fetchall():
        results[n - 1] = SettleResult(status, reason)
    counting = [one for one, r in zip(settlements, results, strict=True) if r.status == "ok"]
    follow_ups = [one.follow_ups for one in counting if one.follow_ups is not None]
    # Before the jobs' own ends, whose arrivals come last.
    _prepare(cursor, statement, follow_ups)
    _conclude(cursor, statement, follow_ups)
    rows = cursor.execute(
        statement(SETTLE), [worker, arrays.texts(()), *columns(counting)], binary=True
    ).fetchall()
    for kind, _, status, reason, *_ in rows:
        if kind == "s":
            if not alone:
                raise _OneByOne
            return [SettleResult(status, reason)]
    return results


def _prepare(cursor: Cursor, statement: Statement, follow_ups: Sequence[FollowUps]) -> None:
    messages = [message for each in follow_ups for message in each.enqueue]
    if messages:
        cursor.execute(statement(ENQUEUE), enqueue_parameters(messages))
    for each in follow_ups:
        for expect in each.expect:
            cursor.execute(statement(_EXPECT), [expect.to, expect.more])


def _conclude(cursor: Cursor, statement: Statement, follow_ups: Sequence[FollowUps]) -> None:
    arrivals = [arrival for each in follow_ups for arrival in each.arrive]
    if arrivals:
        cursor.execute(
            statement(_ARRIVE),
            [
                arrays.texts([arrival.to for arrival in arrivals]),
                arrays.texts([arrival.source for arrival in arrivals]),
                arrays.ints([arrival.series for arrival in arrivals]),
                arrays.texts([arrival.verdict for arrival in arrivals]),
            ],
        )
    for each in follow_ups:
        for finish in each.finish:
            result = finish.result
            parameters: list[Any] = [
                finish.id,
                finish.state.value,
                None if finish.error is None else encode(finish.error),
                None if result is None else result.content_type,
                None if result is None else result.data,
            ]
            cursor.execute(statement(_FINISH), parameters)
