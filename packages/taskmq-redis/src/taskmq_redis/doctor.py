"""What `taskmq doctor` finds about a server: may we use it, and will it keep what it is given?"""

from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING, Any, Final, Literal

from redis.exceptions import NoPermissionError, RedisError, ResponseError

from taskmq.clock import SYSTEM_CLOCK
from taskmq.errors import TaskmqError
from taskmq.transport.types import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from taskmq_redis.connection import Server

OLDEST: Final = (6, 2)
_SKEW = 5.0
_COMMAND = re.compile(r"run the '([^']+)' command")
# Tried on a key that holds a text: what does not fit answers WRONGTYPE, after the look at our rights.
_ALWAYS: Final = (
    "SET K 1 PX 60000|GET K|MGET K|EXISTS K|INCRBY K 1|PEXPIRE K 60000|PEXPIREAT K 9999999999999|"
    "PERSIST K|PEXPIRE K 60000|HGET K f|HMGET K f|HGETALL K|HSET K f 1|HDEL K f|HINCRBY K f 1|"
    "SADD K m|SREM K m|SCARD K|SISMEMBER K m|SMEMBERS K|LPUSH K m|RPUSH K m|LTRIM K 0 1|LLEN K|"
    "LRANGE K 0 1|BLPOP K 1|ZADD K 1 m|ZREM K m|ZCARD K|ZCOUNT K 0 1|ZSCORE K m|ZMSCORE K m|"
    "ZRANGE K 0 1|ZRANGEBYSCORE K 0 1|ZRANGEBYLEX K - +|ZREVRANGEBYLEX K + -|TIME|PING"
)
_SCRIPTS: Final = "EVALSHA 0000000000000000000000000000000000000000 1 K|EVAL X 1 K"
_TRANSACTIONS: Final = "TYPE K|PTTL K|ZREVRANGEBYSCORE K 1 0|WATCH K|UNWATCH|MULTI|EXEC"
_LAST: Final = "DEL K"
_EVICTS: Final = {
    "allkeys": "when memory is full the server removes any key: jobs vanish without a trace",
    "volatile": "when memory is full the server removes keys that expire: records and results of ended "
    "jobs, and what keeps jobs apart",
}


def findings(server: Server, base: bytes) -> list[Finding]:
    """Look at the server, at our rights, and at what it does with our keys."""
    try:
        server.ping()
    except TaskmqError as error:
        advice = "nothing can be enqueued or run until this is mended"
        return [_finding("error", "server", str(error), advice)]
    try:
        return [*_look(server), *_rights(server, base)]
    except (TaskmqError, RedisError) as error:
        return [_finding("error", "server", f"lost while looking: {error}", "try again")]


def dangers(server: Server) -> list[Finding]:
    """What the server does with our keys that may lose jobs; nothing where INFO is not allowed."""
    info = _info(server) or {}
    found = [*_eviction(info), *_writing(info)]
    return [each for each in found if each.level != "ok" and each.subject != "memory"]


def _look(server: Server) -> Iterator[Finding]:
    info = _info(server)
    if info is None:
        yield _finding(
            "warning",
            "server",
            "the user may not use INFO: version, eviction and persistence are unknown",
            "grant +info, or look at maxmemory-policy and appendonly yourself",
        )
    else:
        yield _version(info)
        yield from _role(info)
        yield from _eviction(info)
        yield _persistence(server, info)
        yield from _clients(info)
    yield _lua(server)
    yield _clock(server)


def _version(info: Mapping[str, str]) -> Finding:
    version = info.get("redis_version", "0.0")
    name = info.get("server_name", "Redis").capitalize()
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        return _finding("error", "server", f"Redis {version}", f"taskmq needs {oldest} or newer")
    return _finding("ok", "server", f"{name} {version} answers")


def _role(info: Mapping[str, str]) -> Iterator[Finding]:
    if info.get("role") == "slave":
        yield _finding(
            "error",
            "server",
            "this is a replica: it takes no writes",
            "name the primary, or the sentinels (redis+sentinel://), which know it",
        )


def _eviction(info: Mapping[str, str]) -> Iterator[Finding]:
    policy, limit = info.get("maxmemory_policy", "noeviction"), int(info.get("maxmemory", "0"))
    meaning = _EVICTS.get(policy.partition("-")[0])
    if meaning and limit:
        yield _finding(
            "error" if policy.startswith("allkeys") else "warning",
            "eviction",
            f"maxmemory-policy is {policy}: {meaning}",
            "set maxmemory-policy noeviction; then producers hear that it is full, and workers drain it",
        )
        return
    used = int(info.get("used_memory", "0"))
    if not limit:
        yield _finding("ok", "eviction", "no maxmemory is set: nothing is removed")
    elif used > 0.9 * limit:
        yield _finding(
            "warning",
            "memory",
            f"{used / limit:.0%} of maxmemory ({limit >> 20} MiB) is used",
            "from 100 % on nothing is enqueued: drain queues, lower job_ttl, or give it memory",
        )
    else:
        yield _finding("ok", "eviction", f"noeviction, {used / limit:.0%} of maxmemory is used")


