"""A storm over worker processes: kills, freezes, stops and clock steps by a seed, and what must hold."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from support.effects import Effect
from support.stepped_clock import step
from support.workers import Fleet, WorkerProcess


@dataclass
class Storm:
    """Does harm to a fleet for a while, and keeps a journal of it.

    Every worker that it ends is replaced at once, as a supervisor would; frozen ones go on later.
    """

    fleet: Fleet
    rng: random.Random
    size: int
    lease: float
    clock: Path
    """The file that holds the offset of the workers' wall clock."""
    journal: list[str] = field(default_factory=list)
    disturbed: set[int] = field(default_factory=set)
    """Processes that were killed, frozen or told to stop: only they may lose what they hold."""
    frozen: dict[int, tuple[WorkerProcess, float]] = field(default_factory=dict)

    def rage(self, seconds: float, calm: float = 0.5) -> None:
        """Harm somebody now and then, for so long."""
        end = time.monotonic() + seconds
        self.fill()
        while time.monotonic() < end:
            time.sleep(self.rng.uniform(0.1, 2 * calm))
            self.thaw(time.monotonic())
            self.harm()
            self.fill()
        self.thaw(float("inf"))

    def harm(self) -> None:
        """One stroke."""
        chosen = [w for w in self.fleet.workers if w.alive and w.pid not in self.frozen]
        if not chosen:
            return
        victim = self.rng.choice(chosen)
        what = self.rng.choices(("kill", "freeze", "stop", "hurry", "clock"), (4, 3, 2, 1, 2))[0]
        if what == "clock":
            self.set_clock(self.rng.choice((-2, -1, 0, 1, 2)) * self.lease)
            return
        self.note(what, victim)
        self.disturbed.add(victim.pid)
        if what == "kill":
            victim.kill()
        elif what == "freeze":
            victim.send(signal.SIGSTOP)
            until = time.monotonic() + self.rng.uniform(0.05, 1.6 * self.lease)
            self.frozen[victim.pid] = (victim, until)
        else:
            victim.send(signal.SIGTERM)
            if what == "hurry":
                victim.send(signal.SIGTERM)

    def set_clock(self, offset: float) -> None:
        """Step the wall clock of all workers; a step forward ends leases that nobody let go of."""
        step(self.clock, offset)
        self.journal.append(f"{time.monotonic():.2f} clock {offset:+.1f} s")
        self.disturbed.update(worker.pid for worker in self.fleet.workers if worker.alive)

    def fill(self) -> None:
        """Start workers until as many as wanted are up and not frozen for long."""
        up = sum(worker.alive for worker in self.fleet.workers)
        for _ in range(self.size - up):
            self.note("start", self.fleet.start(concurrency=self.rng.randint(1, 6)))

    def thaw(self, now: float) -> None:
        """Let those go on whose time is over."""
        for pid, (worker, until) in list(self.frozen.items()):
            if until <= now:
                self.note("go on", worker)
                worker.send(signal.SIGCONT)
                del self.frozen[pid]

    def note(self, what: str, worker: WorkerProcess) -> None:
        """Write it down, for whoever reads a failure."""
        self.journal.append(f"{time.monotonic():.2f} {what} {worker.pid}")


def twice_started(effects: Sequence[Effect]) -> list[str]:
    """Deliveries whose body started more than once: never allowed, whatever happened."""
    counts = Counter((e.job, e.attempt, e.deliveries) for e in effects if e.what == "start")
    return [f"{job} attempt {a} delivery {d}" for (job, a, d), n in counts.items() if n > 1]


def unexplained(effects: Sequence[Effect], disturbed: set[int]) -> list[str]:
    """Attempts that were started again though nothing had happened to the process that held them."""
    starts: dict[tuple[str, int], list[Effect]] = defaultdict(list)
    for effect in effects:
        if effect.what == "start":
            starts[effect.job, effect.attempt].append(effect)
    return [
        f"{job} attempt {attempt} was started again, its holder {earlier.pid} was well"
        for (job, attempt), found in starts.items()
        for earlier in sorted(found, key=lambda e: e.deliveries)[:-1]
        if earlier.pid not in disturbed
    ]
