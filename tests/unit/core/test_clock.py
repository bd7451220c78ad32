"""The system's clocks and the one that tests move."""

from __future__ import annotations

import time

import pytest

from taskmq.clock import SYSTEM_CLOCK, FakeClock


def test_system_clock_tells_epoch_seconds_and_never_runs_back() -> None:
    before = SYSTEM_CLOCK.monotonic()

    assert abs(SYSTEM_CLOCK.time() - time.time_ns() / 1e9) < 5
    assert SYSTEM_CLOCK.monotonic() >= before


def test_fake_clock_stands_still_until_advanced() -> None:
    clock = FakeClock(100.0)

    assert (clock.time(), clock.monotonic()) == (100.0, 0.0)
    assert clock.time() == 100.0
    assert clock.advance(2.5) == 102.5
    assert (clock.time(), clock.monotonic()) == (102.5, 2.5)


def test_fake_clock_refuses_to_advance_backwards() -> None:
    with pytest.raises(ValueError, match="set_time"):
        FakeClock().advance(-1)


def test_setting_the_wall_clock_back_leaves_the_monotonic_one() -> None:
    clock = FakeClock(100.0)
    clock.advance(5)

    clock.set_time(50.0)

    assert (clock.time(), clock.monotonic()) == (50.0, 5.0)
