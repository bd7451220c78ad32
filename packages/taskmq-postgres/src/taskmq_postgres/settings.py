"""What a `postgresql://` URL says: where the server is, and how we work on it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from psycopg import pq

from taskmq._internal.checks import one_of
from taskmq.errors import ConfigError
from taskmq.transport.url import TransportURL, mask_url

OWN_OPTIONS: Final = ("connections", "listen", "pooler", "prefix", "schema")
POOLERS: Final = ("none", "session", "transaction")

_NAME = re.compile(r"[a-z_][a-z0-9_]{0,39}\Z")
_SCHEMA = re.compile(r"[A-Za-z_][A-Za-z0-9_$]{0,62}\Z")
_DATABASE_IN_PATH = re.compile(r"/?([^/]*)\Z")
# We set these ourselves: another encoding or another protocol would change what the statements mean.
_NOT_OPEN = frozenset({"client_encoding", "replication"})


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the server is, and how we work on it. Never printed: `connect` has the password.

    Attributes:
        url: The URL with its secrets masked.
        connect: Parameters for libpq; what is missing comes from its environment (PGHOST and so on).
        listen: The same for the listening connection; None where nothing can be heard.
        schema: The schema that our tables are in.
        prefix: What their names begin with.
        pooler: What stands before the server: "none", "session" or "transaction".
        connections: The most connections that one handle opens, besides one for housekeeping.
        timeout: How long a call may wait for the server, in seconds.
    """

    url: str
    connect: Mapping[str, Any]
    listen: Mapping[str, Any] | None
    schema: str = "public"
    prefix: str = "taskmq_"
    pooler: str = "none"
    connections: int = 8
    timeout: float = 5.0

    @property
    def pooled(self) -> bool:
        """Whether connections change between transactions: nothing of a session may be used."""
        return self.pooler == "transaction"


def read_url(url: str, timeout: float = 5.0) -> Settings:
    """Read a URL: libpq's options, and our own.

    Raises:
        ConfigError: It is malformed, or has an option or a value that is not known.
    """
    parts = TransportURL.parse(url)
    options = parts.check_options({*OWN_OPTIONS, *_libpq_options()})
    pooler = one_of("pooler", options.get("pooler", "none"), POOLERS)
    connect = _connect(parts, options, timeout)
    return Settings(
        url=mask_url(url),
        connect=connect,
        listen=_listen(options.get("listen"), connect, pooler == "transaction", timeout),
        schema=_named("schema", options.get("schema", "public"), _SCHEMA, url),
        prefix=_named("prefix", options.get("prefix", "taskmq_"), _NAME, url),
        pooler=pooler,
        connections=_count(options.get("connections", "8"), url),
        timeout=timeout,
    )


def _connect(
    parts: TransportURL, options: Mapping[str, str], timeout: float
) -> Mapping[str, str | int]:
    database = _DATABASE_IN_PATH.match(parts.path)
    if database is None:
        raise ConfigError(f"{parts} names no database: write it as postgresql://host:5432/database")
    given: dict[str, str | int] = {
        "host": ",".join(host for host, _ in parts.hosts),
        "port": _ports([port for _, port in parts.hosts]),
        "user": parts.username,
        "password": parts.password,
        "dbname": database[1],
    }
    given = {name: value for name, value in given.items() if value}
    given |= {name: value for name, value in options.items() if name not in OWN_OPTIONS}
    if "," in str(given.get("host", "")):
        # Of several servers the one that takes writes: a standby may be named first.
        given.setdefault("target_session_attrs", "read-write")
    given.setdefault("application_name", "taskmq")
    given.setdefault("connect_timeout", max(2, math.ceil(timeout)))
    # Milliseconds until what was sent must have arrived: a network that is gone holds nobody up.
    given.setdefault("tcp_user_timeout", max(2000, math.ceil(timeout * 1000)))
    given["client_encoding"] = "utf8"
    # A peer that vanished without a word is noticed, also by a connection that only listens.
    for name, value in (
        ("keepalives_idle", 5),
        ("keepalives_interval", 2),
        ("keepalives_count", 3),
    ):
        given.setdefault(name, value)
    return given


def _ports(ports: Sequence[int | None]) -> str:
    """What libpq takes for several hosts; what is left out means the usual port, or that of PGPORT."""
    if not any(ports):
        return ""
    return ",".join("" if port is None else str(port) for port in ports)


def _listen(
    url: str | None, connect: Mapping[str, Any], pooled: bool, timeout: float
) -> Mapping[str, Any] | None:
    if url is None:
        # Behind a transaction pooler a LISTEN is heard by whoever has the connection next.
        return None if pooled else connect
    parts = TransportURL.parse(url)
    return _connect(parts, parts.check_options(_libpq_options()), timeout)


def _libpq_options() -> set[str]:
    known = {default.keyword.decode() for default in pq.Conninfo.get_defaults()}
    return known - _NOT_OPEN


def _named(option: str, value: str, pattern: re.Pattern[str], url: str) -> str:
    if not pattern.match(value):
        allowed = "40 of a-z, 0-9 and _" if option == "prefix" else "63 letters, digits, _ and $"
        raise ConfigError(
            f"bad {option} {value!r} in {mask_url(url)!r}: up to {allowed}, not starting with a digit"
        )
    return value


def _count(value: str, url: str) -> int:
    if not value.isdecimal() or not 1 <= int(value) <= 1000:
        raise ConfigError(
            f"bad connections {value!r} in {mask_url(url)!r}: a whole number from 1 to 1000"
        )
    return int(value)
