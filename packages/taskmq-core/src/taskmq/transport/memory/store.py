"""The memory transport's storage: all tables under one lock, and moving a job from place to place.

Every method is called with `lock` held. A job is in exactly one place (`Record.where`); `take_out`
takes it from wherever it is, the `put_…` methods put it somewhere.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections import OrderedDict, deque
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from taskmq.states import JobState
from taskmq.transport.memory.lines import Band, KeyLine, Queue
from taskmq.transport.memory.records import RUNNING, LazyHeap, Record, Where
from taskmq.transport.memory.sessions import Session
from taskmq.transport.memory.views import View
from taskmq.transport.memory.waiting import Bedroom

if TYPE_CHECKING:
    from taskmq.clock import Clock
    from taskmq.transport.memory.sessions import KeyHold, NamedLease
    from taskmq.transport.rates import RateState
    from taskmq.transport.types import Ended, QueueShare, Verdict, WorkerInfo

# 96 random bits a receipt: it must not be guessed, since it completes a job from outside.
_RECEIPT_CHARS = 24
_ENTROPY_BYTES = 12 * 256


class Store:
    """Everything that a memory transport holds; handles on it share it."""

    def __init__(self, clock: Clock, max_finished: int) -> None:
        # Reentrant because a signal handler may wake a waiter while its own thread is in a call.
        self.lock = threading.RLock()
        self.clock = clock
        self.max_finished = max_finished
        self.counter = itertools.count(1)
        self.records: dict[str, Record] = {}
        self.by_receipt: dict[str, Record] = {}
        self.queues: dict[str, Queue] = {}
        self.sessions: dict[str, Session] = {}
        self.views: dict[tuple[QueueShare, ...], View] = {}
        self.key_lines: dict[str, KeyLine] = {}
        self.keys: dict[str, KeyHold] = {}
        self.key_ends: list[tuple[float, str, str]] = []
        self.leased: LazyHeap[float] = LazyHeap()
        self.parked: LazyHeap[float] = LazyHeap()
        self.expiring: list[tuple[float, int, Record]] = []
        self.expiring_stale = 0
        self.finished: OrderedDict[str, Record] = OrderedDict()
        self.finished_due: LazyHeap[float] = LazyHeap()
        self.kept_for_run: dict[str, list[Record]] = {}
        self.newest_run = ""
        """The run that ended last: the limit of finished jobs spares it."""
        self.dead: OrderedDict[int, Record] = OrderedDict()
        self.dead_order: list[int] = []
        self.named_leases: dict[str, NamedLease] = {}
        self.rates: dict[str, RateState] = {}
        self.workers: dict[str, WorkerInfo] = {}
        self.maintainer: str | None = None
        self.vacancy_check: list[str] = []
        self.bedroom = Bedroom()
        self.arrivals: deque[tuple[str, str, int, Verdict]] = deque()
        self.is_propagating = False
        self.ended_log: list[Ended] | None = None
        self._entropy = ""
        self._entropy_at = 0

    def after_fork_in_child(self) -> None:
        """Make the child's copy usable: nobody of the parent's threads is here to release anything."""
        self.lock = threading.RLock()
        self.bedroom = Bedroom()
        self._entropy = ""
        self._entropy_at = 0
        for view in self.views.values():
            view.sleepers.clear()

    # Small things ---------------------------------------------------------------------------------

    def new_receipt(self) -> str:
        """A receipt that was never given out and can't be guessed."""
        at = self._entropy_at
        if at >= len(self._entropy):
            self._entropy = os.urandom(_ENTROPY_BYTES).hex()
            at = 0
        self._entropy_at = at + _RECEIPT_CHARS
        return self._entropy[at : at + _RECEIPT_CHARS]

    def queue(self, name: str) -> Queue:
        """The queue of this name, made when missing."""
        queue = self.queues.get(name)
        if queue is None:
            queue = self.queues[name] = Queue(name)
        return queue

    def band_of(self, record: Record) -> Band:
        """The band where a record belongs."""
        queue = self.queues.get(record.queue) or self.queue(record.queue)
        return queue.bands.get(record.priority) or queue.band(record.priority)

    def session(self, worker: str, now: float) -> Session:
        """The session of this worker, made when missing."""
        session = self.sessions.get(worker)
        if session is None:
            session = self.sessions[worker] = Session(worker)
        session.used_at = now
        return session

    def view_for(self, session: Session, queues: tuple[QueueShare, ...]) -> View:
        """The view of these queues; free when the session asks for the same ones again."""
        view = session.view
        if view is not None and (view.queues is queues or view.queues == queues):
            return view
        session.view = view = self.shared_view(queues)
        session.wait_names = ()
        return view

    def shared_view(self, queues: tuple[QueueShare, ...]) -> View:
        """The one view of these queues, made when missing."""
        view = self.views.get(queues)
        if view is None:
            view = self.views[queues] = View(queues)
            view.attach([self.queue(share.name) for share in queues])
        return view

    # Places ---------------------------------------------------------------------------------------

    def put_ready(self, record: Record) -> None:
        """Make a record visible at its place, and tell who looks at its queue."""
        if record.message.external:
            self._put_external(record)
            return
        record.where = Where.READY
        record.stamp = next(self.counter)
        queue = self.queues.get(record.queue) or self.queue(record.queue)
        band = queue.bands.get(record.priority) or queue.band(record.priority)
        if band.push(record):
            for link in queue.links:
                link.view.enter(link, band)

    def put_due(self, record: Record, due_at: float | None, now: float) -> None:
        """Make a record visible once it is due."""
        record.due_at = due_at
        if due_at is None or due_at <= now or record.message.external:
            self.put_ready(record)
            return
        record.where = Where.DELAYED
        record.stamp = next(self.counter)
        queue = self.queue(record.queue)
        queue.band(record.priority).delayed += 1
        queue.delayed.push(due_at, record)
        for link in queue.links:
            if due_at < link.armed_at:
                link.view.arm(link, due_at)
                # Who sleeps until the next due time must hear that it is earlier now.
                link.view.announce()

    def put_held(self, record: Record) -> None:
        """Hold a record back until its arrivals decide."""
        record.where = Where.HELD
        record.state = JobState.PENDING
        self.queue(record.queue).held += 1

    def put_parked(self, record: Record, until: float | None) -> None:
        """Let a record wait for its completion from outside."""
        record.where = Where.PARKED
        record.state = JobState.WAITING
        record.stamp = next(self.counter)
        record.due_at = until
        self.queue(record.queue).waiting += 1
        if until is not None:
            self.parked.push(until, record)

    def put_blocked(self, record: Record, line: KeyLine) -> None:
        """Put a record, just taken out of its band, into its key's waiting line."""
        record.where = Where.BLOCKED
        record.stamp = next(self.counter)
        queue = self.queue(record.queue)
        queue.blocked[record.id] = record
        queue.band(record.priority).blocked += 1
        line.line(record.queue).push((-record.priority, record.place), record)

    def put_leased(self, record: Record, session: Session, lease: float, now: float) -> None:
        """Give a record, under its present receipt, to a worker."""
        record.where = Where.LEASED
        record.state = RUNNING
        record.stamp = next(self.counter)
        record.worker = session.worker
        record.lease_at = now + lease
        record.late = False
        heappush(self.leased.entries, (record.lease_at, record.stamp, record))
        self.band_of(record).leased += 1
        if record.receipt is not None:
            session.held[record.receipt] = record
        if 1 < record.deliveries >= record.message.max_deliveries:
            session.last_chances += 1

    def _put_external(self, record: Record) -> None:
        record.where = Where.EXTERNAL
        queue = self.queue(record.queue)
        queue.external[record.id] = record
        queue.band(record.priority).external += 1

    def take_out(self, record: Record) -> None:
        """Take a record out of wherever it is; it is in the caller's hand then."""
        where = record.where
        record.where = Where.IN_HAND
        record.stamp = 0
        if where == Where.LEASED:
            self._take_leased(record)
        elif where == Where.READY:
            self.band_of(record).remove(record)
        elif where == Where.DELAYED:
            queue = self.queue(record.queue)
            queue.band(record.priority).delayed -= 1
            queue.delayed.drop()
        elif where == Where.BLOCKED:
            self._take_blocked(record)
        elif where == Where.HELD:
            self.queue(record.queue).held -= 1
        elif where == Where.PARKED:
            self.queue(record.queue).waiting -= 1
            if record.due_at is not None:
                self.parked.drop()
        elif where == Where.EXTERNAL:
            queue = self.queue(record.queue)
            del queue.external[record.id]
            queue.band(record.priority).external -= 1
        elif where == Where.ENDED:
            self._take_ended(record)
        if record.promised:
            self.break_promise(record)

    def _take_leased(self, record: Record) -> None:
        self.leased.drop()
        # A band that holds a delivery is never removed.
        self.queues[record.queue].bands[record.priority].leased -= 1
        session = self.sessions.get(record.worker or "")
        receipt = record.receipt
        if session is None or receipt is None:
            return
        session.held.pop(receipt, None)
        if record.cancel_requested:
            session.cancelled.discard(receipt)
            session.terminate.discard(receipt)
        if 1 < record.deliveries >= record.message.max_deliveries:
            session.last_chances -= 1

    def _take_blocked(self, record: Record) -> None:
        queue = self.queue(record.queue)
        del queue.blocked[record.id]
        queue.band(record.priority).blocked -= 1
        key = record.message.concurrency_key
        line = None if key is None else self.key_lines.get(key)
        if line is not None and record.queue in line.waiting:
            line.waiting[record.queue].drop()

    def _take_ended(self, record: Record) -> None:
        if record.dead_number:
            self.drop_dead(record)
        elif self.finished.pop(record.id, None) is not None:
            self.finished_due.drop()

    # Due times ------------------------------------------------------------------------------------

    def promote(self, view: View, now: float) -> None:
        """Make visible what has fallen due in the queues of a view."""
        due = view.due
        while due and due[0][0] <= now:
            at, _, link = heappop(due)
            if link.armed_at != at:
                continue
            link.armed_at = float("inf")
            first_at = self.promote_queue(link.queue, now)
            if first_at is not None:
                view.arm(link, first_at)

    def promote_queue(self, queue: Queue, now: float) -> float | None:
        """Make visible what has fallen due in a queue; when the next one does."""
        while (first := queue.delayed.first()) is not None:
            at, _, record = first
            if at > now:
                return at
            queue.delayed.pop()
            queue.band(record.priority).delayed -= 1
            self.put_ready(record)
        return None

    def index_expiry(self, record: Record) -> None:
        """See to it that `reap` ends this record when its expiry passes while nobody holds it."""
        if record.expires_at is not None and not record.expiry_indexed:
            record.expiry_indexed = True
            heappush(self.expiring, (record.expires_at, next(self.counter), record))

    # Concurrency keys -----------------------------------------------------------------------------

    def take_slot(self, record: Record, key: str) -> bool:
        """Take a slot of a concurrency key, or move the record to the key's line."""
        line = self.key_lines.get(key)
        if line is None:
            line = self.key_lines[key] = KeyLine()
        record.promised = False
        if line.taken < record.message.concurrency_limit:
            line.taken += 1
            record.has_slot = True
            return True
        self.put_blocked(record, line)
        return False

    def retake_slot(self, record: Record) -> None:
        """Count the slot of a body that runs again under its old receipt, even beyond the limit."""
        key = record.message.concurrency_key
        if key is not None and not record.has_slot:
            line = self.key_lines.get(key)
            if line is None:
                line = self.key_lines[key] = KeyLine()
            line.taken += 1
            record.has_slot = True

    def free_slot(self, record: Record) -> None:
        """Give a slot back; the first waiter of each queue is put back at its place.

        Of each queue, because the first of all may wait in a queue that nobody serves; who finds
        the key full again returns to its place in the line.
        """
        key = record.message.concurrency_key
        if key is None or not record.has_slot:
            return
        record.has_slot = False
        line = self.key_lines[key]
        line.taken -= 1
        for queue in list(line.waiting):
            self._advance(line, queue)
        if line.taken <= 0 and not line.waiting:
            del self.key_lines[key]

    def break_promise(self, record: Record) -> None:
        """A waiter that was put back has left otherwise than to a worker: let the next one try."""
        record.promised = False
        key = record.message.concurrency_key or ""
        line = self.key_lines.get(key)
        if line is None:
            return
        if record.queue in line.waiting:
            self._advance(line, record.queue)
        if line.taken <= 0 and not line.waiting:
            del self.key_lines[key]

    def _advance(self, line: KeyLine, queue_name: str) -> None:
        waiting = line.waiting[queue_name]
        first = waiting.first()
        if first is None:
            del line.waiting[queue_name]
            return
        record = first[2]
        if line.taken >= record.message.concurrency_limit:
            return
        waiting.pop()
        if not waiting.entries:
            del line.waiting[queue_name]
        queue = self.queue(queue_name)
        del queue.blocked[record.id]
        queue.band(record.priority).blocked -= 1
        record.promised = True
        self.put_ready(record)

    # Ended jobs -----------------------------------------------------------------------------------

    def retain(self, record: Record) -> None:
        """Keep an ended record until its time, its run's included, is over.

        The oldest are dropped at once beyond the limit, so that growth doesn't depend on reaping.
        """
        run = None if record.message.run is None else self._run_of(record)
        ended_at = record.finished_at or 0.0
        if run is not None:
            if run.where != Where.ENDED:
                self.kept_for_run.setdefault(run.id, []).append(record)
                return
            ended_at = max(ended_at, run.finished_at or 0.0)
        record.stamp = next(self.counter)
        self.finished[record.id] = record
        self.finished_due.push(ended_at + record.message.job_ttl, record)
        if len(self.finished) > self.max_finished:
            self.trim_finished(self.max_finished)

    def trim_finished(self, limit: int, steps: int = 2) -> int:
        """Forget the oldest ended jobs beyond `limit`, in a bounded number of steps."""
        forgotten = 0
        for _ in range(steps):
            if len(self.finished) <= limit:
                break
            oldest = next(iter(self.finished.values()))
            if self.newest_run in (oldest.message.run, oldest.id):
                # Somebody may still wait for it, and a run is of no use without all of its records.
                self.finished.move_to_end(oldest.id)
                continue
            forgotten += self.forget_or_keep(oldest)
        return forgotten

    def forget_or_keep(self, record: Record) -> int:
        """Forget a retained record, unless its run was reopened meanwhile; how many were forgotten."""
        record.stamp = 0
        del self.finished[record.id]
        self.finished_due.drop()
        run = None if record.message.run is None else self._run_of(record)
        if run is not None and run.where != Where.ENDED:
            self.kept_for_run.setdefault(run.id, []).append(record)
            return 0
        del self.records[record.id]
        for receipt in record.settled:
            self.by_receipt.pop(receipt, None)
        if record.receipt is not None:
            self.by_receipt.pop(record.receipt, None)
        return 1

    def run_ended(self, run_id: str) -> None:
        """A run has ended: what was kept for it is kept for its time only."""
        self.newest_run = run_id
        for record in self.kept_for_run.pop(run_id, ()):
            if record.where == Where.ENDED and not record.dead_number:
                self.retain(record)

    def _run_of(self, record: Record) -> Record | None:
        run_id = record.message.run
        if run_id is None or run_id == record.id:
            return None
        return self.records.get(run_id)

    def add_dead(self, record: Record) -> None:
        """Make an ended record a dead letter."""
        number = next(self.counter)
        record.dead_number = number
        self.dead[number] = record
        self.dead_order.append(number)
        self.queue(record.queue).dead += 1

    def drop_dead(self, record: Record) -> None:
        """Take a record off the dead letters."""
        del self.dead[record.dead_number]
        record.dead_number = 0
        self.queue(record.queue).dead -= 1
        if len(self.dead_order) > 2 * len(self.dead) + 64:
            self.dead_order = [number for number in self.dead_order if number in self.dead]
