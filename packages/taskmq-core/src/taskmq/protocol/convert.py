"""Arguments against signatures: bound as Python binds them, converted to the annotated types."""

from __future__ import annotations

import contextlib
import inspect
import re
import types
import typing
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, Union
from uuid import UUID

import msgspec

from taskmq._internal.checks import did_you_mean
from taskmq._internal.guards import is_type
from taskmq.errors import ArgumentError
from taskmq.protocol.custom import CustomTypes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["ArgumentError", "Conversion", "SignatureModel"]

_SIMPLE = (str, bytes, float, bool, UUID, Decimal, datetime, date, time, timedelta, list, dict, set)
# For these annotations values of these very types are right as they are, without a look inside.
_EXACT: Mapping[Any, frozenset[type[Any]]] = {
    int: frozenset({int, bool}),
    None: frozenset({type(None)}),
    type(None): frozenset({type(None)}),
    **{kind: frozenset({kind}) for kind in _SIMPLE},
}
_PATH = re.compile(r"(.*) - at `(?:key` in `)?\$(.*)`\Z", re.DOTALL)


class Conversion(msgspec.Struct, frozen=True):
    """How values become what one annotation asks for."""

    annotation: Any
    exact: frozenset[type[Any]]
    """Types whose values are right as they are."""
    members: tuple[Conversion, ...] = ()
    """The members of a union that msgspec doesn't convert to."""
    types: CustomTypes | None = None
    source: Any = None
    """The annotation it was made for, also where that asks for nothing."""

    @classmethod
    def of(cls, annotation: Any, custom: CustomTypes) -> Conversion:
        """The conversion to an annotation; a trivial one where there is nothing to convert to."""
        if _is_anything(annotation):
            return cls(Any, frozenset(), source=annotation)
        exact = _exact_types(annotation)
        try:
            msgspec.convert(None, annotation, dec_hook=_never)
        except msgspec.ValidationError:
            pass
        except (TypeError, ValueError, RecursionError):
            if _is_union(annotation):
                members = tuple(cls.of(each, custom) for each in typing.get_args(annotation))
                return cls(annotation, exact, members, custom, annotation)
            # Nothing that data could become (a Callable, a Protocol …): the value is left alone.
            return cls(Any, frozenset(), source=annotation)
        return cls(annotation, exact, (), custom, annotation)

    @property
    def trivial(self) -> bool:
        """Whether every value is left alone."""
        return self.annotation is Any

    def convert(self, value: Any, name: str) -> Any:
        """Convert a value.

        Raises:
            ArgumentError: It doesn't fit; the path starts with `name`.
        """
        if type(value) in self.exact or self.trivial:
            return value
        try:
            return self._convert(value)
        # Besides msgspec's own: decoders of registered types, __post_init__ and __instancecheck__,
        # which may raise anything on data they don't expect.
        except Exception as error:
            found = _PATH.match(str(error))
            why, path = found.groups() if found else (str(error), "")
            raise ArgumentError(why, path=name + path) from error

    def convert_or_keep(self, value: Any) -> Any:
        """Convert a value, or return it as it is if it doesn't fit."""
        try:
            return self.convert(value, "")
        except ArgumentError:
            return value

    def _convert(self, value: Any) -> Any:
        if self.members:
            return self._convert_to_member(value)
        hook = self.types.restore if self.types else None
        try:
            return msgspec.convert(value, self.annotation, dec_hook=hook)
        except msgspec.ValidationError:
            # Strictly first: otherwise "1" would become 1 where a union allows both.
            return msgspec.convert(
                value, self.annotation, strict=False, str_keys=True, dec_hook=hook
            )

    def _convert_to_member(self, value: Any) -> Any:
        for member in self.members:
            kind = typing.get_origin(member.annotation) or member.annotation
            if isinstance(kind, type) and isinstance(value, kind):
                return member.convert(value, "")
        for member in self.members:
            try:
                return member.convert(value, "")
            except ArgumentError:
                continue
        raise msgspec.ValidationError(f"Expected `{self.annotation}`, got `{type(value).__name__}`")


