"""Scripts run in the client answer and write what a server that runs them would."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import count
from typing import Any

import msgpack  # type: ignore[import-untyped]  # has no types
import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.exceptions import ResponseError

from support import services
from taskmq_redis.embedded import Embedded, Mode

RUN_ALL = b"""#!lua flags=allow-oom
local out = {}
for i, words in ipairs(cmsgpack.unpack(ARGV[1])) do
  words[2] = KEYS[1] .. words[2]
  out[i] = redis.call(unpack(words))
end
return out
"""
numbers = count()


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with services.running("redis") as server, redis.Redis.from_url(server.url, protocol=2) as made:
        yield made


def run(client: Any, source: bytes, *args: Any, mode: Mode = Mode.EXCLUSIVE) -> Any:
    runner = Embedded(timeout=10)
    return runner.run(client, source, [b"p:"], args, mode=mode, mutex=b"p:mutex")


MEMBERS = st.sampled_from([b"a", b"b", b"c", b"d"])
SCORES = st.sampled_from([b"-2", b"0", b"1.5", b"3", b"10000000000"])
BOUNDS = st.sampled_from([b"-inf", b"0", b"(0", b"1.5", b"(3", b"+inf"])
LEX = st.sampled_from([b"-", b"[a", b"(b", b"[c", b"+"])
PLACES = st.sampled_from([b"-3", b"-1", b"0", b"1", b"2"])
LIMITS = st.one_of(
    st.just(()),
    st.tuples(
        st.just(b"LIMIT"), st.sampled_from([b"0", b"1"]), st.sampled_from([b"1", b"2", b"-1"])
    ),
)
SCORED = st.sampled_from([(), (b"WITHSCORES",)])


def words(*parts: Any) -> st.SearchStrategy[tuple[bytes, ...]]:
    made = [part if isinstance(part, st.SearchStrategy) else st.just(part) for part in parts]
    return st.tuples(*made).map(
        lambda found: tuple(
            word for part in found for word in (part if isinstance(part, tuple) else (part,))
        )
    )


COMMANDS = st.one_of(
    words(b"HSET", b"h", MEMBERS, SCORES),
    words(b"HSETNX", b"h", MEMBERS, SCORES),
    words(b"HDEL", b"h", MEMBERS, MEMBERS),
    words(b"HINCRBY", b"n", MEMBERS, st.sampled_from([b"1", b"-2"])),
    words(b"HGET", b"h", MEMBERS),
    words(b"HMGET", b"h", MEMBERS, MEMBERS),
    words(b"HLEN", b"h"),
    words(b"HEXISTS", b"h", MEMBERS),
    words(b"ZADD", b"z", SCORES, MEMBERS),
    words(b"ZADD", b"z", st.sampled_from([b"NX", b"XX", b"GT", b"LT"]), SCORES, MEMBERS),
    words(b"ZREM", b"z", MEMBERS, MEMBERS),
    words(b"ZSCORE", b"z", MEMBERS),
    words(b"ZMSCORE", b"z", MEMBERS, MEMBERS),
    words(b"ZCARD", b"z"),
    words(b"ZCOUNT", b"z", BOUNDS, BOUNDS),
    words(b"ZRANGEBYSCORE", b"z", BOUNDS, BOUNDS, SCORED, LIMITS),
    words(b"ZREVRANGEBYSCORE", b"z", BOUNDS, BOUNDS, SCORED, LIMITS),
    words(b"ZRANGE", b"z", PLACES, PLACES, SCORED),
    words(b"ZRANGE", b"z", BOUNDS, BOUNDS, b"BYSCORE", LIMITS),
    words(b"ZREVRANGE", b"z", PLACES, PLACES),
    words(b"ZADD", b"lex", b"0", MEMBERS),
    words(b"ZREM", b"lex", MEMBERS),
    words(b"ZRANGEBYLEX", b"lex", LEX, LEX, LIMITS),
    words(b"ZREVRANGEBYLEX", b"lex", LEX, LEX, LIMITS),
    words(b"SADD", b"s", MEMBERS, MEMBERS),
    words(b"SREM", b"s", MEMBERS),
    words(b"SISMEMBER", b"s", MEMBERS),
    words(b"SCARD", b"s"),
    words(b"RPUSH", b"l", MEMBERS, MEMBERS),
    words(b"LPUSH", b"l", MEMBERS, MEMBERS),
    words(b"LTRIM", b"l", PLACES, PLACES),
    words(b"LRANGE", b"l", PLACES, PLACES),
    words(b"LLEN", b"l"),
    words(b"SET", b"t", SCORES),
    words(b"SET", b"t", SCORES, st.sampled_from([b"NX", b"XX"])),
    words(b"GET", b"t"),
    words(b"INCR", b"i"),
    words(b"EXISTS", st.sampled_from([b"h", b"z", b"s", b"l", b"t", b"none"])),
    words(b"DEL", st.sampled_from([b"h", b"z", b"s", b"l", b"t", b"none"])),
    words(b"PEXPIRE", st.sampled_from([b"h", b"z", b"none"]), b"100000"),
)


def stored(client: Any, base: bytes) -> dict[bytes, Any]:
    """All keys under a base: kind, content, and whether they expire."""
    found: dict[bytes, Any] = {}
    for key in client.keys(base + b"*"):
        kind = client.type(key)
        contents: dict[bytes, Any] = {
            b"hash": lambda key=key: client.hgetall(key),
            b"string": lambda key=key: client.get(key),
            b"list": lambda key=key: client.lrange(key, 0, -1),
            b"set": lambda key=key: client.smembers(key),
            b"zset": lambda key=key: client.zrange(key, 0, -1, withscores=True),
        }
        found[key[len(base) :]] = (kind, contents[kind](), client.pttl(key) > 0)
    return found


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(COMMANDS, max_size=12), max_size=3))
def test_any_run_of_commands_answers_and_writes_as_on_a_server(
    client: Any, runs: list[list[tuple[bytes, ...]]]
) -> None:
    here, there = b"here%d:" % next(numbers), b"there%d:" % next(numbers)
    runner = Embedded(timeout=10)
    for commands in runs:
        blob = msgpack.packb([list(command) for command in commands], use_bin_type=False)
        expected = client.eval(RUN_ALL, 1, there, blob)
        answer = runner.run(
            client, RUN_ALL, [here], [blob], mode=Mode.EXCLUSIVE, mutex=here + b"mutex"
        )
        assert answer == expected
    assert stored(client, here) == stored(client, there)


PACKED = st.recursive(
    st.one_of(st.integers(-(2**40), 2**40), st.binary(max_size=4), st.booleans()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.binary(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(PACKED)
def test_packed_values_come_back_as_a_server_packs_them(client: Any, value: Any) -> None:
    source = b"return cmsgpack.pack(cmsgpack.unpack(ARGV[1]))"
    blob = msgpack.packb(value, use_bin_type=False)
    answer, expected = run(client, source, blob), client.eval(source, 0, blob)

    def plain(data: bytes) -> Any:
        return msgpack.unpackb(data, raw=True, strict_map_key=False)

    assert plain(answer) == plain(expected)


def test_an_error_of_the_script_changes_nothing_and_frees_the_mutex(client: Any) -> None:
    with pytest.raises(ResponseError, match="no luck"):
        run(client, b"redis.call('SET', KEYS[1] .. 'x', 1) return redis.error_reply('no luck')")
    with pytest.raises(ResponseError, match="arithmetic"):
        run(client, b"redis.call('SET', KEYS[1] .. 'y', 1) return 1 + nil")
    with pytest.raises(LookupError, match="FLUSHALL"):
        run(client, b"redis.call('SET', KEYS[1] .. 'z', 1) redis.call('FLUSHALL')")
    assert client.exists("p:y", "p:z", "p:mutex") == 0


def test_exclusive_runs_take_turns(client: Any) -> None:
    source = b"""
    local n = tonumber(redis.call('HGET', KEYS[1] .. 'counts', 'n') or 0)
    redis.call('HSET', KEYS[1] .. 'counts', 'n', n + 1)
    return n
    """
    seen: list[int] = []

    def work() -> None:
        seen.extend(run(client, source) for _ in range(25))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(seen) == list(range(100))


def test_an_optimistic_run_starts_again_when_what_it_read_has_changed(client: Any) -> None:
    source = b"""
    local n = tonumber(redis.call('GET', KEYS[1] .. 'n') or 0)
    redis.call('SET', KEYS[1] .. 'n', n + 1)
    return n
    """
    seen: list[int] = []

    def work() -> None:
        seen.extend(run(client, source, mode=Mode.OPTIMISTIC) for _ in range(25))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(seen) == list(range(75))


def test_a_run_whose_mutex_was_taken_over_changes_nothing(client: Any) -> None:
    source = b"redis.call('GET', KEYS[1] .. 'stolen') redis.call('SET', KEYS[1] .. 'mark', ARGV[1])"
    other = redis.Redis(connection_pool=client.connection_pool)
    stolen: list[bool] = []

    base: Any = redis.Connection

    class Stealing(base):  # type: ignore[misc]  # the library has no types here
        def send_packed_command(self, command: Any, check_health: bool = True) -> Any:
            text = b"".join(command) if isinstance(command, list) else command
            if b"stolen" in text and not stolen:
                stolen.append(True)
                other.set("p:mutex", "somebody else", px=200)
            return super().send_packed_command(command, check_health)

    kwargs = client.connection_pool.connection_kwargs
    pool: Any = redis.ConnectionPool(connection_class=Stealing, **kwargs)
    with redis.Redis(connection_pool=pool) as victim:
        run(victim, source, b"second")
    # The first try was refused; the second one waited until the thief's mutex was over.
    assert stolen
    assert client.get("p:mark") == b"second"
    assert client.exists("p:mutex") == 0
