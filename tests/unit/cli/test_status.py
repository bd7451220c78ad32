from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from support.backlog import Backlog
    from support.cli import Cli
    from taskmq.clock import FakeClock
    from taskmq.transport import Transport


def test_queues_show_what_they_hold(backlog: Backlog, cli: Cli, clock: FakeClock) -> None:
    backlog.queued(3)
    backlog.queued(2, delay=60.0)
    backlog.dead(1, "reports")
    clock.advance(30)
    document = cli.json("status")
    by_name = {each["queue"]: each for each in document["queues"]}
    assert (by_name["email"]["pending"], by_name["email"]["delayed"]) == (3, 2)
    assert by_name["email"]["oldest_age"] == pytest.approx(30)
    assert by_name["reports"]["dead"] == 1
    text = cli("status").stdout
    row = next(line for line in text.splitlines() if line.startswith("email"))
    assert row.split()[1:] == ["3", "2", "0", "0", "30", "s"]


def test_workers_show_their_load_and_stale_ones_are_marked(
    backlog: Backlog, cli: Cli, clock: FakeClock
) -> None:
    backlog.worker("host-1-old", heartbeat_interval=10.0)
    clock.advance(60)
    backlog.worker("host-2-new", in_flight=3, heartbeat_interval=10.0)
    text = cli("status").stdout
    old, new = (line for line in text.splitlines() if line.startswith("host-"))
    assert "STALE" in old
    assert "60 s" in old
    assert "3/8" in new
    assert "running" in new
    stale = {each["id"]: each["stale"] for each in cli.json("status")["workers"]}
    assert stale == {"host-1-old": True, "host-2-new": False}


def test_everything_fits_80_columns(backlog: Backlog, cli: Cli) -> None:
    backlog.queued(2, "a queue with a rather long name, " * 6, priority=7)
    backlog.queued(100, "email")
    backlog.parked()
    names = tuple(f"queue-number-{number}" for number in range(20))
    backlog.worker("a-host-name-that-is-quite-long-1234567-abcdef0123456789", queues=names)
    for args in (("status",), ("status", "--by-priority")):
        lines = cli(*args).stdout.splitlines()
        assert max(map(len, lines)) <= 80, lines
    assert "queue-number-19" in cli("status").stdout.replace("\n", "")


def test_priorities_are_told_apart_the_highest_first(backlog: Backlog, cli: Cli) -> None:
    backlog.queued(2, priority=-5)
    backlog.queued(1, priority=9)
    lines = cli("status", "--by-priority").stdout.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("email"))
    assert [line.split()[:2] for line in lines[at + 1 : at + 3]] == [["9", "1"], ["-5", "2"]]


def test_an_empty_backend_says_so(transport: Transport, cli: Cli) -> None:
    text = cli("status").stdout
    assert "nothing is enqueued" in text
    assert "No workers are running" in text


def test_limitations_and_missing_capabilities_are_printed(
    transport: Transport, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = type(transport)
    monkeypatch.setattr(kind, "supports_workers", False)
    monkeypatch.setattr(kind, "limitations", {"global_priority": "per queue only"})
    text = cli("status").stdout
    assert "keeps no registry" in text
    assert "per queue only" in text
    assert "lacks" in text
    assert cli.json("status")["workers"] is None


def test_passwords_of_the_url_are_not_shown(
    transport: Transport, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_self: object) -> None:
        from taskmq.errors import TransportUnavailable

        raise TransportUnavailable("test://me:hunter2@host/0 is away")

    monkeypatch.setattr(type(transport), "stats", lambda self, queues=None: away(self))
    result = cli("status", "--debug")
    assert result.exit_code == 1
    assert "hunter2" not in result.output
    assert "me:***@host" in result.stderr


def test_watch_renews_until_interrupted(
    backlog: Backlog, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds: list[float] = []

    def sleep(seconds: float) -> None:
        rounds.append(seconds)
        backlog.queued(1)
        if len(rounds) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", sleep)
    result = cli("status", "--watch", "--json", "--interval", "0.5")
    assert result.exit_code == 130
    documents = [json.loads(line) for line in result.stdout.splitlines()]
    assert [sum(q["pending"] for q in each["queues"]) for each in documents] == [0, 1, 2]
    assert rounds == [0.5] * 3
    rounds.clear()
    assert cli("status", "--watch").exit_code == 130


def test_without_app_and_transport_the_way_out_is_told(cli: Cli) -> None:
    for command in (
        ("status",),
        ("jobs", "list"),
        ("dlq", "list"),
        ("doctor",),
        ("purge", "-Q", "x"),
    ):
        result = cli(*command)
        assert result.exit_code == 2
        assert "--app" in result.stderr
        assert "--transport" in result.stderr


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("nonsense", "is no transport URL"),
        ("amqp://host", "taskmq-amqp"),
        ("foo://host", "registered: "),
        ("memory://host", "memory"),
    ],
)
def test_a_wrong_url_is_a_configuration_error(url: str, hint: str, cli: Cli) -> None:
    result = cli("status", "--transport", url)
    assert result.exit_code == 2
    assert hint in result.stderr
    assert len(result.stderr.splitlines()) <= 2


def test_shared_options_are_taken_before_and_after_the_command(
    backlog: Backlog, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TASKMQ_TRANSPORT")
    backlog.queued(1)
    before = cli("--transport", "test://", "--json", "status")
    after = cli("status", "--json", "--transport", "test://")
    between = cli("jobs", "--transport", "test://", "list", "--json")
    assert json.loads(before.stdout) == json.loads(after.stdout)
    assert len(json.loads(between.stdout)["jobs"]) == 1
    later = cli("--transport", "foo://x", "status", "--transport", "test://")
    assert later.exit_code == 0


def test_memory_in_another_process_gets_a_note(cli: Cli) -> None:
    result = cli("status", "--transport", "memory://")
    assert result.exit_code == 0
    assert "lives in one process" in result.stderr