class _Plan(msgspec.Struct, frozen=True):
    """The resolved annotations of a signature; a conversion that is None leaves values alone."""

    positional: tuple[Conversion | None, ...]
    named: Mapping[str, Conversion]
    rest: Conversion | None
    named_rest: Conversion | None
    returns: Any
    trivial: bool
    exact: tuple[frozenset[type[Any]] | None, ...]
    """The types that each positional argument may have as it is; None for any."""

    def is_exact(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether the common case holds: positional arguments that are right as they are."""
        if kwargs or len(args) > len(self.exact):
            return False
        for value, exact in zip(args, self.exact, strict=False):
            if exact is not None and type(value) not in exact:
                return False
        return True


class SignatureModel:
    """The signature of a task's callable. Annotations are resolved at first use, not before."""

    def __init__(
        self, function: Callable[..., Any], signature: inspect.Signature, custom: CustomTypes
    ) -> None:
        self.signature = signature
        self._function = function
        self._name = getattr(function, "__qualname__", repr(function)).rpartition("<locals>.")[2]
        self._types = custom
        self._plan: _Plan | None = None
        self._parameters = signature.parameters
        kinds = inspect.Parameter
        every = list(signature.parameters.values())
        positional = [p for p in every if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        self._positional = [p.name for p in positional]
        self._required = [(i, p.name) for i, p in enumerate(positional) if p.default is p.empty]
        self._nameable = {
            p.name: i for i, p in enumerate(positional) if p.kind is p.POSITIONAL_OR_KEYWORD
        }
        keyword = [p for p in every if p.kind is kinds.KEYWORD_ONLY]
        self._keyword = {p.name for p in keyword}
        self._required_keyword = {p.name for p in keyword if p.default is p.empty}
        self._rest = next((p.name for p in every if p.kind is kinds.VAR_POSITIONAL), None)
        self._named_rest = next((p.name for p in every if p.kind is kinds.VAR_KEYWORD), None)

    @classmethod
    def of(
        cls,
        function: Callable[..., Any],
        skip_first: bool = False,
        *,
        types: CustomTypes | None = None,
    ) -> SignatureModel:
        """The model of a callable's signature.

        Args:
            function: The task's body.
            skip_first: Leave out the first parameter (`self` or the context of a bound task).
            types: Types the app has taught its codecs.

        Raises:
            TypeError: The signature can't be found, or there is no first parameter to skip.
        """
        try:
            signature = inspect.signature(function)
        except ValueError as error:
            raise TypeError(f"{function!r:.80} has no signature: {error}") from error
        if skip_first:
            signature = _without_first(signature, function)
        return cls(function, signature, types or CustomTypes())

    def partial(self) -> SignatureModel:
        """The same, content with some of the required arguments: others are filled in later."""
        model = SignatureModel(self._function, self.signature, self._types)
        model._required.clear()
        model._required_keyword.clear()
        return model

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Check that the arguments fit, as Python would at a call.

        Raises:
            TypeError: One is missing, unknown or given twice.
        """
        if not self._fits(args, kwargs):
            self._refuse(args, kwargs)

    def bound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments by name, defaults included.

        Raises:
            TypeError: As for `bind`.
        """
        self.bind(args, kwargs)
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return dict(bound.arguments)

    def convert(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        types: CustomTypes | None = None,
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Convert decoded arguments to the annotated types.

        Raises:
            ArgumentError: They don't fit the signature, or a value its annotation.
        """
        if types is not None and types is not self._types:
            self._types, self._plan = types, None
        plan = self._plan or self._resolve()
        if not self._fits(args, kwargs):
            try:
                self._refuse(args, kwargs)
            except TypeError as error:
                raise ArgumentError(str(error)) from error
        if plan.trivial or plan.is_exact(args, kwargs):
            return tuple(args), dict(kwargs)
        return self._convert(plan, args, kwargs)

    def _convert(
        self, plan: _Plan, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        converted = list(args)
        # Fewer arguments than parameters, or more (the rest): both are right here.
        for index, (value, conversion) in enumerate(zip(args, plan.positional, strict=False)):
            if conversion is not None and type(value) not in conversion.exact:
                converted[index] = conversion.convert(value, self._positional[index])
        if plan.rest is not None:
            known = len(plan.positional)
            for index, value in enumerate(args[known:]):
                converted[known + index] = plan.rest.convert(value, f"{self._rest}[{index}]")
        named = dict(kwargs)
        for name, value in kwargs.items():
            conversion = plan.named.get(name, plan.named_rest)
            if conversion is not None and type(value) not in conversion.exact:
                named[name] = conversion.convert(value, name)
        return tuple(converted), named

    def names_of(self, count: int) -> list[str]:
        """The names of the first `count` positional arguments."""
        extra = range(count - len(self._positional))
        return [*self._positional[:count], *(f"{self._rest}[{index}]" for index in extra)]

    @property
    def returns(self) -> Any:
        """The return annotation, resolved; `Any` without one."""
        return (self._plan or self._resolve()).returns

    def annotation_of(self, parameter: str | int) -> Any:
        """The annotation of a parameter, by name or position; Any where there is none."""
        if isinstance(parameter, int):
            names = self._positional
            parameter = names[parameter] if parameter < len(names) else self._rest or ""
        found = self._parameters.get(parameter)
        if found is None:
            parameter = self._named_rest or ""
        return _hints(self._function).get(parameter, Any)

    def _fits(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        given = len(args)
        if given > len(self._positional) and self._rest is None:
            return False
        for name in kwargs:
            index = self._nameable.get(name)
            if index is not None:
                if index < given:
                    return False
            elif name not in self._keyword and self._named_rest is None:
                return False
        for index, name in self._required:
            if index >= given and (name not in kwargs or name not in self._nameable):
                return False
        return not self._required_keyword or self._required_keyword <= kwargs.keys()

    def _refuse(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> NoReturn:
        taken = self._nameable.keys() | self._keyword
        unknown = [] if self._named_rest else [name for name in kwargs if name not in taken]
        if unknown:
            hint = did_you_mean(unknown[0], taken).replace(";", ",", 1)
            raise TypeError(f"{self._name}{self.signature}: unknown argument {unknown[0]!r}{hint}")
        try:
            self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self._name}{self.signature}: {error}") from None
        raise TypeError(f"{self._name}{self.signature}: the arguments don't fit")

    def _resolve(self) -> _Plan:
        hints = _hints(self._function)

        def conversion(name: str | None) -> Conversion | None:
            made = Conversion.of(hints.get(name, Any), self._types) if name else None
            return None if made is None or made.trivial else made

        positional = tuple(map(conversion, self._positional))
        by_name = {name: conversion(name) for name in (*self._nameable, *self._keyword)}
        named = {name: each for name, each in by_name.items() if each is not None}
        rest, named_rest = conversion(self._rest), conversion(self._named_rest)
        self._plan = _Plan(
            positional=positional,
            named=named,
            rest=rest,
            named_rest=named_rest,
            returns=hints.get("return", Any),
            trivial=not (any(positional) or named or rest or named_rest),
            exact=tuple(each.exact if each else None for each in positional),
        )
        return self._plan


def _without_first(signature: inspect.Signature, function: object) -> inspect.Signature:
    parameters = list(signature.parameters.values())
    kind = parameters[0].kind if parameters else inspect.Parameter.KEYWORD_ONLY
    if kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD):
        return signature.replace(parameters=parameters[1:])
    if kind is inspect.Parameter.VAR_POSITIONAL:
        return signature
    name = getattr(function, "__qualname__", repr(function))
    raise TypeError(
        f"{name}{signature} needs a first parameter, which gets the task itself: write (self, …)"
    )


_ANYTHING: tuple[Any, ...] = (Any, object, inspect.Parameter.empty)


def _is_anything(annotation: Any) -> bool:
    """Whether every value will do. A protocol is no class that msgspec could check either."""
    if isinstance(annotation, typing.TypeVar) or getattr(annotation, "_is_protocol", False):
        return True
    return any(annotation is each for each in _ANYTHING)


def _never(kind: type[Any], value: Any) -> Any:
    raise ValueError(f"{kind} is not None: {value!r}")


def _is_union(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (Union, types.UnionType)


def _exact_types(annotation: Any) -> frozenset[type[Any]]:
    if _is_union(annotation):
        members = [_exact_types(each) for each in typing.get_args(annotation)]
        return frozenset[type[Any]]().union(*members)
    try:
        return _EXACT.get(annotation, frozenset())
    except TypeError:
        return frozenset()


def _hints(function: Any) -> dict[str, Any]:
    """The annotations that can be resolved; a name that can't costs only its own parameter."""
    target = _target(function)
    try:
        return typing.get_type_hints(target, include_extras=True)
    # Annotations are arbitrary code, often names imported for type checkers alone.
    except Exception:  # noqa: BLE001
        found: dict[str, Any] = {}
        namespace = getattr(target, "__globals__", {})
        for name, annotation in getattr(target, "__annotations__", {}).items():
            alone = types.SimpleNamespace(__annotations__={name: annotation})
            # As above; a parameter without a hint is left unconverted.
            with contextlib.suppress(Exception):
                found.update(typing.get_type_hints(alone, namespace, include_extras=True))
        return found


def _target(function: Any) -> Any:
    """The function that has the annotations: inside wrappers, partials, methods and instances."""
    while True:
        if isinstance(function, partial):
            function = function.func
        elif inspect.ismethod(function):
            function = function.__func__
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        else:
            break
    if inspect.isfunction(function) or is_type(function):
        return function
    # An instance with __call__, whose annotations are its class's.
    call = inspect.getattr_static(function.__class__, "__call__", None)
    return call if inspect.isfunction(call) else function
