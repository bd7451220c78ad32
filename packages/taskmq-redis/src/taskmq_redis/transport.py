"""The transport `redis://`: its roles put together."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from taskmq.transport.contract import Transport
from taskmq_redis.connection import Server
from taskmq_redis.dead import DeadLetters
from taskmq_redis.doctor import dangers, findings
from taskmq_redis.jobs import Jobs
from taskmq_redis.maintenance import Maintaining
from taskmq_redis.messages import Enqueuing
from taskmq_redis.registry import Leases, Rates, Workers
from taskmq_redis.reserve import Reserving
from taskmq_redis.settings import RedisSettings
from taskmq_redis.settle import Settling
from taskmq_redis.waiting import Waiting

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Self

    from taskmq.transport.types import Finding


class RedisTransport(
    Enqueuing,
    Reserving,
    Settling,
    Maintaining,
    DeadLetters,
    Jobs,
    Leases,
    Rates,
    Waiting,  # before Workers: it adds to what deregistering does
    Workers,
    Transport,
):
    """Jobs in a Redis server, shared by any number of processes and machines.

    Args:
        settings: Where the server is, as `RedisSettings.parse` reads it from a URL.
        timeout: How long a call may wait for the server before `TransportUnavailable`, seconds.
    """

    supports_rates: ClassVar[bool] = True

    def __init__(self, settings: RedisSettings, *, timeout: float = 5.0) -> None:
        self._settings = settings
        self._server = Server(settings, timeout)
        self._base = self._server.base
        self._queues = {}
        self._start_waiting()

    @classmethod
    def from_url(cls, url: str, *, timeout: float = 5.0) -> Self:
        """Read a URL; see docs/how-to/redis.md for its options."""
        return cls(RedisSettings.parse(url), timeout=timeout)

    def duplicate(self) -> Self:
        """Another handle with connections of its own."""
        return type(self)(self._settings, timeout=self._server.timeout)

    def describe(self) -> Mapping[str, str]:
        """The server, the prefix, and where the scripts run."""
        return {
            "url": self._settings.url,
            "prefix": self._settings.prefix,
            "lua": self._server.lua_mode,
        }

    def ping(self) -> None:
        """See the contract."""
        self._server.ping()

    def now(self) -> float:
        """The server's clock."""
        seconds, micros = self._server.command("TIME")
        return int(seconds) + int(micros) / 1_000_000

    def diagnose(self) -> list[Finding]:
        """See the contract."""
        return findings(self._server, self._base)

    def dangers(self) -> list[Finding]:
        """See the contract."""
        return dangers(self._server)

    def close(self) -> None:
        """See the contract."""
        self._stop_waiting()
        self._server.close()
