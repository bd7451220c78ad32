"""Types that an app teaches its codecs, and those that are taught from the start."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePath
from typing import Any, cast

import msgspec

from taskmq._internal.guards import is_type
from taskmq.errors import ConfigError

Encode = Callable[[Any], Any]
Decode = Callable[[Any], Any]


class CustomType(msgspec.Struct, frozen=True):
    """How values of a type become plain ones, and back."""

    kind: type[Any]
    encode: Encode
    decode: Decode


class CustomTypes:
    """A registry of types beyond those that every codec knows."""

    def __init__(self) -> None:
        self._types: dict[type[Any], CustomType] = {}

    def register(self, type_: type[Any], *, encode: Encode, decode: Decode) -> None:
        """Teach a type; values of its subclasses are refused, they would not come back as such.

        Args:
            type_: The class.
            encode: Turns a value into anything that can travel already.
            decode: Turns that back into a value; it is used where an annotation names the class.

        Raises:
            ConfigError: `type_` is no class, or one of the functions can't be called.
        """
        if not is_type(cast("object", type_)):
            raise ConfigError(f"register_type takes a class, not {type_!r:.80}")
        for name, function in (("encode", encode), ("decode", decode)):
            if not callable(function):
                raise ConfigError(f"register_type: {name} must be a function, not {function!r:.80}")
        self._types[type_] = CustomType(type_, encode, decode)

    def find(self, type_: type[Any]) -> CustomType | None:
        """The nearest registered class among a class and its bases."""
        types = self._types
        if types:
            for base in type_.__mro__:
                if (custom := types.get(base)) is not None:
                    return custom
        return _taught(type_)

    def restore(self, type_: Any, value: Any) -> Any:
        """Make a value of an annotated type that msgspec doesn't know.

        Raises:
            ValueError: There is no way to, or the value doesn't fit.
        """
        origin = getattr(type_, "__origin__", type_)
        if not isinstance(origin, type) or getattr(origin, "_is_protocol", False):
            # A protocol is no class to make values of, and may not even be fit for isinstance.
            return value
        if isinstance(value, origin):
            return value
        if (custom := self.find(origin)) is not None and issubclass(origin, custom.kind):
            return custom.decode(value)
        if issubclass(origin, (dict, list, set, str, int, float)):
            return cast("Any", origin)(value)
        name = getattr(type_, "__qualname__", repr(type_))
        raise ValueError(
            f"a {type(value).__name__} can't become a {name}; teach it with app.register_type"
        )


def _taught(type_: type[Any]) -> CustomType | None:
    if issubclass(type_, PurePath):
        return CustomType(type_, str, type_)
    # Models of pydantic, or anything shaped like them, without importing it.
    if hasattr(type_, "model_dump") and hasattr(type_, "model_validate"):
        model: Any = type_
        return CustomType(model, lambda value: value.model_dump(mode="json"), model.model_validate)
    return None
