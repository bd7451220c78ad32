"""Plugins: looked up in order, imported only when asked for."""

from __future__ import annotations

import sys
import types
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any

import pytest

from taskmq import plugins as module
from taskmq.errors import ConfigError
from taskmq.plugins import PROCESS_PLUGINS, Plugins, load_plugins

if TYPE_CHECKING:
    from collections.abc import Iterator


class One: ...


class Two: ...


@pytest.fixture(autouse=True)
def _fresh_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(PROCESS_PLUGINS, "_registered", {})
    module._load_plugin_modules.cache_clear()
    yield
    module._load_plugin_modules.cache_clear()


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[EntryPoint]]:
    """Entry points as if distributions had brought them, by kind."""
    points: dict[str, list[EntryPoint]] = {}
    monkeypatch.setattr(module, "_entry_points", lambda kind: tuple(points.get(kind, ())))
    return points


def _module(monkeypatch: pytest.MonkeyPatch, name: str, **members: Any) -> None:
    made = types.ModuleType(name)
    vars(made).update(members)
    monkeypatch.setitem(sys.modules, name, made)


def test_builtins_need_no_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_entry_points", lambda kind: pytest.fail("scanned"))

    assert Plugins().resolve("sinks", "null").__name__ == "NullSink"
    assert Plugins().resolve("codecs", "json").__name__ == "JsonCodec"


def test_what_is_registered_in_code_needs_no_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_entry_points", lambda kind: pytest.fail("scanned"))
    module.register_transport("rocketmq", One)

    assert Plugins(PROCESS_PLUGINS).resolve("transports", "rocketmq") is One


@pytest.mark.parametrize(
    ("register", "kind"),
    [
        (module.register_codec, "codecs"),
        (module.register_command, "commands"),
        (module.register_pool, "pools"),
        (module.register_result, "results"),
        (module.register_sink, "sinks"),
        (module.register_transport, "transports"),
    ],
)
def test_each_kind_has_its_function(register: Any, kind: str) -> None:
    register("mine", One)

    assert PROCESS_PLUGINS.resolve(kind, "mine") is One


def test_an_apps_own_registration_stays_its_own_and_goes_first() -> None:
    module.register_sink("mine", One)
    app, other = Plugins(PROCESS_PLUGINS), Plugins(PROCESS_PLUGINS)

    app.register("sinks", "mine", Two)

    assert app.resolve("sinks", "mine") is Two
    assert other.resolve("sinks", "mine") is One


def test_builtins_win_unless_overridden() -> None:
    with pytest.raises(ConfigError, match=r"transport 'memory' is a built-in.*override=True"):
        module.register_transport("memory", One)

    module.register_transport("memory", One, override=True)

    assert PROCESS_PLUGINS.resolve("transports", "memory") is One


def test_a_taken_name_is_refused_but_the_same_plugin_again_is_not() -> None:
    module.register_pool("mine", One)
    module.register_pool("mine", One)

    with pytest.raises(ConfigError, match=r"registered already \(.*One\)"):
        module.register_pool("mine", Two)

    module.register_pool("mine", Two, override=True)
    assert PROCESS_PLUGINS.resolve("pools", "mine") is Two


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown kind of plugin 'brokers': one of transports"):
        Plugins().resolve("brokers", "x")


def test_entry_points_bring_plugins(installed: dict[str, list[EntryPoint]]) -> None:
    installed["sinks"] = [
        EntryPoint("fancy", "taskmq.sinks:LogSink", "taskmq.sinks"),
        EntryPoint("null", "taskmq.sinks:StdoutSink", "taskmq.sinks"),
    ]

    assert Plugins().resolve("sinks", "fancy").__name__ == "LogSink"
    assert Plugins().resolve("sinks", "null").__name__ == "NullSink"


