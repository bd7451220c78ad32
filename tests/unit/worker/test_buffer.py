"""The buffer: order, how far ahead it reaches, and what comes out again."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest

from support.waiting import wait_until
from taskmq.clock import SYSTEM_CLOCK
from taskmq.transport.types import Delivery
from taskmq_worker.buffer import MOST_AHEAD, Buffer, Pace
from taskmq_worker.reservation import Reservation


def reservation(
    name: str = "a", priority: int = 0, age: float = 0.0, lease: float = 60.0
) -> Reservation:
    delivery = Delivery(
        id=name, task="t", queue="q", priority=priority, envelope=b"", receipt=name, lease=lease
    )
    return Reservation(delivery, cast("Any", None), SYSTEM_CLOCK.monotonic() - age)


def ids(reservations: list[Reservation]) -> list[str]:
    return [r.delivery.id for r in reservations]


def take(buffer: Buffer) -> Reservation:
    found = buffer.take(timeout=0)
    assert found is not None
    return found


def test_the_most_urgent_starts_first_and_equals_keep_their_order() -> None:
    buffer = Buffer(1, 16, 0.02)
    buffer.push([reservation("low-1", -5), reservation("low-2", -5)])
    buffer.push([reservation("high", 9), reservation("normal", 0), reservation("low-3", -5)])

    started = [take(buffer).delivery.id for _ in range(5)]

    assert started == ["high", "normal", "low-1", "low-2", "low-3"]
    assert buffer.take(timeout=0) is None


def test_what_was_removed_is_never_started() -> None:
    buffer = Buffer(1, 16, 0.02)
    first, second = reservation("a"), reservation("b")
    buffer.push([first, second])

    assert ids(buffer.remove([first])) == ["a"]
    assert buffer.remove([first]) == []

    assert buffer.take(timeout=0) is second or buffer.take(timeout=0) is second
    assert buffer.remove([second]) == [], "a slot was faster"


def test_room_is_free_slots_plus_what_is_welcome_ahead() -> None:
    buffer = Buffer(2, 4, 0.02)
    assert buffer.room() == 6

    buffer.push([reservation(str(n)) for n in range(6)])
    assert buffer.room() == 0

    running = [take(buffer), take(buffer)]
    assert len(buffer) == 4
    assert buffer.room() == 0, "four are welcome ahead, and four are here"

    buffer.done(running[0])
    assert buffer.room() == 0, "half of what is welcome is enough for the free slot"
    take(buffer)
    buffer.done(running[1])
    take(buffer)
    assert buffer.room() == 2


def test_nothing_is_taken_ahead_while_it_is_unknown_how_long_jobs_take() -> None:
    buffer = Buffer(3, None, 0.02)
    assert buffer.room() == 3
    buffer.push([reservation(str(n)) for n in range(3)])
    for _ in range(3):
        take(buffer)
    assert buffer.room() == 0


class Timeline:
    """A pace fed by hand: so many starts within so much time."""

    def __init__(self, window: float = 0.02) -> None:
        self.pace = Pace(window)
        self.starts = 0
        self.now = SYSTEM_CLOCK.monotonic()
        self.pace.look(0, busy=False, now=self.now + 1)
        self.now += 1

    def pass_by(self, seconds: float, starts: int, *, busy: bool = True) -> int:
        self.starts += starts
        self.now += seconds
        self.pace.look(self.starts, busy=busy, now=self.now)
        return self.pace.ahead()


def test_quick_jobs_are_taken_ahead_as_many_as_start_within_the_window() -> None:
    line = Timeline()
    assert [line.pass_by(0.02, 80) for _ in range(10)][-1] == pytest.approx(80, abs=1)
    assert [line.pass_by(0.02, 10_000) for _ in range(10)][-1] == MOST_AHEAD


def test_long_jobs_are_not_taken_ahead() -> None:
    line = Timeline()
    assert [line.pass_by(0.5, 1) for _ in range(20)] == [0] * 20


def test_bad_news_about_the_pace_is_believed_at_once() -> None:
    line = Timeline()
    for _ in range(10):
        line.pass_by(0.02, 200)
    assert line.pass_by(0.1, 1) == 0


def test_an_idle_worker_does_not_forget_its_pace() -> None:
    line = Timeline()
    before = [line.pass_by(0.02, 200) for _ in range(10)][-1]
    assert line.pass_by(10.0, 0, busy=False) == before


def test_one_hiccup_does_not_empty_the_buffer() -> None:
    line = Timeline()
    before = [line.pass_by(0.02, 200) for _ in range(10)][-1]
    assert line.pass_by(0.02, 100) > before / 2


def test_unstarted_reservations_are_stale_only_while_every_slot_is_taken() -> None:
    buffer = Buffer(1, None, 0.02)
    buffer.push([reservation("run"), reservation("old", age=1), reservation("new")])
    assert buffer.stale(0.1) == []
    take(buffer)
    assert ids(buffer.stale(0.1)) == ["old"]


def test_the_lowest_priority_does_not_count_what_could_not_be_yielded() -> None:
    buffer = Buffer(1, 16, 0.02)
    assert buffer.lowest() is None
    stubborn = reservation("kept", -9)
    stubborn.keep = True
    buffer.push([stubborn, reservation("low", -3), reservation("high", 4)])
    assert buffer.lowest() == -3
    buffer.remove([r for r in buffer.unstarted() if r.delivery.id == "low"])
    assert buffer.lowest() == 4


def test_a_freed_slot_nudges_only_when_little_is_left() -> None:
    nudges: list[int] = []
    buffer = Buffer(1, 4, 0.02)
    buffer.on_low = lambda: nudges.append(len(buffer))
    buffer.push([reservation(str(n)) for n in range(5)])
    buffer.room()
    for _ in range(5):
        buffer.done(take(buffer))
    assert nudges == [2, 1, 0]


def test_many_threads_take_each_reservation_once() -> None:
    buffer = Buffer(8, 1000, 0.02)
    seen: list[str] = []

    def slot() -> None:
        while (found := buffer.take()) is not None:
            seen.append(found.delivery.id)
            buffer.done(found)

    threads = [threading.Thread(target=slot) for _ in range(8)]
    for thread in threads:
        thread.start()
    for batch in range(20):
        buffer.push([reservation(f"{batch}-{n}", n % 5) for n in range(50)])
    wait_until(lambda: len(seen) == 1000)
    buffer.poke(8)
    for thread in threads:
        thread.join(5)
    assert len(set(seen)) == 1000
    assert buffer.busy == 0
    assert len(buffer) == 0


def test_a_delivery_is_confirmed_before_a_late_start() -> None:
    now = SYSTEM_CLOCK.monotonic()
    assert not reservation(lease=60).needs_confirmation(now + 0.9)
    assert reservation(lease=60).needs_confirmation(now + 1.1)
    assert not reservation(lease=0.9).needs_confirmation(now + 0.5)
    assert reservation(lease=0.9).needs_confirmation(now + 0.65), "less than a third is left"


def test_what_is_looked_at_while_others_are_removed_is_not_forgotten() -> None:
    """`take_some` holds an entry in its hand while `remove` copies the heap and puts the copy back."""
    buffer = Buffer(1, 1000, 0.02)
    in_hand, copied = threading.Event(), threading.Event()

    class Waiting(dict[int, Reservation]):
        def __contains__(self, place: object) -> bool:
            if threading.current_thread() is not looker and not copied.is_set():
                # `remove` asks this for each entry of its copy. Waiting is in vain where it is right.
                copied.set()
                looker.join(0.2)
            return super().__contains__(place)

    def wanted(_: Reservation) -> bool:
        in_hand.set()
        return not copied.wait(10)

    looker = threading.Thread(target=lambda: buffer.take_some(1, wanted))
    buffer.push([reservation("first", 5)])
    others = [reservation(str(n)) for n in range(80)]
    buffer.push(others)
    buffer._waiting = Waiting(buffer._waiting)
    looker.start()
    assert in_hand.wait(10)
    buffer.remove(others[:-1])
    looker.join(10)
    assert [take(buffer).delivery.id for _ in range(2)] == ["first", "79"]
