"""Plugins: what brings transports, result stores, codecs, sinks, pools and commands.

A name is looked up in this order: built-ins, what was registered in code, entry points. Installed
distributions are scanned only for a name that the first two don't know, and a plugin is imported
only when its name is asked for.
"""

from __future__ import annotations

import importlib
import threading
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import msgspec

from taskmq.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from importlib.metadata import EntryPoint

KINDS = {
    "transports": "transport",
    "results": "result store",
    "codecs": "codec",
    "sinks": "event sink",
    "pools": "pool",
    "commands": "command",
    "runtime": "runtime",
}
"""The kinds of plugins, which are the entry-point groups `taskmq.<kind>`, and their words."""

BUILTINS: Mapping[tuple[str, str], str] = {
    ("transports", "memory"): "taskmq.transport.memory:MemoryTransport",
    ("transports", "sqlite"): "taskmq.transport.sqlite:SqliteTransport",
    ("codecs", "json"): "taskmq.protocol.codec:JsonCodec",
    ("codecs", "msgspec"): "taskmq.protocol.codec:MsgspecCodec",
    ("sinks", "log"): "taskmq.sinks:LogSink",
    ("sinks", "null"): "taskmq.sinks:NullSink",
    ("sinks", "stdout"): "taskmq.sinks:StdoutSink",
}

_DISTRIBUTIONS: Mapping[str, Iterable[tuple[str, str]]] = {
    "taskmq-redis": [
        (kind, name)
        for kind in ("transports", "results")
        for name in ("redis", "rediss", "redis+unix", "redis+sentinel", "rediss+sentinel")
    ],
    "taskmq-postgres": [
        (kind, name) for kind in ("transports", "results") for name in ("postgresql", "postgres")
    ],
    "taskmq-amqp": [("transports", "amqp"), ("transports", "amqps")],
    "taskmq-otel": [("sinks", "otel")],
    "taskmq-worker": [
        *(("pools", name) for name in ("solo", "threads", "asyncio", "processes")),
        ("runtime", "worker"),
        ("runtime", "beat"),
    ],
    "taskmq-cli": [("commands", "worker"), ("commands", "status")],
    "taskmq-celery": [("commands", "celery")],
}
_KNOWN: dict[tuple[str, str], str] = {}
for _name, _keys in _DISTRIBUTIONS.items():
    _KNOWN.update(dict.fromkeys(_keys, _name))


class PluginInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One line of `taskmq plugins`: a name, where its object comes from, and who brought it."""

    kind: str
    name: str
    target: str
    distribution: str
    source: str
    """"built-in", "registered" or "entry point"."""


class Plugins:
    """The plugins that one app sees: its own registrations before those of the process."""

    def __init__(self, parent: Plugins | None = None) -> None:
        self._parent = parent
        self._registered: dict[tuple[str, str], tuple[Any, bool]] = {}
        self._lock = threading.Lock()

    def register(self, kind: str, name: str, plugin: Any, *, override: bool = False) -> None:
        """Make a plugin known under a name.

        Args:
            kind: One of `KINDS`, for example "transports".
            name: The URL scheme, or the name used in `Config`.
            plugin: The class or factory; "module:attribute" is imported at first use.
            override: Replace a built-in or an earlier registration.

        Raises:
            ConfigError: The name is taken and `override` is not set.
        """
        _check_kind(kind)
        key = (kind, name.lower() if kind in ("transports", "results") else name)
        with self._lock:
            taken = "is a built-in" if key in BUILTINS else ""
            if (earlier := self._registered.get(key)) is not None:
                if earlier[0] == plugin:
                    return
                taken = f"is registered already ({_target(earlier[0])})"
            if taken and not override:
                raise ConfigError(
                    f"the {KINDS[kind]} {name!r} {taken}: "
                    f"take another name, or replace it with override=True"
                )
            self._registered[key] = (plugin, override)

    def resolve(self, kind: str, name: str) -> Any:
        """The plugin of this kind and name, imported now if need be.

        Raises:
            ConfigError: Nothing is known under it, or its import failed.
        """
        _check_kind(kind)
        key = (kind, name)
        found = self._find(key)
        if found is None:
            found = _entry_point(kind, name)
        if found is None:
            # What a plugin module registers in code while it is loaded counts too.
            _load_plugin_modules()
            found = self._find(key)
        if found is None:
            raise ConfigError(self._unknown(kind, name))
        return _load(found, f"{KINDS[kind]} {name!r}") if _is_lazy(found) else found

    def names(self, kind: str) -> list[str]:
        """All names of a kind, sorted; scans the installed distributions."""
        return [info.name for info in self.listing() if info.kind == kind]

    def listing(self) -> list[PluginInfo]:
        """Everything that could be resolved, by kind and name, without importing it."""
        infos: dict[tuple[str, str], PluginInfo] = {}
        for kind in KINDS:
            for point in _entry_points(kind):
                infos.setdefault((kind, point.name), _info_of_point(kind, point))
        for key, target in BUILTINS.items():
            infos[key] = _info(key, target, "taskmq-core", "built-in")
        for key, (plugin, _) in self.registered().items():
            infos[key] = _info(key, _target(plugin), _distribution_of(plugin), "registered")
        order = list(KINDS)
        return sorted(infos.values(), key=lambda info: (order.index(info.kind), info.name))

    def registered(self) -> dict[tuple[str, str], tuple[Any, bool]]:
        """What was registered in code, with its `override`, by kind and name."""
        above = self._parent.registered() if self._parent else {}
        return {**above, **self._registered}

    def _find(self, key: tuple[str, str]) -> Any:
        plugin, override = self.registered().get(key, (None, False))
        builtin = BUILTINS.get(key)
        return plugin if plugin is not None and (override or builtin is None) else builtin

    def _unknown(self, kind: str, name: str) -> str:
        word = KINDS[kind]
        known = self.names(kind)
        text = f"no plugin brings the {word} {name!r}; registered: {', '.join(known) or 'none'}. "
        if distribution := _KNOWN.get((kind, name)):
            return text + f"Install {distribution} (pip install {distribution})"
        return text + (
            f"Install the distribution that has it, or register it: app.load_plugins([…]), "
            f"TASKMQ_PLUGINS or taskmq.plugins.register_{_FUNCTION.get(kind, word)}"
        )


_FUNCTION = {"results": "result", "sinks": "sink"}

PROCESS_PLUGINS = Plugins()
"""What was registered in code for the whole process."""


def register_codec(name: str, codec: Any, *, override: bool = False) -> None:
    """Register a codec (a `taskmq.protocol.codec.Codec` class) for `serializer=`."""
    PROCESS_PLUGINS.register("codecs", name, codec, override=override)


def register_command(name: str, command: Any, *, override: bool = False) -> None:
    """Register a click command of `taskmq`."""
    PROCESS_PLUGINS.register("commands", name, command, override=override)


def register_pool(name: str, pool: Any, *, override: bool = False) -> None:
    """Register a worker pool for `Config(pool=…)`."""
    PROCESS_PLUGINS.register("pools", name, pool, override=override)


def register_result(scheme: str, store: Any, *, override: bool = False) -> None:
    """Register a result store: a class with `from_url`, or a function of the URL."""
    PROCESS_PLUGINS.register("results", scheme, store, override=override)


def register_sink(name: str, sink: Any, *, override: bool = False) -> None:
    """Register an event sink: a class or a function that makes one."""
    PROCESS_PLUGINS.register("sinks", name, sink, override=override)


def register_transport(scheme: str, transport: Any, *, override: bool = False) -> None:
    """Register a transport: a class with `from_url`, or a function of the URL."""
    PROCESS_PLUGINS.register("transports", scheme, transport, override=override)


def load_plugins(names: Iterable[str]) -> None:
    """Import modules that register plugins; of `module:function` the function is called too.

    Raises:
        ConfigError: A module can't be imported, or has no such function.
    """
    if isinstance(names, str):
        raise ConfigError(f"load_plugins takes a list of names: load_plugins([{names!r}])")
    for name in names:
        loaded = _load(name, f"plugin {name!r}")
        if ":" in name:
            if not callable(loaded):
                raise ConfigError(f"plugin {name!r} is no function: {loaded!r:.80}")
            loaded()


def _check_kind(kind: str) -> None:
    if kind not in KINDS:
        raise ConfigError(f"unknown kind of plugin {kind!r}: one of {', '.join(KINDS)}")


def _is_lazy(plugin: object) -> bool:
    return isinstance(plugin, str) or type(plugin).__name__ == "EntryPoint"


def _load(what: Any, word: str) -> Any:
    try:
        if not isinstance(what, str):
            return what.load()
        module, _, attribute = what.partition(":")
        loaded: Any = importlib.import_module(module)
        for part in attribute.split(".") if attribute else ():
            loaded = getattr(loaded, part)
    # A plugin's import may raise anything; one clear error says whose it was.
    except Exception as error:
        raise ConfigError(
            f"{word} can't be loaded from {_target(what)!r}: {type(error).__name__}: {error}"
        ) from error
    return loaded


@cache
def _entry_points(kind: str) -> tuple[EntryPoint, ...]:
    # Imported here: with the scan it costs more than all of `import taskmq`.
    from importlib.metadata import entry_points

    points = entry_points(group=f"taskmq.{kind}")
    return tuple(sorted(points, key=lambda point: (point.name, point.value)))


def _entry_point(kind: str, name: str) -> EntryPoint | None:
    matches = {point.value: point for point in _entry_points(kind) if point.name == name}
    if len(matches) > 1:
        who = ", ".join(f"{_distribution(point)} ({value})" for value, point in matches.items())
        raise ConfigError(f"the {KINDS[kind]} {name!r} is brought by several distributions: {who}")
    return next(iter(matches.values()), None)


@cache
def _load_plugin_modules() -> None:
    """Load, once, the modules that distributions name under `taskmq.plugins`."""
    load_plugins(point.value for point in _entry_points("plugins"))


def _distribution(point: EntryPoint) -> str:
    return point.dist.name if point.dist else ""


def _distribution_of(plugin: Any) -> str:
    """The top-level package of what was registered in code: its distribution is not known."""
    return _target(plugin).partition(":")[0].partition(".")[0]


def _info(key: tuple[str, str], target: str, distribution: str, source: str) -> PluginInfo:
    kind, name = key
    return PluginInfo(kind=kind, name=name, target=target, distribution=distribution, source=source)


def _info_of_point(kind: str, point: EntryPoint) -> PluginInfo:
    return _info((kind, point.name), point.value, _distribution(point), "entry point")


def _target(plugin: Any) -> str:
    if isinstance(plugin, str):
        return plugin
    if _is_lazy(plugin):
        return cast("str", plugin.value)
    name = getattr(plugin, "__qualname__", type(plugin).__qualname__)
    return f"{getattr(plugin, '__module__', '?')}:{name}"
