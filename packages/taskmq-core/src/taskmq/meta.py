"""The meta of a job: what its task reports about itself while it runs, and errors of its hooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from taskmq.errors import EncodeError

if TYPE_CHECKING:
    from collections.abc import Mapping

HOOK_ERROR = "hook_error"
"""The entry that holds the errors of hooks, oldest first."""

_MAX_HOOK_ERRORS = 10

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(dict[str, Any])


def add_hook_error(meta: dict[str, Any], *, hook: str, type: str, message: str) -> None:
    """Note that a hook raised."""
    earlier = meta.get(HOOK_ERROR)
    entries: list[Any] = [*earlier] if isinstance(earlier, list) else []
    entries.append({"hook": hook, "type": type, "message": message})
    meta[HOOK_ERROR] = entries[-_MAX_HOOK_ERRORS:]


def decode_meta(data: bytes | None) -> dict[str, Any]:
    """Read a job's meta; garbage reads as empty, since it must not keep a job from its end."""
    if not data:
        return {}
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}


def encode_meta(meta: Mapping[str, Any]) -> bytes:
    """Encode a job's meta.

    Raises:
        EncodeError: A value is none that MessagePack carries.
    """
    try:
        return _encoder.encode(meta)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise EncodeError(
            f"meta can't be stored ({error}): use None, bool, int, float, str, bytes, lists and dicts"
        ) from error
