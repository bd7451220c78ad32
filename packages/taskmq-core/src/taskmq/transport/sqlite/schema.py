"""The stored schema: its statements by version, and the numbers that its columns hold."""

from __future__ import annotations

from typing import Final

APPLICATION_ID: Final = 0x746D7131
"""Marks a database file as ours ("tmq1")."""

INLINE_ENVELOPE: Final = 2_000
"""Envelopes above this many bytes live in their own table: an update of a row rewrites all of it."""


ROOM: Final = "zeroblob(88)"
"""What stands in `result` (while `result_type` is NULL) of a new row: room for what a reservation
adds, so that rows grow in their place and no page is split."""

ROOM_LEFT: Final = "zeroblob(36)"
"""What a reservation leaves of it for the end."""


class Phase:
    """Where a message is. `rank` orders it there, see each."""

    ENDED: Final = None
    """A record only, in no index; rank is when it may be pruned, and `endings` says when to look."""
    READY: Final = 1
    """Rank is -priority, here and in the next two."""
    LAST_CHANCE: Final = 2
    """Ready, for a worker that holds no other delivery at its last chance."""
    EXTERNAL: Final = 3
    """Ready, carried by another transport."""
    DELAYED: Final = 4
    """Rank is the due time."""
    BLOCKED: Final = 5
    """In the waiting line of its concurrency key; rank is 0."""
    LEASED: Final = 6
    """Rank is the end of the lease."""
    ACKNOWLEDGED: Final = 7
    """Acknowledged before the work, still leased; rank is the end of the lease."""
    HELD: Final = 8
    """Waits for arrivals; rank is 0."""
    PARKED: Final = 9
    """Waits for `complete`; rank is the time-out, FOREVER without one."""
    DEAD: Final = 10
    """A dead letter; rank is when it died."""


FOREVER: Final = 9e18


class Hook:
    """Bits of what the reservation or the end of a job must look after; 0 for a plain one."""

    SUCCESSORS: Final = 1
    CONCURRENCY: Final = 2
    KEY: Final = 4
    KEY_UNTIL_START: Final = 8
    KEY_UNTIL_END: Final = 16
    RUN: Final = 32
    HOLD: Final = 64
    COMPLETION: Final = 128
    """A completion came early and is kept for the park."""
    CANCELLED: Final = 512
    """Revoked while it was held."""
    RESULT_STORED: Final = 1024
    """Ended, its result being in the separate store."""
    HANDED: Final = 256
    """An outcome is to be delivered instead of the body being run."""
    OF_SERIES: Final = COMPLETION | HANDED | CANCELLED | RESULT_STORED
    """What a new series forgets."""
    AT_RESERVE: Final = CONCURRENCY | KEY_UNTIL_START | COMPLETION | HANDED


class Attention:
    """Bits on a held row that its worker must hear of."""

    CANCEL: Final = 1
    LAST_CHANCE: Final = 2
    TERMINATE: Final = 4


# The columns of `jobs` have neither types nor NOT NULL: with them SQLite converts and checks all of a
# row at each update and journals each statement, which cost a quarter of reserve and settle (measured).
_VERSION_1 = (
    """CREATE TABLE jobs (
        seq INTEGER PRIMARY KEY,
        phase, rank, queue, priority, id UNIQUE, task, state, hooks DEFAULT 0,
        attempt DEFAULT 1, deliveries DEFAULT 0, max_deliveries, yields DEFAULT 0, series DEFAULT 1,
        enqueued_at, expires_at, lease, job_ttl, reserved_at, started_at, finished_at,
        worker, receipt, attention, error, outcome, completion, concurrency_key,
        need, arrived, failed, run, step, extra, meta, result_type, result, envelope
    )""",
    "CREATE INDEX jobs_line ON jobs(phase, rank, queue, priority) WHERE phase IS NOT NULL",
    "CREATE INDEX jobs_delayed ON jobs(queue, rank) WHERE phase = 4",
    "CREATE INDEX jobs_blocked ON jobs(concurrency_key, priority DESC) WHERE phase = 5",
    """CREATE INDEX jobs_expiring ON jobs(expires_at)
        WHERE expires_at IS NOT NULL AND phase BETWEEN 1 AND 5""",
    "CREATE INDEX jobs_attention ON jobs(worker) WHERE attention IS NOT NULL",
    "CREATE INDEX jobs_run ON jobs(run) WHERE run IS NOT NULL",
    """CREATE TABLE endings (
        at REAL NOT NULL, n INTEGER NOT NULL, rows TEXT NOT NULL, PRIMARY KEY (at, n)
    ) WITHOUT ROWID""",
    "CREATE TABLE envelopes (seq INTEGER PRIMARY KEY, envelope BLOB NOT NULL)",
    """CREATE TABLE arrivals (
        target TEXT NOT NULL, source TEXT NOT NULL, series INTEGER NOT NULL, verdict TEXT NOT NULL,
        PRIMARY KEY (target, source)
    ) WITHOUT ROWID""",
    "CREATE INDEX arrivals_source ON arrivals(source)",
    """CREATE TABLE keys (
        key TEXT PRIMARY KEY, job TEXT NOT NULL, until REAL NOT NULL, look_at REAL NOT NULL
    ) WITHOUT ROWID""",
    "CREATE INDEX keys_look_at ON keys(look_at)",
    "CREATE TABLE slots (key TEXT PRIMARY KEY, used INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE spent (receipt TEXT PRIMARY KEY, until REAL NOT NULL) WITHOUT ROWID",
    "CREATE INDEX spent_until ON spent(until)",
    """CREATE TABLE leases (
        name TEXT PRIMARY KEY, owner TEXT, token INTEGER NOT NULL, until REAL NOT NULL
    ) WITHOUT ROWID""",
    """CREATE TABLE workers (
        id TEXT PRIMARY KEY, heartbeat_at REAL NOT NULL, stale_at REAL NOT NULL, info BLOB NOT NULL
    ) WITHOUT ROWID""",
    """CREATE TABLE rates (
        name TEXT PRIMARY KEY, free_at REAL NOT NULL, promised_until REAL NOT NULL
    ) WITHOUT ROWID""",
    "CREATE TABLE facts (name TEXT PRIMARY KEY, value) WITHOUT ROWID",
)

MIGRATIONS: Final[tuple[tuple[str, ...], ...]] = (_VERSION_1,)
"""Statements that lead from each version to the next; the first from an empty file to version 1."""

VERSION: Final = len(MIGRATIONS)
