"""Columns of a batch as PostgreSQL arrays in the binary format, packed in one go.

The driver's own way takes about a microsecond for each element; these take a tenth to a quarter.
A column in which every value is missing is None: the functions read it as a column of NULLs.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, ClassVar

from psycopg.adapt import Dumper
from psycopg.pq import Format

if TYPE_CHECKING:
    from collections.abc import Sequence

    from psycopg.adapt import AdaptersMap

_HEAD = struct.Struct(">IIIII")
_LENGTH = struct.Struct(">I")
_NULL = b"\xff\xff\xff\xff"


class Column:
    """A packed array; the subclasses name the type of its elements."""

    element: ClassVar[int]
    array: ClassVar[int]
    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data


class Texts(Column):
    """A text[]."""

    element, array = 25, 1009
    __slots__ = ()


class Blobs(Column):
    """A bytea[]."""

    element, array = 17, 1001
    __slots__ = ()


class Bigints(Column):
    """A bigint[]."""

    element, array = 20, 1016
    __slots__ = ()


class Ints(Column):
    """An integer[]."""

    element, array = 23, 1007
    __slots__ = ()


class Smallints(Column):
    """A smallint[]."""

    element, array = 21, 1005
    __slots__ = ()


class Floats(Column):
    """A float8[]."""

    element, array = 701, 1022
    __slots__ = ()


class Bools(Column):
    """A boolean[]."""

    element, array = 16, 1000
    __slots__ = ()


def texts(values: Sequence[str | None]) -> Texts:
    """Pack strings."""
    return Texts(_joined([None if v is None else v.encode() for v in values], Texts.element))


def blobs(values: Sequence[bytes | None]) -> Blobs:
    """Pack bytes."""
    return Blobs(_joined(values, Blobs.element))


def bigints(values: Sequence[int]) -> Bigints:
    """Pack 64-bit integers."""
    return Bigints(_fixed(values, Bigints.element, "q", 8))


def ints(values: Sequence[int | None]) -> Ints:
    """Pack 32-bit integers."""
    return Ints(_fixed(values, Ints.element, "i", 4))


def smallints(values: Sequence[int]) -> Smallints:
    """Pack 16-bit integers."""
    return Smallints(_fixed(values, Smallints.element, "h", 2))


def floats(values: Sequence[float | None]) -> Floats:
    """Pack floats."""
    return Floats(_fixed(values, Floats.element, "d", 8))


def bools(values: Sequence[bool | None]) -> Bools:
    """Pack booleans."""
    return Bools(_fixed(values, Bools.element, "?", 1))


def literal(values: Sequence[str]) -> str | None:
    """An array as text, for columns that hold several; None when it is empty.

    Quoted by <https://www.postgresql.org/docs/current/arrays.html#ARRAYS-IO>.
    """
    if not values:
        return None
    quoted = [value.replace("\\", "\\\\").replace('"', '\\"') for value in values]
    return '{"' + '","'.join(quoted) + '"}'


def some_texts(values: Sequence[str | None]) -> Texts | None:
    """Pack strings; None when all are missing."""
    return texts(values) if present(values) else None


def some_blobs(values: Sequence[bytes | None]) -> Blobs | None:
    """Pack bytes; None when all are missing."""
    return blobs(values) if present(values) else None


def some_floats(values: Sequence[float | None]) -> Floats | None:
    """Pack floats; None when all are missing."""
    return floats(values) if present(values) else None


def present(values: Sequence[Any]) -> bool:
    """Whether a column has any value that is not None."""
    return any(value is not None for value in values)


def register(adapters: AdaptersMap) -> None:
    """Teach a connection (or all of them) how columns are sent."""
    for kind in (Texts, Blobs, Bigints, Ints, Smallints, Floats, Bools):
        adapters.register_dumper(kind, _dumper(kind))


def _dumper(kind: type[Column]) -> type[Dumper]:
    class ColumnDumper(Dumper):
        format = Format.BINARY
        oid = kind.array

        def dump(self, obj: Column) -> bytes:
            return obj.data

    return ColumnDumper


def _head(count: int, nulls: bool, element: int) -> bytes:
    if not count:
        return struct.pack(">III", 0, 0, element)
    return _HEAD.pack(1, nulls, element, count, 1)


def _joined(values: Sequence[bytes | None], element: int) -> bytes:
    pack = _LENGTH.pack
    nulls = False
    parts: list[bytes] = [b""]
    for value in values:
        if value is None:
            nulls = True
            parts.append(_NULL)
        else:
            parts.append(pack(len(value)))
            parts.append(value)
    parts[0] = _head(len(values), nulls, element)
    return b"".join(parts)


def _fixed(values: Sequence[Any], element: int, code: str, size: int) -> bytes:
    count = len(values)
    if None not in values:
        flat: list[Any] = [size] * (2 * count)
        flat[1::2] = values
        return _head(count, False, element) + struct.pack(">" + f"I{code}" * count, *flat)
    one = struct.Struct(f">I{code}").pack
    parts = [_NULL if value is None else one(size, value) for value in values]
    return _head(count, True, element) + b"".join(parts)
