"""The transport contract: what a backend promises, role by role, in one file.

A transport keeps messages, job records, named leases and the worker registry. It is synchronous,
thread-safe and batch-first: one call is one round trip for many items, and answers in their order.
It stores and routes; it never decodes an envelope and never decides about a retry.

Rules that hold for every method:

- Time is judged by the transport's own clock (the server's, where there is one). Callers speak in
  durations.
- A call that changes something may be repeated without harm: replies get lost.
- Whatever makes a job final does so in one atomic step with what follows from it: its message, its
  record, its concurrency slot, and its arrivals at the held messages named in `successors`. [I5]
- A lost connection raises `TransportUnavailable` after bounded reconnects; what can never work
  raises `TransportError`. Nothing pretends to have succeeded. [I13]
- Backends may trust their arguments: the callers in `taskmq` and `taskmq_worker` have checked them.

The invariants [I1]…[I13] are those of the design; `taskmq.testing.transport_conformance` has at
least one scenario for each. Not part of the contract yet, with their places kept free: pause and
resume of a queue, versioned documents (schedules, plans), editing a dead letter. They come as optional
methods behind a capability, as `take_tokens` did.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Literal

from taskmq.errors import TransportError
from taskmq.transport.types import JobResult

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from typing_extensions import Self

    from taskmq.states import JobState
    from taskmq.transport.types import (
        CompleteResult,
        Completion,
        DeadLetter,
        DeadPage,
        Enqueued,
        ExtendReply,
        Extension,
        Fence,
        Finding,
        HeartbeatReply,
        JobPage,
        JobRecord,
        Message,
        Payload,
        PurgeReply,
        QueueStats,
        RateWish,
        ReapReport,
        ReapRequest,
        ReopenResult,
        ReserveReply,
        ReserveRequest,
        RevokeResult,
        Settlement,
        SettleReply,
        WorkerInfo,
    )


class MessageRole(ABC):
    """Messages: from enqueue to settlement, and the dead letters."""

    @abstractmethod
    def enqueue(self, messages: Sequence[Message], *, fence: Fence | None = None) -> list[Enqueued]:
        """Store messages and their job records: ready, delayed, or held (`PENDING`).

        Atomicity: all of the messages or none. A message whose id is known answers `exists` and
        changes nothing; one whose idempotency key belongs to another job answers `duplicate` with
        that job's id. A key belongs to its job for the longer of `key_ttl` and the job's life, and
        is free again once the job ended other than by success; with `until_start` it is free as soon as
        the job has been reserved, with `until_end` as soon as it has ended. [I8]
        Time: `delay` and `expires` count from the transport's now; `enqueued_at` is stamped.
        A hold of 0 arrivals is released at once. Waiting workers of these queues are woken.

        Raises:
            LeaseLost: `fence` names an outdated token; nothing was stored.
        """

    @abstractmethod
    def reserve(self, request: ReserveRequest) -> ReserveReply:
        """Lease up to `limit` messages to a worker and record `RUNNING` and `reserved_at`.

        Eligible: ready messages of the queues asked for (what is due is promoted first), not external,
        at most `max_priority`. What is past `expires_at` ends `EXPIRED` instead. [I9] What finds its
        concurrency key full moves once to the key's waiting line and takes no part until a slot is
        freed; otherwise it takes a slot with the lease.
        Order: strictly by priority across the queues; inside a band by weighted round-robin
        (`credits`); inside a queue and band FIFO. A message keeps its place through release, yield,
        defer and a freed slot. [I4]
        Counting: `deliveries` rises by one; a worker holds at most one delivery at its last chance
        (`deliveries == max_deliveries` after an earlier loss): further ones stay where they are.
        Atomicity: under any number of workers a message goes to one. [I1] If the reply is lost,
        `reclaim` gives back what the worker does not know of.
        """

    @abstractmethod
    def reclaim(self, worker: str, keep: Sequence[str]) -> int:
        """Release, uncounted, every delivery held by `worker` whose receipt is not in `keep`.

        Called after a `reserve` whose reply may be lost. Returns how many were given back.
        """

    @abstractmethod
    def wait(self, worker: str, queues: Sequence[str], timeout: float) -> bool:
        """Block until one of the queues may have something new, `wake` is called, or time is over.

        A hint, cheap for the backend: spurious returns are allowed, a lost one costs at most two
        seconds. Never runs the claim query. True when woken.
        """

    @abstractmethod
    def wake(self, waiter: str) -> None:
        """Make a `wait` or `wait_jobs` of this waiter in this process return now, also one about to begin."""

    @abstractmethod
    def settle(self, worker: str, settlements: Sequence[Settlement]) -> SettleReply:
        """Apply what a worker says of its deliveries; each with its follow-ups in one atomic step.

        Fencing: a receipt counts while its delivery is held, and also after its lease was over until
        somebody else reserved the message or it was buried; otherwise the answer is `lost` and nothing
        at all changes, follow-ups included. [I3] A repeated settlement answers `already`.
        Independence: one refused item never blocks the others. Several settlements of one call are
        applied in order.
        """

    @abstractmethod
    def extend(self, worker: str, extensions: Sequence[Extension]) -> ExtendReply:
        """Prolong leases from now, and record `started_at` of what has begun.

        A receipt whose lease was over but that nobody else has taken is held again. [I2]
        """

    @abstractmethod
    def reap(self, request: ReapRequest) -> ReapReport:
        """One bounded pass of maintenance; safe on any number of processes at once. [I10, I11]

        Takes back leases that are over (`deliveries` stands; at `max_deliveries`, or acknowledged before
        the work, the job is buried: "worker lost"), ends what is past `expires_at` unread, hands parked
        jobs whose time is over to a worker as a delivery with that outcome, and prunes what is past
        its retention: finished jobs (never while a dead letter of theirs or their run lives), keys,
        dead letters, stale workers, records of vanished queues. [I12]
        """

    @abstractmethod
    def list_dead(
        self, queue: str | None = None, *, limit: int = 100, cursor: str | None = None
    ) -> DeadPage:
        """Dead letters, oldest first."""

    @abstractmethod
    def get_dead(self, job_id: str) -> DeadLetter | None:
        """One dead letter with its raw envelope."""

    @abstractmethod
    def replay_dead(
        self, ids: Sequence[str], *, queue: str | None = None, priority: int | None = None
    ) -> int:
        """Reopen dead jobs in a new series with a fresh budget of attempts; returns how many.

        Each at most once, however often it is asked. Queue and priority are kept unless given; an
        expiry is dropped. Skipped successors and the run are reopened with it. [I6]
        """

    @abstractmethod
    def purge_dead(self, ids: Sequence[str] | None = None, *, queue: str | None = None) -> int:
        """Drop dead letters (by id, by queue, or all); their jobs stay FAILED until `job_ttl`."""

    @abstractmethod
    def stats(self, queues: Sequence[str] | None = None) -> list[QueueStats]:
        """Counts per queue and priority, from what is stored: right with no worker up. Sorted by name."""

    @abstractmethod
    def purge(self, queue: str, *, limit: int = 500) -> PurgeReply:
        """End up to `limit` jobs of a queue that nobody holds (ready, delayed, retrying, blocked) as REVOKED.

        Their arrivals count; call again while `more`. [I5]
        """


class JobRole(ABC):
    """Job records: reading, revoking, completing, reopening."""

    @abstractmethod
    def get_jobs(self, ids: Sequence[str], *, envelopes: bool = False) -> list[JobRecord | None]:
        """The records of these ids in their order, None where there is none."""

    def get_results(self, ids: Sequence[str]) -> list[JobResult | None]:
        """State and result of these ids in their order, None where there is no record.

        Nothing that `get_jobs` doesn't give, so it may stay as it is; a backend to which reading
        less costs less makes joins of thousands of jobs faster by its own.
        """
        return [
            None if record is None else JobResult(record.state, record.result)
            for record in self.get_jobs(ids)
        ]

    @abstractmethod
    def update_meta(self, receipt: str, meta: bytes) -> bool:
        """Replace the meta of the job that `receipt` holds, or whose last settlement it made. [I3]

        After the settlement it counts while the job is ended or `RETRYING`, until somebody else
        reserves it or it is reopened: hooks run then, and what fails in them is kept in the meta.
        False, changing nothing, for every other receipt.
        """

    @abstractmethod
    def revoke(self, ids: Sequence[str], terminate: bool = False) -> list[RevokeResult]:
        """Cancel jobs: what nobody holds ends REVOKED at once, what is held gets `cancel_requested`.

        A state of the job, not a broadcast: it holds with no worker up and over restarts. A record
        with a hold (a run, a held step) ends at once as well; messages guarded by it end REVOKED
        instead of being released. Holders are woken. With `terminate` the holder of a delivery is told
        besides to end the body by force, if it can; a later call without it takes nothing back.
        """

    @abstractmethod
    def complete(self, token: str, completion: Completion) -> CompleteResult:
        """End a parked job from outside. The token is `completion_token(id, receipt)` of its delivery.

        Before the park it is kept under its receipt and applied by the park's settlement. A retryable
        failure is handed to a worker as a delivery with that outcome, any other failure makes a dead
        letter. The same outcome again answers `already`, another one `refused`; so does the token of an
        earlier attempt.
        """

    @abstractmethod
    def reopen(
        self,
        ids: Sequence[str],
        *,
        expect: Mapping[str, int] | None = None,
        descendants: Literal["all", "skipped"] = "all",
    ) -> ReopenResult:
        """Start a new series of ended jobs, in one atomic step. [I6]

        The named records are queued anew (attempt 1, no deliveries, no result, no dead letter). Of what
        depends on them, all descendants or only the skipped ones and records without a task are held
        again: series raised, the reopened sources' arrivals removed (from what still waits, too).
        Refused, changing nothing, when a named record has not ended, a descendant to be held again is
        queued or running, or a record's series is not what `expect` says (compare-and-set).
        """

    @abstractmethod
    def wait_jobs(
        self,
        ids: Sequence[str],
        timeout: float,
        *,
        mode: Literal["any", "all"] = "all",
        waiter: str | None = None,
    ) -> list[JobRecord | None]:
        """Block until any or all of these jobs have ended, `wake(waiter)`, or time is over; the records then.

        An unknown id counts as ended. A settlement notifies only where somebody waits.
        """

    def list_jobs(
        self,
        *,
        prefix: str = "",
        states: Sequence[JobState] = (),
        queue: str | None = None,
        task: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
        newest_first: bool = False,
    ) -> JobPage:
        """Records whose id starts with `prefix`, ordered by id. Needs `supports_job_listing`."""
        raise _unsupported(self, "list_jobs", "job_listing")


class LeaseRole(ABC):
    """Named leases: cluster-wide mutexes with fencing tokens. Needs `supports_leases`."""

    def acquire(self, name: str, owner: str, ttl: float) -> int | None:
        """Take a free or over lease; its token, greater than any before, or None when held by another.

        The holder asking again gets its own token and the full time anew.
        """
        raise _unsupported(self, "acquire", "leases")

    def renew(self, name: str, token: int, ttl: float) -> bool:
        """Prolong a lease that is still held under this token; False when it is not."""
        raise _unsupported(self, "renew", "leases")

    def release(self, name: str, token: int) -> bool:
        """Give up a lease held under this token; False when it was not held. Tokens go on rising."""
        raise _unsupported(self, "release", "leases")


class WorkerRole(ABC):
    """The registry of workers. Needs `supports_workers`."""

    def heartbeat(self, info: WorkerInfo) -> HeartbeatReply:
        """Record a worker as alive; the answer elects who does the fleet's maintenance.

        The elected one stays it while it beats; another is elected once it has missed two intervals
        or deregistered.
        """
        raise _unsupported(self, "heartbeat", "workers")

    def deregister(self, worker: str) -> None:
        """Forget a worker that ended cleanly; what it still holds is left to its leases."""
        raise _unsupported(self, "deregister", "workers")

    def list_workers(self) -> list[WorkerInfo]:
        """All registered workers with `heartbeat_at`, and `stale` when two intervals were missed."""
        raise _unsupported(self, "list_workers", "workers")


class RateRole(ABC):
    """Rates across the cluster. Needs `supports_rates`; `taskmq.transport.rates` does the counting."""

    def take_tokens(self, wishes: Sequence[RateWish]) -> list[float]:
        """For each wish, in order: 0.0, it may start now and is counted; else seconds until its turn.

        A turn is promised to the one that asked, who comes back then with its instant as `due`; a turn
        that nobody takes is lost. Atomic under any number of workers, and one round trip for all wishes.
        A repeated call counts again: starts become fewer, never more.
        """
        raise _unsupported(self, "take_tokens", "rates")


class ConnectionRole(ABC):
    """Enqueueing in a transaction of the caller's own. Needs `supports_connections`."""

    def enqueue_in(self, connection: object, messages: Sequence[Message]) -> list[Enqueued]:
        """Like `enqueue`, by the caller's connection: the jobs exist if and only if it commits.

        Neither commits nor rolls back. The answers hold for the transaction as it is now. An error of the
        database leaves the transaction as that database does: aborted.

        Raises:
            ConfigError: It is no connection of the kind that this transport takes.
        """
        raise _unsupported(self, "enqueue_in", "connections")

    async def aenqueue_in(self, connection: object, messages: Sequence[Message]) -> list[Enqueued]:
        """Like `enqueue_in`, also by an asynchronous connection."""
        raise _unsupported(self, "aenqueue_in", "connections")


