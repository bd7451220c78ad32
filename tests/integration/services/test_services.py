"""Each private server starts, answers on loopback, and leaves nothing behind."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from support import services


@pytest.mark.parametrize("name", sorted(services.SERVERS))
def test_service_answers_and_is_gone_after_stop(name: str) -> None:
    missing = services.SERVERS[name].missing()
    if missing:
        message = f"{', '.join(missing)} not found: hatch run services up {name} installs it"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    with services.running(name) as service:
        hosts = urlsplit(service.url).netloc.rpartition("@")[2].split(",")
        places = [(host, int(port)) for host, _, port in (each.partition(":") for each in hosts)]
        for host, port in places:
            assert host == "127.0.0.1"
            socket.create_connection((host, port), timeout=5).close()
    assert all(map(services.gone, service.pids))
    assert not Path(service.folder).exists()
    for place in places:
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(place, timeout=5)


def test_failed_start_leaves_no_process_and_no_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Broken(services.Server):
        def start(self, folder: Path, pids: list[int]) -> str:
            pids.append(services.spawn(["sleep", "60"], folder).pid)
            folder.joinpath("was-here").touch()
            monkeypatch.setattr(self, "seen", (folder, pids[0]), raising=False)
            raise RuntimeError("no start")

    broken = Broken()
    monkeypatch.setitem(services.SERVERS, "broken", broken)
    with pytest.raises(RuntimeError, match="no start"):
        services.start("broken")
    folder, pid = broken.seen  # type: ignore[attr-defined]
    assert services.gone(pid)
    assert not folder.exists()
