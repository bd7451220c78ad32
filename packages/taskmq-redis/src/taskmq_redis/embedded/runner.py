"""Runs a script in the client, as one transaction.

Two ways, since who only adds must not stand in the way of who takes:

- `Mode.EXCLUSIVE`: under the domain's mutex key, a token with an expiry. It is watched, so that a run whose
  mutex was taken over changes nothing. Workers take turns this way and never conflict with each other.
- `Mode.OPTIMISTIC`: no mutex; the job records and keys that are read are watched. Producers do this:
  what they add to queues conflicts with nobody.
- `Mode.READ`: nothing is written, so nothing is watched.

An exclusive run watches the records and keys that it reads as well: a producer may create them meanwhile.
When `EXEC` is refused, the script is run again on what is there then.

What a crash leaves: before `EXEC` nothing but the mutex, which expires; after it everything.
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import threading
import time
from enum import Enum
from importlib import import_module
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError, ResponseError

from taskmq.errors import TransportUnavailable
from taskmq_redis.embedded import values
from taskmq_redis.embedded.commands import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import redis

MUTEX_TTL = 15.0
"""Seconds that a mutex lives: longer than any run, and as long as a dead holder blocks the others."""
_PAUSE = (0.0003, 0.003)
"""Seconds between two tries for the mutex; jittered, so that nobody is always second."""
_BUSY = (
    "the mutex of this queue is taken all the time (lua=off); a holder that died "
    f"frees it within {MUTEX_TTL:g} s"
)
_turns: dict[bytes, threading.Lock] = {}
_WATCHED = (b"HGETALL", b"GET", b"TYPE")
"""Reads of records, keys and facts; queues are not watched, or busy producers would starve workers."""


if hasattr(os, "register_at_fork"):
    # A thread that holds one is not there in the child.
    os.register_at_fork(after_in_child=_turns.clear)


def _turn(mutex: bytes) -> threading.Lock:
    return _turns.setdefault(mutex, threading.Lock())


class Mode(Enum):
    """How a script is protected against others that run meanwhile."""

    EXCLUSIVE = "exclusive"
    OPTIMISTIC = "optimistic"
    READ = "read"


class Embedded:
    """An embedded Lua for each thread, with the scripts that it has compiled."""

    def __init__(self, timeout: float = 5.0) -> None:
        self._timeout = timeout
        self._local = threading.local()

    def run(
        self,
        client: redis.Redis,
        source: bytes,
        keys: Sequence[bytes],
        args: Sequence[Any],
        *,
        mode: Mode,
        mutex: bytes,
    ) -> Any:
        """Run a script and return what a server would have answered.

        Raises:
            TransportUnavailable: The mutex could not be had, or others changed what was read, all the time.
            redis.exceptions.RedisError: As the client library raises it.
        """
        lua = self._lua()
        end = time.monotonic() + self._timeout
        # Threads of one process take turns here, in their order, before they compete with others.
        turn = _turn(mutex) if mode is Mode.EXCLUSIVE else None
        if turn is not None and not turn.acquire(timeout=self._timeout):
            raise TransportUnavailable(_BUSY)
        pool: Any = client.connection_pool
        connection: Any = None
        try:
            connection = pool.get_connection()
            while True:
                done, reply = _attempt(lua, _Wire(connection), source, keys, args, mode, mutex, end)
                if done:
                    return reply
                if time.monotonic() > end:
                    raise TransportUnavailable(
                        f"others changed what this call had read for {self._timeout:g} s; try again"
                    )
        finally:
            if turn is not None:
                turn.release()
            if connection is not None:
                _tidy(connection)
                pool.release(connection)

    def _lua(self) -> _Lua:
        lua: _Lua | None = getattr(self._local, "lua", None)
        if lua is None:
            lua = self._local.lua = _Lua()
        return lua


class _Lua:
    """A Lua 5.1 that has what a server gives to scripts."""

    def __init__(self) -> None:
        # Imported late: only servers that forbid EVAL need it.
        lua51: Any = import_module("lupa.lua51")

        self.error: type[Exception] = lua51.LuaError
        self.runtime: Any = lua51.LuaRuntime(
            encoding=None, register_eval=False, register_builtins=False
        )
        self._functions: dict[bytes, Any] = {}
        self.session: Session | None = None
        self.failure: Exception | None = None
        tables = self.runtime.globals()
        tables[b"redis"] = self.runtime.table_from(
            {b"call": self._call, b"put": self._put, b"prefetch": self._prefetch}
        )
        tables[b"cmsgpack"] = self.runtime.table_from(
            {b"pack": self._pack, b"unpack": self._unpack}
        )
        self.runtime.execute(
            b"redis.error_reply = function(t) return {err = t} end\n"
            b"redis.status_reply = function(t) return {ok = t} end"
        )

    def compiled(self, source: bytes) -> Any:
        """The script as a function of KEYS and ARGV."""
        found = self._functions.get(source)
        if found is None:
            # The first line of a script may be a shebang with flags for the server.
            body = source.partition(b"\n")[2] if source.startswith(b"#!") else source
            found = self.runtime.execute(
                b"return function(k, a) KEYS, ARGV = k, a\n" + body + b"\nend"
            )
            self._functions[source] = found
        return found

    def _unpack(self, data: bytes) -> Any:
        return values.unpack(self.runtime, data)

    def _pack(self, *items: Any) -> bytes:
        return b"".join(map(values.pack, items))

    def _call(self, name: Any, *words: Any) -> Any:
        reply = self._guarded(
            lambda session: session.call(name, [values.argument(word) for word in words])
        )
        return values.to_lua(self.runtime, reply)

    def _put(self, name: Any, *words: Any) -> None:
        """Like `call`, for a write whose answer the script does not read."""
        self._guarded(lambda session: session.put(name, [values.argument(word) for word in words]))

    def _prefetch(self, keys: Any) -> None:
        """Records that will be read, fetched at once."""
        self._guarded(lambda session: session.fetch([keys[n] for n in range(1, len(keys) + 1)]))

    def _cause(self, error: Exception) -> Exception:
        """What went wrong first: a command, or the script itself."""
        return self.failure or ResponseError(str(error))

    def _guarded(self, work: Callable[[Session], Any]) -> Any:
        if self.session is None:
            raise RuntimeError("a command outside of a run")
        try:
            return work(self.session)
        except Exception as error:
            # Lua makes its own error of it; the first one is what the caller wants to see.
            self.failure = self.failure or error
            raise

    def run(
        self, source: bytes, keys: Sequence[bytes], args: Sequence[Any], session: Session
    ) -> Any:
        """Run a script on a session."""
        function = self.compiled(source)
        self.session, self.failure = session, None
        try:
            reply = function(
                self.runtime.table_from(list(keys)),
                self.runtime.table_from([values.argument(arg) for arg in args]),
            )
        except self.error as error:
            raise self._cause(error) from None
        finally:
            self.session = None
        return _answer(reply)


class _Wire:
    """Commands on one connection, in their order."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._watched: set[bytes] = set()

    def send(self, *commands: tuple[Any, ...]) -> list[Any]:
        """Send some commands at once; their replies, raised when one is an error."""
        self._connection.send_packed_command(self._connection.pack_commands(commands))
        replies = [self._reply() for _ in commands]
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies

    def _reply(self) -> Any:
        try:
            return self._connection.read_response()
        except ResponseError as error:
            return error

    def now(self, *words: bytes) -> Any:
        """One command."""
        return self.send(words)[0]

    def many(self, keys: Sequence[bytes]) -> list[Any]:
        """Some hashes, watched from before they are read."""
        if not keys:
            return []
        self._watched.update(keys)
        return self.send((b"WATCH", *keys), *((b"HGETALL", key) for key in keys))[1:]

    def watching(self, *words: bytes) -> Any:
        """One read; a record or key is watched from before it is read."""
        if words[0] in _WATCHED and words[1] not in self._watched:
            self._watched.add(words[1])
            return self.send((b"WATCH", words[1]), words)[1]
        return self.now(*words)


