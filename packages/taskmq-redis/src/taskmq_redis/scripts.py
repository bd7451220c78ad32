"""The Lua scripts of this package: parts put together, named by their SHA-1."""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha1
from importlib import resources
from typing import Final, NamedTuple

from taskmq_redis.embedded import Mode

_ALL: Final = ("lean", "core", "endings")
_PARTS: Final = {
    "enqueue": (*_ALL, "admit"),
    "enqueue_one": (),
    "reserve": ("lean", "reserve_plain", "core", "endings"),
    "settle": ("lean", "settle_plain", "core", "endings", "admit"),
    "extend": _ALL,
    "reclaim": _ALL,
    "reap": (*_ALL, "walk"),
    "revoke": _ALL,
    "complete": _ALL,
    "reopen": (*_ALL, "reopening"),
    "replay": (*_ALL, "reopening"),
    "purge": _ALL,
    "purge_dead": _ALL,
    "stats": _ALL,
    "meta": _ALL,
    "relist": ("lean",),
    "lease": ("lean", "core"),
    "show": ("lean",),
    "results": ("lean",),
    "pick": ("lean",),
    "watch": ("lean",),
    "rates": ("lean",),
    "workers": ("lean",),
}
_MODES: Final = {
    # Producers add and never wait for those who take.
    "enqueue": Mode.OPTIMISTIC,
    "enqueue_one": Mode.OPTIMISTIC,
    "meta": Mode.OPTIMISTIC,
    "watch": Mode.OPTIMISTIC,
    "show": Mode.READ,
    "results": Mode.READ,
    "pick": Mode.READ,
}
_GROWS: Final = frozenset({"enqueue", "enqueue_one"})
"""What only adds is refused by a server that is full; everything else must go on to free memory."""


class Script(NamedTuple):
    """A script in the form that a server gets it."""

    source: bytes
    sha: str
    mode: Mode


@lru_cache
def script(name: str, *, flags: bool) -> Script:
    """One script.

    Args:
        name: The operation.
        flags: Whether the server knows the flags of scripts (Redis 7): then those that free memory
            say that they may run when it is full.
    """
    folder = resources.files("taskmq_redis") / "lua"
    parts = [(folder / f"{part}.lua").read_bytes() for part in (*_PARTS[name], name)]
    body = _lean(b"\n".join(parts))
    head = b""
    if flags:
        head = b"#!lua\n" if name in _GROWS else b"#!lua flags=allow-oom\n"
    source = head + body
    # Redis names scripts so; nothing secret depends on it.
    return Script(source, sha1(source).hexdigest(), _MODES.get(name, Mode.EXCLUSIVE))  # noqa: S324


def _lean(source: bytes) -> bytes:
    """Without comment lines and indentation: servers keep the text."""
    lines = (line.strip() for line in source.splitlines())
    return b"\n".join(line for line in lines if line and not line.startswith(b"--"))
