"""Arguments and results come back as they went, or are refused at the call."""

from __future__ import annotations

import gzip
import json
import math
import os
import threading
import zlib
from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskmq.errors import ArgumentError, ConfigError, EncodeError, ProtocolError
from taskmq.plugins import Plugins
from taskmq.protocol.codec import Codec, CodecSet, JsonCodec
from taskmq.protocol.convert import SignatureModel
from taskmq.transport.types import Payload

CODECS = ["msgspec", "json"]


class Colour(Enum):
    RED = "red"


class Size(IntEnum):
    BIG = 3


class Pair(NamedTuple):
    left: int
    right: str


@dataclass
class User:
    name: str
    id: UUID
    tags: set[str] = field(default_factory=set)


class Point(msgspec.Struct, frozen=True):
    x: int
    at: datetime | None = None


def _signature(annotation: Any = None) -> SignatureModel:
    def task(value): ...  # type: ignore[no-untyped-def]

    task.__annotations__ = {} if annotation is None else {"value": annotation}
    return SignatureModel.of(task)


def _send(codecs: CodecSet, value: Any, codec: str, annotation: Any = None) -> Any:
    """What a task with this annotation receives."""
    signature = _signature(annotation)
    body = codecs.encode_call((value,), {}, codec, signature)
    args, kwargs = codecs.decode_call(body, codecs.get(codec).content_type)
    (received,), _ = signature.convert(args, kwargs)
    return received


def _deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


SHANGHAI = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=ZoneInfo("Asia/Shanghai"))
TYPED: list[tuple[Any, Any]] = [
    ({1, 2}, set[int]),
    (frozenset({"a"}), frozenset[str]),
    ({1: "a", -5: "b"}, dict[int, str]),
    (b"\x00\xff", bytes),
    (Decimal("1.50"), Decimal),
    (UUID(int=7), UUID),
    (date(2026, 1, 2), date),
    (time(1, 2, 3, 4), time),
    (time(1, 2, tzinfo=timezone.utc), time),
    (datetime.fromisoformat("2026-01-02T03:04:05.678901"), datetime),
    (datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=timezone.utc), datetime),
    (datetime(2026, 1, 2, tzinfo=timezone(timedelta(hours=-3, minutes=-30))), datetime),
    (timedelta(days=-1, seconds=2, microseconds=3), timedelta),
    ({UUID(int=7): 1}, dict[UUID, int]),
    ([Decimal("0.1"), Decimal("1e5")], list[Decimal]),
]
STRUCTURED: list[tuple[Any, Any]] = [
    (Colour.RED, Colour),
    ([Colour.RED], list[Colour]),
    (Size.BIG, Size),
    (Pair(1, "a"), Pair),
    (User("a", UUID(int=1), {"x"}), User),
    ({"a": User("a", UUID(int=1))}, dict[str, User]),
    (Point(1, datetime(2026, 1, 2, tzinfo=timezone.utc)), Point),
    (Path("/tmp/a b"), Path),
    (bytearray(b"x"), bytearray),
    (OrderedDict(a=1), OrderedDict),
]
PLAIN: list[Any] = [
    None,
    True,
    0,
    2**63,
    2**64,
    2**70,
    -(2**70),
    1.5,
    -0.0,
    "",
    "a\x00b",
    "größe 日本 👩‍👩‍👧",
    [],
    {},
    [1, [2, [3]]],
    {"a": {"b": [None]}},
    {"nul\x00key": 1},
]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_plain_values_need_no_annotation(codec: str, value: Any) -> None:
    received = _send(CodecSet(), value, codec)

    assert received == value
    assert type(received) is type(value)
    assert not isinstance(value, float) or math.copysign(1, received) == math.copysign(1, value)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(("value", "annotation"), TYPED + STRUCTURED, ids=repr)
def test_annotated_values_come_back_exactly(codec: str, value: Any, annotation: Any) -> None:
    received = _send(CodecSet(), value, codec, annotation)

    assert received == value
    assert type(received) is type(value)


@pytest.mark.parametrize(("value", "_annotation"), TYPED, ids=repr)
def test_msgspec_keeps_these_without_annotation_and_json_refuses_them(
    value: Any, _annotation: Any
) -> None:
    received = _send(CodecSet(), value, "msgspec")

    assert received == value
    assert type(received) is type(value)
    with pytest.raises(EncodeError, match=r"argument value.* would come back changed from json"):
        _send(CodecSet(), value, "json")


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(("value", "_annotation"), STRUCTURED[:-1], ids=repr)
def test_structured_values_without_annotation_are_refused(
    codec: str, value: Any, _annotation: Any
) -> None:
    if value is Size.BIG:
        pytest.skip("equal to a plain int, see below")
    with pytest.raises(EncodeError, match=r"argument value .*annotate the task's parameter"):
        _send(CodecSet(), value, codec)
    with pytest.raises(EncodeError, match=r"argument args\[0\] .*annotate"):
        CodecSet().encode_call((value,), {}, codec)


