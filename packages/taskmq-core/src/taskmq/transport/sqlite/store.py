"""What the roles of the sqlite transport share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskmq.transport.sqlite.step import Step

if TYPE_CHECKING:
    from taskmq.clock import Clock
    from taskmq.transport.sqlite.database import Database
    from taskmq.transport.sqlite.wakeup import Board


class Store:
    """The file, the clock, and the board of sleepers."""

    _database: Database
    _clock: Clock
    _board: Board
    _shortest_ttl: float
    """The shortest `job_ttl` among what this handle has reserved."""

    def _step(self) -> Step:
        return Step(self._database, self._clock, self._board)
