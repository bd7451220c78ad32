"""URLs of transports and result stores: parsing, option checks, and the masking of secrets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import msgspec

from taskmq._internal.checks import did_you_mean
from taskmq.errors import ConfigError

_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*\Z")
_HOSTS = re.compile(
    r"(?P<before>[^:/?#]*://(?:[^/?#]*@)?)(?P<hosts>[^/?#@]*)(?P<after>.*)", re.DOTALL
)
# Greedy on purpose: an unescaped "@" or "/" inside a password must not end the masked part.
_USERINFO = re.compile(r"(://[^:@/?#\s]*):[^\s]*@")
_WHOLE_USERINFO = re.compile(r"(://[^:@/?#]*):.*@", re.DOTALL)
_SECRET_OPTION = re.compile(
    r"([?&;](?:[a-z_]*(?:password|passwd|pwd|secret|token|credential)[a-z_]*)=)[^&;#\s]*", re.I
)
_NESTED = re.compile(r"(=)([^&#\s]*%3A%2F%2F[^&#\s]*)", re.I)


class TransportURL(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a URL, percent-decoded. Its text and repr show no secret; `raw` has it."""

    raw: str
    scheme: str
    username: str = ""
    password: str = ""
    host: str = ""
    port: int | None = None
    hosts: tuple[tuple[str, int | None], ...] = ()
    """All hosts of a URL that names several, as host1:port1,host2; `host` and `port` are the first."""
    path: str = ""
    options: Mapping[str, str] = {}

    @classmethod
    def parse(cls, url: str) -> TransportURL:
        """Split a URL.

        Raises:
            ConfigError: It has no scheme, a bad port, or an option twice or without a value.
        """
        scheme, separator, _ = url.partition("://")
        if not separator or not _SCHEME.match(scheme):
            raise ConfigError(
                f"{mask_url(url)!r} is no transport URL: it starts with a scheme, "
                f"as memory://, sqlite:///jobs.db or redis://host:6379/0 do"
            )
        try:
            netloc, others = _first_host(url)
            parts = urlsplit(netloc)
            first = (unquote(parts.hostname or ""), parts.port)
            hosts = (first, *map(_host, others)) if first != ("", None) or others else ()
        except ValueError as error:
            # The library's message quotes parts of the URL, maybe the password: not passed on.
            raise ConfigError(
                f"bad URL {mask_url(url)!r}: host or port can't be read; write host:port, "
                f"and percent-encode @ : / ? # in user name and password"
            ) from (None if "@" in url else error)
        return cls(
            raw=url,
            scheme=scheme.lower(),
            username=unquote(parts.username or ""),
            password=unquote(parts.password or ""),
            host=first[0],
            port=first[1],
            hosts=hosts,
            path=unquote(parts.path),
            options=_options(url, parts.query),
        )

    def check_options(self, allowed: Iterable[str]) -> Mapping[str, str]:
        """Return the options if all of them are known.

        Raises:
            ConfigError: One is not; the message names the nearest, and all that are allowed.
        """
        known = sorted(allowed)
        for name in self.options:
            if name not in known:
                listed = ", ".join(known) or "none"
                raise ConfigError(
                    f"unknown option {name!r} in {self}{did_you_mean(name, known)} "
                    f"(allowed: {listed})"
                )
        return self.options

    def __repr__(self) -> str:
        return f"TransportURL({str(self)!r})"

    def __str__(self) -> str:
        return mask_url(self.raw)


def _first_host(url: str) -> tuple[str, list[str]]:
    """The URL with the first of its hosts only, as urlsplit can read it, and the others."""
    match = _HOSTS.match(url)
    if match is None or "," not in match["hosts"]:
        return url, []
    first, *others = match["hosts"].split(",")
    return f"{match['before']}{first}{match['after']}", others


def _host(text: str) -> tuple[str, int | None]:
    parts = urlsplit(f"//{text}")
    if not parts.hostname:
        raise ValueError(text)
    return unquote(parts.hostname), parts.port


def mask_url(url: str) -> str:
    """Replace the password and secret options of one URL by `***`, spaces in them included."""
    return mask(_WHOLE_USERINFO.sub(r"\1:***@", url))


def mask(text: str) -> str:
    """Replace passwords and secret options of the URLs in a text by `***`."""
    text = _USERINFO.sub(r"\1:***@", text)
    text = _SECRET_OPTION.sub(r"\1***", text)
    return _NESTED.sub(_mask_nested, text)


def _mask_nested(match: re.Match[str]) -> str:
    inner = unquote(match.group(2))
    masked = mask(inner)
    return match.group(1) + (match.group(2) if masked == inner else quote(masked, safe="*"))


def _options(url: str, query: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise ConfigError(
            f"bad options in {mask_url(url)!r}: write them as ?name=value&name=value"
        ) from None
    options = dict(pairs)
    if len(options) != len(pairs):
        raise ConfigError(f"an option is given twice in {mask_url(url)!r}")
    return options
