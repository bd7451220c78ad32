"""The pool `processes`: each slot is a child process that may be killed at any time."""

from __future__ import annotations

import logging
import os
import select
import sys
from queue import Empty, SimpleQueue
from threading import Event, Lock
from typing import TYPE_CHECKING, ClassVar

from taskmq.clock import SYSTEM_CLOCK
from taskmq.errors import ConfigError
from taskmq.transport.url import mask
from taskmq_worker.children import wire
from taskmq_worker.children.loading import app_path_of
from taskmq_worker.children.process import Child
from taskmq_worker.children.slot import ChildSlot, Request
from taskmq_worker.pools.base import Pool, PoolHealth

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from taskmq_worker.buffer import Buffer
    from taskmq_worker.pools.base import Surroundings
    from taskmq_worker.reservation import Reservation

_log = logging.getLogger("taskmq.worker")
_monotonic = SYSTEM_CLOCK.monotonic

START_TIMEOUT = 120.0
"""How long a child may take to import the app, seconds."""
EXIT_TIMEOUT = 5.0
"""How long a dismissed child may take to end before it is killed, seconds."""


class TaskPace:
    """How long the jobs of each task take: believes bad news faster than good news."""

    def __init__(self) -> None:
        self._averages: dict[str, float] = {}
        self._never_ahead: frozenset[str] = frozenset()

    def never_ahead(self, tasks: Iterable[str]) -> None:
        """Hand these over only when they can start."""
        self._never_ahead = frozenset(tasks)

    def of(self, task: str) -> float:
        """Seconds that a job of this task is likely to take; infinite while that is unknown."""
        return self._averages.get(task, float("inf"))

    def note(self, task: str, seconds: float) -> None:
        """A job of the task took this long."""
        if task in self._never_ahead:
            return
        average = self._averages.get(task, seconds)
        share = 0.5 if seconds > average else 0.1
        self._averages[task] = average + (seconds - average) * share


