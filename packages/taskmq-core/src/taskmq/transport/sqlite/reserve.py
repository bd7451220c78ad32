"""Messages go out: `reserve`, and the looks at heads and due times that other calls share.

A hard loop, so: the bands are found by skipping along the index `jobs_line` (19 at most), the
candidates of each queue are read by range in chunks of about its share, and everything taken is
leased by one update. A plain message costs no statement of its own.
"""

from __future__ import annotations

import random
import secrets
from typing import TYPE_CHECKING, Any

from taskmq.states import JobState
from taskmq.transport.sqlite.endings import EXPIRED, JOB, Job, end, take_slot
from taskmq.transport.sqlite.schema import FOREVER, ROOM_LEFT, Attention, Hook, Phase
from taskmq.transport.sqlite.step import decode_completion, encode_list
from taskmq.transport.sqlite.store import Store
from taskmq.transport.types import Delivery, ReserveReply

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator, Mapping, Sequence

    from taskmq.transport.sqlite.database import Row
    from taskmq.transport.sqlite.step import Step
    from taskmq.transport.types import Completion, ReserveRequest

PROMOTE_LIMIT = 500
_MANY_QUEUES = 256
_EXAMINED_IN_VAIN = 500

# Each column costs the driver 0.1 µs a row, so plain messages (a first delivery, with nothing that
# needs a look) are read by few; the others are read again in full.
_PLAIN_COLUMNS = 8
_CANDIDATES = (
    "SELECT seq, id, task, envelope, max_deliveries, enqueued_at, job_ttl, expires_at IS NULL "
    "AND lease IS NULL AND run IS NULL AND meta IS NULL AND attempt = 1 AND deliveries = 0 "
    f"AND yields = 0 AND series = 1 AND hooks & {Hook.AT_RESERVE} = 0 "
    "FROM jobs INDEXED BY jobs_line WHERE phase = ? AND rank = ? AND queue = ? AND priority = ? "
    "AND seq > ? ORDER BY seq LIMIT ?"
)
# One look at what most calls find nothing of: the next due time, the first band, last chances, and
# held rows with attention.
_LOOK = (
    "SELECT (SELECT rank FROM jobs INDEXED BY jobs_line WHERE phase = 4 ORDER BY rank LIMIT 1), "
    "(SELECT rank FROM jobs INDEXED BY jobs_line WHERE phase = 1 ORDER BY rank LIMIT 1), "
    "(SELECT rank FROM jobs INDEXED BY jobs_line WHERE phase = 2 ORDER BY rank LIMIT 1), "
    "EXISTS (SELECT 1 FROM jobs INDEXED BY jobs_attention "
    "WHERE worker = ? AND attention IS NOT NULL)"
)
_IN_FULL = (
    "SELECT seq, id, task, envelope, lease, attempt, deliveries, max_deliveries, yields, series, "
    "enqueued_at, expires_at, meta, run, step, hooks, job_ttl FROM jobs "
    "WHERE seq IN (SELECT value FROM json_each(?))"
)
_BAND = (
    "SELECT rank FROM jobs INDEXED BY jobs_line WHERE phase = ? AND rank > ? ORDER BY rank LIMIT 1"
)
_IN_BAND = (
    "SELECT 1 FROM jobs INDEXED BY jobs_line WHERE phase = ? AND rank = ? AND queue = ? LIMIT 1"
)
_QUEUES_OF_BAND = """WITH RECURSIVE found(queue) AS (
    SELECT min(queue) FROM jobs INDEXED BY jobs_line
    WHERE phase = :phase AND rank = :rank AND queue >= :start
    UNION ALL
    SELECT (SELECT min(queue) FROM jobs INDEXED BY jobs_line
            WHERE phase = :phase AND rank = :rank AND queue > found.queue)
    FROM found WHERE found.queue IS NOT NULL
) SELECT queue FROM found WHERE queue IS NOT NULL"""
_PROMOTE = (
    "UPDATE jobs SET phase = CASE WHEN deliveries > 0 AND deliveries >= max_deliveries - 1 THEN 2 "
    "ELSE 1 END, rank = -priority "
    "WHERE seq IN (SELECT seq FROM jobs INDEXED BY jobs_line WHERE phase = 4 AND rank <= ? "
    "ORDER BY rank LIMIT ?)"
)
_LEASE = (
    "UPDATE jobs SET phase = 6, rank = ? + coalesce(lease, ?), state = 'RUNNING', "
    "deliveries = deliveries + 1, worker = ?, receipt = seq || ?, reserved_at = ?, "
    f"result = {ROOM_LEFT} WHERE "
)
_LEASE_LISTED = _LEASE + "seq IN (SELECT value FROM json_each(?))"
# What is taken from one line is all that stands there between the first and the last taken. The plus
# signs keep SQLite from walking the index that the update changes.
_LEASE_LINE = _LEASE + (
    "seq BETWEEN ? AND ? AND +phase = 1 AND +rank = ? AND +queue = ? AND +priority = ?"
)
_DENSE = 3
_NEXT_DUE = (
    "SELECT rank FROM jobs INDEXED BY jobs_delayed WHERE phase = 4 AND queue = ? "
    "ORDER BY rank LIMIT 1"
)


