"""The transport `sqlite://`: its roles put together, and its URL."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, ClassVar

from taskmq._internal.checks import one_of
from taskmq.clock import SYSTEM_CLOCK
from taskmq.errors import ConfigError
from taskmq.transport.contract import Transport
from taskmq.transport.sqlite.database import Database
from taskmq.transport.sqlite.dead import DeadLetters
from taskmq.transport.sqlite.doctor import findings
from taskmq.transport.sqlite.enqueue import Enqueuing
from taskmq.transport.sqlite.jobs import Jobs
from taskmq.transport.sqlite.maintenance import Maintaining
from taskmq.transport.sqlite.registry import Leases, Rates, Workers
from taskmq.transport.sqlite.reserve import Reserving
from taskmq.transport.sqlite.schema import FOREVER
from taskmq.transport.sqlite.settle import Settling
from taskmq.transport.sqlite.wakeup import Board
from taskmq.transport.url import TransportURL

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from typing_extensions import Self

    from taskmq.clock import Clock
    from taskmq.transport.types import Finding

_SYNCHRONOUS = ("normal", "full")


class SqliteTransport(
    Enqueuing,
    Reserving,
    Settling,
    Maintaining,
    DeadLetters,
    Jobs,
    Leases,
    Rates,
    Workers,
    Transport,
):
    """Jobs in one SQLite file, shared by any number of processes of one machine.

    Args:
        path: The file; made when it is missing, its folder is not.
        clock: Another clock, for tests.
        synchronous: "normal" survives the kill of any process, a power cut may undo the last moments;
            "full" survives that too, at the price of a disk flush for each call.
        timeout: How long a call may wait for other writers before `TransportUnavailable`, seconds.
    """

    supports_rates: ClassVar[bool] = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock: Clock = SYSTEM_CLOCK,
        synchronous: str = "normal",
        timeout: float = 5.0,
    ) -> None:
        text = os.fspath(path)
        if text in ("", ":memory:"):
            raise ConfigError(
                "sqlite needs a file, as in sqlite:///jobs.db; memory:// keeps jobs in the process"
            )
        self._synchronous = one_of("synchronous", synchronous, _SYNCHRONOUS)
        # Made absolute now: the process may change its folder before it connects.
        self._database = Database(os.path.abspath(text), synchronous=synchronous, timeout=timeout)
        self._clock = clock
        self._board = Board(self._database.path, self._changes)
        self._queues = {}
        self._shortest_ttl = FOREVER

    @property
    def clock(self) -> Clock:
        """The clock that judges time."""
        return self._clock

    @classmethod
    def from_url(cls, url: str, *, timeout: float = 5.0) -> Self:
        """Read `sqlite:///relative.db` or `sqlite:////absolute.db`, with `?synchronous=normal|full`."""
        parts = TransportURL.parse(url)
        if parts.host or parts.username or parts.port is not None:
            raise ConfigError(
                f"{parts} names a host: a file is written with three slashes when relative, as in "
                f"sqlite:///jobs.db, and four when absolute, as in sqlite:////var/lib/jobs.db"
            )
        options = parts.check_options(("synchronous",))
        return cls(
            parts.path.removeprefix("/"),
            synchronous=options.get("synchronous", "normal"),
            timeout=timeout,
        )

    def duplicate(self) -> Self:
        """Open another handle on the same file."""
        return type(self)(
            self._database.path,
            clock=self._clock,
            synchronous=self._synchronous,
            timeout=self._database.timeout,
        )

    def describe(self) -> Mapping[str, str]:
        """The file and how safe it is written."""
        return {"url": f"sqlite:///{self._database.path}", "synchronous": self._synchronous}

    def ping(self) -> None:
        """Read from the file."""
        self._database.query("SELECT 1 FROM jobs LIMIT 1")

    def now(self) -> float:
        """The host's clock, which all processes on the file share."""
        return self._clock.time()

    def wait(self, worker: str, queues: Sequence[str], timeout: float) -> bool:
        """See the contract."""
        return self._board.wait_queues(worker, tuple(queues), timeout)

    def wake(self, waiter: str) -> None:
        """See the contract."""
        self._board.wake(waiter)

    def diagnose(self) -> list[Finding]:
        """See the contract."""
        return findings(self._database)

    def migrate(self) -> list[str]:
        """See the contract."""
        return self._database.migrate()

    def close(self) -> None:
        """See the contract."""
        self._board.close()
        self._database.close()

    def _changes(self) -> int:
        return int(self._database.query("PRAGMA data_version")[0][0])