@pytest.mark.parametrize("codec", CODECS)
def test_enums_never_turn_into_their_values(codec: str) -> None:
    for value in (Colour.RED, Size.BIG):
        with pytest.raises(EncodeError, match="would come back changed"):
            _send(CodecSet(), value, codec)


@pytest.mark.parametrize("codec", CODECS)
def test_tuples_become_lists_and_subclasses_of_builtins_what_they_equal(codec: str) -> None:
    codecs = CodecSet()
    table: Any = defaultdict(list, a=[1])

    assert _send(codecs, (1, (2,)), codec) == [1, [2]]
    assert _send(codecs, (1, "a"), codec, tuple[int, str]) == (1, "a")
    assert _send(codecs, table, codec) == {"a": [1]}
    assert _send(codecs, OrderedDict(a=1), codec) == {"a": 1}


def test_zones_come_back_by_name() -> None:
    received = _send(CodecSet(), SHANGHAI, "msgspec")

    assert received == SHANGHAI
    assert received.tzinfo == ZoneInfo("Asia/Shanghai")
    by_json = _send(CodecSet(), SHANGHAI, "json", datetime)
    assert (by_json, by_json.utcoffset()) == (SHANGHAI, SHANGHAI.utcoffset())


def test_a_time_of_day_whose_offset_is_unknown_is_refused() -> None:
    with pytest.raises(EncodeError, match="its offset is unknown"):
        _send(CodecSet(), time(1, tzinfo=ZoneInfo("Asia/Shanghai")), "msgspec")


def test_nested_containers_keep_odd_keys_and_members() -> None:
    value = {2**70: 1, (1, "a"): {UUID(int=1): {frozenset({(1, 2)})}}, None: [{1.5: b"x"}]}

    assert _send(CodecSet(), value, "msgspec") == value


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, 1e400])
def test_json_refuses_what_is_no_json_number_and_msgspec_carries_it(number: float) -> None:
    with pytest.raises(EncodeError, match=r"argument value\['a'\]\[1\] is .*json can't carry"):
        _send(CodecSet(), {"a": [1.0, number]}, "json", dict[str, list[float]])

    received = _send(CodecSet(), number, "msgspec")
    assert received == number or (math.isnan(received) and math.isnan(number))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    ("value", "path"),
    [
        ("\ud800", "argument value "),
        (["ok", {"k": "a\udfff"}], "argument value[1]['k'] "),
        ({"\ud800": 1}, "argument value['\\ud800'] "),
    ],
)
def test_lone_surrogates_are_refused_with_their_path(codec: str, value: Any, path: str) -> None:
    with pytest.raises(EncodeError) as caught:
        _send(CodecSet(), value, codec)

    assert str(caught.value).startswith(path + "has a lone surrogate (U+D")
    str(caught.value).encode()


class Reduces:
    def __reduce__(self) -> Any:
        raise RuntimeError("no pickling here")


UNKNOWN: list[Any] = [threading.Lock(), (each for each in "ab"), Reduces(), object(), 1j, int, len]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("value", UNKNOWN, ids=lambda value: type(value).__name__)
def test_unknown_types_fail_at_the_producer_with_path_and_type(codec: str, value: Any) -> None:
    with pytest.raises(EncodeError, match=r"argument value\[0\]\['x'\].* can't travel"):
        _send(CodecSet(), [{"x": value}], codec)
    with pytest.raises(EncodeError, match=r"^the result .*can't travel"):
        CodecSet().encode_value(value, codec)


@pytest.mark.parametrize("codec", CODECS)
def test_what_contains_itself_or_is_too_deep_is_refused_and_no_crash(codec: str) -> None:
    knot: list[Any] = []
    knot += [knot, knot]
    ring: dict[str, Any] = {}
    ring["again"] = ring
    tangled: Any = User("a", UUID(int=1))
    tangled.name = tangled
    codecs = CodecSet()

    for value in (knot, ring, _deep(103), _deep(5000), {"a": {UUID(int=1)}, "b": _deep(5000)}):
        with pytest.raises(EncodeError, match="nested deeper than 100 levels, or contains itself"):
            codecs.encode_call((value,), {}, codec)
        with pytest.raises(EncodeError, match="nested deeper"):
            codecs.encode_value(value, codec)
    with pytest.raises(EncodeError):
        codecs.encode_value(tangled, codec)


