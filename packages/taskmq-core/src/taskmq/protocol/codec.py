"""Codecs: how arguments and results become bytes, exactly or not at all.

The rule for both built-in codecs: a value comes back as it went, because the format carries it or
because the task's annotation names its type; otherwise it is refused at the call. One exception:
a tuple comes back as a list unless annotated.
"""

from __future__ import annotations

import contextlib
import json
from abc import ABC, abstractmethod
from types import NoneType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from taskmq._internal.guards import is_dict, is_list
from taskmq.errors import ArgumentError, ConfigError, EncodeError, ProtocolError
from taskmq.protocol import exts
from taskmq.protocol.convert import Conversion, SignatureModel
from taskmq.protocol.custom import CustomTypes, Decode, Encode
from taskmq.protocol.lowering import Lowering, is_plain, same, too_deep
from taskmq.transport.types import Payload

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Call = tuple[tuple[Any, ...], dict[str, Any]]

_BASIC: frozenset[type[Any]] = frozenset({NoneType, bool, int, float, str})
_STR: frozenset[type[Any]] = frozenset({str})


class Codec(ABC):
    """A serializer. Subclass it and register it under the entry point `taskmq.codecs`.

    It writes trees of None, bool, int, float, str, list, tuple and dict, and what it declares besides.
    """

    name: ClassVar[str]
    """The word for `serializer=`."""
    content_type: ClassVar[str]
    """What envelopes say of bodies written by it."""
    scalars: ClassVar[frozenset[type[Any]]] = _BASIC
    """The types of leaves that come back exactly as they are."""
    key_types: ClassVar[frozenset[type[Any]]] = _STR
    """The types of dict keys that do."""
    carries_nan: ClassVar[bool] = False
    """Whether floats may be NaN or infinite."""
    exact: ClassVar[Mapping[type[Any], Callable[[Any], Any]]] = {}
    """Further types that come back exactly, and what `encode` is given in their place."""

    @abstractmethod
    def encode(self, obj: Any) -> bytes:
        """Write a tree."""

    @abstractmethod
    def decode(self, data: bytes) -> Any:
        """Read a tree. May raise anything that is an `Exception` on bytes that it can't read."""

    def encode_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
        """Write arguments, by default as a map of `args` and `kwargs`."""
        return self.encode({"args": list(args), "kwargs": dict(kwargs)})


class JsonCodec(Codec):
    """Plain JSON by the standard library: `{"args": [...], "kwargs": {...}}` for any language."""

    name = "json"
    content_type = "application/json"

    def encode(self, obj: Any) -> bytes:
        """Write JSON in UTF-8."""
        return _json_encode(obj).encode()

    def decode(self, data: bytes) -> Any:
        """Read JSON in UTF-8; NaN and Infinity, which are no JSON, are refused."""
        return _json_decode(data.decode())


class MsgspecCodec(Codec):
    """MessagePack: a body is the array [args, kwargs]. Keeps all types of `exts` exactly."""

    name = "msgspec"
    content_type = "application/msgpack"
    scalars = _BASIC | {bytes}
    key_types = frozenset({str, int, float, bool, NoneType, bytes})
    carries_nan = True
    exact = exts.WRAP

    def encode(self, obj: Any) -> bytes:
        """Write MessagePack."""
        return exts.encode(obj)

    def decode(self, data: bytes) -> Any:
        """Read MessagePack."""
        return exts.decode(data)

    def encode_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
        """Write the array [args, kwargs]."""
        return exts.encode((args, kwargs))


class CodecSource(Protocol):
    """Where codecs beyond the built-in ones are looked up: an app's `Plugins`."""

    def names(self, kind: str) -> list[str]:
        """All names of a kind of plugins."""
        ...

    def resolve(self, kind: str, name: str) -> Any:
        """The plugin of this kind and name."""
        ...


