"""Arguments are bound as Python binds them, and converted to the annotated types."""

from __future__ import annotations

import contextlib
import functools
import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeVar, Union
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskmq.errors import ArgumentError
from taskmq.protocol.convert import SignatureModel
from taskmq.protocol.custom import CustomTypes

if TYPE_CHECKING:
    from nowhere import Absent  # type: ignore[import-not-found]

UUID_TEXT = "6fd1d6f9-08a5-4460-8751-cd009b7a25f0"
T = TypeVar("T")


class Colour(Enum):
    RED = "red"


@dataclass
class User:
    name: str
    emails: list[str]
    joined: datetime | None = None


class Point(msgspec.Struct):
    x: int
    y: int = 0


class Readable(typing.Protocol):
    def read(self) -> str: ...


class Pair(NamedTuple):
    left: int
    right: str


def plain(a, b=2, /, c=3, *rest, d, e=5, **named): ...  # type: ignore[no-untyped-def]


SHAPES: list[Callable[..., Any]] = [
    lambda: None,
    lambda a: None,
    lambda a, b=1: None,
    lambda a, /, b: None,
    lambda *rest: None,
    lambda a, *rest: None,
    lambda **named: None,
    lambda a, **named: None,
    lambda *, d: None,
    lambda *, d=1: None,
    lambda a, b=2, /, c=3, *rest, d, e=5, **named: None,
    lambda a, /, **named: None,
]


@settings(deadline=None)
@given(
    st.sampled_from(SHAPES),
    st.lists(st.integers(), max_size=4),
    st.dictionaries(st.sampled_from("abcdez"), st.integers(), max_size=4),
)
def test_binding_accepts_exactly_what_a_call_accepts(
    function: Callable[..., Any], args: list[int], kwargs: dict[str, int]
) -> None:
    model = SignatureModel.of(function)
    try:
        function(*args, **kwargs)
    except TypeError:
        with pytest.raises(TypeError):
            model.bind(args, kwargs)
        with pytest.raises(ArgumentError):
            model.convert(args, kwargs)
        return

    model.bind(args, kwargs)
    assert model.convert(args, kwargs) == (tuple(args), kwargs)


def test_the_error_of_a_wrong_call_names_task_signature_and_argument() -> None:
    def send(to: str, subject: str = "hi") -> None: ...

    model = SignatureModel.of(send)

    with pytest.raises(TypeError, match=r"send\(to.*missing a required argument: 'to'"):
        model.bind((), {})
    with pytest.raises(TypeError, match="unknown argument 'cc'"):
        model.bind(("a",), {"cc": "b"})
    with pytest.raises(TypeError, match="multiple values for argument 'to'"):
        model.bind(("a",), {"to": "b"})
    with pytest.raises(TypeError, match="too many positional"):
        model.bind(("a", "b", "c"), {})


def test_bound_names_every_argument_with_defaults() -> None:
    model = SignatureModel.of(plain)

    assert model.bound((1, 2, 3, 4), {"d": 5, "z": 6}) == {
        "a": 1,
        "b": 2,
        "c": 3,
        "rest": (4,),
        "d": 5,
        "e": 5,
        "named": {"z": 6},
    }


