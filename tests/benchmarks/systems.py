"""The systems that are measured alike: ours and each peer. What a run of one gives is a `Row`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from backends import HERE, Backend, Failed, Place
from counters import per_job, tree_cpu, tree_rss_mib
from enqueue import BULK
from environments import Peer, python_of

PATIENCE = 120.0


@dataclass
class Row:
    """One run: rates in jobs a second, CPU in ms per 1,000 jobs, memory in MiB."""

    single: float
    single_cpu: float
    bulk: float | None = None
    consume: float | None = None
    cpu: float | None = None
    rss: float | None = None
    server: dict[str, tuple[str, float]] = field(default_factory=dict)


@dataclass
class Idle:
    """What an idle worker does: milliseconds from a call to the job's start and, of ours, to `get`."""

    pickup: list[float]
    round_trip: list[float] = field(default_factory=list)
    cpu: float | None = None

    def extend(self, other: Idle) -> None:
        """Add what another series saw; of the CPU while idle the least counts."""
        self.pickup += other.pickup
        self.round_trip += other.round_trip
        if self.cpu is not None and other.cpu is not None:
            self.cpu = min(self.cpu, other.cpu)


class System(Protocol):
    name: str

    def run(self, backend: Backend, jobs: int) -> Row: ...
    def idle(self, backend: Backend, count: int) -> Idle: ...


class Taskmq:
    """A producer process, then a worker process: concurrency 10, threads, results stored, sink null."""

    name = "taskmq"

    def run(self, backend: Backend, jobs: int) -> Row:
        with backend.place() as at:
            sent = at.run(str(HERE / "enqueue.py"), str(jobs))
            row = Row(sent["single"], sent["single_cpu"], sent["bulk"])
            if backend.name == "memory":
                return row
            total = (1 + BULK) * jobs
            before = at.counters.read()
            done = at.run(str(HERE / "consume.py"), str(total))
            row.server = per_job(before, at.counters.read(), total)
        row.consume, row.cpu, row.rss = done["rate"], done["cpu_ms_per_1000"], done["rss_mib"]
        return row

    def idle(self, backend: Backend, count: int) -> Idle:
        script = (str(HERE / "ask.py"), str(count))
        with backend.place() as at:
            if backend.name == "memory":
                return _asked(at.run(*script))
            worker = ("-m", "taskmq", "worker", "--app", "bench_tasks:app", "-c", "10")
            with at.worker(*worker) as process:
                found = _asked(at.run(*script))
                found.cpu = idle_cpu(process.pid)
        return found


def _asked(row: dict[str, float]) -> Idle:
    values: dict[str, list[float]] = row  # type: ignore[assignment]
    return Idle(values["pickup_ms"], values["round_trip_ms"])


class Rival:
    """A peer in its own environment; jobs are counted by its no-op task."""

    def __init__(self, peer: Peer, label: str = "", **environment: str) -> None:
        self.name = label or peer.name
        self.peer = peer
        self.module = ("-m", f"peers.{peer.name}")
        self.environment = environment

    def run(self, backend: Backend, jobs: int) -> Row:
        consumed = max(100, int(jobs * self.peer.consumes))
        with backend.place() as at:
            sent = self._enqueue(at, jobs)
            row = Row(sent["single"], sent["single_cpu"], sent.get("bulk"))
            if consumed >= jobs:
                self._consume(at, int(sent["queued"]), row)
                return row
        with backend.place() as at:
            self._consume(at, int(self._enqueue(at, consumed)["queued"]), row)
        return row

    def _enqueue(self, at: Place, jobs: int) -> dict[str, float]:
        at.environment |= self.environment
        python = python_of(self.peer)
        at.run(*self.module, "prepare", python=python)
        return at.run(*self.module, "enqueue", str(jobs), python=python)

    def _consume(self, at: Place, queued: int, row: Row) -> None:
        """Drain what is queued: from the start of the first job to that of the last."""
        python, before = python_of(self.peer), at.counters.read()
        with at.worker(*self.module, "serve", python=python, BENCH_JOBS=str(queued)) as process:
            first, begun = self._moment(at, "first", process.pid)
            last, ended = self._moment(at, "last", process.pid)
            row.rss = tree_rss_mib(process.pid)
            time.sleep(at.counters.lag)
            row.server = per_job(before, at.counters.read(), queued)
        row.consume = (queued - 1) / (last - first)
        row.cpu = (ended - begun) / queued * 1e6

    def idle(self, backend: Backend, count: int) -> Idle:
        python, stamps = python_of(self.peer), "stamps"
        with backend.place() as at:
            at.environment |= self.environment
            at.run(*self.module, "prepare", python=python)
            with at.worker(*self.module, "serve", python=python) as process:
                at.run(*self.module, "ask", "5", python=python)
                self._wait(at, lambda: len(_lines(at.folder / stamps)) >= 5, "its first jobs")
                at.run(*self.module, "ask", str(count), python=python)
                self._wait(at, lambda: len(_lines(at.folder / stamps)) >= count + 5, "its jobs")
                cpu = idle_cpu(process.pid)
            values = [float(line) * 1000 for line in _lines(at.folder / stamps)[5:]]
        return Idle(values, cpu=cpu)

    def _moment(self, at: Place, name: str, pid: int) -> tuple[float, float]:
        """When a worker marked it, and the CPU that its processes had used a moment later."""
        file = at.folder / name
        self._wait(at, file.exists, f"its {name} job")
        return float(file.read_text()), tree_cpu(pid)

    def _wait(self, at: Place, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > deadline:
                log = (at.folder / "worker.log").read_text(errors="replace")[-3000:]
                raise Failed(f"{self.name}: waited {PATIENCE:.0f} s for {what}; it says:\n{log}")
            time.sleep(0.005)


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def idle_cpu(pid: int, seconds: float = 4.0) -> float:
    """Percent of a core that a process and its children use while nothing happens."""
    time.sleep(0.5)
    before, begin = tree_cpu(pid), time.monotonic()
    time.sleep(seconds)
    return (tree_cpu(pid) - before) / (time.monotonic() - begin) * 100
