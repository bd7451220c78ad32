"""One transaction, and what is to be told to sleepers once it is durable."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from taskmq.transport.types import Completion, Edge, ErrorInfo, Hold

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from typing_extensions import Self

    from taskmq.clock import Clock
    from taskmq.transport.sqlite.database import Database
    from taskmq.transport.sqlite.wakeup import Board


class Extra(msgspec.Struct, frozen=True, omit_defaults=True, array_like=True, gc=False):
    """What few messages have, in one column."""

    hold: Hold | None = None
    successors: tuple[Edge, ...] = ()
    guard: str | None = None
    delay: float | None = None
    external: bool = False
    key: str | None = None
    key_ttl: float = 0.0
    concurrency_limit: int = 1
    max_yields: int = 100
    eta: float | None = None
    """With `delay`, of a held message only: others have their due time in a column."""


NO_EXTRA = Extra()
_ROWS_PER_ENTRY = 500

encode = msgspec.msgpack.Encoder().encode
decode_extra = msgspec.msgpack.Decoder(Extra).decode
decode_error = msgspec.msgpack.Decoder(ErrorInfo).decode
decode_completion = msgspec.msgpack.Decoder(Completion).decode
decode_list = msgspec.json.Decoder(list[int]).decode
encode_list = msgspec.json.Encoder().encode


def extra_of(blob: bytes | None) -> Extra:
    """Read the column `extra`."""
    return decode_extra(blob) if blob is not None else NO_EXTRA


class Step:
    """A write transaction: committed when the block ends well, else undone without a trace.

    Attributes:
        con: The connection, inside the transaction.
        now: The transport's time, read once the writer's turn had come.
        ready: How many messages became visible or delayed, by queue; their sleepers are woken.
        ended: Rows of jobs that ended; who waits for them is woken.
    """

    __slots__ = ("_board", "_clock", "_database", "_prunable", "con", "ended", "now", "ready")

    con: sqlite3.Connection
    now: float

    def __init__(self, database: Database, clock: Clock, board: Board) -> None:
        self._database = database
        self._clock = clock
        self._board = board
        self.ready: dict[str, int] = {}
        self.ended: list[int] = []
        self._prunable: dict[float, list[int]] = {}

    def __enter__(self) -> Self:
        self.con = self._database.begin()
        self.now = self._clock.time()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._database.rollback()
            self._database.raise_explained(error)
            return
        try:
            if self._prunable:
                self._write_endings()
        except BaseException as failure:
            self._database.rollback()
            self._database.raise_explained(failure)
            raise
        self._database.commit()
        if self.ready:
            self._board.announce_ready(self.ready)
        if self.ended:
            self._board.announce_ended(self.ended)

    def restart(self) -> None:
        """Undo everything and begin anew."""
        self._database.restart()
        self.now = self._clock.time()
        self.ready, self.ended, self._prunable = {}, [], {}

    def look_again(self, rows: Sequence[int], at: float) -> None:
        """Have ended rows looked at by the pass of maintenance at that time, to be pruned."""
        self._prunable.setdefault(at, []).extend(rows)

    def savepoint(self) -> Callable[[], None]:
        """Start a part that can be undone; returns what undoes it. Ended by `RELEASE item`."""
        self.con.execute("SAVEPOINT item")
        ready, ended = dict(self.ready), len(self.ended)
        prunable = {at: len(rows) for at, rows in self._prunable.items()}

        def undo() -> None:
            self.con.execute("ROLLBACK TO item")
            self.ready = ready
            del self.ended[ended:]
            self._prunable = {
                at: rows[: prunable.get(at, 0)] for at, rows in self._prunable.items()
            }

        return undo

    def _write_endings(self) -> None:
        entries = [
            (
                at,
                int.from_bytes(os.urandom(7), "big"),
                encode_list(rows[start : start + _ROWS_PER_ENTRY]).decode(),
            )
            for at, rows in self._prunable.items()
            for start in range(0, len(rows), _ROWS_PER_ENTRY)
        ]
        insert = "INSERT INTO endings (at, n, rows) VALUES (?, ?, ?)"
        if len(entries) == 1:
            self.con.execute(insert, entries[0])
        else:
            self.con.executemany(insert, entries)

    def add_ready(self, queue: str, count: int = 1) -> None:
        """Note messages that became visible, or due at a new time."""
        self.ready[queue] = self.ready.get(queue, 0) + count
