"""What the roles of the postgres transport share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import psycopg

from taskmq.errors import TransportError
from taskmq.transport.types import Completion, ErrorInfo, SettleResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import LiteralString

    from taskmq_postgres.database import Database

Row = tuple[Any, ...]

encode = msgspec.msgpack.Encoder().encode
decode_error = msgspec.msgpack.Decoder(ErrorInfo).decode
decode_completion = msgspec.msgpack.Decoder(Completion).decode

TIMED_OUT: Final = Completion(
    state="FAILED",
    error=ErrorInfo(reason="timed out", message="nobody completed it in time"),
    retryable=True,
)


UNSTORABLE: Final = (
    psycopg.DataError,
    psycopg.IntegrityError,
    psycopg.errors.ProgramLimitExceeded,
    msgspec.MsgspecError,
    OverflowError,
    TypeError,
    ValueError,
)
"""What storing a value may raise because of the value itself."""


def not_storable(error: Exception) -> SettleResult:
    """The answer for a settlement that can't be stored."""
    return SettleResult("refused", f"not storable: {error}")


class Hook:
    """Bits that say what the reservation or the end of a job must look after; see 0001_tables.sql."""

    SUCCESSORS: Final = 1
    CONCURRENCY: Final = 2
    KEY: Final = 4
    KEY_UNTIL_START: Final = 8
    KEY_UNTIL_END: Final = 16
    RUN: Final = 32
    HOLD: Final = 64
    CANCELLED: Final = 512
    RESULT_STORED: Final = 1024
    EXTERNAL: Final = 2048


class Attention:
    """Bits on a held message that its worker must hear of."""

    CANCEL: Final = 1
    TERMINATE: Final = 4


class Store:
    """The database, and one call of a function in it."""

    _database: Database
    _statements: dict[str, LiteralString]
    _queues: dict[str, tuple[str, ...]]
    """The queues that the workers of this process reserve from."""

    def _ask(
        self,
        sql: str,
        parameters: Sequence[Any],
        *,
        repeat: bool = True,
        housekeeping: bool = False,
        long: bool = False,
    ) -> list[Row]:
        """Run one statement as a transaction of its own; names in it are filled in."""
        return self._database.query(
            self._statement(sql), parameters, repeat=repeat, housekeeping=housekeeping, long=long
        )

    def _work(self, sql: str, parameters: Sequence[Any]) -> list[Row]:
        """The same for what one call may make much of: a cascade, a purge, a pass of maintenance."""
        return self._ask(sql, parameters, long=True)

    def _statement(self, sql: str) -> LiteralString:
        text = self._statements.get(sql)
        if text is None:
            text = self._statements[sql] = self._database.names.statement(sql)
        return text


def receipt_of(job: int, token: str) -> str:
    """What a holder is given."""
    return f"{job}-{token}"


def split_receipt(receipt: str) -> tuple[int, str]:
    """The number and the token of a receipt; number 0, which is none, for what is no receipt."""
    number, dash, token = receipt.partition("-")
    if not dash or not number.isdecimal() or not number.isascii() or len(number) > 18:
        return 0, ""
    return int(number), token if token.isprintable() else ""


def bad_cursor(cursor: str, what: str) -> TransportError:
    """The error for a cursor that no page of ours gave."""
    return TransportError(f"{cursor!r} is no cursor of a page of {what}")