def _writing(info: Mapping[str, str]) -> Iterator[Finding]:
    """What does not reach its disk although it should."""
    if info.get("aof_enabled") == "1":
        if info.get("aof_last_write_status", "ok") != "ok":
            yield _finding(
                "error", "persistence", "the append-only file can't be written", "look at its disk"
            )
    elif info.get("rdb_last_bgsave_status", "ok") != "ok":
        yield _finding("error", "persistence", "the last snapshot failed", "look at its disk")


def _persistence(server: Server, info: Mapping[str, str]) -> Finding:
    for failed in _writing(info):
        return failed
    if info.get("aof_enabled") == "1":
        return _finding("ok", "persistence", "append-only file: a crash loses about a second")
    snapshots = _setting(server, "save")
    if snapshots == "":
        return _finding(
            "warning",
            "persistence",
            "nothing is kept on disk: a restart of the server loses all jobs",
            "set appendonly yes",
        )
    return _finding(
        "warning",
        "persistence",
        "snapshots at most: a crash of the server loses the jobs since the last one",
        "set appendonly yes",
    )


def _clients(info: Mapping[str, str]) -> Iterator[Finding]:
    used, most = int(info.get("connected_clients", "0")), int(info.get("maxclients", "0"))
    if most and used > 0.9 * most:
        yield _finding(
            "warning",
            "connections",
            f"{used} of {most} clients",
            "raise maxclients, or ?connections=",
        )


def _lua(server: Server) -> Finding:
    if server.lua_mode == "server":
        return _finding("ok", "lua", "scripts run in the server")
    if server.settings.lua == "off":
        advice = "lua=off is in the URL; without it they run in the server where that is allowed"
    else:
        advice = "grant +eval +evalsha"
    return _finding("warning", "lua", "scripts run in the client, which is slower", advice)


def _clock(server: Server) -> Finding:
    before = SYSTEM_CLOCK.time()
    seconds, micros = server.command("TIME")
    skew = int(seconds) + int(micros) / 1e6 - (before + SYSTEM_CLOCK.time()) / 2
    text = f"the server's clock is {abs(skew):.1f} s {'ahead' if skew > 0 else 'behind'}"
    if abs(skew) > _SKEW:
        return _finding(
            "warning", "clock", text, "jobs go by the server's clock; an eta is meant by it too"
        )
    return _finding("ok", "clock", text)


def _rights(server: Server, base: bytes) -> Iterator[Finding]:
    lacking: dict[str, None] = {}
    is_key_refused = False
    for refusal in _refusals(server, base + b"doctor:" + secrets.token_hex(4).encode()):
        named = _COMMAND.search(refusal)
        if named is None:
            is_key_refused = True
        else:
            lacking[named[1].partition("|")[0]] = None
    if is_key_refused:
        pattern = base.decode()
        yield _finding(
            "error",
            "rights",
            f"the user may not use the keys of prefix {pattern!r}",
            f"grant ~{pattern}* by ACL SETUSER, or choose another ?prefix=",
        )
    if lacking:
        yield _finding(
            "error",
            "rights",
            f"the user lacks the commands {', '.join(lacking)}",
            f"grant {' '.join(f'+{name}' for name in lacking)} by ACL SETUSER",
        )
    if not lacking and not is_key_refused:
        yield _finding("ok", "rights", "the user may use all commands and keys that taskmq needs")


def _refusals(server: Server, key: bytes) -> list[str]:
    """What the server says against our rights, command by command."""
    more = _SCRIPTS if server.lua_mode == "server" else _TRANSACTIONS
    values = {"K": key, "X": b"return 1"}
    refusals: list[str] = []
    # On a connection of its own: it opens a transaction.
    connection = server.blocking()
    try:
        for text in (*_ALWAYS.split("|"), *more.split("|"), _LAST):
            connection.send_command(*(values.get(word, word) for word in text.split(" ")))
            try:
                connection.read_response()
            except NoPermissionError as error:
                refusals.append(str(error))
            except ResponseError:
                # It was let through, and does not fit the key.
                continue
    finally:
        connection.disconnect()
    return refusals


def _info(server: Server) -> dict[str, str] | None:
    """The facts that the server tells of itself; None when we may not ask."""

    def work(client: Any) -> dict[str, str] | None:
        try:
            found: Any = client.execute_command("INFO")
        except NoPermissionError:
            return None
        return {str(name): str(value) for name, value in found.items()}

    return server.run(work)


def _setting(server: Server, name: str) -> str | None:
    """One setting of the server; None when we may not ask."""

    def work(client: Any) -> str | None:
        try:
            found: dict[Any, Any] = client.config_get(name)
        except ResponseError:
            return None
        return next((str(value) for value in found.values()), None)

    return server.run(work)


def _finding(
    level: Literal["ok", "warning", "error"], subject: str, message: str, advice: str = ""
) -> Finding:
    return Finding(level=level, subject=subject, message=message, advice=advice)
