"""The values that cross the transport contract: frozen structs, so that fields can be added freely.

Instants end in `_at` (UTC epoch seconds by the transport's clock), durations are seconds. What a
producer or worker says about time are durations; the transport makes them absolute by its own
clock, so that a skewed host can neither steal nor lose a job.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Literal, NamedTuple, Union

import msgspec

from taskmq.states import JobState

# --- what is carried ------------------------------------------------------------------------------


class Payload(msgspec.Struct, frozen=True, gc=False):
    """An encoded value and the codec that reads it."""

    content_type: str
    data: bytes


class ErrorInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Why an attempt or a job failed, as text that any backend can store.

    `reason` is the kind of failure: "exception", "rejected", "worker lost", "timed out", "expired",
    "revoked", "purged", "skipped", "unknown task", "undecodable", "invalid arguments", "result not
    serialisable", "not storable", "max yields"; of steps and runs "budget", "deadline".
    """

    type: str = ""
    message: str = ""
    traceback: str = ""
    reason: str = "exception"


class HoldRule(str, Enum):
    """What decides the fate of a held message."""

    ALL_OK = "all_ok"
    """Released when every arrival is ok; given up at the first that is not."""
    ALL_DONE = "all_done"
    """Released when all have arrived, however they ended."""
    ANY_FAILED = "any_failed"
    """Released at the first failed arrival; given up when all have arrived and none failed."""
    TOLERATE = "tolerate"
    """Decided when all have arrived: released with at most `tolerate` failures, else given up."""


