"""From Python values to what a codec can write: exactly, or not at all.

Most calls carry plain values: `is_plain` finds that out at little cost, and they are encoded as they
are. For the rest, `Lowering` replaces what the codec doesn't write by itself, and notes whether
anything of it comes back only with the help of an annotation.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import TYPE_CHECKING, Any, cast

import msgspec

from taskmq._internal.guards import is_dict, is_list, is_mapping, is_tuple
from taskmq.errors import EncodeError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from taskmq.protocol.codec import Codec
    from taskmq.protocol.custom import CustomTypes

MAX_DEPTH = 100
"""How deep values may be nested; also the guard against values that contain themselves."""

MAX_INT_BITS = 14_000
"""How large ints may be: beyond 4,300 digits Python itself refuses to print them."""

_STR = frozenset({str})


def is_plain(value: Any, scalars: frozenset[type[Any]], keys: frozenset[type[Any]]) -> bool:
    """Whether a codec that writes these scalars and keys can write the value as it is.

    Raises:
        EncodeError: The value is nested too deeply, or contains itself.
    """
    return _is_plain(value, scalars, keys, MAX_DEPTH)


def _is_plain(
    value: object, scalars: frozenset[type[Any]], keys: frozenset[type[Any]], depth: int
) -> bool:
    kind = type(value)
    if kind in scalars:
        return True
    if kind is dict:
        table = cast("dict[Any, Any]", value)
        if not keys.issuperset(map(type, table)):
            return False
        items: Iterable[Any] = table.values()
    elif kind is list or kind is tuple:
        items = cast("list[Any]", value)
    else:
        return False
    # One call in C answers for the many containers that hold scalars only.
    if scalars.issuperset(map(type, items)):
        return True
    if not depth:
        raise too_deep()
    return all(_is_plain(item, scalars, keys, depth - 1) for item in items)


def too_deep() -> EncodeError:
    """The error for what is nested too deeply."""
    return EncodeError(
        f"a value is nested deeper than {MAX_DEPTH} levels, or contains itself: it can't travel"
    )


class Lowering:
    """Replaces, in one value, what a codec doesn't write by itself.

    Attributes:
        changed: Whether something was replaced that decoding alone doesn't bring back.
    """

    def __init__(self, codec: Codec, types: CustomTypes) -> None:
        self.changed = False
        self._codec = codec
        self._types = types
        self._exact = codec.exact
        self._keys = codec.key_types

    def lower(self, value: Any, path: str) -> Any:
        """The value with replacements, which the codec's `encode` takes.

        Raises:
            EncodeError: Something in it can't travel; the message has its path and type.
        """
        try:
            return self._lower(value, MAX_DEPTH)
        except _Refused as refused:
            raise EncodeError(f"{path}{refused.path} {refused.why}") from refused.__cause__
        except RecursionError as error:
            raise too_deep() from error

    def _lower(self, value: Any, depth: int) -> Any:
        if depth < 0:
            raise too_deep()
        kind = _kind(value)
        if kind is str:
            return _check_text(value)
        if kind is int:
            if value.bit_length() > MAX_INT_BITS:
                raise _Refused(
                    f"is an int of {value.bit_length():,} bits, at most {MAX_INT_BITS:,}"
                )
            return self._exact[int](value) if int in self._exact else value
        if kind is float:
            if not self._codec.carries_nan and not math.isfinite(value):
                raise _Refused(f"is {value}, which {self._codec.name} can't carry")
            return value
        if kind in self._codec.scalars:
            return value
        if kind is list or kind is tuple:
            return self._lower_items(value, depth)
        if kind is dict:
            return self._lower_dict(value, depth)
        if (wrap := self._exact.get(kind)) is not None:
            if kind is set or kind is frozenset:
                return wrap(self._lower_items(list(value), depth))
            return wrap(value)
        self.changed = True
        return self._lower(self._builtin(value), depth - 1)

    def _lower_items(self, items: Any, depth: int) -> list[Any]:
        lowered: list[Any] = []
        for index, item in enumerate(items):
            try:
                lowered.append(self._lower(item, depth - 1))
            except _Refused as refused:
                raise refused.under(f"[{index}]") from refused.__cause__
        return lowered

    def _lower_dict(self, value: dict[Any, Any], depth: int) -> Any:
        pairs: list[Any] = []
        for key, item in value.items():
            try:
                pairs.append((self._lower_key(key, depth), self._lower(item, depth - 1)))
            except _Refused as refused:
                raise refused.under(f"[{key!r:.40}]") from refused.__cause__
        wrap = self._exact.get(dict)
        if wrap is None or self._keys.issuperset(_kind(key) for key, _ in pairs):
            return dict(pairs)
        return wrap(pairs)

    def _lower_key(self, key: Any, depth: int) -> Any:
        if type(key) in self._keys or dict in self._exact:
            return self._lower(key, depth - 1)
        self.changed = True
        return next(iter(self._to_builtins({key: None})))

    def _builtin(self, value: Any) -> Any:
        if self._types.find(_kind(value)) is not None:
            return self._encode_custom(value)
        if isinstance(value, Enum):
            return value.value
        # Subclasses of the plain containers (defaultdict, OrderedDict …): msgspec knows some only.
        if is_dict(value):
            return dict(value)
        for plain in (str, int, float):
            if isinstance(value, plain):
                return plain(value)
        return self._to_builtins(value)

    def _to_builtins(self, value: Any) -> Any:
        kept = tuple(self._codec.scalars & {bytes})
        try:
            return msgspec.to_builtins(
                value, builtin_types=kept, str_keys=self._keys == _STR, enc_hook=self._encode_custom
            )
        except (TypeError, ValueError, msgspec.MsgspecError) as error:
            raise _Refused(f"can't travel ({error})") from error

    def _encode_custom(self, value: Any) -> Any:
        kind = _kind(value)
        custom = self._types.find(kind)
        if custom is None:
            raise _Refused(
                f"is of the type {_name(kind)}, which can't travel: pass plain data, "
                f"or teach the type with app.register_type"
            )
        try:
            return custom.encode(value)
        # A user's function may raise anything; the caller must learn which value it was.
        except Exception as error:
            raise _Refused(
                f"is of the type {_name(kind)}, whose encoder raised {type(error).__name__}: {error}"
            ) from error


class _Refused(Exception):
    """A value that can't travel, with its path as far as it is known yet."""

    def __init__(self, why: str, path: str = "") -> None:
        super().__init__(why)
        self.why = why
        self.path = path

    def under(self, step: str) -> _Refused:
        return _Refused(self.why, step + self.path)


