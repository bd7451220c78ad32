"""Hard timeouts of bodies that run on threads: a thread can't be ended, so its slot gets another.

A thread whose body is overdue is *abandoned*: it counts against `max_abandoned_threads`, and what its
body returns later changes nothing. The attempt ends as timed out: at once when no retry is left,
else when the thread has returned or the worker ends, so that two bodies of one job never overlap
by our doing. Until then the lease is extended and a concurrency key stays taken.

Jobs without a hard timeout never come here.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Literal

from taskmq.clock import SYSTEM_CLOCK
from taskmq.errors import AttemptLost
from taskmq.execution import finish
from taskmq.states import JobState
from taskmq_worker.settler import Confirmation

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskmq.execution import Attempt, Outcome
    from taskmq.transport.types import SettleResult
    from taskmq_worker.pools.base import Surroundings
    from taskmq_worker.reservation import Reservation

_log = logging.getLogger("taskmq.worker")
_monotonic = SYSTEM_CLOCK.monotonic


def timed_out(limit: float) -> AttemptLost:
    """What an attempt fails with whose hard timeout was over."""
    return AttemptLost(f"its hard timeout of {limit:g} s was over", reason="timed out")


class Verdict:
    """The end of an attempt that did not end by itself, settled once: now or later, by whoever is first."""

    def __init__(
        self, around: Surroundings, reservation: Reservation, attempt: Attempt, limit: float
    ) -> None:
        self._around = around
        self._reservation = reservation
        self._attempt = attempt
        self._lock = threading.Lock()
        self._settled = False
        self._confirmation = Confirmation()
        self._outcome: Outcome = around.slot.judge(reservation, attempt, timed_out(limit))
        if self._outcome.state is JobState.FAILED:
            self.settle()

    def settle(self) -> None:
        """Tell the transport, unless that was done."""
        with self._lock:
            if self._settled:
                return
            self._settled = True
        self._around.settler.submit(self._outcome.settlement, self._reservation, self._confirmation)

    def wait(self) -> SettleResult:
        """The transport's answer, once it is there."""
        return self._confirmation.wait()

    def run_hooks(self) -> None:
        """Run the hooks that follow, on the thread (and in the context) of the body."""
        if self._attempt.task.has_end_hooks:
            finish(self._attempt, self._outcome, self._confirmation.wait())


class Body:
    """One body with a hard timeout, on its thread."""

    __slots__ = (
        "attempt",
        "decided",
        "due_at",
        "limit",
        "phase",
        "reservation",
        "thread",
        "verdict",
    )

    def __init__(self, reservation: Reservation, attempt: Attempt, limit: float) -> None:
        self.reservation = reservation
        self.attempt = attempt
        self.limit = limit
        self.due_at = _monotonic() + limit
        self.phase: Literal["body", "hooks"] = "body"
        self.thread = threading.current_thread()
        self.decided = threading.Event()
        self.verdict: Verdict | None = None


class Overdue:
    """Watches the bodies with a hard timeout.

    Args:
        around: The worker.
        replace: Told of a reservation whose slot must be served by another thread now.
        spawn: Starts a thread of the worker.
    """

    def __init__(
        self,
        around: Surroundings,
        replace: Callable[[Reservation], None],
        spawn: Callable[[str, Callable[[], None]], None],
    ) -> None:
        self._around = around
        self._replace = replace
        self._spawn = spawn
        self._most = around.config.max_abandoned_threads
        self._lock = threading.Lock()
        self._bodies: set[Body] = set()
        self._abandoned: set[Body] = set()
        self._wake_at = float("inf")
        self._nudged = threading.Event()
        self._watching = False
        self._closing = False

    @property
    def abandoned(self) -> int:
        """How many threads are stuck in bodies whose time was over."""
        return len(self._abandoned)

    @property
    def complaint(self) -> str | None:
        """What is wrong when there are too many of them."""
        count = len(self._abandoned)
        if count <= self._most:
            return None
        return (
            f"{count} threads are stuck in bodies whose hard timeout was over "
            f"(max_abandoned_threads={self._most})"
        )

    def run(self, reservation: Reservation, attempt: Attempt, limit: float) -> bool:
        """Run a body to its end on this thread; False when this thread has been replaced meanwhile."""
        slot = self._around.slot
        body = Body(reservation, attempt, limit)
        self._watch(body)
        outcome = slot.run(reservation, attempt)
        if not self._step(body, "hooks" if attempt.task.has_end_hooks else None):
            self._returned(body)
            return False
        slot.conclude(reservation, attempt, outcome)
        if attempt.task.has_end_hooks and not self._step(body, None):
            self._returned(body)
            return False
        return True

    def close(self) -> None:
        """The worker ends: what waited for its thread's return is settled now."""
        with self._lock:
            self._closing = True
            abandoned = list(self._abandoned)
        self._nudged.set()
        for body in abandoned:
            if body.decided.wait(1.0) and body.verdict is not None:
                body.verdict.settle()

    # --- the body's thread ---

    def _watch(self, body: Body) -> None:
        with self._lock:
            self._bodies.add(body)
            start = not self._watching
            self._watching = True
        if start:
            self._spawn("hard-timeouts", self._serve)
        elif body.due_at < self._wake_at:
            self._nudged.set()

    def _step(self, body: Body, phase: Literal["hooks"] | None) -> bool:
        """The body's thread got this far; False when it has been abandoned before."""
        with self._lock:
            if body not in self._bodies:
                return False
            if phase is None:
                self._bodies.discard(body)
            else:
                body.phase = phase
            return True

    def _returned(self, body: Body) -> None:
        """An abandoned thread is back: what it brings is dropped, and it may end."""
        body.decided.wait()
        with self._lock:
            self._abandoned.discard(body)
        verdict = body.verdict
        _log.warning(
            "job %s (%s): its abandoned thread has returned%s",
            body.reservation.delivery.id,
            body.reservation.delivery.task,
            "; what it did changes nothing" if verdict is not None else "",
        )
        if verdict is not None:
            verdict.settle()
            verdict.run_hooks()

    # --- the watching thread ---

    def _serve(self) -> None:
        while not self._closing:
            now = _monotonic()
            with self._lock:
                due = [body for body in self._bodies if body.due_at <= now]
                self._bodies.difference_update(due)
                self._abandoned.update(due)
                self._wake_at = min((body.due_at for body in self._bodies), default=float("inf"))
            for body in due:
                self._abandon(body)
            wait = self._wake_at - _monotonic()
            self._nudged.wait(None if wait == float("inf") else max(0.0, wait))
            self._nudged.clear()

    def _abandon(self, body: Body) -> None:
        reservation = body.reservation
        delivery = reservation.delivery
        count = len(self._abandoned)
        body.thread.name = f"taskmq-abandoned-{delivery.id}"
        _log.error(
            "job %s (%s): its hard timeout of %g s is over, and its thread goes on; "
            "its slot has a new one (%d threads abandoned)",
            delivery.id,
            delivery.task,
            body.limit,
            count,
        )
        if self._around.reports.enabled:
            self._around.reports.worker(
                "thread_abandoned", job=delivery.id, task=delivery.task, abandoned=count
            )
        if count == self._most + 1:
            _log.error("this worker is unhealthy: %s", self.complaint)
        try:
            # With hooks the settlement is on its way already.
            if body.phase == "body":
                body.verdict = Verdict(self._around, reservation, body.attempt, body.limit)
        finally:
            body.decided.set()
        self._replace(reservation)
