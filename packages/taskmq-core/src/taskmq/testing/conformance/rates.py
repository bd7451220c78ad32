"""Rates across the cluster: starts are counted once, whoever asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskmq.testing.conformance.scenario import check, equal, near, scenario
from taskmq.transport.types import RateWish

if TYPE_CHECKING:
    from taskmq.testing.conformance.rig import Rig


def wish(rig: Rig, *, name: str = "rate", due: float = 0.0) -> RateWish:
    """One start each moment."""
    return RateWish(name=name, interval=rig.moment, due=due, tolerance=rig.moment / 4)


@scenario("R13.1", "rates")
def rate_promises_one_turn_each(rig: Rig) -> None:
    """The first starts at once; the others are told turns one interval apart, also through one call."""
    answers = rig.transport.take_tokens([wish(rig) for _ in range(4)])
    equal(answers[0], 0.0, "the first answer")
    for number, delay in enumerate(answers[1:], 1):
        near(delay, number * rig.moment, f"turn {number}", within=rig.moment / 2)


@scenario("R13.2", "rates")
def rates_do_not_touch_each_other(rig: Rig) -> None:
    """Each name has a rate of its own; a call without wishes answers nothing."""
    names = ["a", "b", "a:b", "ü {x}"]
    answers = rig.transport.take_tokens([wish(rig, name=name) for name in names])
    equal(answers, [0.0] * len(names), "answers")
    equal(rig.transport.take_tokens([]), [], "answers to nothing")


@scenario("R13.3", "rates")
def promised_turn_may_start(rig: Rig) -> None:
    """What comes back at its promised turn starts, while what comes without a turn is told a later one."""
    transport = rig.transport
    transport.take_tokens([wish(rig)])
    due = transport.now() + transport.take_tokens([wish(rig)])[0]
    early = transport.take_tokens([wish(rig)])[0]
    near(early, 2 * rig.moment, "the turn behind the promised one", within=rig.moment / 2)
    rig.elapse(rig.moment)
    without, promised = transport.take_tokens([wish(rig), wish(rig, due=due)])
    check(without > rig.moment, "something without a turn overtook a promised one")
    equal(promised, 0.0, "the answer at the promised turn")


@scenario("R13.4", "rates")
def late_turns_do_not_come_together(rig: Rig) -> None:
    """Turns that are taken late start no faster than the rate: nothing is saved up."""
    transport = rig.transport
    begun = transport.now()
    answers = transport.take_tokens([wish(rig) for _ in range(5)])
    rig.elapse(rig.moment * 10)
    late = [wish(rig, due=begun + delay) for delay in answers[1:]]
    started = [delay for delay in transport.take_tokens(late) if delay == 0.0]
    equal(len(started), 1, "late turns that start together")


@scenario("R13.5", "rates")
def unused_rate_saves_nothing_up(rig: Rig) -> None:
    """After a long rest, and after maintenance, one starts and not many."""
    rig.transport.take_tokens([wish(rig)])
    rig.elapse(rig.moment * 20)
    rig.reap()
    answers = rig.transport.take_tokens([wish(rig) for _ in range(3)])
    equal([delay == 0.0 for delay in answers], [True, False, False], "which of three may start")


@scenario("R13.6", "rates")
def rate_holds_among_workers_at_once(rig: Rig) -> None:
    """Workers that ask at the same instant, through handles of their own, get one start in all."""
    for turn in range(8):
        handles = [rig.duplicate() for _ in range(4)]
        wishes = [wish(rig, name=f"race-{turn}")] * 3
        answers = rig.together(*[lambda h=each: h.take_tokens(wishes) for each in handles])
        delays = sorted(delay for answer in answers for delay in answer)
        equal(delays.count(0.0), 1, "starts")
        near(delays[-1], 11 * rig.moment, "the last of twelve turns", within=2 * rig.moment)
