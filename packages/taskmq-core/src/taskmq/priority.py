"""Priorities: integers from -9 to 9, a higher one first."""

from __future__ import annotations

from enum import IntEnum

LOWEST = -9
HIGHEST = 9


class Priority(IntEnum):
    """Names for four of the nineteen levels; any int in -9..9 is accepted where one is."""

    LOW = -5
    NORMAL = 0
    HIGH = 5
    CRITICAL = 9
