"""The redis transport by a clock that a test moves: its scripts read a key instead of TIME."""

from __future__ import annotations

from hashlib import sha1
from typing import Any

import pytest

from taskmq.clock import FakeClock
from taskmq_redis import connection
from taskmq_redis.scripts import Script, script
from taskmq_redis.settings import RedisSettings
from taskmq_redis.transport import RedisTransport

_TIME = b"call('TIME')"
_MOVED = b"call('HMGET', B .. 'time', 's', 'us')"


class MovedClock(FakeClock):
    """A clock that starts after the real one, so that nothing expires by itself before it is reaped."""

    def __init__(self, admin: Any, key: str | bytes) -> None:
        super().__init__(2_500_000_000.0)
        self._admin, self._key = admin, key
        self._tell()

    def advance(self, seconds: float) -> float:
        """Let time pass, here and for the scripts."""
        now = super().advance(seconds)
        self._tell()
        return now

    def _tell(self) -> None:
        seconds, micros = divmod(round(self.time() * 1_000_000), 1_000_000)
        self._admin.hset(self._key, mapping={"s": seconds, "us": micros})


def _moved_script(name: str, *, flags: bool) -> Script:
    made = script(name, flags=flags)
    assert made.source.count(_TIME) == 1, "the scripts read their time elsewhere now"
    source = made.source.replace(_TIME, _MOVED)
    return Script(source, sha1(source).hexdigest(), made.mode)  # as Redis names it


class MovedRedis(RedisTransport):
    """The transport by such a clock, which the conformance suite then moves instead of waiting."""

    clock: FakeClock

    def duplicate(self) -> MovedRedis:
        """Another handle, by the same clock."""
        other = super().duplicate()
        other.clock = self.clock
        return other

    def now(self) -> float:
        """The time that the scripts read."""
        return self.clock.time()

    @property
    def time_key(self) -> bytes:
        """Where the scripts read the time."""
        return self._base + b"time"


def read_moved_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the scripts of this process read the moved time."""
    monkeypatch.setattr(connection, "script", _moved_script)


def moved(url: str, admin: Any) -> MovedRedis:
    """A transport by a clock of its own, under a prefix that nobody else uses."""
    transport = MovedRedis.from_url(url)
    transport.clock = MovedClock(admin, transport.time_key)
    return transport


def moved_transport(url: str, admin: Any, monkeypatch: Any) -> tuple[RedisTransport, MovedClock]:
    """A transport and its clock; all that is stored under its prefix is its own."""
    monkeypatch.setattr(connection, "script", _moved_script)
    settings = RedisSettings.parse(url)
    return RedisTransport(settings), MovedClock(admin, f"{settings.prefix}time")
