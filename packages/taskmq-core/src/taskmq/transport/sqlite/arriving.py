"""Acks of jobs that others wait for, as many as a call has: one look, one update, one count a target.

One by one each of them costs a savepoint and a look at the whole row, and each of its arrivals two more:
the items of a map, which all arrive at the same record, would take seven times as long as plain jobs.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from taskmq.transport.arrivals import verdict_of
from taskmq.transport.sqlite.endings import arrive_together, settle_arrivals
from taskmq.transport.sqlite.schema import Hook
from taskmq.transport.sqlite.step import encode, encode_list, extra_of
from taskmq.transport.types import Ack

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from taskmq.transport.sqlite.endings import Arriving
    from taskmq.transport.sqlite.step import Step
    from taskmq.transport.types import Settlement

_LOOK = (
    "SELECT seq, id, receipt, hooks, series, extra, job_ttl FROM jobs "
    "WHERE seq IN (SELECT value FROM json_each(?)) AND phase = 6 AND attention IS NULL"
)
_END = (
    "UPDATE jobs SET phase = NULL, rank = ?2 + job_ttl, finished_at = ?2, "
    "started_at = coalesce(started_at, ?3), result_type = ?4, result = ?5, state = ?6, error = ?7, "
    "meta = coalesce(?8, meta), hooks = hooks | ?9 WHERE seq = ?1"
)
_ALLOWED = Hook.SUCCESSORS | Hook.RUN | Hook.HOLD
"""What an end looks after here; whatever else a job has, it is judged by itself."""


def ack_together(step: Step, settlements: Sequence[Settlement]) -> bool | None:
    """Apply a batch of plain acks of held deliveries; None, with nothing done, when it isn't one.

    Otherwise it says whether anything waited for these jobs.
    """
    acks: dict[int, Ack] = {}
    for one in settlements:
        if type(one) is not Ack or one.follow_ups is not None or not one.state.is_final:
            return None
        acks[_seq_of(one.receipt)] = one
    rows = step.con.execute(_LOOK, (encode_list(list(acks)).decode(),)).fetchall()
    if len(rows) != len(settlements):
        return None
    for seq, _, receipt, hooks, *_ in rows:
        if acks[seq].receipt != receipt or hooks & ~_ALLOWED:
            return None
    step.con.executemany(_END, [_values(acks[row[0]], row[0], step.now) for row in rows])
    by_target: dict[str, list[Arriving]] = {}
    kept: dict[float, list[int]] = {}
    for seq, job_id, _, hooks, series, extra, job_ttl in rows:
        kept.setdefault(step.now + job_ttl, []).append(seq)
        if hooks & Hook.SUCCESSORS:
            for edge in extra_of(extra).successors:
                verdict = verdict_of(acks[seq].state, edge)
                arrival = (edge.to, job_id, series, verdict)
                by_target.setdefault(edge.to, []).append(arrival)
    step.ended.extend(row[0] for row in rows)
    for at, seqs in kept.items():
        step.look_again(seqs, at)
    _arrive(step, by_target)
    return bool(by_target)


def _arrive(step: Step, by_target: Mapping[str, list[Arriving]]) -> None:
    following: deque[Arriving] = deque()
    for target, arriving in by_target.items():
        if len(arriving) > 1 and all(each[3] == "ok" for each in arriving):
            arrive_together(step, target, arriving, following)
        else:
            # A failure may decide before the others count, and the one that decides is named.
            settle_arrivals(step, arriving)
    settle_arrivals(step, following)


def _values(ack: Ack, seq: int, now: float) -> tuple[Any, ...]:
    ago, result = ack.started_ago, ack.result
    return (
        seq,
        now,
        None if ago is None else now - ago,
        None if result is None else result.content_type,
        None if result is None else result.data,
        # A plain text: the driver takes a slow path for an enum's member.
        str(ack.state.value),
        None if ack.error is None else encode(ack.error),
        ack.meta,
        Hook.RESULT_STORED if ack.result_stored else 0,
    )


def _seq_of(receipt: str) -> int:
    head, _, _ = receipt.partition("-")
    return int(head) if head.isdecimal() else 0