CONVERSIONS: list[tuple[Any, Any, Any]] = [
    (int, 3, 3),
    (int, "3", 3),
    (int, True, True),
    (float, 3, 3.0),
    (str, "x", "x"),
    (bytes, "eA==", b"x"),
    (UUID, UUID_TEXT, UUID(UUID_TEXT)),
    (Decimal, "1.50", Decimal("1.50")),
    (datetime, "2026-01-02T03:04:05Z", datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)),
    (Union[UUID, None], None, None),
    (Union[UUID, None], UUID_TEXT, UUID(UUID_TEXT)),
    (Colour, "red", Colour.RED),
    (Path, "/tmp/x", Path("/tmp/x")),
    (Path | None, "/tmp/x", Path("/tmp/x")),
    (Union[Path, int, None], 7, 7),
    (Union[UUID, str], "text", "text"),
    (Union[int, str], "7", "7"),
    (list[Union[int, str]], ["7", 7], ["7", 7]),
    (list[UUID], [UUID_TEXT], [UUID(UUID_TEXT)]),
    (tuple[int, ...], [1, 2], (1, 2)),
    (tuple[int, str], [1, "a"], (1, "a")),
    (set[int], [1, 2], {1, 2}),
    (frozenset[str], ["a"], frozenset({"a"})),
    (dict[int, str], {"1": "a"}, {1: "a"}),
    (dict[UUID, int], {UUID_TEXT: 1}, {UUID(UUID_TEXT): 1}),
    (User, {"name": "a", "emails": ["b"]}, User("a", ["b"])),
    (Point, {"x": 1}, Point(1)),
    (Pair, [1, "a"], Pair(1, "a")),
    (Literal["a", "b"], "a", "a"),
    (Annotated[int, msgspec.Meta(gt=0)], 5, 5),
    (typing.NewType("Id", int), 5, 5),
    (Any, {"x": [1]}, {"x": [1]}),
    (object, "x", "x"),
    (T, "x", "x"),
    (Readable, "x", "x"),
    (typing.Iterable[int], [1], [1]),
    (list, [1], [1]),
    (dict, {"a": 1}, {"a": 1}),
]


def _one(annotation: Any) -> SignatureModel:
    def task(value): ...  # type: ignore[no-untyped-def]

    task.__annotations__ = {"value": annotation}
    return SignatureModel.of(task)


@pytest.mark.parametrize(("annotation", "sent", "received"), CONVERSIONS, ids=str)
def test_values_become_the_annotated_types(annotation: Any, sent: Any, received: Any) -> None:
    model = _one(annotation)

    (by_position,), _ = model.convert((sent,), {})
    _, by_name = model.convert((), {"value": sent})
    (again,), _ = model.convert((received,), {})

    assert by_position == received
    assert type(by_position) is type(received)
    assert by_name == {"value": received}
    assert again == received


