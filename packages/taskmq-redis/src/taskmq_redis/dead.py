"""Dead letters: listed by the order of their death, replayed, dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from taskmq.errors import TransportError
from taskmq.transport.contract import MessageRole
from taskmq.transport.types import DeadLetter, DeadPage
from taskmq_redis.jobs import letter_fields
from taskmq_redis.store import Store, pairs

if TYPE_CHECKING:
    from collections.abc import Sequence

_STEP: Final = 500
"""How many letters one call touches, so that no script holds the server up."""


class DeadLetters(Store, MessageRole):
    """The part of the message role about dead letters."""

    def list_dead(
        self, queue: str | None = None, *, limit: int = 100, cursor: str | None = None
    ) -> DeadPage:
        """See the contract."""
        if cursor is not None and not cursor.isdecimal():
            raise TransportError(f"{cursor!r} is no cursor of this list; start without one")
        key = self._base + (b"dead" if queue is None else b"dead:" + queue.encode())
        low = "-inf" if cursor is None else f"({cursor}"
        found = self._server.command(
            "ZRANGEBYSCORE", key, low, "+inf", "WITHSCORES", "LIMIT", 0, limit + 1
        )
        numbers = dict(zip(found[::2], found[1::2], strict=True))
        ids = [job_id.decode() for job_id in list(numbers)[:limit]]
        letters = [letter for letter in self._letters(ids) if letter is not None]
        if len(numbers) <= limit or not ids:
            return DeadPage(letters=letters)
        return DeadPage(letters=letters, cursor=f"{float(numbers[ids[-1].encode()]):.0f}")

    def get_dead(self, job_id: str) -> DeadLetter | None:
        """See the contract."""
        return self._letters([job_id])[0]

    def replay_dead(
        self, ids: Sequence[str], *, queue: str | None = None, priority: int | None = None
    ) -> int:
        """See the contract."""
        level = False if priority is None else priority
        return sum(
            self._call("replay", ids[at : at + _STEP], queue or False, level, repeat=False)
            for at in range(0, len(ids), _STEP)
        )

    def purge_dead(self, ids: Sequence[str] | None = None, *, queue: str | None = None) -> int:
        """See the contract."""
        name = False if queue is None else queue
        if ids is not None:
            unique = list(dict.fromkeys(ids))
            return sum(
                self._call("purge_dead", unique[at : at + _STEP], name, _STEP)[0]
                for at in range(0, len(unique), _STEP)
            )
        dropped, more = 0, True
        while more:
            some, more = self._call("purge_dead", False, name, _STEP)
            dropped += some
        return dropped

    def _letters(self, ids: Sequence[str]) -> list[DeadLetter | None]:
        rows: list[Any] = self._call("show", ids, True) if ids else []
        found: list[DeadLetter | None] = []
        for job_id, row in zip(ids, rows, strict=True):
            fields = pairs(row) if row else {}
            is_dead = b"dn" in fields
            found.append(DeadLetter(**letter_fields(job_id, fields)) if is_dead else None)
        return found
