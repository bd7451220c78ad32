"""Checks of settings: each returns the value it was given, or raises one kind of `ConfigError`."""

from __future__ import annotations

import math
from difflib import get_close_matches
from typing import TYPE_CHECKING

from taskmq.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_SECONDS = 3_155_760_000.0
"""A hundred years: the longest duration, so that no instant overflows in any backend."""


def flag(name: str, value: object) -> bool:
    """True or False, nothing that only behaves like it."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be True or False, not {value!r:.80}")
    return value


def number(name: str, value: object, minimum: float = 0, maximum: float = MAX_SECONDS) -> float:
    """A finite int or float within the bounds."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        hint = "; give seconds as a number" if hasattr(value, "total_seconds") else ""
        raise ConfigError(f"{name} must be a number, not {value!r:.80}{hint}")
    # The comparison also refuses NaN; isfinite alone would overflow on a huge int.
    if not minimum <= value <= maximum or value == math.inf:
        raise ConfigError(f"{name} must be {_between(minimum, maximum)}, not {value!r:.80}")
    return value


def whole(name: str, value: object, minimum: int, maximum: int | None = None) -> int:
    """An int within the bounds."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{name} must be a whole number, not {value!r:.80}")
    if value < minimum or (maximum is not None and value > maximum):
        limit = math.inf if maximum is None else maximum
        raise ConfigError(f"{name} must be {_between(minimum, limit)}, not {value!r:.80}")
    return value


def one_of(name: str, value: object, allowed: Iterable[str]) -> str:
    """One of a few words."""
    words = tuple(allowed)
    if not isinstance(value, str) or value not in words:
        listed = ", ".join(map(repr, words))
        raise ConfigError(f"{name} must be one of {listed}, not {value!r:.80}")
    return value


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint at the nearest known word, or "" when none is near."""
    near = get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else ""


def _between(minimum: float, maximum: float) -> str:
    if maximum == math.inf:
        return f"at least {minimum}"
    if maximum == MAX_SECONDS:
        return f"at least {minimum:g} and at most {MAX_SECONDS:.0f}"
    return f"between {minimum} and {maximum}"