@pytest.mark.parametrize("codec", CODECS)
def test_nesting_up_to_the_limit_works(codec: str) -> None:
    assert _send(CodecSet(), _deep(99), codec) == _deep(99)


@pytest.mark.parametrize("codec", CODECS)
def test_ints_are_carried_as_long_as_python_prints_them(codec: str) -> None:
    codecs = CodecSet()

    assert codecs.decode_value(codecs.encode_value(-(10**4000), codec)) == -(10**4000)
    with pytest.raises(EncodeError, match=r"the result is an int of 33,220 bits, at most 14,000"):
        codecs.encode_value(10**10_000, codec)


def test_json_keys_that_would_collide_are_refused() -> None:
    with pytest.raises(EncodeError, match="would come back changed"):
        _send(CodecSet(), {1: "a", "1": "b"}, "json", dict[int, str])


def test_an_annotation_that_does_not_fit_is_refused_at_the_call() -> None:
    with pytest.raises(EncodeError, match=r"the worker would refuse this call: argument value"):
        _send(CodecSet(), Colour.RED, "msgspec", int)
    with pytest.raises(EncodeError, match="would come back changed"):
        _send(CodecSet(), UUID(int=1), "json", str)


def test_a_json_body_is_plain_json_for_any_language() -> None:
    body = CodecSet().encode_call(("é", 1), {"when": None}, "json")

    assert body == '{"args":["é",1],"kwargs":{"when":null}}'.encode()


def test_a_msgspec_body_is_an_array_of_args_and_kwargs() -> None:
    body = CodecSet().encode_call(("a", 1), {"b": 2})

    assert msgspec.msgpack.decode(body) == [["a", 1], {"b": 2}]


@pytest.mark.parametrize("content_type", ["application/json", "application/msgpack"])
def test_calls_of_other_producers_are_read_in_both_shapes(content_type: str) -> None:
    encode = msgspec.json.encode if "json" in content_type else msgspec.msgpack.encode
    codecs = CodecSet()

    for call in ({"args": [1], "kwargs": {"a": 2}}, [[1], {"a": 2}]):
        assert codecs.decode_call(encode(call), content_type) == ((1,), {"a": 2})
    assert codecs.decode_call(encode({"args": [1], "more": True}), content_type) == ((1,), {})
    assert codecs.decode_call(encode({"kwargs": {"a": 2}}), content_type) == ((), {"a": 2})


def _nested_sets() -> bytes:
    data = b"\xc0"
    for _ in range(4000):
        data = msgspec.msgpack.encode(msgspec.msgpack.Ext(1, b"\x91" + data))
    return data


def _ext(code: int, data: bytes) -> bytes:
    return msgspec.msgpack.encode([[msgspec.msgpack.Ext(code, data)], {}])


HOSTILE: dict[str, bytes] = {
    "nothing": b"",
    "random": os.urandom(64),
    "truncated json": b'{"args": [1',
    "truncated msgpack": b"\x92\x91",
    "json, no object": b"3",
    "args are no list": b'{"args": 1}',
    "kwargs are no map": b"[[], []]",
    "three parts": b"[[], {}, {}]",
    "gzip of garbage": gzip.compress(b"x" * 10_000),
    "a bomb": zlib.compress(b"\x00" * 10_000_000),
    "deep json": b"[" * 100_000,
    "deep json objects": b'{"a":' * 100_000,
    "deep msgpack": b"\x91" * 100_000,
    "deep sets": _nested_sets(),
    "an array that lies": b"\xdd\xff\xff\xff\xff",
    "a map that lies": b"\xdf\xff\xff\xff\xff",
    "bytes that lie": b"\xc6\xff\xff\xff\xff",
    "invalid utf-8 in json": b'{"args": ["\xff"]}',
    "invalid utf-8 in msgpack": b"\x92\x91\xa1\xff\x80",
    "NaN in json": b'{"args": [NaN]}',
    "too many digits": b'{"args": [' + b"9" * 5000 + b"]}",
    "a name that is no text": msgspec.msgpack.encode([[], {1: 2}]),
    "unknown extension": _ext(99, b""),
    "bad decimal": _ext(4, b"1,5"),
    "huge decimal": _ext(4, b"1e99999999999999999999"),
    "bad uuid": _ext(3, b"123"),
    "bad datetime": _ext(5, b"yesterday"),
    "bad date": _ext(6, b"\xff"),
    "bad timedelta": _ext(8, msgspec.msgpack.encode([10**12, 0, 0])),
    "unhashable member": _ext(1, msgspec.msgpack.encode([{}])),
    "pairs that are none": _ext(10, msgspec.msgpack.encode([1])),
}


