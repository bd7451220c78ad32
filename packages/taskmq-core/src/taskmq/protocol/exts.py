"""MessagePack extension types: what the format lacks and Python has, kept exactly.

The codes are part of the protocol: never reuse one. Code -1 is the format's own timestamp, which
carries instants in UTC.
"""

from __future__ import annotations

from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from taskmq._internal.guards import is_list
from taskmq.errors import EncodeError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SET, FROZENSET, UUID_, DECIMAL, DATETIME, DATE, TIME, TIMEDELTA, INT, PAIRS = range(1, 11)

_Ext = msgspec.msgpack.Ext
_encoder = msgspec.msgpack.Encoder()

encode: Callable[[Any], bytes] = _encoder.encode
"""Write MessagePack; the types above must have been replaced."""


def _wrap_int(value: int) -> Any:
    if -(1 << 63) <= value < 1 << 64:
        return value
    size = value.bit_length() // 8 + 1
    return _Ext(INT, value.to_bytes(size, "big", signed=True))


def _wrap_datetime(value: datetime) -> Any:
    if value.tzinfo is timezone.utc:
        return value
    zone = getattr(value.tzinfo, "key", None)
    text = value.isoformat() + (f"[{zone}]" if zone else "")
    return _Ext(DATETIME, text.encode())


def _wrap_time(value: time) -> Any:
    if value.tzinfo is not None and value.utcoffset() is None:
        raise EncodeError(f"{value!r} has a zone but no date, so its offset is unknown")
    return _Ext(TIME, value.isoformat().encode())


def _wrap_timedelta(value: timedelta) -> Any:
    return _Ext(TIMEDELTA, encode((value.days, value.seconds, value.microseconds)))


WRAP: Mapping[type[Any], Callable[[Any], Any]] = {
    int: _wrap_int,
    set: lambda items: _Ext(SET, encode(items)),
    frozenset: lambda items: _Ext(FROZENSET, encode(items)),
    UUID: lambda value: _Ext(UUID_, value.bytes),
    Decimal: lambda value: _Ext(DECIMAL, str(value).encode()),
    datetime: _wrap_datetime,
    date: lambda value: _Ext(DATE, value.isoformat().encode()),
    time: _wrap_time,
    timedelta: _wrap_timedelta,
    dict: lambda pairs: _Ext(PAIRS, encode(pairs)),
}
"""What takes the place of a value. Sets are given as lists, and dicts with odd keys as pairs."""


def _read_datetime(data: bytes) -> datetime:
    text, bracket, zone = data.decode().partition("[")
    value = datetime.fromisoformat(text)
    if not bracket:
        return value
    from zoneinfo import ZoneInfo

    try:
        return value.astimezone(ZoneInfo(zone.rstrip("]")))
    except (KeyError, ValueError, OSError):
        # A zone that this host lacks: the instant and its offset are right all the same.
        return value


def _read_timedelta(data: bytes) -> timedelta:
    days, seconds, microseconds = decode(data)
    return timedelta(days, seconds, microseconds)


def _freeze(value: Any) -> Any:
    """Lists as tuples, so that members of sets and keys are hashable again."""
    return tuple(map(_freeze, value)) if is_list(value) else value


_READ: Mapping[int, Callable[[bytes], Any]] = {
    SET: lambda data: set(map(_freeze, decode(data))),
    FROZENSET: lambda data: frozenset(map(_freeze, decode(data))),
    UUID_: lambda data: UUID(bytes=data),
    DECIMAL: lambda data: Decimal(data.decode()),
    DATETIME: _read_datetime,
    DATE: lambda data: date.fromisoformat(data.decode()),
    TIME: lambda data: time.fromisoformat(data.decode()),
    TIMEDELTA: _read_timedelta,
    INT: lambda data: int.from_bytes(data, "big", signed=True),
    PAIRS: lambda data: {_freeze(key): value for key, value in decode(data)},
}


def _ext_hook(code: int, data: memoryview) -> Any:
    read = _READ.get(code)
    if read is None:
        raise ValueError(f"unknown extension type {code}")
    return read(bytes(data))


_decoder = msgspec.msgpack.Decoder(ext_hook=_ext_hook)

decode: Callable[[bytes], Any] = _decoder.decode
"""Read MessagePack with the types above."""
