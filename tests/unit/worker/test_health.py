"""What a probe is told in each state of a worker."""

from __future__ import annotations

from typing import Any

import pytest

from taskmq.clock import SYSTEM_CLOCK
from taskmq.transport.types import Delivery
from taskmq_worker.buffer import Buffer
from taskmq_worker.contact import Contact
from taskmq_worker.health import BLOCKED_AFTER, DEAF_AFTER, STUCK_AFTER, Health, HealthReport
from taskmq_worker.pools.base import PoolHealth
from taskmq_worker.reservation import Reservation


class Loop:
    def __init__(self) -> None:
        self.turned_at = SYSTEM_CLOCK.monotonic()
        self.answered_at: float | None = self.turned_at
        self.waiting = False


class Pool:
    slots = 2

    def __init__(self) -> None:
        self.told = PoolHealth(alive=2)

    def health(self) -> PoolHealth:
        return self.told


class Rig:
    """A worker's parts in a healthy state; tests break one thing each."""

    def __init__(self) -> None:
        self.state = "running"
        self.failure: BaseException | None = None
        self.buffer = Buffer(2, None, 0.02)
        self.contact = Contact(2.0, 1.0, lambda _what, _error: None)
        self.pool = Pool()
        self.fetcher, self.keeper, self.settler = Loop(), Loop(), Loop()
        parts: dict[str, Any] = {
            name: getattr(self, name)
            for name in ("buffer", "contact", "pool", "fetcher", "keeper", "settler")
        }
        self.health = Health(
            "w",
            state=lambda: self.state,
            failure=lambda: self.failure,
            interval=10.0,
            most_abandoned=3,
            **parts,
        )

    def report(self) -> HealthReport:
        return self.health.report()

    def reserved(self, age: float) -> Reservation:
        delivery = Delivery(
            id="j", task="t", queue="q", priority=0, envelope=b"", receipt="r", lease=60.0
        )
        keeper: Any = None
        reservation = Reservation(delivery, keeper, SYSTEM_CLOCK.monotonic() - age)
        self.buffer.push([reservation])
        return reservation


def verdict(report: HealthReport) -> tuple[bool, bool, bool, bool]:
    return report.alive, report.ready, report.deaf, report.stuck


def test_an_idle_worker_is_alive_and_ready() -> None:
    assert verdict(Rig().report()) == (True, True, False, False)
    assert Rig().report().reasons == ()


def test_with_all_slots_busy_and_jobs_behind_them_it_is_still_well() -> None:
    rig = Rig()
    for _ in range(2):
        rig.reserved(age=3600)
        assert rig.buffer.take(0) is not None
    rig.reserved(age=3600)
    assert verdict(rig.report()) == (True, True, False, False)


def test_before_the_first_answer_it_is_not_ready() -> None:
    rig = Rig()
    rig.fetcher.answered_at = None
    assert verdict(rig.report()) == (True, False, False, False)


def test_without_the_transport_it_is_not_ready_but_needs_no_restart() -> None:
    rig = Rig()
    rig.contact.failed("reserve", OSError("gone"))
    rig.fetcher.answered_at = SYSTEM_CLOCK.monotonic() - 2 * DEAF_AFTER
    report = rig.report()
    assert (report.alive, report.ready, report.deaf) == (True, False, True)
    assert "out of reach" in report.reasons[0]


def test_a_worker_that_hears_nothing_and_sees_no_error_is_deaf_and_needs_a_restart() -> None:
    rig = Rig()
    rig.fetcher.answered_at = SYSTEM_CLOCK.monotonic() - DEAF_AFTER - 1
    assert verdict(rig.report()) == (False, False, True, False)


def test_a_free_slot_that_takes_nothing_is_stuck() -> None:
    rig = Rig()
    rig.reserved(age=STUCK_AFTER + 1)
    report = rig.report()
    assert verdict(report) == (False, False, False, True)
    assert "not started" in report.reasons[0]


@pytest.mark.parametrize("loop", ["keeper", "settler"])
def test_a_loop_that_stands_still_is_stuck(loop: str) -> None:
    rig = Rig()
    getattr(rig, loop).turned_at -= DEAF_AFTER + 60
    rig.settler.waiting = True
    assert rig.report().stuck


def test_an_idle_settler_is_not_stuck() -> None:
    rig = Rig()
    rig.settler.turned_at -= 1_000_000
    assert verdict(rig.report()) == (True, True, False, False)


def test_more_abandoned_threads_than_allowed_are_stuck() -> None:
    rig = Rig()
    rig.pool.told = PoolHealth(alive=2, abandoned=3)
    assert rig.report().alive
    rig.pool.told = PoolHealth(alive=2, abandoned=4)
    report = rig.report()
    assert verdict(report) == (False, False, False, True)
    assert "max_abandoned_threads=3" in report.reasons[0]


def test_a_blocked_loop_is_not_ready_and_only_after_a_minute_not_alive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig()
    now = [SYSTEM_CLOCK.monotonic()]
    monkeypatch.setattr("taskmq_worker.health._monotonic", lambda: now[0])
    rig.pool.told = PoolHealth(alive=1, blocked="the event loop is blocked by task 'x'")
    report = rig.report()
    assert (report.alive, report.ready) == (True, False)
    assert report.reasons == ("the event loop is blocked by task 'x'",)
    now[0] += BLOCKED_AFTER + 1
    rig.fetcher.answered_at = rig.keeper.turned_at = now[0]
    assert verdict(rig.report()) == (False, False, False, True)
    rig.pool.told = PoolHealth(alive=2)
    assert rig.report().ready


def test_a_failed_thread_means_not_alive_and_stopping_means_not_ready() -> None:
    rig = Rig()
    rig.state = "stopping"
    assert verdict(rig.report()) == (True, False, False, False)
    rig.failure = RuntimeError("defect")
    assert not rig.report().alive