@pytest.mark.parametrize("content_type", ["application/json", "application/msgpack", "x/y", ""])
@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE.keys())
def test_garbage_is_a_protocol_error_and_no_crash(content_type: str, body: bytes) -> None:
    with pytest.raises(ProtocolError, match=r"undecodable|unknown content type"):
        CodecSet().decode_call(body, content_type)


def test_a_zone_of_another_host_leaves_the_instant_right() -> None:
    body = _ext(5, b"2026-01-01T00:00:00+01:00[../../etc/passwd]")

    (value,), _ = CodecSet().decode_call(body, "application/msgpack")

    assert value == datetime(2025, 12, 31, 23, tzinfo=timezone.utc)


@settings(deadline=None)
@given(st.binary(max_size=200), st.sampled_from(["application/json", "application/msgpack"]))
def test_no_bytes_crash_the_decoder(body: bytes, content_type: str) -> None:
    try:
        args, kwargs = CodecSet().decode_call(body, content_type)
    except ProtocolError:
        return

    assert isinstance(args, tuple)
    assert isinstance(kwargs, dict)


texts = st.text(st.characters(exclude_categories=["Cs"])).filter(
    lambda text: "Infinity" not in text
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**80), 2**80),
    st.floats(allow_nan=False),
    texts,
)
rich_scalars = st.one_of(
    scalars,
    st.binary(max_size=20),
    st.decimals(allow_nan=False),
    st.uuids(),
    st.dates(),
    st.times(),
    st.timedeltas(),
    st.datetimes(),
    st.datetimes(timezones=st.just(timezone.utc)),
    st.datetimes(timezones=st.timezones(), allow_imaginary=False),
)
keys = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
plain_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=15,
)
rich_values = st.recursive(
    rich_scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(keys | rich_scalars, inner, max_size=4),
        st.sets(rich_scalars, max_size=4),
        st.frozensets(rich_scalars, max_size=4),
    ),
    max_leaves=15,
)


@settings(deadline=None)
@given(st.lists(rich_values, max_size=3), st.dictionaries(keys, rich_values, max_size=3))
def test_msgspec_calls_survive_a_round_trip(args: list[Any], kwargs: dict[str, Any]) -> None:
    codecs = CodecSet()

    body = codecs.encode_call(args, kwargs)

    assert codecs.decode_call(body, "application/msgpack") == (tuple(args), kwargs)


@settings(deadline=None)
@given(st.lists(plain_values, max_size=3), st.dictionaries(keys, plain_values, max_size=3))
def test_json_calls_survive_a_round_trip_or_are_refused(
    args: list[Any], kwargs: dict[str, Any]
) -> None:
    codecs = CodecSet()
    if "Infinity" in json.dumps([args, kwargs]):
        with pytest.raises(EncodeError, match="json can't carry"):
            codecs.encode_call(args, kwargs, "json")
        return

    body = codecs.encode_call(args, kwargs, "json")

    assert codecs.decode_call(body, "application/json") == (tuple(args), kwargs)
    assert json.loads(body) == {"args": args, "kwargs": kwargs}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(("value", "annotation"), TYPED + STRUCTURED, ids=repr)
def test_results_follow_the_return_annotation(codec: str, value: Any, annotation: Any) -> None:
    codecs = CodecSet()

    payload = codecs.encode_value(value, codec, annotation)

    assert payload.content_type == codecs.get(codec).content_type
    assert codecs.decode_value(payload, annotation) == value


def test_a_result_that_only_an_annotation_could_restore_is_refused_without_one() -> None:
    with pytest.raises(EncodeError, match=r"the result \(User\).*annotate the task's return type"):
        CodecSet().encode_value(User("a", UUID(int=1)))


def test_a_result_that_is_not_what_its_annotation_says_is_given_as_it_came() -> None:
    codecs = CodecSet()

    assert codecs.decode_value(codecs.encode_value("text"), int) == "text"
    assert codecs.decode_value(codecs.encode_value([1, "a"]), list[int]) == [1, "a"]


def test_an_undecodable_result_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError, match="undecodable application/json: the value"):
        CodecSet().decode_value(Payload("application/json", b"{"))


class Money:
    def __init__(self, cents: int) -> None:
        self.cents = cents