class Look:
    """What one statement finds at the start of a call."""

    __slots__ = ("cancelled", "first_band", "holds_last", "next_due", "phases", "terminate")

    def __init__(self, con: sqlite3.Connection, worker: str) -> None:
        due, ready, last, attention = con.execute(_LOOK, (worker,)).fetchone()
        self.next_due: float | None = due
        self.cancelled: frozenset[str] = frozenset()
        self.terminate: frozenset[str] = frozenset()
        self.holds_last = False
        if attention:
            self.cancelled, self.terminate, self.holds_last = attention_of(con, worker)
        self.phases: tuple[int, ...] = (Phase.READY,)
        self.first_band: int | None = ready
        if last is not None and not self.holds_last:
            self.phases = (Phase.READY, Phase.LAST_CHANCE)
            self.first_band = last if ready is None else min(ready, last)

    def head(
        self, con: sqlite3.Connection, names: Sequence[str], max_priority: int | None = None
    ) -> int | None:
        """The highest priority at which one of the queues has something visible."""
        if self.first_band is None or not names:
            return None
        if len(names) == 1 and len(self.phases) == 1:
            bound = (Phase.READY, self.first_band, names[0])
            if max_priority is None and con.execute(_IN_BAND, bound).fetchone():
                return -self.first_band
        for priority in bands_of(con, self.phases, self.first_band):
            if max_priority is not None and priority > max_priority:
                continue
            if queues_of_band(con, self.phases, priority, names, enough=1):
                return priority
        return None


class Reserving(Store):
    """`reserve`, and what this process knows of its workers' queues."""

    _queues: dict[str, tuple[str, ...]]

    def reserve(self, request: ReserveRequest) -> ReserveReply:
        """See the contract."""
        names = tuple([share.name for share in request.queues])
        self._queues[request.worker] = names
        # Before the look, so that whatever comes after it ends the next wait at once.
        self._board.note(request.worker, names)
        with self._step() as step:
            con = step.con
            look = Look(con, request.worker)
            more = False
            if look.next_due is not None and look.next_due <= step.now:
                more = promote(step)
                look = Look(con, request.worker)
            claim = _Claim(step, request, look)
            if request.limit > 0 and look.first_band is not None:
                more = claim.run() or more
            deliveries = claim.lease()
            head = claim.head
            if head is None and look.first_band is not None:
                head = claim.look.head(con, names, request.max_priority)
            self._shortest_ttl = min(self._shortest_ttl, claim.shortest_ttl)
            return ReserveReply(
                deliveries=deliveries,
                now=step.now,
                head=head,
                next_due_in=None if look.next_due is None else _next_due_in(step, names),
                more=more,
                cancelled=look.cancelled,
                terminate=look.terminate,
                credits=claim.credits,
            )


def promote(step: Step) -> bool:
    """Make ready what is due, whoever's queue it is in; True when more of it is left."""
    count = step.con.execute(_PROMOTE, (step.now, PROMOTE_LIMIT)).rowcount
    return count >= PROMOTE_LIMIT


def attention_of(
    con: sqlite3.Connection, worker: str
) -> tuple[frozenset[str], frozenset[str], bool]:
    """The receipts of a worker that are cancelled, and those of them to be ended by force; and whether
    it holds a delivery at its last chance."""
    rows = con.execute(
        "SELECT receipt, attention FROM jobs WHERE worker = ? AND attention IS NOT NULL "
        "AND phase IN (6, 7)",
        (worker,),
    ).fetchall()
    if not rows:
        return frozenset(), frozenset(), False
    cancelled = frozenset(receipt for receipt, flags in rows if flags & Attention.CANCEL)
    terminate = frozenset(receipt for receipt, flags in rows if flags & Attention.TERMINATE)
    return cancelled, terminate, any(flags & Attention.LAST_CHANCE for _, flags in rows)


