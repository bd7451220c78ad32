"""One slot of the pool `processes`: a thread that owns a child, its jobs and its channels."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import os
import select
from collections import deque
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Literal, NamedTuple

from taskmq.clock import SYSTEM_CLOCK
from taskmq.errors import AttemptLost
from taskmq.transport.types import Release, SettleResult
from taskmq_worker.children import wire
from taskmq_worker.children.desk import Desk
from taskmq_worker.contact import Backoff

if TYPE_CHECKING:
    from collections.abc import Iterable

    from taskmq.execution import Attempt
    from taskmq_worker.children.process import Child
    from taskmq_worker.pools.processes import ProcessesPool
    from taskmq_worker.reservation import Reservation

_log = logging.getLogger("taskmq.worker")
_monotonic = SYSTEM_CLOCK.monotonic

WINDOW = 0.005
"""How much work a child may have in hand that has not started, seconds."""
MOST = 64
"""How many jobs a child may have in hand."""
MOST_BYTES = 1 << 16
"""How many bytes of envelopes go ahead of their start at most."""
STALL = 0.01
"""Without an outcome for this long, what has not started is taken back, seconds."""
LOOK_EVERY = 1.0
"""How often to look after a child where the kernel does not tell of its end, seconds."""
CLOSED = 0.2
"""How long a child that has closed its channel gets to end, seconds."""

Why = Literal["", "timed out", "told to"]


class Request(NamedTuple):
    """What another thread wants of the slot that runs a reservation."""

    reservation: Reservation
    terminate: bool


class Handed:
    """One job in the hands of the child."""

    __slots__ = ("attempt", "deadline", "number", "reservation", "settled", "started_at")

    def __init__(self, number: int, reservation: Reservation, attempt: Attempt) -> None:
        self.number = number
        self.reservation = reservation
        self.attempt = attempt
        self.deadline = math.inf
        self.started_at = 0.0
        self.settled = False
        """Its outcome is with the settler; only its hooks still run."""


class ChildSlot:
    """Takes reservations, has its child run them, settles what comes back, replaces the child."""

    def __init__(self, pool: ProcessesPool) -> None:
        self._pool = pool
        self._around = pool.around
        self._slot = pool.around.slot
        self._settler = pool.around.settler
        self._numbers = itertools.count(1)
        self._fresh: list[Handed] = []
        self._sent: deque[Handed] = deque()
        self._refill_at = 0
        self._moved_at = 0.0
        self._stalled = False
        self._backoff = Backoff(base=0.2, cap=10.0)
        self._requests: SimpleQueue[Request] = SimpleQueue()
        self._bell, self._rope = os.pipe()
        os.set_blocking(self._bell, False)
        os.set_blocking(self._rope, False)
        self._poll = select.poll()
        self._polled = 0
        self.child: Child | None = None
        self.starting: Child | None = None
        self.failure = ""
        """Why the last child did not start."""
        self.desk = Desk(pool.around, pool.wake_idle)

    # --- from other threads ---

    @property
    def busy(self) -> bool:
        """Whether the child has jobs in hand."""
        return bool(self._sent)

    def request(self, request: Request) -> None:
        """Ask something of the slot, if it runs that reservation."""
        self._requests.put(request)
        self.ring()

    def ring(self) -> None:
        """Have the slot look around."""
        # A full pipe rings as well; a closed one belongs to a slot that has ended.
        with contextlib.suppress(OSError):
            os.write(self._rope, b".")

    # --- the thread ---

    def run(self) -> None:
        """The thread: until the pool closes and the child has no more jobs."""
        try:
            while not self._pool.closing:
                if self.child is None and not self._revive():
                    continue
                self._serve_one()
        finally:
            self._dismiss()
            self.desk.close()
            self._pool.ended(self)
            os.close(self._rope)
            os.close(self._bell)

    def adopt(self, child: Child) -> None:
        """Work with this child, which is ready."""
        self.child = child
        self._poll = select.poll()
        self._poll.register(self._bell, select.POLLIN)
        self._poll.register(child.jobs, select.POLLIN)
        if child.watch is not None:
            self._poll.register(child.watch, select.POLLIN)
        self._polled = select.POLLIN
        self.desk.serve(child)

    def _serve_one(self) -> None:
        """Take a reservation, and run it and what goes along with it."""
        reservation = self._pool.buffer.take()
        child = self.child
        if child is None:
            return
        if child.gone or child.has_ended():
            if reservation is not None:
                self._pool.buffer.put_back([reservation])
            self._bury("")
            return
        if reservation is None:
            return
        self._admit(reservation)
        while self._fresh or self._sent:
            self._top_up()
            self._hand_over()
            self._wait()
        if self.child is not None and self._jobs_left() <= 0:
            self._dismiss()

    # --- handing over ---

    def _admit(self, reservation: Reservation) -> None:
        attempt = self._slot.admit(reservation)
        if attempt is None:
            self._pool.buffer.done(reservation)
        else:
            self._fresh.append(Handed(next(self._numbers), reservation, attempt))

    def _top_up(self) -> None:
        """Take more jobs as long as all of them are known to be quick."""
        child = self.child
        count = len(self._sent) + len(self._fresh)
        if not count or count > max(1, self._refill_at) or child is None:
            return
        limit = min(MOST - count, self._jobs_left() - len(self._fresh))
        if limit <= 0 or self._pool.draining or child.sending:
            return
        now = _monotonic()
        if self._sent and (self._stalled or now - self._moved_at >= STALL):
            return
        pace = self._pool.pace
        expected = sum(pace.of(h.reservation.delivery.task) for h in (*self._sent, *self._fresh))
        size = 0
        if expected >= WINDOW:
            return

        def wanted(reservation: Reservation) -> bool:
            nonlocal expected, size
            expected += pace.of(reservation.delivery.task)
            size += len(reservation.delivery.envelope)
            return (
                expected <= WINDOW
                and size <= MOST_BYTES
                and not reservation.needs_confirmation(now)
            )

        taken = self._pool.buffer.take_some(limit, wanted)
        for reservation in taken:
            self._admit(reservation)
        self._refill_at = (count + len(taken)) // 2

    def _hand_over(self) -> None:
        """Send what was admitted, and let it start in its turn."""
        fresh, child = self._fresh, self.child
        if not fresh or child is None:
            return
        child.send(wire.Jobs([wire.Job(h.number, h.reservation.delivery) for h in fresh]))
        child.start([handed.number for handed in fresh])
        child.handed += len(fresh)
        idle = not self._sent
        self._sent.extend(fresh)
        self._fresh = []
        if idle:
            self._begin()

    def _begin(self) -> None:
        """The first job in the child's hands starts now."""
        self._moved_at = now = _monotonic()
        self._stalled = False
        if self._sent:
            head = self._sent[0]
            head.started_at = now
            self._slot.began(head.reservation)
            limit = head.attempt.hard_timeout
            if limit is not None:
                head.deadline = now + limit

    def _jobs_left(self) -> int:
        child, most = self.child, self._around.config.max_jobs_per_child
        if child is None or child.retire:
            return 0
        return MOST if most is None else most - child.handed

    # --- waiting ---

    def _wait(self) -> None:
        """Wait for the child, for a deadline or for a request, and do what is to be done then."""
        child = self.child
        if not self._sent or child is None:
            return
        wanted = select.POLLIN | (select.POLLOUT if child.sending else 0)
        if wanted != self._polled:
            self._poll.modify(child.jobs, wanted)
            self._polled = wanted
        patience = self._patience()
        timeout = None if math.isinf(patience) else max(0, math.ceil(patience * 1000))
        ready = dict(self._poll.poll(timeout))
        if child.sending:
            child.flush()
        if self._bell in ready:
            self._hear_requests()
        if self.child is not child:
            return
        if child.jobs.fileno() in ready:
            self._read(child)
        if self.child is child and (child.watch in ready if child.watch else child.has_ended()):
            self._bury("")
        if self.child is child:
            self._look_at_clock()

    def _patience(self) -> float:
        """How long nothing needs to be done."""
        now = _monotonic()
        until = self._sent[0].deadline
        if len(self._sent) > 1 and not self._stalled:
            until = min(until, self._moved_at + STALL)
        if self.child is not None and self.child.watch is None:
            until = min(until, now + LOOK_EVERY)
        return until - now

    def _look_at_clock(self) -> None:
        if not self._sent:
            return
        now = _monotonic()
        if now >= self._sent[0].deadline:
            self._kill(self._sent[0], "timed out")
        elif len(self._sent) > 1 and not self._stalled and now - self._moved_at >= STALL:
            self._stalled = True
            self._take_back()

    def _hear_requests(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._bell, 4096)
        if self._pool.draining:
            self._take_back()
        while True:
            try:
                request = self._requests.get_nowait()
            except Empty:
                return
            for handed in self._sent:
                if handed.reservation is request.reservation:
                    self._obey(handed, request)
                    break

    def _obey(self, handed: Handed, request: Request) -> None:
        child = self.child
        if child is None:
            return
        if request.terminate:
            self._kill(handed, "told to")
        else:
            self.desk.flag(child, handed.reservation)

    # --- what the child says ---

    def _read(self, child: Child) -> None:
        try:
            messages = child.receive()
        except wire.BrokenChannel as error:
            _log.error("child %s says what makes no sense (%s); it is killed", child.pid, error)
            child.kill()
            messages = None
        if messages is None:
            self._bury("")
        else:
            self._heed(child, messages)

    def _heed(self, child: Child, messages: Iterable[wire.ToParent]) -> None:
        for message in messages:
            if not self._sent:
                return
            head = self._sent[0]
            if isinstance(message, wire.Done) and message.number == head.number:
                child.retire |= message.retire
                if not self._settle(child, head, message):
                    continue
            elif not (isinstance(message, wire.HooksDone) and message.number == head.number):
                continue
            self._sent.popleft()
            seconds = _monotonic() - head.started_at
            if isinstance(message, wire.Done):
                seconds = message.duration
            self._pool.pace.note(head.reservation.delivery.task, seconds)
            self._pool.buffer.done(head.reservation)
            self._begin()

    def _settle(self, child: Child, handed: Handed, message: wire.Done) -> bool:
        """Pass an outcome on; whether the child is through with the job."""
        reservation = handed.reservation
        reservation.duration = message.duration
        settlement = wire.settlement_of(message)
        handed.settled = True
        if not message.waits:
            if not reservation.given_up:
                self._settler.submit(settlement, reservation)
            return True
        result = SettleResult("lost")
        if not reservation.given_up:
            result = self._settler.settle(settlement, reservation)
        child.send(wire.Settled(handed.number, result))
        if (limit := handed.attempt.hard_timeout) is not None:
            # The hooks have as much time as the body; the transport's answer took none of it.
            handed.deadline = _monotonic() + limit
        return False

    # --- taking back, killing, burying ---

    def _take_back(self) -> None:
        """What the child has not started goes back to where it came from."""
        if self.child is None:
            return
        numbers = self.child.take_back()
        if numbers:
            self._give_back([h for h in self._sent if h.number in numbers])
            self._sent = deque(h for h in self._sent if h.number not in numbers)
            self.child.handed -= len(numbers)

    def _give_back(self, handed: list[Handed]) -> None:
        """Unstarted, hence uncounted: into the buffer, or to the transport when the worker stops."""
        if not self._pool.draining:
            self._pool.buffer.put_back([each.reservation for each in handed])
            return
        for each in handed:
            reservation = each.reservation
            self._settler.submit(Release(receipt=reservation.delivery.receipt), reservation)
            self._pool.buffer.done(reservation)

    def _kill(self, handed: Handed, why: Why) -> None:
        """End the body of a job by ending its child, unless it has ended by itself."""
        child = self.child
        if child is None:
            return
        # First, so that no other job can start meanwhile.
        self._take_back()
        if handed not in self._sent:
            return
        child.kill()
        self._bury(why)

    def _bury(self, why: Why) -> None:
        """The child has ended or is about to: settle what it did, and lose what it was doing."""
        child = self.child
        if child is None:
            return
        self._take_back()
        epitaph = ""
        if not child.await_end(CLOSED):
            epitaph = "closed its channel to the worker"
            child.kill()
            child.await_end(5.0)
        epitaph = epitaph or child.epitaph()
        with contextlib.suppress(wire.BrokenChannel):
            # A child that died between an outcome and its hooks has settled its job all the same.
            while messages := child.receive():
                self._heed_last(messages)
        lost, self._sent = self._sent, deque()
        for handed in lost:
            self._lose(handed, why, epitaph)
        if self._fresh:
            fresh, self._fresh = self._fresh, []
            self._give_back(fresh)
        if not lost and not child.retire:
            _log.warning("child %s of this worker %s; it is replaced", child.pid, epitaph)
        self._part()

    def _heed_last(self, messages: Iterable[wire.ToParent]) -> None:
        """Outcomes that a dead child has left: they count, and no hook waits any more."""
        for message in messages:
            if not self._sent or not isinstance(message, (wire.Done, wire.HooksDone)):
                return
            head = self._sent[0]
            if message.number != head.number:
                continue
            self._sent.popleft()
            if isinstance(message, wire.Done):
                head.reservation.duration = message.duration
                if not head.reservation.given_up:
                    self._settler.submit(wire.settlement_of(message), head.reservation)
            self._pool.buffer.done(head.reservation)

    def _lose(self, handed: Handed, why: Why, epitaph: str) -> None:
        """A job whose process has ended under it."""
        reservation, attempt = handed.reservation, handed.attempt
        delivery = reservation.delivery
        if handed.settled:
            _log.warning("the hooks of job %s were cut short: its process %s", delivery.id, epitaph)
        elif reservation.given_up:
            pass
        elif why == "told to" and reservation.stopping and not reservation.cancelled:
            self._slot.hand_back(reservation)
        else:
            if why == "timed out":
                text = f"its hard_timeout of {attempt.hard_timeout:g} s was over: its process was killed"
                error = AttemptLost(text, reason="timed out")
            else:
                error = AttemptLost(f"its process {epitaph}", reason="worker lost")
            _log.warning("job %s (%s): %s", delivery.id, delivery.task, error)
            self._slot.ended(reservation, attempt, error)
        self._pool.buffer.done(reservation)

    # --- children come and go ---

    def _part(self) -> None:
        """Leave the child to whoever waits for its end."""
        child, self.child = self.child, None
        if child is not None:
            self._pool.part_with(child)

    def _dismiss(self) -> None:
        """Let the child end by itself."""
        if self.child is not None:
            self.child.dismiss()
            self._part()

    def _revive(self) -> bool:
        """Start another child; False when that did not work, after a pause."""
        self._pool.buffer.resize(-1)
        try:
            child, self.failure = self._pool.start_child(self)
        finally:
            self._pool.buffer.resize(+1)
        if child is not None:
            self._backoff.reset()
            self.adopt(child)
            return True
        if not self._pool.closing:
            _log.error("a child of this worker can't start, trying again: %s", self.failure)
            self._pool.buffer.resize(-1)
            try:
                self._pause(0.2 + self._backoff.next())
            finally:
                self._pool.buffer.resize(+1)
        return False

    def _pause(self, seconds: float) -> None:
        until = _monotonic() + seconds
        while not self._pool.closing and (left := until - _monotonic()) > 0:
            select.select([self._bell], [], [], left)
            with contextlib.suppress(BlockingIOError):
                os.read(self._bell, 4096)