@pytest.mark.parametrize("codec", CODECS)
def test_registered_types_travel_where_an_annotation_names_them(codec: str) -> None:
    codecs = CodecSet()
    codecs.register_type(Money, encode=lambda money: {"cents": money.cents}, decode=_money)

    payload = codecs.encode_value([Money(5)], codec, list[Money])
    (restored,) = codecs.decode_value(payload, list[Money])
    assert isinstance(restored, Money)
    assert restored.cents == 5
    with pytest.raises(EncodeError, match="would come back changed"):
        codecs.encode_value([Money(5)], codec)

    def task(price: Money) -> None: ...

    signature = SignatureModel.of(task, types=codecs.types)
    body = codecs.encode_call((Money(7),), {}, codec, signature)
    args, kwargs = codecs.decode_call(body, codecs.get(codec).content_type)
    assert signature.convert(args, kwargs)[0][0].cents == 7


@pytest.mark.parametrize("broken", [KeyError("cents"), RuntimeError("down")])
def test_a_broken_decoder_of_a_registered_type_is_an_argument_error(broken: Exception) -> None:
    def decode(data: object) -> Money:
        raise broken

    codecs = CodecSet()
    codecs.register_type(Money, encode=lambda money: money.cents, decode=decode)

    def task(price: Money) -> None: ...

    with pytest.raises(ArgumentError, match="argument price"):
        SignatureModel.of(task, types=codecs.types).convert((5,), {})


def _money(data: dict[str, int]) -> Money:
    return Money(data["cents"])


@pytest.mark.parametrize("codec", CODECS)
def test_a_broken_encoder_of_a_registered_type_is_named(codec: str) -> None:
    codecs = CodecSet()
    codecs.register_type(Money, encode=lambda money: money.euros, decode=_money)

    with pytest.raises(EncodeError, match=r"Money, whose encoder raised AttributeError"):
        codecs.encode_call((Money(5),), {}, codec)


def test_what_is_no_type_or_function_cannot_be_registered() -> None:
    with pytest.raises(ConfigError, match="takes a class"):
        CodecSet().register_type("Money", encode=str, decode=str)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="decode must be a function"):
        CodecSet().register_type(Money, encode=str, decode=None)  # type: ignore[arg-type]


class Backwards(JsonCodec):
    """A codec of a plugin."""

    name = "backwards"
    content_type = "text/backwards"

    def encode(self, obj: Any) -> bytes:
        return super().encode(obj)[::-1]

    def decode(self, data: bytes) -> Any:
        return super().decode(data[::-1])


def test_a_plugin_may_bring_a_codec() -> None:
    plugins = Plugins()
    plugins.register("codecs", "backwards", Backwards)
    producer, worker = CodecSet(plugins), CodecSet(plugins)

    body = producer.encode_call((1,), {"a": "b"}, "backwards")

    assert body.endswith(b'"sgra"{'[::-1][::-1]) or body.startswith(b"}}")
    # The worker finds it by the content type, though its own configuration never names it.
    assert worker.decode_call(body, "text/backwards") == ((1,), {"a": "b"})
    with pytest.raises(EncodeError, match="would come back changed from backwards"):
        producer.encode_call(({1},), {}, "backwards")


def test_a_wrong_codec_is_refused() -> None:
    plugins = Plugins()
    plugins.register("codecs", "odd", dict)

    with pytest.raises(ConfigError, match="'odd' is no Codec"):
        CodecSet(plugins).get("odd")
    with pytest.raises(ConfigError, match="unknown codec 'pickle': one of json, msgspec"):
        CodecSet().get("pickle")
    with pytest.raises(ConfigError, match="no plugin brings the codec 'pickle'"):
        CodecSet(plugins).get("pickle")
    # A broken plugin does not hide what a message says of itself.
    with pytest.raises(ProtocolError, match="unknown content type 'x/y'"):
        CodecSet(plugins).decode_call(b"", "x/y")


def test_names_of_arguments_must_be_text() -> None:
    with pytest.raises(EncodeError, match="names of arguments must be str"):
        CodecSet().encode_call((), {1: 2})  # type: ignore[dict-item]


def test_nothing_is_shared_with_the_caller() -> None:
    sent = {"a": [1]}

    received = _send(CodecSet(), sent, "msgspec")
    sent["a"].append(2)

    assert received == {"a": [1]}


def test_a_bad_value_for_an_annotation_is_an_argument_error_at_the_worker() -> None:
    codecs = CodecSet()
    body = codecs.encode_call(("not a uuid",), {}, "json", _signature(UUID))

    args, kwargs = codecs.decode_call(body, "application/json")
    with pytest.raises(ArgumentError, match="argument value"):
        _signature(UUID).convert(args, kwargs)


def test_every_codec_has_a_name_and_a_content_type() -> None:
    for name in CODECS:
        codec = CodecSet().get(name)
        assert isinstance(codec, Codec)
        assert codec.name == name
        assert codec.content_type