class CodecSet:
    """The codecs of one app and the types it has taught them; safe to share between threads."""

    def __init__(self, plugins: CodecSource | None = None) -> None:
        self.types = CustomTypes()
        self._conversions: dict[Any, Conversion] = {}
        self._plugins = plugins
        self._by_name: dict[str, Codec] = {"msgspec": _MSGSPEC, "json": _JSON}
        self._by_content_type: dict[str, Codec] = {
            codec.content_type: codec for codec in self._by_name.values()
        }

    def register_type(self, type_: type[Any], *, encode: Encode, decode: Decode) -> None:
        """Teach a type to all codecs; see `CustomTypes.register`."""
        self.types.register(type_, encode=encode, decode=decode)

    def get(self, name: str) -> Codec:
        """The codec of this name.

        Raises:
            ConfigError: No plugin brings it, or it is no codec.
        """
        if (codec := self._by_name.get(name)) is not None:
            return codec
        if self._plugins is None:
            raise ConfigError(f"unknown codec {name!r}: one of {', '.join(sorted(self._by_name))}")
        plugin: Any = self._plugins.resolve("codecs", name)
        made: object = plugin() if isinstance(plugin, type) else plugin
        if not isinstance(made, Codec):
            raise ConfigError(f"the plugin for the codec {name!r} is no Codec: {plugin!r:.80}")
        self._by_content_type.setdefault(made.content_type, made)
        return self._by_name.setdefault(name, made)

    def encode_call(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        codec: Codec | str = "msgspec",
        signature: SignatureModel | None = None,
    ) -> bytes:
        """Encode the arguments of a call.

        Args:
            args: Positional arguments.
            kwargs: Keyword arguments.
            codec: A codec or its name.
            signature: The task's, if the code is at hand: with it, values that only an annotation
                can restore (dataclasses, enums …) may travel where the annotations do restore them.

        Raises:
            EncodeError: An argument can't travel exactly; the message has its path and the way out.
        """
        codec = self.get(codec) if isinstance(codec, str) else codec
        scalars = codec.scalars
        values = kwargs.values()
        if not _STR.issuperset(map(type, kwargs)):
            raise EncodeError(f"names of arguments must be str: {list(kwargs)!r:.80}")
        simple = scalars.issuperset(map(type, args)) and scalars.issuperset(map(type, values))
        if simple or is_plain([*args, *values], scalars, codec.key_types):
            try:
                return codec.encode_call(args, kwargs)
            except (OverflowError, ValueError):
                # A huge int, a lone surrogate, NaN in JSON: the thorough way finds out which.
                pass
        return self._lower_call(args, kwargs, codec, signature)

    def decode_call(self, body: bytes, content_type: str) -> Call:
        """Decode the arguments of a call.

        Raises:
            ProtocolError: The content type is unknown, or the body is no call.
        """
        tree = self._decode(body, content_type, "the arguments")
        args: object = None
        kwargs: object = None
        if is_dict(tree):
            args, kwargs = tree.get("args", []), tree.get("kwargs", {})
        elif is_list(tree) and len(tree) == 2:
            args, kwargs = tree
        if not is_list(args) or not is_dict(kwargs):
            raise ProtocolError(
                'undecodable arguments: the body must be {"args": [...], "kwargs": {...}} '
                "or [args, kwargs]"
            )
        if not _STR.issuperset(map(type, kwargs)):
            raise ProtocolError("undecodable arguments: a name in kwargs is no text")
        return tuple(args), kwargs

    def encode_value(
        self, value: Any, codec: Codec | str = "msgspec", annotation: Any = Any
    ) -> Payload:
        """Encode a result.

        Args:
            value: What the task returned.
            codec: A codec or its name.
            annotation: The task's return annotation, for what only it can restore.

        Raises:
            EncodeError: The value can't travel exactly.
        """
        codec = self.get(codec) if isinstance(codec, str) else codec
        if is_plain(value, codec.scalars, codec.key_types):
            try:
                return Payload(codec.content_type, codec.encode(value))
            except (OverflowError, ValueError):
                # As in encode_call.
                pass
        lowering = Lowering(codec, self.types)
        data = _encode(codec.encode, lowering.lower(value, "the result"))
        if lowering.changed:
            restored = self._conversion(annotation).convert_or_keep(codec.decode(data))
            if not same(value, restored, self.types):
                raise _needs_annotation("the result", value, codec, "the task's return type")
        return Payload(codec.content_type, data)

    def convert_value(self, tree: Any, annotation: Any) -> Any:
        """A decoded value as the annotated type where it fits, and as it came where not."""
        return self._conversion(annotation).convert_or_keep(tree)

    def decode_value(self, payload: Payload, annotation: Any = Any) -> Any:
        """Decode a result, as the annotated type where it fits and as it came where not.

        Raises:
            ProtocolError: The content type is unknown, or the bytes are not of it.
        """
        tree = self._decode(payload.data, payload.content_type, "the value")
        return tree if annotation is Any else self._conversion(annotation).convert_or_keep(tree)

    def _conversion(self, annotation: Any) -> Conversion:
        # Keyed by identity: annotations need not be hashable. The conversion keeps its own alive.
        found = self._conversions.get(id(annotation))
        if found is None or found.source is not annotation:
            if len(self._conversions) > 10_000:
                self._conversions.clear()
            found = self._conversions[id(annotation)] = Conversion.of(annotation, self.types)
        return found

    def _decode(self, data: bytes, content_type: str, what: str) -> Any:
        codec = self._by_content_type.get(content_type) or self._find_codec(content_type)
        try:
            return codec.decode(data)
        # Hostile bytes bring decoders to raise anything, from UnicodeDecodeError to RecursionError
        # and MemoryError; a message must never bring down what reads it.
        except Exception as error:
            raise ProtocolError(
                f"undecodable {content_type}: {what} can't be read ({type(error).__name__}: {error})"
            ) from error

    def _find_codec(self, content_type: str) -> Codec:
        for name in self._plugins.names("codecs") if self._plugins else ():
            # A broken plugin must not make a message undeliverable that another one reads.
            with contextlib.suppress(ConfigError):
                if self.get(name).content_type == content_type:
                    return self.get(name)
        raise ProtocolError(
            f"unknown content type {content_type!r:.80}: no codec here reads it "
            f"(known: {', '.join(sorted(self._by_content_type))})"
        )

    def _lower_call(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        codec: Codec,
        signature: SignatureModel | None,
    ) -> bytes:
        names = signature.names_of(len(args)) if signature else []
        names += [f"args[{index}]" for index in range(len(names), len(args))]
        lowering = Lowering(codec, self.types)
        lowered = [
            lowering.lower(value, f"argument {name}")
            for name, value in zip(names, args, strict=True)
        ]
        named = {
            lowering.lower(name, "the name of an argument"): lowering.lower(
                value, f"argument {name}"
            )
            for name, value in kwargs.items()
        }
        body = _encode(codec.encode_call, lowered, named)
        if lowering.changed:
            self._check_way_back((args, kwargs), body, codec, names, signature)
        return body

    def _check_way_back(
        self,
        call: tuple[Sequence[Any], Mapping[str, Any]],
        body: bytes,
        codec: Codec,
        names: list[str],
        signature: SignatureModel | None,
    ) -> None:
        """Do what the worker will do, and compare."""
        args, kwargs = self.decode_call(body, codec.content_type)
        if signature is not None:
            try:
                args, kwargs = signature.convert(args, kwargs, types=self.types)
            except ArgumentError as error:
                raise EncodeError(f"the worker would refuse this call: {error}") from error
        sent = {**dict(zip(names, call[0], strict=True)), **call[1]}
        restored = {**dict(zip(names, args, strict=True)), **kwargs}
        for name, value in sent.items():
            if not same(value, restored[name], self.types):
                raise _needs_annotation(f"argument {name}", value, codec, "the task's parameter")


def _encode(encode: Callable[..., bytes], *trees: Any) -> bytes:
    try:
        return encode(*trees)
    except RecursionError as error:
        raise too_deep() from error
    except (OverflowError, ValueError, TypeError) as error:
        raise EncodeError(f"a value can't travel: {error}") from error


def _needs_annotation(what: str, value: object, codec: Codec, whose: str) -> EncodeError:
    return EncodeError(
        f"{what} ({type(value).__qualname__}) would come back changed from {codec.name}: "
        f"annotate {whose} with its exact type, or pass plain values"
    )


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


_json_encode = json.JSONEncoder(
    allow_nan=False, ensure_ascii=False, check_circular=False, separators=(",", ":")
).encode
_json_decode = json.JSONDecoder(parse_constant=_refuse_constant).decode
_MSGSPEC = MsgspecCodec()
_JSON = JsonCodec()
