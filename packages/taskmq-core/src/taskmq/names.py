"""What may be the name of a task or queue, a job id or a key: the same on every backend."""

from __future__ import annotations

import re

from taskmq.errors import ConfigError

MAX_NAME = 255
"""The longest name of a task or queue, and the longest job id, in characters."""
MAX_KEY = 512
"""The longest idempotency or concurrency key, in characters."""

_FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def check_name(kind: str, text: str, *, limit: int = MAX_NAME) -> str:
    """Return `text` if every backend can carry it as a name.

    Args:
        kind: What it is the name of, for the error: "queue", "task name", "job id", "key".
        text: The name. Spaces, colons, braces and all of Unicode are allowed.
        limit: The longest that is allowed, in characters.

    Raises:
        ConfigError: It is empty, too long, or has control characters or lone surrogates.
    """
    if not _is_str(text):
        raise ConfigError(f"{kind} must be a str, not {type(text).__name__}: {text!r:.80}")
    if not text or len(text) > limit:
        raise ConfigError(
            f"{kind} must have 1 to {limit} characters, this one has {len(text)}: {text!r:.80}"
        )
    # isprintable is one fast call that most names pass; what fails it may still be fine (ZWJ …).
    if not text.isprintable() and (bad := _FORBIDDEN.search(text)):
        raise ConfigError(
            f"{kind} {text!r:.80} has U+{ord(bad.group()):04X} at position {bad.start()}: "
            f"control characters and lone surrogates are not allowed, all other characters are"
        )
    return text


def _is_str(value: object) -> bool:
    return isinstance(value, str)


def check_key(kind: str, text: str) -> str:
    """Like `check_name`, for keys: up to 512 characters."""
    return check_name(kind, text, limit=MAX_KEY)