@pytest.mark.parametrize(
    ("annotation", "sent", "path"),
    [
        (int, "x", "value"),
        (int, 1.5, "value"),
        (UUID, "no", "value"),
        (User, {"name": "a", "emails": ["b", 3]}, "value.emails[1]"),
        (User, {"emails": []}, "value"),
        (list[Point], [{"x": 1}, {"x": "q"}], "value[1].x"),
        (dict[str, int], {"a": "b"}, "value[...]"),
        (Colour, "blue", "value"),
        (Path, 5, "value"),
        (Path | None, [1], "value"),
        (Union[UUID, Decimal], "zzz", "value"),
        (Literal["a"], "b", "value"),
        (Callable[[], int], "x", "value"),
        (Annotated[int, msgspec.Meta(gt=0)], 0, "value"),
    ],
    ids=str,
)
def test_a_mismatch_names_the_path_of_the_bad_field(annotation: Any, sent: Any, path: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        _one(annotation).convert((sent,), {})

    assert caught.value.path == path
    assert str(caught.value).startswith(f"argument {path}: ")


def test_the_rest_and_named_rest_are_converted_too() -> None:
    def task(first: str, *rest: UUID, **named: Decimal) -> None: ...

    model = SignatureModel.of(task)

    assert model.convert(("a", UUID_TEXT), {"x": "1.5"}) == (
        ("a", UUID(UUID_TEXT)),
        {"x": Decimal("1.5")},
    )
    with pytest.raises(ArgumentError) as caught:
        model.convert(("a", UUID_TEXT, "no"), {})
    assert caught.value.path == "rest[1]"
    assert model.names_of(3) == ["first", "rest[0]", "rest[1]"]


def test_conversion_leaves_the_callers_containers_alone() -> None:
    model = _one(list[UUID])
    sent = [UUID_TEXT]
    kwargs = {"value": sent}

    model.convert((), kwargs)

    assert kwargs == {"value": [UUID_TEXT]}


def test_the_first_parameter_can_be_left_out() -> None:
    def bound(self: object, to: UUID) -> None: ...

    def open_ended(*args: int) -> None: ...

    assert SignatureModel.of(bound, skip_first=True).convert((UUID_TEXT,), {})[0] == (
        UUID(UUID_TEXT),
    )
    SignatureModel.of(open_ended, skip_first=True).bind((1, 2), {})
    with pytest.raises(TypeError, match="needs a first parameter"):
        SignatureModel.of(lambda: None, skip_first=True)
    with pytest.raises(TypeError, match="needs a first parameter"):
        SignatureModel.of(lambda *, a: None, skip_first=True)


def test_a_hint_that_cannot_be_resolved_costs_only_its_own_parameter() -> None:
    def task(what: Absent, when: UUID) -> Decimal:
        raise NotImplementedError

    model = SignatureModel.of(task)

    assert model.convert(("x", UUID_TEXT), {})[0] == ("x", UUID(UUID_TEXT))
    assert model.returns is Decimal


def test_hints_are_resolved_at_first_use_not_before() -> None:
    def task(value: Later) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    model = SignatureModel.of(task)
    globals()["Later"] = UUID
    try:
        assert model.convert((UUID_TEXT,), {})[0] == (UUID(UUID_TEXT),)
    finally:
        del globals()["Later"]


def test_hints_are_found_behind_wrappers_methods_partials_and_instances() -> None:
    def task(value: UUID) -> Decimal:
        raise NotImplementedError

    @functools.wraps(task)
    def wrapped(*args: Any, **kwargs: Any) -> Any: ...

    class Service:
        def method(self, value: UUID) -> Decimal:
            raise NotImplementedError

        @staticmethod
        def static(value: UUID) -> Decimal:
            raise NotImplementedError

        @classmethod
        def made(cls, value: UUID) -> Decimal:
            raise NotImplementedError

        def __call__(self, value: UUID) -> Decimal:
            raise NotImplementedError

    def two(first: int, value: UUID) -> Decimal:
        raise NotImplementedError

    forms: list[Callable[..., Any]] = [
        wrapped,
        Service().method,
        Service.static,
        Service.made,
        Service(),
        functools.partial(two, 1),
    ]
    for form in forms:
        model = SignatureModel.of(form)
        assert model.convert((UUID_TEXT,), {})[0] == (UUID(UUID_TEXT),), form
        assert model.returns is Decimal, form
    assert inspect.signature(wrapped) == inspect.signature(task)
    assert typing.get_type_hints(wrapped) == {"value": UUID, "return": Decimal}


def test_what_has_no_signature_is_refused() -> None:
    with pytest.raises(TypeError):
        SignatureModel.of(type)


class Money:
    def __init__(self, cents: int) -> None:
        self.cents = cents


def test_registered_types_are_restored_where_an_annotation_names_them() -> None:
    def task(price: Money, more: list[Money], maybe: Money | None = None) -> None: ...

    types = CustomTypes()
    model = SignatureModel.of(task, types=types)
    with pytest.raises(ArgumentError, match=r"teach it with app\.register_type"):
        model.convert((5, []), {})
    types.register(Money, encode=lambda money: money.cents, decode=Money)

    (price, more, maybe), _ = model.convert((5, [6], 7), {})

    assert (price.cents, [each.cents for each in more], maybe.cents) == (5, [6], 7)


class Model:
    """Shaped like a model of pydantic."""

    def __init__(self, value: int) -> None:
        self.value = value

    @classmethod
    def model_validate(cls, data: dict[str, int]) -> Model:
        return cls(data["value"])

    def model_dump(self, mode: str) -> dict[str, int]:
        return {"value": self.value}


def test_models_like_pydantics_are_restored() -> None:
    (model,), _ = _one(Model).convert(({"value": 3},), {})

    assert isinstance(model, Model)
    assert model.value == 3


def test_deep_data_is_no_crash() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]

    class Node(msgspec.Struct):
        below: list[Any]

    with contextlib.suppress(ArgumentError):
        _one(Node).convert(({"below": deep},), {})
    # Taken apart by hand: older Pythons crash on freeing it at once.
    while deep:
        deep = deep.pop()