class Hold(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Why a message is held back (`PENDING`), and what ends the hold.

    A released message is queued. With `finish=True` it has no task: it ends `SUCCEEDED` when the
    rule is met (a collecting node, a run). When the rule can no longer be met it ends as
    `otherwise` says, with the cause, and that end arrives at its own successors in turn.
    """

    arrivals: int
    rule: HoldRule = HoldRule.ALL_OK
    tolerate: int = 0
    finish: bool = False
    otherwise: JobState = JobState.SKIPPED


class Edge(msgspec.Struct, frozen=True, gc=False):
    """A successor of a job. `tolerate=True` makes a failed or skipped end arrive as ok."""

    to: str
    tolerate: bool = False


Verdict = Literal["ok", "failed", "skipped"]
"""How a job arrives at a successor: SUCCEEDED is ok, SKIPPED is skipped, every other end is failed.

A skipped arrival counts like a failed one for the rules (skips by a condition arrive as ok).
"""

KeyScope = Literal["window", "until_start", "until_end"]


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """What a producer hands to a transport. The envelope is opaque to it.

    Exactly one of `delay` (from the transport's now; of a held message, from its release) and `eta`
    (absolute) may be given.
    `lease=None` takes the worker's. `job_ttl` is how long the record is kept after the job's end.
    An `external` message is stored but never returned by `reserve` (another transport carries it).
    """

    id: str
    task: str
    queue: str
    envelope: bytes
    priority: int = 0
    delay: float | None = None
    eta: float | None = None
    expires: float | None = None
    lease: float | None = None
    max_deliveries: int = 5
    max_yields: int = 100
    job_ttl: float = 3600.0
    key: str | None = None
    key_ttl: float = 86400.0
    key_scope: KeyScope = "window"
    concurrency_key: str | None = None
    concurrency_limit: int = 1
    hold: Hold | None = None
    successors: tuple[Edge, ...] = ()
    guard: str | None = None
    """Id of a record (a run): once that is ended or cancelled this ends REVOKED instead of being released."""
    run: str | None = None
    step: str | None = None
    external: bool = False


class Fence(msgspec.Struct, frozen=True):
    """A named lease and the token under which the caller holds it."""

    lease: str
    token: int


class Enqueued(msgspec.Struct, frozen=True, gc=False):
    """The answer for one message: `created`; `exists` (this id was here already, a repeated call);
    or `duplicate` (the idempotency key belongs to the job `id`)."""

    id: str
    status: Literal["created", "exists", "duplicate"]


# --- reserving ------------------------------------------------------------------------------------


class QueueShare(msgspec.Struct, frozen=True, gc=False):
    """A queue that a worker serves, and its weight inside a priority band."""

    name: str
    weight: int = 1


class ReserveRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker asks for.

    `limit=0` only looks: the reply still carries `head`, `next_due_in` and `cancelled`.
    `credits` is the state of the weighted round-robin as the last reply returned it.
    `max_priority` leaves out what is more urgent (slots kept for normal work).
    """

    worker: str
    queues: tuple[QueueShare, ...]
    limit: int
    lease: float = 60.0
    credits: Mapping[str, float] = {}
    max_priority: int | None = None


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """An outcome decided outside the task: by `complete`, or by a parked job's timeout."""

    state: Literal["SUCCEEDED", "FAILED"]
    result: Payload | None = None
    error: ErrorInfo | None = None
    retryable: bool = False


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """One hand-over of a message to a worker, under a lease.

    `receipt` is unique and never reused; everything the holder says carries it. `deliveries` counts
    from 1 within the attempt and includes this one. With `outcome` the body is not to be run: the
    worker decides about a retry from it, because only it knows the task.
    """

    id: str
    task: str
    queue: str
    priority: int
    envelope: bytes
    receipt: str
    lease: float
    attempt: int = 1
    deliveries: int = 1
    max_deliveries: int = 5
    yields: int = 0
    series: int = 1
    enqueued_at: float = 0.0
    reserved_at: float = 0.0
    expires_at: float | None = None
    cancel_requested: bool = False
    meta: bytes | None = None
    outcome: Completion | None = None
    run: str | None = None
    step: str | None = None


class ReserveReply(msgspec.Struct, frozen=True, kw_only=True):
    """What `reserve` answers, best first.

    `head` is the highest priority still visible in the worker's queues after this call, None when
    nothing is. `next_due_in` is the time until the next delayed message of those queues. `more`
    says that the call stopped at its work bound: call again at once. `cancelled` names held
    receipts of this worker whose job is revoked, `terminate` those among them whose running body
    is to be ended by force where the worker can.
    """

    deliveries: list[Delivery]
    now: float
    head: int | None = None
    next_due_in: float | None = None
    more: bool = False
    cancelled: frozenset[str] = frozenset()
    terminate: frozenset[str] = frozenset()
    credits: Mapping[str, float] = {}


class Extension(msgspec.Struct, frozen=True, gc=False):
    """A wish to hold a delivery for `lease` seconds from now. `started_ago` is None while unstarted."""

    receipt: str
    lease: float
    started_ago: float | None = None


class ExtendReply(msgspec.Struct, frozen=True, kw_only=True):
    """Which of the receipts are `lost`, `cancelled` (revoked; `terminate` as in `ReserveReply`),
    `expired` (past expires_at)."""

    now: float
    lost: frozenset[str] = frozenset()
    cancelled: frozenset[str] = frozenset()
    terminate: frozenset[str] = frozenset()
    expired: frozenset[str] = frozenset()
    head: int | None = None


# --- settling -------------------------------------------------------------------------------------


class Arrival(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An explicit arrival of `source` (in its `series`) at the held message `to`."""

    to: str
    source: str
    verdict: Verdict = "ok"
    series: int = 1


class Expect(msgspec.Struct, frozen=True, gc=False):
    """Raise the number of arrivals that the held message `to` waits for."""

    to: str
    more: int


class Finish(msgspec.Struct, frozen=True, kw_only=True):
    """End a record that has no task (a run, a collecting node)."""

    id: str
    state: JobState
    result: Payload | None = None
    error: ErrorInfo | None = None


class FollowUps(msgspec.Struct, frozen=True, kw_only=True):
    """What must happen in the same atomic step as a settlement, applied in this order.

    The arrivals of the job itself, when the settlement ends it, come after these: a job may raise the
    number that its own successor waits for.
    """

    enqueue: tuple[Message, ...] = ()
    expect: tuple[Expect, ...] = ()
    arrive: tuple[Arrival, ...] = ()
    finish: tuple[Finish, ...] = ()


class _Settlement(msgspec.Struct, frozen=True, kw_only=True):
    receipt: str
    started_ago: float | None = None
    """Seconds since the body started, by the worker's monotonic clock; None when it never did."""
    meta: bytes | None = None
    """Replaces the job's meta (a MessagePack map) unless None."""
    follow_ups: FollowUps | None = None


class Ack(_Settlement, frozen=True, kw_only=True):
    """The job ends in `state` (SUCCEEDED, FAILED, REVOKED, EXPIRED), without a dead letter.

    `state=RUNNING` acknowledges before the work (`ack="on_receipt"`): the message is never delivered
    again; a second settlement with the same receipt ends the job, or reap ends it FAILED ("worker
    lost") when the lease is over.
    """

    state: JobState = JobState.SUCCEEDED
    result: Payload | None = None
    error: ErrorInfo | None = None
    result_stored: bool = False
    """The result went to the separate result store under (id, receipt)."""


class Retry(_Settlement, frozen=True, kw_only=True):
    """The attempt failed; the next one is due after `delay`. Deliveries start anew."""

    delay: float
    error: ErrorInfo | None = None
    envelope: bytes | None = None
    """A changed call; None keeps it."""


class Defer(_Settlement, frozen=True, kw_only=True):
    """Not now: due after `delay`, in its old place, consuming neither attempt nor delivery."""

    delay: float
    reason: str = ""


class Yield(_Settlement, frozen=True, kw_only=True):
    """Given up for more urgent work: like Defer, but counted in `yields`.

    Beyond `max_yields` it is refused with the reason "max yields" and the delivery stays held.
    """

    delay: float = 0.0


class Release(_Settlement, frozen=True, kw_only=True):
    """Given back at once, in its old place; `counted=True` keeps the delivery counted (it had started).

    A counted release at the last delivery buries the job ("worker lost")."""

    counted: bool = False


class Park(_Settlement, frozen=True, kw_only=True):
    """The work goes on outside: WAITING until `complete`, or for `timeout` seconds."""

    timeout: float | None = None


class Bury(_Settlement, frozen=True, kw_only=True):
    """The job ends FAILED and becomes a dead letter."""

    error: ErrorInfo


Settlement = Union[Ack, Retry, Defer, Yield, Release, Park, Bury]


class SettleResult(msgspec.Struct, frozen=True, gc=False):
    """What became of one settlement.

    `ok`: applied now. `already`: this receipt has settled before (a repeated call), as good as ok.
    `lost`: somebody else has the message, or the job has ended; nothing was changed. `refused`: the
    backend can't store it, or a limit forbids it (`reason`); nothing was changed.
    """

    status: Literal["ok", "already", "lost", "refused"]
    reason: str = ""


class SettleReply(msgspec.Struct, frozen=True, kw_only=True):
    """One result for each settlement, in their order, and what the worker may want to know besides."""

    results: list[SettleResult]
    now: float
    head: int | None = None
    cancelled: frozenset[str] = frozenset()
    terminate: frozenset[str] = frozenset()


# --- rates ----------------------------------------------------------------------------------------


class RateWish(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A wish to start one thing under the rate `name`: at most one start each `interval` seconds.

    `due` is the instant of the turn that an earlier answer promised, 0 without one. What had a turn may
    start up to `tolerance` seconds out of step, so in any span of time at most
    `(span + tolerance) / interval + 1` start.
    """

    name: str
    interval: float
    due: float = 0.0
    tolerance: float = 0.1


# --- maintenance ----------------------------------------------------------------------------------


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """How long finished things stay. None means no limit of that kind (but see the transport's own)."""

    dead_letter_ttl: float | None = 2_592_000.0
    dead_letter_max: int | None = 100_000
    max_finished_jobs: int | None = None
    worker_ttl: float = 600.0


class ReapRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One bounded pass of maintenance. `recover=False` takes no lease back (after a contact gap)."""

    retention: Retention = Retention()
    recover: bool = True
    limit: int = 500


class Ended(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A job that ended without its worker's settlement, for events and logs."""

    id: str
    task: str
    queue: str
    state: JobState
    reason: str


class ReapReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a pass did. `next_in` is the time until a reaper is needed next, `more` says at once."""

    requeued: int = 0
    timed_out: int = 0
    pruned: int = 0
    ended: tuple[Ended, ...] = ()
    next_in: float | None = None
    more: bool = False


# --- looking --------------------------------------------------------------------------------------


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A job's record. `envelope` is filled only when asked for.

    `receipt` is the holder's while RUNNING or WAITING and the winner's once ended.
    """

    id: str
    task: str
    queue: str
    state: JobState
    priority: int = 0
    attempt: int = 1
    deliveries: int = 0
    max_deliveries: int = 5
    yields: int = 0
    series: int = 1
    enqueued_at: float = 0.0
    due_at: float | None = None
    expires_at: float | None = None
    reserved_at: float | None = None
    started_at: float | None = None
    finished_at: float | None = None
    worker: str | None = None
    receipt: str | None = None
    cancel_requested: bool = False
    blocked: bool = False
    dead: bool = False
    result: Payload | None = None
    result_stored: bool = False
    error: ErrorInfo | None = None
    reason: str = ""
    meta: bytes | None = None
    key: str | None = None
    concurrency_key: str | None = None
    run: str | None = None
    step: str | None = None
    successors: tuple[Edge, ...] = ()
    hold: Hold | None = None
    arrived: int = 0
    envelope: bytes | None = None


class JobResult(NamedTuple):
    """What a join reads of each of its thousands of jobs: how it stands, and its result if it has one."""

    state: JobState
    result: Payload | None


class JobPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some records, and the cursor of the next page (None at the end)."""

    jobs: list[JobRecord]
    cursor: str | None = None


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A job that will not be tried again by itself, with its raw envelope."""

    id: str
    task: str
    queue: str
    priority: int
    reason: str
    died_at: float
    attempt: int = 1
    deliveries: int = 0
    error: ErrorInfo | None = None
    envelope: bytes = b""


class DeadPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some dead letters, oldest first, and the cursor of the next page (None at the end)."""

    letters: list[DeadLetter]
    cursor: str | None = None


class BandStats(msgspec.Struct, frozen=True, kw_only=True):
    """What one priority of one queue holds. `oldest_age` is of the oldest pending message."""

    priority: int
    pending: int = 0
    delayed: int = 0
    in_flight: int = 0
    blocked: int = 0
    oldest_age: float | None = None


class QueueStats(msgspec.Struct, frozen=True, kw_only=True):
    """What a queue holds: `pending` is ready now, `delayed` is due later (retries included)."""

    queue: str
    pending: int = 0
    delayed: int = 0
    in_flight: int = 0
    blocked: int = 0
    held: int = 0
    waiting: int = 0
    dead: int = 0
    oldest_age: float | None = None
    bands: tuple[BandStats, ...] = ()


class RevokeResult(msgspec.Struct, frozen=True):
    """`revoked` ended at once; `cancelling` is held, its holder will hear; `final` had ended; `unknown`."""

    status: Literal["revoked", "cancelling", "final", "unknown"]
    state: JobState | None = None


class CompleteResult(msgspec.Struct, frozen=True):
    """`ok` ended the job; `kept` came before the park and is applied by it; `handed` goes to a worker
    for the retry decision; `already` said the same before; `refused` says why in `reason`."""

    status: Literal["ok", "kept", "handed", "already", "refused"]
    reason: str = ""


class ReopenResult(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the records were reopened, which ones, or why not."""

    status: Literal["ok", "refused"]
    reopened: tuple[str, ...] = ()
    reason: str = ""


class PurgeReply(msgspec.Struct, frozen=True):
    """How many one bounded step removed, and whether there is more to do."""

    removed: int
    more: bool = False


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One worker process. `id` is unique for each process start, never a host name or pid alone.

    `heartbeat_at` and `stale` are filled by the transport.
    """

    id: str
    hostname: str = ""
    pid: int = 0
    queues: tuple[str, ...] = ()
    pool: str = ""
    concurrency: int = 1
    in_flight: int = 0
    started_at: float = 0.0
    version: str = ""
    heartbeat_interval: float = 10.0
    state: str = "running"
    heartbeat_at: float = 0.0
    stale: bool = False


class HeartbeatReply(msgspec.Struct, frozen=True, kw_only=True):
    """`maintain` elects this worker to do the fleet's maintenance until its next heartbeat."""

    now: float
    maintain: bool = False


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One line of `taskmq doctor`: `level` is ok, warning or error."""

    level: Literal["ok", "warning", "error"]
    subject: str
    message: str
    advice: str = ""