def same(sent: Any, restored: Any, types: CustomTypes) -> bool:
    """Whether what a worker would get is what was sent.

    Plain values may have become what an annotation asks for; the others must have their type and value
    back. Tuples may have become lists, and subclasses of builtins the builtin they equal.
    """
    kind = _kind(sent)
    if kind is list or kind is tuple:
        if not is_list(restored) and not is_tuple(restored):
            return True
        return len(sent) == len(restored) and all(
            same(a, b, types) for a, b in zip(sent, restored, strict=True)
        )
    if kind is dict:
        if not is_mapping(restored):
            return True
        return len(sent) == len(restored) and all(
            key in restored and same(item, restored[key], types) for key, item in sent.items()
        )
    if kind in _PLAIN:
        return True
    return _same_typed(sent, restored, types)


_PLAIN = frozenset({type(None), bool, int, float, str})


def _same_typed(sent: Any, restored: Any, types: CustomTypes) -> bool:
    kind = _kind(sent)
    if kind is not type(restored):
        plain_subclass = isinstance(sent, (str, int, float, dict, list)) and not isinstance(
            sent, (Enum, tuple)
        )
        return plain_subclass and bool(sent == restored)
    names = getattr(kind, "__struct_fields__", None) or getattr(kind, "__dataclass_fields__", None)
    if names is not None:
        return all(
            same(getattr(sent, name, None), getattr(restored, name, None), types) for name in names
        )
    if is_tuple(sent):
        return all(same(a, b, types) for a, b in zip(sent, restored, strict=True))
    # A registered type need not define equality: its author vouches for the way back.
    return types.find(kind) is not None or bool(sent == restored)


def _kind(value: object) -> type[Any]:
    return type(value)


def _check_text(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _Refused(
            f"has a lone surrogate (U+{ord(text[error.start]):04X} at position {error.start}), "
            f"which no text encoding can carry"
        ) from error
    return text


def _name(kind: type[Any]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
