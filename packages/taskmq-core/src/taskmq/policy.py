"""The checked policy of a task: what its class attributes or decorator arguments say."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal, cast

import msgspec

from taskmq._internal import checks
from taskmq.errors import ConfigError
from taskmq.names import check_key, check_name
from taskmq.priority import HIGHEST, LOWEST
from taskmq.retry import Retry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taskmq.config import Config

Ack = Literal["on_success", "on_receipt", "on_completion"]
Completion = Literal["return", "external"]
RateScope = Literal["worker", "cluster"]

FIELDS = (
    "ack",
    "completion",
    "completion_timeout",
    "concurrency_key",
    "concurrency_limit",
    "expires",
    "hard_timeout",
    "lease",
    "max_deliveries",
    "priority",
    "queue",
    "rate_limit",
    "rate_scope",
    "serializer",
    "store_result",
    "timeout",
)
"""The class attributes of a task that make its policy, besides `name` and `retry_policy`."""

_RATE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*/\s*(s|m|h)\s*")
_PERIODS = {"s": 1.0, "m": 60.0, "h": 3600.0}


class RateLimit(msgspec.Struct, frozen=True):
    """At most `count` starts in `period` seconds, for each worker process or the whole cluster."""

    count: float
    period: float

    @property
    def interval(self) -> float:
        """Seconds between two starts at the full rate."""
        return self.period / self.count


class TaskPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """A task's policy, checked. None leaves the decision to the queue or the configuration."""

    queue: str
    priority: int | None = None
    timeout: float | None = None
    hard_timeout: float | None = None
    ack: Ack = "on_success"
    expires: float | None = None
    max_deliveries: int
    rate_limit: RateLimit | None = None
    rate_scope: RateScope = "worker"
    concurrency_key: str | None = None
    concurrency_limit: int = 1
    serializer: str
    store_result: bool = True
    retry: Retry | None = None
    lease: float | None = None
    completion: Completion = "return"
    completion_timeout: float | None = None

    @property
    def max_attempts(self) -> int:
        """How often a job of the task is tried."""
        return 1 if self.retry is None else self.retry.max_attempts


def check_policy(
    task: str, declared: Mapping[str, Any], retry: object, config: Config
) -> TaskPolicy:
    """Check what a task declares.

    Raises:
        ConfigError: A value is not allowed; the message names task, field and what is.
    """
    found = {name: value for name, value in declared.items() if value is not None}

    def positive(name: str) -> float | None:
        value = found.get(name)
        return None if value is None else _positive(f"{name} of task {task!r}", value)

    def whole(name: str, default: int) -> int:
        return checks.whole(f"{name} of task {task!r}", found.get(name, default), 1, 1_000_000)

    def word(name: str, *allowed: str) -> str:
        return checks.one_of(f"{name} of task {task!r}", found.get(name, allowed[0]), allowed)

    key = found.get("concurrency_key")
    policy = TaskPolicy(
        queue=check_name("queue", found.get("queue", config.default_queue)),
        priority=check_priority(found.get("priority"), f"priority of task {task!r}"),
        timeout=positive("timeout"),
        hard_timeout=positive("hard_timeout"),
        ack=cast("Ack", word("ack", "on_success", "on_receipt", "on_completion")),
        expires=positive("expires"),
        max_deliveries=whole("max_deliveries", config.max_deliveries),
        rate_limit=parse_rate(found["rate_limit"], task) if "rate_limit" in found else None,
        rate_scope=cast("RateScope", word("rate_scope", "worker", "cluster")),
        concurrency_key=None if key is None else check_key("concurrency_key", key),
        concurrency_limit=whole("concurrency_limit", 1),
        serializer=check_name("serializer", found.get("serializer", config.serializer)),
        store_result=checks.flag(f"store_result of task {task!r}", found.get("store_result", True)),
        retry=find_retry(retry, config, task),
        lease=positive("lease"),
        completion=cast("Completion", word("completion", "return", "external")),
        completion_timeout=positive("completion_timeout"),
    )
    _check_together(task, policy)
    return policy


def check_priority(value: object, what: str = "priority") -> int | None:
    """An int from -9 to 9, or None.

    Raises:
        ConfigError: It is something else; priorities are never clamped.
    """
    return None if value is None else int(checks.whole(what, value, LOWEST, HIGHEST))


def check_timeouts(timeout: float | None, hard_timeout: float | None, what: str) -> None:
    """Refuse a cooperative timeout that comes after the hard one."""
    if timeout is not None and hard_timeout is not None and timeout > hard_timeout:
        raise ConfigError(
            f"timeout of {what} ({timeout}) must not be more than its hard_timeout ({hard_timeout})"
        )


def find_retry(retry: object, config: Config, task: str) -> Retry | None:
    """The policy itself, or the one of that name in `Config.retries`."""
    if retry is None or isinstance(retry, Retry):
        return retry
    if isinstance(retry, str) and retry in config.retries:
        return config.retries[retry]
    known = ", ".join(map(repr, sorted(config.retries)))
    raise ConfigError(
        f"retry of task {task!r} must be a Retry or a name in Config.retries ({known}), "
        f"not {retry!r:.80}"
    )


def parse_rate(text: object, task: str) -> RateLimit:
    """Read "100/m": at most so many starts a second (`s`), minute (`m`) or hour (`h`)."""
    match = _RATE.fullmatch(text) if isinstance(text, str) else None
    if match is None or not float(match[1]):
        raise ConfigError(
            f"rate_limit of task {task!r} must be a number above 0 and a unit, as '10/s', '100/m' or "
            f"'1000/h', not {text!r:.80}"
        )
    return RateLimit(float(match[1]), _PERIODS[match[2]])


def positive_seconds(name: str, value: object) -> float:
    """A duration above zero."""
    return _positive(name, value)


def _positive(name: str, value: object) -> float:
    seconds = float(checks.number(name, value))
    if not seconds:
        raise ConfigError(f"{name} must be more than 0; leave it out for no limit")
    return seconds


def _check_together(task: str, policy: TaskPolicy) -> None:
    check_timeouts(policy.timeout, policy.hard_timeout, f"task {task!r}")
    if policy.rate_scope == "cluster" and policy.rate_limit is None:
        raise ConfigError(
            f"rate_scope='cluster' of task {task!r} needs a rate_limit, as rate_limit='100/m'"
        )
    if policy.completion == "return" and policy.completion_timeout is not None:
        raise ConfigError(
            f"completion_timeout of task {task!r} needs completion='external' "
            f"(or return ctx.park(timeout=…))"
        )
