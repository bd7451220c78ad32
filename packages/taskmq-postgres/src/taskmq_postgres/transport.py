"""The transport `postgresql://`: its roles put together, and its URL."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from taskmq.transport.contract import Transport
from taskmq_postgres.database import Database
from taskmq_postgres.dead import DeadLetters
from taskmq_postgres.doctor import dangers, findings
from taskmq_postgres.enqueue import Enqueuing
from taskmq_postgres.maintenance import Maintaining
from taskmq_postgres.registry import Leases, Rates, Workers
from taskmq_postgres.reserve import Reserving
from taskmq_postgres.settings import read_url
from taskmq_postgres.settle import Settling
from taskmq_postgres.sharing import Sharing
from taskmq_postgres.waiting import Bedroom, Waiting

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Self

    from taskmq.transport.types import Finding


class PostgresTransport(
    Enqueuing,
    Reserving,
    Settling,
    Maintaining,
    DeadLetters,
    Waiting,
    Leases,
    Rates,
    Workers,
    Sharing,
    Transport,
):
    """Jobs in a PostgreSQL database, shared by any number of processes and machines."""

    supports_rates: ClassVar[bool] = True
    supports_connections: ClassVar[bool] = True

    def __init__(self, database: Database) -> None:
        self._database = database
        self._statements = {}
        self._queues = {}
        self._streaks = {}
        self._known_calls = {}
        self._is_seen = False
        self._bedroom = Bedroom(database)

    @classmethod
    def from_url(cls, url: str, *, timeout: float = 5.0) -> Self:
        """Read `postgresql://user:password@host:5432/database` with libpq's options and our own."""
        return cls(Database(read_url(url, timeout)))

    def duplicate(self) -> Self:
        """Open another handle, with connections of its own."""
        return type(self)(Database(self._database.settings))

    def describe(self) -> Mapping[str, str]:
        """Where the jobs are, and how the server is reached."""
        settings = self._database.settings
        return {
            "url": settings.url,
            "schema": settings.schema,
            "prefix": settings.prefix,
            "pooler": settings.pooler,
            "wake-up": self._bedroom.describe(),
        }

    def ping(self) -> None:
        """Reach the server."""
        self.now()

    def now(self) -> float:
        """The server's clock."""
        return float(self._ask("SELECT {now}()", [])[0][0])

    def diagnose(self) -> list[Finding]:
        """See the contract."""
        return findings(self._database)

    def dangers(self) -> list[Finding]:
        """See the contract."""
        return dangers(self._database)

    def migrate(self) -> list[str]:
        """See the contract."""
        return self._database.migrate()

    def close(self) -> None:
        """See the contract."""
        self._bedroom.close()
        self._database.close()
