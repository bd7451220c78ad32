"""Configuration: one frozen, checked object. Explicit argument > `TASKMQ_<FIELD>` > default."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from taskmq._internal import checks
from taskmq._internal.settings import RULES, read_environment
from taskmq.errors import ConfigError
from taskmq.priority import HIGHEST, LOWEST
from taskmq.retry import Retry
from taskmq.transport.types import Retention
from taskmq.transport.url import mask_url

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taskmq.transport.contract import ResultStore, Transport


class QueueConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What one queue has of its own."""

    weight: int = 1
    """Its share inside a priority band, relative to the other queues of a worker (1 or more)."""
    priority: int | None = None
    """The priority of its jobs when neither call nor task sets one; None takes `default_priority`."""

    def __post_init__(self) -> None:
        checks.whole("QueueConfig.weight", self.weight, 1, 1_000_000)
        if self.priority is not None:
            checks.whole("QueueConfig.priority", self.priority, LOWEST, HIGHEST)


# A dataclass, not a Struct: its own __init__ must tell "given" from "default" for the environment,
# and answer unknown names with a ConfigError. Type checkers see the generated one.
@dataclass(frozen=True, kw_only=True, repr=False)
class Config:
    """The settings of an `App`, checked when built. All durations are seconds, all sizes bytes.

    Every field can be set by an environment variable `TASKMQ_<FIELD>`; an argument goes before it.
    Lists are separated by commas there, `queues` and `retries` are JSON objects.

    Raises:
        ConfigError: A field is unknown or its value is not allowed; the message names both.
    """

    transport: str | Transport = "memory://"
    """The backend that keeps messages, jobs, leases and workers: a URL, or a transport instance."""
    result: str | ResultStore | None = None
    """A separate store for results: a URL or an instance. None keeps them with the job records."""
    result_ttl: float | None = None
    """How long the separate store keeps a result; required with `result`."""
    default_queue: str = "default"
    """The queue of tasks that name none."""
    default_priority: int = 0
    """The priority of jobs for which neither call, task nor queue sets one (-9 to 9)."""
    queues: Mapping[str, QueueConfig] = field(default_factory=dict[str, QueueConfig], hash=False)
    """Weight and priority by name of the queue; others have weight 1 and `default_priority`."""
    concurrency: int = 4
    """How many jobs one worker process runs at a time."""
    pool: str = "threads"
    """What runs the jobs in a worker: `threads`, `asyncio`, `processes`, `solo`, or another's name."""
    prefetch: int | None = None
    """How many unstarted jobs a worker may hold at most. None follows how long jobs take."""
    prefetch_window: float = 0.02
    """With `prefetch=None`: as many as will start within this time."""
    lease: float = 60.0
    """How long a job stays with a worker that gives no sign of life."""
    heartbeat_interval: float = 10.0
    """How often a worker reports itself. Leases are prolonged as often as they need it."""
    shutdown_timeout: float = 30.0
    """How long running jobs may take to finish once a worker was asked to stop."""
    max_deliveries: int = 5
    """How often one attempt is delivered before its job is buried (its workers kept dying)."""
    max_yields: int = 100
    """How often a job may be given up for more urgent ones."""
    yield_min_delta: int = 1
    """How much higher a priority must be for an unstarted job to be given up for it."""
    yield_delay: float = 0.1
    """How long a job that was given up stays away, with jitter."""
    idempotency_ttl: float = 86_400.0
    """How long an idempotency key admits no second job."""
    job_ttl: float = 3_600.0
    """How long the record of an ended job is kept, its result included."""
    max_finished_jobs: int | None = None
    """How many records of ended jobs are kept at most. None: no limit (10,000 on memory://)."""
    dead_letter_ttl: float = 2_592_000.0
    """How long dead letters are kept."""
    dead_letter_max: int = 100_000
    """How many dead letters are kept at most; the oldest go first."""
    unknown_task_ttl: float = 3_600.0
    """How long a job whose task no worker knows waits before it becomes a dead letter."""
    serializer: str = "msgspec"
    """The codec of arguments and results: `msgspec` (MessagePack), `json`, or another's name."""
    max_message_bytes: int = 262_144
    """The largest encoded call, which is refused, and without `result` also the largest result.

    A job with a larger result ends FAILED; a separate result store takes results of any size.
    """
    timezone: str = "UTC"
    """The time zone of schedules that name none, as in the IANA database."""
    events: str = "stdout"
    """Where a worker's events go: `stdout`, `log`, `null`, or the name of another sink."""
    log_format: Literal["json", "pretty"] = "json"
    """How the sink `stdout` writes: `json` lines, or `pretty` for people."""
    poll_interval: float = 0.05
    """The shortest pause between looks at a backend that can't wake its workers."""
    max_poll_interval: float = 0.5
    """The longest such pause, reached while nothing happens."""
    reserved_slots: int = 0
    """Slots of each worker that jobs above priority 0 don't get; less than `concurrency`."""
    retries: Mapping[str, Retry] = field(default_factory=dict[str, Retry], hash=False)
    """Named retry policies, for `retry="name"`. `default` is `Retry(max_attempts=3)` unless given."""
    max_jobs_per_child: int | None = None
    """After how many jobs a child of the pool `processes` is replaced."""
    max_memory_per_child: int | None = None
    """Above how many bytes of resident memory such a child is replaced."""
    max_abandoned_threads: int = 8
    """How many stuck threads make a worker report itself unhealthy."""
    max_inline_result: int = 65_536
    """The largest result that is kept in a job record while the separate store is away."""
    hook_errors_fatal: bool = False
    """Whether an exception in a hook makes the attempt fail."""
    eager: bool = False
    """Run jobs at the call, in the caller's process (for tests)."""
    include: tuple[str, ...] = ()
    """Modules with tasks, imported by workers and commands."""
    plugins: tuple[str, ...] = ()
    """Modules, or `module:function`, that register plugins in code."""
    enqueue_timeout: float = 5.0
    """How long a call may wait for the backend before `TransportUnavailable`."""

    if not TYPE_CHECKING:

        def __init__(self, /, *unnamed: object, **given: object) -> None:
            if unnamed:
                raise ConfigError("Config takes named fields only: Config(transport='memory://')")
            for name in given:
                _check_known(name)
            values = {**_defaults(), **read_environment(os.environ), **given}
            for name, value in values.items():
                object.__setattr__(self, name, RULES[name].check(name, value))
            _check_together(self)

    def replace(self, **changes: Any) -> Config:
        """A copy with some fields changed; the environment is not read again."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return Config(**{**values, **changes})

    def retention(self) -> Retention:
        """What a transport's maintenance is told to keep."""
        return Retention(
            dead_letter_ttl=self.dead_letter_ttl,
            dead_letter_max=self.dead_letter_max,
            max_finished_jobs=self.max_finished_jobs,
        )

    def __repr__(self) -> str:
        defaults = _defaults()
        shown = [
            f"{each.name}={mask_url(repr(value))}"
            for each in fields(self)
            if (value := getattr(self, each.name)) != defaults[each.name]
            and value != _EMPTY_RETRIES
        ]
        return f"Config({', '.join(shown)})"


_PAGE = "docs/reference/config.md"
_EMPTY_RETRIES = {"default": Retry()}


def _defaults() -> dict[str, Any]:
    return {
        each.name: {} if each.name in ("queues", "retries") else each.default
        for each in fields(Config)
    }


def _check_known(name: str) -> None:
    if name not in RULES:
        near = checks.did_you_mean(name, RULES)
        some = f"; see {_PAGE}" if near else f" (fields: {', '.join(sorted(RULES))}; see {_PAGE})"
        raise ConfigError(f"Config has no field {name!r}{near}{some}")


def _check_together(config: Config) -> None:
    if config.result is not None and config.result_ttl is None:
        raise ConfigError("result needs result_ttl: how long the store keeps a result, in seconds")
    if config.max_poll_interval < config.poll_interval:
        raise ConfigError(
            f"max_poll_interval ({config.max_poll_interval}) must be at least poll_interval "
            f"({config.poll_interval})"
        )
    if config.reserved_slots >= config.concurrency:
        raise ConfigError(
            f"reserved_slots ({config.reserved_slots}) must be less than concurrency "
            f"({config.concurrency})"
        )
