"""What a script has read and means to write, by key: it reads its own writes before they are sent.

Hashes are read whole once and answered from here. Sorted sets may be long, so only what a script asks for is
read, and its own changes are laid over it. Lists are short here (tokens of waiters) and read whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from typing import Any

Read = Callable[..., Any]
"""Sends one command that only reads, and returns its reply."""


class Hash:
    """A hash, read whole at first use."""

    def __init__(self, read: Read, key: bytes) -> None:
        self.fields: dict[bytes, bytes] = _pairs(read(b"HGETALL", key))

    def get(self, field: bytes) -> bytes | None:
        """One field."""
        return self.fields.get(field)

    def set(self, pairs: Iterable[tuple[bytes, bytes]]) -> int:
        """Set fields; how many are new."""
        before = len(self.fields)
        self.fields.update(pairs)
        return len(self.fields) - before

    def delete(self, fields: Iterable[bytes]) -> int:
        """Delete fields; how many there were."""
        return sum(self.fields.pop(field, None) is not None for field in fields)

    def clear(self) -> bool:
        """Delete the key; whether there was one."""
        found = bool(self.fields)
        self.fields.clear()
        return found


class Text:
    """A string."""

    def __init__(self, read: Read, key: bytes) -> None:
        self.value: bytes | None = read(b"GET", key)

    def clear(self) -> bool:
        """Delete the key; whether there was one."""
        found = self.value is not None
        self.value = None
        return found


class Items:
    """A list, read whole at first use."""

    def __init__(self, read: Read, key: bytes) -> None:
        self.items: list[bytes] = list(read(b"LRANGE", key, b"0", b"-1"))

    def clear(self) -> bool:
        """Delete the key; whether there was one."""
        found = bool(self.items)
        self.items.clear()
        return found

    def trim(self, start: int, stop: int) -> None:
        """Keep a range."""
        self.items = self.slice(start, stop)

    def slice(self, start: int, stop: int) -> list[bytes]:
        """A range, `stop` included."""
        low, high = _bounds(start, stop, len(self.items))
        return self.items[low:high]


class Members:
    """A set: membership is asked of the server member by member, changes are kept here."""

    def __init__(self, read: Read, key: bytes) -> None:
        self._read, self._key = read, key
        self._changes: dict[bytes, bool] = {}
        self._stored: dict[bytes, bool] = {}
        self._size: int | None = None
        self._emptied = False

    def has(self, member: bytes) -> bool:
        """Whether it is a member."""
        if member in self._changes:
            return self._changes[member]
        return self._was_stored(member)

    def note(self, members: Iterable[bytes], *, present: bool) -> None:
        """Add or remove without asking what was there."""
        self._changes.update(dict.fromkeys(members, present))

    def put(self, members: Iterable[bytes], present: bool) -> int:
        """Add or remove; how many changed."""
        changed = 0
        for member in members:
            if self.has(member) is not present:
                changed += 1
                self._changes[member] = present
        return changed

    def all(self) -> list[bytes]:
        """All members."""
        stored = () if self._emptied else self._read(b"SMEMBERS", self._key)
        kept = {member for member in stored if self._changes.get(member, True)}
        return list(kept | {member for member, present in self._changes.items() if present})

    def __len__(self) -> int:
        if self._emptied:
            return sum(self._changes.values())
        if self._size is None:
            self._size = int(self._read(b"SCARD", self._key))
        return self._size + sum(
            present - self._was_stored(member) for member, present in self._changes.items()
        )

    def clear(self) -> bool:
        """Delete the key; whether there was one."""
        found = len(self) > 0
        self._changes.clear()
        self._emptied = True
        return found

    def _was_stored(self, member: bytes) -> bool:
        if self._emptied:
            return False
        found = self._stored.get(member)
        if found is None:
            found = bool(self._read(b"SISMEMBER", self._key, member))
            self._stored[member] = found
        return found


class Scores:
    """A sorted set: ranges are read from the server, with the script's own changes laid over them."""

    def __init__(self, read: Read, key: bytes) -> None:
        self._read, self._key = read, key
        self._changes: dict[bytes, float | None] = {}
        self._scores: dict[bytes, float | None] = {}
        """Of members that were asked for, as they are stored."""
        self._emptied = False

    def score(self, member: bytes) -> float | None:
        """The score of a member, None for any other."""
        return self._changes[member] if member in self._changes else self._stored(member)

    def note(self, member: bytes, score: float | None) -> None:
        """Add, move or remove (None) without asking what was there."""
        self._changes[member] = score

    def put(self, member: bytes, score: float) -> bool:
        """Add or move a member; whether it is new."""
        new = self.score(member) is None
        self._changes[member] = score
        return new

    def remove(self, members: Iterable[bytes]) -> int:
        """Remove members; how many there were."""
        removed = 0
        for member in members:
            if self.score(member) is not None:
                removed += 1
                self._changes[member] = None
        return removed

    def count(self, low: bytes, high: bytes) -> int:
        """How many members have a score between two bounds, as `ZCOUNT` writes them."""
        within = score_test(low, high)
        total = 0 if self._emptied else int(self._read(b"ZCOUNT", self._key, low, high))
        self._fetch_scores([member for member in self._changes if member not in self._scores])
        for member, score in self._changes.items():
            before = self._stored(member)
            total -= before is not None and within(before)
            total += score is not None and within(score)
        return total

    def __len__(self) -> int:
        return self.count(b"-inf", b"+inf")

    def clear(self) -> bool:
        """Delete the key; whether there was one."""
        found = len(self) > 0
        self._changes.clear()
        self._scores.clear()
        self._emptied = True
        return found

    def by_score(
        self, low: bytes, high: bytes, offset: int, count: int, *, reverse: bool
    ) -> list[tuple[bytes, float]]:
        """A range by score, lowest first unless `reverse`; a negative count means all."""
        command = b"ZREVRANGEBYSCORE" if reverse else b"ZRANGEBYSCORE"
        bounds = (high, low) if reverse else (low, high)
        stored = self._range(command, bounds, offset, count)
        within = score_test(low, high)
        return self._laid_over(stored, lambda _, score: within(score), offset, count, reverse)

    def by_rank(self, start: int, stop: int, *, reverse: bool) -> list[tuple[bytes, float]]:
        """A range by position."""
        size = len(self)
        low, high = _bounds(start, stop, size)
        return self.by_score(b"-inf", b"+inf", low, max(high - low, 0), reverse=reverse)

    def by_lex(
        self, low: bytes, high: bytes, offset: int, count: int, *, reverse: bool
    ) -> list[tuple[bytes, float]]:
        """A range by member, of a set whose scores are all equal."""
        command = b"ZREVRANGEBYLEX" if reverse else b"ZRANGEBYLEX"
        bounds = (high, low) if reverse else (low, high)
        fetch = _fetch(offset, count, len(self._changes))
        found = (
            () if self._emptied else self._read(command, self._key, *bounds, b"LIMIT", b"0", fetch)
        )
        within = lex_test(low, high)
        stored = [(member, 0.0) for member in found]
        return self._laid_over(stored, lambda member, _: within(member), offset, count, reverse)

    def _range(
        self, command: bytes, bounds: tuple[bytes, bytes], offset: int, count: int
    ) -> list[tuple[bytes, float]]:
        if self._emptied:
            return []
        fetch = _fetch(offset, count, len(self._changes))
        words = (command, self._key, *bounds, b"WITHSCORES", b"LIMIT", b"0", fetch)
        return [(member, number(score)) for member, score in scored(self._read(*words))]

    def _laid_over(
        self,
        stored: list[tuple[bytes, float]],
        within: Callable[[bytes, float], bool],
        offset: int,
        count: int,
        reverse: bool,
    ) -> list[tuple[bytes, float]]:
        found = [pair for pair in stored if pair[0] not in self._changes]
        found += [
            (member, score)
            for member, score in self._changes.items()
            if score is not None and within(member, score)
        ]
        found.sort(key=lambda pair: (pair[1], pair[0]), reverse=reverse)
        return found[offset:] if count < 0 else found[offset : offset + count]

    def _stored(self, member: bytes) -> float | None:
        if member not in self._scores:
            self._fetch_scores([member])
        return self._scores[member]

    def _fetch_scores(self, members: list[bytes]) -> None:
        for start in range(0, len(members), 1000):
            some = members[start : start + 1000]
            if self._emptied:
                self._scores.update(dict.fromkeys(some))
                continue
            found: list[Any] = self._read(b"ZMSCORE", self._key, *some)
            for member, score in zip(some, found, strict=True):
                self._scores[member] = None if score is None else number(score)


