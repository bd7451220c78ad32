"""Job ids (ULIDs, sortable by time of creation) and unguessable tokens."""

from __future__ import annotations

import os
import secrets
import threading
from itertools import product

from taskmq.clock import SYSTEM_CLOCK

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = tuple(a + b for a, b in product(_ALPHABET, repeat=2))
_LAST = len(_PAIRS) - 1


def _encode(number: int, pairs: int) -> str:
    return "".join(_PAIRS[number >> shift & 0x3FF] for shift in range(10 * (pairs - 1), -1, -10))


class _Generator:
    """Makes ULIDs that rise strictly, also when the clock stands still or goes back.

    Most ids cost one addition: the last 10 of the 80 random bits count up, and only when they are
    used up, or a new millisecond begins, the 24 letters before them are made anew. The upper 70 bits
    are drawn once a millisecond, with the highest one 0, so that counting them up can't overflow.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ms = -1
        self._upper = 0
        self._count = _LAST
        self._prefix = ""

    def __call__(self) -> str:
        ms = int(SYSTEM_CLOCK.time() * 1000)
        with self._lock:
            if ms > self._ms or self._count == _LAST:
                self._renew(ms)
            self._count = count = self._count + 1
            return self._prefix + _PAIRS[count]

    def _renew(self, ms: int) -> None:
        if ms > self._ms:
            self._ms = ms
            self._upper = int.from_bytes(os.urandom(9), "big") >> 3
        else:
            self._upper += 1
        self._count = -1
        self._prefix = _encode(self._ms, 5) + _encode(self._upper, 7)

    def reset(self) -> None:
        """Forget what a forked child shares with its parent, the lock that may be held included."""
        self._lock = threading.Lock()
        self._ms = -1


_generator = _Generator()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_generator.reset)


def new_id() -> str:
    """Make a job id: 26 characters, greater than every id this process made before."""
    return _generator()


def new_token() -> str:
    """Make an unguessable text of 22 characters, safe in URLs and free of dots."""
    return secrets.token_urlsafe(16)
