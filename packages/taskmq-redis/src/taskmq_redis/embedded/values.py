"""Values on their way between Redis, MessagePack and the embedded Lua, as a server converts them.

Source: "Redis Lua API reference", the section on data type conversion; lua_cmsgpack for the tables.
"""

from __future__ import annotations

from typing import Any, cast

import msgpack as untyped_msgpack  # type: ignore[import-untyped]  # has no types

msgpack: Any = untyped_msgpack


def argument(value: Any) -> bytes:
    """An argument of `redis.call` as the bytes that travel.

    Raises:
        TypeError: A table, nil or boolean: a server refuses these too.
    """
    if isinstance(value, bytes):
        return value
    if isinstance(value, bool) or value is None:
        raise TypeError("arguments of redis.call must be strings or numbers")
    if isinstance(value, int):
        return b"%d" % value
    if isinstance(value, float):
        return b"%d" % value if value.is_integer() else b"%.17g" % value
    raise TypeError("arguments of redis.call must be strings or numbers")


def to_lua(lua: Any, reply: Any) -> Any:
    """A reply of the server as `redis.call` returns it: nil becomes false, arrays become tables."""
    if reply is None:
        return False
    if isinstance(reply, (list, tuple)):
        return lua.table_from([to_lua(lua, item) for item in cast("list[Any]", reply)])
    if isinstance(reply, str):
        return reply.encode()
    return reply


def from_lua(value: Any) -> Any:
    """What a script returns, as a client would receive it."""
    if value is None or value is False:
        return None
    if value is True:
        return 1
    if isinstance(value, float):
        return int(value)
    if isinstance(value, (bytes, int)):
        return value
    items: list[Any] = []
    for position in range(1, len(value) + 1):
        if value[position] is None:
            break
        items.append(from_lua(value[position]))
    return items


def unpack(lua: Any, data: bytes) -> Any:
    """`cmsgpack.unpack` of one value."""
    # Raw: what the server's library packs as text may be any bytes.
    return _table(lua, msgpack.unpackb(data, raw=True, strict_map_key=False))


def _table(lua: Any, value: Any) -> Any:
    if isinstance(value, list):
        # By position: a nil leaves a hole and must not shift what follows.
        table = lua.table()
        for position, item in enumerate(_items(value), 1):
            if item is not None:
                table[position] = _table(lua, item)
        return table
    if isinstance(value, dict):
        table = lua.table()
        for key, item in _pairs(value):
            table[_table(lua, key)] = _table(lua, item)
        return table
    return value


def pack(value: Any) -> bytes:
    """`cmsgpack.pack` of one value."""
    return encode(_plain(value))


def encode(value: Any) -> bytes:
    """MessagePack as the servers' library reads it: it has no binary type, so bytes are raw text."""
    packed: bytes = msgpack.packb(value, use_bin_type=False)
    return packed


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if value is None or isinstance(value, (bytes, bool, int, float)):
        return value
    pairs = list(value.items())
    length = len(pairs)
    if all(isinstance(key, int) for key, _ in pairs) and {key for key, _ in pairs} == set(
        range(1, length + 1)
    ):
        return [_plain(value[position]) for position in range(1, length + 1)]
    return {_plain(key): _plain(item) for key, item in pairs}


def _items(value: Any) -> list[Any]:
    return list(value)


def _pairs(value: Any) -> list[tuple[Any, Any]]:
    return list(value.items())