def bands_of(
    con: sqlite3.Connection, phases: Sequence[int], first: int | None = None
) -> Iterator[int]:
    """The priorities at which anything is ready, highest first, from a known first rank on."""
    below = -100
    if first is not None:
        below = first
        yield -first
    while True:
        ranks = [
            row[0] for phase in phases for row in con.execute(_BAND, (phase, below)).fetchall()
        ]
        if not ranks:
            return
        below = min(ranks)
        yield -below


def queues_of_band(
    con: sqlite3.Connection,
    phases: Sequence[int],
    priority: int,
    names: Sequence[str],
    enough: int = _MANY_QUEUES,
) -> list[str]:
    """Which of these queues have something ready at this priority.

    Of more than a few hundred, `enough` are found from a random one on, so that the cost follows
    what is asked for and none is passed over for ever.
    """
    if len(names) > _MANY_QUEUES:
        return _some_queues_of_band(con, phases, priority, names, enough)
    return [
        name
        for name in names
        if any(con.execute(_IN_BAND, (phase, -priority, name)).fetchone() for phase in phases)
    ]


def _some_queues_of_band(
    con: sqlite3.Connection,
    phases: Sequence[int],
    priority: int,
    names: Sequence[str],
    enough: int,
) -> list[str]:
    wanted = set(names)
    found: dict[str, None] = {}
    pivot = random.choice(names)
    for phase in phases:
        for start in (pivot, ""):
            bound = {"phase": phase, "rank": -priority, "start": start}
            for (name,) in con.execute(_QUEUES_OF_BAND, bound):
                if start == "" and name >= pivot:
                    break
                if name in wanted:
                    found[name] = None
                    if len(found) >= enough:
                        return list(found)
    return list(found)


def _next_due_in(step: Step, names: Sequence[str]) -> float | None:
    con = step.con
    dues: list[float]
    if len(names) > _MANY_QUEUES:
        # A hint: the next of any queue is early at worst.
        dues = con.execute("SELECT rank FROM jobs WHERE phase = 4 ORDER BY rank LIMIT 1").fetchone()
    else:
        dues = [row[0] for name in names for row in con.execute(_NEXT_DUE, (name,)).fetchall()]
    return max(0.0, min(dues) - step.now) if dues else None


