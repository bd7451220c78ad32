"""What a run has used up: records that are appended one by one, each with the sums so far.

`enqueue` answers `exists` for an id that is taken, which makes appending a compare-and-set: sums are exact
however many steps write at once, on every backend.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from taskmq.errors import BudgetExceeded
from taskmq.ids import new_id
from taskmq.protocol.envelope import decode_envelope
from taskmq.transport.types import ErrorInfo, Hold
from taskmq.workflow.inputs import FETCH, decode_inputs, load_plan
from taskmq.workflow.messages import node_message

if TYPE_CHECKING:
    from taskmq.app import App
    from taskmq.context import TaskContext
    from taskmq.workflow.plan import Budget


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one step used: attempts, jobs, cost."""

    ref: str = ""
    attempts: int = 0
    jobs: int = 0
    cost: float = 0.0
    labels: dict[str, Any] = {}
    worker: str = ""
    at: float = 0.0
    reset: bool = False


class Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An entry with the sums up to it."""

    entry: Entry
    attempts: int = 0
    jobs: int = 0
    cost: float = 0.0


def append(context: TaskContext, root: str, entry: Entry) -> None:
    """Add an entry for this attempt.

    Raises:
        BudgetExceeded: The run may not use so much. What was spent is noted all the same.
    """
    app = context.app
    plan = load_plan(app, root)
    if plan.budget is None:
        return
    base = len(plan.steps)
    line = _append(
        app,
        root,
        msgspec.structs.replace(entry, worker=context.worker, at=context.reserved_at),
    )
    if over := _exceeds(plan.budget, line, base):
        raise BudgetExceeded(over)


def spend(context: TaskContext, inputs: bytes, amount: float, labels: dict[str, Any]) -> None:
    """Note what an attempt has spent, if its run has a budget.

    Raises:
        BudgetExceeded: The budget is used up.
    """
    told = decode_inputs(inputs)
    if told.budget:
        append(
            context, told.root, Entry(ref=f"{context.id}#{new_id()}", cost=amount, labels=labels)
        )


def reset(app: App, root: str) -> None:
    """Begin the sums anew: an operator lets the run go on."""
    _append(app, root, Entry(reset=True))


def read(app: App, root: str) -> list[Line]:
    """All lines, oldest first."""
    lines: list[Line] = []
    while True:
        ids = [_line_id(root, len(lines) + offset) for offset in range(1, FETCH + 1)]
        records = app.transport.get_jobs(ids, envelopes=True)
        found = [each for each in records if each is not None and each.envelope is not None]
        lines += [_read(each.envelope or b"") for each in found]
        if len(found) < len(ids):
            return lines


def budget_error(error: BudgetExceeded) -> ErrorInfo:
    """The error on the run's record."""
    return ErrorInfo(type="BudgetExceeded", message=str(error), reason="budget")


def _append(app: App, root: str, entry: Entry) -> Line:
    number, last = _last(app, root)
    while True:
        line = _sum(last, entry)
        number += 1
        message = node_message(
            app,
            _line_id(root, number),
            hold=Hold(arrivals=0, finish=True),
            queue="taskmq:ledger",
            run=root,
            body=_encoder.encode(line),
        )
        if app.transport.enqueue([message])[0].status == "created":
            return line
        record = app.transport.get_jobs([message.id], envelopes=True)[0]
        if record is None or record.envelope is None:
            number, last = _last(app, root)
            continue
        last = _read(record.envelope)
        if last.entry.ref and last.entry == entry:
            # Our own, whose reply was lost.
            return last


def _last(app: App, root: str) -> tuple[int, Line]:
    prefix = _line_id(root, 0)[:-8]
    page = app.transport.list_jobs(prefix=prefix, limit=1, newest_first=True)
    if not page.jobs:
        return 0, Line(entry=Entry())
    record = app.transport.get_jobs([page.jobs[0].id], envelopes=True)[0]
    if record is None or record.envelope is None:
        return 0, Line(entry=Entry())
    return int(record.id[-8:]), _read(record.envelope)


def _sum(last: Line, entry: Entry) -> Line:
    if entry.reset:
        return Line(entry=entry)
    return Line(
        entry=entry,
        attempts=last.attempts + entry.attempts,
        jobs=last.jobs + entry.jobs,
        cost=last.cost + entry.cost,
    )


def _exceeds(budget: Budget, line: Line, base: int) -> str:
    if budget.max_attempts is not None and line.attempts > budget.max_attempts:
        return (
            f"the run may make {budget.max_attempts} attempts, this would be the {line.attempts}th"
        )
    if budget.max_jobs is not None and line.jobs + base > budget.max_jobs:
        return f"the run may have {budget.max_jobs} jobs, this would make {line.jobs + base}"
    if budget.max_cost is not None and line.cost > budget.max_cost:
        return f"the run may cost {budget.max_cost:g}, it has cost {line.cost:g}"
    return ""


def _read(envelope: bytes) -> Line:
    return _decoder.decode(decode_envelope(envelope).body)


def _line_id(root: str, number: int) -> str:
    return f"{root}::ledger.{number:08d}"


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Line)