def _attempt(
    lua: _Lua,
    wire: _Wire,
    source: bytes,
    keys: Sequence[bytes],
    args: Sequence[Any],
    mode: Mode,
    mutex: bytes,
    end: float,
) -> tuple[bool, Any]:
    """One run; whether it took effect, and its reply."""
    token = _take(wire, mutex, end) if mode is Mode.EXCLUSIVE else None
    session = Session(wire.now if mode is Mode.READ else wire.watching, wire.now, wire.many)
    try:
        reply = lua.run(source, keys, args, session)
    except BaseException:
        if token is not None:
            _let_go(wire, mutex, token)
        raise
    if mode is Mode.READ or not session.writes:
        if token is not None:
            _let_go(wire, mutex, token)
        return True, reply
    last: list[tuple[bytes, ...]] = [] if token is None else [(b"DEL", mutex)]
    *_, executed = wire.send((b"MULTI",), *session.writes, *last, (b"EXEC",))
    if executed is None:
        if token is not None:
            _let_go(wire, mutex, token)
        return False, None
    for each in executed:
        if isinstance(each, Exception):
            raise each
    return True, reply


def _take(wire: _Wire, mutex: bytes, end: float) -> bytes:
    """Take the mutex and watch it; the token that says it is ours."""
    token = secrets.token_hex(8).encode()
    ttl = b"%d" % int(MUTEX_TTL * 1000)
    while True:
        taken, _, held = wire.send(
            (b"SET", mutex, token, b"NX", b"PX", ttl), (b"WATCH", mutex), (b"GET", mutex)
        )
        if taken is not None and held == token:
            return token
        wire.now(b"UNWATCH")
        if time.monotonic() > end:
            raise TransportUnavailable(_BUSY)
        time.sleep(random.uniform(*_PAUSE))


def _let_go(wire: _Wire, mutex: bytes, token: bytes) -> None:
    """Delete the mutex unless somebody else has it by now."""
    _, _, held = wire.send((b"UNWATCH",), (b"WATCH", mutex), (b"GET", mutex))
    if held == token:
        wire.send((b"MULTI",), (b"DEL", mutex), (b"EXEC",))
    else:
        wire.now(b"UNWATCH")


def _tidy(connection: Any) -> None:
    """Leave no WATCH or MULTI behind on a connection that goes back to its pool."""
    try:
        connection.send_command(b"DISCARD")
        _swallow(connection)
        connection.send_command(b"UNWATCH")
        _swallow(connection)
    except RedisError:
        connection.disconnect()


def _swallow(connection: Any) -> None:
    with contextlib.suppress(ResponseError):
        connection.read_response()


def _answer(reply: Any) -> Any:
    """A script's reply as a client gets it; an error reply is raised."""
    if hasattr(reply, "items"):
        error = reply[b"err"]
        if error is not None:
            raise ResponseError(error.decode())
        status = reply[b"ok"]
        if status is not None:
            return status
    return values.from_lua(reply)
