"""Maintenance: bounded passes of `reap`, by the one worker that the fleet has elected."""

from __future__ import annotations

import logging
import random
from contextlib import suppress
from threading import Event
from typing import TYPE_CHECKING

from taskmq.clock import SYSTEM_CLOCK
from taskmq.errors import TransportError
from taskmq.transport.types import ReapRequest
from taskmq_worker.contact import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskmq.transport.contract import Transport
    from taskmq.transport.types import Retention
    from taskmq_worker.contact import Contact
    from taskmq_worker.reports import Reports

_log = logging.getLogger("taskmq.worker")
_monotonic = SYSTEM_CLOCK.monotonic

PASS_EVERY = 1.0
RECONCILE_EVERY = 60.0
_SOONEST = 0.02


class Maintenance:
    """Reaps about once a second while elected; without a registry of workers every worker does.

    A pass at the start, at a random moment of the first second, covers a fleet that nobody keeps.
    """

    def __init__(
        self,
        transport: Transport,
        contact: Contact,
        reports: Reports,
        retention: Retention,
        *,
        everyone: bool,
        reconcile: Callable[[], object] | None = None,
    ) -> None:
        self._transport = transport
        self._contact = contact
        self._reports = reports
        self._retention = retention
        self._everyone = everyone
        self._elected = everyone
        self._stopped = False
        self._changed = Event()
        self._reconcile = reconcile
        self._reconcile_at = _monotonic() + RECONCILE_EVERY * random.uniform(0.5, 1.5)

    def elect(self, elected: bool) -> None:
        """What the answer to the last heartbeat said."""
        if elected is not self._elected:
            self._elected = elected
            if elected:
                self._changed.set()

    def close(self) -> None:
        """End the thread after the pass that it may be in."""
        self._stopped = True
        self._changed.set()

    def run(self) -> None:
        """The thread: until `close`."""
        backoff = Backoff()
        self._sleep(random.uniform(0.0, PASS_EVERY))
        self._warn_of_dangers()
        while not self._stopped:
            try:
                delay = self._pass()
            except TransportError as error:
                self._contact.failed("maintenance", error)
                delay = backoff.next()
            else:
                backoff.reset()
                if self._contact.broken:
                    self._contact.worked()
            self._sleep(delay)
            while not self._elected and not self._stopped:
                self._sleep(None)

    def _warn_of_dangers(self) -> None:
        """Once, in the log of every worker: what its people may never have looked at."""
        with suppress(TransportError):
            for each in [] if self._stopped else self._transport.dangers():
                _log.warning("%s: %s; %s", each.subject, each.message, each.advice)

    def _pass(self) -> float:
        """One pass; the time until the next."""
        self._contact.look_at_clock(self._transport)
        request = ReapRequest(retention=self._retention, recover=not self._contact.in_grace)
        report = self._transport.reap(request)
        if report.requeued:
            _log.warning("took back %d deliveries whose leases were over", report.requeued)
        for job in report.ended:
            _log.warning("job %s (%s) ended %s: %s", job.id, job.task, job.state, job.reason)
            if self._reports.enabled:
                self._reports.ended(job)
        if self._reconcile is not None and _monotonic() >= self._reconcile_at:
            self._reconcile_at = _monotonic() + RECONCILE_EVERY * random.uniform(0.8, 1.2)
            self._reconcile()
        if report.more:
            return 0.0
        pause = PASS_EVERY * (
            random.uniform(0.5, 1.5) if self._everyone else random.uniform(0.9, 1.1)
        )
        if report.next_in is None:
            return pause
        soonest = _SOONEST if request.recover else 0.1 * PASS_EVERY
        return min(pause, max(soonest, report.next_in))

    def _sleep(self, seconds: float | None) -> None:
        if self._stopped:
            return
        planned = None if seconds is None else _monotonic() + seconds
        changed = self._changed.wait(seconds)
        self._changed.clear()
        if planned is not None and not changed:
            # Before a pass, not after it: one who was stopped himself must not judge others.
            self._contact.woke(planned)
