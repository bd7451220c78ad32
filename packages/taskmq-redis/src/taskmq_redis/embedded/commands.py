"""The commands that a script may call, answered from what was read and what the script has written.

The set is small on purpose: what the scripts of this package use. Anything else is an error, found by the
conformance suite, which runs every script this way too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from taskmq_redis.embedded.overlay import (
    Hash,
    Items,
    Members,
    Read,
    Scores,
    Text,
    number,
)

Words = Sequence[bytes]


class Session:
    """One run of one script: its reads, and its writes in their order.

    Args:
        read: Sends a command that only reads.
        now: Sends a command that takes effect at once (counters, which producers raise as well).
        many: Reads several hashes.
    """

    def __init__(self, read: Read, now: Read, many: Callable[[Words], list[Any]]) -> None:
        self._read, self._now, self._many = read, now, many
        self._keys: dict[bytes, Any] = {}
        self.writes: list[tuple[bytes, ...]] = []
        self._is_blind = False
        self._gone: set[bytes] = set()
        """Deleted without having been read."""

    def call(self, name: bytes, words: Words) -> Any:
        """Run one command as the script sees it.

        Raises:
            LookupError: The command is not among those that scripts may use.
        """
        name = name.upper()
        handler: Callable[[Words], Any] | None = getattr(self, f"_{name.decode().lower()}", None)
        if handler is None:
            raise LookupError(f"{name.decode()} is not a command for scripts")
        return handler(words)

    def put(self, name: bytes, words: Words) -> None:
        """Run a command that writes, whose answer nobody reads: it costs no look at the server."""
        self._is_blind = True
        try:
            self.call(name, words)
        finally:
            self._is_blind = False

    def fetch(self, keys: Words) -> None:
        """Read hashes that will be needed, all at once."""
        missing = [key for key in dict.fromkeys(keys) if key not in self._keys]
        for key, reply in zip(missing, self._many(missing), strict=True):
            self._keys[key] = Hash(_answering(reply), key)

    def _write(self, *words: bytes) -> None:
        self.writes.append(words)

    def _key(self, kind: Callable[[Read, bytes], Any], key: bytes) -> Any:
        found = self._keys.get(key)
        if found is None:
            read = _nothing if key in self._gone else self._read
            found = self._keys[key] = kind(read, key)
        return found

    # --- any key ----------------------------------------------------------------------------------

    def _time(self, words: Words) -> Any:
        return self._read(b"TIME")

    def _kind(self, key: bytes) -> Any:
        found = self._keys.get(key)
        if found is not None:
            return found
        if key in self._gone:
            return None
        kinds = {b"hash": Hash, b"string": Text, b"list": Items, b"set": Members, b"zset": Scores}
        stored = self._read(b"TYPE", key)
        kind = kinds.get(stored if isinstance(stored, bytes) else str(stored).encode())
        return None if kind is None else self._key(kind, key)

    def _exists(self, words: Words) -> int:
        return sum(self._is_there(key) for key in words)

    def _is_there(self, key: bytes) -> bool:
        found = self._kind(key)
        if found is None:
            return False
        if isinstance(found, Hash):
            return bool(found.fields)
        if isinstance(found, Text):
            return found.value is not None
        return len(found.items if isinstance(found, Items) else found) > 0

    def _del(self, words: Words) -> int:
        removed = 0
        for key in words:
            if self._is_blind and key not in self._keys:
                self._gone.add(key)
                continue
            found = self._kind(key)
            if found is not None:
                removed += found.clear()
        self._write(b"DEL", *words)
        return removed

    _unlink = _del

    def _expiry(self, name: bytes, words: Words) -> int:
        self._write(name, *words)
        return 1 if self._is_blind else int(self._is_there(words[0]))

    def _pexpire(self, words: Words) -> int:
        return self._expiry(b"PEXPIRE", words)

    def _pexpireat(self, words: Words) -> int:
        return self._expiry(b"PEXPIREAT", words)

    def _expire(self, words: Words) -> int:
        return self._expiry(b"EXPIRE", words)

    def _persist(self, words: Words) -> int:
        return self._expiry(b"PERSIST", words)

    def _pttl(self, words: Words) -> Any:
        return self._read(b"PTTL", *words)

    # --- strings ----------------------------------------------------------------------------------

    def _get(self, words: Words) -> bytes | None:
        value: bytes | None = self._key(Text, words[0]).value
        return value

    def _mget(self, words: Words) -> list[bytes | None]:
        return [self._get([key]) for key in words]

    def _set(self, words: Words) -> Any:
        key, value, *options = words
        flags = {option.upper() for option in options}
        if self._is_blind and not flags:
            self._gone.add(key)
        text = self._key(Text, key)
        if (b"NX" in flags and text.value is not None) or (b"XX" in flags and text.value is None):
            return None
        text.value = value
        self._write(b"SET", *words)
        return b"OK"

    def _incr(self, words: Words) -> Any:
        return self._now(b"INCR", *words)

    def _incrby(self, words: Words) -> Any:
        return self._now(b"INCRBY", *words)

    # --- hashes -----------------------------------------------------------------------------------

    def _hget(self, words: Words) -> bytes | None:
        value: bytes | None = self._key(Hash, words[0]).get(words[1])
        return value

    def _hmget(self, words: Words) -> list[bytes | None]:
        fields = self._key(Hash, words[0])
        return [fields.get(field) for field in words[1:]]

    def _hgetall(self, words: Words) -> list[bytes]:
        fields = self._key(Hash, words[0]).fields
        return [part for pair in fields.items() for part in pair]

    def _hkeys(self, words: Words) -> list[bytes]:
        return list(self._key(Hash, words[0]).fields)

    def _hvals(self, words: Words) -> list[bytes]:
        return list(self._key(Hash, words[0]).fields.values())

    def _hlen(self, words: Words) -> int:
        return len(self._key(Hash, words[0]).fields)

    def _hexists(self, words: Words) -> int:
        return int(self._key(Hash, words[0]).get(words[1]) is not None)

    def _hset(self, words: Words) -> int:
        key, *rest = words
        self._write(b"HSET", *words)
        added: int = self._key(Hash, key).set(zip(rest[::2], rest[1::2], strict=True))
        return added

    def _hmset(self, words: Words) -> bytes:
        self._hset(words)
        return b"OK"

    def _hsetnx(self, words: Words) -> int:
        return 0 if self._hexists(words[:2]) else self._hset(words)

    def _hdel(self, words: Words) -> int:
        self._write(b"HDEL", *words)
        removed: int = self._key(Hash, words[0]).delete(words[1:])
        return removed

    def _hincrby(self, words: Words) -> int:
        key, field, more = words
        fields = self._key(Hash, key)
        value = int(fields.get(field) or 0) + int(more)
        fields.set([(field, b"%d" % value)])
        self._write(b"HINCRBY", key, field, more)
        return value

    # --- sets -------------------------------------------------------------------------------------

    def _sismember(self, words: Words) -> int:
        return int(self._key(Members, words[0]).has(words[1]))

    def _smembers(self, words: Words) -> list[bytes]:
        members: list[bytes] = self._key(Members, words[0]).all()
        return members

    def _scard(self, words: Words) -> int:
        return len(self._key(Members, words[0]))

    def _sadd(self, words: Words) -> int:
        self._write(b"SADD", *words)
        if self._is_blind:
            self._key(Members, words[0]).note(words[1:], present=True)
            return 0
        added: int = self._key(Members, words[0]).put(words[1:], True)
        return added

    def _srem(self, words: Words) -> int:
        self._write(b"SREM", *words)
        if self._is_blind:
            self._key(Members, words[0]).note(words[1:], present=False)
            return 0
        removed: int = self._key(Members, words[0]).put(words[1:], False)
        return removed

    # --- lists ------------------------------------------------------------------------------------

    def _llen(self, words: Words) -> int:
        return len(self._key(Items, words[0]).items)

    def _lrange(self, words: Words) -> list[bytes]:
        found: list[bytes] = self._key(Items, words[0]).slice(int(words[1]), int(words[2]))
        return found

    def _lpush(self, words: Words) -> int:
        found = self._key(Items, words[0])
        for value in words[1:]:
            found.items.insert(0, value)
        self._write(b"LPUSH", *words)
        return len(found.items)

    def _rpush(self, words: Words) -> int:
        found = self._key(Items, words[0])
        found.items.extend(words[1:])
        self._write(b"RPUSH", *words)
        return len(found.items)

    def _ltrim(self, words: Words) -> bytes:
        self._key(Items, words[0]).trim(int(words[1]), int(words[2]))
        self._write(b"LTRIM", *words)
        return b"OK"

    # --- sorted sets ------------------------------------------------------------------------------

    def _zscore(self, words: Words) -> bytes | None:
        score = self._key(Scores, words[0]).score(words[1])
        return None if score is None else _text(score)

    def _zmscore(self, words: Words) -> list[bytes | None]:
        return [self._zscore([words[0], member]) for member in words[1:]]

    def _zcard(self, words: Words) -> int:
        return len(self._key(Scores, words[0]))

    def _zcount(self, words: Words) -> int:
        count: int = self._key(Scores, words[0]).count(words[1], words[2])
        return count

    def _zadd(self, words: Words) -> int:
        key, *rest = words
        flags: set[bytes] = set()
        while rest and rest[0].upper() in (b"NX", b"XX", b"GT", b"LT", b"CH"):
            flags.add(rest.pop(0).upper())
        scores, added = self._key(Scores, key), 0
        for score, member in zip(rest[::2], rest[1::2], strict=True):
            if flags and not _wanted(flags, scores.score(member), number(score)):
                continue
            if self._is_blind:
                scores.note(member, number(score))
            else:
                added += scores.put(member, number(score))
        self._write(b"ZADD", *words)
        return added

    def _zrem(self, words: Words) -> int:
        self._write(b"ZREM", *words)
        if self._is_blind:
            for member in words[1:]:
                self._key(Scores, words[0]).note(member, None)
            return 0
        removed: int = self._key(Scores, words[0]).remove(words[1:])
        return removed

    def _zincrby(self, words: Words) -> bytes:
        key, more, member = words
        scores = self._key(Scores, key)
        score = (scores.score(member) or 0.0) + number(more)
        scores.put(member, score)
        self._write(b"ZADD", key, _text(score), member)
        return _text(score)

    def _zrangebyscore(self, words: Words) -> list[bytes]:
        return self._ranged(words, by="score", reverse=False)

    def _zrevrangebyscore(self, words: Words) -> list[bytes]:
        return self._ranged([words[0], words[2], words[1], *words[3:]], by="score", reverse=True)

    def _zrangebylex(self, words: Words) -> list[bytes]:
        return self._ranged(words, by="lex", reverse=False)

    def _zrevrangebylex(self, words: Words) -> list[bytes]:
        return self._ranged([words[0], words[2], words[1], *words[3:]], by="lex", reverse=True)

    def _zrevrange(self, words: Words) -> list[bytes]:
        return self._ranged(words, by="rank", reverse=True)

    def _zrange(self, words: Words) -> list[bytes]:
        flags = [word.upper() for word in words[3:]]
        by = "score" if b"BYSCORE" in flags else "lex" if b"BYLEX" in flags else "rank"
        reverse = b"REV" in flags
        if reverse and by != "rank":
            words = [words[0], words[2], words[1], *words[3:]]
        return self._ranged(words, by=by, reverse=reverse)

    def _ranged(self, words: Words, *, by: str, reverse: bool) -> list[bytes]:
        """The members of a range; `low` and `high` are given low first whatever the direction."""
        key, low, high, *rest = words
        flags = [word.upper() for word in rest]
        offset, count = 0, -1
        if b"LIMIT" in flags:
            place = flags.index(b"LIMIT")
            offset, count = int(rest[place + 1]), int(rest[place + 2])
        scores = self._key(Scores, key)
        if by == "score":
            pairs = scores.by_score(low, high, offset, count, reverse=reverse)
        elif by == "lex":
            pairs = scores.by_lex(low, high, offset, count, reverse=reverse)
        else:
            pairs = scores.by_rank(int(low), int(high), reverse=reverse)
        if b"WITHSCORES" in flags:
            return [part for member, score in pairs for part in (member, _text(score))]
        return [member for member, _ in pairs]


def _wanted(flags: set[bytes], before: float | None, score: float) -> bool:
    """Whether ZADD with these flags changes a member."""
    if before is None:
        return b"XX" not in flags
    if b"NX" in flags or (b"GT" in flags and score <= before):
        return False
    return not (b"LT" in flags and score >= before)


def _text(score: float) -> bytes:
    return b"%d" % score if score.is_integer() else b"%.17g" % score


def _nothing(command: bytes, _key: bytes, *members: bytes) -> Any:
    """What a server answers about a key that does not exist."""
    if command == b"GET":
        return None
    if command == b"ZMSCORE":
        return [None] * len(members)
    return 0 if command in (b"SISMEMBER", b"SCARD", b"ZCOUNT") else []


def _answering(reply: Any) -> Read:
    """A read that was done before."""
    return lambda *_: reply
