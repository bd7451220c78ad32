"""What errors of the servers' library mean, in our words."""

from __future__ import annotations

import re
from typing import Final

from redis.exceptions import (
    AskError,
    AuthenticationError,
    AuthorizationError,
    ClusterDownError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import TimeoutError as ServerTimeout

from taskmq.errors import TransportError, TransportUnavailable
from taskmq.transport.url import mask

LOST: Final = (
    *("READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "UNBLOCKED"),
    *("MISCONF", "NOREPLICAS", "BUSY "),
)
"""Answers of a server that is not the one to talk to, or takes nothing for now; another try may do."""
_LOGIN: Final = ("AuthenticationError", "WRONGPASS", "NOAUTH")
_TLS: Final = {
    ("certificate required", "CERTIFICATE_REQUIRED"): (
        "the server asks for a client certificate: name one by ?cert=FILE&key=FILE"
    ),
    ("mismatch", "doesn't match"): (
        "the server's certificate is for another host: use the name that it was made for, or ?verify=ca"
    ),
    ("CERTIFICATE_VERIFY_FAILED",): (
        "the server's certificate is not trusted: name its authority by ?ca=FILE"
    ),
    ("alert", "SSL:"): "the server refuses our TLS: see cert, key and ca",
}
"""What can be found in an error of TLS, the more special first, and what it means."""

_SENTINEL: Final = re.compile(
    r"<redis\.client\.Redis\(.*?\bhost=(?P<host>[^,]+),port=(?P<port>\d+).*?\)>\)>\)>"
)
"""How the library names a sentinel that did not help: by all that it knows of the connection."""

_WRONG_SERVER: Final = {
    True: "a server named there is no sentinel; redis:// is for the servers themselves",
    False: "the server lacks a command: it must be Redis 6.2 or newer, and no sentinel "
    "(redis+sentinel://host:26379/name is for those)",
}
"""What a missing command means, by whether sentinels were asked."""


_LOOK_AT_SENTINELS: Final = (
    "; is that the name the sentinels watch it by, are they there, and do they speak TLS by that "
    "authority (sentinel_tls, ca)?"
)


def judge(url: str, error: RedisError) -> TransportError:
    """The error to raise instead: `TransportUnavailable` when trying again can help."""
    text = mask(str(error))
    if isinstance(error, (AuthenticationError, AuthorizationError)) or text.startswith(_LOGIN):
        return TransportError(
            f"{url} refuses the login: user name or password is wrong or missing ({text})"
        )
    if isinstance(error, NoPermissionError):
        return TransportError(
            f"{url}: the user lacks a right ({text}); `taskmq doctor` names all that are missing"
        )
    if is_full(error):
        return TransportUnavailable(
            f"{url} is full (maxmemory): nothing was enqueued; let workers drain it, or give it memory"
        )
    if isinstance(error, AskError) and "cluster=1" not in url:
        return TransportError(f"{url} is a node of a Redis Cluster: add ?cluster=1")
    if was_moved(error):
        return TransportUnavailable(f"{url}: no node owns these keys for now ({text or 'moved'})")
    if isinstance(error, (ConnectionLost, ServerTimeout, ReadOnlyError)) or text.startswith(LOST):
        return _unreachable(url, text)
    if "unknown command" in text:
        return TransportError(f"{url}: {_WRONG_SERVER['+sentinel' in url]} ({text.strip()})")
    return TransportError(f"{url}: {text}")


def _unreachable(url: str, text: str) -> TransportError:
    if any(word in text for word in _LOGIN):
        # Sentinels are asked one by one, and their refusals gathered.
        return TransportError(
            f"{url}: the sentinels refuse the login, see sentinel_username and sentinel_password"
        )
    if "SSL" in text or "certificate" in text or "tls" in text:
        for signs, meaning in _TLS.items():
            if any(sign in text for sign in signs):
                return TransportError(f"{url}: {meaning} ({text})")
    if text.startswith("No master found"):
        text = _SENTINEL.sub(r"\g<host>:\g<port>", text) + _LOOK_AT_SENTINELS
    if url.startswith("rediss") and "Timeout connecting" in text:
        text += " (a server without TLS does not answer either: that would be redis://)"
    return TransportUnavailable(f"{url} can't be reached: {text}")


def is_full(error: Exception) -> bool:
    """Whether the server refuses what takes memory."""
    return isinstance(error, OutOfMemoryError) or "OOM command not allowed" in str(error)


def was_moved(error: Exception) -> bool:
    """Whether a node of a cluster sent us elsewhere, or to wait: nothing was done."""
    return isinstance(error, (AskError, TryAgainError, ClusterDownError))


def was_refused(error: Exception) -> bool:
    """Whether the connection was not even made, or sent elsewhere, so that nothing can have been done."""
    return (
        was_moved(error)
        or "connecting to" in str(error)
        or "MasterNotFoundError" in type(error).__name__
    )
