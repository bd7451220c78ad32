"""Outages: back-off, reports and the grace that other holders get."""

from __future__ import annotations

from taskmq.clock import SYSTEM_CLOCK, FakeClock
from taskmq.errors import TransportError, TransportUnavailable
from taskmq.transport.memory import MemoryTransport
from taskmq_worker.contact import Backoff, Contact


def contact(grace: float = 60.0, lag: float = 0.5) -> tuple[Contact, list[str]]:
    reports: list[str] = []
    return Contact(grace, lag, lambda what, error: reports.append(f"{what}: {error}")), reports


def test_backoff_is_random_doubles_and_stays_under_its_cap() -> None:
    backoff = Backoff(base=0.1, cap=2.0)
    waits = [backoff.next() for _ in range(200)]
    assert max(waits) <= 2.0
    assert waits[0] <= 0.1
    assert len(set(waits)) > 150
    backoff.reset()
    assert backoff.next() <= 0.1


def test_an_outage_is_reported_once_and_leaves_a_grace_behind() -> None:
    link, reports = contact()
    assert not link.in_grace
    for _ in range(20):
        link.failed("reserve", TransportUnavailable("gone"))
    assert reports == ["reserve: gone"]
    link.worked()
    assert not link.broken
    assert link.in_grace, "holders must be able to settle and extend first"


def test_the_grace_ends() -> None:
    link, _ = contact(grace=0.0)
    link.failed("reserve", TransportUnavailable("gone"))
    link.worked()
    assert not link.in_grace


def test_a_loop_that_overslept_far_means_that_this_process_stood_still() -> None:
    link, _ = contact(lag=0.5)
    link.woke(SYSTEM_CLOCK.monotonic() - 0.1)
    assert not link.in_grace
    link.woke(SYSTEM_CLOCK.monotonic() - 0.6)
    assert link.in_grace


def test_a_clock_that_was_put_forward_gives_holders_time_and_one_put_back_does_not() -> None:
    clock = FakeClock(SYSTEM_CLOCK.time())
    transport = MemoryTransport(clock=clock)
    link, _ = contact(lag=5)
    link.look_at_clock(transport)
    clock.advance(3)
    link.look_at_clock(transport)
    clock.set_time(clock.time() - 3600)
    link.look_at_clock(transport)
    graces = [link.in_grace]
    clock.set_time(clock.time() + 3600)
    link.look_at_clock(transport)
    graces.append(link.in_grace)
    assert graces == [False, True]
    assert link.clock_steps == 1


def test_a_transport_without_a_clock_is_never_in_grace_for_it() -> None:
    class Clockless(MemoryTransport):
        def now(self) -> float:
            raise TransportError("has no clock to ask")

    link, _ = contact()
    link.look_at_clock(Clockless())
    assert not link.in_grace