class Transport(MessageRole, JobRole, LeaseRole, WorkerRole, RateRole, ConnectionRole):
    """A backend. Subclass it, register the class under the entry point `taskmq.transports`.

    Capabilities are declared data: what is declared missing raises `TransportError` when called and is
    found at start-up; what is declared present is proved by the conformance suite. `limitations`
    maps scenario names to the reason why the suite skips them; `taskmq status` prints them.
    """

    supports_leases: ClassVar[bool] = True
    supports_workers: ClassVar[bool] = True
    supports_job_listing: ClassVar[bool] = True
    supports_atomic_settle: ClassVar[bool] = True
    supports_rates: ClassVar[bool] = False
    supports_connections: ClassVar[bool] = False
    lives_here: ClassVar[bool] = False
    """Whether it exists in this process only: a worker's children then reach it through the worker."""
    limitations: Mapping[str, str] = {}

    @classmethod
    def from_url(cls, url: str, *, timeout: float = 5.0) -> Self:
        """Build a transport from its URL without connecting.

        Args:
            url: The whole URL, options in its query.
            timeout: How long a call may wait for the backend before `TransportUnavailable`, seconds.

        Raises:
            ConfigError: The URL is malformed or has an option that this transport does not know.
        """
        raise TransportError(f"{cls.__name__} can't be made from a URL; pass an instance")

    def duplicate(self) -> Transport:
        """An independent handle on the same storage, for other threads' blocking calls and for tests."""
        return self

    def describe(self) -> Mapping[str, str]:
        """What `status` and `plugins` print: at least `url` (secrets masked), and modes chosen at start."""
        return {"url": type(self).__name__}

    def ping(self) -> None:
        """Reach the backend or raise `TransportUnavailable`."""

    def now(self) -> float:
        """The transport's clock, UTC epoch seconds."""
        raise TransportError(f"{type(self).__name__} has no clock to ask")

    def diagnose(self) -> list[Finding]:
        """What `taskmq doctor` prints: reachable, rights, version, settings that lose jobs."""
        return []

    def dangers(self) -> list[Finding]:
        """What of `diagnose` says that the server may lose jobs; each worker logs it at its start.

        One round trip at most.
        """
        return []

    def migrate(self) -> list[str]:
        """Bring the stored schema up to date; what was done, line by line."""
        return []

    @abstractmethod
    def close(self) -> None:
        """Free connections and threads; waiting calls return. May be called twice."""


