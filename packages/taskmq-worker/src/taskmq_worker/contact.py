"""How the worker's loops meet a transport that is away: back off, report, remember the gap."""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING

from taskmq.clock import SYSTEM_CLOCK
from taskmq.errors import TransportError, TransportUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskmq.transport.contract import Transport

_log = logging.getLogger("taskmq.worker")
_monotonic = SYSTEM_CLOCK.monotonic

_REPORT_EVERY = 10.0


class Backoff:
    """Full jitter: a random time up to a bound that doubles, so that a fleet never returns in step."""

    def __init__(self, base: float = 0.1, cap: float = 2.0) -> None:
        self._base = base
        self._cap = cap
        self._failures = 0

    def next(self) -> float:
        """How long to wait after one more failure, seconds."""
        bound = min(self._cap, self._base * 2 ** min(self._failures, 16))
        self._failures += 1
        return random.uniform(0.0, bound)

    def reset(self) -> None:
        """A call has worked."""
        self._failures = 0


class Contact:
    """Whether the transport is in reach, and since when it is again.

    After a gap (an outage, this process was stopped or suspended, or the transport's clock was put
    forward) leases may have run out that their holders still mean to extend or settle. For `grace`
    seconds nobody's lease may be taken back.

    Args:
        grace: Twice the effective heartbeat interval.
        lag: By how much a loop may oversleep before that counts as a gap, seconds.
        report: Told of the first failure of an outage, and of later ones now and then.
        name: What is met, in the log.
    """

    def __init__(
        self,
        grace: float,
        lag: float,
        report: Callable[[str, Exception], None],
        name: str = "the transport",
    ) -> None:
        self.broken = False
        self.on_return: list[Callable[[], None]] = []
        """Called when the transport answers again: whoever backs off may try at once."""
        self._grace = grace
        self._lag = lag
        self._report = report
        self._name = name
        self.clock_steps = 0
        """How often the transport's clock was put forward; all leases must be extended then."""
        self._clock_ahead: float | None = None
        self._gap_until: float | None = None
        self._reported_at: float | None = None
        self._last_error = ""

    def failed(self, what: str, error: Exception) -> None:
        """A call did not reach the transport, or failed there."""
        now = _monotonic()
        self.broken = True
        due = self._reported_at is None or now - self._reported_at >= _REPORT_EVERY
        if due or str(error) != self._last_error:
            self._reported_at = now
            self._last_error = str(error)
            _log.warning("%s failed, trying again: %s", what, error)
            self._report(what, error)

    def worked(self) -> None:
        """A call was answered."""
        if self.broken:
            self.broken = False
            self._reported_at = None
            self._gap_until = _monotonic() + self._grace
            _log.warning("%s answers again", self._name)
            for notify in self.on_return:
                notify()

    def backoff(self) -> Backoff:
        """For what keeps leases: holders must be back well within the grace that others give them."""
        cap = min(2.0, self._grace / 2)
        return Backoff(base=min(0.1, cap), cap=cap)

    def woke(self, planned: float) -> None:
        """A loop that meant to wake at `planned` is awake; far too late means that time was lost."""
        now = _monotonic()
        if now - planned > self._lag:
            self._gap_until = now + self._grace
            _log.warning("this process stood still for %.1f s", now - planned)

    def look_at_clock(self, transport: Transport) -> None:
        """Notice when the clock that judges leases has gone forward without time having passed."""
        try:
            now = transport.now()
        except TransportUnavailable:
            raise
        except TransportError:
            # It has no clock to ask.
            return
        ahead = now - _monotonic()
        before, self._clock_ahead = self._clock_ahead, ahead
        if before is not None and ahead - before > self._lag:
            self._gap_until = _monotonic() + self._grace
            self.clock_steps += 1
            _log.warning("the transport's clock was put forward by %.1f s", ahead - before)

    @property
    def in_grace(self) -> bool:
        """Whether holders must still be given time to extend and settle."""
        return self.broken or (self._gap_until is not None and _monotonic() < self._gap_until)
