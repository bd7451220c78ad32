"""What a slot does with one reservation: may it start, run it, say what became of it, run the hooks."""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING

from msgspec.structs import replace

from taskmq.clock import SYSTEM_CLOCK
from taskmq.decision import after_failure, revoked
from taskmq.errors import TransportError
from taskmq.execution import Unrunnable, finish, prepare, run
from taskmq.meta import decode_meta, encode_meta
from taskmq.states import JobState
from taskmq.transport.types import Ack, Bury, Defer, ErrorInfo, Release, SettleResult, Yield
from taskmq_worker.contact import Backoff
from taskmq_worker.settler import expired

if TYPE_CHECKING:
    from taskmq import App
    from taskmq.errors import AttemptLost
    from taskmq.execution import Attempt, Outcome
    from taskmq_worker.contact import Contact
    from taskmq_worker.keeper import Keeper
    from taskmq_worker.limits import Limits
    from taskmq_worker.reports import Reports
    from taskmq_worker.reservation import Reservation
    from taskmq_worker.settler import Settler

_log = logging.getLogger("taskmq.worker")
_monotonic = SYSTEM_CLOCK.monotonic

_UNKNOWN_SINCE = "unknown_task_since"
_UNKNOWN_LONGEST = 30.0


class Slot:
    """Runs reservations, on whatever thread a pool gives it. One object serves all slots."""

    def __init__(
        self,
        app: App,
        worker: str,
        settler: Settler,
        keeper: Keeper,
        contact: Contact,
        reports: Reports,
        limits: Limits,
    ) -> None:
        self._app = app
        self._worker = worker
        self._settler = settler
        self._keeper = keeper
        self._contact = contact
        self._reports = reports
        self._limits = limits
        self.stopping = False

    def work(self, reservation: Reservation) -> None:
        """Take one reservation to its settlement; raises only for a defect of the worker."""
        attempt = self.admit(reservation)
        if attempt is not None:
            self.conclude(reservation, attempt, self.run(reservation, attempt))

    def run(self, reservation: Reservation, attempt: Attempt) -> Outcome:
        """Run the body of what was admitted, on this thread."""
        self.began(reservation)
        outcome = run(attempt)
        reservation.duration = reservation.started_ago(_monotonic())
        return outcome

    def conclude(self, reservation: Reservation, attempt: Attempt, outcome: Outcome) -> None:
        """Settle the outcome of a body, and run the hooks that follow."""
        if reservation.given_up:
            finish(attempt, outcome, SettleResult("lost"))
            return
        # Only a task with end hooks waits: they run once the settlement is confirmed.
        if attempt.task.has_end_hooks:
            finish(attempt, outcome, self._settler.settle(outcome.settlement, reservation))
        else:
            self._settler.submit(outcome.settlement, reservation)

    # --- before the start ---

    def admit(self, reservation: Reservation) -> Attempt | None:
        """Decide whether it starts; if not, it has been settled otherwise (or is lost)."""
        now = _monotonic()
        delivery = reservation.delivery
        if reservation.needs_confirmation(now) and not self._confirm(reservation):
            return None
        if reservation.cancelled and delivery.outcome is None:
            self._settler.submit(revoked(delivery).settlement, reservation)
            return None
        if self._has_expired(reservation, now):
            self._settler.submit(expired(delivery), reservation)
            return None
        attempt = prepare(self._app, delivery, worker=self._worker, control=reservation)
        if isinstance(attempt, Unrunnable):
            self._turn_away(reservation, attempt)
            return None
        if self._limits.active and delivery.outcome is None:
            delay = self._limits.delay_for(attempt.task, delivery.id)
            if delay > 0:
                self._settler.submit(
                    Defer(receipt=delivery.receipt, delay=delay, reason="rate limit"), reservation
                )
                return None
        if self._limits.gate.is_stale(reservation, now) and not self._ask_again(reservation):
            return None
        reservation.ack = attempt.ack
        if (early := attempt.receipt_ack) is not None:
            # Only a confirmed acknowledgement starts the work.
            answer = self._settler.settle(early, reservation)
            if answer.status not in ("ok", "already"):
                return None
        return attempt

    def _ask_again(self, reservation: Reservation) -> bool:
        """Ask for a start that was granted too long ago; False when it must wait after all."""
        try:
            waiting = self._limits.gate.ask(self._app.transport, [reservation])
        except TransportError as error:
            self._contact.failed("asking for a rate's turn", error)
            self._settler.submit(Release(receipt=reservation.delivery.receipt), reservation)
            return False
        for _, deferral in waiting:
            self._settler.submit(deferral, reservation)
        return not waiting

    def _has_expired(self, reservation: Reservation, now: float) -> bool:
        """Past `expires_at`, counted on from the transport's clock at the reservation."""
        delivery = reservation.delivery
        if delivery.expires_at is None or delivery.outcome is not None:
            return False
        left = delivery.expires_at - delivery.reserved_at
        return now - reservation.received_at >= left

    def _confirm(self, reservation: Reservation) -> bool:
        """Extend before the start, whose answer decides."""
        delivery = reservation.delivery
        backoff = Backoff()
        while True:
            try:
                head = self._keeper.confirm(reservation)
                break
            except TransportError as error:
                # Out of reach: it can't be known whether the delivery is still ours, so it waits.
                self._contact.failed("confirming a lease", error)
                if self.stopping or not self._keeper.pause(backoff.next()):
                    self._settler.submit(Release(receipt=delivery.receipt), reservation)
                    return False
        if reservation.lost:
            self._settler.forget(reservation)
            return False
        if reservation.expired:
            self._settler.submit(expired(delivery), reservation)
            return False
        config = self._app.config
        if (
            head is not None
            and head >= delivery.priority + config.yield_min_delta
            and not reservation.keep
        ):
            delay = config.yield_delay * random.uniform(0.5, 1.5)
            result = self._settler.settle(Yield(receipt=delivery.receipt, delay=delay), reservation)
            return result.status == "refused"
        return True

    def _turn_away(self, reservation: Reservation, verdict: Unrunnable) -> None:
        if verdict.reason != "unknown task":
            self._settler.submit(verdict.settlement, reservation)
            return
        delivery = reservation.delivery
        known = decode_meta(delivery.meta)
        since = known.get(_UNKNOWN_SINCE)
        if not isinstance(since, float):
            # Counted from the first worker that did not know it: a job that was delayed for a day
            # is not given up at the first look of a deployment under way.
            since = delivery.reserved_at
            known[_UNKNOWN_SINCE] = since
        age = delivery.reserved_at - since
        if age >= self._app.config.unknown_task_ttl:
            self._settler.submit(
                Bury(
                    receipt=delivery.receipt,
                    error=ErrorInfo(
                        type="UnknownTask",
                        message=f"no worker knew the task {delivery.task!r} for {age:.0f} s",
                        reason="unknown task",
                    ),
                ),
                reservation,
            )
            return
        # Whoever is quicker gets it next time. Short steps at first, so that during a deployment even one
        # of two workers that knows the task has it after a few seconds; scattered, so that what was
        # deferred together does not fail together again.
        delay = min(_UNKNOWN_LONGEST, max(0.5, age / 5)) * random.uniform(0.4, 1.2)
        self._limits.warn_unknown(delivery.task)
        self._settler.submit(
            Defer(
                receipt=delivery.receipt,
                delay=min(delay, max(0.05, self._app.config.unknown_task_ttl - age)),
                reason="unknown task",
                meta=encode_meta(known),
            ),
            reservation,
        )

    # --- for pools whose bodies run elsewhere ---

    def began(self, reservation: Reservation) -> None:
        """The body of an admitted reservation starts now."""
        reservation.started_at = _monotonic()
        if self._reports.enabled:
            self._reports.started(reservation.delivery)

    def ended(self, reservation: Reservation, attempt: Attempt, error: AttemptLost) -> None:
        """The body was ended from outside: the policy decides what follows, no hook runs."""
        self._settler.submit(self.judge(reservation, attempt, error).settlement, reservation)

    def judge(self, reservation: Reservation, attempt: Attempt, error: AttemptLost) -> Outcome:
        """What follows by the policy when a body does not end by itself."""
        outcome = after_failure(attempt, error)
        reservation.duration = reservation.started_ago(_monotonic())
        settlement = replace(outcome.settlement, started_ago=reservation.duration)
        return replace(outcome, settlement=settlement)

    def hand_back(self, reservation: Reservation) -> None:
        """A started body has ended, or is left alone, because the worker stops: start it elsewhere."""
        self._settler.submit(_handed_back(reservation), reservation)


def _handed_back(reservation: Reservation) -> Release | Bury | Ack:
    """What to say of a body that did not end in time: start it elsewhere, if its ack mode allows."""
    receipt = reservation.delivery.receipt
    started_ago = reservation.started_ago(_monotonic())
    if reservation.ack == "on_success":
        return Release(receipt=receipt, counted=True, started_ago=started_ago)
    error = ErrorInfo(reason="worker lost", message="the worker stopped before the job ended")
    if reservation.ack == "on_receipt":
        return Ack(receipt=receipt, state=JobState.FAILED, error=error, started_ago=started_ago)
    return Bury(receipt=receipt, error=error, started_ago=started_ago)