class ResultStore(ABC):
    """A separate place for results (`Config(result=…)`), keyed by job id and receipt.

    A result is put before its job's state settles, so that a stale holder, whose receipt lost,
    can't overwrite the winner's.
    """

    @abstractmethod
    def put(self, batch: Sequence[tuple[str, str, Payload]], ttl: float) -> None:
        """Store results under (id, receipt) for `ttl` seconds. Repeatable."""

    @abstractmethod
    def get(self, ids: Sequence[tuple[str, str]]) -> list[Payload | None]:
        """The results of these (id, receipt) pairs in their order."""

    @abstractmethod
    def delete(self, ids: Sequence[tuple[str, str]]) -> None:
        """Drop these results; unknown ones are ignored."""

    @abstractmethod
    def close(self) -> None:
        """Free connections."""


_PREFIX = "tmq1."


def completion_token(job_id: str, receipt: str) -> str:
    """The token that lets the outside complete the delivery with this receipt."""
    return f"{_PREFIX}{receipt}.{job_id}"


def parse_completion_token(token: str) -> tuple[str, str]:
    """Split a token into (job id, receipt).

    Raises:
        TransportError: The text is no completion token.
    """
    head, _, rest = token.partition(_PREFIX)
    receipt, dot, job_id = rest.partition(".")
    if head or not dot or not receipt or not job_id:
        raise TransportError(
            "this is no completion token: it starts with 'tmq1.' and names a receipt and a job"
        )
    return job_id, receipt


def _unsupported(transport: object, method: str, capability: str) -> TransportError:
    return TransportError(
        f"{type(transport).__name__} declares supports_{capability} = False, so it has no {method}()"
    )
