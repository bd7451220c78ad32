"""Messages come in: one insert a row, optimistic; whatever is in the way takes the careful path."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

from taskmq.errors import LeaseLost
from taskmq.states import JobState
from taskmq.transport.sqlite.endings import decide_held, find_job
from taskmq.transport.sqlite.schema import FOREVER, INLINE_ENVELOPE, ROOM, Hook, Phase
from taskmq.transport.sqlite.step import NO_EXTRA, Extra, encode
from taskmq.transport.sqlite.store import Store
from taskmq.transport.types import Enqueued

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskmq.transport.sqlite.step import Step
    from taskmq.transport.types import Fence, Message

_COLUMNS = (
    "phase, rank, queue, priority, id, task, state, hooks, max_deliveries, enqueued_at, "
    "expires_at, lease, job_ttl, concurrency_key, need, arrived, failed, run, step, extra, "
    "envelope, result"
)
_INSERT = f"INSERT INTO jobs ({_COLUMNS}) VALUES ({'?, ' * 21}{ROOM})"


# Each bound value costs the driver 0.1 µs a row.
_INSERT_SIMPLE = (
    "INSERT INTO jobs (phase, rank, queue, priority, id, task, state, max_deliveries, enqueued_at, "
    "expires_at, lease, job_ttl, envelope, result) "
    f"VALUES (?, ?, ?, ?, ?, ?, 'QUEUED', ?, ?, ?, ?, ?, ?, {ROOM})"
)


class Enqueuing(Store):
    """`enqueue`."""

    def enqueue(self, messages: Sequence[Message], *, fence: Fence | None = None) -> list[Enqueued]:
        """See the contract."""
        if not messages:
            return []
        with self._step() as step:
            if fence is not None:
                _check_fence(step, fence)
            if _insert_plain(step, messages):
                return [Enqueued(message.id, "created") for message in messages]
            return insert_each(step, messages)


def insert_each(step: Step, messages: Sequence[Message]) -> list[Enqueued]:
    """Insert messages one by one, in order, looking at ids, keys and holds."""
    return [_insert_careful(step, message) for message in messages]


def insert_many(step: Step, messages: Sequence[Message]) -> None:
    """Insert messages in bulk where that can be, and the others one by one before them."""
    plain = [message for message in messages if message.hold is None]
    if len(plain) < 2:
        insert_each(step, messages)
        return
    insert_each(step, [message for message in messages if message.hold is not None])
    ready = step.ready
    if _insert_plain(step, plain):
        for queue, count in ready.items():
            step.add_ready(queue, count)
    else:
        step.ready = ready
        insert_each(step, plain)


def _insert_plain(step: Step, messages: Sequence[Message]) -> bool:
    """Insert all at once if they have neither key nor hold nor a large envelope, and are new."""
    now = step.now
    rows: list[tuple[Any, ...]] = []
    ready: dict[str, int] = {}
    simple = True
    for message in messages:
        queue = message.queue
        ready[queue] = ready.get(queue, 0) + 1
        if simple and not _is_rare(message):
            rows.append(_simple_row(message, now))
            continue
        simple = False
        if (
            message.key is not None
            or message.hold is not None
            or len(message.envelope) > INLINE_ENVELOPE
        ):
            return False
    if not simple:
        rows = [_row(message, now) for message in messages]
    insert = _INSERT_SIMPLE if simple else _INSERT
    con = step.con
    try:
        if len(rows) == 1:
            con.execute(insert, rows[0])
        else:
            con.execute("SAVEPOINT plain")
            con.executemany(insert, rows)
            con.execute("RELEASE plain")
    except sqlite3.IntegrityError:
        if len(rows) > 1:
            con.execute("ROLLBACK TO plain")
            con.execute("RELEASE plain")
        return False
    step.ready = ready
    return True


def _simple_row(message: Message, now: float) -> tuple[Any, ...]:
    """The values of `_INSERT_SIMPLE`."""
    priority = message.priority
    phase = Phase.READY
    rank: float = -priority
    due_at = message.eta if message.delay is None else now + message.delay
    if due_at is not None and due_at > now:
        phase, rank = Phase.DELAYED, min(due_at, FOREVER)
    expires = message.expires
    return (
        phase, rank, message.queue, priority, message.id, message.task, message.max_deliveries, now,
        None if expires is None else now + expires, message.lease, message.job_ttl, message.envelope,
    )  # fmt: skip


def _row(message: Message, now: float) -> tuple[Any, ...]:
    """The values of `_COLUMNS`."""
    phase = Phase.READY
    rank: float = -message.priority
    hooks = 0
    extra: bytes | None = None
    need: int | None = None
    counted: int | None = None
    state = "QUEUED"
    due_at = message.eta
    if message.delay is not None:
        due_at = now + message.delay
    if due_at is not None and due_at > now:
        phase, rank = Phase.DELAYED, min(due_at, FOREVER)
    elif message.external:
        phase = Phase.EXTERNAL
    hold = message.hold
    if hold is not None:
        phase, rank, state = Phase.HELD, 0, "PENDING"
        need, counted = hold.arrivals, 0
        hooks = Hook.HOLD
    if _has_extra(message):
        delay, eta = (None, None) if hold is None else (message.delay, message.eta)
        extra = encode(
            Extra(
                hold, message.successors, message.guard, delay, message.external, message.key,
                message.key_ttl, message.concurrency_limit, message.max_yields, eta,
            )
        )  # fmt: skip
        hooks |= _hooks(message)
    if message.run is not None:
        hooks |= Hook.RUN
    expires = message.expires
    envelope = message.envelope
    return (
        phase, rank, message.queue, message.priority, message.id, message.task, state, hooks,
        message.max_deliveries, now, None if expires is None else now + expires, message.lease,
        message.job_ttl, message.concurrency_key, need, counted, counted, message.run, message.step,
        extra, envelope if len(envelope) <= INLINE_ENVELOPE else None,
    )  # fmt: skip


def _has_extra(message: Message) -> bool:
    return (
        message.hold is not None
        or message.key is not None
        or message.concurrency_key is not None
        or message.guard is not None
        or message.external
        or message.max_yields != NO_EXTRA.max_yields
        or bool(message.successors)
    )


def _is_rare(message: Message) -> bool:
    return (
        len(message.envelope) > INLINE_ENVELOPE
        or message.run is not None
        or message.step is not None
        or _has_extra(message)
    )


def _hooks(message: Message) -> int:
    hooks = Hook.SUCCESSORS if message.successors else 0
    if message.concurrency_key is not None:
        hooks |= Hook.CONCURRENCY
    if message.key is not None:
        hooks |= Hook.KEY
        if message.key_scope == "until_start":
            hooks |= Hook.KEY_UNTIL_START
        elif message.key_scope == "until_end":
            hooks |= Hook.KEY_UNTIL_END
    return hooks


def _insert_careful(step: Step, message: Message) -> Enqueued:
    con = step.con
    if con.execute("SELECT 1 FROM jobs WHERE id = ?", (message.id,)).fetchone():
        return Enqueued(message.id, "exists")
    if message.key is not None:
        owner = _owner_of(step, message.key)
        if owner is not None:
            return Enqueued(owner, "duplicate")
        con.execute(
            "INSERT OR REPLACE INTO keys (key, job, until, look_at) VALUES (?1, ?2, ?3, ?3)",
            (message.key, message.id, step.now + message.key_ttl),
        )
    seq = con.execute(_INSERT, _row(message, step.now)).lastrowid
    if len(message.envelope) > INLINE_ENVELOPE:
        con.execute("INSERT INTO envelopes (seq, envelope) VALUES (?, ?)", (seq, message.envelope))
    if message.hold is None:
        step.add_ready(message.queue)
    elif message.hold.arrivals <= 0:
        job = find_job(step, message.id)
        if job is not None:
            decide_held(step, job)
    return Enqueued(message.id, "created")


def _owner_of(step: Step, key: str) -> str | None:
    """The job that a key belongs to now. What ended badly has given its key back already."""
    row = step.con.execute(
        "SELECT k.job, k.until, j.state FROM keys k LEFT JOIN jobs j ON j.id = k.job "
        "WHERE k.key = ?",
        (key,),
    ).fetchone()
    if row is None:
        return None
    owner, until, state = row
    alive = state is not None and not JobState(state).is_final
    return owner if alive or until > step.now else None


def _check_fence(step: Step, fence: Fence) -> None:
    row = step.con.execute(
        "SELECT token FROM leases WHERE name = ? AND owner IS NOT NULL AND until > ?",
        (fence.lease, step.now),
    ).fetchone()
    if row is None or row[0] != fence.token:
        raise LeaseLost(
            f"the lease {fence.lease!r} is no longer held under token {fence.token}: "
            f"nothing was enqueued"
        )