class ProcessesPool(Pool):
    """Children started beforehand, each with private channels; see ADR 4 for what a death leaves."""

    name: ClassVar[str] = "processes"
    enforces_hard_timeout: ClassVar[bool] = True

    def __init__(self, slots: int) -> None:
        super().__init__(slots)
        self.draining = False
        self.pace = TaskPace()
        self._slots: list[ChildSlot] = []
        self._alive = 0
        self._lock = Lock()
        self._parted: SimpleQueue[Child | None] = SimpleQueue()
        self._reaped = Event()

    def configure(self, around: Surroundings) -> None:
        """Find out where children import the app from."""
        super().configure(around)
        if not hasattr(select, "poll") or not hasattr(os, "killpg"):
            raise ConfigError("pool='processes' needs Linux or macOS: use pool='threads' here")
        path = app_path_of(around.app_path)
        root = logging.getLogger()
        self._setup = wire.Setup(
            app_path=path,
            worker=around.worker,
            path=list(sys.path),
            argv=list(sys.argv),
            relayed=around.app.transport.lives_here,
            events=False,
            log_level=root.level if root.handlers else None,
            max_memory=around.config.max_memory_per_child,
        )
        # Their admission has effects that must not be repeated, so they are never taken back.
        self.pace.never_ahead(
            task.name
            for task in around.app.tasks.values()
            if task.policy.rate_limit is not None or task.policy.ack == "on_receipt"
        )

    def open(self) -> None:
        """Start all children at once, and wait until each has imported the app."""
        from msgspec.structs import replace

        root = logging.getLogger()
        self._setup = replace(
            self._setup,
            events=self.around.app.events.enabled,
            log_level=root.level if root.handlers else None,
        )
        children: list[Child] = []
        try:
            # One by one, so that those before a failure can be ended.
            children.extend(Child(self._setup) for _ in range(self.slots))
            for child in children:
                self._check(child.await_ready(START_TIMEOUT))
        except OSError as error:
            _end_all(children)
            raise ConfigError(f"a child process can't be started: {error}") from error
        except BaseException:
            _end_all(children)
            raise
        self._slots = [ChildSlot(self) for _ in children]
        for slot, child in zip(self._slots, children, strict=True):
            slot.adopt(child)

    def start(
        self,
        buffer: Buffer,
        work: Callable[[Reservation], None],
        spawn: Callable[[str, Callable[[], None]], None],
    ) -> None:
        """Start the threads that own the children."""
        self.buffer = buffer
        self.work = work
        self._alive = self.slots
        for number, slot in enumerate(self._slots):
            spawn(f"slot-{number}", slot.run)
            spawn(f"slot-{number}-control", slot.desk.run)
        spawn("slot-reaper", self._reap)

    def cancel(self, reservation: Reservation, *, terminate: bool) -> bool:
        """Pass the flags on to the child; with `terminate` kill it."""
        for slot in self._slots:
            slot.request(Request(reservation, terminate))
        return terminate

    def health(self) -> PoolHealth:
        """How many children are ready, and why not all of them."""
        alive = sum(slot.child is not None for slot in self._slots)
        failures = [slot.failure for slot in self._slots if slot.failure]
        return PoolHealth(alive=alive, blocked=failures[0] if failures and not alive else None)

    def drain(self) -> None:
        """Start nothing more that children have in hand."""
        self.draining = True
        for slot in self._slots:
            slot.ring()

    def close(self) -> None:
        """Take nothing more; what runs goes on."""
        super().close()
        for slot in self._slots:
            slot.ring()

    def end(self) -> None:
        """Kill what still runs: nothing of it may outlive the worker."""
        for slot in self._slots:
            for child in (slot.child, slot.starting):
                # A slot that waits for a job has dismissed its child, or is about to.
                if child is not None and (slot.busy or child is slot.starting):
                    child.kill()
        self._reaped.wait(EXIT_TIMEOUT + 2.0)

    # --- for the slots ---

    def start_child(self, slot: ChildSlot) -> tuple[Child | None, str]:
        """A child that is ready, or why there is none."""
        try:
            child = slot.starting = Child(self._setup)
        except OSError as error:
            return None, f"a child process can't be started: {error}"
        try:
            self._check(child.await_ready(START_TIMEOUT))
        except ConfigError as error:
            self.part_with(child)
            return None, str(error)
        finally:
            slot.starting = None
        return child, ""

    def part_with(self, child: Child) -> None:
        """See to the end of a child; until then it does not matter to anybody."""
        child.hang_up()
        self._parted.put(child)

    def ended(self, slot: ChildSlot) -> None:
        """A slot's thread is about to end."""
        with self._lock:
            self._alive -= 1
            if not self._alive:
                self._parted.put(None)

    def wake_idle(self) -> None:
        """Have slots that wait for a job look after their children."""
        if not self.closing:
            self.buffer.poke(self.slots)

    def _check(self, answer: wire.Ready | wire.Broken) -> None:
        app, path = self.around.app, self._setup.app_path
        if isinstance(answer, wire.Broken):
            if answer.traceback:
                _log.debug("the import of %s in a child failed:\n%s", path, answer.traceback)
            raise ConfigError(f"children can't import the app {path!r}: {answer.message}")
        missing = sorted(app.tasks.keys() - set(answer.tasks))
        if missing:
            raise ConfigError(
                f"the app that children import from {path!r} lacks {len(missing)} tasks of this "
                f"worker's app, for example {missing[0]!r}: register tasks when their module is "
                f"imported, and name that app"
            )
        url = app.config.transport
        if not self._setup.relayed and isinstance(url, str) and answer.transport not in (None, url):
            raise ConfigError(
                f"the app that children import from {path!r} uses {mask(answer.transport or '')}, "
                f"this worker's app {mask(url)}: name the worker's own app"
            )

    # --- the reaper's thread ---

    def _reap(self) -> None:
        """Wait for the ends of children that slots have parted with; kill the slow ones."""
        waiting: list[Child] = []
        more = True
        while more or waiting:
            try:
                child = self._parted.get(timeout=0.05 if waiting else None)
                if child is None:
                    more = False
                else:
                    waiting.append(child)
            except Empty:
                pass
            waiting = [child for child in waiting if not _is_reaped(child)]
        self._reaped.set()


def _is_reaped(child: Child) -> bool:
    """Reap a child that has ended, or whose time to end is over."""
    if not child.has_ended():
        if child.closed_at is not None and _monotonic() - child.closed_at < EXIT_TIMEOUT:
            return False
        child.kill()
        child.await_end(1.0)
    child.reap()
    return True


def _end_all(children: list[Child]) -> None:
    for child in children:
        child.kill()
    for child in children:
        child.reap()
