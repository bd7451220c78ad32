"""Replay and purge of many dead letters by real processes: killed half way, and twice at once."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from support.backlog import Backlog
from support.cli import command, environment, run
from taskmq.states import JobState
from taskmq.transport.sqlite import SqliteTransport

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# A transport that dies in its third batch, before or after the batch is written.
KILLER = """
import os, signal
from taskmq.plugins import register_transport
from taskmq.transport.sqlite import SqliteTransport

class Killer(SqliteTransport):
    calls = 0
    def _count(self, moment):
        Killer.calls += moment == "before"
        if Killer.calls == 3 and moment == os.environ["DIE"]:
            os.kill(os.getpid(), signal.SIGKILL)
    def replay_dead(self, *args, **options):
        self._count("before")
        done = super().replay_dead(*args, **options)
        self._count("after")
        return done
    def purge(self, *args, **options):
        self._count("before")
        done = super().purge(*args, **options)
        self._count("after")
        return done

register_transport("killer", lambda url: Killer.from_url(url.replace("killer:", "sqlite:")))
"""


class Store:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"sqlite:///{folder}/jobs.db"
        self.transport = SqliteTransport.from_url(self.url)
        self.backlog = Backlog(self.transport)
        (folder / "killer.py").write_text(KILLER)

    def dead(self, count: int) -> list[str]:
        ids: list[str] = []
        while len(ids) < count:
            ids += self.backlog.dead(min(1000, count - len(ids)))
        return ids

    def count(self, ids: list[str]) -> Counter[tuple[JobState, int]]:
        found: Counter[tuple[JobState, int]] = Counter()
        for at in range(0, len(ids), 500):
            records = self.transport.get_jobs(ids[at : at + 500])
            found.update((each.state, each.series) for each in records if each is not None)
        return found

    def killed(self, *args: str, moment: str) -> int:
        url = self.url.replace("sqlite:", "killer:")
        options = ("--plugins", "killer", "--transport", url)
        return run(self.folder, *args, *options, DIE=moment).returncode

    def json(self, *args: str) -> dict[str, int]:
        result = run(self.folder, *args, "--transport", self.url, "--json")
        assert result.returncode == 0, result.stderr
        return dict(json.loads(result.stdout))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path)
    yield store
    store.transport.close()


@pytest.mark.parametrize(("moment", "done"), [("before", 1000), ("after", 1500)])
def test_a_replay_killed_half_way_leaves_each_letter_dead_or_replayed_once(
    moment: str, done: int, store: Store
) -> None:
    ids = store.dead(2200)
    assert store.killed("dlq", "replay", "--all", moment=moment) == -signal.SIGKILL
    assert store.count(ids) == {(JobState.QUEUED, 2): done, (JobState.FAILED, 1): 2200 - done}
    rest = 2200 - done
    assert store.json("dlq", "replay", "--all") == {"replayed": rest, "found": rest}
    assert store.count(ids) == {(JobState.QUEUED, 2): 2200}


@pytest.mark.parametrize(("moment", "done"), [("before", 1000), ("after", 1500)])
def test_a_purge_killed_half_way_goes_on_where_it_was(moment: str, done: int, store: Store) -> None:
    ids = store.backlog.queued(2200)
    assert store.killed("purge", "-Q", "email", "--yes", moment=moment) == -signal.SIGKILL
    assert store.count(ids) == {(JobState.REVOKED, 1): done, (JobState.QUEUED, 1): 2200 - done}
    run(store.folder, "purge", "-Q", "email", "--yes", "--transport", store.url)
    assert store.count(ids) == {(JobState.REVOKED, 1): 2200}


def test_two_replays_at_once_replay_each_letter_once(store: Store) -> None:
    ids = store.dead(3000)
    line = command("dlq", "replay", "--all", "--json", "--transport", store.url)
    rivals = [
        subprocess.Popen(
            line,
            cwd=store.folder,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    answers = [json.loads(each.communicate(timeout=150)[0]) for each in rivals]
    assert sum(each["replayed"] for each in answers) == 3000
    assert store.count(ids) == {(JobState.QUEUED, 2): 3000}


MEASURED = """
import json, resource, subprocess, sys
done = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, check=True)
print(json.dumps([json.loads(done.stdout), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss]))
"""
"""Runs a command and says its peak of memory, KiB: from a small process, since a child's peak begins with
that of its parent."""


@pytest.mark.parametrize(
    "count",
    [5_000, pytest.param(100_000, marks=[pytest.mark.soak, pytest.mark.timeout(600)])],
)
def test_very_many_letters_are_replayed_in_bounded_memory(count: int, store: Store) -> None:
    store.dead(count)
    line = command("dlq", "replay", "--all", "--to", "slow", "--json", "--transport", store.url)
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, *line],
        cwd=store.folder,
        env=environment(),
        capture_output=True,
        check=True,
        timeout=500,
    )
    answer, kib = json.loads(done.stdout)
    assert answer == {"replayed": count, "found": count}
    assert sum(each.pending for each in store.transport.stats(["slow"])) == count
    assert kib < 70_000