def scored(reply: Any) -> list[tuple[bytes, Any]]:
    """Pairs of member and score, from a flat reply."""
    return list(zip(reply[::2], reply[1::2], strict=True))


def number(text: Any) -> float:
    """A score as a server writes it."""
    return float(text)


def score_test(low: bytes, high: bytes) -> Callable[[float], bool]:
    """Whether a score lies between two bounds; `(` excludes one."""
    least, above = _bound(low)
    most, below = _bound(high)

    def within(score: float) -> bool:
        return (score > least if above else score >= least) and (
            score < most if below else score <= most
        )

    return within


def lex_test(low: bytes, high: bytes) -> Callable[[bytes], bool]:
    """Whether a member lies between two bounds: `-`, `+`, or a text after `[` or `(`."""

    def within(member: bytes) -> bool:
        above = low == b"-" or (member > low[1:] if low[:1] == b"(" else member >= low[1:])
        below = high == b"+" or (member < high[1:] if high[:1] == b"(" else member <= high[1:])
        return above and below and low != b"+" and high != b"-"

    return within


def _bound(text: bytes) -> tuple[float, bool]:
    excluded = text[:1] == b"("
    body = text[1:] if excluded else text
    return {b"-inf": -inf, b"+inf": inf, b"inf": inf}.get(body) or float(body), excluded


def _bounds(start: int, stop: int, size: int) -> tuple[int, int]:
    """Positions as Python slices them; negative ones count from the end, `stop` is included."""
    low = max(start + size, 0) if start < 0 else start
    high = stop + size if stop < 0 else stop
    return low, min(high + 1, size)


def _fetch(offset: int, count: int, changed: int) -> bytes:
    """How much to read so that enough is left when all that changed is taken out."""
    return b"-1" if count < 0 else b"%d" % (offset + count + changed)


def _pairs(reply: Any) -> dict[bytes, bytes]:
    return dict(zip(reply[::2], reply[1::2], strict=True))
