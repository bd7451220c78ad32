"""From a URL to a transport or a result store."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from taskmq.errors import ConfigError
from taskmq.plugins import Plugins
from taskmq.transport.open import open_result_store, open_transport


class Fake:
    """Stands for a backend; remembers how it was made."""

    made: ClassVar[list[tuple[str, float]]] = []

    @classmethod
    def from_url(cls, url: str, *, timeout: float = 5.0) -> Fake:
        cls.made.append((url, timeout))
        return cls()

    def put(self) -> None: ...

    def reserve(self) -> None: ...


@pytest.fixture
def plugins() -> Plugins:
    Fake.made.clear()
    plugins = Plugins()
    plugins.register("transports", "fake", Fake)
    plugins.register("results", "fake", Fake)
    return plugins


def test_an_instance_is_taken_as_it_is(plugins: Plugins) -> None:
    instance: Any = Fake()
    opened: list[object] = [
        open_transport(instance, plugins),
        open_result_store(instance, plugins),
    ]

    assert all(each is instance for each in opened)


def test_a_url_is_given_to_the_class_of_its_scheme_with_the_timeout(plugins: Plugins) -> None:
    assert isinstance(open_transport("FAKE://h/1?a=b", plugins, 3.0), Fake)
    assert isinstance(open_result_store("fake://r", plugins), Fake)
    assert Fake.made == [("FAKE://h/1?a=b", 3.0), ("fake://r", 5.0)]


def test_a_function_may_make_the_transport(plugins: Plugins) -> None:
    seen: list[str] = []

    def make(url: str) -> Fake:
        seen.append(url)
        return Fake()

    plugins.register("transports", "made", make)

    assert isinstance(open_transport("made://x", plugins), Fake)
    assert seen == ["made://x"]


def test_a_plugin_that_makes_something_else_is_named(plugins: Plugins) -> None:
    plugins.register("transports", "odd", lambda url: "nothing")

    with pytest.raises(ConfigError) as caught:
        open_transport("odd://u:secret1@h", plugins)

    assert "made a str, which has no reserve()" in str(caught.value)
    assert "secret1" not in str(caught.value)


def test_an_unknown_scheme_names_what_to_install(plugins: Plugins) -> None:
    with pytest.raises(ConfigError, match=r"transport 'amqp'.*pip install taskmq-amqp"):
        open_transport("amqp://h", plugins)


def test_a_builtin_transport_is_found_without_asking_distributions(
    monkeypatch: pytest.MonkeyPatch, plugins: Plugins
) -> None:
    monkeypatch.setattr("taskmq.plugins._entry_points", lambda kind: pytest.fail("scanned"))

    transport = open_transport("memory://", plugins)

    assert type(transport).__name__ == "MemoryTransport"
    transport.close()
