"""Narrowing of untyped data, once for all: where `isinstance` alone leaves the members unknown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard


def is_dict(value: object) -> TypeGuard[dict[Any, Any]]:
    """Whether it is a dict."""
    return isinstance(value, dict)


def is_iterable(value: object) -> TypeGuard[Iterable[Any]]:
    """Whether it can be iterated over."""
    return isinstance(value, Iterable)


def is_list(value: object) -> TypeGuard[list[Any]]:
    """Whether it is a list."""
    return isinstance(value, list)


def is_mapping(value: object) -> TypeGuard[Mapping[Any, Any]]:
    """Whether it maps keys to values."""
    return isinstance(value, Mapping)


def is_tuple(value: object) -> TypeGuard[tuple[Any, ...]]:
    """Whether it is a tuple."""
    return isinstance(value, tuple)


def is_type(value: object) -> TypeGuard[type[Any]]:
    """Whether it is a class."""
    return isinstance(value, type)
