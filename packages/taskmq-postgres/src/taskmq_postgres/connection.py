"""A connection on which nothing waits for ever, and the pool that it comes from."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import psycopg
from psycopg_pool import ConnectionPool

from taskmq_postgres import arrays
from taskmq_postgres.faults import Overdue

if TYPE_CHECKING:
    from collections.abc import Mapping

    from psycopg.abc import PQGen
    from typing_extensions import Self

    from taskmq_postgres.settings import Settings

T = TypeVar("T")
Row = tuple[Any, ...]

# A pooler answers with a process id of its own making: then these settings would be met by strangers.
_SESSION = (
    "SELECT CASE WHEN %s OR pg_backend_pid() = %s THEN set_config('lock_timeout', %s, false) || "
    "set_config('statement_timeout', %s, false) || "
    "set_config('idle_in_transaction_session_timeout', %s, false) || "
    "set_config('default_transaction_isolation', 'read committed', false) END"
)


LONG: Final = 60.0
"""How long a statement may take that has much to do, seconds."""


class Door:
    """What a pool's connections go through: the first is there already, a failure is remembered."""

    def __init__(self, first: Connection | None = None) -> None:
        self.first = [] if first is None else [first]
        self.error: psycopg.Error | None = None


class Connection(psycopg.Connection[Row]):
    """A connection whose statements end at `deadline` (monotonic), answered or not.

    The server's own statement timeout does not help when the server is frozen or the network is gone.
    """

    deadline: float = math.inf
    home: ConnectionPool[Connection] | None = None
    """The pool that it was taken from."""
    _hand: psycopg.Cursor[Row] | None = None

    @classmethod
    def connect(  # type: ignore[override]  # the driver's signature, and one parameter of ours
        cls, conninfo: str = "", *, door: Door | None = None, **kwargs: Any
    ) -> Self:
        """Connect, or take the connection that waits at the door."""
        try:
            if door is not None and door.first:
                return cast("Self", door.first.pop())
            return super().connect(conninfo, **kwargs)
        except psycopg.Error as error:
            if door is not None:
                door.error = error
            raise

    @property
    def hand(self) -> psycopg.Cursor[Row]:
        """A cursor that is used again and again: making one costs as much as a short statement."""
        hand = self._hand
        if hand is None:
            hand = self._hand = self.cursor(binary=True)
        return hand

    def wait(self, gen: PQGen[T], *args: Any, **kwargs: Any) -> T:
        """Run one exchange with the server; closes the connection when the time is over."""
        if self.deadline == math.inf:
            return super().wait(gen, *args, **kwargs)
        try:
            return super().wait(self._bounded(gen), *args, **kwargs)
        except Overdue:
            # Somewhere in the middle of an exchange: nobody can use it any more.
            self.pgconn.finish()
            raise

    def _bounded(self, gen: PQGen[T]) -> PQGen[T]:
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                # The driver wakes us ten times a second while nothing happens.
                if not ready and time.monotonic() > self.deadline:
                    raise Overdue("no answer from the server")
                wanted = gen.send(ready)
        except StopIteration as end:
            return cast("T", end.value)


def connect(settings: Settings, *, prepared: bool, deadline: float) -> Connection:
    """A connection of one's own, ready for our statements."""
    connection = Connection.connect(**parameters(settings, prepared=prepared))
    try:
        connection.deadline = deadline
        configure(connection, settings)
    except BaseException:
        connection.close()
        raise
    return connection


def connect_listening(where: Mapping[str, Any]) -> Connection:
    """A connection for LISTEN."""
    parameters: dict[str, Any] = {**where, "autocommit": True, "prepare_threshold": None}
    return Connection.connect(**parameters)


def open_pool(settings: Settings, *, prepared: bool, door: Door) -> ConnectionPool[Connection]:
    """A bounded pool that opens connections as they are asked for, and never reconnects by itself.

    Whoever loses a connection drops the whole pool and opens another one, so that an outage is noticed
    once, its reason is known to the caller, and nobody waits for a background thread's next attempt.
    """
    pool = ConnectionPool(
        connection_class=Connection,
        kwargs={**parameters(settings, prepared=prepared), "door": door},
        min_size=0,
        max_size=settings.connections,
        open=False,
        configure=lambda connection: configure(connection, settings),
        name="taskmq",
        reconnect_timeout=0,
        num_workers=1,
    )
    pool.open()
    return pool


def parameters(settings: Settings, *, prepared: bool) -> Mapping[str, Any]:
    """What the driver is given to connect."""
    return {
        **settings.connect,
        "autocommit": True,
        "prepare_threshold": 3 if prepared and not settings.pooled else None,
    }


def configure(connection: Connection, settings: Settings) -> None:
    """Teach a new connection our arrays, and bound what the server does for it."""
    arrays.register(connection.adapters)
    if settings.pooled:
        return
    limit = str(max(1, int(settings.timeout * 1000)))
    idle = str(int(max(10.0, 2 * settings.timeout) * 1000))
    own = settings.pooler == "session"
    pid = connection.info.backend_pid
    longest = str(int(max(LONG, settings.timeout) * 1000))
    if connection.execute(_SESSION, [own, pid, limit, longest, idle]).fetchall()[0][0] is None:
        # Nobody told us of it. Statements prepared by others would run under the names of ours.
        connection.prepare_threshold = None
