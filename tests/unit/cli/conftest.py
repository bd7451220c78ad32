from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from support.backlog import Backlog
from support.cli import Cli
from taskmq.clock import FakeClock
from taskmq.plugins import register_transport
from taskmq.transport.memory import MemoryTransport

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from taskmq.transport import Transport


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cli]:
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    before = set(sys.modules)
    yield Cli(tmp_path)
    sys.path[:] = path
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", "") and str(tmp_path) in str(
            sys.modules[name].__file__
        ):
            del sys.modules[name]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def transport(cli: Cli, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Transport]:
    """A memory transport that `--transport test://` opens in this process, again and again."""
    transport = MemoryTransport(clock=clock)
    register_transport("test", lambda _url: transport.duplicate(), override=True)
    monkeypatch.setenv("TASKMQ_TRANSPORT", "test://")
    monkeypatch.setenv("COLUMNS", "80")
    yield transport
    transport.close()


@pytest.fixture
def backlog(transport: Transport) -> Backlog:
    return Backlog(transport)
