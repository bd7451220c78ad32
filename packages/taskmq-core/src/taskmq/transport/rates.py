"""Starts at a limited rate, as every backend counts them: pure, by the transport's clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from taskmq.transport.types import RateWish

KEPT = 3600.0
"""How long a rate that nobody asks for is remembered, seconds; a longer interval counts in full."""


class RateState(msgspec.Struct):
    """What is kept of one rate.

    Attributes:
        free_at: When the next start fits the rate: the only thing that limits starts.
        promised_until: When the next turn can be promised: turns are an interval apart, so that what
            is told to come back comes back one by one.
    """

    free_at: float = 0.0
    promised_until: float = 0.0

    def is_over(self, now: float) -> bool:
        """Whether forgetting it changes nothing."""
        return max(self.free_at, self.promised_until) + KEPT <= now


def take(state: RateState, wish: RateWish, now: float) -> float:
    """Start now (0.0, and count it), or the seconds until the turn that is promised instead."""
    had_turn = 0.0 < wish.due <= now + wish.tolerance
    if had_turn:
        # Timers are not exact: what had this turn may come a little before the one in front of it.
        may_start = state.free_at - now <= wish.tolerance
    else:
        may_start = max(state.free_at, state.promised_until) <= now
    if may_start:
        state.free_at = max(now, state.free_at) + wish.interval
        state.promised_until = max(state.promised_until, state.free_at)
        return 0.0
    turn = max(now, state.free_at, state.promised_until)
    state.promised_until = turn + wish.interval
    return max(turn - now, 0.001)