def test_one_name_from_two_distributions_is_refused(
    installed: dict[str, list[EntryPoint]],
) -> None:
    installed["sinks"] = [
        EntryPoint("fancy", "a:Sink", "taskmq.sinks"),
        EntryPoint("fancy", "b:Sink", "taskmq.sinks"),
    ]

    with pytest.raises(ConfigError, match=r"several distributions.*a:Sink.*b:Sink"):
        Plugins().resolve("sinks", "fancy")


def test_a_distribution_may_register_in_code(
    installed: dict[str, list[EntryPoint]], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def setup() -> None:
        calls.append("setup")
        module.register_sink("coded", One)

    _module(monkeypatch, "coded_plugin", setup=setup)
    installed["plugins"] = [EntryPoint("coded", "coded_plugin:setup", "taskmq.plugins")]
    app = Plugins(PROCESS_PLUGINS)

    assert app.resolve("sinks", "coded") is One
    with pytest.raises(ConfigError, match="no plugin brings"):
        app.resolve("sinks", "other")
    assert calls == ["setup"]


def test_a_plugin_that_cannot_be_imported_is_named(
    installed: dict[str, list[EntryPoint]],
) -> None:
    installed["pools"] = [EntryPoint("broken", "no_such_module:Pool", "taskmq.pools")]

    with pytest.raises(ConfigError, match=r"pool 'broken' can't be loaded.*no_such_module"):
        Plugins().resolve("pools", "broken")


@pytest.mark.parametrize(
    ("kind", "name", "distribution"),
    [
        ("transports", "redis", "taskmq-redis"),
        ("results", "rediss", "taskmq-redis"),
        ("transports", "postgresql", "taskmq-postgres"),
        ("transports", "amqp", "taskmq-amqp"),
        ("sinks", "otel", "taskmq-otel"),
        ("pools", "threads", "taskmq-worker"),
        ("runtime", "worker", "taskmq-worker"),
    ],
)
def test_a_known_name_says_which_distribution_to_install(
    installed: dict[str, list[EntryPoint]], kind: str, name: str, distribution: str
) -> None:
    with pytest.raises(ConfigError, match=rf"Install {distribution} \(pip install"):
        Plugins().resolve(kind, name)


def test_an_unknown_name_lists_what_is_registered(
    installed: dict[str, list[EntryPoint]],
) -> None:
    with pytest.raises(ConfigError) as caught:
        Plugins().resolve("transports", "rocketmq")

    text = str(caught.value)
    assert "no plugin brings the transport 'rocketmq'; registered: memory, sqlite" in text
    assert "app.load_plugins" in text
    assert "register_transport" in text


def test_load_plugins_imports_modules_and_calls_functions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _module(monkeypatch, "my_plugin", setup=lambda: module.register_sink("mine", One))

    load_plugins(["my_plugin", "my_plugin:setup"])

    assert PROCESS_PLUGINS.resolve("sinks", "mine") is One


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module", "plugin 'no_such_module' can't be loaded"),
        ("json:no_such_function", "can't be loaded"),
        ("json:__name__", "is no function"),
    ],
)
def test_load_plugins_names_what_is_wrong(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_plugins([name])


def test_load_plugins_takes_a_list() -> None:
    with pytest.raises(ConfigError, match="takes a list"):
        load_plugins("my_plugin")


def test_the_listing_names_source_and_distribution_without_importing(
    installed: dict[str, list[EntryPoint]],
) -> None:
    installed["pools"] = [EntryPoint("far", "no_such_module:Pool", "taskmq.pools")]
    module.register_sink("mine", One)
    module.register_sink("null", Two, override=True)

    lines = {(each.kind, each.name): each for each in Plugins(PROCESS_PLUGINS).listing()}

    assert lines["transports", "memory"].source == "built-in"
    assert lines["transports", "memory"].distribution == "taskmq-core"
    assert lines["pools", "far"].source == "entry point"
    assert lines["pools", "far"].target == "no_such_module:Pool"
    assert lines["sinks", "mine"].source == "registered"
    assert lines["sinks", "null"].target.endswith(":Two")
