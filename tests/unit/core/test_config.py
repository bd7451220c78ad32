"""Settings: checked when built, named when wrong, and never showing a secret."""

from __future__ import annotations

import inspect
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from taskmq._internal.settings import RULES
from taskmq.config import Config, QueueConfig
from taskmq.errors import ConfigError, TaskmqWarning
from taskmq.retry import Retry
from taskmq.transport.types import Retention

if TYPE_CHECKING:
    from collections.abc import Mapping

PROMISED: dict[str, Any] = {
    "transport": "memory://",
    "result": None,
    "result_ttl": None,
    "default_queue": "default",
    "default_priority": 0,
    "queues": {},
    "concurrency": 4,
    "pool": "threads",
    "prefetch": None,
    "prefetch_window": 0.02,
    "lease": 60,
    "heartbeat_interval": 10,
    "shutdown_timeout": 30,
    "max_deliveries": 5,
    "max_yields": 100,
    "yield_min_delta": 1,
    "yield_delay": 0.1,
    "idempotency_ttl": 86400,
    "job_ttl": 3600,
    "max_finished_jobs": None,
    "dead_letter_ttl": 2592000,
    "dead_letter_max": 100000,
    "unknown_task_ttl": 3600,
    "serializer": "msgspec",
    "max_message_bytes": 262144,
    "timezone": "UTC",
    "events": "stdout",
    "log_format": "json",
    "poll_interval": 0.05,
    "max_poll_interval": 0.5,
    "reserved_slots": 0,
    "retries": {"default": Retry(max_attempts=3)},
    "max_jobs_per_child": None,
    "max_memory_per_child": None,
    "max_abandoned_threads": 8,
    "max_inline_result": 65536,
    "hook_errors_fatal": False,
    "eager": False,
    "include": (),
    "plugins": (),
    "enqueue_timeout": 5,
}


class Store:
    """Stands for a transport made by hand."""

    def close(self) -> None: ...


def test_the_defaults_are_those_promised() -> None:
    config = Config()

    assert {each.name: getattr(config, each.name) for each in fields(config)} == PROMISED


def test_every_field_has_a_rule_and_a_docstring() -> None:
    source = Path(inspect.getfile(Config)).read_text("utf-8")

    for each in fields(Config):
        assert each.name in RULES
        assert f"\n    {each.name}: " in source
        after = source.split(f"\n    {each.name}: ")[1].split("\n    ")[1]
        assert after.startswith('"""'), f"{each.name} has no docstring"
    assert set(RULES) == {each.name for each in fields(Config)}


def test_a_config_is_frozen_and_shares_nothing_with_its_caller() -> None:
    queues = {"email": QueueConfig(weight=3)}
    config = Config(queues=queues)
    queues["other"] = QueueConfig()

    assert dict(config.queues) == {"email": QueueConfig(weight=3)}
    with pytest.raises(AttributeError):
        config.lease = 5.0  # type: ignore[misc]
    with pytest.raises(TypeError):
        config.queues["x"] = QueueConfig()  # type: ignore[index]


