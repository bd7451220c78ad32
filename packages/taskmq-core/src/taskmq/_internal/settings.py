"""The rule of each `Config` field: how it is checked, and how it is read from the environment."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, cast

import msgspec

from taskmq._internal import checks
from taskmq._internal.guards import is_dict, is_iterable, is_mapping
from taskmq.errors import ConfigError, TaskmqWarning
from taskmq.names import check_name
from taskmq.priority import HIGHEST, LOWEST
from taskmq.retry import Retry
from taskmq.transport.url import TransportURL, mask_url

PREFIX = "TASKMQ_"

Check = Callable[[str, Any], Any]
Parse = Callable[[str], Any]


class Rule(msgspec.Struct, frozen=True):
    """How a field is checked, and how its text in the environment becomes a value."""

    check: Check
    parse: Parse = str
    expected: str = "text"


def read_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """The fields that are set in the environment, parsed but not checked.

    An empty variable counts as not set. Other variables with the prefix are left alone, but one that
    looks like a misspelt field gives a warning.
    """
    found: dict[str, Any] = {}
    for variable, text in environ.items():
        if not variable.startswith(PREFIX) or not text:
            continue
        name = variable[len(PREFIX) :].lower()
        if variable.isupper() and (rule := RULES.get(name)):
            found[name] = _parse(variable, rule, text)
        elif near := get_close_matches(name, RULES, n=1, cutoff=0.85):
            warnings.warn(
                f"{variable} is no setting of taskmq and is ignored; "
                f"did you mean {PREFIX}{near[0].upper()}?",
                TaskmqWarning,
                stacklevel=3,
            )
    return found


def _parse(variable: str, rule: Rule, text: str) -> Any:
    try:
        return rule.parse(text.strip())
    except ConfigError as error:
        raise ConfigError(f"{variable}={mask_url(text)!r:.80}: {error}") from error
    except ValueError:
        raise ConfigError(
            f"{variable} must be {rule.expected}, not {mask_url(text)!r:.80}"
        ) from None


def _flag(text: str) -> bool:
    words = {"1": True, "true": True, "yes": True, "on": True}
    words |= {"0": False, "false": False, "no": False, "off": False}
    if text.lower() not in words:
        raise ConfigError("write true or false")
    return words[text.lower()]


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _json_object(text: str) -> dict[str, Any]:
    try:
        value: object = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ConfigError(f"this is no JSON ({error})") from None
    if not is_dict(value):
        raise ConfigError('write a JSON object, as {"name": {"field": value}}')
    return value


def _integer(minimum: int, maximum: int | None = None) -> Rule:
    return Rule(
        lambda name, value: checks.whole(name, value, minimum, maximum), int, "a whole number"
    )


def _seconds(minimum: float = 0.0) -> Rule:
    return Rule(lambda name, value: float(checks.number(name, value, minimum)), float, "a number")


def _optional(rule: Rule) -> Rule:
    def check(name: str, value: Any) -> Any:
        return None if value is None else rule.check(name, value)

    return Rule(check, rule.parse, rule.expected)


def _words(*allowed: str) -> Rule:
    return Rule(lambda name, value: checks.one_of(name, value, allowed))


def _check_url(name: str, value: Any) -> Any:
    """A URL that can be parsed, or an instance, which is told from a slip by its `close`."""
    if isinstance(value, str):
        TransportURL.parse(value)
    elif isinstance(value, type) or not callable(getattr(value, "close", None)):
        raise ConfigError(f"{name} must be a URL or an instance, not {value!r:.80}")
    return cast("Any", value)


def _check_names(name: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str) or not is_iterable(value):
        raise ConfigError(f"{name} must be a tuple of names, not {value!r:.80}")
    return tuple(check_name(f"each of {name}", each) for each in value)


def _check_timezone(name: str, value: Any) -> str:
    if value == "UTC":
        return "UTC"
    from zoneinfo import ZoneInfo

    try:
        ZoneInfo(check_name(name, value))
    except (KeyError, ValueError, OSError) as error:
        raise ConfigError(
            f"{name}: no time zone {value!r:.80} is known here; write a name such as Asia/Shanghai"
        ) from error
    return cast("str", value)


def _table(kind: str) -> Rule:
    """A mapping from names to structs of one type; from the environment they come as objects."""

    def check(name: str, value: Any) -> Any:
        from taskmq.config import QueueConfig

        item_type: type[QueueConfig | Retry] = QueueConfig if kind == "queue" else Retry
        if not is_mapping(value):
            raise ConfigError(
                f"{name} must map names to {item_type.__name__} objects, not {value!r:.80}"
            )
        table = {
            check_name(kind, key): _item(f"{name}[{key!r}]", item_type, item)
            for key, item in value.items()
        }
        return MappingProxyType(table if kind == "queue" else {"default": Retry(), **table})

    return Rule(check, _json_object)


def _item(name: str, item_type: type[Any], value: Any) -> Any:
    if isinstance(value, item_type):
        return value
    if not is_mapping(value):
        raise ConfigError(f"{name} must be a {item_type.__name__}, not {value!r:.80}")
    known = item_type.__struct_fields__
    for key in value:
        if key not in known:
            raise ConfigError(
                f"{name} has no field {key!r}{checks.did_you_mean(key, known)} "
                f"(fields: {', '.join(known)})"
            )
    return item_type(**value)


_NAME = Rule(check_name)
_FLAG = Rule(checks.flag, _flag)
_URL = Rule(_check_url)
_POSITIVE = 0.001
_PRIORITY = _integer(LOWEST, HIGHEST)

RULES: Mapping[str, Rule] = {
    "concurrency": _integer(1, 10_000),
    "dead_letter_max": _integer(0),
    "dead_letter_ttl": _seconds(),
    "default_priority": _PRIORITY,
    "default_queue": _NAME,
    "eager": _FLAG,
    "enqueue_timeout": _seconds(_POSITIVE),
    "events": _NAME,
    "heartbeat_interval": _seconds(_POSITIVE),
    "hook_errors_fatal": _FLAG,
    "idempotency_ttl": _seconds(),
    "include": Rule(_check_names, _names),
    "job_ttl": _seconds(),
    "lease": _seconds(_POSITIVE),
    "log_format": _words("json", "pretty"),
    "max_abandoned_threads": _integer(0),
    "max_deliveries": _integer(1),
    "max_finished_jobs": _optional(_integer(0)),
    "max_inline_result": _integer(0),
    "max_jobs_per_child": _optional(_integer(1)),
    "max_memory_per_child": _optional(_integer(1)),
    "max_message_bytes": _integer(1),
    "max_poll_interval": _seconds(_POSITIVE),
    "max_yields": _integer(0),
    "plugins": Rule(_check_names, _names),
    "poll_interval": _seconds(_POSITIVE),
    "pool": _NAME,
    "prefetch": _optional(_integer(0)),
    "prefetch_window": _seconds(),
    "queues": _table("queue"),
    "reserved_slots": _integer(0),
    "result": _optional(_URL),
    "result_ttl": _optional(_seconds(_POSITIVE)),
    "retries": _table("retry policy"),
    "serializer": _NAME,
    "shutdown_timeout": _seconds(),
    "timezone": Rule(_check_timezone),
    "transport": _URL,
    "unknown_task_ttl": _seconds(),
    "yield_delay": _seconds(),
    "yield_min_delta": _integer(1, HIGHEST - LOWEST),
}
