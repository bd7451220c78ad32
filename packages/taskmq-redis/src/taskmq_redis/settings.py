"""What a URL of this package says: where the server is, how to log in, and our own options."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from taskmq._internal.checks import one_of
from taskmq.errors import ConfigError
from taskmq.transport.url import TransportURL, mask_url

DEFAULT_PREFIX: Final = "taskmq:"
_TLS: Final = ("ca", "cert", "key", "key_password", "verify")
_OPTIONS: Final = ("prefix", "lua", "cluster", "db", "connections", *_TLS)
_SENTINEL: Final = ("sentinel_username", "sentinel_password", "sentinel_tls")
_LUA: Final = ("auto", "on", "off")
_FILES: Final = ("ca", "cert", "key")


class RedisSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A URL, read and checked. Its repr shows no secret."""

    url: str
    """With secrets masked."""
    hosts: tuple[tuple[str, int], ...] = (("localhost", 6379),)
    path: str = ""
    """Of a unix socket, instead of hosts."""
    service: str = ""
    """Of a Sentinel set-up: the name of the master."""
    db: int = 0
    username: str = ""
    password: str = ""
    prefix: str = DEFAULT_PREFIX
    lua: str = "auto"
    cluster: bool = False
    connections: int = 16
    tls: Mapping[str, Any] | None = None
    sentinel: Mapping[str, Any] = {}

    @classmethod
    def parse(cls, url: str) -> RedisSettings:
        """Read a URL.

        Raises:
            ConfigError: It is malformed, or an option is unknown or wrong for this kind of URL.
        """
        parts = TransportURL.parse(url)
        is_sentinel = parts.scheme.endswith("+sentinel")
        is_unix = parts.scheme == "redis+unix"
        allowed = (*_OPTIONS, *_SENTINEL) if is_sentinel else _OPTIONS
        options = parts.check_options(allowed)
        shown = mask_url(url)
        if len(parts.hosts) > 1 and not is_sentinel and options.get("cluster") != "1":
            raise ConfigError(
                f"{shown} names several hosts: that is for redis+sentinel:// and for ?cluster=1"
            )
        is_cluster = one_of("cluster", options.get("cluster", "0"), ("0", "1")) == "1"
        service, db = _where(parts, options, shown, is_sentinel=is_sentinel, is_unix=is_unix)
        if is_cluster and (db or is_sentinel or is_unix):
            raise ConfigError(
                f"{shown}: Redis Cluster has database 0 only and is reached by host and port"
            )
        port = 26379 if is_sentinel else 6379
        return cls(
            url=shown,
            hosts=tuple((host or "localhost", number or port) for host, number in parts.hosts)
            or (("localhost", port),),
            path=parts.path if is_unix else "",
            service=service,
            db=db,
            username=parts.username,
            password=parts.password,
            prefix=options.get("prefix", DEFAULT_PREFIX),
            lua=one_of("lua", options.get("lua", "auto"), _LUA),
            cluster=is_cluster,
            connections=_whole("connections", options.get("connections", "16"), 1, shown),
            tls=_tls(parts, options, shown),
            sentinel=_sentinel(options, parts.scheme),
        )

    def __repr__(self) -> str:
        return f"RedisSettings({self.url!r})"


def escape(text: str) -> str:
    """A queue name or prefix without what Redis Cluster reads as a hash tag."""
    return text.replace("%", "%25").replace("{", "%7B").replace("}", "%7D")


def _where(
    parts: TransportURL,
    options: Mapping[str, str],
    shown: str,
    *,
    is_sentinel: bool,
    is_unix: bool,
) -> tuple[str, int]:
    """The service of a Sentinel URL, and the number of the database."""
    service, path = "", "" if is_unix else parts.path.strip("/")
    if is_unix and not parts.path:
        raise ConfigError(f"{shown} names no socket: redis+unix:///run/redis/redis.sock?db=0")
    if is_sentinel:
        service, _, path = path.partition("/")
        if not service:
            raise ConfigError(
                f"{shown} names no service: redis+sentinel://host1:26379,host2:26379/mymaster/0"
            )
    if path and "db" in options:
        raise ConfigError(f"{shown} names the database twice: in its path and as ?db=")
    return service, _whole("db", path or options.get("db", "0"), 0, shown)


def _whole(name: str, text: str, least: int, shown: str) -> int:
    if not text.isdecimal() or int(text) < least:
        raise ConfigError(f"{name} must be a whole number of at least {least} in {shown}")
    return int(text)


def _tls(parts: TransportURL, options: Mapping[str, str], shown: str) -> Mapping[str, Any] | None:
    given = [name for name in _TLS if name in options]
    if not parts.scheme.startswith("rediss"):
        if given:
            raise ConfigError(f"{shown}: {given[0]} is for TLS, that is for rediss:// URLs")
        return None
    for name in _FILES:
        if name in options and not os.path.isfile(options[name]):
            raise ConfigError(f"{shown}: there is no file {options[name]!r}, which {name} names")
    if "key" in options and "cert" not in options:
        raise ConfigError(f"{shown}: key goes with cert, the file of the client's certificate")
    verify = one_of("verify", options.get("verify", "full"), ("full", "ca", "off"))
    return {
        "ssl_ca_certs": options.get("ca"),
        "ssl_certfile": options.get("cert"),
        "ssl_keyfile": options.get("key"),
        "ssl_password": options.get("key_password"),
        "ssl_cert_reqs": "none" if verify == "off" else "required",
        "ssl_check_hostname": verify == "full",
    }


def _sentinel(options: Mapping[str, str], scheme: str) -> Mapping[str, Any]:
    found: dict[str, Any] = {}
    if "sentinel_username" in options:
        found["username"] = options["sentinel_username"]
    if "sentinel_password" in options:
        found["password"] = options["sentinel_password"]
    # Who puts TLS before the data has it before the sentinels, usually.
    usual = "1" if scheme.startswith("rediss") else "0"
    found["ssl"] = one_of("sentinel_tls", options.get("sentinel_tls", usual), ("0", "1")) == "1"
    return found
