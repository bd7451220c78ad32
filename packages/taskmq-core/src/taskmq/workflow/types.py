"""Whether what a step gives can be what a parameter takes, as far as annotations tell. Pure.

Only what can never fit is refused: values are converted to the annotated types before a call, so a text
may become a date, a dict a dataclass, and a list a tuple.
"""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Union
from uuid import UUID

import msgspec

_ANY = frozenset({"any"})
_LIST = frozenset({"list"})
_DICT = frozenset({"dict"})
_TEXTUAL = (datetime, date, time, timedelta, UUID, Decimal)
_KINDS: Mapping[Any, frozenset[str]] = {
    type(None): frozenset({"null"}),
    None: frozenset({"null"}),
    bool: frozenset({"bool"}),
    int: frozenset({"int"}),
    float: frozenset({"float"}),
    str: frozenset({"str"}),
    bytes: frozenset({"bytes"}),
}
# What a parameter of a plain type accepts besides its own kind, by conversion.
_ALSO: Mapping[str, frozenset[str]] = {
    "int": frozenset({"bool", "float", "str"}),
    "float": frozenset({"int", "bool", "str"}),
    "bool": frozenset({"int", "str"}),
    "bytes": frozenset({"str"}),
    "str": frozenset(),
    "null": frozenset({"str"}),
    "list": frozenset(),
    "dict": frozenset(),
    "scalar": frozenset({"str", "int", "float", "bytes"}),
}


def fits(gives: Any, takes: Any) -> bool:
    """Whether a value annotated `gives` may be one that is annotated `takes`."""
    if _is_open(gives) or _is_open(takes):
        return True
    if _is_union(gives):
        return any(fits(each, takes) for each in typing.get_args(gives))
    if _is_union(takes):
        return any(fits(gives, each) for each in typing.get_args(takes))
    given, taken = kinds(gives), kinds(takes)
    if _ANY in (given, taken):
        return True
    accepted = set(taken)
    for kind in taken:
        accepted |= _ALSO.get(kind, frozenset())
    if not given & accepted:
        return False
    if given == taken == _LIST:
        return fits(item_of(gives), item_of(takes))
    if given == taken == _DICT and _is_mapping(gives) and _is_mapping(takes):
        return fits(_value_of(gives), _value_of(takes))
    return True


def kinds(annotation: Any) -> frozenset[str]:
    """What the values of an annotation are made of: "null", "int", "list" …; "any" if that is unknown."""
    try:
        if (known := _KINDS.get(annotation)) is not None:
            return known
    except TypeError:
        return _ANY
    origin = typing.get_origin(annotation) or annotation
    if origin is typing.Literal:
        found = [kinds(type(each)) for each in typing.get_args(annotation)]
        return frozenset[str]().union(*found)
    if not isinstance(origin, type):
        return _ANY
    return _kinds_of_class(origin)


def item_of(annotation: Any) -> Any:
    """What the items of a list, a set or a tuple are; Any if that is unknown."""
    args = typing.get_args(annotation)
    origin = typing.get_origin(annotation)
    if not args or not isinstance(origin, type):
        return Any
    if issubclass(origin, tuple):
        return args[0] if len(args) == 2 and args[1] is Ellipsis else Any
    return args[0] if len(args) == 1 else Any


def name_of(annotation: Any) -> str:
    """An annotation as people write it."""
    if isinstance(annotation, type) and not typing.get_args(annotation):
        return annotation.__name__
    return str(annotation).replace("typing.", "")


def _kinds_of_class(origin: type[Any]) -> frozenset[str]:
    if issubclass(origin, enum.Enum):
        return frozenset({"scalar", "str", "int"})
    if issubclass(origin, _TEXTUAL):
        return frozenset({"scalar"})
    for base in (str, bytes, int, float):
        if issubclass(origin, base):
            return _KINDS[base]
    if dataclasses.is_dataclass(origin) or issubclass(origin, (msgspec.Struct, Mapping)):
        return _DICT | _LIST if issubclass(origin, msgspec.Struct) else _DICT
    if issubclass(origin, (list, tuple, set, frozenset)):
        return _LIST
    return _ANY


def _value_of(annotation: Any) -> Any:
    args = typing.get_args(annotation)
    return args[1] if len(args) == 2 else Any


def _is_mapping(annotation: Any) -> bool:
    origin = typing.get_origin(annotation) or annotation
    return isinstance(origin, type) and issubclass(origin, Mapping)


def _is_open(annotation: Any) -> bool:
    return annotation is Any or annotation is object or isinstance(annotation, typing.TypeVar)


def _is_union(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (Union, types.UnionType)
