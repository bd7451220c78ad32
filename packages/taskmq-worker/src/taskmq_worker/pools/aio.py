"""The pool `asyncio`: coroutines by the hundred on one event loop, sync tasks on threads beside it.

Housekeeping (admission, leases, settlement) stays on the worker's own threads. The loop gets what may
start and hands over outcomes, so a coroutine that blocks it holds up the other coroutines only.
"""

from __future__ import annotations

import concurrent.futures
import logging
from collections import deque
from contextvars import Context
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, ClassVar

from taskmq.clock import SYSTEM_CLOCK
from taskmq.context import current
from taskmq.execution import finish, run_async
from taskmq.states import JobState
from taskmq.transport.types import SettleResult
from taskmq_worker import lifespan
from taskmq_worker.pools.base import Pool, PoolHealth
from taskmq_worker.pools.hands import Hands
from taskmq_worker.pools.loop import BLOCKED_AFTER, LoopThread, LoopWatch
from taskmq_worker.pools.overdue import Overdue, Verdict, timed_out

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from taskmq.execution import Attempt, Outcome
    from taskmq_worker.buffer import Buffer
    from taskmq_worker.reservation import Reservation

_log = logging.getLogger("taskmq.worker")
_monotonic = SYSTEM_CLOCK.monotonic

IGNORED_AFTER = 1.0
"""How long after its hard timeout a cancelled coroutine may take to end, seconds."""
STOP_HOOKS = 10.0
"""How long the stop hooks may take, seconds."""


class Job:
    """One coroutine on the loop. Only the loop's thread changes it."""

    __slots__ = ("asked", "attempt", "reservation", "running", "task", "timers", "verdict")

    def __init__(self, reservation: Reservation, attempt: Attempt) -> None:
        self.reservation = reservation
        self.attempt = attempt
        self.task: asyncio.Task[None] | None = None
        self.running = False
        """Only then it can be cancelled: one cancelled before its first step would never settle."""
        self.asked = False
        """It was cancelled before."""
        self.timers: list[asyncio.TimerHandle] = []
        self.verdict: Verdict | None = None
        """Set when the coroutine has ignored its hard timeout."""


