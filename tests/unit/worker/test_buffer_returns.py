"""The buffer: what pools take ahead of its start, and give back."""

from __future__ import annotations

from typing import Any, cast

from taskmq.clock import SYSTEM_CLOCK
from taskmq.transport.types import Delivery
from taskmq_worker.buffer import Buffer
from taskmq_worker.reservation import Reservation


def reservation(name: str, priority: int = 0) -> Reservation:
    delivery = Delivery(
        id=name, task=name, queue="q", priority=priority, envelope=b"", receipt=name, lease=60.0
    )
    return Reservation(delivery, cast("Any", None), SYSTEM_CLOCK.monotonic())


def ids(reservations: list[Reservation]) -> list[str]:
    return [each.delivery.id for each in reservations]


def test_some_are_taken_in_order_up_to_the_first_that_is_not_wanted() -> None:
    buffer = Buffer(1, 16, 0.02)
    buffer.push([reservation("a"), reservation("urgent", 5), reservation("slow"), reservation("b")])

    taken = buffer.take_some(10, lambda each: each.delivery.id != "slow")

    assert ids(taken) == ["urgent", "a"]
    assert ids(buffer.unstarted()) == ["slow", "b"]
    assert buffer.busy == 2
    found = buffer.take(timeout=0)
    assert found is not None
    assert found.delivery.id == "slow"


def test_no_more_are_taken_than_asked_for() -> None:
    buffer = Buffer(1, 16, 0.02)
    buffer.push([reservation(str(n)) for n in range(5)])

    assert ids(buffer.take_some(2, lambda _: True)) == ["0", "1"]
    assert len(buffer) == 3


def test_what_is_put_back_stands_in_its_old_place() -> None:
    buffer = Buffer(1, 16, 0.02)
    buffer.push([reservation(str(n)) for n in range(3)])
    first, second = buffer.take_some(2, lambda _: True)
    buffer.push([reservation("later")])

    buffer.put_back([second, first])

    assert ids(buffer.unstarted()) == ["0", "1", "2", "later"]
    assert buffer.busy == 0
    found = buffer.take(timeout=0)
    assert found is first


def test_without_slots_everything_is_stale_and_a_slot_that_returns_asks_for_more() -> None:
    buffer = Buffer(1, None, 0.02)
    nudges: list[int] = []
    buffer.on_low = lambda: nudges.append(1)
    buffer.push([reservation("a")])

    buffer.resize(-1)
    assert ids(buffer.stale(-1.0)) == ["a"]
    assert buffer.room() == 0
    assert nudges == []

    buffer.resize(+1)
    assert buffer.stale(-1.0) == []
    assert nudges == [1]