def test_an_unknown_field_names_the_nearest_known_one() -> None:
    with pytest.raises(ConfigError, match=r"no field 'concurency'; did you mean 'concurrency'"):
        Config(concurency=8)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match=r"'concurrency'\?; see docs/reference/config.md\Z"):
        Config(concurency=8)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="no field 'zzz'.*concurrency, .*transport"):
        Config(zzz=8)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="takes named fields only"):
        Config("memory://")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"transport": "redis"}, "'redis' is no transport URL"),
        ({"transport": 5}, "transport must be a URL or an instance"),
        ({"transport": Store}, "transport must be a URL or an instance"),
        ({"transport": "redis://h:port/1"}, "host or port can't be read"),
        ({"result": "nowhere", "result_ttl": 1}, "is no transport URL"),
        ({"result": "memory://"}, "result needs result_ttl"),
        ({"default_queue": ""}, "default_queue must have 1 to 255"),
        ({"default_priority": 10}, "default_priority must be between -9 and 9, not 10"),
        ({"default_priority": 1.0}, "default_priority must be a whole number"),
        ({"concurrency": 0}, "concurrency must be between 1 and 10000"),
        ({"concurrency": "4"}, "concurrency must be a whole number, not '4'"),
        ({"concurrency": True}, "concurrency must be a whole number"),
        ({"lease": 0}, "lease must be at least 0.001"),
        ({"lease": float("nan")}, "lease must be"),
        ({"lease": "60"}, "lease must be a number"),
        ({"job_ttl": -1}, "job_ttl must be at least 0"),
        ({"job_ttl": 1e300}, "job_ttl must be at least 0 and at most 3155760000, not 1e"),
        ({"log_format": "xml"}, "log_format must be one of 'json', 'pretty'"),
        ({"timezone": "Mars/Olympus"}, "no time zone 'Mars/Olympus'"),
        ({"timezone": "../../etc/passwd"}, "no time zone"),
        ({"eager": 1}, "eager must be True or False"),
        ({"include": "myapp"}, "include must be a tuple of names"),
        ({"plugins": [3]}, "each of plugins must be a str"),
        ({"queues": ["email"]}, "queues must map names to QueueConfig"),
        ({"queues": {"a\x00": QueueConfig()}}, "queue 'a\\x00' has U+0000"),
        ({"queues": {"email": 3}}, "queues['email'] must be a QueueConfig"),
        ({"queues": {"email": {"wieght": 3}}}, "no field 'wieght'; did you mean 'weight'"),
        ({"queues": {"email": {"weight": 0}}}, "QueueConfig.weight must be"),
        ({"retries": {"fast": 3}}, "retries['fast'] must be a Retry"),
        ({"poll_interval": 2}, "max_poll_interval (0.5) must be at least poll_interval"),
        ({"reserved_slots": 4}, "reserved_slots (4) must be less than concurrency (4)"),
        ({"yield_min_delta": 0}, "yield_min_delta must be between 1 and 18"),
    ],
)
def test_a_wrong_value_names_the_field_and_what_is_allowed(
    given: Mapping[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        Config(**given)

    assert message in str(caught.value)


@pytest.mark.parametrize("weight", [0, -1, 1.5, "3"])
def test_a_wrong_weight_is_refused(weight: Any) -> None:
    with pytest.raises(ConfigError, match=r"QueueConfig\.weight"):
        QueueConfig(weight=weight)
    with pytest.raises(ConfigError, match=r"QueueConfig\.priority"):
        QueueConfig(priority=-10)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("transport", "sqlite:///jobs.db", "sqlite:///jobs.db"),
        ("concurrency", " 12 ", 12),
        ("default_priority", "-3", -3),
        ("lease", "1.5", 1.5),
        ("prefetch", "7", 7),
        ("eager", "true", True),
        ("eager", "0", False),
        ("hook_errors_fatal", "ON", True),
        ("include", "a.tasks, b.tasks,", ("a.tasks", "b.tasks")),
        ("plugins", "mod:function", ("mod:function",)),
        ("queues", '{"email": {"weight": 3}}', {"email": QueueConfig(weight=3)}),
        (
            "retries",
            '{"fast": {"max_attempts": 9, "base": 0.1}}',
            {"default": Retry(), "fast": Retry(max_attempts=9, base=0.1)},
        ),
        ("events", "null", "null"),
        ("log_format", "pretty", "pretty"),
    ],
)
def test_the_environment_sets_a_field(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str, value: object
) -> None:
    monkeypatch.setenv(f"TASKMQ_{name.upper()}", text)

    assert getattr(Config(), name) == value


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("CONCURRENCY", "many", "TASKMQ_CONCURRENCY must be a whole number, not 'many'"),
        ("LEASE", "1m", "TASKMQ_LEASE must be a number, not '1m'"),
        ("EAGER", "perhaps", "TASKMQ_EAGER='perhaps': write true or false"),
        ("QUEUES", "email=3", "TASKMQ_QUEUES='email=3': this is no JSON"),
        ("QUEUES", "[1]", "write a JSON object"),
        ("QUEUES", "[" * 100_000, "this is no JSON"),
        ("DEFAULT_PRIORITY", "11", "default_priority must be between -9 and 9"),
        ("TRANSPORT", "redis", "is no transport URL"),
        ("LEASE", "nan", "lease must be"),
    ],
)
def test_a_wrong_environment_variable_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str, message: str
) -> None:
    monkeypatch.setenv(f"TASKMQ_{name}", text)

    with pytest.raises(ConfigError) as caught:
        Config()

    assert message in str(caught.value)


def test_an_argument_goes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKMQ_CONCURRENCY", "12")

    assert Config().concurrency == 12
    # Also when it is the default's value.
    assert Config(concurrency=4).concurrency == 4


def test_an_empty_variable_counts_as_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKMQ_RESULT", "")
    monkeypatch.setenv("TASKMQ_CONCURRENCY", "")

    assert (Config().result, Config().concurrency) == (None, 4)


@pytest.mark.parametrize("other", ["APP", "PORT", "SERVICE_HOST", "STATE_DIR"])
def test_variables_that_are_no_settings_are_left_alone(
    monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    monkeypatch.setenv(f"TASKMQ_{other}", "tcp://10.0.0.1")

    assert Config() == Config()


def test_a_misspelt_variable_gives_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKMQ_CONCURENCY", "12")

    with pytest.warns(TaskmqWarning, match="did you mean TASKMQ_CONCURRENCY") as caught:
        Config()
    assert caught[0].filename == __file__


def test_replace_keeps_what_was_read_and_checks_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config(concurrency=7, lease=5)
    monkeypatch.setenv("TASKMQ_LEASE", "99")

    assert config.replace(concurrency=8) == Config(concurrency=8, lease=5)
    with pytest.raises(ConfigError, match="concurrency"):
        config.replace(concurrency=0)


def test_an_instance_may_be_the_transport() -> None:
    store: Any = Store()

    assert Config(transport=store).transport is store


def test_a_default_policy_is_always_there() -> None:
    assert Config(retries={"fast": Retry(max_attempts=9)}).retries == {
        "default": Retry(max_attempts=3),
        "fast": Retry(max_attempts=9),
    }
    assert Config(retries={"default": Retry(max_attempts=1)}).retries["default"].max_attempts == 1


def test_retention_follows_the_fields() -> None:
    config = Config(dead_letter_ttl=5, dead_letter_max=6, max_finished_jobs=7)

    assert config.retention() == Retention(
        dead_letter_ttl=5.0, dead_letter_max=6, max_finished_jobs=7
    )


def test_no_text_of_a_config_shows_a_password(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "hunter2"
    config = Config(transport=f"redis://app:{secret}@host/1", concurrency=8)

    assert secret not in repr(config)
    assert "redis://app:***@host/1" in repr(config)
    assert "concurrency=8" in repr(config)
    for url in (f"redis:/app:{secret}@host", f"redis://app:{secret}@host:port/1"):
        with pytest.raises(ConfigError) as caught:
            Config(transport=url)
        assert "port" in str(caught.value) or "scheme" in str(caught.value)
        if "://" in url:
            assert secret not in str(caught.value)
    monkeypatch.setenv("TASKMQ_TRANSPORT", f"redis://app:{secret}@host:port/1")
    with pytest.raises(ConfigError) as caught:
        Config()
    assert secret not in str(caught.value)