class AsyncioPool(Pool):
    """One loop for the worker's life."""

    name: ClassVar[str] = "asyncio"
    runs_async: ClassVar[bool] = True
    at_hard_timeout: ClassVar[str] = (
        "there a coroutine is cancelled, which it may ignore, and a sync task's thread is abandoned; "
        "only pool='processes' ends a body"
    )

    def __init__(self, slots: int) -> None:
        super().__init__(slots)
        self._jobs: dict[int, Job] = {}
        self._ignoring: set[int] = set()
        self._inbox: deque[Callable[[], None]] = deque()
        self._told = False
        self._finishing: Job | None = None
        self._free: SimpleQueue[None] = SimpleQueue()
        for _ in range(slots):
            self._free.put(None)

    def open(self) -> None:
        """Start the loop and call the start hooks on it."""
        self._thread = LoopThread()
        self._thread.start()
        try:
            self._thread.run(lifespan.start_here(self.around.app))
        except BaseException:
            self._thread.end(1.0)
            raise

    def start(
        self,
        buffer: Buffer,
        work: Callable[[Reservation], None],
        spawn: Callable[[str, Callable[[], None]], None],
    ) -> None:
        """Start the thread that hands reservations to the loop, and the watch over the loop."""
        self.buffer = buffer
        self.work = work
        self._hands = Hands(spawn, "slot", self.slots)
        self._overdue = Overdue(self.around, self._replace, spawn)
        self._watch = LoopWatch(self._thread, lambda: bool(self._jobs), self._report_blocked)
        spawn("slot-dispatcher", self._dispatch)
        spawn("loop-watch", self._watch.run)

    def cancel(self, reservation: Reservation, *, terminate: bool) -> bool:
        """Cancel the coroutine; a sync task only sees its flags."""
        job = self._jobs.get(reservation.place)
        return job is not None and self._thread.tell(self._cancel, job)

    def health(self) -> PoolHealth:
        """Whether the loop is blocked, and how many bodies have ignored their hard timeouts."""
        overdue = self._overdue
        blocked = self._watch.blocked or overdue.complaint
        if blocked is None and self._ignoring:
            blocked = f"{len(self._ignoring)} coroutines ignore that they were cancelled"
        return PoolHealth(self.slots, overdue.abandoned + len(self._ignoring), blocked)

    def close(self) -> None:
        """Take nothing more; what runs goes on, and abandoned bodies end as timed out."""
        super().close()
        self._free.put(None)
        self._overdue.close()
        for job in list(self._jobs.values()):
            if job.verdict is not None:
                job.verdict.settle()
        self._hands.close()

    def end(self) -> None:
        """Call the stop hooks on the loop, and end it."""
        self._watch.close()
        if self.around.app.worker_stop_hooks and self._thread.loop.is_running():
            try:
                self._thread.run(lifespan.stop_here(self.around.app), STOP_HOOKS)
            except concurrent.futures.TimeoutError:
                _log.error("the on_worker_stop hooks did not end within %g s", STOP_HOOKS)
        self._thread.end(3.0)

    # --- the dispatcher's thread ---

    def _dispatch(self) -> None:
        free, take = self._free, self.buffer.take
        while True:
            free.get()
            reservation = None
            while reservation is None:
                if self.closing:
                    return
                reservation = take()
            if not self._goes_elsewhere(reservation):
                self._admit_and_post(reservation)

    def _goes_elsewhere(self, reservation: Reservation) -> bool:
        """Give to a thread what a thread must do: sync tasks, and admissions that wait."""
        task = self.around.app.tasks.get(reservation.delivery.task)
        if task is None or not task.is_async:
            self._hands.run(partial(self._run_sync, reservation))
        elif task.policy.ack == "on_receipt" or reservation.needs_confirmation(_monotonic()):
            # It waits for the transport, which must not hold up the others.
            self._hands.run(partial(self._admit_and_post, reservation))
        else:
            return False
        return True

    def _admit(self, reservation: Reservation) -> Job | None:
        attempt = self.around.slot.admit(reservation)
        if attempt is None:
            return None
        job = self._jobs[reservation.place] = Job(reservation, attempt)
        if self._watch.sleeping:
            self._watch.wake()
        return job

    def _admit_and_post(self, reservation: Reservation) -> None:
        job = self._admit(reservation)
        if job is None:
            self._done(reservation)
        else:
            self._post(partial(self._launch, job))

    def _run_sync(self, reservation: Reservation) -> bool:
        """The body of a sync task, on a thread; False when the thread was abandoned."""
        slot = self.around.slot
        attempt = slot.admit(reservation)
        if attempt is not None:
            limit = attempt.hard_timeout
            if limit is None:
                slot.conclude(reservation, attempt, slot.run(reservation, attempt))
            elif not self._overdue.run(reservation, attempt, limit):
                return False
        self._done(reservation)
        return True

    def _replace(self, reservation: Reservation) -> None:
        self._hands.replace()
        self._done(reservation)

    def _done(self, reservation: Reservation) -> None:
        self.buffer.done(reservation)
        self._free.put(None)

    def _post(self, call: Callable[[], None]) -> None:
        """Have the loop make a call: one wake-up for all that gathers before it looks."""
        self._inbox.append(call)
        if not self._told:
            self._told = True
            self._thread.tell(self._open_inbox)

    # --- the loop's thread ---

    def _open_inbox(self) -> None:
        # Before the look: what comes after it wakes the loop again.
        self._told = False
        inbox = self._inbox
        while inbox:
            inbox.popleft()()

    def _launch(self, job: Job) -> None:
        # In a context of its own: this may be the coroutine of another job, at its end.
        job.task = Context().run(self._thread.loop.create_task, self._run(job))

    async def _run(self, job: Job) -> None:
        try:
            await self._carry_out(job)
        # A defect of the worker must stop it, as on its other threads: nobody awaits this coroutine.
        except BaseException as defect:  # noqa: BLE001
            self._hands.run(partial(_raise, defect))

    async def _carry_out(self, job: Job) -> None:
        reservation, attempt, slot = job.reservation, job.attempt, self.around.slot
        if reservation.lost or reservation.stopping:
            slot.hand_back(reservation)
            self._leave(job)
            return
        job.running = True
        slot.began(reservation)
        self._set_timers(job)
        outcome = await run_async(attempt)
        # Nothing is awaited from here on: a late cancellation finds nothing to interrupt.
        job.running = False
        for timer in job.timers:
            timer.cancel()
        reservation.duration = reservation.started_ago(_monotonic())
        if job.verdict is not None:
            self._returned(job, job.verdict)
            return
        outcome = self._judge_overrun(job, outcome)
        if reservation.given_up:
            self._finish(job, outcome, SettleResult("lost"))
        elif attempt.task.has_end_hooks:
            self.around.settler.submit(
                outcome.settlement,
                reservation,
                # On the settler's thread; the hooks run here, where the body ran.
                lambda result: self._post(partial(self._finish, job, outcome, result)),
            )
        else:
            self.around.settler.submit(outcome.settlement, reservation)
            self._leave(job)

    def _set_timers(self, job: Job) -> None:
        attempt, later = job.attempt, self._thread.loop.call_later
        if (timeout := attempt.timeout) is not None:
            job.timers.append(later(timeout, self._time_out, job))
        if (limit := attempt.hard_timeout) is not None:
            job.timers.append(later(limit, self._end_by_force, job, limit))

    def _judge_overrun(self, job: Job, outcome: Outcome) -> Outcome:
        """What a body brings after its hard timeout does not count, even if the loop heard too late of it."""
        limit, took = job.attempt.hard_timeout, job.reservation.duration
        if limit is None or took is None or took < limit:
            return outcome
        ended = outcome.state in (JobState.REVOKED, JobState.QUEUED)
        if ended or (outcome.error is not None and outcome.error.reason == "timed out"):
            return outcome
        return self.around.slot.judge(job.reservation, job.attempt, timed_out(limit))

    def _cancel(self, job: Job) -> None:
        if job.running and job.task is not None:
            job.asked = True
            job.task.cancel()

    def _time_out(self, job: Job) -> None:
        # A second cancellation would interrupt what cleans up after the first.
        if not job.asked:
            job.reservation.timed_out = True
            self._cancel(job)

    def _end_by_force(self, job: Job, limit: float) -> None:
        job.reservation.timed_out = True
        self._cancel(job)
        job.timers.append(self._thread.loop.call_later(IGNORED_AFTER, self._give_up, job, limit))

    def _give_up(self, job: Job, limit: float) -> None:
        """A coroutine ignores its hard timeout: its slot is free, and this worker unhealthy."""
        reservation = job.reservation
        delivery = reservation.delivery
        job.verdict = Verdict(self.around, reservation, job.attempt, limit)
        self._ignoring.add(reservation.place)
        _log.error(
            "job %s (%s): its coroutine ignores that it was cancelled at its hard timeout of %g s; "
            "this worker is unhealthy until it ends",
            delivery.id,
            delivery.task,
            limit,
        )
        if self.around.reports.enabled:
            self.around.reports.worker("coroutine_abandoned", job=delivery.id, task=delivery.task)
        self._done(reservation)

    def _returned(self, job: Job, verdict: Verdict) -> None:
        """A coroutine that ignored its hard timeout has ended; what it did changes nothing."""
        self._jobs.pop(job.reservation.place, None)
        self._ignoring.discard(job.reservation.place)
        verdict.settle()
        if job.attempt.task.has_end_hooks:

            def wait() -> None:
                verdict.wait()
                self._post(verdict.run_hooks)

            self._hands.run(wait)

    def _finish(self, job: Job, outcome: Outcome, result: SettleResult) -> None:
        self._finishing = job
        try:
            finish(job.attempt, outcome, result)
        finally:
            self._finishing = None
            self._leave(job)

    def _leave(self, job: Job) -> None:
        self._jobs.pop(job.reservation.place, None)
        self.buffer.done(job.reservation)
        self._go_on()

    def _go_on(self) -> None:
        """Start the next reservation on the slot that is free now, without a hop to another thread."""
        while not self.closing:
            reservation = self.buffer.take(0)
            if reservation is None:
                break
            if self._goes_elsewhere(reservation):
                return
            job = self._admit(reservation)
            if job is not None:
                self._launch(job)
                return
            self.buffer.done(reservation)
        self._free.put(None)

    # --- the watch's thread ---

    def _report_blocked(self, stack: str, task: asyncio.Task[Any] | None) -> str:
        job, name = self._culprit(task)
        what = f"job {job} ({name})" if job else "code that belongs to no job"
        _log.warning(
            "%s blocks the event loop for more than %g s: no other coroutine runs. Await, or run it "
            "with asyncio.to_thread, or make it a sync task. It is at\n%s",
            what,
            BLOCKED_AFTER,
            stack,
        )
        if self.around.reports.enabled:
            self.around.reports.worker("loop_blocked", job=job, task=name, stack=stack)
        return f"{what} blocks the event loop"

    def _culprit(self, task: asyncio.Task[Any] | None) -> tuple[str | None, str | None]:
        """The id and task of the job that this loop runs at the moment, as far as that can be known."""
        job = self._finishing
        if job is None and task is not None:
            job = next((each for each in list(self._jobs.values()) if each.task is task), None)
        if job is not None:
            return job.reservation.delivery.id, job.reservation.delivery.task
        # A coroutine that a job has started inherited its context (readable since Python 3.12).
        get_context = getattr(task, "get_context", None)
        context = None if get_context is None else get_context().get(current)
        return (None, None) if context is None else (context.id, context.task.name)


def _raise(defect: BaseException) -> None:
    raise defect
