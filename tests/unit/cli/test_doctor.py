from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from taskmq.errors import TransportError, TransportUnavailable
from taskmq.transport.memory import MemoryTransport
from taskmq.transport.types import Finding

if TYPE_CHECKING:
    from support.backlog import Backlog
    from support.cli import Cli
    from taskmq.clock import FakeClock
    from taskmq.transport import Transport


def subjects(document: dict[str, list[dict[str, str]]], level: str) -> set[str]:
    return {each["subject"] for each in document["findings"] if each["level"] == level}


def test_stale_workers_are_a_warning(backlog: Backlog, cli: Cli, clock: FakeClock) -> None:
    backlog.worker("host-1", heartbeat_interval=10.0)
    assert "workers" in subjects(cli.json("doctor"), "ok")
    clock.advance(60)
    assert "workers" in subjects(cli.json("doctor"), "warning")
    assert "host-1" in cli("doctor").stdout


def test_a_backend_that_is_away_is_an_error_without_its_password(
    transport: Transport, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_self: object) -> None:
        raise TransportUnavailable("test://me:hunter2@host refused the connection")

    monkeypatch.setattr(MemoryTransport, "ping", away)
    result = cli("doctor")
    assert result.exit_code == 1
    assert "is not reached" in " ".join(result.stdout.split())
    assert "hunter2" not in result.output
    assert subjects(cli.json("doctor", code=1), "error") == {"backend"}


def test_an_error_that_the_backend_finds_fails_the_command(
    transport: Transport, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Finding(level="error", subject="rights", message="no write", advice="GRANT it")
    monkeypatch.setattr(MemoryTransport, "diagnose", lambda _self: [found])
    result = cli("doctor")
    assert result.exit_code == 1
    assert "GRANT it" in result.stdout


def test_what_was_migrated_is_told_line_by_line(
    transport: Transport, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryTransport, "migrate", lambda _self: ["schema 1 → 2", "index built"])
    result = cli("doctor", "--migrate")
    assert "migrated: schema 1 → 2\nmigrated: index built\n" in result.stdout
    assert cli.json("doctor", "--migrate")["migrated"] == ["schema 1 → 2", "index built"]


def test_a_transport_without_registry_or_clock_is_examined_all_the_same(
    backlog: Backlog, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_clock(_self: object) -> float:
        raise TransportError("no clock to ask")

    backlog.dead(3)
    monkeypatch.setattr(MemoryTransport, "supports_workers", False)
    monkeypatch.setattr(MemoryTransport, "now", no_clock)
    assert cli("doctor").exit_code == 0
    assert cli("status").exit_code == 0
    assert cli.json("dlq", "replay", "--all")["replayed"] == 3


def test_queues_that_no_worker_serves_are_a_warning(cli: Cli) -> None:
    from support.backlog import Backlog
    from taskmq.transport.sqlite import SqliteTransport

    name = cli.module()
    transport = SqliteTransport.from_url(cli.url)
    Backlog(transport).worker("host-1", queues=("email", "default"))
    document = cli.json("doctor", "--app", name)
    assert "queues" in subjects(document, "warning")
    advice = [each["advice"] for each in document["findings"] if each["subject"] == "queues"]
    assert advice == ["start one: taskmq worker -Q reports"]
    transport.close()


def test_an_app_without_tasks_is_a_warning(cli: Cli) -> None:
    name = cli.module("from taskmq import App, Config\napp = App(Config(events='null'))\n")
    assert "app" in subjects(cli.json("doctor", "--app", name), "warning")