class _Claim:
    """One call's choice: what it takes, in order."""

    def __init__(self, step: Step, request: ReserveRequest, look: Look) -> None:
        self._step = step
        self._request = request
        self._room = request.limit
        self._examined = 0
        self._taken: list[tuple[str, int, Row]] = []
        self._last: list[int] = []
        self._lines = 0
        self._outcomes: dict[int, Completion] = {}
        self.look = look
        self.head: int | None = None
        self.credits = request.credits
        self.shortest_ttl = FOREVER

    def run(self) -> bool:
        """Choose up to `limit` messages; True when it stopped at the work bound."""
        request, look = self._request, self.look
        con = self._step.con
        weights = {share.name: share.weight for share in request.queues}
        names = list(weights)
        for priority in bands_of(con, look.phases, look.first_band):
            if request.max_priority is not None and priority > request.max_priority:
                continue
            if len(names) > 1:
                enough = request.limit + 16
                queues = queues_of_band(con, look.phases, priority, names, enough)
            else:
                queues = names
            if queues and not self._take_band(priority, {name: weights[name] for name in queues}):
                return self._room > 0
        return False

    def _take_band(self, priority: int, weights: dict[str, int]) -> bool:
        """Take from one band; False when that was all there is room or time for."""
        total = sum(weights.values())
        lines = {
            name: _Line(self._step.con, name, priority, self.look, self._room * w // total + 1)
            for name, w in weights.items()
        }
        self._lines += len(lines)
        if len(lines) == 1:
            within = self._take_line(next(iter(lines)), priority, lines)
        else:
            within = self._take_turns(priority, lines, weights)
        if any(line.has_more for line in lines.values()):
            self.head = priority
        return within and self._room > 0

    def _take_line(self, name: str, priority: int, lines: dict[str, _Line]) -> bool:
        line = lines[name]
        while self._room > 0:
            plain = line.plain(self._room)
            if plain:
                self._taken += [(name, priority, row) for row in plain]
                self._room -= len(plain)
                continue
            row = line.next()
            if row is None:
                return True
            if not self._take(name, priority, row) and self._is_over_bound():
                return False
        return True

    def _take_turns(
        self, priority: int, lines: dict[str, _Line], weights: Mapping[str, int]
    ) -> bool:
        """Smooth weighted round-robin: each queue earns its weight, the richest pays for its turn."""
        credit = {name: self._request.credits.get(name, 0.0) for name in lines}
        left = dict(lines)
        within = True
        while within and left and self._room > 0:
            name = _turn(credit, left, weights)
            row = left[name].next()
            if row is None or not self._take(name, priority, row):
                # A turn is not used up by having nothing.
                _undo_turn(credit, left, weights, name)
                within = not self._is_over_bound()
            if row is None:
                del left[name]
        self.credits = {**self.credits, **credit}
        return within

    def _is_over_bound(self) -> bool:
        self._examined += 1
        return self._examined > _EXAMINED_IN_VAIN

    def _take(self, queue: str, priority: int, row: Row) -> bool:
        if len(row) == _PLAIN_COLUMNS:
            self._taken.append((queue, priority, row))
            self._room -= 1
            return True
        seq, expires_at, hooks = row[0], row[11], row[15]
        if expires_at is not None and expires_at <= self._step.now:
            job = _load(self._step, seq)
            end(self._step, job, JobState.EXPIRED, error=EXPIRED)
            return False
        if hooks & Hook.AT_RESERVE and not self._take_hooked(seq):
            return False
        if 0 < row[6] >= row[7] - 1:
            self._last.append(seq)
            self.look.holds_last = True
            self.look.phases = (Phase.READY,)
        self._taken.append((queue, priority, row))
        self._room -= 1
        return True

    def _take_hooked(self, seq: int) -> bool:
        step = self._step
        job = _load(step, seq)
        if job.hooks & Hook.CONCURRENCY and not take_slot(
            step, job.concurrency_key, job.rare.concurrency_limit
        ):
            step.con.execute("UPDATE jobs SET phase = 5, rank = 0 WHERE seq = ?", (seq,))
            return False
        if job.hooks & Hook.KEY_UNTIL_START:
            step.con.execute("DELETE FROM keys WHERE key = ? AND job = ?", (job.rare.key, job.id))
        if job.outcome is not None:
            self._outcomes[seq] = decode_completion(job.outcome)
        elif job.hooks & Hook.COMPLETION:
            # Kept for a delivery that was lost before its park.
            step.con.execute(
                "UPDATE jobs SET completion = NULL, hooks = hooks & ~? WHERE seq = ?",
                (Hook.COMPLETION, seq),
            )
        return True

    def lease(self) -> list[Delivery]:
        """Lease what was chosen to the worker."""
        taken = self._taken
        if not taken:
            return []
        con, request = self._step.con, self._request
        now, default = self._step.now, request.lease
        suffix = f"-{secrets.token_urlsafe(12)}"
        values = (now, default, request.worker, suffix, now)
        line = self._line_of_all()
        if line is not None:
            con.execute(_LEASE_LINE, (*values, *line))
        else:
            seqs = encode_list([row[0] for _, _, row in taken]).decode()
            con.execute(_LEASE_LISTED, (*values, seqs))
        if self._last:
            bound = [(Attention.LAST_CHANCE, seq) for seq in self._last]
            con.executemany("UPDATE jobs SET attention = ? WHERE seq = ?", bound)
        self.shortest_ttl = min(
            [row[6 if len(row) == _PLAIN_COLUMNS else 16] for _, _, row in taken]
        )
        return [
            Delivery(
                id=row[1],
                task=row[2],
                queue=queue,
                priority=priority,
                envelope=load_envelope(con, row[0]) if row[3] is None else row[3],
                receipt=f"{row[0]}{suffix}",
                lease=default,
                max_deliveries=row[4],
                enqueued_at=row[5],
                reserved_at=now,
            )
            if len(row) == _PLAIN_COLUMNS
            else self._delivery(queue, priority, row, suffix)
            for queue, priority, row in taken
        ]

    def _line_of_all(self) -> tuple[int, int, int, str, int] | None:
        """Between which rows of which line all that was taken stands, if that is a short way."""
        taken = self._taken
        queue, priority, row = taken[0]
        first, last = row[0], taken[-1][2][0]
        if self._last or self._lines != 1 or last - first > _DENSE * len(taken):
            return None
        return first, last, -priority, queue, priority

    def _delivery(self, queue: str, priority: int, row: Row, suffix: str) -> Delivery:
        (
            seq, job_id, task, envelope, lease, attempt, deliveries, max_deliveries, yields,
            series, enqueued_at, expires_at, meta, run, step, _, _,
        ) = row  # fmt: skip
        return Delivery(
            id=job_id,
            task=task,
            queue=queue,
            priority=priority,
            envelope=load_envelope(self._step.con, seq) if envelope is None else envelope,
            receipt=f"{seq}{suffix}",
            lease=self._request.lease if lease is None else lease,
            attempt=attempt,
            deliveries=deliveries + 1,
            max_deliveries=max_deliveries,
            yields=yields,
            series=series,
            enqueued_at=enqueued_at,
            reserved_at=self._step.now,
            expires_at=expires_at,
            meta=meta,
            outcome=self._outcomes.get(seq),
            run=run,
            step=step,
        )


class _Line:
    """The candidates of one queue at one priority in their order, read in chunks."""

    __slots__ = ("_after", "_chunk", "_con", "_finished", "_look", "_priority", "_queue", "_rows")

    def __init__(
        self, con: sqlite3.Connection, queue: str, priority: int, look: Look, chunk: int
    ) -> None:
        self._con = con
        self._queue = queue
        self._priority = priority
        self._look = look
        self._chunk = chunk
        self._after: int = -1
        self._rows: list[Row] = []
        self._finished = False

    @property
    def has_more(self) -> bool:
        """Whether something was read and not taken; a sure yes, a no may be wrong."""
        return bool(self._rows)

    def plain(self, limit: int) -> list[Row]:
        """Take up to `limit` that need no look of their own, as far as they come first."""
        if len(self._look.phases) > 1:
            return []
        self._read()
        rows = self._rows
        count = 0
        for row in reversed(rows[-limit:]):
            if len(row) != _PLAIN_COLUMNS:
                break
            count += 1
        taken = rows[-1 : -count - 1 : -1]
        del rows[len(rows) - count :]
        return taken

    def next(self) -> Row | None:
        """Take the first one; None when there is none left."""
        self._read()
        if len(self._look.phases) > 1:
            return self._next_with_last()
        return self._rows.pop() if self._rows else None

    def _read(self) -> None:
        if not self._rows and not self._finished:
            self._rows = self._fetch(Phase.READY, self._after, self._chunk)
            self._finished = len(self._rows) < self._chunk
            if self._rows:
                self._after = self._rows[-1][0]
                self._rows.reverse()

    def _next_with_last(self) -> Row | None:
        last = next(iter(self._fetch(Phase.LAST_CHANCE, -1, 1)), None)
        if last is not None and (not self._rows or last[0] < self._rows[-1][0]):
            return last
        return self._rows.pop() if self._rows else None

    def _fetch(self, phase: int, after: int, limit: int) -> list[Row]:
        bound = (phase, -self._priority, self._queue, self._priority, after, limit)
        rows = self._con.execute(_CANDIDATES, bound).fetchall()
        special = [row[0] for row in rows if not row[7]]
        if special:
            seqs = encode_list(special).decode()
            full = {row[0]: row for row in self._con.execute(_IN_FULL, (seqs,))}
            rows = [row if row[7] else full[row[0]] for row in rows]
        return rows


def _turn(credit: dict[str, float], lines: Mapping[str, Any], weights: Mapping[str, int]) -> str:
    """Whose turn it is by smooth weighted round-robin (each earns its weight, the richest pays)."""
    total = 0
    best = ""
    for name in lines:
        weight = weights[name]
        total += weight
        credit[name] += weight
        if not best or credit[name] > credit[best]:
            best = name
    credit[best] -= total
    return best


def _undo_turn(
    credit: dict[str, float], lines: Mapping[str, Any], weights: Mapping[str, int], turn: str
) -> None:
    total = 0
    for name in lines:
        total += weights[name]
        credit[name] -= weights[name]
    credit[turn] += total


def _load(step: Step, seq: int) -> Job:
    return Job._make(step.con.execute(f"SELECT {JOB} FROM jobs WHERE seq = ?", (seq,)).fetchone())


def load_envelope(con: sqlite3.Connection, seq: int) -> bytes:
    """The envelope that is too large for its row."""
    row = con.execute("SELECT envelope FROM envelopes WHERE seq = ?", (seq,)).fetchone()
    return bytes(row[0]) if row is not None else b""
