"""The connection to a server: pools, scripts, bounded reconnects, and errors in our words."""

from __future__ import annotations

import inspect
import random
import threading
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.exceptions import NoPermissionError, NoScriptError, RedisError, ResponseError
from redis.retry import Retry
from redis.sentinel import Sentinel, SentinelConnectionPool

from taskmq.errors import ConfigError, TransportUnavailable
from taskmq_redis.cluster import PATIENCE, Nodes, tagged
from taskmq_redis.embedded import Embedded
from taskmq_redis.embedded.values import encode
from taskmq_redis.failures import LOST, is_full, judge, was_refused
from taskmq_redis.forks import renew_in_children
from taskmq_redis.lines import Lines, evalsha
from taskmq_redis.scripts import script
from taskmq_redis.settings import escape

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskmq_redis.settings import RedisSettings

T = TypeVar("T")

_PAUSE = (0.02, 0.5)
"""Seconds between two tries to reach a server: the first at most, and any."""

_parameters = inspect.signature(redis.BlockingConnectionPool.disconnect).parameters
# Older versions of the library close those in use as well, whose calls are then repeated.
_IDLE_ONLY: Final = {"inuse_connections": False} if "inuse_connections" in _parameters else {}


class Server:
    """One server (or one service behind Sentinel), shared by the threads of a process.

    Nothing connects before the first call. A child made by fork opens connections of its own.
    """

    def __init__(self, settings: RedisSettings, timeout: float = 5.0) -> None:
        self.settings = settings
        self.timeout = timeout
        prefix = escape(settings.prefix)
        self.base = tagged(prefix) if settings.cluster else prefix.encode()
        """What all keys begin with."""
        self._flags: bool | None = None
        self._is_embedded = settings.lua == "off"
        self.after_fork()
        renew_in_children(self)

    def after_fork(self) -> None:
        """Forget connections and locks: in a child they are its parent's."""
        self._lock = threading.Lock()
        self._client: Any = None
        self._pool: Any = None
        self._lines: Any = None
        self._heads: dict[str, bytes] = {}
        self._nodes: Nodes | None = None
        self._embedded = Embedded(self.timeout)
        self._closed = False

    # Running --------------------------------------------------------------------------------------

    def call(self, name: str, *arguments: Any, base: bytes, repeat: bool = True) -> Any:
        """Run a script of ours: `arguments` as one blob, `base` the domain whose keys it uses."""
        blob = encode(arguments)
        return self.run(lambda client: self._script(client, name, base, blob), repeat=repeat)

    def ping(self) -> None:
        """Reach the server, and find out where scripts run.

        Raises:
            ConfigError: They must run in the server (`lua=on`), which forbids it.
        """

        def work(client: Any) -> None:
            client.execute_command("PING")
            if self._flags is None and not self._is_embedded:
                self._probe(client)

        self.run(work)

    def command(self, *words: Any) -> Any:
        """Run one command."""
        return self.run(lambda client: client.execute_command(*words))

    def run(self, work: Callable[[Any], T], *, repeat: bool = True) -> T:
        """Do some work on a client, again after a lost connection until the timeout is over.

        Args:
            work: Called with a client; its effects may be repeated.
            repeat: False when it must not be done twice: then a lost connection is raised at once,
                unless it was refused before anything was sent.

        Raises:
            TransportUnavailable: The server can't be reached, is no master, or is full.
            TransportError: It refuses: password, rights, an error in a script.
        """
        end = time.monotonic() + self.timeout
        tries = 0
        while True:
            try:
                return work(self.client())
            except RedisError as error:
                problem = judge(self.settings.url, error)
                is_lost = isinstance(problem, TransportUnavailable) and not is_full(error)
                pause = min(_PAUSE[0] * 2**tries, _PAUSE[1]) * random.uniform(0.5, 1)
                tries += 1
                if not is_lost or not (repeat or was_refused(error)):
                    raise problem from error
                if self._closed or time.monotonic() + pause >= end:
                    raise problem from error
                # What is idle in the pool is as old as what has just failed.
                self._drop_idle()
            time.sleep(pause)

    def _script(self, client: Any, name: str, base: bytes, blob: bytes) -> Any:
        if self._flags is None and not self._is_embedded:
            self._probe(client)
        made = script(name, flags=bool(self._flags))
        if self._is_embedded:
            return self._embedded.run(
                client, made.source, [base], [blob], mode=made.mode, mutex=base + b"mutex"
            )
        head = self._heads.get(name)
        if head is None:
            head = self._heads[name] = evalsha(made.sha, base)
        try:
            return self._lines.ask(b"%b%d\r\n%b\r\n" % (head, len(blob), blob))
        except NoScriptError:
            return client.execute_command("EVAL", made.source, 1, base, blob)

    def _probe(self, client: Any) -> None:
        """Find out whether scripts are allowed, and whether their flags are known (Redis 7)."""
        try:
            client.execute_command("EVAL", "#!lua flags=allow-oom\nreturn 1", 0)
            self._flags = True
        except NoPermissionError:
            self._forbidden()
        except ResponseError as error:
            if "unknown command" in str(error).lower():
                self._forbidden()
            elif str(error).startswith(LOST):
                raise
            else:
                self._flags = False

    def _forbidden(self) -> None:
        if self.settings.lua == "on":
            raise ConfigError(
                f"{self.settings.url} asks for Lua scripts (lua=on), but the server forbids EVAL: "
                f"allow @scripting to the user, or write lua=auto"
            )
        self._is_embedded = True
        self._flags = False

    @property
    def lua_mode(self) -> str:
        """Where scripts run: "server", "client", or "auto" before the first call."""
        if self._is_embedded:
            return "client"
        return "auto" if self._flags is None else "server"

    # Connections ----------------------------------------------------------------------------------

    def client(self) -> Any:
        """A client on the shared pool, whose library has types for parts of it only."""
        client = self._client
        return self._open() if client is None else client

    def blocking(self) -> Any:
        """A connected connection for a command that blocks; the caller disconnects it.

        Reads time out on it as on any other: read when something is there.

        Raises:
            redis.exceptions.RedisError: It can't be had now.
        """
        self.client()
        connection = self._make_connection()
        connection.connect()
        return connection

    def _make_connection(self) -> Any:
        """Not by the pool: it would count it, and remember it after its end."""
        pool = self.client().connection_pool if self._pool is None else self._pool
        return pool.connection_class(**pool.connection_kwargs)

    def close(self) -> None:
        """Free the connections; calls that wait for the server give up."""
        self._closed = True
        with self._lock:
            pool, lines = self._pool, self._lines
            self._client = self._pool = None
        if pool is not None:
            pool.disconnect()
            lines.drop_idle()

    def _open(self) -> Any:
        with self._lock:
            if self._pool is None:
                self._pool = self._make_pool(self.settings.connections)
                self._lines = Lines(self._make_connection, self.settings.connections, self.timeout)
                # Made once: it costs as much as a call.
                self._client = redis.Redis(connection_pool=self._pool)
                self._closed = False
            return self._client

    def _make_pool(self, size: int) -> Any:
        settings = self.settings
        options: dict[str, Any] = {
            "db": settings.db,
            "username": settings.username or None,
            "password": settings.password or None,
            "protocol": 2,
            "socket_timeout": self.timeout,
            "socket_connect_timeout": self.timeout,
            # A command must not run twice without our knowing.
            "retry": Retry(NoBackoff(), 0),
            "health_check_interval": 0,
        }
        if settings.service:
            return self._sentinel_pool(options, size)
        if settings.path:
            made: type[Any] = redis.UnixDomainSocketConnection
            options["path"] = settings.path
        else:
            made = redis.Connection if settings.tls is None else redis.SSLConnection
            host, port = self._owner(options) if settings.cluster else settings.hosts[0]
            options |= {"host": host, "port": port}
            options |= {"socket_keepalive": True, **(settings.tls or {})}
        pool: Any = redis.BlockingConnectionPool
        return pool(max_connections=size, timeout=self.timeout, connection_class=made, **options)

    def _sentinel_pool(self, options: dict[str, Any], size: int) -> Any:
        settings = self.settings
        tls = dict(settings.tls or {})
        sentinel_options: dict[str, Any] = {
            "socket_timeout": self.timeout,
            "socket_connect_timeout": min(self.timeout, 1.0),
            "retry": Retry(NoBackoff(), 0),
            **settings.sentinel,
        }
        if sentinel_options["ssl"]:
            sentinel_options |= tls
        make_manager: Any = Sentinel
        make_pool: Any = SentinelConnectionPool
        manager = make_manager(list(settings.hosts), sentinel_kwargs=sentinel_options)
        if settings.tls is not None:
            options |= {"ssl": True, **tls}
        return make_pool(
            settings.service, manager, check_connection=False, max_connections=size, **options
        )

    def _owner(self, options: dict[str, Any]) -> tuple[str, int]:
        """The node of a cluster that owns our keys; what was learnt of the others is kept."""
        if self._nodes is None:
            patience = min(self.timeout, PATIENCE)
            asking = {**options, "socket_timeout": patience, "socket_connect_timeout": patience}
            if self.settings.tls is not None:
                asking |= {"ssl": True, **self.settings.tls}
            self._nodes = Nodes(self.settings.hosts, self.base, asking)
        return self._nodes.owner()

    def _drop_idle(self) -> None:
        pool = self._pool
        if pool is None:
            return
        pool.disconnect(**_IDLE_ONLY)
        self._lines.drop_idle()
        if self.settings.cluster:
            # Another node may own our keys by now.
            with self._lock:
                if self._pool is pool:
                    self._pool = self._client = None
